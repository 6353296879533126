"""Boards that may still appear: after a boot, after a release, and where a board was bound to its driver just now.

Such a board is not missing. An agent that closed its gate for such a board would not reopen the gate once the board
appears.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodevet.checks.core.model import Device, Instant
from nodevet.checks.reference.limits import choose
from nodevet.checks.reference.vendors import vendor_of

from .renamed import COMMANDS
from .view import Seen, View


def is_booting(view: View) -> bool:
    """Return whether a driver may still be loading: amdgpu probes board after board, longer than the agent starts.

    Findings of this time close no gate by themselves, because no agent ends its own drain after the driver has loaded.
    """
    return choose("driver.settling").holds(view.now.boottime_ns / 1e9)


def may_be_bound_yet(view: View, board: Device) -> bool:
    """Return whether the driver may still bind to *board*, which is on the bus without a driver."""
    return board.driver is None and (is_booting(view) or _is_bound_in_turn(view, board))


def _is_bound_in_turn(view: View, board: Device) -> bool:
    """Return whether the driver of *board*, which takes board after board, was loaded just now."""
    since = view.arrived.bound.get(board.pci or "")
    return vendor_of(board.vendor).takes_in_turn and since is not None and is_taking(since, view.now)


def is_being_taken(view: View, page: Device) -> bool:
    """Return whether the driver may still be initializing *page*: the kernel binds a board before that."""
    vendor = vendor_of(page.vendor)
    if page.driver != vendor.kernel_module:
        return False
    return (vendor.takes_in_turn and is_booting(view)) or bool(_arrived(view, vendor.vendor, page, page.id))


def not_listed_since(view: View, seen: Seen, page: Device | None) -> str:
    """Return since when the board that was *seen* is awaited, if it may still appear; empty if it should be there.

    *page* is the device at its slot on the bus. How the driver behind a command probes boards is unknown.
    """
    board = seen.device
    is_taking = board.backend.startswith(COMMANDS) or (page is not None and is_being_taken(view, page))
    if is_taking and seen.last.boot_id != view.now.boot_id and is_booting(view):
        return "the boot"
    return _arrived(view, board.backend, page, board.id)


def _arrived(view: View, backend: str, page: Device | None, board: str) -> str:
    """Return what happened so recently that *backend* may not list *board* yet; empty if nothing did."""
    resumed, listed = view.arrived.resumed.get(backend, (None, frozenset()))
    if resumed is not None and board not in listed and is_taking(resumed, view.now):
        return "the devices were released"
    bound = view.arrived.bound.get(page.pci or "") if page is not None else None
    return "its driver was bound" if bound is not None and is_taking(bound, view.now) else ""


def is_taking(since: Instant, now: Instant) -> bool:
    """Return whether a driver that began to take a board at *since* may still be at it."""
    seconds = now.seconds_since(since)
    return seconds is not None and choose("driver.taking").holds(seconds)


def page_of(device: Device, pages: Iterable[Device]) -> Device | None:
    """Return the one of *pages* of the bus at the address of *device*; for a part, any function of its board."""
    places = places_of(device)
    return next((page for page in pages if page.pci in places), None)


def places_of(device: Device) -> set[str | None]:
    """Return the addresses under which the bus may list *device*: a part has another function of its board."""
    return {device.pci} if device.parent is None else {device.pci, f"{(device.pci or '').rpartition('.')[0]}.0"}
