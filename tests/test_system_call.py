"""The system call of a waiting process tells a file or another program from a driver: real processes, real kernel."""

from __future__ import annotations

import itertools
import os
import re
import socket
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
from nodevet.agent.readers.system_call import Leads, Wait, wait_of
from nodevet.agent.readers.witness import Surroundings
from nodevet.checks.core.model import Failure, FailureKind
from nodevet.checks.core.tables import read_table
from nodevet.checks.system.procfs import ChildRecord, describe, is_alive, start_ticks

TABLE = Path(next(iter(nodevet.checks.reference.__path__))) / "system_calls.csv"
WAITING_PROGRAM = """
import ctypes, fcntl, os, select, signal, socket, sys, time
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
one = socket.socket(fileno=os.dup(int(sys.argv[1])))
{}
"""
FILES = {
    "a lock of a file": (
        "held(); fcntl.flock(open('flock', 'w'), fcntl.LOCK_EX)",
        "flock of the file {}/flock",
    ),
    "a lock of a part of a file": ("fcntl.lockf(held(), fcntl.LOCK_EX)", "fcntl of the file {}/lock"),
    "a file that another program opens later": (
        "os.open(folder + '/fifo', os.O_RDONLY)",
        "openat of the file {}/fifo",
    ),
    "a path in the working folder": ("os.open('fifo', os.O_RDONLY)", "openat of the file {}/fifo"),
    "a path in an open folder": (
        "os.chdir('/'); os.open('fifo', os.O_RDONLY, dir_fd=os.open(folder, os.O_RDONLY))",
        "openat of the file {}/fifo",
    ),
}
SHARED = (
    "import mmap; file = open(folder + '/shared', 'w+b'); file.truncate(4096); shared = mmap.mmap(file.fileno(), 4096)"
)
LOCK = (
    "ctypes.CDLL(None).syscall(202 if os.uname().machine == 'x86_64' else 98, "
    "ctypes.c_void_p(ctypes.addressof(word)), 0, 0, None)"
)
PROGRAMS = {
    "an answer over a socket": ("one.recv(1)", "recvfrom of a socket whose program does not answer"),
    "a full socket": (
        "while True: one.send(b'x' * 4096)",
        "sendto of a socket whose program does not answer",
    ),
    "a caller": (
        "s = socket.socket(socket.AF_UNIX); s.bind(folder + '/s'); s.listen(); s.accept()",
        "accept4 of a socket whose program does not answer",
    ),
    "poll": ("p = select.poll(); p.register(one, 1); p.poll()", "poll of a socket whose program"),
    "select": ("select.select([ready[0], one], [], [])", "(p?)select6? of a socket whose program"),
    "epoll": ("e = select.epoll(); e.register(one, 1); e.poll()", "epoll_wait of a socket whose program"),
    "poll of a device and a socket": (
        "p = select.poll(); p.register(os.open(folder + '/node/dev/nvidia7', os.O_RDWR), 1); p.register(one, 1); "
        "p.poll()",
        "poll of a socket whose program",
    ),
    "a terminal": ("os.read(os.openpty()[0], 1)", "read of /dev/(pts/)?ptmx whose program does not answer"),
    "a pipe to a daemon that it started": (
        "os.fork() and (os.close(ready[1]), os.dup(ready[0]), os.read(ready[0], 1)) or os.fork() and os._exit(0); "
        "os.setsid(); time.sleep(60)",
        "read of a pipe whose program does not answer",
    ),
    "a socket pair to a daemon that it started": (
        "a, b = socket.socketpair(); "
        "os.fork() and (b.close(), a.recv(1)) or os.fork() and os._exit(0); os.setsid(); time.sleep(60)",
        "recvfrom of a socket whose program does not answer",
    ),
    "a socket pair whose other end is closed": (
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); b.close(); a.recv(1)",
        "recvfrom of a socket whose program does not answer",
    ),
    "a semaphore": (
        "c = ctypes.CDLL(None); s = c.semget(0, 1, 0o1600); c.semop(s, b'\\0\\0\\xff\\xff\\0\\0', 1)",
        "sem(timed)?op of an object that programs share whose program does not answer",
    ),
    "a lock in memory of programs": (
        f"{SHARED}; word = ctypes.c_int.from_buffer(shared); {LOCK}",
        "it shares {}/shared with other programs",
    ),
}
ASKS_AGAIN = {
    "a sleep": "time.sleep(60)",
    "a poll of nothing": "select.select([], [], [], 60)",
    "a lock for a time": "import threading; threading.Semaphore(0).acquire(timeout=60)",
    "a poll of its own pipe for a time": "select.select([ready[0]], [], [], 60)",
    "an epoll of an event for a time": "e = select.epoll(); e.register(os.eventfd(0), 1); e.poll(60)",
}
UNSURE = ASKS_AGAIN | {
    "a counter that another program may hold": "os.read(os.eventfd(0), 8)",
    "poll of that and of a pipe of its own": (
        "p = select.poll(); p.register(os.eventfd(0), 1); p.register(ready[0], 1); p.poll()"
    ),
}
DEVICE = "os.open(folder + '/node/dev/nvidia7', os.O_RDWR)"
OF_A_DRIVER = {
    "a device": f"os.read({DEVICE}, 1)",
    "poll of a device": f"p = select.poll(); p.register({DEVICE}, 1); p.poll()",
    "select of a device": f"select.select([{DEVICE}], [], [])",
    "poll of a device and the kernel's word of devices": (
        f"s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15); s.bind((0, 0)); p = select.poll(); "
        f"p.register({DEVICE}, 1); p.register(s, 1); p.poll()"
    ),
    "poll of a device and its removal": (
        f"p = select.poll(); p.register({DEVICE}, 1); p.register(ctypes.CDLL(None).inotify_init(), 1); p.poll()"
    ),
    "a device that is opened again": (
        "os.mkfifo('node/dev/nvidia8'); file = os.open('node/dev/nvidia8', os.O_PATH); "
        "os.open(f'/proc/self/fd/{file}', 0)"
    ),
}
OF_THE_LIBRARY = {
    "a busy loop": "while True: pass",
    "a signal": "ctypes.CDLL(None).pause()",
}
INSIDE = {
    "a lock": "import threading; threading.Semaphore(0).acquire()",
    "a pipe of its own": "os.read(ready[0], 1)",
    "a socket pair of its own": "a, b = socket.socketpair(); a.recv(1)",
    "a full socket pair of its own": "a, b = socket.socketpair()\nwhile True: a.send(b'x' * 4096)",
    "poll of a socket pair of its own": "a, b = socket.socketpair(); select.select([a], [], [])",
    "a socket pair to its child": "a, b = socket.socketpair(); os.fork() or signal.pause(); b.close(); a.recv(1)",
    "a connection to its own thread": (
        "s = socket.socket(socket.AF_UNIX); s.bind(folder + '/s'); s.listen(); a = socket.socket(socket.AF_UNIX); "
        "a.connect(folder + '/s'); b = s.accept()[0]; a.recv(1)"
    ),
    "poll of a pipe of its own": "select.select([ready[0]], [], [])",
    "a pipe of its child": "os.fork() or signal.pause(); os.close(ready[1]); os.read(ready[0], 1)",
    "a child": "import subprocess; subprocess.run(['sleep', '60'])",
    "a child of a shell": "os.system('sleep 60; true')",
    "the agent, which writes nothing": "os.read(0, 1)",
}
NOBODY_KNOWS = {
    "a file that others change": "os.read(ctypes.CDLL(None).inotify_init(), 1)",
    "an epoll in an epoll": (
        "e = select.epoll(); i = select.epoll(); i.register(one, 1); e.register(i.fileno(), 1); e.poll()"
    ),
    "a timer": (
        "t = ctypes.CDLL(None).timerfd_create(1, 0); "
        "ctypes.CDLL(None).timerfd_settime(t, 0, (ctypes.c_long * 4)(0, 0, 60, 0), None); os.read(t, 8)"
    ),
    "the kernel's word of devices": (
        "s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15); s.bind((0, 0)); s.recv(1)"
    ),
    "a call of the kernel that no table has": (
        "c = ctypes.CDLL(None).syscall; context = ctypes.c_ulong(0); x86 = os.uname().machine == 'x86_64'; "
        "c(206 if x86 else 0, 1, ctypes.byref(context)); c(208 if x86 else 4, context, 1, 1, b' ' * 32, None)"
    ),
}
LEADING = {
    Leads.DRIVER: OF_A_DRIVER,
    Leads.LIBRARY: OF_THE_LIBRARY,
    Leads.INSIDE: INSIDE,
    Leads.UNSURE: UNSURE,
    Leads.UNKNOWN: NOBODY_KNOWS,
}


