"""What a load of all devices left out because it was listed only after the load began. Pure.

A driver may still be loading when a node is burned in: its boards are then missing, or only the processors are there to
be loaded. Whoever sees the node afterwards sees those boards, too, so each of them has results that say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from nodevet.checks.burnin.plan import WORKLOAD, GemmRequest
from nodevet.checks.core.model import Device, Instant, Result, ResultState
from nodevet.checks.engine.completeness import ASKED, LOAD

from .lease import load_targets

WHY = "it was listed only after the load began: run it again"


class LateDevices:
    """Knows the devices before a load, and whom it told already that another one is not proved."""

    def __init__(self, before: Iterable[Device], requests: Callable[[Device], tuple[GemmRequest, ...]]) -> None:
        """Take the devices *before* the load; *requests* gives what would have been run on another one."""
        self._known = {device.id for device in before}
        self._requests = requests
        self.results: tuple[Result, ...] = ()

    def told(self, devices: Iterable[Device], load: Sequence[Result], now: Instant) -> tuple[Result, ...]:
        """Return what *devices*, those of *now*, add to the results of the *load*; what was told before is left out."""
        late = [device for device in load_targets(devices) if device.id not in self._known]
        self._known |= {device.id for device in late}
        name = next((result.conditions[LOAD] for result in load if LOAD in result.conditions), None)
        fresh = tuple(
            Result(
                workload=WORKLOAD,
                devices=(device.id,),
                state=ResultState.REFUSED,
                started=now,
                ended=now,
                dtype=None if request is None else request.dtype,
                detail=WHY,
                conditions={LOAD: name} | ({ASKED: True} if request is not None and request.asked else {}),
            )
            for device in late
            for request in self._requests(device) or (None,)
        )
        self.results += fresh
        return fresh
