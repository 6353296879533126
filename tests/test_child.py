"""What every child does first, and the reader child's own manners, in real processes."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fakes.ended import ended

from nodevet.agent.load.child import LoadChild
from nodevet.checks.burnin.main import is_stopped
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import FailureKind
from nodevet.checks.core.wire import Failed, Message, Read, Ready, Start, Stop
from nodevet.checks.ipc.child_process import Child, Patience
from nodevet.checks.system.process import Exit, python_module

LIFELINE = """
import ctypes, sys
from nodevet.checks.ipc.worker import watch_lifeline
number = ctypes.c_int()
watch_lifeline(lambda: None, float(sys.argv[1]))
ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
print(number.value)
"""
SCRIPTED = Path(__file__).parent / "fakes" / "scripted_child.py"
REAL_SECONDS = 20.0


class Owner:
    """Keeps what a child tells."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.messages: list[Message] = []
        self.lines: list[str] = []
        self.nonsense: list[str] = []
        self.ended: Exit | None = None

    def on_message(self, message: Message) -> None:
        """Keep a message."""
        self.messages.append(message)

    def on_line(self, line: str) -> None:
        """Keep a line."""
        self.lines.append(line)

    def on_nonsense(self, detail: str) -> None:
        """Keep a complaint."""
        self.nonsense.append(detail)

    def on_unreadable(self, detail: str) -> None:
        """Note a message that could not be read."""
        self.on_nonsense(detail)

    def on_stuck(self) -> None:
        """Nothing gets stuck here."""
        raise AssertionError("stuck")

    def on_end(self, ended: Exit) -> None:
        """Keep the end."""
        self.ended = ended


class Bench:
    """One child on the real clock."""

    def __init__(self, argv: tuple[str, ...]) -> None:
        """Start it."""
        self.owner = Owner()
        self.selector = selectors.DefaultSelector()
        self.child = Child("child", argv, self.selector, self.owner, SystemClock())

    def until(self, done: Callable[[], object]) -> None:
        """Run the loop until *done*."""
        end = time.monotonic() + REAL_SECONDS
        while not done():
            assert time.monotonic() < end, (self.owner.messages, self.owner.lines)
            for key, mask in self.selector.select(0.05):
                key.data(mask)
            if self.owner.ended is None:
                self.child.tick()

    def close(self) -> None:
        """End it."""
        if self.owner.ended is None:
            self.child.finish(Patience(0, 0, 1), ask=False)
        self.until(lambda: self.owner.ended)
        self.selector.close()


Starter = Callable[..., Bench]


@pytest.fixture
def start() -> Iterator[Starter]:
    """A function that starts a child, which is ended after the test."""
    benches: list[Bench] = []

    def starter(*argv: str) -> Bench:
        benches.append(Bench(argv))
        return benches[-1]

    yield starter
    for bench in benches:
        bench.close()


@pytest.fixture
def reader(start: Starter) -> Bench:
    """The real reader child, not yet told what to read."""
    return start(*python_module("nodevet.checks.backends.reader_main"))


def test_the_reader_reads_this_host_and_stops_when_told(reader: Bench) -> None:
    """Start, a round, Stop: the child answers each and ends with status 0."""
    reader.child.send(Start("host"))
    reader.until(lambda: reader.owner.messages)
    assert isinstance(reader.owner.messages[0], Ready)
    assert reader.owner.messages[0].groups == ("fast", "slow")
    reader.child.send(Read("fast", 7))
    reader.child.send(Stop())
    reader.until(lambda: reader.owner.ended)
    assert reader.owner.ended == Exit(0)


@pytest.mark.parametrize(
    ("start_message", "kind", "words"),
    [
        (Start("nothing"), FailureKind.READER, "no backend 'nothing': there are"),
        (Start("os"), FailureKind.READER, "no backend 'os'"),
        (Start("host", protocol=99), FailureKind.READER, "restart the agent"),
        (Start("host", root="/nonexistent"), FailureKind.ERROR, "the host cannot be listed"),
    ],
)
def test_a_backend_that_cannot_be_loaded_is_refused_with_its_reason(
    reader: Bench, start_message: Start, kind: FailureKind, words: str
) -> None:
    """Only backends of the table are loaded, in the protocol both sides speak, on a tree that is one."""
    reader.child.send(start_message)
    reader.until(lambda: reader.owner.ended)
    (message,) = reader.owner.messages
    assert isinstance(message, Failed)
    assert message.failure.kind is kind
    assert words in message.failure.detail
    assert reader.owner.ended == Exit(0)


def test_a_first_message_other_than_start_ends_the_reader(reader: Bench) -> None:
    """A parent that breaks the protocol is an error of ours, told on standard error."""
    reader.child.send(Read("fast", 1))
    reader.until(lambda: reader.owner.ended)
    assert reader.owner.ended == Exit(1)
    assert "the first message is Read, not Start" in reader.owner.lines[-1]