@contextmanager
def waiting(folder: Path, code: str) -> Iterator[Path]:
    """Run a program that waits in *code*, and give its folder of /proc."""
    os.mkfifo(folder / "fifo")
    (folder / "node" / "dev").mkdir(parents=True)
    os.mkfifo(folder / "node" / "dev" / "nvidia7")
    one, of_another_program = socket.socketpair()
    command = (sys.executable, "-c", WAITING_PROGRAM.format(code), str(one.fileno()))
    program = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, start_new_session=True, pass_fds=(one.fileno(),)
    )
    with of_another_program, one, ended(program):
        try:
            yield Path(f"/proc/{program.pid}")
        finally:
            os.killpg(program.pid, 9)


def shown_after(process: Path, leads: Leads, root: Path = Path("/")) -> Wait:
    """Return what *process* waits for once that leads to *leads*, or what it is after some seconds."""
    found = Wait(Leads.HIDDEN)
    for _ in range(100):
        time.sleep(0.1)
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        found = wait_of(process, Disk(), state=state, root=str(root))
        if found.leads is leads:
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


@pytest.mark.parametrize("name", [*FILES, *PROGRAMS])
def test_a_call_on_a_file_or_a_socket_waits_for_a_disk_or_a_program(tmp_path: Path, name: str) -> None:
    """It is named with the next step."""
    code, said = FILES.get(name) or PROGRAMS[name]
    leads = Leads.FILE if name in FILES else Leads.PROGRAM
    with waiting(tmp_path, code) as process:
        found = shown_after(process, leads, tmp_path / "node")
    assert found.leads is leads
    assert re.match(f"(it waits in )?{said.format(re.escape(str(tmp_path)))}", found.words)
    assert "; check " in found.words or "; see its stack " in found.words


