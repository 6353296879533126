"""The system call of a waiting process tells a file or another program from a driver: real processes, real kernel."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes.ended import ended

import nodevet.checks.reference
from nodevet.agent.readers import system_call
from nodevet.agent.readers.disk import Disk
from nodevet.agent.readers.system_call import waits_elsewhere
from nodevet.agent.readers.witness import Surroundings
from nodevet.checks.core.model import Failure, FailureKind
from nodevet.checks.core.tables import read_table
from nodevet.checks.system.procfs import ChildRecord, describe, is_alive, start_ticks

TABLE = Path(next(iter(nodevet.checks.reference.__path__))) / "file_calls.csv"
WAITING_PROGRAM = """
import ctypes, fcntl, os, select, socket, sys, time
folder = os.getcwd()
def held():
    file = open("lock", "w")
    if not os.fork():
        other = open("flock", "w")
        fcntl.lockf(file, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)
        os.close(ready[1])
        time.sleep(60)
    os.close(ready[1]); os.read(ready[0], 1)
    return file
ready = os.pipe()
one, other = socket.socketpair()
{}
"""
ELSEWHERE = {
    "a lock of a file": ("held(); fcntl.flock(open('flock', 'w'), fcntl.LOCK_EX)", "flock of the file {}/flock"),
    "a lock of a part of a file": ("fcntl.lockf(held(), fcntl.LOCK_EX)", "fcntl of the file {}/lock"),
    "a file that another program opens later": ("os.open(folder + '/fifo', os.O_RDONLY)", "openat of the file {}/fifo"),
    "a path in the working folder": ("os.open('fifo', os.O_RDONLY)", "openat of the file {}/fifo"),
    "a path in an open folder": (
        "os.chdir('/'); os.open('fifo', os.O_RDONLY, dir_fd=os.open(folder, os.O_RDONLY))",
        "openat of the file {}/fifo",
    ),
    "a pipe": ("os.read(0, 1)", "read of a pipe whose program does not answer"),
    "an answer over a socket": ("one.recv(1)", "recvfrom of a socket whose program does not answer"),
    "a full socket": ("while True: one.send(b'x' * 4096)", "sendto of a socket whose program does not answer"),
    "a caller": (
        "s = socket.socket(socket.AF_UNIX); s.bind(folder + '/s'); s.listen(); s.accept()",
        "accept4 of a socket whose program does not answer",
    ),
}
MAY_BE_THE_DRIVER = {
    "a device": "os.read(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY), 1)",
    "a descriptor without a name": "os.read(os.eventfd(0), 8)",
    "a sleep": "time.sleep(60)",
    "a poll": "select.select([ready[0]], [], [])",
    "another thread": "ctypes.CDLL(None).pause()",
    "a pipe of its own": "os.read(ready[0], 1)",
    "a pipe of its child": "os.fork() or time.sleep(60); os.close(ready[1]); os.read(ready[0], 1)",
    "a busy loop": "while True: pass",
}


@contextmanager
def waiting(folder: Path, code: str) -> Iterator[Path]:
    """Run a program that waits in *code*, and give its folder of /proc."""
    os.mkfifo(folder / "fifo")
    command = (sys.executable, "-c", WAITING_PROGRAM.format(code))
    with ended(subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, start_new_session=True)) as program:
        try:
            yield Path(f"/proc/{program.pid}")
        finally:
            os.killpg(program.pid, 9)


def shown_after(process: Path, expected: str) -> str | None:
    """Return what *process* waits for once that is *expected*, or what it is after some seconds."""
    found = None
    for _ in range(100):
        time.sleep(0.1)
        found = waits_elsewhere(process, Disk())
        if found is not None and expected and found.startswith(expected):
            return found
    return found


def thread_of(process: Path) -> Path:
    """Return the folder of the first thread that *process* starts."""
    for _ in range(100):
        time.sleep(0.1)
        for thread in (process / "task").iterdir():
            if thread.name != process.name:
                return thread
    raise AssertionError("it started no thread")


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_call_on_a_file_or_a_socket_waits_for_a_disk_or_a_program(tmp_path: Path, name: str) -> None:
    """It is named with the next step."""
    code, said = ELSEWHERE[name]
    with waiting(tmp_path, code) as process:
        found = shown_after(process, said.format(tmp_path))
    assert found is not None
    assert found.startswith(said.format(tmp_path))
    assert "; check " in found


@pytest.mark.parametrize("name", MAY_BE_THE_DRIVER)
def test_any_other_call_may_wait_for_the_driver(tmp_path: Path, name: str) -> None:
    """A driver that hangs must be found: its device nodes, its files and what has no name excuse nothing."""
    with waiting(tmp_path, MAY_BE_THE_DRIVER[name]) as process:
        time.sleep(1.0)
        look = Surroundings().look(int(process.name))
        assert waits_elsewhere(process, Disk()) == ""
    assert look is not None
    assert (look.elsewhere, look.hidden) == ("", False)


ENDED_FIRST_THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_lives_as_long_as_one_of_its_threads(tmp_path: Path) -> None:
    """The kernel shows it as a zombie once its first thread has ended, as after SIGKILL with a thread in state D."""
    with ended(subprocess.Popen((sys.executable, "-c", ENDED_FIRST_THREAD), start_new_session=True)) as program:
        record = ChildRecord("nvidia", program.pid, start_ticks(program.pid) or 0, "this boot")
        try:
            for _ in range(100):
                time.sleep(0.1)
                if Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    break
            look = Surroundings().look(program.pid)
            assert is_alive(record, record.boot_id)
            assert describe(program.pid).startswith("its thread ")
        finally:
            os.killpg(program.pid, 9)
        program.wait()
        assert not is_alive(record, record.boot_id)
    assert look is not None
    assert look.state == "S"


def test_a_failure_whose_detail_is_no_text_can_be_shown() -> None:
    """A name of a file is any bytes: half of a surrogate pair cost every page and record."""
    failure = Failure(FailureKind.READER, os.fsdecode(b"read of /caf\xe9, gr\xc3\xbcn"))
    assert failure.detail == "read of /caf\\udce9, grün"


def test_a_thread_that_rests_in_a_read_excuses_nothing(tmp_path: Path) -> None:
    """A library's thread waits for work there: else no hang of its driver would ever count."""
    code = "import threading; threading.Thread(target=os.read, args=(0, 1)).start(); time.sleep(60)"
    with waiting(tmp_path, code) as process:
        thread = thread_of(process)
        assert shown_after(thread, "read of a pipe")
        others = Surroundings().others(int(process.name))
    assert [look.elsewhere for look in others.values()] == [""]


