"""Who may put load on this node. A load runs only under a lease, and there is one lease at a time.

The agent grants it: to its own probe, or to a `nodevet burn-in` that asked over the socket. A holder that died has
given its lease back; so has one whose time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.model import (
    Device,
    DeviceKind,
    Instant,
    Outcome,
    ReaderState,
    Reading,
    ReadingStatus,
    Snapshot,
)
from nodevet.checks.engine.consequences import UNREAD

IDLE_MEMORY_BYTES = 1 << 30
"""Memory in use without a process up to this is the driver's own (research of cloud nodes: up to 1 GiB)."""

HELD = ("process holds it", "processes hold it")
"""Ends of the reason that one process or several processes have a device open; ``is_held`` reads them."""


class Lease(msgspec.Struct, frozen=True):
    """The right to load *devices* until a moment of CLOCK_BOOTTIME."""

    holder: str
    pid: int
    devices: tuple[str, ...]
    until_seconds: float


class LeaseBook:
    """Holds the one lease of the node."""

    def __init__(self, clock: Callable[[], Instant], is_alive: Callable[[int], bool]) -> None:
        """Tell the time by *clock*, and whether a holder's process lives by *is_alive*."""
        self._clock = clock
        self._is_alive = is_alive
        self._lease: Lease | None = None

    @property
    def current(self) -> Lease | None:
        """Return the lease in force, or None."""
        lease = self._lease
        if lease is not None and (self._now() >= lease.until_seconds or not self._is_alive(lease.pid)):
            self._lease = None
        return self._lease

    def take(self, holder: str, pid: int, devices: Iterable[str], seconds: float) -> Lease | None:
        """Grant the lease to *holder* for *seconds*, or return None where another one holds it."""
        if self.current is not None:
            return None
        self._lease = Lease(holder, pid, tuple(devices), self._now() + seconds)
        return self._lease

    def give_back(self, pid: int) -> bool:
        """End the lease that process *pid* holds; False where it holds none."""
        if self._lease is None or self._lease.pid != pid:
            return False
        self._lease = None
        return True

    def _now(self) -> float:
        return self._clock().boottime_ns / 1e9


def load_targets(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Return what a load runs on: the accelerators that a vendor's library names, else the processors."""
    everything = tuple(devices)
    accelerators = tuple(
        device for device in everything if device.kind is DeviceKind.ACCELERATOR and device.backend != "host"
    )
    return accelerators or tuple(device for device in everything if device.kind is DeviceKind.CPU)


def is_held(reason: str) -> bool:
    """Return whether the *reason* of ``busy_reason`` is that processes hold a device."""
    return reason.endswith(HELD)


def busy_reason(snapshot: Snapshot, devices: Iterable[Device], own_pids: frozenset[int] = frozenset()) -> str | None:
    """Return why one of *devices* is not idle, or None where all are.

    An accelerator whose processes or memory cannot be read is not idle: absence of a reading is no permission. Nor is
    one that is released: whoever resets it or replaces its driver relies on that.
    Processors have no owner that could be asked, so they count as idle.
    """
    for device in devices:
        if device.kind is not DeviceKind.ACCELERATOR:
            continue
        name = device.pci or device.id
        if away := _not_read_now(snapshot, device):
            return f"{name}: {away}"
        holders = _reading(snapshot, device.id, "compute_process_ids")
        if holders is None or not isinstance(holders.value, str):
            return f"{name}: its processes could not be read"
        others = {int(pid) for pid in holders.value.split(",") if pid} - own_pids
        if others:
            return f"{name}: {count_of(len(others), *HELD)}"
        used = _reading(snapshot, device.id, "memory_used_bytes")
        if used is None or not isinstance(used.value, (int, float)):
            return f"{name}: its memory in use could not be read"
        if used.value > IDLE_MEMORY_BYTES and not own_pids:
            return f"{name}: {used.value / 2**30:.1f} GiB of its memory are in use"
    return None


def _not_read_now(snapshot: Snapshot, device: Device) -> str:
    """Return why nothing newer is read of *device*, or an empty string: what was seen before proves no idleness."""
    state = next((status.state for status in snapshot.readers if status.backend == device.backend), ReaderState.RUNNING)
    if state is ReaderState.RELEASED:
        return "it is released (nodevet release), so no load may open it"
    if state is not ReaderState.RUNNING:
        return f"it is not read now, its collector is {state}"
    unread = (finding for finding in snapshot.findings if (finding.code, finding.device) == (UNREAD, device.id))
    return "it is not read now" if any(finding.outcome is Outcome.UNMEASURED for finding in unread) else ""


def _reading(snapshot: Snapshot, device: str, quantity: str) -> Reading | None:
    for sample in snapshot.samples:
        if sample.device == device and sample.failure is None:
            for reading in sample.readings:
                if reading.quantity == quantity and reading.status is ReadingStatus.OK:
                    return reading
    return None