@pytest.mark.parametrize(("leads", "name"), [(leads, name) for leads, cases in LEADING.items() for name in cases])
def test_any_other_call_leads_to_the_driver_or_into_the_library(tmp_path: Path, leads: Leads, name: str) -> None:
    """A driver that hangs must be found: a library that computes or sleeps is at work."""
    with waiting(tmp_path, LEADING[leads][name]) as process:
        found = shown_after(process, leads, tmp_path / "node")
        time.sleep(0.3)
        look = Surroundings(root=str(tmp_path / "node")).look(int(process.name))
    assert found.leads is leads
    assert look is not None
    assert look.wait.leads is leads
    assert bool(look.wait.words) is (leads in (Leads.UNKNOWN, Leads.UNSURE))
    assert ("asks again" in look.wait.words) is (name in ASKS_AGAIN)


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
    code = "import threading; threading.Thread(target=one.recv, args=(1,)).start(); time.sleep(60)"
    with waiting(tmp_path, code) as process:
        thread = thread_of(process)
        assert shown_after(thread, Leads.PROGRAM).leads is Leads.PROGRAM
        rest = Surroundings().rest(int(process.name))
        others = Surroundings().others(int(process.name), rest.waits)
        unknown = Surroundings().others(int(process.name))
    assert {number for number, _ in rest.waits} == {int(thread.name)}
    assert [(look.wait.leads, look.at_rest) for look in others.values()] == [(Leads.PROGRAM, True)]
    assert [(look.wait.leads, look.at_rest) for look in unknown.values()] == [(Leads.PROGRAM, False)]


