"""Entries of the journal that journald took from the kernel: what is still known when the ring was overwritten.

journald reads /dev/kmsg itself and marks what it read with fields that no program can set: those that begin with an
underscore. What programs wrote into the ring it marks alike, with the facility that the kernel forced on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from nodevet.checks.core.model import Provenance

from .lines import MAXIMUM_TEXT, Line, Origin, is_whole

ARGUMENTS = (
    "--dmesg",
    "--boot",
    "--output=json",
    "--no-pager",
    "--output-fields=MESSAGE,_TRANSPORT,SYSLOG_FACILITY,_KERNEL_DEVICE,_SOURCE_MONOTONIC_TIMESTAMP",
)
"""How journalctl is asked for what the kernel said since boot; the fields are those that are read here."""

MAXIMUM_ENTRY_BYTES = 1 << 18
"""The kernel's records have up to 8 KiB, four characters for each byte where journalctl prints a list of them."""

OPEN_SECONDS = 10.0
"""So long the rest of a line that the kernel prints in pieces may come, as a record of its own that seems to be a line.

The kernel holds a lock of RCU meanwhile, and complains of one that is held for 21 s."""

_NUMBER = re.compile(r"[0-9]{1,15}")


class _Entry(msgspec.Struct, frozen=True):
    """The fields of an entry that say who wrote it, when, and what; a message that is no UTF-8 is a list of bytes."""

    text: str | list[int] | None = msgspec.field(name="MESSAGE", default=None)
    transport: str = msgspec.field(name="_TRANSPORT", default="")
    facility: str = msgspec.field(name="SYSLOG_FACILITY", default="")
    device: str | None = msgspec.field(name="_KERNEL_DEVICE", default=None)
    source_usec: str = msgspec.field(name="_SOURCE_MONOTONIC_TIMESTAMP", default="")
    usec: str = msgspec.field(name="__MONOTONIC_TIMESTAMP", default="")
    boot: str = msgspec.field(name="_BOOT_ID", default="")

    @property
    def seconds(self) -> float:
        """Return the kernel's stamp, or where it is missing when journald took the record; 0 where neither is told."""
        usec = next((word for word in (self.source_usec, self.usec) if _NUMBER.fullmatch(word)), "0")
        return int(usec) / 1e6


class Span:
    """What the journal has between two stamps of the kernel, each left out; read in pieces, kept by nobody."""

    def __init__(
        self, after_seconds: float, before_seconds: float, take: Callable[[Line], object], boot_id: str = ""
    ) -> None:
        """Hand each of the kernel's own lines in the span to *take*; those of another boot than *boot_id* are none."""
        self.records = 0
        self._boot_id = boot_id.replace("-", "")
        self._open_until = -1.0
        self._after_seconds = after_seconds
        self._before_seconds = before_seconds
        self._take = take
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next piece of what journalctl prints; ``records`` counts programs' records too. Never fails."""
        *whole, rest = (self._rest + data).split(b"\n")
        for raw in whole:
            self._feed_entry(raw)
        # What is left of an entry behind its cut-off begin is no entry: inside one every quote is escaped.
        self._rest = rest if len(rest) <= MAXIMUM_ENTRY_BYTES else b""

    def _feed_entry(self, raw: bytes) -> None:
        entry = _entry(raw)
        if entry is None or not self._after_seconds < entry.seconds < self._before_seconds:
            return
        if self._boot_id and entry.boot and entry.boot != self._boot_id:
            return
        self.records += 1
        if (line := _line(entry)) is not None:
            self._take(self._behind_a_piece(line, entry.seconds))

    def _behind_a_piece(self, line: Line, seconds: float) -> Line:
        """Return *line* as text where it may be the rest of another, which the journal does not tell as /dev/kmsg does.

        The kernel prints the name of a cgroup behind ``,cpuset=`` as a piece of its own, and users choose that name.
        """
        if line.device is None and line.text.endswith("="):
            self._open_until = seconds + OPEN_SECONDS
        if line.device is None and seconds <= self._open_until:
            return msgspec.structs.replace(line, provenance=Provenance.TEXT)
        return line


def entry_line(raw: str | bytes) -> Line | None:
    """Return the kernel's line in *raw*, one line of ``journalctl -o json``; None where it holds none. Never fails.

    It has no sequence number: journald does not keep the kernel's.
    """
    entry = _entry(raw)
    return None if entry is None else _line(entry)


def _entry(raw: str | bytes) -> _Entry | None:
    """Return the entry in *raw* where journald took it from the kernel's ring."""
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return entry if entry.transport == "kernel" else None


def _line(entry: _Entry) -> Line | None:
    if entry.facility != "0" or entry.text is None:
        return None
    text = entry.text if isinstance(entry.text, str) else _decoded(entry.text)
    return Line(
        text[:MAXIMUM_TEXT].strip(),
        Origin.KERNEL,
        True,
        entry.seconds,
        provenance=Provenance.KERNEL if is_whole(text, entry.device) else Provenance.TEXT,
        device=entry.device,
    )


def _decoded(message: list[int]) -> str:
    return bytes(byte & 0xFF for byte in message[:MAXIMUM_TEXT]).decode("utf-8", "replace")
