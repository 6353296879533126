"""A driver's library that waits for another program: the driver is not at fault."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from fakes.gpu_node import GpuNode
from fakes.privileges import needs_root
from fakes.waiting_library import library

UNIT = ("setpriv", "--bounding-set=-all,+syslog", "--inh-caps=-all")
TRACED = ("setpriv", "--bounding-set=-all,+syslog,+sys_ptrace", "--inh-caps=-all")


@contextmanager
def silent(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[str]:
    """Keep a socket whose program reads nothing, as of a log or a daemon that was stopped."""
    with socket.socket(socket.AF_UNIX, kind) as program:
        program.bind(str(path))
        if kind is socket.SOCK_STREAM:
            program.listen(100)
        yield str(path)


@contextmanager
def absent(path: Path) -> Iterator[str]:
    """Keep the name of a daemon that does not run."""
    yield str(path)


@contextmanager
def locked(path: Path) -> Iterator[str]:
    """Hold the lock of a file."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield str(path)


@contextmanager
def semaphore(_path: Path) -> Iterator[str]:
    """Hold a semaphore of System V."""
    system = ctypes.CDLL(None, use_errno=True)
    key = 0x6E760000 | (os.getpid() & 0xFFFF)
    number = system.semget(key, 1, 0o1666)
    assert number >= 0, os.strerror(ctypes.get_errno())
    try:
        yield str(key)
    finally:
        system.semctl(number, 0, 0)  # IPC_RMID


@contextmanager
def held_for_a_while(path: Path, seconds: float = 1.7) -> Iterator[str]:
    """Hold the lock of *path*, and give it free *seconds* after somebody began to wait for it, again and again."""
    path.write_text("")
    stop = threading.Event()
    with path.open("r+") as file:
        waits = f":{os.fstat(file.fileno()).st_ino} "

        def hold() -> None:
            while not stop.is_set():
                fcntl.flock(file, fcntl.LOCK_EX)
                while not stop.wait(0.02):
                    if any("->" in line and waits in line for line in Path("/proc/locks").read_text().splitlines()):
                        break
                stop.wait(seconds)
                fcntl.flock(file, fcntl.LOCK_UN)
                stop.wait(0.3)

        with running(stop, hold):
            yield str(path)


@contextmanager
def starved(path: Path, seconds: float = 0.95) -> Iterator[str]:
    """Keep each reader that begins its call from its only processor for *seconds*."""
    stop = threading.Event()
    busy = f"import os, time\nos.sched_setaffinity(0, {{0}})\nend = time.monotonic() + {seconds}\n"

    def starve() -> None:
        seen: set[Path] = set()
        while not stop.wait(0.01):
            for began in set(path.parent.glob(f"{path.name}.*")) - seen:
                seen.add(began)
                reader, every = int(began.suffix[1:]), os.sched_getaffinity(0)
                with (
                    contextlib.suppress(ProcessLookupError),
                    subprocess.Popen([sys.executable, "-c", busy + "while time.monotonic() < end: pass"]),
                ):
                    os.sched_setaffinity(reader, {0})
                    os.sched_setscheduler(reader, os.SCHED_IDLE, os.sched_param(0))
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(reader, every)
                    os.sched_setscheduler(reader, os.SCHED_OTHER, os.sched_param(0))

    with running(stop, starve):
        yield str(path)


@contextmanager
def running(stop: threading.Event, work: Callable[[], None]) -> Iterator[None]:
    """Run *work* in a thread until *stop* is set."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


Happens = Callable[[Path], AbstractContextManager[str]]
CASES: dict[str, tuple[Happens, tuple[str, ...], float]] = {
    "poll": (silent, (), 1.0),
    "hidden-lock": (locked, UNIT, 1.0),
    "log": (partial(silent, kind=socket.SOCK_DGRAM), (), 1.0),
    "asks": (silent, (), 1.0),
    "lock": (locked, UNIT, 1.0),
    "epoll": (silent, TRACED, 1.0),
    "helper-asks": (silent, (), 1.0),
    "tries": (absent, (), 1.0),
    "semaphore": (semaphore, (), 1.0),
    "lock-then-work": (held_for_a_while, (), 2.0),
    "work": (starved, (), 2.0),
}


@needs_root
def test_a_library_that_waits_for_another_program_is_no_fault_of_its_driver(
    tmp_path: Path, campaign: Callable[[int], int]
) -> None:
    """Not even where the kernel shows nothing of the reader, or where the wait is over before the deadline.

    Before, the second such call was a hang, hard.
    """
    with library(tmp_path) as built:
        for how in list(CASES)[: campaign(len(CASES))]:
            happens, within, deadline_seconds = CASES[how]
            directory = tmp_path / how
            directory.mkdir()
            trigger = directory / "trigger"
            with happens(directory / "other") as other:
                environment = {"NODEVET_FAKE_NVML_LOG": str(trigger), "FAKE_WAIT": how, "FAKE_OTHER": other}
                node = GpuNode(
                    directory, built, deadline_seconds=deadline_seconds, environment=environment, within=within
                )
                with node:
                    node.wait_for_verdict("ok", 30.0)
                    trigger.touch()
                    until = time.monotonic() + 14.0
                    seen = False
                    while time.monotonic() < until:
                        status = node.status()
                        failed = [entry["message"] for entry in status["findings"] if entry["outcome"] == "fail"]
                        assert not failed, (how, failed)
                        seen = seen or status["verdict"] == "unknown"
                        time.sleep(0.5)
                    assert seen, how
