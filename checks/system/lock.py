"""The node lock: one reader of the devices at a time, because reading clears some counters."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from nodevet.checks.core.errors import BusyError, StoreError

LOCK_NAME = "node.lock"


class NodeLock:
    """The lock, held until ``release`` or until the process ends in any way."""

    def __init__(self, path: Path, descriptor: int, purpose: str) -> None:
        """Take over the locked *descriptor* of *path*."""
        self.path = path
        self._descriptor: int | None = descriptor
        self._purpose = purpose

    def restore(self) -> None:
        """Take the lock again where its file was removed or replaced: another process could take the new one too.

        Raises BusyError where one has, and StoreError; this lock then stays held.
        """
        if self._descriptor is None or _is_same(self.path, self._descriptor):
            return
        fresh = acquire_node_lock(self.path.parent, self._purpose)
        os.close(self._descriptor)
        self._descriptor, fresh._descriptor = fresh._descriptor, None

    def release(self) -> None:
        """Release the lock for the next process. May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        """Return the lock."""
        return self

    def __exit__(self, *_raised: object) -> None:
        """Release the lock."""
        self.release()


def acquire_node_lock(runtime_directory: Path, purpose: str = "nodevet") -> NodeLock:
    """Take the lock in *runtime_directory* at once, and write our pid and *purpose* for the next process to report.

    Raises BusyError naming the holder's pid and purpose, and StoreError when the directory cannot be written.
    """
    path = runtime_directory / LOCK_NAME
    try:
        runtime_directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = open_lock_file(path)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written by uid {os.geteuid()} ({error.strerror}): choose another runtime_dir"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(descriptor)
        os.close(descriptor)
        raise BusyError(
            f"{path}: held by {holder}, which reads the devices: ask it with `nodevet status`, or stop it first"
        ) from error
    with suppress(OSError):  # the lock holds on a full disk too; only our name is missing then
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {purpose}\n".encode(), 0)
    return NodeLock(path, descriptor, purpose)


def open_lock_file(path: Path) -> int:
    """Return a descriptor of the lock file *path*, created where absent. Raises OSError.

    Only its owner may open it: any user who may read a file can lock it (flock(2)), and could keep the next agent from
    starting as long as he likes.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with suppress(OSError):  # a file of another user
        os.fchmod(descriptor, 0o600)  # an earlier version let the group read it
    return descriptor


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def _holder(descriptor: int) -> str:
    # The holder writes its name right after it gets the lock: for a moment the line may be old or empty.
    pid, _, purpose = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip().partition(" ")
    return f"{purpose or 'a process'} (pid {pid})" if pid.isdecimal() else "another process"
