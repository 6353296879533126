"""What a burn-in without an agent leaves behind: its results, and what they opened or ended, in the store.

The agent that starts next, or the next burn-in, goes on from there: a wrong result is not forgotten because nobody was
there to keep it. Only what the load changed is kept: a one-shot confirms measured findings with two looks, which is
not enough for a journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from nodevet.agent.clock import SystemClock
from nodevet.agent.settings import Configuration
from nodevet.agent.storage.store import DATABASE_NAME, Store, open_store
from nodevet.checks.episodes import Ledger, Settled
from nodevet.checks.errors import BusyError, StoreError
from nodevet.checks.model import Episode, Key, Result

__all__ = ["History"]

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

    def save(self) -> str:
        """Write to the store; return why that cannot be done, or an empty string."""
        path = Path(self._configuration.agent.state_dir) / DATABASE_NAME
        try:
            store = open_store(path).store
            try:
                self._write(store)
            finally:
                store.close()
        except (StoreError, BusyError, msgspec.MsgspecError) as error:
            return str(error)
        return ""

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
        before = Ledger() if stored is None else msgspec.msgpack.decode(stored, type=Ledger)
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
