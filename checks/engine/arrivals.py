"""Boards that arrived while the agent watched: returned by a guest, plugged in, or held again after a release."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from nodevet.checks.core.model import Device, DeviceKind, Instant, ReaderState, ReaderStatus
from nodevet.checks.reference.limits import choose

from .arriving import places_of
from .view import Arrived


class Arrivals:
    """Tells which boards no list of their driver can have yet."""

    def __init__(self) -> None:
        """Start without any: what was there before the agent did not arrive."""
        self._drivers: dict[str, str | None] | None = None
        self._places: dict[str, set[str | None]] = {}
        self._released: set[str] = set()
        self._bound: dict[str, Instant] = {}
        self._resumed: dict[str, tuple[Instant, frozenset[str]]] = {}

    def take_list(self, backend: str, devices: tuple[Device, ...], now: Instant) -> None:
        """Take the new enumeration of *backend*; that of the host shows which driver the kernel bound to each board."""
        if backend == "host":
            self._take_pages(devices, now)
            return
        self._places[backend] = {place for device in devices for place in places_of(device)}
        self._bound = {pci: since for pci, since in self._bound.items() if pci not in self._places[backend]}
        if backend in self._resumed:
            since, listed = self._resumed[backend]
            self._resumed[backend] = since, listed | {device.id for device in devices}

    def take_readers(self, statuses: Iterable[ReaderStatus], now: Instant) -> None:
        """Take the state of each reader: a driver may have been loaded anew in the time of a release."""
        released = {status.backend for status in statuses if status.state is ReaderState.RELEASED}
        self._resumed |= dict.fromkeys(self._released - released, (now, frozenset()))
        self._released = released

    def told(self) -> Arrived:
        """Return the boards and drivers that arrived."""
        return Arrived(MappingProxyType(self._bound), MappingProxyType(self._resumed))

    def _take_pages(self, devices: tuple[Device, ...], now: Instant) -> None:
        boards = (device for device in devices if device.kind is DeviceKind.ACCELERATOR)
        pages = {board.pci: board.driver for board in boards if board.pci}
        listed = set[str | None]().union(*self._places.values())
        before = pages if self._drivers is None else self._drivers
        fresh = {pci for pci, driver in pages.items() if driver is not None and before.get(pci) != driver}
        # A board that comes and goes is awaited from its first binding: else it would never be lost.
        kept = {
            pci: since
            for pci, since in self._bound.items()
            if pages.get(pci) is not None or choose("driver.taking").holds(now.seconds_since(since) or 0.0)
        }
        self._bound = dict.fromkeys(fresh - listed, now) | kept
        self._drivers = pages
