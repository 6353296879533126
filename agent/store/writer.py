"""The thread that writes to the store, so that a slow disk never holds up the main loop.

It receives immutable values. What cannot be written waits, bounded, and is tried again with the next round: every
state change stays in order as long as there is room, and then the newest state of each episode is what remains.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.core.guard import Bug, attempt, culprits
from nodevet.checks.core.model import Device, Episode, EpisodeState, Instant, Key, Result
from nodevet.checks.system.background import Background

from .database import DamagedError
from .downgrade import open_of_any_version
from .opening import OpenedStore, open_store
from .rows import Rollup, UnsavedRound, unkeepable
from .store import Store
from .tending import Tender

Value = TypeVar("Value", bound=msgspec.Struct)

TEND_SECONDS = 0.02
"""How long the thread rests between two looks at what a start did not read."""

LEARNED_LINES = 8
"""So many lines about the store are told at once; the log has them all."""


class Keeping(StrEnum):
    """How far the writer is with what was handed to it."""

    WAITING = "waiting"
    KEPT = "kept"
    FAILED = "failed"


class Retention(msgspec.Struct, frozen=True):
    """How much is kept: days of rollups and counts, bytes of database, and what may wait while the disk refuses."""

    rollup_days: float = 14
    count_days: float = 90
    size_limit_bytes: int = 256 << 20
    waiting_rounds: int = 64
    waiting_episodes: int = 4096
    waiting_results: int = 512
    waiting_rollups: int = 20_000


class _Batch(msgspec.Struct, frozen=True):
    """What one attempt tries to write."""

    rounds: tuple[UnsavedRound, ...]
    results: tuple[Result, ...]
    devices: tuple[Device, ...]
    devices_wall_seconds: float
    rollups: tuple[Rollup, ...]


class _Known:
    """What is on the disk, so that a database that is lost can be recreated. Only the writer's thread touches it."""

    def __init__(self, known: UnsavedRound | None) -> None:
        self._episodes: dict[Key, Episode] = {}
        self._memory: dict[str, bytes] = {}
        self._time: Instant | None = None
        self.take((known,) if known is not None else ())

    def take(self, rounds: Iterable[UnsavedRound]) -> None:
        """Add *rounds*, oldest first."""
        for entry in rounds:
            self._memory.update(entry.memory)
            self._time = entry.time
            for episode in entry.episodes:
                if episode.state is EpisodeState.CLEARED:
                    self._episodes.pop(episode.key, None)
                elif episode.state is not EpisodeState.PENDING:
                    self._episodes[episode.key] = episode

    def round(self) -> UnsavedRound | None:
        """Return all of it as one round; None where there is nothing."""
        if self._time is None:
            return None
        return UnsavedRound(tuple(self._episodes.values()), dict(self._memory), self._time)


