"""Boards beside each other in the list of their driver: those of one UUID, and those that do not open.

Boards to which a driver gives one UUID are all listed, the first under the UUID, the others by their addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import msgspec

from nodevet.checks.core.model import Device, FailureKind

from .base import BackendError

OF_DRIVER = frozenset({FailureKind.NO_DRIVER, FailureKind.VERSION_MISMATCH})
"""Failures that leave no board readable. Their library has started, so they are believed if every board has one."""


class Listed(Protocol):
    """A board that a backend lists."""

    name: str | None
    """The name that its driver reports, before another one may have had it."""
    device: Device


def by_address(device: Device) -> Device:
    """Return *device* with its address as id: its name now belongs to another board, and neither may hide the other."""
    return msgspec.structs.replace(device, id=device.pci or device.id, uuid=None, shares_uuid=True)


def mark_alike(boards: Iterable[Listed]) -> None:
    """Have each of *boards* say whether its driver reports its UUID for another one too."""
    boards = [board for board in boards if board.name is not None]
    times = Counter(board.name for board in boards)
    for board in boards:
        board.device = msgspec.structs.replace(board.device, shares_uuid=times[board.name] > 1)


def of_each(silent: list[tuple[int, BackendError]], *, alone: bool) -> list[tuple[int, BackendError]]:
    """Return the failures of the *silent* boards, by index; *alone* says that no other board answers.

    A failure of the whole driver is raised if every board says so, and is else an error of its board.
    """
    if alone and silent and all(error.failure.kind in OF_DRIVER for _, error in silent):
        raise silent[0][1]
    return [(index, _of_board(error)) for index, error in silent]


def _of_board(error: BackendError) -> BackendError:
    failure = error.failure
    if failure.kind not in OF_DRIVER:
        return error
    return BackendError(FailureKind.ERROR, failure.detail, of_driver=failure.of_driver)
