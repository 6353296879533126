"""Boards that arrived while the agent watched: returned by a guest, plugged in, or held again after a release."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from nodevet.checks.core.model import Device, DeviceKind, Instant, ReaderState, ReaderStatus
from nodevet.checks.reference.vendors import vendor_of

from .arriving import is_taking, places_of
from .view import Arrived


class Page(NamedTuple):
    """A board as the PCI bus shows it."""

    driver: str | None
    vendor: str


class KeptArrivals(msgspec.Struct, frozen=True):
    """The state that the next agent of this boot needs."""

    boot_id: str = ""
    pages: dict[str, Page] | None = None
    released: frozenset[str] = frozenset()
    bound: dict[str, Instant] = {}
    resumed: dict[str, tuple[Instant, frozenset[str]]] = {}


class Arrivals:
    """Tells which boards no list of their driver can have yet."""

    def __init__(self) -> None:
        """Start without any: a board that was there before the first agent of the boot did not arrive."""
        self._pages: dict[str, Page] | None = None
        self._places: dict[str, set[str | None]] = {}
        self._unloaded: set[str] = set()
        self._released: frozenset[str] = frozenset()
        self._bound: dict[str, Instant] = {}
        self._resumed: dict[str, tuple[Instant, frozenset[str]]] = {}

    def kept(self, now: Instant) -> KeptArrivals:
        """Return the state for the next agent."""
        return KeptArrivals(now.boot_id, self._pages, self._released, self._bound, self._resumed)

    def restore(self, kept: KeptArrivals, now: Instant) -> None:
        """Go on from the *kept* state of an agent of this boot."""
        if kept.boot_id == now.boot_id:
            self._pages, self._released = kept.pages, kept.released
            self._bound, self._resumed = dict(kept.bound), dict(kept.resumed)

    def take_list(self, backend: str, devices: tuple[Device, ...], now: Instant) -> None:
        """Take the new enumeration of *backend*; that of the host shows which driver the kernel bound to each board."""
        if backend == "host":
            self._take_pages(devices, now)
            return
        self._places[backend] = {place for device in devices for place in places_of(device)}
        if backend in self._unloaded:  # it is loaded again, and the bus was not read since
            self._unloaded.discard(backend)
            pages = (self._pages or {}).items()
            self._bound |= {pci: now for pci, page in pages if page.driver is None and page.vendor == backend}
        self._bound = {pci: since for pci, since in self._bound.items() if not self._is_listed(pci)}
        if backend in self._resumed:
            since, listed = self._resumed[backend]
            self._resumed[backend] = since, listed | {device.id for device in devices}

    def take_readers(self, statuses: Iterable[ReaderStatus], now: Instant) -> None:
        """Take the state of each reader: a driver may have been loaded anew while none ran, or it was released."""
        statuses = tuple(statuses)
        for backend in (status.backend for status in statuses if status.state is not ReaderState.RUNNING):
            self._places.pop(backend, None)
        released = frozenset(status.backend for status in statuses if status.state is ReaderState.RELEASED)
        for backend in self._released - released:
            since, _ = self._resumed.get(backend, (now, frozenset()))
            # Releases that follow closely are one: else a board that is lost in the first would never be told.
            self._resumed[backend] = (since if is_taking(since, now) else now), frozenset()
        self._released = released

    def told(self) -> Arrived:
        """Return the boards and drivers that arrived."""
        return Arrived(MappingProxyType(self._bound), MappingProxyType(self._resumed))

    def _take_pages(self, devices: tuple[Device, ...], now: Instant) -> None:
        boards = (device for device in devices if device.kind is DeviceKind.ACCELERATOR)
        pages = {board.pci: Page(board.driver, board.vendor) for board in boards if board.pci}
        before = pages if self._pages is None else self._pages
        fresh = [pci for pci, page in pages.items() if page.driver is not None and before.get(pci) != page]
        self._pages = pages
        had, have = _loaded(before), _loaded(pages)
        self._unloaded = (self._unloaded | had) - have
        turns = {vendor for vendor in have - had if vendor_of(vendor).takes_in_turn}
        fresh += [pci for pci, page in pages.items() if page.driver is None and page.vendor in turns]
        # A board that comes and goes is awaited from its first binding: else it would never be lost.
        held = {pci for pci, page in pages.items() if page.driver is not None}
        kept = {pci: since for pci, since in self._bound.items() if pci in held or is_taking(since, now)}
        arrived = dict.fromkeys((pci for pci in fresh if not self._is_listed(pci)), now)
        self._bound = arrived | kept

    def _is_listed(self, pci: str) -> bool:
        """Return whether the backend of the driver of the board at *pci* lists it; a command may know it before."""
        page = (self._pages or {}).get(pci)
        return page is not None and pci in self._places.get(page.vendor, ())


def _loaded(pages: dict[str, Page]) -> set[str]:
    """Return the vendors whose driver holds one of *pages*."""
    return {page.vendor for page in pages.values() if page.driver == (vendor_of(page.vendor).kernel_module or "")}
