"""Detects full disks where libraries write: shared memory with a name, temporary files, locks and logs.

A file that is extended and mapped allocates no blocks before it is written: on a full disk this causes SIGBUS. Other
calls report that the disk is full, but many libraries ignore that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from nodevet.checks.reference.limits import from_table
from nodevet.checks.reference.tables import load_table

LEAST_BYTES = from_table("reader.want.room").value
"""A disk with less free space, in bytes, counts as full."""


class FolderRow(msgspec.Struct, frozen=True):
    """A folder that libraries write to, and its purpose."""

    folder: str
    meaning: str
    source: str


def without_room(files: Iterable[str], ask: Callable[[str], os.statvfs_result] = os.statvfs) -> str:
    """Return which folder of libraries, or of *files*, is on a full disk, with the remedy; empty if none is."""
    for path in (*_folders(), *files):
        try:
            told = _told(path, ask(path))
        except OSError:
            continue
        if told:
            return told
    return ""


def _told(path: str, disk: os.statvfs_result) -> str:
    """Return what the *disk* of *path* lacks. A disk without a size has no limit; a read-only one has no free space."""
    left = (disk.f_bavail if os.geteuid() else disk.f_bfree) * disk.f_frsize
    if disk.f_flag & os.ST_RDONLY:
        return ""
    if disk.f_blocks and left < LEAST_BYTES:
        most = disk.f_blocks * disk.f_frsize
        return f"the disk of {path} is full ({left} of {most} bytes are left): make room there (df -h {path})"
    if disk.f_files and not disk.f_ffree:
        return f"the disk of {path} has no free inode, all {disk.f_files} are used: remove files (df -i {path})"
    return ""


@lru_cache(maxsize=1)
def _folders() -> tuple[str, ...]:
    return tuple(row.folder for row in load_table("library_folders.csv", FolderRow))
