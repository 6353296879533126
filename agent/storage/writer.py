"""The thread that writes to the store, so that a slow disk never holds up the main loop.

It receives immutable values. What cannot be written waits, bounded, and is tried again with the next round: every
state change stays in order as long as there is room, and then the newest state of each episode is what remains.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from nodevet.agent.storage.database import DamagedError
from nodevet.agent.storage.store import Rollup, Store, UnsavedRound, unkeepable
from nodevet.checks.errors import BusyError, StoreError
from nodevet.checks.model import Device, Episode, Instant, Result

__all__ = ["Keeping", "Retention", "StoreWriter", "merged"]


class Keeping(StrEnum):
    """How far the writer is with what was handed to it."""

    WAITING = "waiting"
    KEPT = "kept"
    FAILED = "failed"


class Retention(msgspec.Struct, frozen=True):
    """How much is kept: days of rollups, bytes of database, and how many values may wait while the disk refuses."""

    rollup_days: float = 14
    size_limit_bytes: int = 256 << 20
    waiting_rounds: int = 64
    waiting_episodes: int = 4096
    waiting_results: int = 64
    waiting_rollups: int = 20_000


class _Batch(msgspec.Struct, frozen=True):
    """What one attempt tries to write."""

    rounds: tuple[UnsavedRound, ...]
    results: tuple[Result, ...]
    devices: tuple[Device, ...]
    devices_wall_seconds: float
    rollups: tuple[Rollup, ...]


class StoreWriter:
    """Owns a store from its creation on. ``submit_...`` never block; ``status`` says in one line what is wrong."""

    def __init__(
        self, store: Store, retention: Retention | None = None, *, attempted: Callable[[], None] = lambda: None
    ) -> None:
        """Take over *store* and start the thread, which calls *attempted* after each attempt to write."""
        self._store = store
        self._retention = retention or Retention()
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
        self._failure = ""
        self._dropped = ""
        self._thread = threading.Thread(target=self._run, name="nodevet-store", daemon=True)
        self._thread.start()

    @property
    def status(self) -> str:
        """Return what is wrong with the store and what to do, in one line; empty while everything is written."""
        with self._condition:
            if not self._closing and not self._thread.is_alive():
                return f"{self._store.path}: the writer ended: restart the agent and report this"
            return "; ".join(text for text in (self._failure, self._dropped) if text)

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
        """Keep the *result* of a workload."""
        kept = self._keepable((result,))
        with self._condition:
            self._results.extend(kept)
            del self._results[: -self._retention.waiting_results]
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
                self._condition.wait_for(lambda: self._closing or self._asked > self._attempted)
                closing, ticket, batch = self._closing, self._asked, self._batch()
            failure = ""
            try:
                self._write(batch, ticket)
            except DamagedError as error:
                failure = f"{error}: restart the agent, which moves it aside"
            except (StoreError, BusyError) as error:
                failure = str(error)
            with self._condition:
                self._failure = failure
                self._attempted = ticket
                self._condition.notify_all()
            self._tell()
        self._store.close()

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
        if batch.rounds:
            self._store.save_rounds(batch.rounds)
            self._forget(self._rounds, batch.rounds)
        for result in batch.results:
            self._store.append_result(result)
            self._forget(self._results, (result,))
        with self._condition:
            self._kept = ticket
        self._tell()  # at once: a surface waits for it, and what follows may take long
        if batch.devices:
            self._store.see_devices(batch.devices, batch.devices_wall_seconds)
            with self._condition:
                self._devices = () if self._devices is batch.devices else self._devices
        if batch.rollups:
            self._store.append_rollups(batch.rollups)
            self._forget(self._rollups, batch.rollups)
            self._prune(batch.rollups[-1].minute * 60)

    def _prune(self, wall_seconds: float) -> None:
        limit = self._retention.size_limit_bytes
        if not self._store.prune(wall_seconds, rollup_days=self._retention.rollup_days, size_limit_bytes=limit):
            raise StoreError(f"{self._store.path}: episodes alone exceed {limit} bytes: raise store.size_limit_bytes")

    def _forget(self, queue: list[Any], written: Sequence[msgspec.Struct]) -> None:
        done = {id(value) for value in written}
        with self._condition:
            queue[:] = [value for value in queue if id(value) not in done]


def merged(older: UnsavedRound, newer: UnsavedRound, episode_limit: int) -> UnsavedRound:
    """Return two rounds as one: all changes in order, or above *episode_limit* the newest of each episode only."""
    episodes = older.episodes + newer.episodes
    if len(episodes) > episode_limit:
        episodes = tuple({episode.key: episode for episode in episodes}.values())
    return UnsavedRound(episodes, {**older.memory, **newer.memory}, newer.time)
