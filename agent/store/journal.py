"""What the daemon keeps on disk: node lock, store with its writer, mirror and rollups, in one place.

A store that cannot be written is a trouble that every surface shows, not the end of the agent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Self

import msgspec

from nodevet.agent.config.settings import Configuration
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.core.model import Device, Episode, EpisodeState, Key, ReadingStatus, Result, Sample
from nodevet.checks.core.quantities import QUANTITIES, QuantityKind
from nodevet.checks.engine.engine import Engine
from nodevet.checks.system.lock import acquire_node_lock

from .database import RefusedError
from .machine import Machine, is_of, open_of_machine, this_machine
from .mirror import MIRROR_NAME, Mirror, ends, read_mirror, restore
from .opening import DATABASE_NAME, read_store
from .rows import Rollup, UnsavedRound
from .writer import Keeping, Retention, StoreWriter

BOOKKEEPING = frozenset(
    {
        "counters",
        "events",
        "gate_log",
        "hourly",
        "kernel_log",
        "lapses",
        "ledger",
        "refusals",
        "times",
        "seen_events",
        "waiting",
    }
)
"""What a restart needs and no surface shows: it changes with every reading, and nobody waits for it.

The ledger is here because every episode that changed for a reader is handed over by itself, and because the rest of
it says only when something was last looked at. Logs of kernel and prologs are read again from where they were kept.
"""


ROLLED = frozenset(key for key, quantity in QUANTITIES.items() if quantity.rolled)

MOST_ENDS = 1_000
"""So many ends wait in the mirror for a store that cannot be written, those that came last."""


class MinuteRollups:
    """Collects the gauges of one wall-clock minute, for the history of a device."""

    def __init__(self) -> None:
        """Start with nothing collected."""
        self._minute: int | None = None
        self._values: dict[tuple[str, str, str], list[float]] = {}

    def take(self, sample: Sample) -> tuple[Rollup, ...]:
        """Add *sample*; return the summaries of the minute before where this one began another."""
        minute = int(sample.time.wall_seconds // 60)
        finished: tuple[Rollup, ...] = ()
        if self._minute is not None and minute != self._minute:
            finished = self.finish()
        self._minute = minute
        for reading in sample.readings:
            if reading.quantity in ROLLED and reading.status is ReadingStatus.OK:
                assert QUANTITIES[reading.quantity].kind is QuantityKind.GAUGE
                key = (sample.device, reading.quantity, str(reading.part))
                self._values.setdefault(key, []).append(float(reading.value or 0))
        return finished

    def finish(self) -> tuple[Rollup, ...]:
        """Return the summaries of what was collected, and start anew."""
        minute = self._minute or 0
        rollups = tuple(
            Rollup(minute, device, quantity, part, min(values), sum(values) / len(values), max(values), len(values))
            for (device, quantity, part), values in self._values.items()
        )
        self._values.clear()
        return rollups


class Journal:
    """Holds the node lock and the store from ``with`` to its end."""

    def __init__(self, configuration: Configuration, clock: Clock) -> None:
        """Prepare for the directories of *configuration*."""
        self._configuration = configuration
        self._clock = clock
        self._runtime = Path(configuration.agent.runtime_dir)
        self._rollups = MinuteRollups()
        self._notices: list[str] = []
        self._mirror: Mirror | None = None
        self._ended: tuple[Episode, ...] = ()
        self._unkept_ends: dict[Key, tuple[int, Episode]] = {}
        self.ended: tuple[Episode, ...] = ()
        """What is over and not on the disk yet; for any thread."""
        self._handed: dict[str, bytes] = {}
        self._has_result = False
        self._told = ""
        self.bell = -1
        """The descriptor that becomes readable when an awaited round was tried to write; ``answer`` silences it."""
        self._awaited = self._rung = 0

    def __enter__(self) -> Self:
        """Take lock and store.

        A store that is damaged is recreated and noticed; one that cannot be written now is tried again each round, and
        the agent goes on without. Raises BusyError, and RefusedError where a person must choose another place.
        """
        self._lock = acquire_node_lock(self._runtime, "nodevet agent")
        self._mirror = self._read_mirror()
        path = Path(self._configuration.agent.state_dir) / DATABASE_NAME
        store, trouble = None, ""
        machine = this_machine(Path(self._configuration.agent.root))
        try:
            opened = open_of_machine(path, machine)
        except (BusyError, RefusedError):
            self._lock.release()
            raise
        except StoreError as error:
            trouble = str(error)
            self._memory, self._episodes = _as_it_lies(path, machine)
        else:
            store = opened.store
            self._notices += [opened.notice] if opened.notice else []
            self._memory, self._episodes = store.load_memory(), store.load_episodes()
            with suppress(StoreError, BusyError):
                self._ended = ends(store, self._mirror)
        kept = self._configuration.store
        self._handed = dict(self._memory)
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._writer = StoreWriter(
            store,
            Retention(rollup_days=kept.rollup_days, count_days=kept.count_days, size_limit_bytes=kept.size_limit_bytes),
            path=path,
            opened=partial(open_of_machine, machine=machine),
            trouble=trouble,
            known=UnsavedRound(self._episodes, dict(self._memory), self._clock.instant()),
            attempted=self._ring,
        )
        return self

    def __exit__(self, *_raised: object) -> None:
        """Write what waits and let go."""
        self._writer.submit_rollups(self._rollups.finish())
        if self._writer.close(0.4):
            os.close(self.bell)
        self._lock.release()

    def restore_lock(self) -> None:
        """Take the node lock anew where its file was removed. Raises BusyError and StoreError."""
        self._lock.restore()

    @property
    def notices(self) -> tuple[str, ...]:
        """Return what people must know about how the store was found."""
        return tuple(self._notices)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Return what is wrong with the store now."""
        self._told = self._writer.status
        return (self._told,) if self._told else ()

    @property
    def learned(self) -> tuple[str, ...]:
        """Return what people must know about the store since the start."""
        return self._writer.learned

    def restore(self, engine: Engine) -> Mapping[str, bytes]:
        """Give *engine* all that was known, and return the whole memory.

        What the mirror of this boot knows better than the store counts: a failed verdict outlives a lost store.
        """
        try:
            engine.restore(self._memory)
        except msgspec.MsgspecError as error:
            self._notices.append(f"a part of the agent's memory cannot be read and is reset: {error}")
            remembered = {episode.key for episode in engine.episodes}
            engine.adopt((*engine.episodes, *(each for each in self._episodes if each.key not in remembered)))
        known = engine.episodes or self._episodes
        boot_id = self._clock.instant().boot_id
        adopted = restore(known, self._mirror, boot_id, self._ended)
        engine.adopt(adopted)
        only_mirrored = tuple(episode for episode in adopted if episode not in known)
        dealt_with = {episode.key for episode in (*adopted, *self._ended)}
        over = self._mirror.ended if self._mirror is not None and self._mirror.boot_id == boot_id else ()
        only_mirrored += tuple(episode for episode in over if episode.key not in dealt_with)
        if only_mirrored:
            self._remember_ends(only_mirrored, self._writer.submit_round(only_mirrored, {}, time=self._clock.instant()))
        return self._memory

    def _read_mirror(self) -> Mirror | None:
        try:
            mirror = read_mirror(self._runtime / MIRROR_NAME)
        except StoreError as error:
            self._notices.append(str(error))
            return None
        self._notices += [mirror.notice] if mirror is not None and mirror.notice else []
        return mirror

    def answer(self) -> None:
        """Silence the bell."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.bell)

    def _ring(self) -> None:
        """Ring where somebody waits for what was tried: a turn of the main loop for any other round is needless.

        Called by the writer's thread. A ticket that becomes known only after its attempt is asked for at once.
        """
        awaited = self._awaited
        if awaited == self._rung or (keeping := self.keeping(awaited)) is Keeping.WAITING:
            return
        if keeping is Keeping.KEPT:
            self._rung = awaited
        os.eventfd_write(self.bell, 1)

    def keep_round(self, changes: Iterable[Episode], memory: Mapping[str, bytes]) -> int | None:
        """Keep what one round changed, and what a restart needs.

        Return the ticket to ask ``keeping`` for, or None where nothing changed that outlives the agent and is shown.
        """
        lasting = tuple(changes)
        # Not every result changes the memory: one that was stopped leaves a wrong one before it in its place.
        is_news = bool(lasting) or self._has_result
        is_news = is_news or any(self._handed.get(name) != memory[name] for name in memory.keys() - BOOKKEEPING)
        self._handed.update(memory)
        self._has_result = False
        self._writer.shown(self._told)
        ticket = self._writer.submit_round(lasting, memory, time=self._clock.instant())
        self._remember_ends(lasting, ticket)
        if is_news:
            self._awaited = ticket
        return ticket if is_news else None

    def _remember_ends(self, changes: Iterable[Episode], ticket: int) -> None:
        """Remember which of *changes* end an episode until the round of *ticket* is on the disk."""
        ends = {key: end for key, end in self._unkept_ends.items() if self.keeping(end[0]) is not Keeping.KEPT}
        for episode in changes:
            ends.pop(episode.key, None)
            if episode.state is EpisodeState.CLEARED:  # a word that covers its return is in the mirror too
                ends[episode.key] = (ticket, episode)
        self._unkept_ends = dict(islice(ends.items(), max(len(ends) - MOST_ENDS, 0), None))
        self.ended = tuple(episode for _, episode in self._unkept_ends.values())

    def keeping(self, ticket: int) -> Keeping:
        """Return whether the round of *ticket* is on the disk."""
        return self._writer.keeping(ticket)

    @property
    def trouble(self) -> str:
        """Return what is wrong with the store now, in one line; empty while all is well."""
        return "; ".join(self.troubles)

    def keep_sample(self, sample: Sample) -> None:
        """Add *sample* to the minute figures."""
        finished = self._rollups.take(sample)
        if finished:
            self._writer.submit_rollups(finished)

    def keep_devices(self, devices: Iterable[Device]) -> None:
        """Remember that *devices* are here."""
        self._writer.submit_devices(tuple(devices), self._clock.instant().wall_seconds)

    def keep_result(self, result: Result) -> None:
        """Keep the *result* of a load; who waits for the round behind it waits for the result, too."""
        self._writer.submit_result(result)
        self._has_result = True


def _as_it_lies(path: Path, machine: Machine) -> tuple[dict[str, bytes], tuple[Episode, ...]]:
    """Return memory and open episodes of a database of *machine* that can be read but not written, or nothing."""
    try:
        with closing(read_store(path, or_newer=True)) as store:
            memory = store.load_memory()
            return (memory, store.episodes_at_rest()) if is_of(memory, machine) else ({}, ())
    except (StoreError, BusyError):
        return {}, ()
