"""Journal entries that journald took from the kernel: they survive when the ring is overwritten.

journald reads /dev/kmsg itself and marks the records with fields that no program can set: those that begin with an
underscore. Records that programs wrote into the ring get the same mark, with the facility that the kernel forced on
them.
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
"""The journalctl command for kernel messages since boot; the fields are those that this module reads."""

MAXIMUM_ENTRY_BYTES = 1 << 18
"""The kernel's records have up to 8 KiB, and journalctl prints up to four characters per byte of a byte list."""

OPEN_SECONDS = 10.0
"""Longest time until the rest of a line that the kernel prints in pieces, as a record that seems to be a whole line.

The kernel holds an RCU lock meanwhile, and reports a stall of a lock that is held for 21 s."""

_NUMBER = re.compile(r"[0-9]{1,15}")


class _Entry(msgspec.Struct, frozen=True):
    """The fields with author, time and text of an entry; a message that is not UTF-8 is a list of bytes."""

    text: str | list[int] | None = msgspec.field(name="MESSAGE", default=None)
    transport: str = msgspec.field(name="_TRANSPORT", default="")
    facility: str = msgspec.field(name="SYSLOG_FACILITY", default="")
    device: str | None = msgspec.field(name="_KERNEL_DEVICE", default=None)
    source_usec: str = msgspec.field(name="_SOURCE_MONOTONIC_TIMESTAMP", default="")
    usec: str = msgspec.field(name="__MONOTONIC_TIMESTAMP", default="")
    boot: str = msgspec.field(name="_BOOT_ID", default="")

    @property
    def seconds(self) -> float:
        """Return the kernel's time stamp in seconds, else the time of journald's read; 0 without both."""
        usec = next((word for word in (self.source_usec, self.usec) if _NUMBER.fullmatch(word)), "0")
        return int(usec) / 1e6


class Span:
    """The journal's kernel lines between two kernel time stamps, both excluded; read in pieces, not stored."""

    def __init__(
        self, after_seconds: float, before_seconds: float, take: Callable[[Line], object], boot_id: str = ""
    ) -> None:
        """Pass each of the kernel's own lines in the span to *take*, but for lines of another boot than *boot_id*."""
        self.records = 0
        self._boot_id = boot_id.replace("-", "")
        self._open_until = -1.0
        self._after_seconds = after_seconds
        self._before_seconds = before_seconds
        self._take = take
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next piece of journalctl's output; ``records`` counts programs' records too. Never fails."""
        *whole, rest = (self._rest + data).split(b"\n")
        for raw in whole:
            self._feed_entry(raw)
        # The rest of an entry whose start was dropped does not parse as one: every quote inside an entry is escaped.
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
        """Return *line* as text where it may continue another one, which the journal does not mark, unlike /dev/kmsg.

        The kernel prints the name of a cgroup after ``,cpuset=`` as a separate piece, and users choose that name.
        """
        if line.device is None and line.text.endswith("="):
            self._open_until = seconds + OPEN_SECONDS
        if line.device is None and seconds <= self._open_until:
            return msgspec.structs.replace(line, provenance=Provenance.TEXT)
        return line


def entry_line(raw: str | bytes) -> Line | None:
    """Return the kernel's line in *raw*, one line of ``journalctl -o json``; None where it has none. Never fails.

    It has no sequence number: journald does not store the kernel's.
    """
    entry = _entry(raw)
    return None if entry is None else _line(entry)


def _entry(raw: str | bytes) -> _Entry | None:
    """Return the entry in *raw* if journald took it from the kernel's ring."""
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
