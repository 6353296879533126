"""The system call in which a process waits: whether it leads to a driver, to a file, to another program or nowhere.

A driver is called through its device nodes in /dev, through the files of its devices in /sys and through /proc/driver.
Any other file lies on a disk or is another driver's, and a socket or pipe has another program at its end.
"""

from __future__ import annotations

import os
import platform
import re
import struct
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from nodevet.checks.backends.sound import sound_text
from nodevet.checks.reference.tables import load_table
from nodevet.checks.reference.vendors import vendors
from nodevet.checks.system.files import text_of

from .disk import Disk
from .shortages import names_of
from .socket_peers import peer_of

WAITING = "DSI"
"""States of a waiting process: FUSE waits are interruptible at first (S), Lustre waits idle (I, TASK_IDLE)."""

OF_PROGRAMS = {"socket:": "a socket", "pipe:": "a pipe"}
LONGEST_PATH_BYTES = 4096
MOST_PROCESSES = 100
MOST_DESCRIPTORS = 1024
DESCRIPTOR_BITS = 0xFFFFFFFF
WORKING_FOLDER = -100 & DESCRIPTOR_BITS
"""AT_FDCWD of fcntl.h: a path is relative to the working directory."""

POLLFD = struct.Struct("=ihh")
"""struct pollfd of poll(2): a descriptor, and the events asked for and found."""

IN_MILLISECONDS = ("poll", "epoll_wait", "epoll_pwait")
"""Calls that take their limit as a number; the others take a pointer to it."""

FD_SETS = 3
"""Arguments of select(2) with sets of descriptors, after their number."""

OF_A_PROCESS = re.compile(r"/proc/(?P<process>\d+|self|thread-self)/")
OPENED = re.compile(r"/fd/(?P<number>\d+)$")
OF_A_SOCKET = re.compile(r"socket:\[(\d+)\]")
OF_DEVICES = "/sys/"
CLASSES = {"/dev/dri/": "drm", "/dev/accel/": "accel"}
"""Folders of device nodes by the class of their devices in /sys/class."""

FLAGS = re.compile(r"^flags:\s*([0-7]+)", re.MULTILINE)
POLLED = re.compile(r"^tfd:\s*(\d+)", re.MULTILINE)
LIFELINE = 0
"""The agent holds the other end of standard input and writes nothing: no call of a library waits for it."""


class Leads(StrEnum):
    """What a wait leads to."""

    DRIVER = "driver"
    """A device node, a file or a descriptor of a driver."""

    LIBRARY = "library"
    """Nothing else: the process computes, or waits for ever for nothing."""

    INSIDE = "inside"
    """Another thread of the process, or a program that it started."""

    UNSURE = "unsure"
    """One of those, or a program of the system: a sleep between two questions, or a counter that others may hold."""

    PROGRAM = "program"
    """A program: of the system, or one that the process itself started."""

    FILE = "file"
    """A file on a disk, or of another process in /proc."""

    UNKNOWN = "unknown"
    """A sleep, a call that no table has, a page fault, or a file that is no known driver's."""

    HIDDEN = "hidden"
    """The kernel does not show the call (proc_pid_syscall(5)): that needs the permission to trace the process."""


class Wait(msgspec.Struct, frozen=True):
    """A wait of a process: what it leads to, in words with the next step, and the call with its files, ``what``."""

    leads: Leads
    words: str = ""
    what: str = ""


COMPUTES = Wait(Leads.LIBRARY)

SLOW_DISK = "check disks and network file systems, and whether one is frozen (fsfreeze)"
SILENT_PROGRAM = "check the system log and the daemons of the driver"
NO_WITNESS = "nothing proves that it waits for the driver; see its stack (/proc/PID/stack) as root"
SLEEPS = Wait(Leads.UNSURE, f"it sleeps and asks again: {NO_WITNESS}", "sleep")
"""A wait with a limit: the kernel does not show who is asked then. Another part that waits for the driver does."""

HIDDEN = Wait(
    Leads.HIDDEN,
    "the kernel does not show what it waits for, so the driver is not blamed: give the agent CAP_SYS_PTRACE, "
    "and see kernel.yama.ptrace_scope",
)


class _Takes(StrEnum):
    """What a system call waits for, and how its arguments name it."""

    DESCRIPTOR = "descriptor"
    PATH = "path"
    POLLFDS = "pollfds"
    FD_SETS = "fd_sets"
    EPOLL = "epoll"
    FUTEX = "futex"
    CHILD = "child"
    PROGRAM = "program"
    TIME = "time"
    NOTHING = "nothing"


class _Call(msgspec.Struct, frozen=True):
    """A row of reference/system_calls.csv: the numbers of a system call, and which argument names what it waits for."""

    name: str
    x86_64: int | None
    aarch64: int | None
    takes: _Takes
    argument: int
    source: str


