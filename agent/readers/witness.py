"""What the kernel tells of a reader that does not answer: whether the machine kept it from running, not the driver.

A reader that was stopped, frozen, starved of the processor or swapped out says nothing about a driver. Nor does one
whose library was replaced on disk while it was loaded: half of what it calls is then of another version.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from nodevet.checks.backends.device_nodes import closed_nodes, driver_at_work
from nodevet.checks.backends.standstill import CRASHES
from nodevet.checks.core.model import FailureKind
from nodevet.checks.reference.limits import from_table
from nodevet.checks.reference.tables import load_table

from .cut_short import cut_short
from .disk import Disk
from .room import without_room

STARVED_RATIO = from_table("reader.starved").value
"""A reader that waited for a processor for more than this share of the time was not free to run."""

SWAPPED_FAULTS_PER_SECOND = from_table("reader.swapped").value
"""Pages read back from disk, per second: a reader needs none once it is loaded."""

MAXIMUM_FILES = 500

NO_OVERCOMMIT = "2"
COMMITTED_RATIO = from_table("reader.want.committed").value
"""Where the kernel promises no more memory than there is, and this share is promised, it may have refused some."""

UNSCHEDULED_SECONDS = from_table("reader.unscheduled").value
"""A reader that could run and did not for so long had no processor: one that runs is counted each second at least."""

AVAILABLE_RATIO = from_table("reader.want.available").value
"""Where less than this share of the memory may be had, some may have been refused."""

SILENT = "the disk or file server of a library that it has loaded gives no answer: look at file systems"

WAITING = "DSI"
"""States of what waits in the kernel: FUSE can be interrupted at first (S), and Lustre waits idle (I, TASK_IDLE)."""

UNNOTED = "it is not known which libraries it has loaded: their disk gave no answer in time; look at file systems"

FILE_PAGES = ("active_file", "inactive_file")
"""What the kernel takes back before it refuses memory (cgroup-v2.rst, memory.stat)."""

TASKS_RATIO = from_table("reader.want.used").value
"""Where this share of the threads that may be is there, one may have been refused."""

MAXIMUM_OTHERS = 100

DUMPING = re.compile(r"^CoreDumping:\s*1", re.MULTILINE)
BLOCKED = re.compile(r"^SigBlk:\s*([0-9a-f]+)", re.MULTILINE)
CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)", re.MULTILINE)
OOM_CONTROL = "memory.oom_control"
UNDER_OOM = re.compile(r"^under_oom 1", re.MULTILINE)
NPROC = re.compile(r"^Max processes +(\d+)", re.MULTILINE)
THREADS = re.compile(r"^Threads:\s*(\d+)", re.MULTILINE)
USER = re.compile(r"^Uid:\s*(\d+)", re.MULTILINE)
TRACED = re.compile(r"^TracerPid:\s*[1-9]", re.MULTILINE)

REFUSALS = (
    ("pids", "pids.max", "pids.events", "max", "threads were refused since the last round: {}", "raise TasksMax"),
    (
        "memory",
        "memory.max",
        "memory.events",
        "oom",
        "no memory was left since the last round: {} times",
        "raise MemoryMax",
    ),
    (
        "memory",
        "memory.limit_in_bytes",
        OOM_CONTROL,
        "oom_kill",
        "no memory was left since the last round: {} times",
        "raise its limit",
    ),
)
"""What groups count: controller, limit, file and key, the words for it, and what to do (cgroup-v2.rst, and version 1).

A file whose name ends with ``local`` counts without the groups below; where there is none, the other does.
"""

_STATE, _MAJOR_FAULTS = 0, 9
"""Positions in /proc/PID/stat after the command's closing bracket: fields 3 and 12 of proc(5)."""


class Stamp(msgspec.Struct, frozen=True):
    """What tells a file from one that took its place."""

    inode: int
    size: int
    modified_ns: int


class ProcessStatus(msgspec.Struct, frozen=True):
    """A process at one moment. ``waited_seconds`` is the time that it could run and had no processor, None if untold.

    The kernel adds to it when the process runs again: ``ran_seconds``, which stand still meanwhile, tell of the wait.
    ``function`` is the kernel function that it waits in, empty where that may not be read, and ``callers`` are those
    beneath it, empty without the right to read its stack (CAP_SYS_ADMIN). ``held`` tells that it has ended, and that
    the program which traces it has not let go of it; ``dumping`` that a signal ended it, and that its memory is being
    written to a file or a program.
    """

    state: str
    frozen: bool
    major_faults: int
    waited_seconds: float | None
    function: str = ""
    callers: tuple[str, ...] = ()
    held: bool = False
    dumping: bool = False
    ran_seconds: float | None = None
    full_group: str = ""

    @property
    def is_held(self) -> bool:
        """Return whether the process may not go on: somebody stopped it, or its group did."""
        return self.frozen or self.state in "Tt" or (bool(self.full_group) and self.state != "R")


