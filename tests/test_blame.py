"""Who is to blame for a reader that went down: a driver on the word of a witness, everything else nobody."""

from __future__ import annotations

import _ctypes as ctypes_of_this_machine
import contextlib
import mmap
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import psutil
import pytest
from fakes.bench import DEADLINE, INTERVAL, REAL_SECONDS, Bench, outcome
from fakes.clocks import SteppedClock
from fakes.ended import ended
from fakes.freezer import FREEZER, Freeze
from fakes.privileges import NO_TRACING
from fakes.views import at, healthy
from test_silent_disk import silent

from nodevet.agent.readers import mapped_files
from nodevet.agent.readers.blame import Blame, fault_rows, no_start
from nodevet.agent.readers.cut_short import cut_short
from nodevet.agent.readers.disk import Disk
from nodevet.agent.readers.heartbeat import Heartbeat
from nodevet.agent.readers.mapped_files import MappedFiles, stamp
from nodevet.agent.readers.orphan import Orphan
from nodevet.agent.readers.remembered import pack_readers, recalled_readers
from nodevet.agent.readers.shortages import Shortages
from nodevet.agent.readers.system_call import HIDDEN, Leads, Wait
from nodevet.agent.readers.witness import (
    STARVED_RATIO,
    Other,
    ProcessStatus,
    Surroundings,
    disturbance,
    disturbed,
)
from nodevet.checks.core.model import NODE, FailureKind, Finding, Outcome, ReaderState
from nodevet.checks.health.freshness import Freshness, judge
from nodevet.checks.ipc.child_process import Child
from nodevet.checks.ipc.last_words import LastWords
from nodevet.checks.system.process import Exit
from nodevet.checks.system.procfs import ChildRecord, start_ticks

LIBRARYS_OWN = ("segv", "abort", "bus", "ill")
"""Signals by which a library ends its process."""

STUCK_SECONDS = 60
"""Ten deadlines of a call, or the one deadline of a start, which is longer here."""

HEARTBEAT_BYTES = 10 << 20
ORPHAN_SECONDS = 5
INTERVAL_SECONDS = 5

NOT_THE_DRIVERS = {
    "idle_kill": "was killed by SIGKILL outside of any driver call: by the OOM killer, a person or a kernel oops",
    "kill": "was killed by SIGKILL in: fake_read(b, fast): by the OOM killer, a person or a kernel oops",
    "idle_segv": "was killed by SIGSEGV outside of any driver call (last: between two calls)",
    "idle_abort": "no driver fault is known: report this",
    "idle_term": "not sent by the agent",
    "term": "was killed by SIGTERM in: fake_read(b, fast)",
    "no_memory": "for lack of memory; its last message: terminate called after throwing an instance of 'std::bad_al",
    "no_threads": "for lack of threads; its last message: what():  Resource temporarily unavailable; see pids.max",
    "interpreter": "its last message: Fatal Python error: none_dealloc: deallocating None; no driver fault is known",
    "fatal": "its last message: Fatal Python error: none_dealloc: deallocating None; no driver fault is known",
    "talkative": "for lack of memory",
    "linker": "(required by python3); a part of nodevet is missing or broken: reinstall nodevet",
    "import_error": "a part of nodevet is missing or broken: reinstall nodevet",
    "raise": "its last message: ValueError: invalid literal for int() with base 16: ''",
    "exit": "ended with status 3",
    "garbage": "broke the protocol",
}
"""What brings a reader down without being the driver's doing, and the words that tell it."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A reader of three devices that is healthy until the test says otherwise."""
    bench = Bench(tmp_path)
    bench.round()
    yield bench
    bench.close()


def findings(bench: Bench) -> list[Finding]:
    """Return what the check says of the reader of *bench* and its devices, as things stand."""
    status = bench.status()
    samples = {(sample.device, sample.group): sample for sample in bench.samples}
    view = healthy(readers=(status,), devices=bench.supervisor.devices, samples=samples, now=at(), cadences={})
    return list(judge(view, Freshness()))


def is_hard(bench: Bench) -> bool:
    """Return whether anything said of the reader may close a gate."""
    return any(finding.outcome is Outcome.FAIL and finding.hard for finding in findings(bench))


def said(bench: Bench) -> str:
    """Return what is said of the reader."""
    return "\n".join(f.message for f in findings(bench) if f.device == NODE and f.required)


def fall(bench: Bench, behaviour: str) -> None:
    """Have the reader do *behaviour* at its second device, and wait until it is gone."""
    bench.write(read={"b": behaviour})
    bench.clock.advance(INTERVAL)
    bench.until(lambda: bench.status().state is ReaderState.CRASHED and bench.status().pid is None)


def rise(bench: Bench, seconds: float = 61.0) -> None:
    """Have the reader work again."""
    bench.write(read={})
    bench.round(seconds)
    assert bench.status().state is ReaderState.RUNNING


@pytest.mark.parametrize("behaviour", NOT_THE_DRIVERS)
def test_what_is_not_the_drivers_doing_is_unknown_names_its_cause_and_ends(bench: Bench, behaviour: str) -> None:
    """However often: unknown and soft, with the true cause; the next reading ends it."""
    for times in range(1, 4):
        fall(bench, behaviour)
        assert not is_hard(bench)
        assert NOT_THE_DRIVERS[behaviour] in said(bench)
        assert bench.status().crashes == times
        assert bench.status().witnessed == 0
        rise(bench, 61.0 * times)
        assert said(bench) == ""
    assert [f.outcome for f in findings(bench) if f.code == "reader.down"] == [Outcome.PASS]


@pytest.mark.parametrize("behaviour", LIBRARYS_OWN)
def test_a_librarys_own_signal_inside_a_call_is_hard_the_second_time(bench: Bench, behaviour: str) -> None:
    """Once it is watched; a second time within the window of its row the device has failed."""
    for hard in (False, True):
        fall(bench, behaviour)
        assert is_hard(bench) is hard
        assert "fake_read(b, fast)" in bench.status().detail
        if not hard:
            rise(bench)
    assert bench.status().blamed == {"b": 2}


def test_what_a_library_printed_in_an_earlier_round_excuses_no_crash(bench: Bench) -> None:
    """Words are a cause only of what follows them at once."""
    for hard in (False, True):
        bench.write(read={"a": "complain"})
        bench.round(INTERVAL)
        bench.until(lambda: any("Too many" in str(note.fields) for note in bench.notes))
        bench.write(read={})
        bench.round(INTERVAL)
        fall(bench, "segv")
        assert is_hard(bench) is hard
        assert "was killed by SIGSEGV in: fake_read(b, fast)" in bench.status().detail
        rise(bench)
        bench.notes.clear()


def test_two_crashes_further_apart_than_their_window_are_two_first_ones(bench: Bench) -> None:
    """A crash a week is watched; the table says how long it is remembered."""
    window = fault_rows()["SIGABRT"].window_seconds
    for _ in range(3):
        fall(bench, "abort")
        assert not is_hard(bench)
        rise(bench, window + 61.0)


def test_the_cause_is_told_while_another_reader_starts(bench: Bench) -> None:
    """A child that has done nothing yet takes the place of one that was killed: why that ended is still said."""
    fall(bench, "kill")
    bench.write(read={}, start="hang")
    bench.clock.advance(1.0)
    bench.until_in("fake_init")
    assert bench.status().state is ReaderState.STARTING
    assert NOT_THE_DRIVERS["kill"] in said(bench)


def restarted(bench: Bench, folder: Path, boot_id: str | None = None) -> Bench:
    """Return the readers of the next agent, which is given what that of *bench* left, as the store keeps it."""
    kept = recalled_readers(pack_readers(bench.supervisor.records, bench.supervisor.falls), log=pytest.fail)
    bench.close()
    folder.mkdir()
    following = Bench(folder)
    following.clock.advance(bench.clock.monotonic())
    following.clock.boot_id = boot_id or following.clock.boot_id
    following.supervisor.recall(kept.falls)
    following.round()
    return following


def test_a_restart_of_the_agent_makes_a_second_crash_no_first_one(bench: Bench, tmp_path: Path) -> None:
    """Within the window of the same boot the next agent counts on; a reboot, and another backend's, begin anew."""
    fall(bench, "segv")
    rise(bench)
    assert [(entry.backend, entry.fault, entry.device) for entry in bench.supervisor.falls] == [
        ("fake", "SIGSEGV", "b")
    ]
    following = restarted(bench, tmp_path / "next")
    assert not is_hard(following)
    fall(following, "abort")
    assert is_hard(following)
    assert following.status().blamed == {"b": 2}

    other = restarted(following, tmp_path / "other", boot_id="another boot")
    assert (other.status().witnessed, other.supervisor.falls) == (0, ())
    fall(other, "segv")
    assert not is_hard(other)
    other.supervisor.recall([msgspec.structs.replace(other.supervisor.falls[0], backend="another")])
    assert other.status().witnessed == 1
    other.close()


def test_what_an_agent_of_another_version_left_is_taken_as_far_as_it_is_understood() -> None:
    """An earlier one kept its processes alone; what no version made is told and forgotten."""
    told: list[str] = []
    record = ChildRecord("nvidia", 1, 2, "boot", "call", True)
    assert recalled_readers(msgspec.msgpack.encode((record,)), told.append).records == (record,)
    assert recalled_readers(None, told.append).falls == ()
    assert told == []
    assert recalled_readers(b"\xc1", told.append).records == ()
    assert len(told) == 1


def hang(bench: Bench) -> int:
    """Have the reader hang at its second device and return its process id."""
    bench.write(read={"b": "hang"})
    bench.clock.advance(INTERVAL)
    bench.until_in("fake_read(b")
    pid = bench.status().pid
    assert pid is not None
    return pid


def stop(bench: Bench, pid: int) -> None:
    """Stop the process *pid* and wait until the kernel shows it stopped."""
    os.kill(pid, signal.SIGSTOP)
    bench.until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def test_a_hang_counts_while_a_process_of_equal_priority_keeps_time(bench: Bench) -> None:
    """The heartbeat answered all the while and the call did not return: the second time is hard."""
    for hard in (False, True):
        hang(bench)
        bench.pass_time(DEADLINE)
        bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
        assert is_hard(bench) is hard
        if not hard:
            rise(bench)


