"""Where the document of a burn-in goes: tried before the load, written after each number format, whole or not at all.

A disk that fills up while a load of hours runs costs this file, never the verdict: what could not be written is told.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from nodevet.checks.errors import UsageError
from nodevet.checks.files import replace

__all__ = ["OutputFile"]


class OutputFile:
    """One file that is replaced as often as there is more to tell. Raises UsageError where it cannot be written."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        """Try to write at *name*, and leave what is there untouched; *say* takes a line about what goes wrong later."""
        self._name = name
        self._path = Path(os.path.realpath(name))
        self._say = say
        self._told = ""
        try:
            self._in_place = _must_write_in_place(self._path)
        except OSError as error:
            raise UsageError(f"burn-in: {name} cannot be written: {error.strerror}") from error

    def write(self, content: bytes) -> bool:
        """Replace the file by *content*; False where it cannot be done, which is told once for each reason."""
        try:
            if self._in_place:
                self._path.write_bytes(content)
            else:
                replace(self._path, content, mode=0o644)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._told:
                self._told = reason
                self._say(f"{self._name} cannot be written: {reason}; the run goes on, and its verdict is told here")
            return False
        self._told = ""
        return True


def _must_write_in_place(path: Path) -> bool:
    """Return whether *path* cannot be replaced: a pipe, a device, or a file in a folder that is not ours to change.

    Raises OSError where it can be written neither way.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        kind = None
    if kind is not None and not stat.S_ISREG(kind):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return True
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except PermissionError:
        if kind is None or not os.access(path, os.W_OK):
            raise
        return True
    if kind is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return False