class _Place(msgspec.Struct, frozen=True):
    """A row of reference/file_places.csv: what a wait for a file whose name begins with ``prefix`` leads to."""

    prefix: str
    leads: Leads
    source: str


def wait_of(process: Path, disk: Disk, *, state: str = "S", root: str = "/", reader: Path | None = None) -> Wait:
    """Return what *process*, a folder of /proc, waits for in *state*; COMPUTES if it does not wait.

    The files of a driver may also lie below *root*, the root of the host in a container. *reader* is the folder of the
    reader whose thread or program *process* is; by default it is the reader itself.
    """
    if state not in WAITING:
        return COMPUTES
    words = text_of(process / "syscall").split()
    if not words:
        return HIDDEN
    number, *arguments = map(_number, words)
    return _wait(_Looked(process, disk, state, root, reader or process), number, arguments)


class _Looked(msgspec.Struct, frozen=True):
    """A waiting process: its folder of /proc, the disk that answers for its memory, its state, root and reader."""

    process: Path
    disk: Disk
    state: str
    root: str
    reader: Path

    def memory(self, address: int, size_bytes: int) -> bytes | None:
        """Return up to *size_bytes* of its memory from *address* on; None if they cannot be read.

        A page of it may have to come back from a disk.
        """
        return self.disk.ask(partial(_memory_at, self.process, address, size_bytes), None)

    def link(self, descriptor: int) -> str:
        """Return the name of the file of *descriptor*; empty if there is none."""
        return link_of(self.process / "fd" / str(descriptor & DESCRIPTOR_BITS))

    @property
    def netlink(self) -> set[str]:
        """Return the sockets at whose other end is the kernel, by their names."""
        rows = (line.split() for line in text_of(self.process / "net" / "netlink").splitlines())
        return {f"socket:[{row[-1]}]" for row in rows if row}


def _wait(looked: _Looked, number: int, arguments: Sequence[int]) -> Wait:
    if number == RUNNING:
        return COMPUTES
    if number == NO_CALL:
        return Wait(Leads.UNKNOWN, f"it waits for a page of its memory: {NO_WITNESS}")
    call = _calls().get(number)
    if call is None or len(arguments) <= call.argument:
        return Wait(Leads.UNKNOWN, f"it waits in system call {number}: {NO_WITNESS}")
    match call.takes:
        case _Takes.NOTHING:
            return COMPUTES
        case _Takes.TIME:
            return SLEEPS
        case _Takes.CHILD:
            return Wait(Leads.INSIDE, what=call.name)
        case _Takes.PROGRAM:
            return _of_program(looked, call, "an object that programs share")
        case _Takes.FUTEX:
            shared = looked.disk.ask(partial(_shared_at, looked.process, arguments[call.argument]), None)
            if shared is None:
                return Wait(Leads.UNKNOWN, f"it waits for a lock in memory that cannot be read: {NO_WITNESS}")
            inside = SLEEPS if _is_timed(call, arguments) else Wait(Leads.INSIDE, what=call.name)
            return _of_lock(looked, shared) if shared else inside
        case _Takes.DESCRIPTOR | _Takes.PATH:
            targets = [_target(looked, call, arguments)]
        case _:
            polled = _polled(looked, call, arguments)
            if polled is None:
                return Wait(Leads.UNKNOWN, f"it waits in {call.name}: {NO_WITNESS}")
            targets = [looked.link(number) for number in polled]
    found = _first_of(looked, call, targets)
    if found.leads in (Leads.INSIDE, Leads.UNSURE) and _is_timed(call, arguments):
        found = SLEEPS
    kinds = (target.partition(":[")[0] for target in targets)  # a client may open a new connection for each request
    return msgspec.structs.replace(found, what=f"{call.name} {' '.join(kinds)}")


def _is_timed(call: _Call, arguments: Sequence[int]) -> bool:
    """Return whether *call* ends after a time: a number of milliseconds but -1, or a pointer but 0."""
    place = {_Takes.POLLFDS: 2, _Takes.FD_SETS: 4, _Takes.EPOLL: 3, _Takes.FUTEX: 3}.get(call.takes)
    if place is None or len(arguments) <= place:
        return False
    none = DESCRIPTOR_BITS if call.name in IN_MILLISECONDS else 0
    return arguments[place] & DESCRIPTOR_BITS != none if none else arguments[place] != 0


def _first_of(looked: _Looked, call: _Call, targets: Sequence[str]) -> Wait:
    """Return what a process waits for that waits for one of *targets*: a program, if one of them leads there."""
    waits = [_of_target(looked, call, target) for target in targets]
    for leads in (Leads.PROGRAM, Leads.DRIVER, Leads.FILE, Leads.UNKNOWN, Leads.UNSURE, Leads.INSIDE):
        if found := next((wait for wait in waits if wait.leads is leads), None):
            return found
    return SLEEPS


