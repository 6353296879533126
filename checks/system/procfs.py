"""A process in /proc: its identity, its state and its limits.

A process is identified by its id *and* the tick at which it started, because ids are reused. Both are kept over a
restart of the agent, so the tick is read here: psutil returns a wall clock time, which moves whenever that clock is
set. Nor does psutil return the kernel function in which a process waits, or the limits of another user's process, and
it does not find a process that hidepid=2 hides.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from nodevet.checks.core.errors import ConfigurationError

from .descriptors import WANTED
from .files import text_of

_STATE, _START = 0, 19
"""Positions in /proc/PID/stat after the command's closing bracket: fields 3 and 22 of proc(5)."""

STOPPED = "state T, stopped by a signal"
_STATE_WORDS = {
    "D": "state D, waits in the kernel and cannot be killed",
    "T": STOPPED,
    "R": "state R, computing",
    "S": "state S, waiting",
    "Z": "state Z, dead",
}


FILE_SIZE = "RLIMIT_FSIZE"
"""Reported only where no other limit is set: disk space explains fewer library errors than memory and files."""

_MEMORY_LIMITS = {"Max address space": "RLIMIT_AS", "Max data size": "RLIMIT_DATA"}


class ChildRecord(msgspec.Struct, frozen=True):
    """A child that may outlive its agent, as stored over a restart: its last call, and whether a driver's."""

    name: str
    pid: int
    start_ticks: int
    boot_id: str
    detail: str = ""
    in_call: bool = False


def refuse_foreign_proc(own: Path = Path("/proc/self")) -> None:
    """Raise ConfigurationError where /proc numbers processes of another PID namespace than this process.

    A container that mounts the host's /proc over its own without the host's PID namespace has such a one: under the
    number of a child it shows an unrelated process, which would be blamed or killed (pid_namespaces(7)).
    """
    try:
        shown = str(own.readlink())
    except OSError:
        shown = "none"
        if not own.parent.joinpath("stat").exists():
            return
    if shown != str(os.getpid()):
        raise ConfigurationError(
            f"{own.parent} is of another PID namespace (this process is {os.getpid()}, {own} shows {shown}): "
            'start the container with --pid=host, or mount the host\'s /proc at /host/proc and set agent.root = "/host"'
        )


def start_ticks(pid: int) -> int | None:
    """Return the tick since boot at which the process *pid* started, or None where it does not exist."""
    fields = _stat(pid)
    return int(fields[_START]) if fields else None


def exists(pid: int) -> bool:
    """Return whether the process *pid* exists, also where /proc hides those of other users (hidepid=2, proc(5))."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_alive(record: ChildRecord, boot_id: str) -> bool:
    """Return whether the same process as in *record* still runs in the boot *boot_id*; a zombie does not."""
    fields = _stat(record.pid) if record.boot_id == boot_id else None
    if fields is None or int(fields[_START]) != record.start_ticks:
        return False
    return fields[_STATE] != "Z" or living_thread(record.pid) is not None


def living_thread(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return a thread of *pid* that has not ended, one in state D first; None if there is none.

    Where the first thread of a killed process has ended, the process is shown as a zombie until the others have: a
    thread that waits in the kernel keeps memory, files and devices of the process.
    """
    try:
        threads = [int(name) for name in os.listdir(proc / str(pid) / "task")]  # noqa: PTH208 (names are what is wanted)
    except OSError:
        return None
    states = {thread: _state(proc / str(pid) / "task" / str(thread) / "stat") for thread in sorted(threads)}
    living = [thread for thread, state in states.items() if state not in ("", "Z", "X")]
    return next((thread for thread in living if states[thread] == "D"), living[0] if living else None)


def _state(stat: Path) -> str:
    fields = text_of(stat).rpartition(")")[2].split()
    return fields[0] if fields else ""


def describe(pid: int) -> str:
    """Return the state of the process and, where readable, the kernel function in which it waits."""
    fields = _stat(pid)
    if fields is None:
        return "gone"
    if fields[_STATE] == "Z" and (thread := living_thread(pid)) is not None:
        return f"its thread {thread} has not ended: {describe(thread)}"
    state = _STATE_WORDS.get(fields[_STATE], f"state {fields[_STATE]}")
    where = _kernel_function(pid)
    return f"{state}, in {where}" if where else state


def tight_limit(pid: int) -> str:
    """Return the limit that may have refused memory or files to *pid*, and the remedy; empty where none is tight."""
    if limit := memory_limit(pid):
        return f"{limit}, which may be too little memory: remove LimitAS and LimitDATA"
    files = _limits(pid, {"Max open files": "RLIMIT_NOFILE"}).get("RLIMIT_NOFILE", WANTED)
    if files < WANTED:
        return f"RLIMIT_NOFILE of {files}, which may be too few files: raise LimitNOFILE"
    size = _limits(pid, {"Max file size": FILE_SIZE}).get(FILE_SIZE)
    remedy = f"{FILE_SIZE} of {size} bytes, which may be too small for a file: remove LimitFSIZE"
    return "" if size is None else remedy


def memory_limit(pid: int) -> str:
    """Return the memory limit of *pid*, as getrlimit(2) names it; empty where none is set.

    An ended process still has it, until its parent reaps it.
    """
    return next((f"{name} of {soft} bytes" for name, soft in _limits(pid, _MEMORY_LIMITS).items()), "")


def _limits(pid: int, names: Mapping[str, str]) -> dict[str, int]:
    """Return the numeric soft limits of *pid*, under the values of *names*."""
    found = {}
    for line in _read(pid, "limits").splitlines():
        for label, name in names.items():
            soft = line.removeprefix(label).split()[:1] if line.startswith(label) else []
            if soft and soft[0].isdigit():
                found[name] = int(soft[0])
    return found


def _kernel_function(pid: int) -> str:
    """Return the innermost kernel function: from the stack for root, from wchan for others."""
    stack = _read(pid, "stack").splitlines()
    if stack:
        return stack[0].rpartition("] ")[2].partition("+")[0]
    function = _read(pid, "wchan").strip("\0 ")
    return "" if function == "0" else function


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; the command before it may contain anything."""
    return _read(pid, "stat").rpartition(")")[2].split() or None


def _read(pid: int, name: str) -> str:
    return text_of(Path(f"/proc/{pid}/{name}"))
