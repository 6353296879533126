"""State of the readers for the next agent: processes that may outlive this one, and failures charged to a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from nodevet.checks.core.recall import recalled
from nodevet.checks.system.procfs import ChildRecord

from .blame import Fall


class Remembered(msgspec.Struct, frozen=True):
    """Processes of readers, and recent failures that their drivers caused."""

    records: tuple[ChildRecord, ...] = ()
    falls: tuple[Fall, ...] = ()


def pack_readers(records: Iterable[ChildRecord], falls: Iterable[Fall]) -> bytes:
    """Return both in the form that the store keeps."""
    return msgspec.msgpack.encode(Remembered(tuple(records), tuple(falls)))


def recalled_readers(packed: bytes | None, log: Callable[[str], None]) -> Remembered:
    """Return the content of ``pack_readers``; an earlier version kept processes only. *log* receives what is lost."""
    if packed is None:
        return Remembered()
    try:
        kept, lost = recalled(packed, Remembered)
    except msgspec.MsgspecError:
        try:
            records, lost = recalled(packed, tuple[ChildRecord, ...])
        except msgspec.MsgspecError as error:
            records, lost = (), str(error)
        kept = Remembered(records)
    if lost:
        log(f"the record of the collectors of an earlier agent is damaged: {lost}")
    return kept
