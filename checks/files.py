"""A small file that is replaced whole: a reader, or a start after a crash, finds the old one or the new one.

Every file that nodevet writes for somebody else to read goes through here: state file, mirror, markers, memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["file_identity", "replace", "temporary_name"]


def replace(path: Path, content: bytes, *, mode: int = 0o640) -> None:
    """Replace *path* by *content* with *mode* in one step; both file and name are on the disk when that returns.

    Raises OSError where it cannot be written, or where *path* is a symbolic link (ELOOP), which might lead a root
    process anywhere; what was there before is then untouched.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _is_link(path.name, folder):
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
        _write_beside(path.name, content, folder, mode)
        os.fsync(folder)
    finally:
        os.close(folder)


def temporary_name(name: str) -> str:
    """Return the name beside *name* under which its next content is written."""
    return f".{name}.new"


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return what tells the file at *path* from one that takes its place; None where there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _write_beside(name: str, content: bytes, folder: int, mode: int) -> None:
    temporary = temporary_name(name)
    _remove(temporary, folder)  # left by a writer that was killed; exclusive creation never opens what lies there
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode, dir_fd=folder)
    try:
        try:
            os.fchmod(descriptor, mode)
            _write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        _remove(temporary, folder)
        raise


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
