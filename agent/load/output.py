"""Where the document of a burn-in goes: tried before the load, written after each number format, whole or not at all.

A disk that fills up while a load of hours runs costs this file, never the verdict: what could not be written is told.
The document of an older run gives way even then: a good one must not stand for this run.
A pipe or another stream gets the last document alone, and nobody waits for its reader while the load runs.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import tempfile
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from nodevet.checks.core.errors import UsageError
from nodevet.checks.system.files import foreign_link, replace, temporary_name

STREAM_SECONDS = 10.0
"""How long a reader of a stream may let us wait for its next look."""

_SCHEMA, _LONGEST_BYTES = b'"nodevet.burn-in/', 64 << 20
"""What every document of a burn-in names, whoever formatted it anew, and more bytes than one has."""

_MEMORY, _MEMORY_MINORS = 1, (3, 5, 7)
"""mem(4): null, zero and full are of the major of /dev/mem and /dev/kmsg."""

_PSEUDO_TERMINALS = range(136, 144)
"""Documentation/admin-guide/devices.txt of Linux: they have no entry in sysfs."""


class _Kind(Enum):
    """How a file is written: replaced whole, in its folder that is not ours to change, or as a stream."""

    REPLACED = "replaced"
    IN_PLACE = "in place"
    STREAM = "stream"


class OutputFile:
    """One file that is replaced as often as there is more to tell. Raises UsageError where it cannot be written."""

    def __init__(self, name: str, say: Callable[[str], None], *, patience_seconds: float = STREAM_SECONDS) -> None:
        """Try to write at *name*, and leave what is there untouched; *say* takes a line about what goes wrong later.

        The reader of a stream may be *patience_seconds* late.
        """
        self._patience_seconds = patience_seconds
        self._name = name
        self._path = Path(name)
        self._say = say
        self._told = ""
        self._is_ours = False
        try:
            self._kind = _kind(self._path)
            if self._kind is not _Kind.STREAM:
                self._path = Path(os.path.realpath(name))
        except OSError as error:
            raise UsageError(f"burn-in: {name or repr(name)} cannot be written: {error.strerror}") from error

    def write(self, content: bytes, *, last: bool = False) -> bool:
        """Replace the file by *content*; False where it cannot be done, which is told once for each reason.

        A stream, which takes nothing back, is written only the *last* time.
        """
        if self._kind is _Kind.STREAM and not last:
            return True
        try:
            match self._kind:
                case _Kind.STREAM:
                    _write_stream(self._path, content, self._patience_seconds)
                case _Kind.IN_PLACE:
                    self._path.write_bytes(content)
                case _Kind.REPLACED:
                    self._replace(content)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._told:
                self._told = reason
                self._say(f"{self._name} cannot be written: {reason}; the run continues, and the verdict appears here")
            return False
        self._told = ""
        return True

    def _replace(self, content: bytes) -> None:
        """Replace the file by *content*, or remove what an older run left there. Raises OSError."""
        try:
            replace(self._path, content, mode=0o644)
        except OSError:
            if self._is_ours or not _is_document(self._path):
                raise
            self._path.unlink()
            try:
                replace(self._path, content, mode=0o644)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror}, and an older document there was removed") from error
        self._is_ours = True


def _is_document(path: Path) -> bool:
    """Return whether a burn-in wrote what is at *path*: nothing else gives way to a document that finds no room."""
    try:
        with path.open("rb") as file:
            return _SCHEMA in file.read(_LONGEST_BYTES)
    except OSError:
        return False


def _write_stream(path: Path, content: bytes, patience_seconds: float) -> None:
    """Write to a pipe or a device whose reader may be absent (ENXIO) or asleep (ETIMEDOUT)."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        poll = select.poll()  # select(2) takes no descriptor above 1023
        poll.register(descriptor, select.POLLOUT)
        left, deadline = memoryview(content), time.monotonic() + patience_seconds
        while left:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError(errno.ETIMEDOUT, "its reader does not read", str(path))
            try:
                left, deadline = left[os.write(descriptor, left) :], time.monotonic() + patience_seconds
            except BlockingIOError:
                continue
    finally:
        os.close(descriptor)


def _kind(path: Path) -> _Kind:
    """Return how *path* is written. Raises OSError where it can be written in no way."""
    link = foreign_link(path)
    if link is not None:
        raise OSError(errno.ELOOP, f"{link} is a symbolic link of another user", str(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        known = path.stat()
    except FileNotFoundError:
        known = None
    if known is not None and not stat.S_ISREG(known.st_mode):
        return _stream(path, known)
    real = Path(os.path.realpath(path))
    if known is None and _is_among_devices(real):
        raise OSError(errno.ENODEV, "no such device; a plain file in /dev would be lost at the next boot", str(path))
    if len(os.fsencode(temporary_name(real.name))) > os.pathconf(real.parent, "PC_NAME_MAX"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
    if known is not None:
        # Opened, because only that says of one that is immutable, executed or on a read-only disk what keeps it.
        os.close(os.open(real, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC))
    try:
        with tempfile.TemporaryFile(dir=real.parent):
            pass
    except PermissionError:
        if known is None:
            raise
        return _Kind.IN_PLACE
    return _Kind.IN_PLACE if known is not None and _is_kept_by_sticky_folder(known, real.parent) else _Kind.REPLACED


def _stream(path: Path, known: os.stat_result) -> _Kind:
    """Return that *path* is a stream: a pipe or a terminal, never a device on which text does harm."""
    if stat.S_ISBLK(known.st_mode):
        raise OSError(errno.EINVAL, "it is a disk", str(path))
    if stat.S_ISSOCK(known.st_mode):
        raise OSError(errno.ENXIO, "it is a socket", str(path))
    if stat.S_ISCHR(known.st_mode) and not _is_harmless(known.st_rdev):
        raise OSError(errno.EINVAL, "it is a device and not a terminal", str(path))
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return _Kind.STREAM


def _is_harmless(device: int) -> bool:
    """Return whether the character *device* is a terminal, null, zero or full; a watchdog, once opened, reboots."""
    major, minor = os.major(device), os.minor(device)
    if major == _MEMORY:
        return minor in _MEMORY_MINORS
    subsystem = Path(f"/sys/dev/char/{major}:{minor}/subsystem")
    return major in _PSEUDO_TERMINALS or os.path.realpath(subsystem).endswith("/tty")


def _is_among_devices(path: Path) -> bool:
    """Return whether a new file at *path* would lie among the devices, and not on a disk of its own below them."""
    return Path("/dev") in path.parents and path.parent.stat().st_dev == Path("/dev").stat().st_dev


def _is_kept_by_sticky_folder(known: os.stat_result, folder: Path) -> bool:
    """Return whether the file *known* may be written and not replaced: somebody else's, in a folder such as /tmp."""
    around, own = folder.stat(), os.geteuid()
    return bool(around.st_mode & stat.S_ISVTX) and own not in (0, known.st_uid, around.st_uid)