def test_a_hang_whose_wait_the_kernel_hides_is_nobodys_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that may not be looked at may wait for a lock or a disk: the finding names the permission."""
    look = Surroundings.look

    def hidden(around: Surroundings, pid: int) -> ProcessStatus | None:
        found = look(around, pid)
        return found and msgspec.structs.replace(found, wait=HIDDEN)

    monkeypatch.setattr(Surroundings, "look", hidden)
    for _ in range(3):
        hang(bench)
        bench.pass_time(DEADLINE)
        bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
        assert "give the agent CAP_SYS_PTRACE" in said(bench)
        assert not is_hard(bench)
        assert bench.status().witnessed == 0
        bench.clock.advance(61.0)
        rise(bench)


def test_a_release_while_a_call_hangs_is_nobodys_fault(bench: Bench) -> None:
    """The reader is ended as it was asked, and reads again afterwards."""
    for _ in range(2):
        hang(bench)
        bench.supervisor.release()
        bench.pass_time(DEADLINE)
        bench.until(lambda: bench.status().pid is None)
        assert (bench.status().state, bench.status().failure) == (ReaderState.RELEASED, None)
        bench.supervisor.resume()
        rise(bench)
        assert (bench.status().witnessed, bench.status().hangs) == (0, 0)


def test_a_hang_on_a_machine_that_keeps_no_time_is_nobodys_fault(bench: Bench) -> None:
    """The heartbeat does not answer either: host overloaded, as often as it happens."""
    for _ in range(3):
        hang(bench)
        bench.clock.advance(DEADLINE * 0.6)
        bench.until(lambda: True)  # the heartbeat is asked, and nothing of its answer is heard
        bench.clock.advance(DEADLINE)
        bench.supervisor.tick()
        bench.clock.advance(DEADLINE)
        bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
        assert "host overloaded" in said(bench)
        assert not is_hard(bench)
        assert bench.status().witnessed == 0
        rise(bench)


def test_a_hang_while_the_heartbeat_stands_still_is_nobodys_fault(bench: Bench) -> None:
    """It kept time at first and then answered too late: how late is told, as often as it happens."""
    for _ in range(2):
        hang(bench)
        bench.pass_time(DEADLINE * 0.8)
        pid = bench.supervisor.heartbeat.pid
        assert pid is not None
        stop(bench, pid)
        for _ in range(8):
            bench.clock.advance(0.3)
            bench.until(lambda: True)
        bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
        assert f"the idle test process (process {pid}) is stopped too" in said(bench)
        assert not is_hard(bench)
        assert bench.status().witnessed == 0
        rise(bench)


def test_a_hang_while_the_heartbeat_answered_late_is_nobodys_fault(bench: Bench) -> None:
    """It was stopped and goes on before the end of the deadline: how late it answered is told."""
    hang(bench)
    bench.pass_time(DEADLINE * 0.8)
    pid = bench.supervisor.heartbeat.pid
    assert pid is not None
    stop(bench, pid)
    for seconds in (0.3, 0.6):  # it is asked, and the answer is late
        bench.clock.advance(seconds)
        bench.until(lambda: True)
    os.kill(pid, signal.SIGCONT)
    bench.until(lambda: not bench.supervisor.heartbeat.waits)
    bench.clock.advance(DEADLINE * 0.2)
    bench.until(lambda: bench.status().state is ReaderState.HUNG)
    assert "host overloaded: an idle test process answered only after" in said(bench)
    assert not is_hard(bench)


def test_a_heartbeat_that_was_killed_is_another_one_for_the_next_call(bench: Bench) -> None:
    """Its end proves nothing of this call, and nothing of the next: that one has a heartbeat of its own."""
    hang(bench)
    bench.pass_time(DEADLINE * 0.6)
    heartbeat = bench.supervisor.heartbeat
    first = heartbeat.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    bench.until(lambda: bool(heartbeat.failure))
    bench.pass_time(DEADLINE * 0.4)
    bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
    assert "the idle test process was killed: see journalctl -k" in said(bench)
    assert bench.status().witnessed == 0
    bench.clock.advance(1.0)
    bench.until_in("fake_read(b")  # the round that was not finished, while the first heartbeat would still be wanted
    bench.pass_time(DEADLINE)
    bench.until(lambda: bench.status().hangs == 2 and bench.status().pid is None)
    assert bench.status().witnessed == 1


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit(1)", "the idle test process could not start: see the log of the agent"),
        ("import os\nos.write(1, os.read(0, 64))", "the idle test process was killed: see journalctl"),
    ],
    ids=["no start", "one answer"],
)
def test_a_heartbeat_that_never_answered_was_not_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    """Python's library may be away while the distribution is upgraded: the log of the kernel tells nothing of that."""
    heartbeat = bench.supervisor.heartbeat
    monkeypatch.setattr(heartbeat, "_argv", (sys.executable, "-I", "-S", "-c", program))
    hang(bench)
    bench.pass_time(DEADLINE * 0.6)
    bench.until(lambda: bool(heartbeat.failure))
    bench.pass_time(DEADLINE * 0.4)
    bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
    assert words in said(bench)
    assert bench.status().witnessed == 0


def test_a_heartbeat_exists_only_while_a_call_is_late_and_is_small(bench: Bench) -> None:
    """None while everything answers, one of a few MiB while a call is out for long, none soon after."""
    heartbeat = bench.supervisor.heartbeat
    bench.round(INTERVAL)
    assert heartbeat.pid is None
    hang(bench)
    assert heartbeat.pid is None
    bench.pass_time(DEADLINE * 0.9)
    assert heartbeat.pid is not None
    memory = psutil.Process(heartbeat.pid).memory_full_info()
    assert memory.pss < HEARTBEAT_BYTES
    bench.pass_time(DEADLINE * 0.1)
    bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
    rise(bench)
    bench.clock.advance(5.0)
    bench.until(lambda: heartbeat.pid is None)


def test_a_reader_that_is_stopped_is_nobodys_fault(bench: Bench) -> None:
    """Somebody stopped it in the middle of a call, twice: it is told how to let it go on."""
    for _ in range(2):
        stop(bench, hang(bench))
        bench.pass_time(DEADLINE)
        bench.until_state(ReaderState.HUNG)
        bench.clock.advance(0.5)
        bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
        assert "it is stopped (state T)" in said(bench)
        assert not is_hard(bench)
        rise(bench)


def test_a_helper_of_the_library_that_is_stopped_is_nobodys_fault(bench: Bench) -> None:
    """The call waits for a program that the library started, as the NVIDIA library starts nvidia-modprobe."""
    bench.write(read={"b": "helper"})
    bench.clock.advance(INTERVAL)
    bench.until_in("fake_read(b")
    bench.until(lambda: any(look.state == "T" for look in others(bench).values()))
    bench.pass_time(DEADLINE)
    bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
    assert "which it may wait for: it is stopped (state T)" in said(bench)
    assert bench.status().witnessed == 0


def others(bench: Bench) -> dict[Other, ProcessStatus]:
    """Return how the threads of the reader are, and what it started."""
    pid = bench.status().pid
    return {} if pid is None else Surroundings().others(pid)


