"""Jobs of a scheduler on this node, by the claims that their prologs leave, and the lock that every load holds.

A prolog writes its claim before it reads the state file; the agent has ``probing`` on disk before it lists the claims.
So whichever comes second sees the other, and a load never runs beside the first process of a job.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.system.lock import open_lock_file

CLAIMS_NAME = "claims"
LOAD_LOCK_NAME = "load.lock"

_LOCK = struct.Struct("hhqqi")
"""``struct flock`` of 64-bit Linux: type, whence, start, length (0: to the end), and a pid that must be 0."""

_WHOLE_FILE = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class ClaimsSeen(msgspec.Struct, frozen=True):
    """What lies in the folder of claims: how many jobs, how old the oldest is, and why it could not be read."""

    count: int = 0
    oldest_seconds: float | None = None
    failure: str = ""

    @property
    def reason(self) -> str | None:
        """Return why no load may run, without the name of anybody's job; None where no job is here."""
        if self.failure:
            return self.failure
        if not self.count:
            return None
        jobs = "a job claims" if self.count == 1 else f"{self.count} jobs claim"
        return f"{jobs} this node, since {_span(self.oldest_seconds or 0.0)}"


class Claims:
    """The folder of claims in the runtime directory: a file per job, made by its prolog and removed by its epilog."""

    def __init__(self, runtime_directory: Path, *, wall_seconds: Callable[[], float] = time.time) -> None:
        """Look into *runtime_directory*; ages are by *wall_seconds*, the clock of file times."""
        self.directory = runtime_directory / CLAIMS_NAME
        self._wall_seconds = wall_seconds

    def prepare(self) -> None:
        """Make the folder, which the scripts want to be no link and of the agent's own user.

        Raises StoreError where that cannot be.
        """
        try:
            self.directory.mkdir(mode=0o755, exist_ok=True)
            status = self.directory.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                raise StoreError(f"{self.directory}: not a folder of uid {os.geteuid()}: check and remove it")
            self.directory.chmod(0o755)
        except OSError as error:
            raise StoreError(
                f"{self.directory}: cannot be made ({error.strerror}): choose another runtime_dir"
            ) from error

    def look(self) -> ClaimsSeen:
        """Return what lies there now. A folder that cannot be read is no permission to run a load."""
        oldest: float | None = None
        count = 0
        try:
            if self.directory.is_symlink():
                return ClaimsSeen(failure=f"claims of jobs are not read: {self.directory} is a symbolic link")
            with os.scandir(self.directory) as entries:
                for entry in entries:
                    try:
                        began = entry.stat(follow_symlinks=False).st_mtime
                    except FileNotFoundError:
                        continue  # the job ended meanwhile
                    count += 1
                    oldest = began if oldest is None else min(oldest, began)
        except OSError as error:
            return ClaimsSeen(failure=f"claims of jobs cannot be read: {self.directory}: {error.strerror}")
        return ClaimsSeen(count, None if oldest is None else max(self._wall_seconds() - oldest, 0.0))

    def names(self) -> frozenset[str]:
        """Return the jobs that claim this node; none where that cannot be read, which ``look`` tells."""
        return self._entries(lambda _entry: True)

    def waiting(self) -> frozenset[str]:
        """Return the jobs that met a closed gate, whose prologs wait for the agent to look: their claims say so."""
        return self._entries(_has_words)

    def answer(self, names: Iterable[str], word: str) -> None:
        """Put *word* into the claims *names*, for prologs that wait; one that is gone meanwhile is not recreated."""
        for name in names:
            with suppress(OSError):
                descriptor = os.open(self.directory / name, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
                with os.fdopen(descriptor, "w", encoding="ascii") as claim:
                    claim.write(f"{word}\n")

    def _entries(self, wanted: Callable[[os.DirEntry[str]], bool]) -> frozenset[str]:
        try:
            with os.scandir(self.directory) as entries:
                return frozenset(entry.name for entry in entries if wanted(entry))
        except OSError:
            return frozenset()


class LoadLock:
    """A lock of an open file (Linux 3.15): it lives as long as any process of a load, which inherits the descriptor.

    The kernel lets go of it with the last of them, whoever started them and however that one ended.
    """

    def __init__(self, runtime_directory: Path) -> None:
        """Use the lock file in *runtime_directory*."""
        self._path = runtime_directory / LOAD_LOCK_NAME

    def acquire(self) -> int:
        """Return a descriptor that holds the lock, to be inherited by every process of a load and then closed.

        Raises BusyError while a process of another load lives, StoreError where the file cannot be opened.
        """
        try:
            descriptor = open_lock_file(self._path)
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be opened ({error.strerror}): check its directory") from error
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except OSError as error:
            os.close(descriptor)
            raise BusyError(f"{self._path}: a process of another load still runs: try again in a moment") from error
        return descriptor

    def is_held(self) -> bool:
        """Return whether a process of a load lives; what cannot be told is no reason to call the node idle."""
        try:
            if not self._path.exists():
                return False  # no load ever ran
            with os.fdopen(open_lock_file(self._path), "rb") as file:
                # Asked, not tried: who looks must not stand in the way of who starts a load in that moment.
                found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE_FILE)
        except OSError:
            return True
        return bool(_LOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _has_words(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_size > 0
    except FileNotFoundError:
        return False


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
