"""The files that a reader has mapped: its libraries, files that other programs share, and huge pages.

Most lie on a disk that may not answer: the caller asks through ``disk.Disk``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping

import msgspec

from nodevet.checks.core.wire import PROGRESS_NAME

MAXIMUM_FILES = 500
HUGE_PAGES = re.compile(r" /(?:anon_hugepage|dev/hugepages/)")
DELETED = " (deleted)"
PROGRESS = f"/memfd:{PROGRESS_NAME}"
"""Memory that a reader shares with the agent. Any other may be handed over by a program (memfd_create(2), unix(7))."""


class Stamp(msgspec.Struct, frozen=True):
    """Identifies a file, to detect its replacement."""

    inode: int
    size: int
    modified_ns: int


class MappedFiles(msgspec.Struct, frozen=True):
    """The mapped files of a process.

    ``libraries`` are its loaded libraries and its program, each with its stamp, None if it is gone from disk.
    ``shared`` are the files that other programs share: truncating one ends the process (SIGBUS). Excluded are devices,
    memory that only the reader and the agent share, and files that nobody writes. ``has_huge_pages``: one that cannot
    be had ends it by SIGBUS (hugetlbpage.rst).
    """

    libraries: Mapping[str, Stamp | None]
    shared: tuple[str, ...]
    has_huge_pages: bool


def mapped_files(maps: str) -> MappedFiles:
    """Return the files of *maps*, the text of /proc/PID/maps."""
    libraries: dict[str, Stamp | None] = {}
    shared: list[str] = []
    for line in maps.splitlines():
        path = line.partition("/")[2]
        if not path:
            continue
        name, permissions = "/" + path.removesuffix(DELETED), line.partition(" ")[2][:4]
        is_program = ".so" in name or "x" in permissions
        if is_program and name not in libraries and len(libraries) < MAXIMUM_FILES:
            libraries[name] = None if path.endswith(DELETED) else stamp(name)
        if permissions.endswith("s") and name != PROGRESS and _is_shared(name, written="w" in permissions):
            shared.append("/" + path)
    return MappedFiles(libraries, tuple(shared), HUGE_PAGES.search(maps) is not None)


def stamps(paths: Iterable[str]) -> dict[str, Stamp | None]:
    """Return the stamp of each of *paths*."""
    return {path: stamp(path) for path in paths}


def stamp(path: str) -> Stamp | None:
    """Return the stamp that identifies the file *path*; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 (a few hundred per minute)
    except OSError:
        return None
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns)


def replaced(known: Mapping[str, Stamp | None], present: Mapping[str, Stamp | None]) -> str | None:
    """Return the first library of *known* whose file on disk was replaced at *present*, or None."""
    return next((path for path, seen in known.items() if seen is None or present[path] != seen), None)


def _is_shared(path: str, *, written: bool) -> bool:
    """Return whether *path* is a regular file that the process or another user may write."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return written and not path.startswith("/dev/zero")
    return stat.S_ISREG(status.st_mode) and (written or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)))