def test_what_a_call_may_wait_for_is_threads_and_programs() -> None:
    """Those of its programs too; of itself only the other threads."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with ended(subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)) as parent:
        deadline = time.monotonic() + 20.0
        while not (found := Surroundings().others(parent.pid)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [psutil.Process(other.pid).ppid() for other in found] == [parent.pid]
        blocked = {
            other: msgspec.structs.replace(look, state="D", function="nfs_wait") for other, look in found.items()
        }
        words = disturbed(found, blocked, 5.0)
        assert "which it may wait for: it waits in nfs_wait: waiting for a network file system" in words
        assert disturbed(found, found, 5.0) == ""
        parent.communicate(b"\n")
    assert Surroundings().others(parent.pid) == {}


@pytest.mark.parametrize(
    ("before", "stopped", "after"), [(0.6, 0.3, 0.1), (0.0, 0.4, 0.6)], ids=["while it is watched", "before"]
)
def test_a_reader_that_was_stopped_for_a_while_only_is_nobodys_fault(
    bench: Bench, before: float, stopped: float, after: float
) -> None:
    """It runs when the deadline is over. Its watch begins when half of that is gone."""
    for _ in range(2):
        pid = hang(bench)
        bench.pass_time(DEADLINE * before)
        stop(bench, pid)
        bench.pass_time(DEADLINE * stopped)
        os.kill(pid, signal.SIGCONT)
        bench.pass_time(DEADLINE * after)
        bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
        assert "it is stopped (state T)" in said(bench)
        assert bench.status().witnessed == 0
        rise(bench)


def test_a_host_that_stood_still_before_the_watch_began_is_nobodys_fault(bench: Bench) -> None:
    """A call of four seconds got three of its five: the heartbeat keeps time later, and proves nothing of before."""
    for _ in range(3):
        hang(bench)
        bench.clock.advance(DEADLINE * 0.45)
        bench.pass_time(DEADLINE * 0.55)
        bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
        assert "host overloaded: the agent was delayed for 2.0 s" in said(bench)
        assert bench.status().witnessed == 0
        rise(bench)


def excused(bench: Bench, wait: float) -> None:
    """Have the reader hang at its first device after *wait* seconds, while the agent is delayed."""
    bench.write(read={"a": "hang"})
    bench.clock.advance(wait)
    bench.until_in("fake_read(a")
    bench.clock.advance(DEADLINE * 0.45)
    bench.pass_time(DEADLINE * 0.55)
    bench.until(lambda: bench.status().state is ReaderState.HUNG and bench.status().pid is None)
    assert "host overloaded: the agent was delayed" in said(bench)


def test_a_board_whose_hangs_are_excused_keeps_its_siblings_from_no_reading(bench: Bench) -> None:
    """The second time it is read after them, and then not for half a minute; nobody is blamed, however often."""
    excused(bench, INTERVAL)
    before = len(bench.samples)
    excused(bench, 1.0)
    assert bench.log[-1] == "start skip= last=a"
    assert {entry.device for entry in bench.samples[before:] if entry.failure is None} == {"b", "c"}
    assert outcome(bench.round(1.0)) == {"a": "reader", "b": "ok", "c": "ok"}
    assert bench.status().quarantined == ("a",)
    assert (bench.status().witnessed, bench.status().blamed) == (0, {})
    bench.write(read={})
    for _ in range(4):
        bench.round(INTERVAL)
    bench.until(lambda: bench.supervisor.settled)
    assert bench.status().quarantined == ()
    assert outcome(bench.samples) == {"a": "ok", "b": "ok", "c": "ok"}


def test_a_board_that_answers_between_two_excused_hangs_is_read_in_each_round(bench: Bench) -> None:
    """What keeps the host busy meets it by chance."""
    for _ in range(3):
        excused(bench, INTERVAL)
        assert bench.status().quarantined == ()
        rise(bench)
        assert outcome(bench.round(INTERVAL)) == {"a": "ok", "b": "ok", "c": "ok"}


TRACER = """
import ctypes, os, sys
ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), None, None)
os.waitpid(int(sys.argv[1]), 0x40000000)
print("traced", flush=True)
sys.stdin.read()
"""
"""A debugger at its prompt: it has stopped a process (PTRACE_ATTACH, __WALL), and waits for no end of it."""


@contextlib.contextmanager
def tracing(program: str, pid: int) -> Iterator[None]:
    """Have *program* trace the process *pid* meanwhile; skips where the machine lets nobody trace."""
    command = [sys.executable, "-I", "-c", program, str(pid)]
    with ended(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as tracer:
        assert tracer.stdin is not None
        assert tracer.stdout is not None
        if tracer.stdout.readline() != b"traced\n" or "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text():
            pytest.skip(NO_TRACING)
        yield
        tracer.stdin.close()


def test_a_reader_that_a_debugger_holds_is_nobodys_fault(bench: Bench) -> None:
    """Stopped in a call until its deadline, and then dead, but not let go: soft for as long as that lasts."""
    pid = hang(bench)
    with tracing(TRACER, pid):
        bench.pass_time(DEADLINE)
        bench.until_state(ReaderState.HUNG)
        assert "end the tracer" in said(bench)
        bench.clock.advance(2.0)
        bench.until_state(ReaderState.STUCK)
        bench.until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        for _ in range(2 * STUCK_SECONDS // INTERVAL_SECONDS):
            bench.clock.advance(INTERVAL_SECONDS)
            bench.until(lambda: True)
            assert "it has ended, and the program that traces it" in said(bench)
            assert not is_hard(bench)
    bench.until(lambda: bench.status().pid is None)
    rise(bench)
    assert said(bench) == ""


SLOWING = """
import ctypes, os, sys
pid, libc = int(sys.argv[1]), ctypes.CDLL(None)
libc.ptrace(0x4206, pid, None, None)
print("traced", flush=True)
sys.stdin.read()
"""
"""A tracer as strace is between two system calls: it has seized a process (PTRACE_SEIZE), which runs on."""


def test_a_reader_that_a_tracer_slows_is_nobodys_fault(bench: Bench) -> None:
    """Each of its system calls waits for the tracer, and between two of them it is in no state that shows it."""
    with tracing(SLOWING, hang(bench)):
        bench.pass_time(DEADLINE)
        bench.until_state(ReaderState.HUNG)
        assert "a program traces it" in said(bench)
        assert not is_hard(bench)
    bench.until(lambda: bench.status().pid is None)
    assert bench.status().witnessed == 0


def test_a_reader_that_its_cgroup_froze_is_nobodys_fault(tmp_path: Path, freeze: Freeze) -> None:
    """It cannot be killed, its state is D and it is inside a call: and still it is the freezer, which is named."""
    bench = Bench(tmp_path, cgroups=FREEZER.parent)
    bench.round()
    thaw = freeze(hang(bench))
    bench.pass_time(DEADLINE)
    bench.until_state(ReaderState.HUNG)
    bench.clock.advance(2.0)
    bench.until_state(ReaderState.STUCK)
    for _ in range(12):
        bench.clock.advance(DEADLINE)
        bench.until(lambda: True)
        assert "frozen by its cgroup" in said(bench)
        assert not is_hard(bench)
    let_go(bench, thaw)
    bench.write(read={})
    bench.until(lambda: bench.status().pid is None)
    bench.round(61.0)
    assert said(bench) == ""
    bench.close()


class Told(Surroundings):
    """Says of every process that it is in *state* and waited for a processor for *share* of the time."""

    def __init__(self, clock: SteppedClock, state: str, share: float = 0.0) -> None:
        """Look like that from now on."""
        super().__init__()
        self._clock, self._state, self._share = clock, state, share

    def look(self, pid: int) -> ProcessStatus | None:
        """Return that."""
        waited = self._share * self._clock.monotonic()
        return ProcessStatus(self._state, frozen=False, major_faults=0, waited_seconds=waited)


def let_go(bench: Bench, thaw: Callable[[], None]) -> None:
    """Let the process that could not be killed end, and wait until it is gone."""
    thaw()
    bench.until(lambda: bench.status().pid is None)


Stick = Callable[[Callable[[SteppedClock], Surroundings]], Bench]


@pytest.fixture
def stuck(tmp_path: Path, freeze: Freeze) -> Iterator[Stick]:
    """Make a bench whose reader hangs in a call, is proven to, was killed and is still there."""
    made: list[tuple[Bench, Callable[[], None]]] = []

    def stick(surroundings: Callable[[SteppedClock], Surroundings]) -> Bench:
        bench = Bench(tmp_path)
        bench.surroundings = surroundings(bench.clock)
        bench.supervisor = bench.supervise([bench.plan()])
        bench.round()
        made.append((bench, freeze(hang(bench))))
        bench.pass_time(DEADLINE)
        bench.until_state(ReaderState.HUNG)
        bench.clock.advance(2.0)
        bench.until_state(ReaderState.STUCK)
        return bench

    yield stick
    for bench, thaw in made:
        let_go(bench, thaw)
        bench.close()


def test_a_proven_hang_in_state_d_is_the_drivers_at_once(stuck: Stick) -> None:
    """The call is out past its deadline while time was kept, and no signal reaches the process."""
    bench = stuck(lambda clock: Told(clock, "D"))
    assert is_hard(bench)


def test_a_killed_process_that_stays_in_its_call_is_the_drivers_after_ten_deadlines(stuck: Stick) -> None:
    """It is not in state D: soft until it was out for so long that no call needs it, and not a second longer."""
    bench = stuck(lambda clock: Told(clock, "R"))
    for _ in range(STUCK_SECONDS // INTERVAL_SECONDS):
        assert "it was killed and has not ended yet; check the load of the node" in said(bench)
        assert "is started again" not in said(bench)
        assert not is_hard(bench)
        bench.clock.advance(INTERVAL_SECONDS)
        bench.until(lambda: True)
    assert is_hard(bench)
    assert [finding.code for finding in findings(bench) if finding.device == NODE and finding.hard] == ["reader.stuck"]


def test_a_killed_process_whose_library_lies_on_a_silent_disk_is_nobodys_fault(stuck: Stick) -> None:
    """It may wait there, in a function that tells nothing of it; once the disk answers, it has the usual time."""
    bench = stuck(lambda clock: Told(clock, "R"))
    with silent(bench.surroundings.disk):
        for _ in range(3 * STUCK_SECONDS // INTERVAL_SECONDS):
            bench.clock.advance(INTERVAL_SECONDS)
            bench.until(lambda: True)
            assert not is_hard(bench)
        assert "does not answer: check the file systems" in said(bench)
    for _ in range(STUCK_SECONDS // INTERVAL_SECONDS):
        assert not is_hard(bench)
        bench.clock.advance(INTERVAL_SECONDS)
        bench.until(lambda: True)
    assert is_hard(bench)


def test_a_killed_process_without_a_processor_is_nobodys_fault(stuck: Stick) -> None:
    """It could end and gets no turn: however long."""
    bench = stuck(lambda clock: Told(clock, "R", share=0.2))
    bench.surroundings._share = 0.6  # type: ignore[attr-defined]
    for _ in range(3 * STUCK_SECONDS // INTERVAL_SECONDS):
        bench.clock.advance(INTERVAL_SECONDS)
        bench.until(lambda: True)
        assert "for a processor" in said(bench)
        assert not is_hard(bench)


def test_a_call_that_the_end_of_the_agent_met_at_work_is_no_hang(bench: Bench, freeze: Freeze, tmp_path: Path) -> None:
    """In state D a second after it began: nobody's fault, neither for this agent nor, for a minute, for the next."""
    thaw = freeze(hang(bench))
    bench.supervisor.stop()
    for _ in range(3):
        bench.clock.advance(0.5)
        bench.until(lambda: True)
    assert bench.status().state is ReaderState.STUCK
    assert not is_hard(bench)

    (tmp_path / "next").mkdir()
    following = Bench(tmp_path / "next", remembered=bench.supervisor.records)
    for _ in range(ORPHAN_SECONDS + STUCK_SECONDS):
        following.until(lambda: True)
        assert not is_hard(following)
        following.clock.advance(1.0)
    assert following.status().state is ReaderState.STUCK
    following.clock.advance(1.0)
    following.until(lambda: True)
    assert is_hard(following)
    let_go(bench, thaw)
    following.until(lambda: following.status().pid is None)
    following.close()


def test_a_hang_that_was_not_proven_is_not_proven_by_a_process_that_is_slow_to_end(
    bench: Bench, freeze: Freeze
) -> None:
    """Host overloaded, and two seconds after SIGKILL in state D: still the host."""
    thaw = freeze(hang(bench))
    bench.clock.advance(DEADLINE * 0.6)
    bench.until(lambda: True)
    for _ in range(2):
        bench.clock.advance(DEADLINE)
        bench.supervisor.tick()
    bench.until_state(ReaderState.HUNG)
    bench.clock.advance(2.0)
    bench.until_state(ReaderState.STUCK)
    assert not is_hard(bench)
    let_go(bench, thaw)


@pytest.mark.parametrize("error", [11, 12, 23, 24, 2, 13, 8, 7])
def test_a_reader_that_cannot_be_started_says_what_to_do(error: int) -> None:
    """No process, memory or descriptor left is told as that, with the setting to raise."""
    failure = no_start("nvidia", OSError(error, os.strerror(error))).failure
    assert failure.kind is FailureKind.READER
    assert os.strerror(error) in failure.detail
    assert failure.detail.count(": ") >= 2


def test_an_interpreter_that_is_gone_is_no_fault_of_the_driver(tmp_path: Path) -> None:
    """The reader is tried again, ever later, and is unknown meanwhile."""
    bench = Bench(tmp_path)
    plan = msgspec.structs.replace(bench.plan(), argv=(str(tmp_path / "python"),))
    bench.supervisor = bench.supervise([plan])
    for _ in range(4):
        bench.clock.advance(61.0)
        bench.until_state(ReaderState.CRASHED)
        assert "cannot be started" in said(bench)
        assert not is_hard(bench)


