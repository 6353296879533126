"""As process 1 of a container the command leaves no zombie, keeps the ends of its own children, and ends as usual."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

from fakes.ended import ended
from fakes.privileges import needs_root

ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Its child is process 1 of a namespace of its own (unshare(1), util-linux)."""

BEGIN = """
import os, pathlib, signal, subprocess, sys, time
from nodevet.agent.daemon.init import under_init
code = under_init()
if code is not None:
    sys.exit(code)
"""
ORPHAN = """
own = subprocess.Popen(["sh", "-c", "exit 7"])
orphan = int(subprocess.check_output(["sh", "-c", "sleep 0.1 >/dev/null & echo $!"]))
end = time.monotonic() + 5
while pathlib.Path(f"/proc/{orphan}").exists() and time.monotonic() < end:
    time.sleep(0.02)
print(os.getpid() != 1, pathlib.Path(f"/proc/{orphan}").exists(), own.wait(), flush=True)
sys.exit(5)
"""
ENDED = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
print(os.getpid(), flush=True)
time.sleep(8)
"""
HUNG_UP = """
signal.signal(signal.SIGHUP, lambda *_: (os.write(2, b"hung up"), os._exit(9)))
os.write(2, b"ready")
time.sleep(8)
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


def process_one(code: str) -> subprocess.Popen[str]:
    """Start *code* as what process 1 of a namespace is to run."""
    return subprocess.Popen([*ALONE, sys.executable, "-c", BEGIN + code], stdout=subprocess.PIPE, text=True)


def children(pid: int | str) -> list[str]:
    """Return the children of process *pid*."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@needs_root
def test_orphans_leave_no_zombie_and_own_children_tell_their_end() -> None:
    """Until no process could be started: each that ended stayed, for process 1 waited for its own alone."""
    with process_one(ORPHAN) as started:
        said, _ = started.communicate(timeout=20)
    assert (said.split(), started.returncode) == (["True", "False", "7"], 5)


@needs_root
def test_signals_reach_the_command() -> None:
    """Whoever stops a container tells process 1."""
    with process_one(ENDED) as started:
        assert started.stdout is not None and started.stdout.readline()
        (first,) = children(started.pid)
        subprocess.run(["kill", f"-{int(signal.SIGTERM)}", first], check=True)
        assert started.wait(timeout=20) == 9


@needs_root
def test_the_hang_up_of_a_terminal_reaches_the_command() -> None:
    """The kernel tells the leader of the session alone, which is process 1: a load would go on with nobody there."""
    above, below = os.openpty()
    heard, said = os.pipe()
    command = (*ALONE, "setsid", "--ctty", sys.executable, "-c", BEGIN + HUNG_UP)
    with ended(subprocess.Popen(command, stdin=below, stdout=below, stderr=said)) as started:
        os.close(below)
        os.close(said)
        assert os.read(heard, 100) == b"ready"
        os.close(above)
        assert os.read(heard, 100) == b"hung up"
        assert started.wait(timeout=20) == 9
    os.close(heard)


@needs_root
def test_a_command_that_is_killed_ends_the_container() -> None:
    """With the code that a shell gives it."""
    with process_one(KILLED) as started:
        assert started.wait(timeout=20) == 128 + signal.SIGKILL


@needs_root
def test_every_command_has_it() -> None:
    """One that reads its input is not process 1, and ends with its own code."""
    command = (*ALONE, sys.executable, "-m", "nodevet.agent.cli", "readings", "check", "-")
    with ended(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)) as started:
        assert started.stdin is not None
        started.stdin.write(b"{")
        started.stdin.flush()
        end = time.monotonic() + 30
        while is_unread(started.stdin.fileno()) and time.monotonic() < end:
            time.sleep(0.01)
        (first,) = children(started.pid)
        below = children(first)
    assert len(below) == 1
    assert started.returncode > 0


def is_unread(pipe: int) -> bool:
    """Return whether nobody has read yet what is in *pipe*."""
    return fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) != bytes(4)
