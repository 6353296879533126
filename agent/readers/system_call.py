"""The system call in which a process waits: one on a file or a socket waits for a disk or a program, not for a driver.

A driver is called through its device nodes in /dev, through its files in /sys and /proc, and through descriptors of its
own (``anon_inode``). Any other file lies on a disk, and a socket or pipe has another program at its end.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from nodevet.checks.backends.sound import sound_text
from nodevet.checks.reference.tables import load_table
from nodevet.checks.system.files import text_of

from .disk import Disk

OF_DRIVERS = ("/dev/", "/proc/", "/sys/", "anon_inode:")
IN_MEMORY = ("/dev/shm/", "/dev/mqueue/", "/dev/hugepages/")  # noqa: S108 (compared, not used)
"""Folders in /dev with files of programs."""

OF_PROGRAMS = {"socket:": "a socket", "pipe:": "a pipe"}
LONGEST_PATH_BYTES = 4096
MOST_PROCESSES = 100
DESCRIPTOR_BITS = 0xFFFFFFFF
WORKING_FOLDER = -100 & DESCRIPTOR_BITS
"""AT_FDCWD of fcntl.h: a path is relative to the working directory."""


class _Takes(StrEnum):
    DESCRIPTOR = "descriptor"
    PATH = "path"


class _FileCall(msgspec.Struct, frozen=True):
    """A row of reference/file_calls.csv: the numbers of a system call, and which argument names its file."""

    name: str
    x86_64: int | None
    aarch64: int | None
    takes: _Takes
    argument: int
    source: str


def waits_elsewhere(process: Path, disk: Disk, *, state: str = "S", root: str = "/") -> str | None:
    """Return which file or program *process*, a folder of /proc, waits for in *state*, with the next step.

    Empty if it is in no such call, so that the driver may be the cause. None if the kernel does not show the call
    (proc_pid_syscall(5)): that needs the permission to trace the process. A wait for a program is never in state D.
    The files of a driver may also lie below *root*, the root of the host in a container.
    """
    words = text_of(process / "syscall").split()
    if not words:
        return None
    number, *arguments = map(_number, words)
    call = _calls().get(number)
    if call is None or len(arguments) <= call.argument:
        return ""
    target = _target(process, call, arguments, disk)
    inner = "/" + target.removeprefix(root).lstrip("/") if target.startswith("/") else target
    if inner.startswith(OF_DRIVERS) and not inner.startswith(IN_MEMORY):
        return ""
    for prefix, kind in OF_PROGRAMS.items():
        if target.startswith(prefix):
            if state == "D" or _is_inside(process, target):
                return ""
            step = "check the system log and the daemons of the driver"
            return f"{call.name} of {kind} whose program does not answer; {step}"
    step = "check disks and network file systems, and whether one is frozen (fsfreeze)"
    return f"{call.name} of the file {sound_text(target)}; {step}" if target else ""


def _is_inside(process: Path, pipe: str) -> bool:
    """Return whether *process* or a program that it started holds the other end of *pipe*: its library works there."""
    waiting, ends = [process], 0
    for folder in waiting:
        with suppress(OSError):
            ends += sum(_link(entry) == pipe for entry in (folder / "fd").iterdir())
        if ends > 1 or len(waiting) > MOST_PROCESSES:
            return True
        children = text_of(folder / "task" / folder.name / "children").split()
        waiting += [folder.parent / child for child in children]
    return False


def _target(process: Path, call: _FileCall, arguments: list[int], disk: Disk) -> str:
    """Return the name of the file of *call*; empty if it is not known."""
    if call.takes is _Takes.DESCRIPTOR:
        return _link(process / "fd" / str(arguments[call.argument] & DESCRIPTOR_BITS))
    # A page of its memory may have to come back from a disk.
    path = disk.ask(partial(_path_at, process, arguments[call.argument]), None)
    if path is None:
        return ""
    folder = arguments[call.argument - 1] & DESCRIPTOR_BITS if call.argument else WORKING_FOLDER
    start = _link(process / "cwd") if folder == WORKING_FOLDER else _link(process / "fd" / str(folder))
    return os.path.normpath(os.path.join(start, path))  # noqa: PTH118 (a path of another process)


def _path_at(process: Path, address: int) -> str | None:
    try:
        with (process / "mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            return os.fsdecode((memory.read(LONGEST_PATH_BYTES) or b"").partition(b"\0")[0])
    except (OSError, ValueError, OverflowError):
        return None


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 (the text alone)
    except OSError:
        return ""


def _number(word: str) -> int:
    """Return the number *word*, decimal or hexadecimal; -1 for ``running``, as the kernel has it for no call."""
    try:
        return int(word, 0)
    except ValueError:
        return -1


@lru_cache(maxsize=1)
def _calls() -> dict[int, _FileCall]:
    """Return the calls of this machine by number; none on a machine that the table does not have."""
    rows = load_table("file_calls.csv", _FileCall)
    numbers = ((getattr(row, platform.machine(), None), row) for row in rows)
    return {number: row for number, row in numbers if number is not None}
