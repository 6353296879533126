"""What readers leave to the next agent: processes that may outlive this one, and falls that count against a driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import msgspec

from nodevet.agent.processes import ChildRecord, recalled_records
from nodevet.agent.readers.blame import Fall

__all__ = ["Remembered", "pack_readers", "recalled_readers"]


class Remembered(msgspec.Struct, frozen=True):
    """Processes of readers, and the falls of late that were their drivers'."""

    records: tuple[ChildRecord, ...] = ()
    falls: tuple[Fall, ...] = ()


def pack_readers(records: Iterable[ChildRecord], falls: Iterable[Fall]) -> bytes:
    """Return both as the store keeps them."""
    return msgspec.msgpack.encode(Remembered(tuple(records), tuple(falls)))


def recalled_readers(packed: bytes | None, log: Callable[[str], None]) -> Remembered:
    """Return what ``pack_readers`` made; an earlier version kept the processes alone. *log* takes a line otherwise."""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.msgpack.decode(packed or b"", type=Remembered)
    return Remembered(recalled_records(packed, log))
