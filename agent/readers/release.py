"""A release of the devices that outlives the agent: a restarted agent must not open a GPU that is being reset."""

from __future__ import annotations

import msgspec

from nodevet.agent.services.protocol import Service
from nodevet.checks.core.clock import Clock

from .supervisor import Supervisor


class _Kept(msgspec.Struct, frozen=True):
    """The end of the release: the boot, and CLOCK_BOOTTIME in nanoseconds."""

    boot_id: str
    ends_ns: int


class Release(Service):
    """Makes the readers of a supervisor close the devices until a time that is remembered."""

    name = "release"

    def __init__(self, supervisor: Supervisor, clock: Clock, memory: bytes | None) -> None:
        """Continue the release of *memory* if it is of this boot and not over."""
        self._supervisor = supervisor
        self._clock = clock
        self._kept = _recalled(memory)
        left = self._left()
        if left > 0:
            supervisor.release(left)

    def begin(self, seconds: float) -> None:
        """Close every device handle for *seconds* from now."""
        now = self._clock.instant()
        self._kept = _Kept(now.boot_id, now.boottime_ns + round(seconds * 1e9))
        self._supervisor.release(seconds)

    @property
    def memory(self) -> bytes:
        """Return the state for a restarted agent: empty if no release is in force."""
        return msgspec.msgpack.encode(self._kept) if self._left() > 0 else b""

    def _left(self) -> float:
        now = self._clock.instant()
        if self._kept is None or self._kept.boot_id != now.boot_id:
            return 0.0
        return (self._kept.ends_ns - now.boottime_ns) / 1e9


def _recalled(memory: bytes | None) -> _Kept | None:
    try:
        return msgspec.msgpack.decode(memory, type=_Kept) if memory else None
    except msgspec.MsgspecError:
        return None