UNDER_OOM = "oom_kill_disable 1\nunder_oom 1\noom_kill 0\n"

FULL_GROUPS = [
    ("memory/a", UNDER_OOM, True),
    ("memory", UNDER_OOM, True),
    ("memory/a", "oom_kill_disable 1\nunder_oom 0\n", False),
    ("memory/b", UNDER_OOM, False),
]
"""Folders of memory.oom_control, what it says, and whether the group /a is full."""

QUIET = ProcessStatus(state="S", frozen=False, major_faults=100, waited_seconds=1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"state": "D", "function": "nvidia_ioctl"}, ""),
        ({"state": "R"}, ""),
        ({"state": "T"}, "stopped"),
        ({"state": "t"}, "a program traces it"),
        ({"traced": True}, "a program traces it"),
        ({"traced": True, "state": "D", "function": "nvidia_ioctl"}, ""),
        ({"state": "D", "dumping": True}, "a signal ended it, and its core dump is being written"),
        ({"frozen": True}, "frozen"),
        ({"major_faults": 100 + 99}, ""),
        ({"major_faults": 100 + 101}, "swapped out: 101 pages"),
        ({"waited_seconds": 1.0 + STARVED_RATIO * 5.0}, ""),
        ({"waited_seconds": 1.1 + STARVED_RATIO * 5.0}, "host overloaded: it waited"),
        ({"state": "D", "function": "folio_wait_bit_common"}, "a page is being read from disk"),
        ({"state": "D", "function": "rpc_wait_bit_killable"}, "waiting for a network file system"),
        ({"state": "D", "function": "mem_cgroup_handle_over_high"}, "the memory limit of its cgroup is reached"),
        ({"state": "D", "function": "__mem_cgroup_handle_over_high"}, "the memory limit of its cgroup is reached"),
        ({"state": "D", "function": "mem_cgroup_oom_synchronize"}, "is full, and the kernel kills nothing in it"),
        ({"state": "S", "function": "mem_cgroup_handle_oom"}, "is full, and the kernel kills nothing in it"),
        ({"state": "D", "function": "mem_cgroup_out_of_memory"}, "the memory limit of its cgroup is reached"),
        ({"state": "D", "function": "__alloc_pages_slowpath.constprop.0"}, "memory is short"),
        ({"state": "D", "function": "pagefault_out_of_memory"}, "memory is short"),
        ({"state": "D", "full_group": "/g/memory.oom_control"}, "(/g/memory.oom_control, under_oom 1): raise memory."),
        ({"state": "R", "full_group": "/g/memory.oom_control"}, ""),
        ({"state": "D", "function": "reclaim_throttle"}, "memory is short"),
        ({"state": "D", "function": "request_wait_answer"}, "(FUSE)"),
        ({"state": "S", "function": "request_wait_answer"}, "(FUSE)"),
        ({"state": "R", "function": "request_wait_answer"}, ""),
        ({"state": "D", "function": "fanotify_handle_event"}, "such as a virus scanner"),
        ({"state": "D", "function": "autofs_wait"}, "(automount)"),
        ({"state": "D", "function": "audit_log_start"}, "waiting for the audit daemon"),
        ({"state": "S", "function": "seccomp_do_user_notification"}, "allows or refuses system calls"),
        ({"state": "D", "function": "p9_client_rpc"}, "(9p)"),
        ({"state": "S", "function": "locks_lock_inode_wait"}, "a lock of a file (flock) that another"),
        ({"state": "S", "function": "fcntl_setlk"}, "a lock of a file (fcntl) that another"),
        ({"state": "D", "function": "percpu_rwsem_wait"}, "the file system is frozen"),
        ({"state": "D", "function": "do_get_write_access"}, "(ext4): its journal"),
        ({"state": "D", "function": "path_openat"}, "another program waits for the disk of the same folder"),
        ({"state": "S", "function": "unix_wait_for_peer"}, "another program that does not read its socket"),
        (
            {"state": "D", "wait": Wait(Leads.FILE, "it waits in write of the file /x; check disks")},
            "it waits in write of the file /x",
        ),
        ({"state": "R", "wait": Wait(Leads.FILE, "it waits in write of the file /x; check disks")}, ""),
        ({"state": "S", "wait": Wait(Leads.PROGRAM, "recvfrom of a socket")}, ""),
        ({"state": "S", "wait": Wait(Leads.DRIVER)}, ""),
    ],
    ids=str,
)
def test_what_keeps_a_reader_from_running_is_seen(changes: dict[str, object], words: str) -> None:
    """Between two looks five seconds apart: a wait inside the driver is none of it."""
    found = disturbance(QUIET, msgspec.structs.replace(QUIET, **changes), 5.0)
    assert (words in found) if words else found == ""


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("ptlrpc_set_wait", "Lustre"),
        ("ldlm_completion_ast", "Lustre"),
        ("cl_sync_io_wait", "Lustre"),
        ("osc_enter_cache", "Lustre"),
        ("osc_extent_wait", "Lustre"),
        ("obd_get_request_slot", "Lustre"),
        ("cxiWaitEventWait", "GPFS"),
        ("ceph_mdsc_wait_request", "Ceph"),
        ("ceph_osdc_wait_request", "Ceph"),
        ("ceph_get_caps", "Ceph"),
        ("wait_request_timeout", "Ceph"),
        ("__IBVSocket_waitForRecvCompletionEvent", "BeeGFS"),
        ("IBVSocket_waitForRecvCompletionEvent", "BeeGFS"),
        ("NodeConnPool_acquireStreamSocketEx", "BeeGFS"),
    ],
)
def test_a_wait_for_a_clusters_file_system_is_no_hang_of_the_driver(function: str, name: str) -> None:
    """A library on /home or /scratch is read through it, in the middle of a call: in D, S (FUSE) or I (Lustre)."""
    for state in "DSI":
        waiting = msgspec.structs.replace(QUIET, state=state, function=function)
        assert f"it waits in {function}: waiting for a network file system ({name}" in disturbance(QUIET, waiting, 5.0)
    assert disturbance(QUIET, msgspec.structs.replace(QUIET, state="R", function=function), 5.0) == ""


