"""Boards that may still appear: in the first minutes after a boot, drivers are still probing boards.

A board that was not yet seen in this boot is not missing. An agent that closed its gate for such a board would not
reopen the gate once the board appears.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodevet.checks.core.model import Device
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
    return board.driver is None and is_booting(view)


def is_being_taken(view: View, page: Device) -> bool:
    """Return whether the driver may still be initializing *page*: the kernel binds a board before that."""
    vendor = vendor_of(page.vendor)
    return vendor.takes_in_turn and page.driver == vendor.kernel_module and is_booting(view)


def may_be_listed_yet(view: View, seen: Seen, page: Device | None) -> bool:
    """Return whether the board that was *seen*, but not yet in this boot, may still appear.

    *page* is the device at its slot on the bus. How the driver behind a command probes boards is unknown.
    """
    if seen.last.boot_id == view.now.boot_id or not is_booting(view):
        return False
    return seen.device.backend.startswith(COMMANDS) or (page is not None and is_being_taken(view, page))


def page_of(device: Device, pages: Iterable[Device]) -> Device | None:
    """Return the one of *pages* of the bus at the address of *device*; for a part, any function of its board."""
    places = places_of(device)
    return next((page for page in pages if page.pci in places), None)


def places_of(device: Device) -> set[str | None]:
    """Return the addresses under which the bus may list *device*: a part has another function of its board."""
    return {device.pci} if device.parent is None else {device.pci, f"{(device.pci or '').rpartition('.')[0]}.0"}
