"""Kernel data on a reader that does not answer: whether the machine, not the driver, kept it from running.

A reader that was stopped, frozen, starved of the processor or swapped out proves nothing about a driver. Nor does a
reader whose library was replaced on disk while loaded: part of its calls then go to another version.
"""

from __future__ import annotations

import re
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
from nodevet.checks.system.files import text_of
from nodevet.checks.system.procfs import living_thread

from .cut_short import cut_short
from .disk import Disk
from .kernel_modules import waits_in_module
from .mapped_files import MappedFiles, Stamp, mapped_files, replaced, stamps
from .shortages import OOM_CONTROL, Shortages, limiting_groups, names_of, number_of
from .startup_code import startup_code
from .system_call import COMPUTES, WAITING, Leads, Wait, wait_of

STARVED_RATIO = from_table("reader.starved").value
"""A reader that waited for a processor for more than this share of the time was starved."""

SWAPPED_FAULTS_PER_SECOND = from_table("reader.swapped").value
"""Major page faults per second: a loaded reader needs none."""

UNSCHEDULED_SECONDS = from_table("reader.unscheduled").value
"""A runnable reader that did not run for so long had no processor: a running one is accounted at least each second."""

SILENT = "the disk or file server of a library that it has loaded does not answer: check the file systems"

UNNOTED = "its loaded libraries are not known, because their disk did not answer in time; check the file systems"

MAXIMUM_OTHERS = 100

DUMPING = re.compile(r"^CoreDumping:\s*1", re.MULTILINE)
BLOCKED = re.compile(r"^SigBlk:\s*([0-9a-f]+)", re.MULTILINE)
CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)", re.MULTILINE)
UNDER_OOM = re.compile(r"^under_oom 1", re.MULTILINE)
TRACED = re.compile(r"^TracerPid:\s*[1-9]", re.MULTILINE)