STACKS = {
    "page of a library on squashfs": "squashfs_readahead read_pages page_cache_ra_unbounded filemap_fault __do_fault",
    "page of a library on a disk that the table does not know": "bch2_read_single filemap_fault __do_fault do_fault",
    "name of a file on ext4": "__ext4_get_inode_loc __ext4_iget ext4_lookup __lookup_slow walk_component path_lookupat",
    "name of a file elsewhere": "d_lookup_wait some_lookup lookup_open open_last_lookups path_openat do_filp_open",
    "file on XFS": "xfs_buf_iowait xfs_buf_read_map xfs_da_read_buf xfs_file_read_iter vfs_read ksys_read",
    "file on a disk": "some_read_folio filemap_read vfs_read ksys_read",
    "memory that was swapped": "swapin_of_somebody do_swap_page handle_mm_fault do_user_addr_fault asm_exc_page_fault",
    "memory of a caller that the driver reads": "x_readahead filemap_fault do_fault asm_exc_page_fault nvidia_ioctl",
    "folder": "wait_of_somebody some_readdir iterate_dir __x64_sys_getdents64",
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_a_page_or_name_that_a_disk_does_not_give_is_no_hang_of_the_driver(stack: str, tmp_path: Path) -> None:
    """Each file system waits in functions of its own; what called them is the same for all."""
    waiting = looked_at(tmp_path, stack)
    assert (waiting.function, *waiting.callers) == tuple(stack.split())
    found = disturbance(QUIET, waiting, 5.0)
    assert found.startswith(f"it waits in {waiting.function}")
    assert "check disks, network file systems and memory" in found
    assert disturbance(QUIET, msgspec.structs.replace(waiting, state="R"), 5.0) == ""


@pytest.mark.parametrize(
    "function",
    [
        *("squashfs_readahead", "submit_bio_wait", "blk_wait_io", "__ext4_get_inode_loc", "xfs_buf_iowait"),
        *("z_erofs_runqueue", "erofs_bread", "btrfs_read_folio", "jbd2_log_wait_commit", "zio_wait", "cv_wait_common"),
        *("d_alloc_parallel", "__wait_on_buffer"),
    ],
)
def test_the_innermost_function_alone_tells_of_the_common_file_systems(function: str, tmp_path: Path) -> None:
    """The agent's unit has no right to read a stack, and the kernel tells the one function (wchan)."""
    waiting = looked_at(tmp_path, function, file="wchan")
    assert (waiting.function, waiting.callers) == (function, ())
    assert f"it waits in {function}: " in disturbance(QUIET, waiting, 5.0)


def test_what_a_function_calls_for_itself_counts_as_its_own() -> None:
    """A driver may call a wait of the kernel that has other uses too; memory that it asks for is one."""
    look = msgspec.structs.replace(QUIET, state="D", function="amdgpu_smu_wait", callers=("io_schedule", "do_exit"))
    assert disturbance(QUIET, look, 5.0) == ""


def looked_at(folder: Path, functions: str, file: str = "stack") -> ProcessStatus:
    """Return how a process in state D looks that is in these kernel *functions*, the innermost first."""
    process = folder / "7"
    process.mkdir()
    (process / "stat").write_text(f"7 (reader) D {' '.join(['0'] * 40)}")
    frames = "".join(f"[<0>] {name}+0x1b/0x90\n" for name in functions.split())
    (process / file).write_text(functions if file == "wchan" else frames)
    look = Surroundings(folder).look(7)
    assert look is not None
    return look


def test_no_wait_of_a_driver_is_one_for_a_file_system() -> None:
    """What stands in the table acquits: no function of the drivers that are watched begins like one of it."""
    functions = (
        *("nvidia_ioctl", "nvidia_unlocked_ioctl", "os_acquire_semaphore", "rm_ioctl", "uvm_ioctl", "nv_alloc_pages"),
        *("amdgpu_drm_ioctl", "amdgpu_smu_wait", "smu_cmn_wait_for_response", "kfd_ioctl", "dma_fence_wait"),
        *("down", "down_read", "rwsem_down_read_slowpath", "msleep", "wait_for_completion", "hl_ioctl"),
    )
    for function in functions:
        assert disturbance(QUIET, msgspec.structs.replace(QUIET, state="D", function=function), 5.0) == "", function
        calls = ("full_proxy_ioctl __x64_sys_ioctl", "chrdev_open do_dentry_open path_openat", "vfs_read ksys_read")
        for callers in (*calls, "dev_attr_show kernfs_seq_show seq_read_iter", "nv_procfs_read_gpu_info proc_reg_read"):
            look = msgspec.structs.replace(QUIET, state="D", function=function, callers=tuple(callers.split()))
            assert disturbance(QUIET, look, 5.0) == "", (function, callers)


def test_a_process_is_looked_at_as_the_kernel_shows_it() -> None:
    """This very process runs, is not frozen, and its waiting for processors is counted."""
    look = Surroundings().look(os.getpid())
    assert look is not None
    assert (look.state, look.frozen) == ("R", False)
    assert look.waited_seconds is None or look.waited_seconds >= 0
    assert Surroundings().look(2**22 + 1) is None


@pytest.mark.parametrize("line", ["4:memory:/a", "0::/a"])
@pytest.mark.parametrize(("folder", "text", "full"), FULL_GROUPS)
def test_a_full_group_that_kills_nothing_is_seen(tmp_path: Path, line: str, folder: str, text: str, full: bool) -> None:
    """Version 1 of cgroups alone has that; a container may see its own group as the top."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(Path("/proc/self/stat").read_text())
    (tmp_path / "7/cgroup").write_text(f"9:cpu:/b\n{line}\n")
    control = tmp_path / "groups" / folder / "memory.oom_control"
    control.parent.mkdir(parents=True)
    control.write_text(text)
    look = Surroundings(tmp_path, tmp_path / "groups").look(7)
    assert look is not None
    assert look.full_group == (str(control) if full and "memory" in line else "")


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.0), (3.0, 1.0)], ids=["all", "some"])
def test_a_reader_that_waits_for_memory_of_its_group_is_nobodys_fault(
    bench: Bench, before: float, after: float
) -> None:
    """Also for a while only, and where the kernel does not show what it waits for; the next reading ends it."""
    look = bench.surroundings.look

    def full(pid: int) -> ProcessStatus | None:
        return msgspec.structs.replace(seen, full_group="/g") if (seen := look(pid)) else None

    for times in range(1, 4):
        hang(bench)
        bench.pass_time(before)
        bench.surroundings.look = full  # type: ignore[method-assign]
        bench.pass_time(DEADLINE - before - after)
        bench.surroundings.look = look  # type: ignore[method-assign]
        bench.pass_time(after)
        bench.until_gone(ReaderState.HUNG)
        assert "its cgroup is full, and the kernel kills nothing in it (/g, under_oom 1)" in said(bench)
        assert (bench.status().witnessed, is_hard(bench)) == (0, False)
        rise(bench, 61.0 * times)
        assert said(bench) == ""


def mapped_by(around: Surroundings, pid: int | None = None) -> MappedFiles:
    """Return the mapped files of this process, or of *pid*."""
    found = around.mapped(pid or os.getpid())
    assert found is not None
    return found


def test_a_library_that_was_replaced_on_disk_is_seen(tmp_path: Path) -> None:
    """Replaced by renaming, written anew or deleted: each is another file; one that is untouched is not."""
    library, around = tmp_path / "libfake.so.1", Surroundings(disk=Disk(REAL_SECONDS))
    for change in ("none", "rename", "rewrite", "delete"):
        library.write_bytes(b"x" * 4096)
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
            known = {path: seen for path, seen in mapped_by(around).libraries.items() if "libfake" in path}
            assert known == {str(library): stamp(str(library))}
            if change == "rename":
                (tmp_path / "new").write_bytes(b"y" * 4096)
                (tmp_path / "new").rename(library)
            elif change == "rewrite":
                os.utime(library, ns=(1, 1))
            elif change == "delete":
                library.unlink()
            expected = None if change == "none" else str(library)
            assert around.replaced(known) == expected
            assert around.replaced(known, mapped_by(around).libraries) == expected


def mapping(folder: Path, how: str, file: Path) -> Bench:
    """Return a bench whose reader maps *file*, at once or late, alone or with others."""
    script: dict[str, Any] = {how: str(file)}
    return Bench(folder, **script)


@pytest.mark.parametrize("loaded", ["map", "map_late"])
def test_a_reader_whose_library_was_replaced_loads_it_anew_without_blame(tmp_path: Path, loaded: str) -> None:
    """A driver update under a running reader is no crash, not even where it brings the reader down inside a call.

    Some libraries are loaded with the first call that needs them, when the reader has long been ready.
    """
    library = tmp_path / "libfake.so.1"
    library.write_bytes(b"x" * 4096)
    bench = mapping(tmp_path, loaded, library)
    bench.round()
    (tmp_path / "new").write_bytes(b"y" * 4096)
    (tmp_path / "new").rename(library)
    for behaviour in ("segv", "bus", "abort"):
        fall(bench, behaviour)
        assert "was replaced on disk meanwhile" in said(bench)
        assert not is_hard(bench)
        rise(bench)
        bench.round(INTERVAL)  # the first of this reader
        (tmp_path / "new").write_bytes(b"z" * 4096)
        (tmp_path / "new").rename(library)
    starts = bench.status().starts
    bench.clock.advance(10 * INTERVAL)
    bench.until(lambda: bench.status().starts == starts + 1 and bench.supervisor.settled)
    assert said(bench) == ""
    assert bench.status().witnessed == 0
    bench.close()


def test_an_update_is_no_cause_of_what_the_new_library_does(tmp_path: Path) -> None:
    """What fell with the old one loaded is excused; the new one is on disk as it was when the next reader started."""
    library = tmp_path / "libfake.so.1"
    library.write_bytes(b"x" * 4096)
    bench = Bench(tmp_path, map=str(library))
    bench.round()
    (tmp_path / "new").write_bytes(b"y" * 4096)
    (tmp_path / "new").rename(library)
    fall(bench, "segv")
    assert "was replaced on disk meanwhile" in said(bench)
    bench.write(start="segv")
    for hard in (False, True):
        crashes = bench.status().crashes
        bench.clock.advance(61.0)
        bench.until(lambda: bench.status().crashes > crashes and bench.status().pid is None)  # noqa: B023
        assert "the collector was killed by SIGSEGV in: fake_init" in bench.status().detail
        assert is_hard(bench) is hard
    bench.close()


@pytest.mark.parametrize("loaded", ["map", "map_late"])
def test_a_library_that_was_written_anew_in_its_place_is_loaded_anew(tmp_path: Path, loaded: str) -> None:
    """It is compared with what it was when it was noted first, in whatever round that is."""
    library = tmp_path / "libfake.so.1"
    library.write_bytes(b"x" * 4096)
    bench = mapping(tmp_path, loaded, library)
    bench.round()
    bench.round(INTERVAL)
    library.write_bytes(b"y" * 8192)
    bench.clock.advance(INTERVAL)
    bench.until(lambda: bench.status().starts == 2 and bench.supervisor.settled)
    assert said(bench) == ""
    bench.close()


@pytest.mark.parametrize("shared", ["share", "share_late"])
def test_a_file_that_another_program_cuts_short_is_no_crash_of_the_driver(tmp_path: Path, shared: str) -> None:
    """A library keeps a lock in /dev/shm that every user may write: cut to nothing, the next touch of it is SIGBUS."""
    lock = tmp_path / "lock"
    lock.write_bytes(bytes(4096))
    bench = mapping(tmp_path, shared, lock)
    bench.round()
    for _ in range(3):
        os.truncate(lock, 0)
        fall(bench, "touch")
        told = f"but it shares {lock} with other programs: one may have truncated it"
        assert f"was killed by SIGBUS in: fake_read(b, fast), {told}" in said(bench)
        assert not is_hard(bench)
        assert bench.status().witnessed == 0
        lock.write_bytes(bytes(4096))
        rise(bench)
        bench.round(INTERVAL)  # the first of this reader
    bench.close()


def test_a_bus_error_before_anything_is_known_of_its_files_is_nobodys_fault(tmp_path: Path) -> None:
    """A lock is mapped while a library is loaded, and the files of a dead process cannot be looked at any more."""
    bench = Bench(tmp_path, start="bus")
    for _ in range(3):
        bench.clock.advance(61.0)
        bench.until(lambda: bench.status().state is ReaderState.CRASHED and bench.status().pid is None)
        assert "was killed by SIGBUS in: fake_init, but it is not known which files it had mapped" in said(bench)
        assert bench.status().witnessed == 0
    bench.close()


def test_a_bus_error_in_each_start_is_the_drivers_once_its_files_were_seen(tmp_path: Path) -> None:
    """The first shows nothing; later ones stand still until the files are noted, which the next start reads through."""
    bench = Bench(tmp_path, start="cut", unreadable=["/proc/self/mem"])  # its first byte is EIO, for everybody
    for witnessed, told in (
        (0, "it is not known which files it had mapped: no start reached that point; search `journalctl -k`"),
        (1, "the collector was killed by SIGBUS in: fake_init"),
        (1, "/proc/self/mem cannot be read: Input/output error"),
    ):
        start(bench)
        assert told in bench.status().detail
        assert (bench.status().witnessed, is_hard(bench)) == (witnessed, False)
    bench.write(unreadable=[])
    start(bench)
    assert (bench.status().witnessed, is_hard(bench)) == (2, True)
    bench.close()


def test_a_bus_error_in_each_start_while_a_file_is_shared_is_nobodys_fault(tmp_path: Path) -> None:
    """Whoever may write the file can end the reader in each of its starts, and names himself by it."""
    lock = tmp_path / "lock"
    lock.write_bytes(bytes(4096))
    bench = Bench(tmp_path, start="cut", share=str(lock))
    for told in (
        "it is not known which files",
        *2 * (f"it shares {lock} with other programs: one may have truncated it",),
    ):
        start(bench)
        assert told in bench.status().detail
        assert bench.status().witnessed == 0
    bench.close()


@pytest.mark.parametrize("behaviour", ["null", "abort"])
def test_a_crash_in_each_start_while_a_file_is_shared_is_nobodys_fault(tmp_path: Path, behaviour: str) -> None:
    """Whoever may write the file can write nonsense into it, which a library reads while it is loaded."""
    lock = tmp_path / "lock"
    lock.write_bytes(bytes(4096))
    bench = Bench(tmp_path, start=behaviour, share=str(lock))
    for told in ("it is not known which files", *2 * (f"it shares {lock} with other programs: one may have written",)):
        start(bench)
        assert told in bench.status().detail
        assert bench.status().witnessed == 0
    bench.close()


@pytest.mark.parametrize("behaviour", ["null", "abort", "segv"])
def test_a_crash_in_each_start_of_a_library_that_shares_nothing_is_the_drivers(tmp_path: Path, behaviour: str) -> None:
    """Also where it takes the signal itself, so that nobody can look at what it has mapped: segv stands still never."""
    bench = Bench(tmp_path, start=behaviour)
    for witnessed in (0, 1, 2):
        start(bench)
        assert (bench.status().witnessed, is_hard(bench)) == (witnessed, witnessed == 2)
    bench.close()


def test_a_library_that_a_full_disk_cut_short_is_no_crash_of_the_driver(tmp_path: Path) -> None:
    """An update wrote a part of it: whoever loads or calls it meets an address that no file serves."""
    library = tmp_path / "libfake.so.1"
    whole = Path(ctypes_of_this_machine.__file__).read_bytes()
    for size, told in ((len(whole), "was killed by SIGSEGV"), (4096, f"{library} is truncated")):
        library.write_bytes(whole[:size])
        bench = Bench(tmp_path, map=str(library))
        bench.round()
        fall(bench, "null")
        assert told in said(bench)
        assert bench.status().witnessed == (size == len(whole))
        bench.close()


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 100, b"#!/bin/sh\n", None])
def test_what_is_no_library_is_not_cut_short(tmp_path: Path, content: bytes | None) -> None:
    """Nothing is said of what is not understood, or not there."""
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    assert cut_short([str(tmp_path / "file")]) == ""


def test_files_that_a_limit_refuses_are_no_crash_of_the_driver(bench: Bench) -> None:
    """A library that does not look whether a file was opened dies of SIGSEGV; the limit alone shows the cause."""
    for _ in range(2):
        pid = bench.status().pid
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (24, 24))
        fall(bench, "no_file")
        assert "it ran with the limit RLIMIT_NOFILE of 24, which may be too few files: raise LimitNOFILE" in said(bench)
        assert (bench.status().witnessed, is_hard(bench)) == (0, False)
        rise(bench)


def test_a_call_that_goes_on_after_a_bus_error_has_its_deadline(tmp_path: Path) -> None:
    """The page could be read the second time, and a thread of the library blocks all signals: it looks the same."""
    bench = Bench(tmp_path, start="bus")
    start(bench)
    bench.surroundings.stands_still = lambda pid: True  # type: ignore[method-assign]
    bench.write(start="hang")
    bench.clock.advance(61.0)
    bench.until_in("fake_init")
    bench.pass_time(60.5)
    bench.until_gone(ReaderState.HUNG)
    assert "fake_init has not returned" in bench.status().detail
    bench.close()


def start(bench: Bench) -> None:
    """Wait until the next start of the reader is over."""
    before = bench.status().starts
    bench.clock.advance(61.0)
    bench.until(lambda: bench.status().starts > before and bench.status().pid is None)


def test_a_thread_that_blocks_all_signals_does_not_stand_still(tmp_path: Path) -> None:
    """Threads of libraries do that; only in the handler, which is for one time, is it the bus error's own."""
    around = Surroundings(proc=tmp_path)
    task = tmp_path / "7/task/8"
    task.mkdir(parents=True)
    for caught, blocked, stands in ((0x40, 0x40, False), (0x0, 0x0, False), (0x0, 0x40, True), (0x20, 0xFF, True)):
        (tmp_path / "7/status").write_text(f"SigBlk:\t0000000000000000\nSigCgt:\t{caught:016x}\n")
        (task / "status").write_text(f"SigBlk:\t{blocked:016x}\nSigCgt:\t{caught:016x}\n")
        assert around.stands_still(7) is stands


def test_a_library_that_its_disk_refuses_is_no_crash_of_the_driver(tmp_path: Path) -> None:
    """A page that cannot be read is SIGBUS in a call: the next reader reads the file through before it loads it."""
    library = tmp_path / "libfake.so.1"
    library.write_bytes(b"x" * 4096)
    bench = Bench(tmp_path, map=str(library), unreadable=["/proc/self/mem"])  # its first byte is EIO, for everybody
    bench.round()
    fall(bench, "bus")
    assert not is_hard(bench)
    for _ in range(3):
        bench.clock.advance(61.0)
        bench.until(lambda: bench.status().state is ReaderState.FAILED and bench.status().pid is None)
        assert "/proc/self/mem cannot be read: Input/output error" in said(bench)
        assert (bench.failure.kind, bench.status().witnessed) == (FailureKind.READER, 1)
        assert not is_hard(bench)
    bench.write(unreadable=[])
    rise(bench)
    assert said(bench) == ""
    fall(bench, "bus")
    assert is_hard(bench)  # every library could be read in between
    bench.close()


def test_a_restart_of_the_agent_proves_no_library(bench: Bench) -> None:
    """A bus error before it and one after it are no two with all libraries read in between; the one after those is."""
    fall(bench, "bus")
    kept = bench.supervisor.falls
    assert [entry.fault for entry in kept] == ["SIGBUS"]
    blame = Blame("fake", bench.clock, Surroundings(), Heartbeat(bench.clock, bench.selector))
    blame.recall(kept)
    child = cast(
        Child,
        SimpleNamespace(tail=LastWords(), was_ended=False, in_call=True, call="fake", tight_limit="", pid=os.getpid()),
    )
    ends = []
    for _ in range(2):
        blame.loaded(child)
        ends.append(blame.ended(child, Exit(-signal.SIGBUS)).fault)
        assert blame.to_prove
    assert ends == ["", "SIGBUS"]


def test_the_program_of_a_reader_is_read_through_as_its_libraries_are() -> None:
    """Most of what runs in a call is the interpreter, whose pages a disk may refuse too."""
    assert os.path.realpath("/proc/self/exe") in mapped_by(Surroundings()).libraries


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
def test_a_crash_in_a_call_that_takes_names_of_users_apart_is_nobodys_fault(bench: Bench, number: int) -> None:
    """A user names a control group ``docker``, and AMD SMI ends by std::out_of_range over a process of his."""
    blame = Blame("amd", bench.clock, Surroundings(), Heartbeat(bench.clock, bench.selector))
    found = {}
    for call in ("amdsmi_get_gpu_process_list on GPU-1 (PCI 0000:0c:00.0)", "amdsmi_get_temp_metric on GPU-1"):
        child = cast(
            Child,
            SimpleNamespace(
                tail=LastWords(), was_ended=False, in_call=True, call=call, tight_limit="", pid=os.getpid()
            ),
        )
        found[call.partition(" ")[0]] = blame.ended(child, Exit(-number))
    users = found["amdsmi_get_gpu_process_list"]
    assert (users.fault, users.charged, users.failure.of_driver) == ("", True, False)
    assert "a group whose name ends with docker or lxc (cat /proc/PID/cgroup)" in users.failure.detail
    assert found["amdsmi_get_temp_metric"].fault


@pytest.mark.parametrize(
    ("call", "is_hard"), [("amdsmi_get_gpu_process_list", False), ("amdsmi_get_temp_metric", True)]
)
def test_a_call_of_users_that_cannot_be_killed_is_nobodys_fault(bench: Bench, call: str, is_hard: bool) -> None:
    """What it waits for may be a user's process: neither this agent nor the next blames the driver, however long."""
    looks, boot = Told(bench.clock, "D"), bench.clock.instant().boot_id
    words, ticks = f"{call} on GPU-1 (PCI 0000:0c:00.0)", start_ticks(os.getpid())
    assert ticks is not None
    child = cast(Child, SimpleNamespace(call=words, in_call=True, where="here", pid=os.getpid()))
    blame = Blame("amd", bench.clock, looks, Heartbeat(bench.clock, bench.selector))
    blame.stuck(child, 50.0)
    record = ChildRecord("amd", os.getpid(), ticks, boot, words, in_call=True)
    orphan = Orphan(record, bench.clock, looks, 50.0)
    orphan._killed = True  # it stands for this very process
    bench.clock.advance(60.0)
    orphan.tick(bench.clock.monotonic())
    assert orphan.failure is not None
    assert (blame.stuck(child, 50.0).failure.of_driver, orphan.failure.of_driver) == (is_hard, is_hard)


@pytest.mark.parametrize(("share", "is_hard"), [(0.6, False), (0.1, True)])
def test_an_orphan_without_a_processor_is_nobodys_fault(bench: Bench, share: float, is_hard: bool) -> None:
    """The agent before was killed on a machine that has no time for its reader's end either: however long."""
    looks, ticks = Told(bench.clock, "R", share), start_ticks(os.getpid())
    assert ticks is not None
    record = ChildRecord("fake", os.getpid(), ticks, bench.clock.instant().boot_id, "fake_read(b)", in_call=True)
    orphan = Orphan(record, bench.clock, looks, 50.0)
    orphan._killed = True  # it stands for this very process
    for _ in range(70):
        bench.clock.advance(1.0)
        orphan.tick(bench.clock.monotonic())
    assert orphan.failure is not None
    assert orphan.failure.of_driver is is_hard
    assert ("for a processor" in orphan.detail) is not is_hard


def test_only_libraries_under_a_bus_error_are_read_through(bench: Bench, tmp_path: Path) -> None:
    """Hundreds of files are read for that alone; a reader that serves again has proven them."""
    library = tmp_path / "libfake.so.1"
    library.write_bytes(b"x" * 4096)
    blame = Blame("fake", bench.clock, Surroundings(), Heartbeat(bench.clock, bench.selector))
    child = cast(
        Child,
        SimpleNamespace(tail=LastWords(), was_ended=False, in_call=True, call="fake", tight_limit="", pid=os.getpid()),
    )
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        blame.loaded(child)
        for number, proves in ((signal.SIGSEGV, False), (signal.SIGBUS, True)):
            blame.ended(child, Exit(-number))
            assert (str(library) in blame.to_prove) is proves
        blame.loaded(child)
    assert blame.to_prove == ()


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_DATA], ids=("RLIMIT_AS", "RLIMIT_DATA"))
def test_memory_that_a_limit_refuses_is_no_crash_of_the_driver(bench: Bench, limit: int) -> None:
    """A library that does not look whether it was given memory dies of SIGSEGV; the limit alone shows the cause."""
    for _ in range(2):
        pid = bench.status().pid
        assert pid is not None
        resource.prlimit(pid, limit, (1 << 30, 1 << 30))
        fall(bench, "no_room")
        assert "was killed by SIGSEGV in: fake_read(b, fast), but it ran with the limit RLIMIT_" in said(bench)
        assert "1073741824 bytes, which may be too little memory: remove LimitAS and LimitDATA" in said(bench)
        assert not is_hard(bench)
        assert bench.status().witnessed == 0
        rise(bench)