@pytest.mark.parametrize("listened", ["one", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"])
def test_a_thread_that_listens_for_another_while_each_time_is_at_rest(tmp_path: Path, listened: str) -> None:
    """It waits for the same socket, or for another connection each time; the time that it gives it is another one."""
    code = f"""import threading
def listen():
    for number in range(10000):
        p, s = select.poll(), {listened}
        p.register(s, 1); p.poll(200 + number)
threading.Thread(target=listen).start(); time.sleep(60)"""
    with waiting(tmp_path, code) as process:
        thread = thread_of(process)
        assert shown_after(thread, Leads.PROGRAM).leads is Leads.PROGRAM
        rest = Surroundings().rest(int(process.name))
        time.sleep(0.5)
        others = Surroundings().others(int(process.name), rest.waits)
    assert [look.at_rest for look in others.values()] == [True]


TARGETS = {
    Leads.DRIVER: (
        *("/sys/kernel/debug/dri/0/name", "/proc/driver/nvidia/version", "/dev/nvidia3", "/dev/kfd", "/dev/dri/card0"),
        *("anon_inode:dmabuf", "/host/sys/module/amdgpu/version", "/host/dev/nvidia0", "/dev/accel/accel0"),
    ),
    Leads.FILE: (
        *("/dev/shm/rocm_smi_card0", "/var/log/amdsmi/calls", "/device/kfd", "/host/var/log/calls"),  # noqa: S108
        *("/hostile/sys/x", "/dev/nvme0n1", "/dev/sda1", "/proc/77/cmdline", "/host/proc/77/cmdline"),
    ),
    Leads.PROGRAM: ("socket:[77]", "pipe:[77]", "/dev/pts/3", "/dev/ptmx", "/dev/mqueue/x"),
    Leads.UNSURE: ("anon_inode:[eventfd]",),
    Leads.INSIDE: ("pidfd:[8]", "/proc/self/maps", "/memfd:x (deleted)", "{self}/maps"),
    Leads.UNKNOWN: (
        *("", "/proc/modules", "/sys/fs/cgroup/x", "/dev/random", "anon_inode:[io_uring]", "anon_inode:[timerfd]"),
        *("/dev/kmsg", "/sys/class/net/lo/speed", "/proc/driver/rtc", "anon_inode:bpf-prog", "anon_inode:inotify"),
    ),
}


@pytest.mark.parametrize(("leads", "target"), [(leads, name) for leads, names in TARGETS.items() for name in names])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_the_name_of_a_file_tells_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads: Leads, target: str, machine: str
) -> None:
    """A read of a driver's own file may hang in the driver; on a machine that no table has, nothing is known."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    system_call._calls.cache_clear()
    number = {"x86_64": 0, "aarch64": 63, "riscv64": 63}[machine]
    (tmp_path / "fd").mkdir()
    if target:
        (tmp_path / "fd" / "7").symlink_to(target.format(self=f"/proc/{tmp_path.name}") if "{" in target else target)
    (tmp_path / "syscall").write_text(f"{number} 0x7 0x7ffd 0x20 0x0 0x0 0x0 0x7ffc 0x7ffb\n")
    process = tmp_path
    if "{" in target:
        process = tmp_path / "7"
        tmp_path.joinpath("fd").rename(tmp_path / "fds")
        process.mkdir()
        (process / "fd").mkdir()
        (process / "fd" / "7").symlink_to("/proc/7/maps")
        (process / "syscall").write_text((tmp_path / "syscall").read_text())
    try:
        found = wait_of(process, Disk(), root="/host/")
    finally:
        system_call._calls.cache_clear()
    assert found.leads is (leads if machine != "riscv64" else Leads.UNKNOWN)


@pytest.mark.parametrize(
    ("driver", "leads"),
    [("ast", Leads.UNKNOWN), ("nvidia", Leads.DRIVER), ("amdgpu", Leads.DRIVER), ("", Leads.DRIVER)],
)
@pytest.mark.parametrize(("folder", "of_class", "node"), [("dri", "drm", "card0"), ("accel", "accel", "accel0")])
def test_the_screen_of_a_management_controller_is_no_device_of_a_driver(
    tmp_path: Path, driver: str, leads: Leads, folder: str, of_class: str, node: str
) -> None:
    """Its node is of the class of a GPU: the driver of the device tells, if the kernel shows it."""
    process, device = tmp_path / "7", tmp_path / "host" / "sys" / "class" / of_class / node / "device"
    for place in (process / "fd", device):
        place.mkdir(parents=True)
    if driver:
        (device / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
    (process / "fd" / "7").symlink_to(tmp_path / "host" / "dev" / folder / node)
    number = {"x86_64": 0, "aarch64": 63}[os.uname().machine]
    (process / "syscall").write_text(f"{number} 0x7 0x7ffd 0x20 0x0 0x0 0x0 0x7ffc 0x7ffb\n")
    assert wait_of(process, Disk(), root=str(tmp_path / "host")).leads is leads


@pytest.mark.parametrize(
    "text",
    ["-1 0x7ffd 0x7ffc\n", "0\n", "999 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8\n", "x\n", "7 0x1 0x2 0x3 0x4 0x5 0x6 0 0"],
)
def test_a_process_in_no_known_call_has_no_witness(tmp_path: Path, text: str) -> None:
    """A page fault (-1) is judged by the function of the kernel alone; the finding names the way to look further."""
    (tmp_path / "syscall").write_text(text)
    found = wait_of(tmp_path, Disk())
    assert found.leads is Leads.UNKNOWN
    assert "(/proc/PID/stack)" in found.words


def test_a_file_of_a_device_leads_to_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder in /sys names it, also by the name of a class: that of a network card is no accelerator's."""
    monkeypatch.setattr(system_call, "_number", lambda word: 0 if word == "read" else int(word, 0))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    system_call._calls.cache_clear()
    root = tmp_path / "root"
    for name, driver in (("0000:03:00.0", "amdgpu"), ("0000:04:00.0", "mlx5_core"), ("0000:05:00.0", "")):
        board = root / "sys" / "devices" / "pci0000:00" / name
        (board / "hwmon" / "hwmon1").mkdir(parents=True)
        (board / "hwmon" / "hwmon1" / "temp1_input").write_text("")
        if driver:
            (board / "driver").symlink_to(root / "sys" / "bus" / "pci" / "drivers" / driver)
        (root / "sys" / "class").mkdir(exist_ok=True)
        (root / "sys" / "class" / name).symlink_to(board / "hwmon" / "hwmon1")
    (tmp_path / "fd").mkdir()
    (tmp_path / "syscall").write_text("read 0x7 0x7ffd 0x20 0x0 0x0 0x0 0x7ffc 0x7ffb\n")
    found = {}
    for name in ("0000:03:00.0", "0000:04:00.0", "0000:05:00.0"):
        for path in (f"class/{name}/temp1_input", f"devices/pci0000:00/{name}/hwmon/hwmon1/temp1_input"):
            (tmp_path / "fd" / "7").unlink(missing_ok=True)
            (tmp_path / "fd" / "7").symlink_to(root / "sys" / path)
            found[name, path.partition("/")[0]] = wait_of(tmp_path, Disk(), root=str(root)).leads
    system_call._calls.cache_clear()
    assert {key for key, leads in found.items() if leads is Leads.DRIVER} == {
        ("0000:03:00.0", "class"),
        ("0000:03:00.0", "devices"),
    }
    assert set(found.values()) == {Leads.DRIVER, Leads.UNKNOWN}


def test_a_process_that_runs_meanwhile_computes(tmp_path: Path) -> None:
    """It was seen waiting, and runs when its call is looked at."""
    (tmp_path / "syscall").write_text("running\n")
    assert wait_of(tmp_path, Disk()).leads is Leads.LIBRARY


@pytest.mark.parametrize(
    ("target", "state", "leads"),
    [
        *(("pipe:[7]", "S", Leads.PROGRAM), ("pipe:[7]", "D", Leads.UNKNOWN), ("/f", "D", Leads.FILE)),
        *(("/dev/kfd", "D", Leads.DRIVER), ("/f", "R", Leads.LIBRARY), ("pipe:[7]", "Z", Leads.LIBRARY)),
    ],
)
def test_only_a_file_or_a_driver_is_waited_for_without_interruption(
    tmp_path: Path, target: str, state: str, leads: Leads
) -> None:
    """A process that a freezer holds in a read of a pipe waits for no program: what it holds is another matter."""
    (tmp_path / "fd").mkdir()
    (tmp_path / "fd" / "7").symlink_to(target)
    (tmp_path / "syscall").write_text(f"{0 if os.uname().machine == 'x86_64' else 63} 0x7 0x0 0x1 0x0 0x0 0x0 0x0 0x0")
    assert wait_of(tmp_path, Disk(), state=state).leads is leads


def test_a_call_that_the_kernel_does_not_show_is_hidden(tmp_path: Path) -> None:
    """That is not the same as a call that waits for no file."""
    assert wait_of(tmp_path, Disk()).leads is Leads.HIDDEN


def test_a_path_that_cannot_be_read_is_no_witness(tmp_path: Path) -> None:
    """It may be the device node of the driver, or any file."""
    (tmp_path / "syscall").write_text("257 0xffffff9c 0x7ffd 0x0 0x0 0x0 0x0 0x7ffc 0x7ffb\n")
    assert wait_of(tmp_path, Disk()).leads is Leads.UNKNOWN


def test_numbers_of_system_calls_are_those_of_the_kernels_headers() -> None:
    """Each row has the number of Linux for each machine; only old calls are missing on arm64."""
    rows = {row.name: row for row in read_table(TABLE, system_call._Call)}
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
