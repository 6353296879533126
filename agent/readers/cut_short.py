"""Detects a truncated library on disk: a process that loads or calls it ends with SIGBUS or SIGSEGV.

The program headers state which parts of the file the linker maps (elf(5)); pages beyond its end cannot be read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

HEADER = struct.Struct("<16s2HI3QI6H")
"""``Elf64_Ehdr`` of little-endian machines; every machine with accelerators is little-endian."""

SEGMENT = struct.Struct("<2I6Q")
MAGIC = b"\x7fELF\x02\x01"
PT_LOAD = 1
MOST_SEGMENTS = 64


def cut_short(paths: Iterable[str]) -> str:
    """Return the first of the libraries *paths* that is shorter than its mapping; empty if each is complete."""
    return next((path for path in paths if _is_cut(path)), "")


def _is_cut(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (a Path would be made of each of hundreds)
            return (
                _wanted_bytes(file.read(HEADER.size + MOST_SEGMENTS * SEGMENT.size)) > os.fstat(file.fileno()).st_size
            )
    except OSError:
        return False


def _wanted_bytes(start: bytes) -> int:
    """Return the length in bytes that the file beginning with *start* must have; 0 if it is not such a library."""
    if not start.startswith(MAGIC) or len(start) < HEADER.size:
        return 0
    fields = HEADER.unpack_from(start)
    place, size, count = fields[5], fields[9], min(fields[10], MOST_SEGMENTS)
    if size != SEGMENT.size:
        return 0
    segments = (place + number * size for number in range(count))
    entries = [SEGMENT.unpack_from(start, at) for at in segments if at + size <= len(start)]
    return max((entry[2] + entry[5] for entry in entries if entry[0] == PT_LOAD), default=0)