@pytest.mark.parametrize(
    ("mode", "committed", "excused"), [("2", 90, True), ("2", 89, False), ("0", 100, False), ("1", 100, False)]
)
def test_memory_that_the_kernel_refuses_is_no_crash_of_the_driver(
    tmp_path: Path, mode: str, committed: int, excused: bool
) -> None:
    """Any user may ask for all that there is to promise, where the kernel promises no more than that."""
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "sys/vm/overcommit_memory").write_text(f"{mode}\n")
    (tmp_path / "meminfo").write_text(f"MemFree: 5 kB\nCommitLimit:  100 kB\nCommitted_AS:  {committed} kB\n")
    shortage = Surroundings(tmp_path).shortages.commit_shortage()
    assert bool(shortage) is excused
    assert f"{committed} of 100 kB" in shortage or not excused


@pytest.mark.parametrize("missing", ["CommitLimit", "Committed_AS"])
def test_numbers_that_a_kernel_does_not_show_excuse_nothing(tmp_path: Path, missing: str) -> None:
    """As in a container whose /proc/meminfo is another program's."""
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "sys/vm/overcommit_memory").write_text("2\n")
    shown = {"CommitLimit": 100, "Committed_AS": 100}
    del shown[missing]
    (tmp_path / "meminfo").write_text("".join(f"{name}:  {value} kB\n" for name, value in shown.items()))
    assert Surroundings(tmp_path).shortages.commit_shortage() == ""


