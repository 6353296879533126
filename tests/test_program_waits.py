"""A driver's library that waits for another program: the driver is not at fault."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fakes.privileges import needs_root
from fakes.waiting_library import library, waiting_node
from test_library_waits import never_fails

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


@contextmanager
def fifo(path: Path) -> Iterator[str]:
    """Keep a file that does not open, as one of a file server that does not answer."""
    os.mkfifo(path)
    yield str(path)


@contextmanager
def given(text: str, _path: Path) -> Iterator[str]:
    """Keep nothing: the library is told *text*."""
    yield text


@contextmanager
def stopped_for_a_while(path: Path, seconds: float = 0.4) -> Iterator[str]:
    """Stop each reader for *seconds* at the start of its call, as a tool that takes its stack or memory does."""
    stop, seen = threading.Event(), set[Path]()

    def work() -> None:
        while not stop.wait(0.005):
            for began in set(path.parent.glob(f"{path.name}.*")) - seen:
                seen.add(began)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(began.suffix[1:]), signal.SIGSTOP)
                    time.sleep(seconds)
                    os.kill(int(began.suffix[1:]), signal.SIGCONT)

    with running(stop, work):
        yield str(path)


Happens = Callable[[Path], AbstractContextManager[str]]


class Case(NamedTuple):
    """What happens elsewhere, the command that runs the agent, its deadline, and the library's other thread."""

    happens: Happens
    within: tuple[str, ...] = ()
    deadline_seconds: float = 1.0
    background: str = ""


CASES: dict[str, Case] = {
    "poll": Case(silent),
    "hidden-lock": Case(locked, UNIT),
    "log": Case(partial(silent, kind=socket.SOCK_DGRAM)),
    "asks": Case(silent, background="device"),
    "lock": Case(locked, UNIT),
    "epoll": Case(silent, TRACED),
    "client": Case(silent, background="client OTHER"),
    "helper-asks": Case(silent),
    "helper-polled": Case(silent),
    "helper-tries": Case(absent),
    "thread-tries": Case(absent),
    "tries": Case(absent),
    "trylock": Case(locked),
    "daemonized": Case(silent),
    "reopens": Case(fifo),
    "terminal": Case(silent),
    "node": Case(partial(given, "/dev/kmsg")),
    "semaphore": Case(semaphore),
    "lock-then-work": Case(held_for_a_while, deadline_seconds=2.0),
    "work": Case(starved, deadline_seconds=2.0),
    "stopped": Case(stopped_for_a_while, deadline_seconds=2.0),
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
            happens, within, deadline_seconds, background = CASES[how]
            directory = tmp_path / how
            directory.mkdir()
            with happens(directory / "other") as other:
                node, trigger = waiting_node(
                    directory,
                    built,
                    "work" if how == "stopped" else how,
                    other,
                    background=background.replace("OTHER", other),
                    deadline_seconds=deadline_seconds,
                    within=within,
                )
                with node:
                    node.wait_for_verdict("ok", 30.0)
                    trigger.touch()
                    never_fails(node, 14.0, is_ok=deadline_seconds > 1.0)
