"""Boards that only the PCI bus lists: no reader lists them, so none is measured."""

from __future__ import annotations

from nodevet.checks.core.model import Device, DeviceKind, ReaderState, ReaderStatus
from nodevet.checks.reference.vendors import LENT_DRIVERS, vendor_of

from .arriving import may_be_bound_yet, places_of
from .unlisted import not_given
from .view import View


def bare_boards(view: View, vendor: str) -> list[Device]:
    """Return the accelerators of *vendor* that only the PCI bus lists."""
    return [d for d in view.of_kind(DeviceKind.ACCELERATOR) if d.backend == "host" and d.vendor == vendor]


def unread_boards(view: View, vendor: str, reader: ReaderStatus | None, unplaced: int) -> list[Device]:
    """Return the boards of *vendor* that only the PCI bus lists, and that no other finding or reader reports.

    *unplaced* boards are listed without an address: if no more boards than that have a driver, they are these boards.
    """
    boards = [board for board in bare_boards(view, vendor) if board.driver not in LENT_DRIVERS]
    others = _named_by_another(view, vendor)
    boards = [board for board in boards if board.pci not in others or may_be_bound_yet(view, board)]
    bound = [board for board in boards if board.driver is not None]
    if len(bound) <= unplaced:
        boards = [board for board in boards if board.driver is None]
    if reader is not None and reader.state is not ReaderState.RUNNING:  # its failure is the failure of its boards
        boards = [board for board in boards if board.pci not in not_given(view)]
    elif reader is not None:
        # A remembered board is reported as device.missing, one that its driver holds but does not list as device.lost.
        remembered = _remembered(view, vendor)
        named = {board.pci for board in boards if board.pci in remembered and not may_be_bound_yet(view, board)}
        boards = [board for board in boards if board.pci not in named and not _is_driven(view, board)]
    return boards


def is_unanswered(view: View, board: Device) -> bool:
    """Return whether the driver holds *board*, works without it, and does not list it.

    It works without it if it answers for sibling boards, or if the board (possibly the only one) is quarantined. A
    board remembered by name is missing under that name.
    """
    reader = view.reader(board.vendor)
    return (
        board.backend == "host"
        and board.kind is DeviceKind.ACCELERATOR
        and _is_driven(view, board)
        and (
            any(device.backend == board.vendor for device in view.devices)
            or (reader is not None and board.pci in reader.quarantined)
        )
        and board.pci not in _remembered(view, board.vendor)
    )


def out_of_place(view: View, page: Device) -> tuple[Device, ...]:
    """Return the listed boards that may be the one at *page*, an entry of the PCI bus that no library seems to list.

    Their library reports no address now, one that is not on the bus, or that of another listed board. A board with a
    former place on the bus is only the board of that place; without any, it may be any board if it reports no address,
    or if no board of its address has a former place.
    """
    places = {entry.pci for entry in view.on_bus}
    listed = [board for board in view.of_kind(DeviceKind.ACCELERATOR) if board.backend == page.vendor]
    found = []
    for board in listed:
        alike = [other for other in listed if other is not board and other.pci == board.pci in places]
        former = places & _slots(view, board)
        if board.parent is not None:  # one that seems a part of the other, because it reports the other's address
            whole = next((other for other in alike if other.id == board.parent), None)
            if whole is not None and page.pci in former - _slots(view, whole):
                found.append(board)
        elif alike := [other for other in alike if other.parent is None]:
            elsewhere = any(places & _slots(view, one) - {board.pci} for one in (board, *alike))
            if page.pci in former or not elsewhere:
                found.append(board)
        elif board.pci not in places and (page.pci in former or (board.pci is None and not former)):
            found.append(board)
    return tuple(found)


def _slots(view: View, board: Device) -> set[str | None]:
    """Return the addresses that *board* ever had."""
    seen = view.memory.seen.get(board.id)
    return {*(seen.slots if seen else ())}


def _is_driven(view: View, board: Device) -> bool:
    """Return whether the vendor's driver is bound to *board* and loaded: nothing needs to be installed."""
    reader = view.reader(board.vendor)
    running = reader is not None and reader.state is ReaderState.RUNNING
    return running and board.driver is not None and board.driver == vendor_of(board.vendor).kernel_module


def _remembered(view: View, vendor: str) -> set[str | None]:
    """Return the addresses of the devices that the library of *vendor* has ever named."""
    return {seen.device.pci for seen in view.memory.seen.values() if seen.device.backend == vendor}


def _named_by_another(view: View, vendor: str) -> set[str | None]:
    """Return the addresses of the boards of *vendor* that another reader, such as a command, has ever named.

    While that reader runs, a board that it no longer lists is missing under that name.
    """
    running = {reader.backend for reader in view.readers if reader.state is ReaderState.RUNNING}
    known = (seen.device for seen in view.memory.seen.values() if seen.device.vendor == vendor)
    return {board.pci for board in known if board.backend in running - {"host", vendor}}


def has_left_bus(view: View, board: Device) -> bool:
    """Return whether the PCI bus has lost *board*: it shows listed boards of the same make, and not this one.

    Where it shows none of them, as in a container, or for a network card or a virtual function, the absence proves
    nothing. Nor does it where the bus shows a board that nobody reads: it may be this one under another address.
    """
    places = {page.pci for page in view.on_bus}
    make = (board.backend, board.vendor, board.kind, board.model)
    alike = [other for other in view.devices if (other.backend, other.vendor, other.kind, other.model) == make]
    is_shown = any(places_of(other) & places for other in alike)
    has_gone = board.pci is not None and is_shown and not places_of(board) & places
    return has_gone and not bare_boards(view, board.vendor)


def without_address(view: View, vendor: str) -> int:
    """Return the number of boards without an address that a reader other than the vendor's lists or listed.

    A board that is no longer listed is missing by its name; its entry on the bus is no other board's.
    """
    running = {reader.backend for reader in view.readers if reader.state is ReaderState.RUNNING} - {"host", vendor}
    known = {device.id: device for device in (*(seen.device for seen in view.memory.seen.values()), *view.devices)}
    return sum(
        board.backend in running and board.vendor == vendor and board.pci is None and board.parent is None
        for board in known.values()
        if board.kind is DeviceKind.ACCELERATOR
    )
