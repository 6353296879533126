"""Entries of the journal that journald took from the kernel: what is still known when the ring was overwritten.

journald reads /dev/kmsg itself and marks what it read with fields that no program can set: those that begin with an
underscore. What programs wrote into the ring it marks alike, with the facility that the kernel forced on them.
"""

from __future__ import annotations

import re

import msgspec

from nodevet.checks.kernel_log.lines import MAXIMUM_TEXT, Line, Origin
from nodevet.checks.model import Provenance

__all__ = ["entry_line"]

_NUMBER = re.compile(r"[0-9]{1,15}")


class _Entry(msgspec.Struct, frozen=True):
    """The fields of an entry that say who wrote it, when, and what; a message that is no UTF-8 is a list of bytes."""

    text: str | list[int] | None = msgspec.field(name="MESSAGE", default=None)
    transport: str = msgspec.field(name="_TRANSPORT", default="")
    facility: str = msgspec.field(name="SYSLOG_FACILITY", default="")
    device: str | None = msgspec.field(name="_KERNEL_DEVICE", default=None)
    source_usec: str = msgspec.field(name="_SOURCE_MONOTONIC_TIMESTAMP", default="")
    usec: str = msgspec.field(name="__MONOTONIC_TIMESTAMP", default="")


def entry_line(raw: str | bytes) -> Line | None:
    """Return the kernel's line in *raw*, one line of ``journalctl -o json``; None where it holds none. Never fails.

    It has no sequence number: journald does not keep the kernel's.
    """
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if entry.transport != "kernel" or entry.facility != "0" or entry.text is None:
        return None
    text = entry.text if isinstance(entry.text, str) else _decoded(entry.text)
    usec = next((word for word in (entry.source_usec, entry.usec) if _NUMBER.fullmatch(word)), None)
    return Line(
        text[:MAXIMUM_TEXT].strip(),
        Origin.KERNEL,
        True,
        int(usec) / 1e6 if usec else None,
        provenance=Provenance.KERNEL,
        device=entry.device,
    )


def _decoded(message: list[int]) -> str:
    return bytes(byte & 0xFF for byte in message[:MAXIMUM_TEXT]).decode("utf-8", "replace")
