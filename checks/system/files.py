"""Small files: replaced atomically, and opened safely where another user could have placed them.

Every file that nodevet writes for other readers is replaced here: state file, mirror, markers, memory. A reader, or a
start after a crash, finds the old content or the new one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodevet.checks.core.errors import StoreError

_LINKS_AT_MOST = 40
"""The kernel's own maximum: path_resolution(7)."""


def replace(path: Path, content: bytes, *, mode: int = 0o640) -> None:
    """Replace *path* by *content* with *mode* atomically; file and name are on the disk on return.

    Raises OSError where it cannot be written, or where *path* is a symbolic link (ELOOP), which could redirect a root
    process to any file; the old content is then untouched.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _is_link(path.name, folder):
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
        _write_beside(path.name, content, folder, mode)
        os.fsync(folder)
    finally:
        os.close(folder)


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file at *path* by *content*, atomically and durably.

    Raises StoreError where it cannot be written; the old content is then untouched.
    """
    try:
        replace(path, content)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}): check {path.parent}") from error


@contextmanager
def opened(path: Path, *, follow: bool = False) -> Iterator[tuple[int, os.stat_result]]:
    """Yield a descriptor to read *path* from, and its status: a pipe without a writer does not block.

    A symbolic link is opened only with *follow*, for a path that a person chose. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        yield descriptor, os.fstat(descriptor)
    finally:
        os.close(descriptor)


def read_trusted(path: Path, most_bytes: int) -> bytes:
    """Return the content of *path*. Raises OSError, also where it is no plain file of this user or root."""
    with opened(path) as (descriptor, status):
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            raise OSError(errno.EPERM, f"not a file of uid {os.geteuid()} or root", str(path))
        if status.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"larger than {most_bytes >> 20} MiB", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()


def temporary_name(name: str) -> str:
    """Return the name of the temporary file beside *name* for its next content."""
    return f".{name}.new"


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of *path*, which a replacement does not share; None where there is no file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def foreign_link(path: Path) -> Path | None:
    """Return the first symbolic link on the way to *path* that another user made, and that must not be followed.

    Root follows no link of another user. Other users follow the rule of fs.protected_symlinks (Linux
    Documentation/admin-guide/sysctl/fs.rst): no link in a world-writable folder such as /tmp. Raises OSError.
    """
    at, left, followed = Path("/"), list(path.absolute().parts[1:]), 0
    while left:
        part = left.pop(0)
        if part == "..":
            at = at.parent
            continue
        try:
            status = (at / part).lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISLNK(status.st_mode):
            at /= part
            continue
        if _is_foreign(status, at):
            return at / part
        followed += 1
        if followed > _LINKS_AT_MOST:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = (at / part).readlink()
        at, left = (Path("/"), [*target.parts[1:], *left]) if target.is_absolute() else (at, [*target.parts, *left])
    return None


def _is_foreign(link: os.stat_result, folder: Path) -> bool:
    own, around = os.geteuid(), folder.stat()
    if link.st_uid in (0, own):
        return False
    anybody_writes = around.st_mode & stat.S_ISVTX and around.st_mode & stat.S_IWOTH
    return own == 0 or bool(anybody_writes and link.st_uid != around.st_uid)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _write_beside(name: str, content: bytes, folder: int, mode: int) -> None:
    temporary = temporary_name(name)
    _remove(temporary, folder)  # left by a killed writer; exclusive creation never opens an existing file
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


def text_of(path: Path) -> str:
    """Return the text of *path*, such as a page of the kernel; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