class StoreWriter:
    """Owns a store from its creation on. ``submit_...`` never block; ``status`` says in one line what is wrong."""

    def __init__(
        self,
        store: Store | None,
        retention: Retention | None = None,
        *,
        path: Path | None = None,
        opened: Callable[[Path], OpenedStore] = open_of_any_version,
        trouble: str = "",
        known: UnsavedRound | None = None,
        attempted: Callable[[], None] = lambda: None,
    ) -> None:
        """Take over *store* and start the thread, which calls *attempted* after each attempt to write.

        Without a store, because of *trouble*, the one at *path* is *opened* as soon as that can be. What is *known* so
        far is written where the database has to be recreated.
        """
        assert store is not None or path is not None
        self._store = store
        self._path = store.path if store is not None else path or Path()
        self._opened = opened
        self._retention = retention or Retention()
        self._known = _Known(known)
        self._condition = threading.Condition()
        self._rounds: list[UnsavedRound] = []
        self._results: list[Result] = []
        self._devices: tuple[Device, ...] = ()
        self._devices_wall_seconds = 0.0
        self._rollups: list[Rollup] = []
        self._asked = 0
        self._attempted = 0
        self._kept = 0
        self._tell = attempted
        self._closing = False
        self._failure = trouble
        self._dropped = ""
        self._incident = ""
        self._aside = 0
        self._results_dropped = 0
        self._told_aside: tuple[str, ...] = ()
        self._learned: tuple[str, ...] = ()
        self._tender = self._tending()
        self._must_tend = False
        self._lost = ""
        self._thread = Background(self._run)
        self._thread.start()

    @property
    def status(self) -> str:
        """Return what is wrong with the store and what to do, in one line; empty while everything is written."""
        with self._condition:
            if not self._closing and not self._thread.is_alive():
                return f"{self._path}: the writer ended: restart the agent and report this"
            return "; ".join(text for text in (self._failure, self._incident, self._dropped) if text)

    @property
    def learned(self) -> tuple[str, ...]:
        """Return what people must know about the store since the start: what was damaged, lost or recreated."""
        with self._condition:
            return self._learned

    def shown(self, status: str) -> None:
        """Let go of a trouble that is over, now that *status* has told of it: it is told for one round."""
        with self._condition:
            if self._incident in status:
                self._incident = ""

    def wait_until_tended(self, timeout_seconds: float) -> bool:
        """Wait until all of the database was looked through, and return whether it was."""
        with self._condition:
            return self._condition.wait_for(lambda: self._tender is None, timeout_seconds)

    def keeping(self, ticket: int) -> Keeping:
        """Return how far the round of *ticket* is: failed where an attempt to write it failed, and no later one did."""
        with self._condition:
            if self._kept >= ticket:
                return Keeping.KEPT
            return Keeping.FAILED if self._attempted >= ticket or not self._thread.is_alive() else Keeping.WAITING

    def submit_round(self, episodes: Sequence[Episode], memory: Mapping[str, bytes], *, time: Instant) -> int:
        """Keep the changed *episodes* and the *memory* of one round, as of *time*; return its ticket.

        What was submitted before it is kept no later than the round.
        """
        kept = self._keepable(episodes)
        with self._condition:
            self._rounds.append(UnsavedRound(kept, dict(memory), time))
            while len(self._rounds) > self._retention.waiting_rounds:
                older, newer = self._rounds[:2]
                self._rounds[:2] = [merged(older, newer, self._retention.waiting_episodes)]
            return self._ask()

    def submit_result(self, result: Result) -> None:
        """Keep the *result* of a workload; the oldest are dropped first, and counted, while the disk refuses."""
        kept = self._keepable((result,))
        with self._condition:
            self._results.extend(kept)
            over = len(self._results) - self._retention.waiting_results
            if over > 0:
                del self._results[:over]
                self._results_dropped += over
                dropped = count_of(self._results_dropped, "result")
                self._incident = f"{self._path}: not stored: {dropped} of loads, because too many waited"
            self._ask()

    def submit_devices(self, devices: Sequence[Device], wall_seconds: float) -> None:
        """Remember that *devices* are here at *wall_seconds*."""
        with self._condition:
            self._devices, self._devices_wall_seconds = tuple(devices), wall_seconds
            self._ask()

    def submit_rollups(self, rollups: Sequence[Rollup]) -> None:
        """Keep minutes of measurements; the oldest are dropped first while the disk refuses."""
        kept = self._keepable(rollups)
        with self._condition:
            self._rollups.extend(kept)
            del self._rollups[: -self._retention.waiting_rollups]
            self._ask()

    def flush(self, timeout_seconds: float) -> bool:
        """Try to write everything now; return whether all of it was written within *timeout_seconds*."""
        with self._condition:
            ticket = self._ask()
            self._condition.wait_for(lambda: self._attempted >= ticket or not self._thread.is_alive(), timeout_seconds)
            return self._attempted >= ticket and not self._failure

    def close(self, timeout_seconds: float = 1.0) -> bool:
        """Write what waits, once, close the store and end the thread; return whether all of it was done in time."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive() and not self._failure

    def _keepable(self, values: Sequence[Episode | Result | Rollup]) -> tuple[Any, ...]:
        reasons = [unkeepable(value) for value in values]
        with self._condition:
            self._dropped = next((reason for reason in reasons if reason), self._dropped)
        return tuple(value for value, reason in zip(values, reasons, strict=True) if not reason)

    def _ask(self) -> int:
        self._asked += 1
        self._condition.notify_all()
        return self._asked

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._condition:
                pause = None if self._tender is None else TEND_SECONDS
                self._condition.wait_for(lambda: self._closing or self._asked > self._attempted, pause)
                closing, ticket, batch = self._closing, self._asked, self._batch()
                idle = not closing and ticket == self._attempted
            if idle:
                self._guarded(self._tend, self._stop_tending)
                continue
            done = attempt(partial(self._attempt, batch, ticket))
            if isinstance(done, Bug):
                done = attempt(partial(self._sift, batch, ticket))
            failure = f"nodevet's own error, please report it: {done}" if isinstance(done, Bug) else done
            with self._condition:
                self._failure = failure
                self._attempted = ticket
                self._condition.notify_all()
            self._guarded(self._tell)
        if self._store is not None:
            self._store.close()

    def _guarded(self, work: Callable[[], None], otherwise: Callable[[], None] = lambda: None) -> None:
        """Do *work*; a bug in it is told once, and the thread, which alone keeps anything, goes on with *otherwise*."""
        done = attempt(work)
        if isinstance(done, Bug):
            line = f"nodevet's own error, please report it: {done}"
            if line not in self._learned:
                self._learn(line)
            attempt(otherwise)

    def _stop_tending(self) -> None:
        with self._condition:
            self._tender = None
            self._condition.notify_all()

    def _attempt(self, batch: _Batch, ticket: int) -> str:
        """Write *batch*; where the database is damaged or gone, make it anew and write it then. Return what failed."""
        try:
            if self._store is None:
                self._open()
            try:
                self._write(batch, ticket)
            except (StoreError, BusyError) as error:
                why = str(error) if isinstance(error, DamagedError) else self._gone()
                if not why:
                    raise
                self._renew(why)
                self._write(batch, ticket)
        except (StoreError, BusyError) as error:
            return self._why_not(error)
        if self._must_tend:
            self._tender, self._must_tend = self._tending(), False
        return ""

    def _why_not(self, error: StoreError | BusyError) -> str:
        """Return in words that nothing can be written because of *error*, and that a database was lost before.

        Where its directory is removed, and a service sees all else read-only (ProtectSystem= of systemd), none can be
        made from within: whoever starts the service makes the directory.
        """
        if not self._lost:
            return str(error)
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EROFS:
            return f"{self._lost}, and cannot be recreated from within ({error.__cause__.strerror}): restart the agent"
        return f"{self._lost}, and cannot be recreated: {error}"

    def _sift(self, batch: _Batch, ticket: int) -> str:
        """Write *batch* in pieces and set aside those that cannot be written; return what failed besides.

        A poison record costs itself. Only a round that has one is not written as a whole.
        """
        try:
            store = self._store
            if store is None:
                self._open()
                store = self._store
            assert store is not None
            self._sift_rounds(store, batch.rounds)
            with self._condition:
                self._kept = ticket
            waiting = {id(result) for result in self._results}  # some were written before the poison was met
            for result in (result for result in batch.results if id(result) in waiting):
                self._set_aside(self._poison((result,), lambda part: store.append_result(part[0])))
                self._forget(self._results, (result,))
            wall_seconds = batch.devices_wall_seconds
            self._set_aside(self._poison(batch.devices, lambda part: store.see_devices(part, wall_seconds)))
            with self._condition:
                self._devices = () if self._devices is batch.devices else self._devices
            self._set_aside(self._poison(batch.rollups, store.append_rollups))
            self._forget(self._rollups, batch.rollups)
        except (StoreError, BusyError) as error:
            return str(error)
        return ""

    def _sift_rounds(self, store: Store, rounds: Sequence[UnsavedRound]) -> None:
        bad = {id(entry) for entry, _ in self._poison(rounds, store.save_rounds)}
        for entry in rounds:
            pieces = entry.pieces if id(entry) in bad else (entry,)
            poison = self._poison(pieces, store.save_rounds) if id(entry) in bad else ()
            self._set_aside(poison)
            spoiled = {id(piece) for piece, _ in poison}
            self._known.take(piece for piece in pieces if id(piece) not in spoiled)
            self._forget(self._rounds, (entry,))

    def _poison(
        self, values: Sequence[Value], write: Callable[[Sequence[Value]], None]
    ) -> tuple[tuple[Value, Bug], ...]:
        """Write *values*, in halves where they cannot be written together; return those that cannot, and why."""
        why: dict[int, Bug] = {}

        def fails(part: Sequence[Value]) -> bool:
            done = attempt(partial(write, part), let=(StoreError, BusyError))
            if isinstance(done, Bug):
                why[id(part[0])] = done
            return isinstance(done, Bug)

        return tuple((value, why[id(value)]) for value in culprits(values, fails))

    def _set_aside(self, poison: Iterable[tuple[Any, Bug]]) -> None:
        """Count *poison*, and tell of each kind of it once."""
        for value, bug in poison:
            line = f"{_named(value)} set aside, it cannot be written: {bug}"
            with self._condition:
                self._aside += 1
                told = line in self._told_aside
                self._told_aside = self._told_aside if told else (*self._told_aside, line)[-LEARNED_LINES:]
                self._incident = self._incident if told else f"{line} ({self._aside} so far); please report this"
            if not told:
                self._learn(line)

    def _gone(self) -> str:
        return "" if self._store is None else self._store.displaced()

    def _tend(self) -> None:
        """Look through a few more rows of the database."""
        assert self._tender is not None
        try:
            self._learn(self._tender.step())
        except DamagedError as error:
            self._tender = None
            with suppress(StoreError, BusyError):  # the next round tries again, and tells
                self._renew(str(error))
        except (StoreError, BusyError):
            # A lock, or a disk that fails: the next round tells of it, and all of it is looked through again after.
            self._tender, self._must_tend = None, True
        if self._tender is not None and self._tender.done:
            with self._condition:
                self._tender = None
                self._condition.notify_all()

    def _tending(self) -> Tender | None:
        return None if self._store is None else Tender(self._store, interrupted=self._is_asked)

    def _is_asked(self) -> bool:
        return self._closing or self._asked > self._attempted

    def _open(self) -> None:
        """Open the database that could not be opened before, and write what is known since."""
        opened = self._opened(self._path)
        self._take(opened.store)
        self._tell_of_the_loss(opened.notice)

    def _renew(self, why: str) -> None:
        """Make the database anew from what is known; what lies there is moved aside. Raises StoreError, BusyError."""
        if self._store is not None:
            self._store.close()
            self._store = None
        self._lost = why
        opened = open_store(self._path, instead=True)
        self._take(opened.store)
        self._tell_of_the_loss(opened.notice)

    def _tell_of_the_loss(self, notice: str) -> None:
        """Tell what became of a database that was lost, once there is one again; *notice* says how it was opened."""
        why, self._lost = self._lost, ""
        if not why:
            self._learn(notice)
            return
        told = f"{why}: recreated from memory, older history and figures are not in it"
        told = f"{told} ({notice})" if notice else told
        self._learn(told)
        with self._condition:
            self._incident = told

    def _take(self, store: Store) -> None:
        known = self._known.round()
        try:
            if known is not None:
                store.save_rounds((known,))
        except (StoreError, BusyError):
            store.close()
            raise
        self._store = store
        self._tender = self._tending()

    def _learn(self, line: str) -> None:
        if line:
            with self._condition:
                self._learned = (*self._learned, line)[-LEARNED_LINES:]

    def _batch(self) -> _Batch:
        return _Batch(
            rounds=tuple(self._rounds),
            results=tuple(self._results),
            devices=self._devices,
            devices_wall_seconds=self._devices_wall_seconds,
            rollups=tuple(self._rollups),
        )

    def _write(self, batch: _Batch, ticket: int) -> None:
        # What was written leaves the queue at once, by identity: the queue may have grown or merged meanwhile.
        store = self._store
        assert store is not None
        if why := store.displaced() or store.overwritten():
            raise DamagedError(why)
        if batch.rounds:
            store.save_rounds(batch.rounds)
        if why := store.displaced():
            raise StoreError(why)  # what was just written went into a file that has no name any more
        self._known.take(batch.rounds)
        self._forget(self._rounds, batch.rounds)
        for result in batch.results:
            store.append_result(result)
            self._forget(self._results, (result,))
        with self._condition:
            self._kept = ticket
        self._tell()  # at once: a surface waits for it, and what follows may take long
        if batch.devices:
            store.see_devices(batch.devices, batch.devices_wall_seconds)
            with self._condition:
                self._devices = () if self._devices is batch.devices else self._devices
        if batch.rollups:
            store.append_rollups(batch.rollups)
            self._forget(self._rollups, batch.rollups)
            self._prune(store, batch.rollups[-1].minute * 60, ticket)

    def _prune(self, store: Store, wall_seconds: float, ticket: int) -> None:
        kept, limit = self._retention, self._retention.size_limit_bytes
        if not store.prune(
            wall_seconds,
            rollup_days=kept.rollup_days,
            count_days=kept.count_days,
            size_limit_bytes=limit,
            gives_way=lambda: self._closing or self._asked > ticket,
        ):
            raise StoreError(f"{self._path}: episodes alone exceed {limit} bytes: raise store.size_limit_bytes")

    def _forget(self, queue: list[Any], written: Sequence[msgspec.Struct]) -> None:
        done = {id(value) for value in written}
        with self._condition:
            queue[:] = [value for value in queue if id(value) not in done]


def _named(value: Result | Device | Rollup | UnsavedRound) -> str:
    """Return what *value* is, for people; whatever is in it."""
    if not isinstance(value, UnsavedRound):
        return type(value).__name__.lower()
    names = [
        *(f"episode {episode.key.code}" for episode in value.episodes),
        *(f"memory {name}" for name in value.memory),
    ]
    return ", ".join(ascii(name)[1:-1] for name in names)


def merged(older: UnsavedRound, newer: UnsavedRound, episode_limit: int) -> UnsavedRound:
    """Return two rounds as one: all changes in order, or above *episode_limit* the newest of each episode only."""
    episodes = older.episodes + newer.episodes
    if len(episodes) > episode_limit:
        episodes = tuple({episode.key: episode for episode in episodes}.values())
    return UnsavedRound(episodes, {**older.memory, **newer.memory}, newer.time)