class Other(msgspec.Struct, frozen=True):
    """A thread of a reader, or a program that it started: the number that /proc knows it by, and its name."""

    pid: int
    name: str


class _Frame(StrEnum):
    """Where in the kernel's stack a function tells of a wait."""

    INNERMOST = "innermost"
    ANY = "any"


class _Wait(msgspec.Struct, frozen=True):
    prefix: str
    frame: _Frame
    meaning: str
    source: str


class Surroundings:
    """Looks at processes through *proc*, and at their cgroups through *cgroups*."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        preloads: Path = Path("/etc/ld.so.preload"),
        devices: Path = Path("/dev"),
        modules: Path = Path("/sys/module"),
        disk: Disk | None = None,
    ) -> None:
        """Read below these folders, and of the file *preloads*; nothing is kept open.

        What a reader has mapped may lie on any disk, and is asked of *disk*.
        """
        self.disk = disk or Disk()
        self._proc = proc
        self._cgroups = cgroups
        self._preloads = preloads
        self._devices = devices
        self._modules = modules

    def look(self, pid: int) -> ProcessStatus | None:
        """Return how the process *pid* is now, or None where it is gone."""
        fields = self._read(pid, "stat").rpartition(")")[2].split()
        if len(fields) <= _MAJOR_FAULTS:
            return None
        status = self._read(pid, "status")
        ran, waited = self._ran_and_waited(pid)
        function, *callers = self._functions(pid)
        return ProcessStatus(
            state=fields[_STATE],
            frozen=self._is_frozen(pid),
            major_faults=_number(fields[_MAJOR_FAULTS]) or 0,
            waited_seconds=waited,
            ran_seconds=ran,
            function=function,
            callers=tuple(callers),
            held=fields[_STATE] == "Z" and TRACED.search(status) is not None,
            dumping=DUMPING.search(status) is not None,
            full_group=self._full_group(pid),
        )

    def others(self, pid: int) -> dict[Other, ProcessStatus]:
        """Return how the threads of *pid* are, and the programs that it started: a call may wait for one of them."""
        found: dict[Other, ProcessStatus] = {}
        waiting = [pid]
        while waiting and len(found) < MAXIMUM_OTHERS:
            process = waiting.pop()
            for thread in _names(self._proc / str(process) / "task"):
                waiting += [int(child) for child in self._read(process, f"task/{thread}/children").split()]
                look = None if thread == str(pid) else self.look(int(thread))
                if look is not None:
                    found[Other(int(thread), self._read(int(thread), "comm").strip())] = look
        return found

    def libraries(self, pid: int) -> dict[str, Stamp | None] | None:
        """Return the shared libraries that *pid* has loaded, and its program; None for one that is gone from disk.

        None at all where their disk does not answer.
        """
        return self.disk.ask(partial(self._libraries, pid), None)

    def _libraries(self, pid: int) -> dict[str, Stamp | None]:
        found: dict[str, Stamp | None] = {}
        for line in self._read(pid, "maps").splitlines():
            path = line.partition("/")[2]
            name = "/" + path.removesuffix(" (deleted)")
            is_program = ".so" in name or "x" in line.partition(" ")[2][:4]
            if not path or not is_program or name in found or len(found) >= MAXIMUM_FILES:
                continue
            found[name] = None if path.endswith(" (deleted)") else stamp(name)
        return found

    def stamps(self, paths: Iterable[str]) -> dict[str, Stamp | None] | None:
        """Return what tells each of *paths* from another file in its place; None where their disk does not answer."""
        return self.disk.ask(partial(_stamps, tuple(paths)), None)

    def replaced(self, known: Mapping[str, Stamp | None]) -> str | None:
        """Return a library of *known* whose file on disk is another one now; None also where it cannot be told."""
        return replaced(known, self.stamps(known) or known)

    def of_files(self, known: Mapping[str, Stamp | None]) -> str:
        """Return what became of the files of the libraries *known* since they were loaded; empty where nothing did."""
        if (library := self.replaced(known)) is not None:
            return f"{library} was replaced on disk meanwhile: it is loaded anew"
        if cut := self.disk.ask(partial(cut_short, tuple(known)), ""):
            return f"{cut} is cut short, as by a disk that was full: install it anew"
        return self._silence

    def silence(self, known: Iterable[str]) -> str:
        """Return that the disk of one of the libraries *known* gives no answer now; empty where each does."""
        self.stamps(known)
        return self._silence

    @property
    def _silence(self) -> str:
        return SILENT if self.disk.is_silent else ""

    def shared(self, pid: int) -> tuple[str, ...] | None:
        """Return the files that *pid* has mapped together with other programs: whoever cuts one short ends it (SIGBUS).

        A device is none, nor is memory that has no name in the file system, nor what nobody writes. None where their
        disk does not answer.
        """
        return self.disk.ask(partial(self._shared, pid), None)

    def _shared(self, pid: int) -> tuple[str, ...]:
        found = []
        for line in self._read(pid, "maps").splitlines():
            permissions = line.partition(" ")[2][:4]
            path = "/" + line.partition("/")[2]
            is_named = len(path) > 1 and not path.startswith("/memfd:")
            if permissions.endswith("s") and is_named and _is_shared(path, written="w" in permissions):
                found.append(path)
        return tuple(found)

    def stands_still(self, pid: int) -> bool:
        """Return whether a thread of *pid* is in the handler of a crash, which is for one time alone.

        While it is, the signal is blocked in that thread, and no handler is set any more.
        """
        status = self._read(pid, "status")
        met = [number for number in CRASHES if not _has_signal(CAUGHT, status, number)]
        threads = [self._read(pid, f"task/{thread}/status") for thread in _names(self._proc / str(pid) / "task")]
        return any(_has_signal(BLOCKED, thread, number) for thread in threads for number in met)

    def preloaded(self) -> str:
        """Return that the linker puts other libraries into every program of the machine; empty where it does not."""
        lines = (line.partition("#")[0].replace(":", " ").split() for line in _text(self._preloads).splitlines())
        first = next((path for line in lines for path in line), "")
        where = f"{self._preloads} puts {first} into every program"
        return f"{where}, and the crash may be its own: take it out for the agent, or look at it" if first else ""

    def unasked(self, backend: str, kind: FailureKind) -> str:
        """Return why the library of *backend*, which tells a failure of *kind*, did not ask the driver; else empty.

        It may not open the device nodes that it needs, or finds no driver where the kernel has it at work.
        """
        closed = closed_nodes(backend, self._devices, self._modules)
        return closed or (driver_at_work(backend, self._modules) if kind is FailureKind.NO_DRIVER else "")

    def memory_shortage(self, scarce_bytes: float = math.inf) -> str:
        """Return that hardly any memory may be had, in the machine or under a group's limit; empty where there is.

        No more than *scarce_bytes* are hardly any.
        """
        rows = (line.split() for line in _text(self._proc / "meminfo").splitlines())
        found = {row[0]: _number(row[1]) for row in rows if len(row) > 1}
        available, total = found.get("MemAvailable:"), found.get("MemTotal:")
        if (
            available is not None
            and total is not None
            and available < min(AVAILABLE_RATIO * total, scarce_bytes / 1024)
        ):
            return f"{available} of {total} kB of memory may be had: see free -m and journalctl -k"
        for group in self._groups("memory", "memory.max", "memory.limit_in_bytes"):
            for used, limit in (("current", "max"), ("usage_in_bytes", "limit_in_bytes")):
                taken, most = (_number(_text(group / f"memory.{name}").strip()) for name in (used, limit))
                now = None if taken is None else max(0, taken - _cached(group))
                if now is not None and most is not None and most - now < _hardly(most, scarce_bytes):
                    return f"{now} of {most} bytes are taken ({group}/memory.{limit}): raise that limit"
        return ""

    def descriptor_shortage(self) -> str:
        """Return that hardly any file may be opened in the machine; empty where there is room."""
        used, _, most = (_number(word) for word in (*_text(self._proc / "sys/fs/file-nr").split(), "", "", "")[:3])
        if used is not None and most is not None and used >= TASKS_RATIO * most:
            return f"{used} of {most} files are open: raise fs.file-max"
        return ""

    def space_shortage(self, files: Iterable[str] = ()) -> str:
        """Return that a disk where libraries write, or one of *files* lies, is full; empty where each has room."""
        return self.disk.ask(partial(without_room, tuple(files)), "")

    def refusals(self) -> dict[str, int]:
        """Return how often the groups refused memory and threads so far, by the words that tell of it."""
        found: dict[str, int] = {}
        for controller, limit, file, key, words, step in REFUSALS:
            for group in self._groups(controller, limit):
                counts = group / f"{file}.local" if (group / f"{file}.local").exists() else group / file
                rows = (line.split() for line in _text(counts).splitlines())
                numbers = [number for row in rows if row[:1] == [key] and (number := _number(row[-1])) is not None]
                found.update({f"{words} ({counts}): {step}": number for number in numbers})
        return found

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

    def task_shortage(self) -> str:
        """Return that no more threads may be started, or hardly any; empty where there is room."""
        counted = _text(self._proc / "loadavg").split()
        threads = _number(counted[3].partition("/")[2]) if len(counted) > 3 else None
        limits = (_number(_text(self._proc / "sys/kernel" / name).strip()) for name in ("pid_max", "threads-max"))
        limit = min((limit for limit in limits if limit is not None), default=None)
        if threads is not None and limit is not None and threads >= TASKS_RATIO * limit:
            return (
                f"it may have been refused a thread: {threads} of {limit} are there: see kernel.pid_max and threads-max"
            )
        for group in self._groups("pids", "pids.max"):
            now, most = (_number(_text(group / name).strip()) for name in ("pids.current", "pids.max"))
            if now is not None and most is not None and now >= TASKS_RATIO * most:
                return (
                    f"it may have been refused a thread: {now} of {most} are there ({group}/pids.max): raise TasksMax"
                )
        return self._users_shortage(threads)

    def _users_shortage(self, threads: int | None) -> str:
        """Return that this process's user may start no more threads, of which there are *threads* of all users.

        Root has no such limit (getrlimit(2), RLIMIT_NPROC).
        """
        user = _user(self._read("self", "status"))
        soft = next(iter(NPROC.findall(self._read("self", "limits"))), "")
        most = _number(soft)
        if user in ("", "0") or most is None or threads is None or threads < TASKS_RATIO * most:
            return ""
        texts = (self._read(pid, "status") for pid in _names(self._proc))
        own = sum(int(number) for text in texts if _user(text) == user for number in THREADS.findall(text))
        if own < TASKS_RATIO * most:
            return ""
        return f"it may have been refused a thread: its user has {own} of {most} (ulimit -u): raise LimitNPROC"

    def _full_group(self, pid: int) -> str:
        """Return which file tells that the group of *pid* has no memory left and kills nothing; empty where it has.

        The groups below such a one tell it too (cgroup-v1/memory.rst, oom_control).
        """
        for group in self._groups("memory", OOM_CONTROL, pid=pid)[:1]:
            if UNDER_OOM.search(_text(group / OOM_CONTROL)):
                return str(group / OOM_CONTROL)
        return ""

    def _groups(self, controller: str, *limits: str, pid: int | str = "self") -> tuple[Path, ...]:
        """Return the folders of the groups that limit *pid*, by default this process and its readers; inner ones first.

        One of the files *limits* is in each. A container may be shown its own group as the top.
        """
        for line in self._read(pid, "cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers == "" or controller in controllers.split(","):
                top = self._cgroups / controllers
                inner = top / path.lstrip("/")
                if any((inner / name).exists() for name in limits):
                    return (inner, *(group for group in inner.parents if top in group.parents))
                if not inner.exists() and any((top / name).exists() for name in limits):
                    return (top,)
        return ()

    def _ran_and_waited(self, pid: int) -> tuple[float | None, float | None]:
        fields = self._read(pid, "schedstat").split()
        ran, waited = (_number(fields[0]), _number(fields[1])) if len(fields) == 3 else (None, None)
        return None if ran is None else ran / 1e9, None if waited is None else waited / 1e9

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

    def _functions(self, pid: int) -> list[str]:
        """Return the kernel functions that *pid* is in, the innermost first, and that alone without its stack."""
        stack = self._read(pid, "stack").splitlines()
        if stack:
            return [frame.rpartition("] ")[2].partition("+")[0] for frame in stack]
        function = self._read(pid, "wchan").strip("\0 \n")
        return ["" if function == "0" else function]

    def _read(self, pid: int | str, name: str) -> str:
        return _text(self._proc / str(pid) / name)


def disturbance(before: ProcessStatus | None, after: ProcessStatus | None, seconds: float) -> str:
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
    if after.state != "R" and (full := after.full_group or before.full_group):
        return (
            f"its cgroup is full, and nothing in it is killed for that ({full}, under_oom 1): raise "
            "memory.limit_in_bytes, end what takes the memory, or write 0 into memory.oom_control"
        )
    if after.state in WAITING and (wait := _wait_of(after)):
        return f"it waits in {wait}; look at disks, network file systems and memory"
    faults = after.major_faults - before.major_faults
    if faults > SWAPPED_FAULTS_PER_SECOND * max(seconds, 1.0):
        return f"it was swapped out: {faults} pages came back from disk in {seconds:.1f} s; look at memory and swap"
    if before.waited_seconds is not None and after.waited_seconds is not None:
        waited = after.waited_seconds - before.waited_seconds
        if waited > STARVED_RATIO * max(seconds, 1.0):
            return f"host overloaded: it waited {waited:.1f} of {seconds:.1f} s for a processor; look at its load"
    return unscheduled(before, after, seconds)


def unscheduled(before: ProcessStatus, after: ProcessStatus, seconds: float) -> str:
    """Return that a process could run at both looks and never did between them; empty where that is not shown."""
    could = before is not after and before.state == after.state == "R" and before.ran_seconds is not None
    if could and before.ran_seconds == after.ran_seconds and seconds >= UNSCHEDULED_SECONDS:
        return f"host overloaded: it had no processor for {seconds:.1f} s; look for real-time tasks and at its load"
    return ""


def disturbed(before: Mapping[Other, ProcessStatus], after: Mapping[Other, ProcessStatus], seconds: float) -> str:
    """Return which of the threads and programs of a process was kept from running between two looks, and by what."""
    for other, look in after.items():
        if cause := disturbance(before.get(other, look), look, seconds):
            return f"{other.name} (process {other.pid}), which it may wait for: {cause}"
    return ""


def replaced(known: Mapping[str, Stamp | None], present: Mapping[str, Stamp | None]) -> str | None:
    """Return the first library of *known* whose file on disk is another one at *present*, or None."""
    return next((path for path, seen in known.items() if seen is None or present[path] != seen), None)


def _stamps(paths: Iterable[str]) -> dict[str, Stamp | None]:
    return {path: stamp(path) for path in paths}


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


def _cached(group: Path) -> int:
    """Return how many bytes of a *group* are pages of files: they fill any limit in time, and are given back at once.

    Version 2 of cgroups counts groups below it in each number, version 1 in those that begin with ``total_``.
    """
    rows = (line.split() for line in _text(group / "memory.stat").splitlines())
    found = {row[0]: _number(row[1]) or 0 for row in rows if len(row) > 1}
    return sum(found.get(f"total_{name}", found.get(name, 0)) for name in FILE_PAGES)


def _wait_of(look: ProcessStatus) -> str:
    """Return the function that a process waits in and what that means; empty where it may be the driver's.

    A driver calls no file system: where one is in the stack, what waits is a page, a file or the name of one.
    """
    for depth, name in enumerate((look.function, *look.callers)):
        bare = name.lstrip("_")  # versions of Linux differ in them
        for row in _waits():
            if bare.startswith(row.prefix.lstrip("_")) and (depth == 0 or row.frame is _Frame.ANY):
                return f"{name}: {row.meaning}" if depth == 0 else f"{look.function}, called by {name}: {row.meaning}"
    return ""


@lru_cache(maxsize=1)
def _waits() -> tuple[_Wait, ...]:
    return load_table("kernel_waits.csv", _Wait)


def _has_signal(mask: re.Pattern[str], status: str, number: int) -> bool:
    """Return whether the *mask* of signals in a process's *status* has the bit of *number*."""
    found = mask.search(status)
    return found is not None and bool(int(found.group(1), 16) >> (number - 1) & 1)


def _hardly(total_bytes: int, scarce_bytes: float) -> float:
    """Return how much of *total_bytes* is hardly any memory, and no more than *scarce_bytes*."""
    return min(AVAILABLE_RATIO * total_bytes, scarce_bytes)


def _user(status: str) -> str:
    """Return the number of the user whose process has this *status*; empty where it is not told."""
    return next(iter(USER.findall(status)), "")


def _names(folder: Path) -> list[str]:
    """Return the numbers below *folder*; none where it is gone."""
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208 (names are what is wanted)
    except OSError:
        return []


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
