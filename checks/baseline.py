"""What this node should have: the readings that its devices must be able to give, and the devices it had before.

A healthy machine without a feature is still healthy, so only what the table names for a model is required.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from nodevet.checks.model import Device, DeviceKind, Instant
from nodevet.checks.reference.tables import load_table
from nodevet.checks.view import Memory, Seen

__all__ = ["Requirement", "forget", "named", "remember", "requirements"]


class Requirement(msgspec.Struct, frozen=True):
    """A row of reference/requirements.csv: devices of this make must be able to report the quantity."""

    vendor: str
    kind: DeviceKind
    model: str
    quantity: str
    source: str

    def applies_to(self, device: Device) -> bool:
        """Return whether *device* is of this make; ``model`` may hold ``*``."""
        return (
            self.vendor == device.vendor
            and self.kind is device.kind
            and device.backend != "host"
            and fnmatchcase(device.model, self.model)
        )


def requirements(device: Device) -> frozenset[str]:
    """Return the quantities that *device* must be able to report."""
    rows = load_table("requirements.csv", Requirement)
    return frozenset(row.quantity for row in rows if row.applies_to(device))


def remember(memory: Memory, devices: Iterable[Device], links_up: dict[str, set[int]], now: Instant) -> Memory:
    """Return *memory* with *devices* as seen now, and the links of ``links_up`` (ports by device id) as once up.

    A device without a driver is not remembered by its PCI address once its own library names it.
    """
    devices = tuple(devices)
    nameless = named(memory, devices)
    seen = {key: entry for key, entry in memory.seen.items() if key not in nameless}
    for device in devices:
        known = seen.get(device.id)
        up = tuple(sorted({*(known.links_up if known else ()), *links_up.get(device.id, ())}))
        slots = tuple(dict.fromkeys((*(known.slots if known else ()), *((device.pci,) if device.pci else ()))))
        if known is None or (known.device, known.links_up, known.slots) != (device, up, slots):
            seen[device.id] = Seen(device, known.first if known else now, now, up, slots)
    real = {_slot(entry.device) for entry in seen.values() if entry.device.backend != "host" and entry.device.pci}
    for entry in tuple(seen.values()):
        if entry.device.backend == "host" and entry.device.pci and _slot(entry.device) in real:
            del seen[entry.device.id]
    return Memory(seen) if seen != memory.seen else memory


def named(memory: Memory, devices: Iterable[Device]) -> dict[str, str]:
    """Return the id that each remembered accelerator has now which was known by its address alone.

    A board that has fallen off the bus cannot tell its UUID, and one without driver is only seen by the kernel.
    """
    names = {_slot(device): device.id for device in devices if device.uuid and device.pci}
    return {
        key: names[_slot(entry.device)]
        for key, entry in memory.seen.items()
        if entry.device.kind is DeviceKind.ACCELERATOR and not entry.device.uuid and _slot(entry.device) in names
    }


def forget(memory: Memory, device_id: str) -> Memory:
    """Return *memory* without the device: a person said that it is gone for good, or another one took its place."""
    return Memory({key: entry for key, entry in memory.seen.items() if key != device_id})


def _slot(device: Device) -> str:
    return (device.pci or "").split(".")[0]
