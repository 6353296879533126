"""Whether a library on disk is whole: one that a full disk cut short ends whoever loads or calls it (SIGBUS, SIGSEGV).

What the linker maps of a file stands in its program headers (elf(5)); what lies beyond its end cannot be served.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

HEADER = struct.Struct("<16s2HI3QI6H")
"""``Elf64_Ehdr`` of little-endian machines, which all are that have accelerators."""

SEGMENT = struct.Struct("<2I6Q")
MAGIC = b"\x7fELF\x02\x01"
PT_LOAD = 1
MOST_SEGMENTS = 64


def cut_short(paths: Iterable[str]) -> str:
    """Return the first of the libraries *paths* that ends before what is mapped of it; empty where each is whole."""
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
    """Return how long the file that begins with *start* must be; 0 for what is no such library."""
    if not start.startswith(MAGIC) or len(start) < HEADER.size:
        return 0
    fields = HEADER.unpack_from(start)
    place, size, count = fields[5], fields[9], min(fields[10], MOST_SEGMENTS)
    if size != SEGMENT.size:
        return 0
    segments = (place + number * size for number in range(count))
    entries = [SEGMENT.unpack_from(start, at) for at in segments if at + size <= len(start)]
    return max((entry[2] + entry[5] for entry in entries if entry[0] == PT_LOAD), default=0)
