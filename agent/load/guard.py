"""Whether a load may run beside the jobs of a scheduler: announced on disk first, then no claim, and gone before idle.

docs/reference/slurm-gate.md has the protocol from both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from nodevet.agent.services.protocol import Service
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import AgentInfo, Snapshot

from .claims import Claims, LoadLock
from .lease import LeaseBook

POLL_SECONDS = 0.05
"""How often claims, and what is left of a load, are looked at while one is announced, runs or ends."""

ANNOUNCE_SECONDS = 10.0
"""A state file that takes longer to write is not written; the load is not run then."""


class LoadGuard(Service):
    """Grants the lease of the node in two steps: ``announce``, then ``standing`` until it says yes or no."""

    name = "load_guard"

    def __init__(
        self,
        runtime_directory: Path,
        clock: Clock,
        is_alive: Callable[[int], bool],
        written: Callable[[], Snapshot | None],
        tell: Callable[[bool], None] = lambda _probing: None,
    ) -> None:
        """Watch *runtime_directory*; *written* returns the snapshot that the state file on disk is of.

        *tell* is told in each turn whether a load may run, is there or has left something.
        """
        self.leases = LeaseBook(clock.instant, is_alive)
        self.claims = Claims(runtime_directory)
        self.lock = LoadLock(runtime_directory)
        self._clock = clock
        self._written = written
        self._tell = tell
        self._generation = 0
        self._announced = 0.0
        self._waiting: list[tuple[int, Callable[[str | None], None]]] = []
        # An agent that was killed may have left a load that still ends.
        self._left_over = True

    @property
    def probing(self) -> bool:
        """Return whether a load is announced, runs, or has a process left: what the state file must say."""
        if self.leases.current is not None:
            self._left_over = True
        elif self._left_over:
            self._left_over = self.lock.is_held()
        return self._left_over

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        must_look = self._waiting or (self._left_over and self.leases.current is None)
        return self._clock.monotonic() + POLL_SECONDS if must_look else None

    def announce(self, holder: str, pid: int, devices: Iterable[str], seconds: float, generation: int) -> str | None:
        """Take the lease for *holder*, so that every state after *generation* says ``probing``; or return why not."""
        reason = self.claims.look().reason
        if reason:
            return reason
        if self.leases.current is None and self.lock.is_held():
            return "a process of the previous load still runs"
        if self.leases.take(holder, pid, devices, seconds) is None:
            current = self.leases.current
            return f"{current.holder} (pid {current.pid}) holds it" if current else "another load holds it"
        self._generation = generation
        self._announced = self._clock.monotonic()
        return None

    def standing(self, pid: int) -> str | None:
        """Return an empty string once the load of *pid* may start, why it may not, or None while that is not known.

        A refused load has lost its lease.
        """
        lease = self.leases.current
        if lease is None or lease.pid != pid:
            return "the lease has ended"
        written = self._written()
        if written is None or written.generation <= self._generation or not written.agent.probing:
            if self._clock.monotonic() - self._announced < ANNOUNCE_SECONDS:
                return None
            reason: str | None = "the state file cannot be written, so no prolog would notice the load"
        else:
            reason = self.claims.look().reason
        if reason:
            self.leases.give_back(pid)
        return reason or ""

    def tell(self, pid: int, answer: Callable[[str | None], None]) -> None:
        """Call *answer* with what ``standing`` of *pid* comes to: None for yes, else why not."""
        self._waiting.append((pid, answer))

    def tick(self) -> None:
        """Tell those who wait for their standing, and whether the state file must say ``probing``."""
        waiting, self._waiting = self._waiting, []
        for pid, answer in waiting:
            standing = self.standing(pid)
            if standing is None:
                self._waiting.append((pid, answer))
            else:
                answer(standing or None)
        self._tell(self.probing)

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Tell whether a load may run, and which jobs claim the node."""
        claims = self.claims.look()
        return msgspec.structs.replace(
            info, probing=self.probing, jobs=claims.count, oldest_job_seconds=claims.oldest_seconds
        )