_STATE, _MAJOR_FAULTS = 0, 9
"""Positions in /proc/PID/stat after the command's closing bracket: fields 3 and 12 of proc(5)."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """A process at one moment. ``waited_seconds`` is its time runnable without a processor, None if unknown.

    The kernel adds to it when the process runs again: an unchanged ``ran_seconds`` shows a wait in progress.
    ``function`` is the kernel function that it waits in, empty if not readable; ``callers`` are its callers, empty
    without the right to read the stack (CAP_SYS_ADMIN). ``held``: it has exited, but its tracer has not released it.
    ``dumping``: a signal ended it, and its memory is being written to a file or a program. ``traced``: another program,
    such as strace, may stop it at each of its system calls. ``wait`` is what its system call waits for.
    ``at_rest``: it waited in the same way before the call.
    """

    state: str
    frozen: bool
    major_faults: int
    waited_seconds: float | None
    function: str = ""
    callers: tuple[str, ...] = ()
    held: bool = False
    dumping: bool = False
    traced: bool = False
    ran_seconds: float | None = None
    full_group: str = ""
    wait: Wait = COMPUTES
    at_rest: bool = False


class Other(msgspec.Struct, frozen=True):
    """A thread or child process of a reader: its number in /proc, and its name."""

    pid: int
    name: str


class Rest(msgspec.Struct, frozen=True):
    """A reader between two calls: its waiting threads and programs, by process and call.

    ``ran_seconds`` and ``waited_seconds`` are its times on a processor and without one so far, None if unknown.
    """

    waits: frozenset[tuple[int, str]] = frozenset()
    ran_seconds: float | None = None
    waited_seconds: float | None = None


class _Frame(StrEnum):
    """The position in the kernel stack at which a function shows a wait."""

    INNERMOST = "innermost"
    ANY = "any"


class _Wait(msgspec.Struct, frozen=True):
    prefix: str
    frame: _Frame
    meaning: str
    source: str


class Surroundings:
    """Reads the state of processes from *proc*, and of their cgroups from *cgroups*."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        preloads: Path = Path("/etc/ld.so.preload"),
        devices: Path = Path("/dev"),
        modules: Path = Path("/sys/module"),
        disk: Disk | None = None,
        root: str = "/",
    ) -> None:
        """Read below these folders, and the file *preloads*; nothing is kept open. *root* is that of the readers.

        Files that a reader has mapped may lie on any disk: they are read through *disk*.
        """
        self.disk = disk or Disk()
        self._memory = Disk()  # a call that holds the memory map of a reader is no silent disk
        self._proc = proc
        self._cgroups = cgroups
        self._preloads = preloads
        self._devices = devices
        self._modules = modules
        self._root = root
        self.shortages = Shortages(proc, cgroups, self.disk)

    def look(self, pid: int) -> ProcessStatus | None:
        """Return the state of process *pid*, or of a living thread if the first one has ended; None if it is gone."""
        return self._living(pid, pid)

    def _living(self, pid: int, reader: int) -> ProcessStatus | None:
        """Return this for *pid*, a thread or program of *reader*, or *reader* itself."""
        found = self._look(pid, reader)
        if found is None or found.state != "Z" or found.held:
            return found
        thread = living_thread(pid, self._proc)
        return found if thread is None else self._look(thread, reader)

    def _look(self, pid: int, reader: int) -> ProcessStatus | None:
        fields = self._read(pid, "stat").rpartition(")")[2].split()
        if len(fields) <= _MAJOR_FAULTS:
            return None
        status = self._read(pid, "status")
        traced = TRACED.search(status) is not None
        ran, waited = self._ran_and_waited(pid)
        function, *callers = self._functions(pid)
        state = fields[_STATE]
        return ProcessStatus(
            state=state,
            frozen=self._is_frozen(pid),
            major_faults=number_of(fields[_MAJOR_FAULTS]) or 0,
            waited_seconds=waited,
            ran_seconds=ran,
            function=function,
            callers=tuple(callers),
            held=state == "Z" and traced,
            traced=traced,
            dumping=DUMPING.search(status) is not None,
            full_group=self._full_group(pid),
            wait=self._wait(pid, reader, state),
        )

    def others(self, pid: int, at_rest: frozenset[tuple[int, str]] = frozenset()) -> dict[Other, ProcessStatus]:
        """Return the states of the threads and child processes of *pid*: a call may wait for one of them.

        One whose wait is among those *at_rest* waits for work: only state D shows that it was given some.
        """
        found: dict[Other, ProcessStatus] = {}
        for part in self._parts(pid):
            look = self._living(part, pid)
            if look is not None and look.state != "D" and (part, look.wait.what) in at_rest:
                look = msgspec.structs.replace(look, at_rest=True)
            if look is not None:
                found[Other(part, self._read(part, "comm").strip())] = look
        return found

    def _parts(self, pid: int) -> list[int]:
        """Return the threads of *pid* but its first one, and its child processes with their threads."""
        found: list[int] = []
        waiting = [pid]
        while waiting and len(found) < MAXIMUM_OTHERS:
            process = waiting.pop()
            for thread in names_of(self._proc / str(process) / "task"):
                waiting += [int(child) for child in self._read(process, f"task/{thread}/children").split()]
                if thread != str(pid):
                    found.append(int(thread))
        return found

    def _wait(self, pid: int, reader: int, state: str = "S") -> Wait:
        folder = self._proc / str(pid)
        return wait_of(folder, self._memory, state=state, root=self._root, reader=self._proc / str(reader))

    def rest(self, pid: int) -> Rest:
        """Return how *pid* is between two calls."""
        waits = frozenset((part, self._wait(part, pid).what) for part in self._parts(pid))
        return Rest(waits, *self._ran_and_waited(pid))

    def waits_in_module(self, pid: int, module: str) -> bool:
        """Return whether *pid* waits in the kernel *module* of a driver."""
        return waits_in_module(self._proc, pid, module)

    def mapped(self, pid: int) -> MappedFiles | None:
        """Return the mapped files of *pid*; None if their disk does not answer."""
        return self.disk.ask(lambda: mapped_files(self._read(pid, "maps")), None)

    def stamps(self, paths: Iterable[str]) -> dict[str, Stamp | None] | None:
        """Return the stamp of each of *paths*; None if their disk does not answer."""
        return self.disk.ask(partial(stamps, tuple(paths)), None)

    def replaced(
        self, known: Mapping[str, Stamp | None], mapped: Mapping[str, Stamp | None] | None = None
    ) -> str | None:
        """Return a library of *known* whose file on disk was replaced; None also if that cannot be determined.

        Libraries that are still *mapped* have been looked at just now.
        """
        present = {path: seen for path, seen in (mapped or {}).items() if seen is not None}
        others = [path for path in known if path not in present]
        looked = (self.stamps(others) if others else {}) or {path: known[path] for path in others}
        return replaced(known, present | looked)

    def of_files(self, known: Mapping[str, Stamp | None]) -> str:
        """Return what happened to the files of the libraries *known* since they were loaded; empty if nothing did."""
        if (library := self.replaced(known)) is not None:
            return f"{library} was replaced on disk meanwhile: it is reloaded"
        if cut := self.disk.ask(partial(cut_short, tuple(known)), ""):
            return f"{cut} is truncated, for example by a full disk: reinstall it"
        return self._silence

    def silence(self, known: Iterable[str]) -> str:
        """Return that the disk of one of the libraries *known* does not answer now; empty if each answers."""
        self.stamps(known)
        return self._silence

    @property
    def _silence(self) -> str:
        return SILENT if self.disk.is_silent else ""

    def stands_still(self, pid: int) -> bool:
        """Return whether a thread of *pid* is in the crash handler, which runs once.

        Meanwhile the signal is blocked in that thread, and the handler is no longer installed.
        """
        status = self._read(pid, "status")
        met = [number for number in CRASHES if not _has_signal(CAUGHT, status, number)]
        threads = [self._read(pid, f"task/{thread}/status") for thread in names_of(self._proc / str(pid) / "task")]
        return any(_has_signal(BLOCKED, thread, number) for thread in threads for number in met)

    def preloaded(self) -> str:
        """Return that the linker or Python loads other code into every program; empty if neither does."""
        lines = (line.partition("#")[0].replace(":", " ").split() for line in text_of(self._preloads).splitlines())
        first = next((path for line in lines for path in line), "")
        where = f"{self._preloads} loads {first} into every program" if first else ""
        if not first and (code := self.disk.ask(startup_code, "")):  # packages may lie on any disk
            where = f"{code} runs code in every program of this Python"
        return f"{where}, which may be the cause of the crash: check it, or remove it for the agent" if where else ""

    def unasked(self, backend: str, kind: FailureKind) -> str:
        """Return why the library of *backend*, which reports a failure of *kind*, never called the driver; else empty.

        It may be unable to open its device nodes, or find no driver although the kernel has it loaded.
        """
        closed = closed_nodes(backend, self._devices, self._modules)
        return closed or (driver_at_work(backend, self._modules) if kind is FailureKind.NO_DRIVER else "")

    def _full_group(self, pid: int) -> str:
        """Return which file shows that the cgroup of *pid* is out of memory with the OOM killer off; empty if none.

        Child groups of such a group show it too (cgroup-v1/memory.rst, oom_control).
        """
        for group in limiting_groups(self._proc, self._cgroups, "memory", OOM_CONTROL, pid=pid)[:1]:
            if UNDER_OOM.search(text_of(group / OOM_CONTROL)):
                return str(group / OOM_CONTROL)
        return ""

    def _ran_and_waited(self, pid: int) -> tuple[float | None, float | None]:
        fields = self._read(pid, "schedstat").split()
        ran, waited = (number_of(fields[0]), number_of(fields[1])) if len(fields) == 3 else (None, None)
        return None if ran is None else ran / 1e9, None if waited is None else waited / 1e9

    def _is_frozen(self, pid: int) -> bool:
        """Return whether the cgroup freezer (version 1 or 2) has frozen *pid*; parent groups count."""
        for line in self._read(pid, "cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers == "" and "frozen 1" in text_of(self._cgroups / path.lstrip("/") / "cgroup.events"):
                return True
            if "freezer" in controllers.split(","):
                state = text_of(self._cgroups / "freezer" / path.lstrip("/") / "freezer.state")
                return state.strip() in ("FROZEN", "FREEZING")
        return False

    def _functions(self, pid: int) -> list[str]:
        """Return the kernel functions on the stack of *pid*, innermost first; only that one if the stack is denied."""
        stack = self._read(pid, "stack").splitlines()
        if stack:
            return [frame.rpartition("] ")[2].partition("+")[0] for frame in stack]
        function = self._read(pid, "wchan").strip("\0 \n")
        return ["" if function == "0" else function]

    def _read(self, pid: int | str, name: str) -> str:
        return text_of(self._proc / str(pid) / name)


def disturbance(before: ProcessStatus | None, after: ProcessStatus | None, seconds: float) -> str:
    """Return what kept a process from running between two observations *seconds* apart; empty if nothing did."""
    if before is None or after is None:
        return "the process is gone"
    if "T" in (before.state, after.state):
        return "it is stopped (state T): somebody sent SIGSTOP or traces it; send SIGCONT or end the tracer"
    if after.held:
        return "it has ended, and the program that traces it (see TracerPid in its status) holds it: end the tracer"
    if "t" in (before.state, after.state) or ((before.traced or after.traced) and after.state != "D"):
        return "a program traces it (see TracerPid in its status) and may stop it at each system call: end the tracer"
    if after.dumping:
        return "a signal ended it, and its core dump is being written: check the target (/proc/sys/kernel/core_pattern)"
    if before.frozen or after.frozen:
        return "it is frozen by its cgroup: thaw it (freezer.state, or cgroup.freeze)"
    if after.state != "R" and (full := after.full_group or before.full_group):
        return (
            f"its cgroup is full, and the kernel kills nothing in it ({full}, under_oom 1): raise "
            "memory.limit_in_bytes, end programs in it, or write 0 into memory.oom_control"
        )
    if after.state in WAITING and (wait := _wait_of(after)):
        return f"it waits in {wait}; check disks, network file systems and memory"
    if after.state in WAITING and after.wait.leads is Leads.FILE and not after.at_rest:
        return after.wait.words
    faults = after.major_faults - before.major_faults
    if faults > SWAPPED_FAULTS_PER_SECOND * max(seconds, 1.0):
        return f"it was swapped out: {faults} pages came back from disk in {seconds:.1f} s; check memory and swap"
    if before.waited_seconds is not None and after.waited_seconds is not None:
        waited = after.waited_seconds - before.waited_seconds
        if waited > STARVED_RATIO * max(seconds, 1.0):
            return (
                f"host overloaded: it waited {waited:.1f} of {seconds:.1f} s for a processor; check its load and the "
                "quota of the agent's unit (CPUQuota=)"
            )
    return unscheduled(before, after, seconds)


def unscheduled(before: ProcessStatus, after: ProcessStatus, seconds: float) -> str:
    """Return that a process was runnable at both observations and did not run between them; empty if not shown."""
    could = before is not after and before.state == after.state == "R" and before.ran_seconds is not None
    if could and before.ran_seconds == after.ran_seconds and seconds >= UNSCHEDULED_SECONDS:
        return f"host overloaded: it had no processor for {seconds:.1f} s; check its load and its real-time tasks"
    return ""


def disturbed(before: Mapping[Other, ProcessStatus], after: Mapping[Other, ProcessStatus], seconds: float) -> str:
    """Return which thread or child process was kept from running between two observations, and the cause."""
    for other, look in after.items():
        if cause := disturbance(before.get(other, look), look, seconds):
            return f"its part {other.name} (process {other.pid}), which it may wait for: {cause}"
    return ""


def _wait_of(look: ProcessStatus) -> str:
    """Return the function that a process waits in and its meaning; empty if the driver may be the cause.

    A driver calls no file system: if one is on the stack, the process waits for a page, a file or a file name.
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
    """Return whether the signal *mask* in a process's *status* has the bit of *number*."""
    found = mask.search(status)
    return found is not None and bool(int(found.group(1), 16) >> (number - 1) & 1)