@pytest.mark.parametrize("want", ["commit_shortage", "task_shortage", "descriptor_shortage"])
def test_a_crash_while_the_kernel_refuses_memory_or_threads_is_nobodys_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, want: str
) -> None:
    """However often: many libraries do not look whether they were given what they asked for."""
    monkeypatch.setattr(Shortages, want, lambda _self: "it may have been refused")
    for _ in range(2):
        fall(bench, "segv")
        assert "in: fake_read(b, fast), but it may have been refused" in said(bench)
        assert bench.status().witnessed == 0
        rise(bench)


@pytest.mark.parametrize(("there", "short"), [(89, False), (90, True)])
@pytest.mark.parametrize("limit", ["pid_max", "threads-max"])
def test_threads_that_the_kernel_refuses_are_seen(tmp_path: Path, there: int, short: bool, limit: str) -> None:
    """Any user may start as many as there may be."""
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "loadavg").write_text(f"0.00 0.01 0.05 1/{there} 12345\n")
    for name in ("pid_max", "threads-max"):
        (tmp_path / "sys/kernel" / name).write_text("100\n" if name == limit else "1000\n")
    assert bool(Surroundings(tmp_path, tmp_path / "groups").shortages.task_shortage()) is short


@pytest.mark.parametrize("line", ["0::/system.slice/nodevet.service", "7:pids:/system.slice/nodevet.service"])
@pytest.mark.parametrize(("most", "short"), [("max", False), ("101", False), ("100", True)])
@pytest.mark.parametrize("group", ["system.slice", "system.slice/nodevet.service"])
def test_threads_that_a_group_refuses_are_seen(tmp_path: Path, line: str, most: str, short: bool, group: str) -> None:
    """TasksMax of the unit, or of a slice around it."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"1:name=systemd:/x\n{line}\n")
    groups = tmp_path / "groups" / ("pids" if "pids" in line else "")
    for name in ("system.slice", "system.slice/nodevet.service"):
        (groups / name).mkdir(parents=True)
        (groups / name / "pids.max").write_text(f"{most if name == group else 'max'}\n")
        (groups / name / "pids.current").write_text("90\n" if most != "101" else "89\n")
    shortage = Surroundings(tmp_path, tmp_path / "groups").shortages.task_shortage()
    assert bool(shortage) is short
    assert f"90 of 100 exist ({groups / group}/pids.max): raise TasksMax" in shortage or not short


@pytest.mark.parametrize("words", ["no_memory", "no_threads"])
def test_words_excuse_a_crash_three_times(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A broken board may have its library ask for memory that no machine has; a restart of the agent counts on."""
    for name in ("memory_shortage", "task_shortage", "descriptor_shortage"):
        monkeypatch.setattr(Shortages, name, lambda _self: "")
    for times in range(1, 4):
        fall(bench, words)
        assert "for lack of" in said(bench)
        rise(bench, 61.0 * times)
    assert bench.status().witnessed == 0
    following = restarted(bench, tmp_path / "next")
    for hard in (False, True):
        fall(following, words)
        assert is_hard(following) is hard
        assert "was killed by SIGABRT in: fake_read(b, fast); its last message:" in following.status().detail
        if not hard:
            rise(following)
    following.close()


@pytest.mark.parametrize("shortage", ["memory_shortage", "task_shortage", "descriptor_shortage"])
def test_words_that_the_kernel_bears_out_excuse_each_crash(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, shortage: str
) -> None:
    """Any user can take all that there is, for hours."""
    monkeypatch.setattr(Shortages, shortage, lambda _self: "there is no more")
    for times in range(1, 6):
        fall(bench, "no_memory")
        assert "for lack of memory" in said(bench)
        rise(bench, 61.0 * times)
    assert bench.supervisor.falls == ()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 49 kB\n"}, "49 of 1000 kB of memory are available"),
        ({"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 50 kB\n"}, ""),
        ({"proc/meminfo": "MemTotal: 1000 kB\n"}, ""),
        ({"groups/a/memory.max": "100\n", "groups/a/memory.current": "96\n"}, "96 of 100 bytes are taken"),
        ({"groups/a/memory.max": "100\n", "groups/a/memory.current": "95\n"}, ""),
        ({"groups/a/memory.max": "max\n", "groups/a/memory.current": "96\n"}, ""),
        ({"groups/a/b/memory.max": "max\n", "groups/a/memory.max": "10", "groups/a/memory.current": "10"}, "10 of 10"),
        (
            {
                "groups/a/memory.max": "100\n",
                "groups/a/memory.current": "99\n",
                "groups/a/memory.stat": "anon 90\nactive_file 1\ninactive_file 3\n",
            },
            "",
        ),
        (
            {
                "groups/a/memory.max": "100\n",
                "groups/a/memory.current": "99\n",
                "groups/a/memory.stat": "active_file 9\ntotal_active_file 1\ninactive_file 9\ntotal_inactive_file 2\n",
            },
            "96 of 100 bytes are taken",
        ),
    ],
)
def test_a_want_of_memory_is_seen(tmp_path: Path, files: dict[str, str], words: str) -> None:
    """In the machine and in the groups around the agent."""
    inner = "a/b" if any("a/b" in name for name in files) else "a"
    for name, text in {"proc/self/cgroup": f"0::/{inner}\n", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shortage = Surroundings(tmp_path / "proc", tmp_path / "groups").shortages.memory_shortage()
    assert shortage.startswith(words)
    assert bool(shortage) is bool(words)


@pytest.mark.parametrize(("text", "seen"), [("89\t0\t100\n", False), ("90\t0\t100\n", True), ("", False)])
def test_a_want_of_descriptors_is_seen(tmp_path: Path, text: str, seen: bool) -> None:
    """Of the whole machine."""
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/file-nr").write_text(text)
    assert bool(Surroundings(tmp_path).shortages.descriptor_shortage()) is seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [("", False), ("# none\n", False), ("# x\n /opt/tool.so:/b.so # y\n", True)],
    ids=["empty", "comment", "named"],
)
def test_a_library_that_is_put_into_every_program_may_be_what_crashed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, seen: bool
) -> None:
    """Its wrappers run inside the calls of the driver's library."""
    (tmp_path / "ld.so.preload").write_text(text)
    words = Surroundings(preloads=tmp_path / "ld.so.preload").preloaded()
    assert bool(words) is seen
    monkeypatch.setattr(Surroundings, "preloaded", lambda _self: words)
    fall(bench, "segv")
    assert ("ld.so.preload loads /opt/tool.so into every program" in said(bench)) is seen
    assert bench.status().witnessed == (not seen)


