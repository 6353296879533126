"""A file that a driver's library shares with every user's programs: what they do to it is no fault of the driver."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes.amdsmi.scenario import FakeAmdSmi
from fakes.bench import INTERVAL, Bench
from fakes.ended import ended
from test_blame import fall, is_hard, rise, said
from test_supervisor_readers import Node

from nodevet.checks.backends.amd.amdsmi import OWN_LOCKS, load
from nodevet.checks.backends.base import BackendError
from nodevet.checks.core.model import ReaderState
from nodevet.checks.core.wire import Progress

PAGE_BYTES = 4096
SHARED, ROBUST = 1, 1
HELD = "one of which may hold a lock on it"
WRITTEN = "one may have written into it"
OWNER = slice(8, 12)
"""Where glibc notes who holds a mutex: it ends (SIGABRT) whoever takes one that is free and has a holder."""

HOLD = """
import ctypes, mmap, os, sys, time
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 0)
ctypes.CDLL(None).pthread_mutex_lock(ctypes.byref(ctypes.c_char.from_buffer(shared)))
print(flush=True)
time.sleep(600)
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock between processes, as AMD SMI makes one of each board in /dev/shm."""
    path = tmp_path / "lock"
    make(path)
    return path


def make(path: Path) -> None:
    """Make the lock at *path*, held by nobody."""
    path.write_bytes(bytes(PAGE_BYTES))
    library, kind = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutexattr_init(kind)
    library.pthread_mutexattr_setpshared(kind, SHARED)
    library.pthread_mutexattr_setrobust(kind, ROBUST)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        mutex = ctypes.c_char.from_buffer(shared)
        library.pthread_mutex_init(ctypes.byref(mutex), kind)
        del mutex


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Let another program hold the lock."""
    with ended(subprocess.Popen([sys.executable, "-S", "-c", HOLD, str(path)], stdout=subprocess.PIPE)) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            yield
        finally:
            other.kill()


def test_a_lock_that_a_library_polls_is_no_hang_of_the_driver(tmp_path: Path, lock: Path) -> None:
    """It computes or sleeps, and waits for a program all the same: which other programs share the file is not known."""
    bench = Bench(tmp_path, share=str(lock))
    bench.round()
    for _ in range(2):
        bench.write(read={"b": "poll_lock"})
        bench.clock.advance(61.0)
        bench.fall(ReaderState.HUNG, "b")
        assert f"it shares {lock} with other programs, {HELD}" in said(bench)
        assert not is_hard(bench)
        assert bench.status().witnessed == 0
        bench.write(read={})
        bench.round(61.0)
    bench.close()


def test_a_lock_that_another_program_holds_is_no_hang_of_the_driver(tmp_path: Path, lock: Path) -> None:
    """The call waits for a person's program, for as long as that likes: unknown, with the file."""
    bench = Bench(tmp_path, share=str(lock))
    bench.round()
    for _ in range(3):
        bench.write(read={"b": "lock"})
        with held(lock):
            bench.clock.advance(61.0)
            bench.fall(ReaderState.HUNG, "b")
        assert f"it shares {lock} with other programs, {HELD}" in said(bench)
        assert not is_hard(bench)
        assert bench.status().witnessed == 0
        make(lock)
        bench.write(read={})
        bench.round(61.0)
    bench.close()


HOLD_FILE = """
import fcntl, sys, time
with open(sys.argv[1], "r+") as file:
    getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX)
    print(flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["flock", "lockf"])
def test_a_lock_of_a_file_that_another_program_holds_is_no_hang_of_the_driver(tmp_path: Path, kind: str) -> None:
    """It waits in the kernel for whoever may open the file: unknown, with what it waits for."""
    file = tmp_path / "board"
    file.touch()
    bench = Bench(tmp_path, lock_of_file=str(file))
    bench.round()
    command = [sys.executable, "-S", "-c", HOLD_FILE, str(file), kind]
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE)) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            for _ in range(2):
                bench.write(read={"b": kind})
                bench.clock.advance(INTERVAL)
                bench.fall(ReaderState.HUNG, "b")
                assert not is_hard(bench)
                assert f"a lock of a file ({'flock' if kind == 'flock' else 'fcntl'}) that another" in said(bench)
                rise(bench)
        finally:
            other.kill()
            bench.close()


def test_a_lock_that_another_program_damaged_is_no_crash_of_the_driver(tmp_path: Path, lock: Path) -> None:
    """The C library ends whoever takes it, by a signal that is a library's own."""
    bench = Bench(tmp_path, share=str(lock))
    bench.round()
    for _ in range(3):
        with lock.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
            shared[:] = bytes(PAGE_BYTES)
            shared[OWNER] = b"\7\0\0\0"
        fall(bench, "lock")
        assert f"was killed by SIGABRT in: fake_read(b, fast), but it shares {lock} with other programs" in said(bench)
        assert WRITTEN in said(bench)
        assert not is_hard(bench)
        assert bench.status().witnessed == 0
        make(lock)
        rise(bench)
    bench.close()


def test_a_library_that_shares_nothing_is_blamed_for_a_crash_and_a_hang(tmp_path: Path) -> None:
    """Nobody else can have brought them about."""
    bench = Bench(tmp_path)
    bench.round()
    fall(bench, "segv")
    rise(bench)
    bench.write(read={"b": "hang"})
    bench.clock.advance(INTERVAL)
    bench.fall(ReaderState.HUNG, "b")
    assert is_hard(bench)
    bench.close()


def test_amd_smi_is_asked_for_locks_of_its_own_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the variable when it starts, whatever the agent's own environment says."""
    wrapper = tmp_path / "share/amd_smi/amdsmi/__init__.py"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(f"import os\nraise OSError('locks: ' + os.environ[{OWN_LOCKS!r}])\n")
    for name in ("ROCM_HOME", "ROCM_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv(OWN_LOCKS, "0")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    progress, descriptor = Progress.create()
    os.close(descriptor)
    with pytest.raises(BackendError, match="locks: 1"):
        load(progress)


def test_a_reader_of_amd_boards_shares_no_lock_with_anybody(
    tmp_path: Path, fake_amdsmi: FakeAmdSmi, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AMD SMI has locks of the process alone where that asks for them: who holds the shared one stops nobody."""
    monkeypatch.delenv(OWN_LOCKS, raising=False)
    fake_amdsmi.set("lock", str(lock))
    node = Node(tmp_path, fake_amdsmi)
    with held(lock):
        assert node.round() == node.all_ok()
        assert node.round(INTERVAL) == node.all_ok()
    assert str(lock) not in Path(f"/proc/{node.status().pid}/maps").read_text()
    assert node.status().hangs == 0
    assert OWN_LOCKS not in os.environ
    node.close()
