"""Which backends have listed their devices, and which vendors have some here. Pure."""

from __future__ import annotations

from nodevet.checks.core.model import DeviceKind, FailureKind, ReaderState

from .view import View


def has_enumerated(view: View, backend: str) -> bool:
    """Return whether the reader of *backend* has reported its devices: a list, or that there are none."""
    reader = view.reader(backend)
    if reader is None:
        return any(device.backend == backend for device in view.devices)
    if reader.state is ReaderState.RUNNING:
        return reader.last_round is not None or any(device.backend == backend for device in view.devices)
    return reader.failure is not None and reader.failure.kind in (
        FailureKind.NO_DEVICES,
        FailureKind.NO_DRIVER,
        FailureKind.NO_LIBRARY,
    )


def vendors_known(view: View) -> tuple[str, ...]:
    """Return the vendors with present or remembered accelerators."""
    known = (*view.devices, *(seen.device for seen in view.memory.seen.values()))
    return tuple(sorted({device.vendor for device in known if device.kind is DeviceKind.ACCELERATOR}))


def is_read(view: View, vendor: str) -> bool:
    """Return whether the backend of *vendor* runs, or another one that lists its devices, such as a command."""
    backends = {device.backend for device in view.of_kind(DeviceKind.ACCELERATOR) if device.vendor == vendor}
    readers = (view.reader(backend) for backend in (vendor, *(backends - {"host"})))
    return any(reader is not None and reader.state is ReaderState.RUNNING for reader in readers)