def _of_target(looked: _Looked, call: _Call, target: str) -> Wait:
    """Return what a *call* on *target*, the name of a file or descriptor, leads to."""
    if not target:
        return Wait(Leads.UNKNOWN, f"it waits in {call.name} of a file that is not known: {NO_WITNESS}")
    for prefix, kind in OF_PROGRAMS.items():
        if target.startswith(prefix):
            if kind == "a socket" and target in looked.netlink:
                return Wait(Leads.UNKNOWN, f"it waits in {call.name} of a socket of the kernel: {NO_WITNESS}")
            is_inside = target == link_of(looked.reader / "fd" / str(LIFELINE)) or _is_inside(looked.reader, target)
            return Wait(Leads.INSIDE) if is_inside else _of_program(looked, call, kind)
    inner = "/" + target.removeprefix(looked.root).lstrip("/") if target.startswith("/") else target
    named = f"it waits in {call.name} of the file {sound_text(target)}"
    if of_process := OF_A_PROCESS.match(inner):
        if of_process["process"] in ("self", "thread-self", looked.process.name, looked.reader.name):
            opened = OPENED.search(inner)
            return _of_target(looked, call, looked.link(int(opened["number"]))) if opened else Wait(Leads.INSIDE)
        return Wait(Leads.FILE, f"{named}; check whether process {of_process['process']} can be ended")
    leads = next((row.leads for row in _places() if inner.startswith(row.prefix)), Leads.FILE)
    if leads is Leads.UNKNOWN and inner.startswith(OF_DEVICES) and _driver_of(target) in _modules():
        return Wait(Leads.DRIVER)
    if leads is Leads.DRIVER and (driver := _driver_of_node(looked.root, inner)) and driver not in _modules():
        leads = Leads.UNKNOWN
    match leads:
        case Leads.FILE:
            return Wait(leads, f"{named}; {SLOW_DISK}")
        case Leads.PROGRAM:
            return _of_program(looked, call, sound_text(target))
        case Leads.UNKNOWN | Leads.UNSURE:
            return Wait(leads, f"{named}: {NO_WITNESS}")
        case _:
            return Wait(leads)


def _of_program(looked: _Looked, call: _Call, kind: str) -> Wait:
    """Return the wait for a program. It is never in state D: the kernel holds a process that is."""
    if looked.state == "D":
        return Wait(Leads.UNKNOWN, f"it waits in {call.name} of {kind}: {NO_WITNESS}")
    return Wait(Leads.PROGRAM, f"it waits in {call.name} of {kind} whose program does not answer; {SILENT_PROGRAM}")


def _of_lock(looked: _Looked, shared: str) -> Wait:
    """Return the wait for a lock in *shared*, a file that is mapped by several programs."""
    words = f"it shares {sound_text(shared)} with other programs, one of which may hold a lock on it; check them"
    return Wait(Leads.PROGRAM if looked.state != "D" else Leads.UNKNOWN, words)


def _driver_of(path: str) -> str:
    """Return the driver of the device whose file in /sys is *path*; empty if none is known.

    The links of a device are the kernel's own: reading them calls no driver.
    """
    folder = Path(os.path.realpath(path)).parent
    while folder.name:
        if driver := link_of(folder / "driver"):
            return os.path.basename(driver)  # noqa: PTH119 (the text alone)
        folder = folder.parent
    return ""


def _driver_of_node(root: str, node: str) -> str:
    """Return the driver of the device *node* of a class of which other drivers have nodes too; empty if not known.

    The screen of a management controller (ast, mgag200) is a card of the same class as a GPU.
    """
    for prefix, of_class in CLASSES.items():
        if node.startswith(prefix):
            device = Path(root, "sys/class", of_class, node.removeprefix(prefix), "device")
            return os.path.basename(link_of(device / "driver"))  # noqa: PTH119 (the text alone)
    return ""


def _is_inside(reader: Path, target: str) -> bool:
    """Return whether *reader* or a program that it started holds the other end of *target*: its library works there.

    *target* is a pipe, of which one end is read and the other one written, or a socket with a peer.
    """
    peer = ""
    if of_socket := OF_A_SOCKET.match(target):
        inode = peer_of(int(of_socket.group(1)))
        if inode is None:
            return False
        peer = f"socket:[{inode}]"
    waiting, modes = [reader], set[int]()
    for folder in waiting:
        with suppress(OSError):
            held = {entry.name: link_of(entry) for entry in (folder / "fd").iterdir()}
            if peer and peer in held.values():
                return True
            modes |= {_mode(folder, number) for number, link in held.items() if link == target and not peer}
        if len(modes) > 1 or len(waiting) > MOST_PROCESSES:
            return True
        for thread in names_of(folder / "task"):
            waiting += [folder.parent / child for child in text_of(folder / "task" / thread / "children").split()]
    return False


