"""Shortages of a node: memory, threads, descriptors and disk space that the kernel may refuse to a library."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from nodevet.checks.reference.limits import from_table
from nodevet.checks.system.files import text_of

from .disk import Disk
from .room import without_room

OOM_CONTROL = "memory.oom_control"
NO_OVERCOMMIT = "2"
COMMITTED_RATIO = from_table("reader.want.committed").value
"""With strict overcommit, memory may have been refused once this share of the commit limit is used."""

AVAILABLE_RATIO = from_table("reader.want.available").value
"""Below this share of available memory, some may have been refused."""

FILE_PAGES = ("active_file", "inactive_file")
"""Pages that the kernel reclaims before it refuses memory (cgroup-v2.rst, memory.stat)."""

TASKS_RATIO = from_table("reader.want.used").value
"""Above this share of the limit of threads, a thread may have been refused."""

NPROC = re.compile(r"^Max processes +(\d+)", re.MULTILINE)
THREADS = re.compile(r"^Threads:\s*(\d+)", re.MULTILINE)
USER = re.compile(r"^Uid:\s*(\d+)", re.MULTILINE)

NO_MEMORY = "no memory was left since the last round: {} times"
REFUSALS = (
    ("pids", "pids.max", "pids.events", "max", "threads were refused since the last round: {}", "raise TasksMax"),
    ("memory", "memory.max", "memory.events", "oom", NO_MEMORY, "raise MemoryMax"),
    ("memory", "memory.limit_in_bytes", OOM_CONTROL, "oom_kill", NO_MEMORY, "raise its limit"),
)
"""Counters of cgroups: controller, limit, file and key, message and remedy (cgroup-v2.rst, and version 1).

A file whose name ends with ``local`` counts without the child groups; if it is missing, the other file counts.
"""


class Shortages:
    """Reads what is scarce from *proc* and the agent's *cgroups*; *disk* answers for files of libraries."""

    def __init__(self, proc: Path, cgroups: Path, disk: Disk) -> None:
        """Keep nothing open."""
        self._proc = proc
        self._cgroups = cgroups
        self._disk = disk

    def memory_shortage(self, scarce_bytes: float = math.inf) -> str:
        """Return that memory is scarce, in the machine or under a cgroup's limit; empty if it is not.

        The limit of scarcity is at most *scarce_bytes*.
        """
        rows = (line.split() for line in text_of(self._proc / "meminfo").splitlines())
        found = {row[0]: number_of(row[1]) for row in rows if len(row) > 1}
        available, total = found.get("MemAvailable:"), found.get("MemTotal:")
        if (
            available is not None
            and total is not None
            and available < min(AVAILABLE_RATIO * total, scarce_bytes / 1024)
        ):
            return f"{available} of {total} kB of memory are available: see free -m and journalctl -k"
        for group in limiting_groups(self._proc, self._cgroups, "memory", "memory.max", "memory.limit_in_bytes"):
            for used, limit in (("current", "max"), ("usage_in_bytes", "limit_in_bytes")):
                taken, most = (number_of(text_of(group / f"memory.{name}").strip()) for name in (used, limit))
                now = None if taken is None else max(0, taken - _cached(group))
                if now is not None and most is not None and most - now < _hardly(most, scarce_bytes):
                    return f"{now} of {most} bytes are taken ({group}/memory.{limit}): raise that limit"
        return ""

    def descriptor_shortage(self) -> str:
        """Return that file descriptors are scarce in the machine; empty if they are not."""
        used, _, most = (number_of(word) for word in (*text_of(self._proc / "sys/fs/file-nr").split(), "", "", "")[:3])
        if used is not None and most is not None and used >= TASKS_RATIO * most:
            return f"{used} of {most} files are open: raise fs.file-max"
        return ""

    def space_shortage(self, files: Iterable[str] = ()) -> str:
        """Return that a disk that libraries write to, or of one of *files*, is full; empty if none is."""
        return self._disk.ask(partial(without_room, tuple(files)), "")

    def refusals(self) -> dict[str, int]:
        """Return how often the cgroups refused memory and threads so far, by message."""
        found: dict[str, int] = {}
        for controller, limit, file, key, words, step in REFUSALS:
            for group in limiting_groups(self._proc, self._cgroups, controller, limit):
                counts = group / f"{file}.local" if (group / f"{file}.local").exists() else group / file
                rows = (line.split() for line in text_of(counts).splitlines())
                numbers = [number for row in rows if row[:1] == [key] and (number := number_of(row[-1])) is not None]
                found.update({f"{words} ({counts}): {step}": number for number in numbers})
        return found

    def commit_shortage(self) -> str:
        """Return that the commit limit (strict overcommit) is nearly used; empty if not."""
        if text_of(self._proc / "sys/vm/overcommit_memory").strip() != NO_OVERCOMMIT:
            return ""
        rows = (line.split() for line in text_of(self._proc / "meminfo").splitlines())
        found = {row[0]: number_of(row[1]) for row in rows if len(row) > 1}
        committed, limit = found.get("Committed_AS:"), found.get("CommitLimit:")
        if committed is None or limit is None or committed < COMMITTED_RATIO * limit:
            return ""
        return (
            f"it may have failed to allocate memory: {committed} of {limit} kB are committed (/proc/meminfo), and "
            "vm.overcommit_memory is 2: end the programs that reserve so much"
        )

    def task_shortage(self) -> str:
        """Return that threads are scarce, or that no more can be started; empty if not."""
        counted = text_of(self._proc / "loadavg").split()
        threads = number_of(counted[3].partition("/")[2]) if len(counted) > 3 else None
        limits = (number_of(text_of(self._proc / "sys/kernel" / name).strip()) for name in ("pid_max", "threads-max"))
        limit = min((limit for limit in limits if limit is not None), default=None)
        if threads is not None and limit is not None and threads >= TASKS_RATIO * limit:
            return f"it may have failed to start a thread: {threads} of {limit} exist (kernel.pid_max, threads-max)"
        for group in limiting_groups(self._proc, self._cgroups, "pids", "pids.max"):
            now, most = (number_of(text_of(group / name).strip()) for name in ("pids.current", "pids.max"))
            if now is not None and most is not None and now >= TASKS_RATIO * most:
                return f"it may have failed to start a thread: {now} of {most} exist ({group}/pids.max): raise TasksMax"
        return self._users_shortage(threads)

    def _users_shortage(self, threads: int | None) -> str:
        """Return that this process's user can start no more threads; *threads* is the number of all users' threads.

        Root has no such limit (getrlimit(2), RLIMIT_NPROC).
        """
        user = _user(self._read("self", "status"))
        soft = next(iter(NPROC.findall(self._read("self", "limits"))), "")
        most = number_of(soft)
        if user in ("", "0") or most is None or threads is None or threads < TASKS_RATIO * most:
            return ""
        texts = (self._read(pid, "status") for pid in names_of(self._proc))
        own = sum(int(number) for text in texts if _user(text) == user for number in THREADS.findall(text))
        if own < TASKS_RATIO * most:
            return ""
        return f"it may have failed to start a thread: its user has {own} of {most} (ulimit -u): raise LimitNPROC"

    def _read(self, pid: int | str, name: str) -> str:
        return text_of(self._proc / str(pid) / name)


