"""Boards that only the PCI bus shows: no reader lists them, so none is measured."""

from __future__ import annotations

from nodevet.checks.core.model import Device, DeviceKind, ReaderState, ReaderStatus
from nodevet.checks.reference.vendors import LENT_DRIVERS, vendor_of

from .arriving import may_be_bound_yet
from .unlisted import not_given
from .view import View


def reader_of(view: View, backend: str) -> ReaderStatus | None:
    """Return the state of the reader of *backend*, or None where there is none."""
    return next((reader for reader in view.readers if reader.backend == backend), None)


def bare_boards(view: View, vendor: str) -> list[Device]:
    """Return the accelerators of *vendor* that only the PCI bus shows."""
    return [d for d in view.of_kind(DeviceKind.ACCELERATOR) if d.backend == "host" and d.vendor == vendor]


def unread_boards(view: View, vendor: str, reader: ReaderStatus | None, unplaced: int) -> list[Device]:
    """Return the boards of *vendor* that only the PCI bus shows, and that no other finding or reader tells of.

    As many as *unplaced* are told without an address: where no more are bound to a driver, they are these.
    """
    boards = [board for board in bare_boards(view, vendor) if board.driver not in LENT_DRIVERS]
    others = _named_by_another(view, vendor)
    boards = [board for board in boards if board.pci not in others or may_be_bound_yet(view, board)]
    bound = [board for board in boards if board.driver is not None]
    if len(bound) <= unplaced:
        boards = [board for board in boards if board.driver is None]
    if reader is not None and reader.state is not ReaderState.RUNNING:  # its failure is that of the boards it was given
        boards = [board for board in boards if board.pci not in not_given(view)]
    elif reader is not None:
        # One that is remembered is told as device.missing, one that its driver holds and does not list as device.lost.
        remembered = _remembered(view, vendor)
        named = {board.pci for board in boards if board.pci in remembered and not may_be_bound_yet(view, board)}
        boards = [board for board in boards if board.pci not in named and not _is_driven(view, board)]
    return boards


def is_unanswered(view: View, board: Device) -> bool:
    """Return whether its own driver holds *board*, runs without it, and does not list it.

    It runs without it where it answers for its siblings, or was told to leave it alone, as the only one may be. One
    that is remembered by its name is missing under that name.
    """
    reader = reader_of(view, board.vendor)
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


def out_of_place(view: View, vendor: str) -> tuple[Device, ...]:
    """Return the boards that the library of *vendor* lists without an address, or at one that is not on the bus.

    Each of them may be one that the bus shows and the library seems not to list.
    """
    places = {page.pci for page in view.on_bus}
    boards = (device for device in view.of_kind(DeviceKind.ACCELERATOR) if device.backend == vendor)
    alone = (board for board in boards if board.parent is None)
    return tuple(board for board in alone if board.pci is None or (places and board.pci not in places))


def _is_driven(view: View, board: Device) -> bool:
    """Return whether the driver of its vendor is bound to *board*, and runs: there is nothing to install."""
    reader = reader_of(view, board.vendor)
    running = reader is not None and reader.state is ReaderState.RUNNING
    return running and board.driver is not None and board.driver == vendor_of(board.vendor).kernel_module


def _remembered(view: View, vendor: str) -> set[str | None]:
    """Return the addresses of the devices that the library of *vendor* once named."""
    return {seen.device.pci for seen in view.memory.seen.values() if seen.device.backend == vendor}


def _named_by_another(view: View, vendor: str) -> set[str | None]:
    """Return the addresses of the boards of *vendor* that a reader besides its own, such as a command, once named.

    While that reader runs, one that it does not list any more is missing under that name.
    """
    running = {reader.backend for reader in view.readers if reader.state is ReaderState.RUNNING}
    known = (seen.device for seen in view.memory.seen.values() if seen.device.vendor == vendor)
    return {board.pci for board in known if board.backend in running - {"host", vendor}}


def without_address(view: View, vendor: str) -> int:
    """Return how many boards of *vendor* a reader besides its own lists, or listed, that do not tell their address.

    One that is listed no more is missing by its name; its page on the bus is no other board's.
    """
    running = {reader.backend for reader in view.readers if reader.state is ReaderState.RUNNING} - {"host", vendor}
    known = {device.id: device for device in (*(seen.device for seen in view.memory.seen.values()), *view.devices)}
    return sum(
        board.backend in running and board.vendor == vendor and board.pci is None and board.parent is None
        for board in known.values()
        if board.kind is DeviceKind.ACCELERATOR
    )
