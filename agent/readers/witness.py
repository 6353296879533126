"""What the kernel tells of a reader that does not answer: whether the machine kept it from running, not the driver.

A reader that was stopped, frozen, starved of the processor or swapped out says nothing about a driver. Nor does one
whose library was replaced on disk while it was loaded: half of what it calls is then of another version.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from nodevet.checks.reference.tables import load_table

__all__ = ["Look", "Stamp", "Surroundings", "disturbance", "replaced", "stamp"]

STARVED_RATIO = 0.25
"""A reader that waited for a processor for more than this share of the time was not free to run."""

SWAPPED_FAULTS_PER_SECOND = 20.0
"""Pages read back from disk, per second: a reader needs none once it is loaded."""

MAXIMUM_FILES = 500

NO_OVERCOMMIT = "2"
COMMITTED_RATIO = 0.9
"""Where the kernel promises no more memory than there is, and this share is promised, it may have refused some."""

DUMPING = re.compile(r"^CoreDumping:\s*1", re.MULTILINE)
TRACED = re.compile(r"^TracerPid:\s*[1-9]", re.MULTILINE)

_STATE, _MAJOR_FAULTS = 0, 9
"""Positions in /proc/PID/stat after the command's closing bracket: fields 3 and 12 of proc(5)."""


class Stamp(msgspec.Struct, frozen=True):
    """What tells a file from one that took its place."""

    inode: int
    size: int
    modified_ns: int


class Look(msgspec.Struct, frozen=True):
    """A process at one moment. ``waited_seconds`` is the time that it could run and had no processor, None if untold.

    ``function`` is the kernel function that it waits in, empty where that may not be read. ``held`` tells that it has
    ended, and that the program which traces it has not let go of it; ``dumping`` that a signal ended it, and that its
    memory is being written to a file or a program.
    """

    state: str
    frozen: bool
    major_faults: int
    waited_seconds: float | None
    function: str = ""
    held: bool = False
    dumping: bool = False


class _Wait(msgspec.Struct, frozen=True):
    prefix: str
    meaning: str
    source: str


