"""A driver that is slow, short of memory or asked by a wrapper that does not fit is told as that, and not blamed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from fakes.bench import DEADLINE, INTERVAL, Bench, outcome
from fakes.views import gpu, sample

from nodevet.agent.readers.blame import SLOW_DEADLINES, SLOW_START_DEADLINES, Blame
from nodevet.agent.readers.heartbeat import Heartbeat
from nodevet.agent.readers.witness import Surroundings
from nodevet.checks.backends.amd.amdsmi import NO_FUNCTION, UNREADABLE
from nodevet.checks.backends.amd.amdsmi import refused as refused_by_amd
from nodevet.checks.backends.nvidia.nvml import REFUSED_TO_IT, status_of
from nodevet.checks.backends.nvidia.nvml import refused as refused_by_nvml
from nodevet.checks.core.model import Failure, FailureKind, ReaderState, ReadingStatus
from nodevet.checks.engine.refusal import REFUSALS
from nodevet.checks.ipc.child_process import Child

START_SECONDS = 60.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A reader of three devices that is healthy until the test says otherwise."""
    bench = Bench(tmp_path, steps=99)
    bench.round()
    yield bench
    bench.close()


def let(bench: Bench, number: int) -> None:
    """Have the call with *number* return."""
    Path(f"{bench.script['log']}.{number}").touch()


def pass_calls(bench: Bench, seconds: float, *numbers: int) -> None:
    """Have the calls with *numbers* return, each *seconds* after it began."""
    for number in numbers:
        bench.until_in(f" part {number}")
        bench.pass_time(seconds)
        let(bench, number)


@pytest.mark.parametrize("seconds", [0.9, 1.6, 3.0])
def test_calls_that_return_are_no_hang_however_late_the_last_of_them_began(bench: Bench, seconds: float) -> None:
    """A board that needs more than the deadline for all of its calls together, each well within it, is read."""
    count = int((SLOW_DEADLINES * DEADLINE - 1.0) / seconds)
    assert count * seconds > DEADLINE
    for _ in range(3):
        bench.write(read={"b": "steps"}, steps=count)
        bench.clock.advance(INTERVAL)
        before = len(bench.samples)
        pass_calls(bench, seconds, *range(count - 1))
        bench.write(read={})
        pass_calls(bench, seconds, count - 1)
        bench.until(lambda: bench.supervisor.settled)
        assert outcome(bench.samples[before:]) == dict.fromkeys("abc", "ok")
    assert (bench.status().hangs, bench.status().witnessed, bench.status().starts) == (0, 0, 1)


def test_a_driver_that_is_slow_for_too_long_is_told_as_slow_and_never_blamed(bench: Bench) -> None:
    """Its calls return and return: unknown, with the setting to raise, and its siblings are read before it."""
    for times in (1, 2):
        bench.write(read={"b": "steps"})
        bench.clock.advance(INTERVAL)
        pass_calls(bench, 3.0, 0, 1, 2)
        bench.until_in(" part 3")
        bench.pass_time(1.0)
        bench.until_gone(ReaderState.HUNG)
        assert "needed 10." in bench.status().detail
        assert "the calls return, but slowly: raise agent.deadline_seconds" in bench.status().detail
        assert (bench.failure.kind, bench.status().witnessed) == (FailureKind.READER, 0)
        assert bench.status().quarantined == (("b",) if times > 1 else ())
        bench.write(read={})
        bench.clock.advance(1.0)
        bench.until_state(ReaderState.RUNNING)
        bench.until(lambda: bench.supervisor.settled)
        assert outcome(bench.round(INTERVAL)) == {"a": "ok", "b": "ok" if times == 1 else "reader", "c": "ok"}


def test_a_call_that_was_reached_late_and_hangs_has_its_own_time_and_is_blamed(bench: Bench) -> None:
    """Slow calls before it excuse nothing: it did not return for a deadline of its own."""
    for times in (1, 2):
        bench.write(read={"b": "steps"})
        bench.clock.advance(INTERVAL)
        pass_calls(bench, 2.0, 0, 1)
        bench.until_in(" part 2")
        bench.pass_time(DEADLINE - 0.5)
        assert bench.status().state is ReaderState.RUNNING
        bench.pass_time(1.0)
        bench.until_gone(ReaderState.HUNG)
        assert "part 2 has not returned for 5." in bench.status().detail
        assert (bench.failure.kind, bench.status().blamed) == (FailureKind.HUNG, {"b": times})
        bench.write(read={})
        bench.round(61.0)


