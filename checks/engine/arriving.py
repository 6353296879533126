"""Boards that may still come: for some minutes after its boot a node lists those that its drivers have taken so far.

A board that no look of this boot has shown is not gone, and an agent that closed its gate for it would not open it
when the board has come.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodevet.checks.core.model import Device
from nodevet.checks.reference.limits import choose
from nodevet.checks.reference.vendors import vendor_of

from .renamed import COMMANDS
from .view import Seen, View


def is_booting(view: View) -> bool:
    """Return whether a driver may still load: amdgpu takes a board after the other, and longer than the agent starts.

    What is told meanwhile closes no gate by itself, for no agent ends its own drain when the driver has come.
    """
    return choose("driver.settling").holds(view.now.boottime_ns / 1e9)


def may_be_bound_yet(view: View, board: Device) -> bool:
    """Return whether the driver may still come to *board*, which is on the bus without any."""
    return board.driver is None and is_booting(view)


def is_being_taken(view: View, page: Device) -> bool:
    """Return whether its driver may be at work on *page* for the first time: the kernel binds a board before that."""
    vendor = vendor_of(page.vendor)
    return vendor.takes_in_turn and page.driver == vendor.kernel_module and is_booting(view)


def may_be_listed_yet(view: View, seen: Seen, page: Device | None) -> bool:
    """Return whether the board that was *seen*, in no look of this boot, may still come: no board of this boot is gone.

    *page* is what the bus shows at its slot. Of the driver behind a command nobody knows how it takes its boards.
    """
    if seen.last.boot_id == view.now.boot_id or not is_booting(view):
        return False
    return seen.device.backend.startswith(COMMANDS) or (page is not None and is_being_taken(view, page))


def page_of(device: Device, pages: Iterable[Device]) -> Device | None:
    """Return the one of *pages* of the bus at the place of *device*: of a part, whatever function it is told by."""
    places = places_of(device)
    return next((page for page in pages if page.pci in places), None)


def places_of(device: Device) -> set[str | None]:
    """Return the addresses under which the bus may show *device*: a part is told by another function of its board."""
    return {device.pci} if device.parent is None else {device.pci, f"{(device.pci or '').rpartition('.')[0]}.0"}
