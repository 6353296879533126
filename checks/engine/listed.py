"""The devices that the backends of a node list now: each once, under its remembered name."""

from __future__ import annotations

from collections.abc import Iterable

from nodevet.checks.core.device import slot_of
from nodevet.checks.core.model import Device, DeviceKind

from .acknowledgement import are_other_boards
from .baseline import listed_twice, recognised
from .view import KnownDevices


class ListedDevices:
    """The last enumeration of each backend."""

    def __init__(self) -> None:
        """Start without devices."""
        self._by_backend: dict[str, tuple[Device, ...]] = {}
        self._left_out: frozenset[tuple[str, str]] = frozenset()
        self.names: dict[tuple[str, str], str] = {}
        """The id of each device by its backend and the id that this backend reports."""
        self.duplicates: tuple[tuple[Device, Device], ...] = ()
        """Devices that two backends list: the one that is left out, and the one that is kept."""
        self.drained: tuple[Device, ...] = ()
        """Boards drained by the driver's own command; nothing reads them."""

    def take(
        self, backend: str, devices: Iterable[Device], memory: KnownDevices, order: Iterable[str]
    ) -> set[tuple[str, str]]:
        """Replace the list of *backend*; return backend and id of each device whose samples are no longer valid.

        Known devices keep their id of *memory*. If two backends list one device, the first in *order* is kept.
        """
        before = {device.id: device for device in self.of(backend)}
        told = tuple(devices)
        self._by_backend[backend] = listed = recognised(memory, told)
        self.names |= {(backend, one.id): device.id for one, device in zip(told, listed, strict=True)}
        kept = {device.id for device in listed if _is_same(before.get(device.id), device)}
        in_order = dict.fromkeys((*order, *self._by_backend))
        self.duplicates = listed_twice({name: self.of(name) for name in in_order})
        self.drained = tuple(device for device in self._everything() if device.drained)
        unread = (*(device for device, _ in self.duplicates), *self.drained)
        self._left_out = frozenset((device.backend, device.id) for device in unread)
        return {(backend, identity) for identity in before.keys() - kept} | self._left_out

    def of(self, backend: str) -> tuple[Device, ...]:
        """Return the devices that *backend* lists."""
        return self._by_backend.get(backend, ())

    def is_left_out(self, backend: str, device: str) -> bool:
        """Return whether samples of *device* by *backend* do not count: it is a duplicate, or drained."""
        return (backend, device) in self._left_out

    def present(self) -> tuple[Device, ...]:
        """Return each device that is judged, once; a PCI device that a vendor's library lists too is omitted."""
        listed = [device for device in self._everything() if not self.is_left_out(device.backend, device.id)]
        named = {slot_of(device) for device in (*listed, *self.drained) if device.backend != "host" and device.pci}
        return tuple(device for device in listed if not (_is_page(device) and slot_of(device) in named))

    def pages(self) -> tuple[Device, ...]:
        """Return the accelerators as the PCI bus lists them, also those that other backends list."""
        return tuple(filter(_is_page, self.of("host")))

    def _everything(self) -> Iterable[Device]:
        return (device for devices in self._by_backend.values() for device in devices)


def _is_page(device: Device) -> bool:
    return device.kind is DeviceKind.ACCELERATOR and device.backend == "host"


def _is_same(before: Device | None, device: Device) -> bool:
    """Return whether *device* is the same board as *before*: no other serial under the same id."""
    return before is None or not are_other_boards(before.serial, device.serial)
