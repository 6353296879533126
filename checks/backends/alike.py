"""Boards to which a driver gives one UUID: each is listed, the first under the UUID, the others by their addresses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import msgspec

from nodevet.checks.core.model import Device


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