def limiting_groups(
    proc: Path, cgroups: Path, controller: str, *limits: str, pid: int | str = "self"
) -> tuple[Path, ...]:
    """Return the folders of the cgroups that limit *pid* (default: this process and its readers), inner ones first.

    Each contains one of the files *limits*. A container may see its own group as the top.
    """
    for line in text_of(proc / str(pid) / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "" or controller in controllers.split(","):
            top = cgroups / controllers
            inner = top / path.lstrip("/")
            if any((inner / name).exists() for name in limits):
                return (inner, *(group for group in inner.parents if top in group.parents))
            if not inner.exists() and any((top / name).exists() for name in limits):
                return (top,)
    return ()


def _cached(group: Path) -> int:
    """Return how many bytes of a *group* are page cache: it fills any limit in time, and is reclaimed at once.

    Version 2 of cgroups includes child groups in each number, version 1 in those that begin with ``total_``.
    """
    rows = (line.split() for line in text_of(group / "memory.stat").splitlines())
    found = {row[0]: number_of(row[1]) or 0 for row in rows if len(row) > 1}
    return sum(found.get(f"total_{name}", found.get(name, 0)) for name in FILE_PAGES)


def _hardly(total_bytes: int, scarce_bytes: float) -> float:
    """Return the limit of scarcity in bytes: a share of *total_bytes*, at most *scarce_bytes*."""
    return min(AVAILABLE_RATIO * total_bytes, scarce_bytes)


def _user(status: str) -> str:
    """Return the user ID of the process with this *status*; empty if it is missing."""
    return next(iter(USER.findall(status)), "")


def number_of(text: str) -> int | None:
    """Return the number *text*; None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def names_of(folder: Path) -> list[str]:
    """Return the numeric names below *folder*; none if it is gone."""
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208 (names are what is wanted)
    except OSError:
        return []