class Surroundings:
    """Looks at processes through *proc*, and at their cgroups through *cgroups*."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        """Read below these folders; nothing is kept open."""
        self._proc = proc
        self._cgroups = cgroups

    def look(self, pid: int) -> Look | None:
        """Return how the process *pid* is now, or None where it is gone."""
        fields = self._read(pid, "stat").rpartition(")")[2].split()
        if len(fields) <= _MAJOR_FAULTS:
            return None
        status = self._read(pid, "status")
        return Look(
            state=fields[_STATE],
            frozen=self._is_frozen(pid),
            major_faults=_number(fields[_MAJOR_FAULTS]) or 0,
            waited_seconds=self._waited(pid),
            function=self._function(pid),
            held=fields[_STATE] == "Z" and TRACED.search(status) is not None,
            dumping=DUMPING.search(status) is not None,
        )

    def libraries(self, pid: int) -> dict[str, Stamp | None]:
        """Return the shared libraries that *pid* has loaded; None for one that is not on disk any more."""
        found: dict[str, Stamp | None] = {}
        for line in self._read(pid, "maps").splitlines():
            path = line.partition("/")[2]
            name = "/" + path.removesuffix(" (deleted)")
            if not path or ".so" not in name or name in found or len(found) >= MAXIMUM_FILES:
                continue
            found[name] = None if path.endswith(" (deleted)") else stamp(name)
        return found

    def shared(self, pid: int) -> tuple[str, ...]:
        """Return the files that *pid* has mapped together with other programs: whoever cuts one short ends it (SIGBUS).

        A device is none, nor is memory that has no name in the file system, nor what nobody writes.
        """
        found = []
        for line in self._read(pid, "maps").splitlines():
            permissions = line.partition(" ")[2][:4]
            path = "/" + line.partition("/")[2]
            is_named = len(path) > 1 and not path.startswith("/memfd:")
            if permissions.endswith("s") and is_named and _is_shared(path, written="w" in permissions):
                found.append(path)
        return tuple(found)

    def commit_shortage(self) -> str:
        """Return that the kernel promises no more memory than there is, and has little left; empty where not."""
        if _text(self._proc / "sys/vm/overcommit_memory").strip() != NO_OVERCOMMIT:
            return ""
        rows = (line.split() for line in _text(self._proc / "meminfo").splitlines())
        found = {row[0]: _number(row[1]) for row in rows if len(row) > 1}
        committed, limit = found.get("Committed_AS:"), found.get("CommitLimit:")
        if committed is None or limit is None or committed < COMMITTED_RATIO * limit:
            return ""
        return (
            f"memory may have been refused to it: {committed} of {limit} kB are promised (/proc/meminfo), and "
            "vm.overcommit_memory is 2: end what asks for so much"
        )

    def _waited(self, pid: int) -> float | None:
        fields = self._read(pid, "schedstat").split()
        waited = _number(fields[1]) if len(fields) == 3 else None
        return None if waited is None else waited / 1e9

    def _is_frozen(self, pid: int) -> bool:
        """Return whether the freezer of cgroups (version 1 or 2) holds *pid*; its groups' parents count."""
        for line in self._read(pid, "cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers == "" and "frozen 1" in _text(self._cgroups / path.lstrip("/") / "cgroup.events"):
                return True
            if "freezer" in controllers.split(","):
                state = _text(self._cgroups / "freezer" / path.lstrip("/") / "freezer.state")
                return state.strip() in ("FROZEN", "FREEZING")
        return False

    def _function(self, pid: int) -> str:
        stack = self._read(pid, "stack").splitlines()
        if stack:
            return stack[0].rpartition("] ")[2].partition("+")[0]
        function = self._read(pid, "wchan").strip("\0 \n")
        return "" if function == "0" else function

    def _read(self, pid: int, name: str) -> str:
        return _text(self._proc / str(pid) / name)


def disturbance(before: Look | None, after: Look | None, seconds: float) -> str:
    """Return what kept a process from running between two looks *seconds* apart; empty where nothing did."""
    if before is None or after is None:
        return "the process is gone"
    if "T" in (before.state, after.state) or "t" in (before.state, after.state):
        return "it is stopped (state T): somebody sent SIGSTOP or traces it; send SIGCONT or end the tracer"
    if after.held:
        return "it has ended, and the program that traces it (see TracerPid in its status) holds it: end the tracer"
    if after.dumping:
        return "a signal ended it, and its memory is being written (see /proc/sys/kernel/core_pattern): look at that"
    if before.frozen or after.frozen:
        return "it is frozen by its cgroup: thaw it (freezer.state, or cgroup.freeze)"
    function = after.function.lstrip("_")  # versions of Linux differ in them
    meaning = next((words for prefix, words in _meanings().items() if function.startswith(prefix)), "")
    if after.state == "D" and meaning:
        return f"it waits in {after.function}: {meaning}; look at disks, network file systems and memory"
    faults = after.major_faults - before.major_faults
    if faults > SWAPPED_FAULTS_PER_SECOND * max(seconds, 1.0):
        return f"it was swapped out: {faults} pages came back from disk in {seconds:.1f} s; look at memory and swap"
    if before.waited_seconds is not None and after.waited_seconds is not None:
        waited = after.waited_seconds - before.waited_seconds
        if waited > STARVED_RATIO * max(seconds, 1.0):
            return f"host overloaded: it waited {waited:.1f} of {seconds:.1f} s for a processor; look at its load"
    return ""


def replaced(known: Mapping[str, Stamp | None]) -> str | None:
    """Return the first library of *known* whose file on disk is another one now, or None."""
    return next((path for path, seen in known.items() if seen is None or stamp(path) != seen), None)


def _is_shared(path: str, *, written: bool) -> bool:
    """Return whether *path* is a file, and no device, that the process or another user's may write."""
    try:
        status = os.stat(path.removesuffix(" (deleted)"))  # noqa: PTH116
    except OSError:
        return written and not path.startswith("/dev/zero")
    return stat.S_ISREG(status.st_mode) and (written or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)))


def stamp(path: str) -> Stamp | None:
    """Return what tells the file *path* from another in its place; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 (a few hundred per minute)
    except OSError:
        return None
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1)
def _meanings() -> dict[str, str]:
    return {row.prefix.lstrip("_"): row.meaning for row in load_table("kernel_waits.csv", _Wait)}


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
