"""A load without an agent keeps the same promise to the jobs of a scheduler: told on disk, and none here.

The state file then says ``probing`` and, because nothing is judged while the load runs, ``unknown``; a fault that is
known and hard stays in it.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from nodevet.agent.clock import Clock, SystemClock
from nodevet.agent.load.claims import Claims, ClaimsSeen, LoadLock
from nodevet.agent.publisher import STATE_NAME
from nodevet.checks.errors import BusyError
from nodevet.checks.model import NODE, Snapshot, State, Verdict
from nodevet.exporters.statefile import write_state

__all__ = ["LoadAlone"]

TTL_SECONDS = 60.0
REFRESH_SECONDS = 15.0
GONE_SECONDS = 5.0
POLL_SECONDS = 0.05


class LoadAlone:
    """Tells the prologs of a load from ``with`` to its end, and whether a job came."""

    def __init__(self, runtime_directory: Path, before: Snapshot, clock: Clock | None = None) -> None:
        """Speak in *runtime_directory* for the node that was judged *before* the load."""
        self.lock = LoadLock(runtime_directory)
        self._path = runtime_directory / STATE_NAME
        self._claims = Claims(runtime_directory)
        self._before = before
        self._clock = clock or SystemClock()
        self._told = 0.0

    def __enter__(self) -> Self:
        """Say ``probing``, then see that no job is here. Raises BusyError where one is."""
        self._claims.prepare()
        self._tell(probing=True)
        reason = self._claims.look().reason
        if reason:
            self._tell(probing=False)
            raise BusyError(f"burn-in: {reason}; a load runs on idle nodes only")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say ``idle`` once every process of the load is gone; where one cannot be ended the state expires."""
        deadline = self._clock.monotonic() + GONE_SECONDS
        while self.lock.is_held():
            if self._clock.monotonic() >= deadline:
                return
            time.sleep(POLL_SECONDS)
        self._tell(probing=False)

    def look(self) -> ClaimsSeen:
        """Return the claims of now, and keep the state from expiring."""
        if self._clock.monotonic() - self._told >= REFRESH_SECONDS:
            self._tell(probing=True)
        return self._claims.look()

    def _tell(self, *, probing: bool) -> None:
        self._told = self._clock.monotonic()
        write_state(self._path, _during_load(self._before, self._clock, probing=probing), ttl_seconds=TTL_SECONDS)


def _during_load(before: Snapshot, clock: Clock, *, probing: bool) -> Snapshot:
    """Return what may be said of the node now: what was hard and failed, and that nobody judges the rest."""
    unknown = Verdict(state=State.UNKNOWN, reason="a burn-in without an agent: nothing is judged meanwhile")
    verdicts = {
        device: verdict if verdict.state is State.FAILED and verdict.hard else unknown
        for device, verdict in {**before.device_verdicts, NODE: before.device_verdicts.get(NODE, unknown)}.items()
    }
    kept = before.verdict if before.verdict.state is State.FAILED and before.verdict.hard else unknown
    return msgspec.structs.replace(
        before,
        time=clock.instant(),
        verdict=kept,
        device_verdicts=verdicts,
        findings=(),
        agent=msgspec.structs.replace(before.agent, probing=probing),
    )
