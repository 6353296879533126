"""What /proc tells about a process: whether it is still the one we started, and where it sits.

A process is known by its id *and* the tick it started at, because ids are used again. Both are kept over a restart of
the agent, so the tick is read here: psutil tells a time of the wall clock, which moves whenever that clock is set. Nor
does psutil tell where in the kernel a process waits, or the limits of another user's process, nor does it find one that
hidepid=2 hides.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from .descriptors import WANTED

_STATE, _START = 0, 19
"""Positions in /proc/PID/stat after the command's closing bracket: fields 3 and 22 of proc(5)."""

_STATE_WORDS = {
    "D": "state D, waits in the kernel and cannot be killed",
    "T": "state T, stopped by a signal",
    "R": "state R, computing",
    "S": "state S, waiting",
    "Z": "state Z, dead",
}


FILE_SIZE = "RLIMIT_FSIZE"
"""Told where no other limit is, because room on a disk explains less of what a library says than memory and files."""

_MEMORY_LIMITS = {"Max address space": "RLIMIT_AS", "Max data size": "RLIMIT_DATA"}


class ChildRecord(msgspec.Struct, frozen=True):
    """A child that may outlive its agent, as it is remembered over a restart: what it did, and if a driver's call."""

    name: str
    pid: int
    start_ticks: int
    boot_id: str
    detail: str = ""
    in_call: bool = False


def start_ticks(pid: int) -> int | None:
    """Return the tick since boot at which the process *pid* started, or None where there is none."""
    fields = _stat(pid)
    return int(fields[_START]) if fields else None


def exists(pid: int) -> bool:
    """Return whether there is a process *pid*, also where /proc hides those of other users (hidepid=2, proc(5))."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_alive(record: ChildRecord, boot_id: str) -> bool:
    """Return whether the very process of *record* still runs in the boot *boot_id*; a zombie does not."""
    fields = _stat(record.pid) if record.boot_id == boot_id else None
    return fields is not None and int(fields[_START]) == record.start_ticks and fields[_STATE] != "Z"


def describe(pid: int) -> str:
    """Return the state of the process and, where it may be read, the kernel function it waits in."""
    fields = _stat(pid)
    if fields is None:
        return "gone"
    state = _STATE_WORDS.get(fields[_STATE], f"state {fields[_STATE]}")
    where = _kernel_function(pid)
    return f"{state}, in {where}" if where else state


def tight_limit(pid: int) -> str:
    """Return under which limit *pid* may be refused memory or files, and what to do; empty where none is tight."""
    if limit := memory_limit(pid):
        return f"{limit}, and may have been refused memory: lift LimitAS and LimitDATA"
    files = _limits(pid, {"Max open files": "RLIMIT_NOFILE"}).get("RLIMIT_NOFILE", WANTED)
    if files < WANTED:
        return f"RLIMIT_NOFILE of {files}, and may have been refused files: raise LimitNOFILE"
    size = _limits(pid, {"Max file size": FILE_SIZE}).get(FILE_SIZE)
    words = f"{FILE_SIZE} of {size} bytes, and may have been refused room in a file: lift LimitFSIZE"
    return "" if size is None else words


def memory_limit(pid: int) -> str:
    """Return the limit on the memory that *pid* may ask for, as getrlimit(2) names it; empty where none is set.

    A process that has ended still tells it, until its parent takes note.
    """
    return next((f"{name} of {soft} bytes" for name, soft in _limits(pid, _MEMORY_LIMITS).items()), "")


def _limits(pid: int, names: Mapping[str, str]) -> dict[str, int]:
    """Return the soft limits of *pid* that are numbers, by what *names* calls them."""
    found = {}
    for line in _read(pid, "limits").splitlines():
        for words, name in names.items():
            soft = line.removeprefix(words).split()[:1] if line.startswith(words) else []
            if soft and soft[0].isdigit():
                found[name] = int(soft[0])
    return found


def _kernel_function(pid: int) -> str:
    """Return the innermost kernel function: of the stack for root, of wchan for others."""
    stack = _read(pid, "stack").splitlines()
    if stack:
        return stack[0].rpartition("] ")[2].partition("+")[0]
    function = _read(pid, "wchan").strip("\0 ")
    return "" if function == "0" else function


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; the command before it may hold anything."""
    return _read(pid, "stat").rpartition(")")[2].split() or None


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