def _mode(process: Path, descriptor: str) -> int:
    """Return whether *descriptor* of *process* is open to read, to write or for both (open(2), O_ACCMODE)."""
    flags = FLAGS.search(text_of(process / "fdinfo" / descriptor))
    return int(flags.group(1), 8) & os.O_ACCMODE if flags else -1


def _target(looked: _Looked, call: _Call, arguments: Sequence[int]) -> str:
    """Return the name of the file of *call*; empty if it is not known."""
    if call.takes is _Takes.DESCRIPTOR:
        return looked.link(arguments[call.argument])
    found = looked.memory(arguments[call.argument], LONGEST_PATH_BYTES)
    if found is None:
        return ""
    path = os.fsdecode(found.partition(b"\0")[0])
    folder = arguments[call.argument - 1] & DESCRIPTOR_BITS if call.argument else WORKING_FOLDER
    start = link_of(looked.process / "cwd") if folder == WORKING_FOLDER else looked.link(folder)
    return os.path.normpath(os.path.join(start, path))  # noqa: PTH118 (a path of another process)


def _polled(looked: _Looked, call: _Call, arguments: Sequence[int]) -> list[int] | None:
    """Return the descriptors of which *call* waits for one; None if they are not known."""
    first = arguments[call.argument]
    if call.takes is _Takes.EPOLL:
        known = text_of(looked.process / "fdinfo" / str(first & DESCRIPTOR_BITS))
        return [int(number) for number in POLLED.findall(known)] if known else None
    if call.takes is _Takes.POLLFDS:
        count = min(arguments[call.argument + 1], MOST_DESCRIPTORS)
        found = looked.memory(first, count * POLLFD.size) if count else b""
        if found is None or len(found) < count * POLLFD.size:
            return None
        return [number for number, _, _ in POLLFD.iter_unpack(found) if number >= 0]
    count, sets = min(first, MOST_DESCRIPTORS), arguments[call.argument + 1 : call.argument + 1 + FD_SETS]
    wanted = set[int]()
    for address in filter(None, sets):
        found = looked.memory(address, -(-count // 8))
        if found is None or len(found) * 8 < count:
            return None
        wanted |= {number for number in range(count) if found[number // 8] >> number % 8 & 1}
    return sorted(wanted)


def _memory_at(process: Path, address: int, size_bytes: int) -> bytes | None:
    """Return up to *size_bytes* of the memory of *process* from *address* on; None if it cannot be read."""
    try:
        with (process / "mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(size_bytes)
    except (OSError, ValueError, OverflowError):
        return None


def _shared_at(process: Path, address: int) -> str:
    """Return the file of the memory at *address* of *process* if other programs may share it; empty if not."""
    for line in text_of(process / "maps").splitlines():
        first, _, last = line.partition(" ")[0].partition("-")
        if int(first, 16) <= address < int(last, 16):
            permissions, path = line.partition(" ")[2][:4], line.partition("/")[2]
            return "/" + path if permissions.endswith("s") and path and not path.startswith("dev/zero") else ""
    return ""


def link_of(path: Path) -> str:
    """Return the target of the link *path*; empty if it is gone or may not be read."""
    try:
        return os.readlink(path)  # noqa: PTH115 (the text alone)
    except OSError:
        return ""


RUNNING, NO_CALL, NO_NUMBER = -2, -1, -3
"""What the kernel shows in place of a number: ``running``, and -1 in a page fault or at the end of a process."""


def _number(word: str) -> int:
    if word == "running":
        return RUNNING
    try:
        return int(word, 0)
    except ValueError:
        return NO_NUMBER


@lru_cache(maxsize=1)
def _calls() -> dict[int, _Call]:
    """Return the calls of this machine by number; none on a machine that the table does not have."""
    rows = load_table("system_calls.csv", _Call)
    numbers = ((getattr(row, platform.machine(), None), row) for row in rows)
    return {number: row for number, row in numbers if number is not None}


@lru_cache(maxsize=1)
def _modules() -> frozenset[str]:
    """Return the drivers of accelerators."""
    return frozenset(vendor.kernel_module for vendor in vendors() if vendor.kernel_module)


@lru_cache(maxsize=1)
def _places() -> tuple[_Place, ...]:
    """Return the rows, the longest prefix first."""
    return tuple(sorted(load_table("file_places.csv", _Place), key=lambda row: -len(row.prefix)))