def test_a_reader_is_started_without_libraries_of_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the agent or of its plan may name some: a tool of the site that watches every program."""
    monkeypatch.setenv("LD_PRELOAD", "/opt/tool.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/driver")
    assert bench.plan().own_environment == {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    given = msgspec.structs.replace(bench.plan(), environment={"LD_AUDIT": "/a.so", "A": "b"})
    assert given.own_environment == {"A": "b"}
    fall(bench, "segv")
    rise(bench)
    pid = bench.status().pid
    assert b"LD_PRELOAD" not in Path(f"/proc/{pid}/environ").read_bytes()


class ForAWhile(Told):
    """Says that a process waits for the driver, but in some seconds since *began* for what it is told."""

    began = 0.0
    seconds = (0.0, 0.0)
    meanwhile = ProcessStatus("S", False, 0, 0.0, wait=Wait(Leads.PROGRAM, "it waits in recv of a socket"))
    after = ProcessStatus("S", False, 0, 0.0, wait=Wait(Leads.DRIVER))

    def look(self, pid: int) -> ProcessStatus | None:
        """Return that."""
        first, last = self.seconds
        passed = self._clock.monotonic() - self.began
        begun = self.meanwhile if passed >= first else ProcessStatus("S", False, 0, 0.0)
        return self.after if passed >= last else begun

    def others(self, pid: int, at_rest: frozenset[tuple[int, str]] = frozenset()) -> dict[Other, ProcessStatus]:
        """Return that it is alone."""
        return {}


def for_a_while(folder: Path, first: float, last: float) -> tuple[Bench, ForAWhile]:
    """Return a bench whose reader hangs, kept from the *first* to the *last* share of its call."""
    bench = Bench(folder)
    bench.surroundings = around = ForAWhile(bench.clock, "S")
    bench.supervisor = bench.supervise([bench.plan()])
    bench.round()
    around.began = bench.clock.monotonic() + INTERVAL
    around.seconds = (first * DEADLINE, last * DEADLINE)
    return bench, around


@pytest.mark.parametrize(("first", "last"), [(0.0, 0.4), (0.6, 0.8)])
@pytest.mark.parametrize("leads", [Leads.PROGRAM, Leads.FILE, Leads.UNKNOWN])
def test_a_wait_that_ended_before_the_deadline_excuses_its_call(
    tmp_path: Path, first: float, last: float, leads: Leads
) -> None:
    """The driver had only the rest of the deadline. A wait of which nothing is known excuses only at the deadline."""
    bench, around = for_a_while(tmp_path, first, last)
    around.meanwhile = msgspec.structs.replace(around.meanwhile, wait=Wait(leads, "it waits in recv of a socket"))
    hang(bench)
    bench.pass_time(DEADLINE)
    bench.until_state(ReaderState.HUNG)
    assert bench.status().witnessed == (1 if leads is Leads.UNKNOWN else 0)
    assert ("but it waits in recv of a socket" in said(bench)) is (leads is not Leads.UNKNOWN)
    bench.close()


@pytest.mark.parametrize(
    ("state", "leads", "counts"), [("S", Leads.DRIVER, 1), ("D", Leads.DRIVER, 1), ("R", Leads.LIBRARY, 0)]
)
def test_a_file_that_programs_share_excuses_no_wait_for_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, leads: Leads, counts: int
) -> None:
    """AMD SMI shares a lock of each board: another program may hold it, but not the device node."""
    bench, around = for_a_while(tmp_path, 0.0, 0.0)
    lock = MappedFiles({}, ("/dev/shm/lock",), has_huge_pages=False)  # noqa: S108
    monkeypatch.setattr(around, "mapped", lambda _pid: lock)
    around.after = ProcessStatus(state, False, 0, 0.0, wait=Wait(leads))
    hang(bench)
    bench.pass_time(DEADLINE)
    bench.until_state(ReaderState.HUNG)
    assert bench.status().witnessed == counts
    bench.close()


def test_threads_beside_a_call_that_waits_for_the_driver_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is stopped or wants a busy processor does not keep the driver from answering."""
    bench, around = for_a_while(tmp_path, 0.0, 0.0)
    stopped = {Other(7, "telemetry"): ProcessStatus("T", False, 0, 0.0)}
    monkeypatch.setattr(around, "others", lambda _pid, _at_rest=frozenset(): stopped)
    hang(bench)
    bench.pass_time(DEADLINE)
    bench.until_state(ReaderState.HUNG)
    assert bench.status().witnessed == 1
    bench.close()


def test_a_memory_map_that_does_not_come_is_no_silent_disk(tmp_path: Path) -> None:
    """A driver that hangs while it changes the map of its process keeps everybody from reading it."""
    process = tmp_path / "7"
    (process / "task").mkdir(parents=True)
    (process / "stat").write_text(f"7 (reader) S {' '.join(['0'] * 40)}")
    (process / "syscall").write_text(f"{202 if os.uname().machine == 'x86_64' else 98} 0x7ffd0 0 0 0 0 0 0 0\n")
    os.mkfifo(process / "maps")
    around = Surroundings(tmp_path)
    look = around.look(7)
    os.close(os.open(process / "maps", os.O_RDWR | os.O_NONBLOCK))
    assert look is not None
    assert look.wait.leads is Leads.UNKNOWN
    assert not around.disk.is_silent


def test_a_processor_that_was_away_until_the_watch_began_excuses_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel adds a wait for a processor when it is over: between the last look before the watch and its first."""
    monkeypatch.setattr("nodevet.agent.readers.call_watch.EARLY_SECONDS", 0.7)
    bench, around = for_a_while(tmp_path, 0.0, 0.49)
    around.meanwhile = ProcessStatus("R", False, 0, waited_seconds=0.0, ran_seconds=1.0)
    around.after = ProcessStatus("R", False, 0, waited_seconds=2.4, ran_seconds=1.1)
    hang(bench)
    bench.pass_time(DEADLINE)
    bench.until_state(ReaderState.HUNG)
    assert "host overloaded: it waited 2.4 of" in said(bench)
    assert bench.status().witnessed == 0
    bench.close()


@pytest.mark.parametrize("is_drivers", [False, True])
def test_a_wait_in_the_module_of_the_driver_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_drivers: bool
) -> None:
    """The call names no file, as the close of a device node; the kernel's function does, or nobody knows."""
    asked = list[str]()
    monkeypatch.setattr("nodevet.agent.readers.blame._module", lambda _backend: "fake_driver")
    bench, around = for_a_while(tmp_path, 0.0, 0.0)

    def waits_in_module(_pid: int, module: str) -> bool:
        asked.append(module)
        return is_drivers

    monkeypatch.setattr(around, "waits_in_module", waits_in_module)
    around.after = ProcessStatus(
        "D", False, 0, 0.0, wait=Wait(Leads.UNKNOWN, "it waits in close of a file that is not known")
    )
    hang(bench)
    bench.pass_time(DEADLINE)
    bench.until_state(ReaderState.HUNG)
    assert bench.status().witnessed == int(is_drivers)
    assert ("but it waits in close of a file that is not known" in said(bench)) is not is_drivers
    assert set(asked) == {"fake_driver"}
    bench.close()


@pytest.mark.parametrize(("ran", "waited", "is_over"), [(4.0, 1.0, False), (4.0, 0.0, False), (0.1, 1.0, True)])
def test_a_call_that_works_has_its_time_on_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: float, waited: float, is_over: bool
) -> None:
    """It waited for one, or was stopped between two looks, for a fifth of its deadline, which ends so much later."""
    bench, around = for_a_while(tmp_path, 0.0, 0.0)
    monkeypatch.setattr(around, "_ran_and_waited", lambda _pid: (1.0, 1.0))
    bench.round(INTERVAL)
    around.after = ProcessStatus("R", False, 0, ran_seconds=1.0 + ran, waited_seconds=1.0 + waited)
    hang(bench)
    bench.pass_time(DEADLINE)
    bench.until(lambda: True)
    assert bench.status().witnessed == int(is_over)
    around.after = msgspec.structs.replace(around.after, ran_seconds=1.0 + DEADLINE)
    bench.pass_time(1.0)
    bench.until(lambda: bench.status().witnessed == 1)
    bench.close()


def test_a_bus_error_beside_huge_pages_is_nobodys_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None may be left when it is touched; another crash of the same library counts."""
    monkeypatch.setattr(mapped_files, "HUGE_PAGES", re.compile(""))
    with contextlib.closing(Bench(tmp_path)) as bench:
        bench.round()
        for _ in range(2):
            fall(bench, "bus")
            assert "it has mapped huge pages, and none may have been left: see HugePages_Free in /proc/mem" in said(
                bench
            )
            assert bench.status().witnessed == 0
            rise(bench)
        fall(bench, "segv")
        assert bench.status().witnessed == 1


@pytest.mark.parametrize(
    ("line", "has"),
    [
        ("7f0000000000-7f0000200000 rw-p 00000000 00:0f 77 /anon_hugepage (deleted)", True),
        ("7f0000000000-7f0000200000 rw-s 00000000 00:10 77 /dev/hugepages/pool", True),
        ("7f0000000000-7f0000200000 rw-p 00000000 00:10 77 /srv/anon_hugepage.so", False),
    ],
)
def test_huge_pages_of_a_process_are_seen(tmp_path: Path, line: str, has: bool) -> None:
    """By the names of their mappings."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text(f"{line}\n")
    assert mapped_by(Surroundings(tmp_path), 7).has_huge_pages is has


class Unscheduled(Told):
    """Says that a process can run and, from *since* on, never does."""

    since = 0.0

    def look(self, pid: int) -> ProcessStatus | None:
        """Return that, with the figures of schedstat, which do not grow while it waits."""
        return ProcessStatus("R", False, 0, waited_seconds=0.0, ran_seconds=min(self._clock.monotonic(), self.since))


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_reader_that_gets_no_processor_at_all_is_nobodys_fault(tmp_path: Path, share: float) -> None:
    """The kernel adds to run_delay only when the process runs again: real-time tasks on its only processor."""
    bench = Bench(tmp_path)
    bench.surroundings = Unscheduled(bench.clock, "R")
    bench.supervisor = bench.supervise([bench.plan()])
    bench.round()
    bench.surroundings.since = bench.clock.monotonic() + INTERVAL + share * DEADLINE
    hang(bench)
    bench.pass_time(DEADLINE)
    bench.until_state(ReaderState.HUNG)
    assert "host overloaded: it had no processor for" in said(bench)
    assert bench.status().witnessed == 0
    bench.close()


@pytest.mark.parametrize(
    ("before", "after", "seconds", "seen"),
    [
        (("R", 1.0), ("R", 1.0), 1.5, True),
        (("R", 1.0), ("R", 1.0), 1.4, False),
        (("R", 1.0), ("R", 1.1), 1.5, False),
        (("S", 1.0), ("R", 1.0), 1.5, False),
        (("R", None), ("R", None), 1.5, False),
    ],
)
def test_only_what_could_run_and_never_did_had_no_processor(
    before: tuple[str, float | None], after: tuple[str, float | None], seconds: float, seen: bool
) -> None:
    """One that computes in its call is counted, and one that sleeps wants no processor."""
    first, second = (ProcessStatus(state, False, 0, 0.0, ran_seconds=ran) for state, ran in (before, after))
    assert disturbance(first, second, seconds).startswith("host overloaded: it had no processor for 1.5 s") is seen
    assert disturbance(first, first, seconds) == ""


@pytest.mark.parametrize("status", [*range(-64, 0), 0, 1, 255])
def test_every_end_of_a_process_has_words(status: int) -> None:
    """Real-time signals have no names, and exit codes are no signals."""
    end = Exit(status)
    assert (end.signal is None) is (status >= 0)
    assert bool(end.fault) is (status < 0)
    assert str(end)


def test_every_signal_of_the_table_exists() -> None:
    """A row that no process can die of would never count."""
    names = {name for name in fault_rows() if name not in ("hang", "said")}
    assert names == {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL"}
    assert all(hasattr(signal, name) for name in names)
    assert sys.platform == "linux"
