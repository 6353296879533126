"""XIDs from NVML: an event set on which each device that answers is registered."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

from nodevet.checks.backends.base import MOST_EVENTS, Context
from nodevet.checks.core.model import Device, Event, Provenance

from .identity import label_of
from .nvml import TIMEOUT, UNSUPPORTED, Library, Target, describe

XID_EVENT = 0x8
NO_INSTANCE = 0xFFFFFFFF


class XidEvents:
    """The event set of one loaded library."""

    def __init__(self, library: Library, context: Context) -> None:
        """Prepare; the set is created with the first watched device."""
        self._library = library
        self._context = context
        self._set: Any = None
        self._by_handle: dict[int, Device] = {}
        self._failure_noted = False
        self._rest_noted = False

    def watch(self, devices: Iterable[tuple[Device, Target]]) -> None:
        """Register each of *devices*; its handle is stored, because a lost device cannot report its identity."""
        if self._set is None and not self._failure_noted:
            code, self._set = self._library.attempt("nvmlEventSetCreate", "nvmlEventSetCreate")
            if code:
                self._note_failure(code)
        for device, target in devices:
            handle = _pointer(target.handle)
            if self._set is not None and handle not in self._by_handle:
                self._by_handle[handle] = device
                self._register(device, target)

    def read(self) -> Iterator[Event]:
        """Yield the XIDs since the last call, at most MOST_EVENTS, without waiting for one."""
        if self._set is None:
            return
        for _ in range(MOST_EVENTS):
            symbol = "nvmlEventSetWait_v2"
            code, data = self._library.attempt(symbol, symbol, self._set, 0)
            if code:
                self._note_failure(code)
                return
            yield self._event(data)
        self._note_rest()

    def close(self) -> None:
        """Release the set."""
        if self._set is not None:
            self._library.attempt("nvmlEventSetFree", "nvmlEventSetFree", self._set)
            self._set = None

    def _register(self, device: Device, target: Target) -> None:
        symbol = "nvmlDeviceRegisterEvents"
        code, _ = self._library.attempt(target.text(symbol), symbol, target.handle, XID_EVENT, self._set)
        if code:
            self._context.note("warning", "no XIDs from NVML", device=device.id, reason=describe(code))

    def _event(self, data: Any) -> Event:
        device = self._by_handle.get(_pointer(data.device))
        instances = {"gpu_instance": data.gpuInstanceId, "compute_instance": data.computeInstanceId}
        return Event(
            code=f"nvidia.xid.{data.eventData}",
            source="nvml",
            time=self._context.now(),
            text=f"NVML reports XID {data.eventData} of {label_of(device) if device else 'an unknown device'}",
            device=device.id if device else None,
            pci=device.pci if device else None,
            provenance=Provenance.DRIVER,
            fields={name: str(number) for name, number in instances.items() if number != NO_INSTANCE},
        )

    def _note_rest(self) -> None:
        """Log once that a look ended before the events did."""
        if not self._rest_noted:
            reason = f"it had {MOST_EVENTS} and may have more; the next look takes those"
            self._context.note("warning", "NVML has more events than a look takes", reason=reason)
        self._rest_noted = True

    def _note_failure(self, code: int) -> None:
        """Log once that events cannot be read; a timeout without an event is normal."""
        if code == TIMEOUT:
            return
        if not self._failure_noted:
            self._context.note("warning", "NVML events cannot be read", reason=describe(code))
        self._failure_noted = True
        if code in UNSUPPORTED:
            self._set = None


def _pointer(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