def test_a_start_may_take_long_while_its_calls_return(tmp_path: Path) -> None:
    """Eight boards that are opened one by one, as without persistence mode, need more than the minute of one call."""
    bench = Bench(tmp_path, start="steps", steps=5)
    pass_calls(bench, START_SECONDS / 2, *range(5))
    bench.until_state(ReaderState.RUNNING)
    assert (bench.status().starts, bench.status().hangs, bench.status().witnessed) == (1, 0, 0)
    bench.close()

    (tmp_path / "ever").mkdir()
    bench = Bench(tmp_path / "ever", start="steps", steps=99)
    last = int(SLOW_START_DEADLINES)
    pass_calls(bench, START_SECONDS - 5.0, *range(last))
    bench.until_in(f" part {last}")
    bench.pass_time(5.0 * last)
    assert bench.status().state is ReaderState.HUNG
    assert "the calls return, but slowly" in bench.status().detail
    assert bench.status().witnessed == 0
    bench.close()


def test_a_machine_that_stood_still_between_two_looks_blames_nobody(bench: Bench) -> None:
    """A virtual machine is paused while a call is watched and no beat is out: every beat was in time."""
    for _ in range(2):
        bench.write(read={"b": "hang"})
        bench.clock.advance(INTERVAL)
        bench.until_in("fake_read(b")
        bench.pass_time(DEADLINE * 0.8)
        bench.clock.advance(60.0)
        bench.pass_time(1.25)
        bench.until_gone(ReaderState.HUNG)
        assert "host overloaded: the agent was delayed for 60." in bench.status().detail
        assert bench.status().witnessed == 0
        bench.write(read={})
        bench.round(61.0)


@pytest.mark.parametrize("kind", ["lost", "reset_required", "faulty"])
def test_what_a_whole_library_is_refused_with_is_no_word_about_each_board(bench: Bench, kind: str) -> None:
    """The call that starts it names no board: eight that are lost by one answer would be sent back."""
    bench.write(read={"a": "no_driver"}, start=kind)
    bench.clock.advance(INTERVAL)
    bench.until(lambda: bench.status().state is ReaderState.FAILED and bench.status().pid is None)
    bench.clock.advance(INTERVAL + DEADLINE)
    before = len(bench.samples)
    bench.until(lambda: bench.failure.kind is FailureKind.ERROR and bench.status().pid is None)
    bench.clock.advance(INTERVAL)
    bench.until(lambda: len(bench.samples) > before)
    assert set(outcome(bench.samples[before:]).values()) <= {"error", "no_driver"}


class Machine:
    """Stands for a reader's child and what the kernel shows around it."""

    def __init__(self, bench: Bench, root: Path, available_kb: int, limit: str = "") -> None:
        """Show so much memory, and a *limit* of the reader's own."""
        (root / "proc").mkdir()
        (root / "proc/meminfo").write_text(f"MemTotal: 1000000 kB\nMemAvailable: {available_kb} kB\n")
        around = Surroundings(proc=root / "proc", cgroups=root)
        self.tight_limit = limit
        self.blame = Blame("fake", bench.clock, around, Heartbeat(bench.clock, bench.selector))

    def weigh(self, failure: Failure) -> tuple[bool, bool]:
        """Return whether *failure* is the driver's word, of the whole library and of one board."""
        child = cast(Child, self)
        one = self.blame.of_one(child, sample(gpu("b"), {}, failure=failure)).failure
        assert one is not None
        return self.blame.of_all(child, failure).of_driver, one.of_driver


@pytest.mark.parametrize("kind", sorted(REFUSALS))
@pytest.mark.parametrize(
    ("available_kb", "limit"), [(900_000, ""), (40_000, ""), (900_000, "RLIMIT_AS of 1 bytes, and may")]
)
def test_a_refusal_while_the_machine_refuses_memory_is_no_word_of_the_driver(
    bench: Bench, tmp_path: Path, kind: FailureKind, available_kb: int, limit: str
) -> None:
    """A library that is given no memory says anything: that the driver is not loaded, or that a file is missing."""
    machine = Machine(bench, tmp_path, available_kb, limit)
    is_well = available_kb > 100_000 and not limit
    assert machine.weigh(Failure(kind, "for a test", of_driver=True)) == (is_well, is_well)
    assert machine.weigh(Failure(kind, "for a test", of_driver=False)) == (False, False)
    told = machine.blame.of_all(cast(Child, machine), Failure(kind, "for a test", of_driver=True)).detail
    assert ("; " in told) is not is_well, told


def test_what_the_libraries_say_of_a_want_is_no_word_of_the_driver() -> None:
    """Insufficient memory and resources (nvml.h, amdsmi.h), and what a wrapper cannot ask."""
    assert {20, 23} == REFUSED_TO_IT
    for code in REFUSED_TO_IT:
        assert not refused_by_nvml(code, "nvmlInit").failure.of_driver
        assert "was refused" in refused_by_nvml(code, "nvmlInit").failure.detail
        assert status_of(code) is ReadingStatus.UNAVAILABLE
    assert refused_by_nvml(999, "nvmlInit").failure.of_driver
    for code in (15, NO_FUNCTION, UNREADABLE):
        assert not refused_by_amd(code, "amdsmi_init").failure.of_driver
    assert refused_by_amd(18, "amdsmi_init").failure.of_driver