@pytest.mark.parametrize(
    ("target", "is_elsewhere"),
    [
        ("/sys/class/drm/card0/device/gpu_busy_percent", False),
        ("/proc/driver/nvidia/version", False),
        ("/dev/nvidia3", False),
        ("/dev/kfd", False),
        ("anon_inode:dmabuf", False),
        ("/dev/shm/rocm_smi_card0", True),  # noqa: S108
        ("/var/log/amdsmi/calls", True),
        ("/device/kfd", True),
        ("socket:[77]", True),
        ("/host/sys/class/hwmon/hwmon0/temp1_input", False),
        ("/host/dev/nvidia0", False),
        ("/host/var/log/calls", True),
        ("/hostile/sys/x", True),
        ("", False),
    ],
)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_files_of_drivers_excuse_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, machine: str, is_elsewhere: bool
) -> None:
    """A read of a driver's own file may hang in the driver; on a machine that no table has, nothing is excused."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    system_call._calls.cache_clear()
    number = {"x86_64": 0, "aarch64": 63, "riscv64": 63}[machine]
    (tmp_path / "fd").mkdir()
    if target:
        (tmp_path / "fd" / "7").symlink_to(target)
    (tmp_path / "syscall").write_text(f"{number} 0x7 0x7ffd 0x20 0x0 0x0 0x0 0x7ffc 0x7ffb\n")
    try:
        found = waits_elsewhere(tmp_path, Disk(), root="/host/")
    finally:
        system_call._calls.cache_clear()
    assert bool(found) is (is_elsewhere and machine != "riscv64")


@pytest.mark.parametrize(
    "text", ["running\n", "-1 0x7ffd 0x7ffc\n", "0\n", "999 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8\n", "x y\n"]
)
def test_a_process_in_no_known_call_may_wait_for_the_driver(tmp_path: Path, text: str) -> None:
    """A page fault (-1) is judged by the function of the kernel alone."""
    (tmp_path / "syscall").write_text(text)
    assert waits_elsewhere(tmp_path, Disk()) == ""


@pytest.mark.parametrize(
    ("target", "state", "is_elsewhere"), [("pipe:[7]", "S", True), ("pipe:[7]", "D", False), ("/f", "D", True)]
)
def test_only_a_file_is_waited_for_without_interruption(
    tmp_path: Path, target: str, state: str, is_elsewhere: bool
) -> None:
    """A process that a freezer holds in a read of a pipe waits for no program: what it holds is another matter."""
    (tmp_path / "fd").mkdir()
    (tmp_path / "fd" / "7").symlink_to(target)
    (tmp_path / "syscall").write_text(f"{0 if os.uname().machine == 'x86_64' else 63} 0x7 0x0 0x1 0x0 0x0 0x0 0x0 0x0")
    assert bool(waits_elsewhere(tmp_path, Disk(), state=state)) is is_elsewhere


def test_a_call_that_the_kernel_does_not_show_is_not_known(tmp_path: Path) -> None:
    """None, which is not the same as a call that waits for no file."""
    assert waits_elsewhere(tmp_path, Disk()) is None


def test_a_path_that_cannot_be_read_excuses_nothing(tmp_path: Path) -> None:
    """It may be the device node of the driver."""
    (tmp_path / "syscall").write_text("257 0xffffff9c 0x7ffd 0x0 0x0 0x0 0x0 0x7ffc 0x7ffb\n")
    assert waits_elsewhere(tmp_path, Disk()) == ""


def test_numbers_of_system_calls_are_those_of_the_kernels_headers() -> None:
    """Each row has the number of Linux for each machine; only old calls are missing on arm64."""
    rows = {row.name: row for row in read_table(TABLE, system_call._FileCall)}
    generic = _numbers(Path("/usr/include/asm-generic/unistd.h"))
    assert {row.name for row in rows.values() if row.aarch64 not in (None, generic.get(row.name))} <= {"newfstatat"}
    assert rows["newfstatat"].aarch64 == generic["fstatat"]
    assert not {name for name in rows.keys() & generic.keys() if rows[name].aarch64 is None}
    for header in Path("/usr/include").glob("*/asm/unistd_64.h"):
        own = _numbers(header)
        assert {row.name for row in rows.values() if row.x86_64 != own.get(row.name)} == set()
    numbers = [(machine, getattr(row, machine)) for row in rows.values() for machine in ("x86_64", "aarch64")]
    known = [entry for entry in numbers if entry[1] is not None]
    assert len(set(known)) == len(known)


def _numbers(header: Path) -> dict[str, int]:
    found = re.findall(r"^#define __NR(?:3264)?_(\w+) (\d+)$", header.read_text(), re.MULTILINE)
    return {name: int(number) for name, number in itertools.chain(found)}
