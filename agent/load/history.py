"""What a burn-in without an agent leaves behind: its results, and what they opened or ended, in the store.

The agent that starts next, or the next burn-in, goes on from there: a wrong result is not forgotten because nobody was
there to keep it. Only what the load changed is kept: a one-shot confirms measured findings with two looks, which is
not enough for a journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from nodevet.agent.config.settings import Configuration
from nodevet.agent.store.machine import is_of, open_of_machine, this_machine
from nodevet.agent.store.opening import DATABASE_NAME, open_store, read_store
from nodevet.agent.store.store import Store
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.core.model import Episode, Key, Result
from nodevet.checks.core.recall import recalled
from nodevet.checks.engine.episodes import Ledger, Settled
from nodevet.checks.engine.retest import LatestResults

from .wrong import WrongTelling

CHECK = "burn-in"
PROOF = "passed re-test"


class History:
    """Collects what a look after a load changed; ``save`` keeps it."""

    def __init__(self, configuration: Configuration, results: Sequence[Result]) -> None:
        """Keep *results* in the state directory of *configuration*."""
        self._configuration = configuration
        self._results = tuple(results)
        self._changes: dict[Key, Episode] = {}
        self._memory: Mapping[str, bytes] = {}

    def take(self, changes: Sequence[Episode], memory: Mapping[str, bytes]) -> None:
        """Take the *changes* of one round that are the load's own, and the engine's *memory* after it."""
        own = (change for change in changes if change.check == CHECK or (change.cleared_by or "").startswith(PROOF))
        self._changes |= {change.key: change for change in own}
        self._memory = memory

    def add(self, results: Sequence[Result]) -> None:
        """Keep *results*, too."""
        self._results += tuple(results)

    @property
    def changed(self) -> bool:
        """Return whether a look changed anything."""
        return bool(self._changes)

    def save(self) -> str:
        """Write to the store; return why that cannot be done, or an empty string."""
        return _written(self._configuration, self._write)

    def _write(self, store: Store) -> None:
        now = SystemClock().instant()
        memory = {"ledger": msgspec.msgpack.encode(self._ledger(store))}
        memory |= {name: value for name, value in self._memory.items() if name == "results"}
        store.save_round(tuple(self._changes.values()), memory, time=now)
        for result in self._results:
            store.append_result(result)
        kept = self._configuration.store
        store.prune(
            now.wall_seconds,
            rollup_days=kept.rollup_days,
            count_days=kept.count_days,
            size_limit_bytes=kept.size_limit_bytes,
        )

    def _ledger(self, store: Store) -> Ledger:
        """Return what the agent before had, with what the load changed."""
        stored = store.load_memory().get("ledger")
        before = Ledger() if stored is None else recalled(stored, Ledger)[0]
        after = Ledger() if not self._memory else msgspec.msgpack.decode(self._memory["ledger"], type=Ledger)
        episodes = [episode for episode in before.episodes if episode.key not in self._changes]
        episodes += [episode for episode in after.episodes if episode.key in self._changes]
        settled = {entry.key: entry.occurrence for entry in before.settled}
        settled |= {entry.key: entry.occurrence for entry in after.settled if entry.key in self._changes}
        return msgspec.structs.replace(
            before,
            wrong=after.wrong,
            episodes=tuple(episodes),
            settled=tuple(Settled(key, occurrence) for key, occurrence in sorted(settled.items())),
        )


def found_alone(
    configuration: Configuration,
    stamp: Callable[[Result], Result],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> WrongTelling:
    """Return how each wrong result is kept as soon as it is found: a load alone may be killed before it is judged.

    What *stamp* makes of each is kept; *say* takes a line about what goes wrong.
    """

    def keep(fresh: tuple[Result, ...]) -> str:
        trouble = keep_unjudged(configuration, tuple(map(stamp, fresh)))
        return trouble and f"it is not in the history yet: {trouble}"

    return WrongTelling(keep, say, clock)


def keep_unjudged(configuration: Configuration, results: Sequence[Result]) -> str:
    """Keep *results* that nobody has judged; return why that cannot be done, or an empty string.

    Those that are wrong are in the memory of the next agent, or of the next look, which judges them.
    """

    def write(store: Store) -> None:
        stored = store.load_memory().get("results")
        known = () if stored is None else recalled(stored, tuple[Result, ...])[0]
        latest = LatestResults()
        for result in (*known, *(each for each in results if each.metric("mismatches"))):
            latest.take(result)
        memory = {"results": msgspec.msgpack.encode(latest.everything)}
        store.save_round((), memory, time=SystemClock().instant())
        for result in results:
            store.append_result(result)

    return _written(configuration, write)


def memory_before(configuration: Configuration) -> Mapping[str, bytes]:
    """Return what the agent before had kept in the store; nothing where that cannot be read."""
    try:
        with closing(read_store(Path(configuration.agent.state_dir) / DATABASE_NAME)) as store:
            memory = store.load_memory()
            return memory if is_of(memory, this_machine(Path(configuration.agent.root))) else {}
    except (StoreError, BusyError):
        return {}


def _written(configuration: Configuration, write: Callable[[Store], None]) -> str:
    """Have *write* done to the store; return why that cannot be done, or an empty string."""
    try:
        machine = this_machine(Path(configuration.agent.root))
        opened = open_of_machine(Path(configuration.agent.state_dir) / DATABASE_NAME, machine, open_store)
        with closing(opened.store) as store:
            write(store)
    except (StoreError, BusyError, msgspec.MsgspecError) as error:
        return str(error)
    return ""