def test_a_reader_is_of_no_use_by_hand() -> None:
    """Without its descriptors the program says that only the agent starts it."""
    done = subprocess.run(
        [*python_module("nodevet.checks.backends.reader_main"), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "only the agent starts this program" in done.stderr
    assert done.stdout == ""


def test_a_child_whose_agent_is_gone_closes_and_ends(start: Starter, tmp_path: Path) -> None:
    """When the agent dies, however it dies, its children notice and end by themselves."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"log": str(tmp_path / "log"), "devices": ["a"]}))
    agent = (
        "import os, selectors, sys, time\n"
        "from nodevet.checks.ipc.child_process import Child\n"
        "from nodevet.checks.core.clock import SystemClock\n"
        "from nodevet.checks.core.wire import Start\n"
        "class Owner:\n"
        "    def on_message(self, message): os.kill(os.getpid(), 9)\n"
        "    def on_unreadable(self, detail): pass\n"
        "selector = selectors.DefaultSelector()\n"
        f"argv = (sys.executable, '-I', {str(SCRIPTED)!r}, {str(script)!r})\n"
        "child = Child('a', argv, selector, Owner(), SystemClock())\n"
        "child.send(Start('fake'))\n"
        "while True:\n"
        "    [key.data(mask) for key, mask in selector.select()]\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", agent], check=False)
    assert done.returncode == -signal.SIGKILL
    end = time.monotonic() + REAL_SECONDS
    while "orphan" not in (tmp_path / "log").read_text() and time.monotonic() < end:
        time.sleep(0.01)
    assert (tmp_path / "log").read_text().splitlines()[-1] == "orphan"


HELD_SECONDS = 1.5
"""The kernel ends a process that is killed within milliseconds, however busy the machine is."""


def cut_lifeline(child: Child) -> None:
    """Have the lifeline of *child* end as with this process; its number stays taken."""
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), child._lifeline)


def test_a_load_that_is_stopped_before_it_began_ends_with_its_agent() -> None:
    """Its interpreter takes 0.1 s until it can ask the kernel for that itself; one that was stopped then lived on."""
    with selectors.DefaultSelector() as selector:
        argv = (sys.executable, "-c", "import time; time.sleep(60)")
        load = LoadChild("load", argv, ("a",), SystemClock(), selector)
        os.kill(load._child.pid, signal.SIGSTOP)
        cut_lifeline(load._child)
        deadline = time.monotonic() + HELD_SECONDS
        while not load.at_rest and time.monotonic() < deadline:
            for key, mask in selector.select(0.05):
                key.data(mask)
            load.tick()
        ended = load.at_rest
        if not ended:
            os.kill(load._child.pid, signal.SIGKILL)
        while not load.at_rest:
            load.tick()
    assert ended


def test_a_reader_that_is_stopped_before_it_began_goes_on_when_its_agent_ends(start: Starter) -> None:
    """It sees then that its lifeline is gone, and closes what it has open."""
    bench = start(sys.executable, "-c", "import sys; sys.stdin.read()")
    os.kill(bench.child.pid, signal.SIGSTOP)
    cut_lifeline(bench.child)
    bench.until(lambda: bench.owner.ended)
    assert bench.owner.ended == Exit(0)


def test_an_orphan_that_hangs_kills_itself() -> None:
    """A child that sits in a call that never returns does not outlive its agent for long."""
    program = (
        "import signal, sys\n"
        "from nodevet.checks.ipc.worker import watch_lifeline\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "watch_lifeline(lambda: None, 0.05)\n"
        "signal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-I", "-c", program], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(REAL_SECONDS) == -signal.SIGKILL


def test_what_a_child_leaves_in_its_group_goes_with_it(start: Starter, tmp_path: Path) -> None:
    """A helper that a vendor's library started does not outlive the reader, and does not keep its pipes open."""
    marker = tmp_path / "helper.pid"
    program = (
        "import pathlib, subprocess\n"
        "helper = subprocess.Popen(['sleep', '1000'])\n"
        f"pathlib.Path({str(marker)!r}).write_text(str(helper.pid))\n"
        "helper.returncode = 0\n"
    )
    bench = start(sys.executable, "-I", "-c", program)
    bench.until(lambda: bench.owner.ended)
    helper = int(marker.read_text())
    end = time.monotonic() + REAL_SECONDS
    while _runs(helper) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _runs(helper)


def test_descriptors_of_a_child_are_closed_when_it_ends(start: Starter) -> None:
    """A reader that is restarted a thousand times leaks no descriptor."""
    benches = []
    before = _descriptors()
    for _ in range(3):
        bench = start(sys.executable, "-I", "-c", "pass")
        benches.append(bench)
        bench.until(lambda: benches[-1].owner.ended)
        bench.selector.close()
    assert _descriptors() == before


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_stopped_child_is_continued_to_end(reader: Bench) -> None:
    """SIGSTOP hides SIGTERM from a child; it is continued, and ends by itself long before it would be killed."""
    reader.child.send(Start("host"))
    reader.until(lambda: reader.owner.messages)
    os.kill(reader.child.pid, signal.SIGSTOP)
    reader.until(lambda: psutil.Process(reader.child.pid).status() == psutil.STATUS_STOPPED)
    reader.child.finish(Patience(terminate=0.0, kill=5.0, abandon=60.0), ask=False)
    assert reader.owner.ended or psutil.Process(reader.child.pid).status() != psutil.STATUS_STOPPED
    reader.until(lambda: reader.owner.ended)
    assert reader.owner.ended == Exit(-signal.SIGTERM)


@pytest.mark.parametrize(("grace_seconds", "number"), [(0.0, signal.SIGKILL), (3.0, signal.SIGCONT)])
def test_the_kernel_is_asked_for_a_signal_at_the_end_of_the_parent(
    grace_seconds: float, number: signal.Signals
) -> None:
    """SIGKILL for a child without a grace, and for the others what lets a stopped one see its lifeline."""
    with ended(
        subprocess.Popen(
            [sys.executable, "-c", LIFELINE, str(grace_seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == number


def test_a_process_is_stopped_by_a_signal_and_by_nothing_else(tmp_path: Path) -> None:
    """Whatever its name looks like; one that is gone is not stopped."""
    program = tmp_path / "a) T (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "1000"])
    try:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert is_stopped(process.pid)
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        assert not is_stopped(process.pid)
    finally:
        process.kill()
        process.wait()
    assert not is_stopped(process.pid)
