"""A load without an agent keeps the same promise to the jobs of a scheduler: told on disk, and none here.

The state file then says ``probing`` and, because nothing is judged while the load runs, ``unknown``; a fault that is
known and hard stays in it, with the permit to close the gate for it and the drain that the agent left behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from nodevet.agent.store.publisher import STATE_NAME
from nodevet.checks.core.clock import Clock, SystemClock
from nodevet.checks.core.errors import BusyError
from nodevet.checks.core.model import NODE, Snapshot, State, Verdict
from nodevet.checks.core.scheduler import WriterStatus
from nodevet.checks.engine.modes import gating, named
from nodevet.exporters.statefile.writer import StateFileError, clock_lead, write_state

from .claims import Claims, ClaimsSeen, LoadLock

TTL_SECONDS = 60.0
REFRESH_SECONDS = 15.0
GONE_SECONDS = 5.0
POLL_SECONDS = 0.05


class LoadAlone:
    """Tells the prologs of a load from ``with`` to its end, and whether a job came.

    Once the load runs, a state file that cannot be written costs no result: the load gives way when the state expires.
    """

    def __init__(
        self,
        runtime_directory: Path,
        before: Snapshot,
        clock: Clock | None = None,
        say: Callable[[str], None] = lambda _line: None,
        writer: WriterStatus | None = None,
    ) -> None:
        """Speak in *runtime_directory* for the node that was judged *before* the load; *say* takes what goes wrong.

        *writer* is how the agent's writer to SLURM left the node; None where there is none.
        """
        self.lock = LoadLock(runtime_directory)
        self._path = runtime_directory / STATE_NAME
        self._claims = Claims(runtime_directory)
        self._before = before if writer is None else _left(before, writer)
        self._clock = clock or SystemClock()
        self._say = say
        self._told = 0.0
        self._tried = 0.0
        self._trouble = ""

    def __enter__(self) -> Self:
        """Say ``probing``, then see that no job is here. Raises BusyError where one is."""
        self._claims.prepare()
        self._tell(probing=True)
        reason = self._claims.look().reason
        if reason:
            self._tell(probing=False)
            raise BusyError(f"burn-in: {reason}; a load runs on idle nodes only")
        return self

    def __exit__(self, *_raised: object) -> None:
        """Say ``idle`` once every process of the load is gone; where one cannot be ended the state expires."""
        deadline = self._clock.monotonic() + GONE_SECONDS
        while self.lock.is_held():
            if self._clock.monotonic() >= deadline:
                return
            time.sleep(POLL_SECONDS)
        self._try_to_tell(probing=False)

    def look(self) -> ClaimsSeen:
        """Return the claims of now, and keep the state from expiring."""
        if self._clock.monotonic() - self._tried >= REFRESH_SECONDS:
            self._try_to_tell(probing=True)
        if self._clock.monotonic() - self._told >= TTL_SECONDS - GONE_SECONDS:
            return ClaimsSeen(failure=f"no prolog can notice the load: {self._trouble}")
        return self._claims.look()

    def _try_to_tell(self, *, probing: bool) -> None:
        try:
            self._tell(probing=probing)
        except StateFileError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._say(f"{error}; the old file stays valid for {TTL_SECONDS:.0f} s")

    def _tell(self, *, probing: bool) -> None:
        self._tried = now = self._clock.monotonic()
        present = _during_load(self._before, self._clock, probing=probing)
        write_state(self._path, present, ttl_seconds=TTL_SECONDS, lead_seconds=clock_lead())
        self._told = now


def _left(before: Snapshot, writer: WriterStatus) -> Snapshot:
    """Return *before* with the permit and the drain that *writer* left: nobody asks SLURM for another meanwhile."""
    left = msgspec.structs.replace(writer, considered=named(gating(before)))
    return msgspec.structs.replace(before, agent=msgspec.structs.replace(before.agent, slurm=left, permit=left.permit))


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
