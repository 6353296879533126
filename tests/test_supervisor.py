"""The supervisor with real child processes that hang, crash, lie and refuse, on a clock that the test moves."""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.bench import DEADLINE, INTERVAL, REAL_SECONDS, SCRIPTED, Bench, outcome
from fakes.clocks import SteppedClock
from fakes.freezer import Freeze

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.agent.load.child import LoadChild
from nodevet.agent.readers.quarantine import Quarantine
from nodevet.agent.readers.shortages import Shortages
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import NEVER, Failure, FailureKind, ReaderState, ResultState
from nodevet.checks.core.wire import ProgressMessage
from nodevet.checks.engine.view import Cadence
from nodevet.checks.system.procfs import ChildRecord, is_alive, start_ticks


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose three devices are healthy until the test says otherwise."""
    bench = Bench(tmp_path)
    yield bench
    bench.close()


ALL_OK = {"a": "ok", "b": "ok", "c": "ok"}


def test_every_device_is_read_once_per_interval(bench: Bench) -> None:
    """A healthy reader is asked at its cadence, and each round has its number."""
    assert outcome(bench.round()) == ALL_OK
    assert bench.round(INTERVAL / 2) == []
    assert {sample.sequence for sample in bench.round(INTERVAL / 2)} == {2}
    assert bench.status().state is ReaderState.RUNNING
    assert bench.status().versions == {"driver": "1.0"}
    assert [device.id for device in bench.supervisor.devices] == ["a", "b", "c"]


def test_a_hung_call_is_named_and_its_siblings_are_read_again(bench: Bench) -> None:
    """Past the deadline the device has failed with the call's name; the others are measured right after."""
    bench.round()
    bench.write(read={"b": "hang"})
    bench.clock.advance(INTERVAL)
    before = len(bench.samples)
    bench.fall(ReaderState.HUNG, "b")
    assert outcome(bench.samples[before:]) == {"a": "ok", "b": "hung"}
    assert bench.status().since is None
    assert "fake_read(b, fast) has not returned for 5.0 s" in bench.status().detail
    assert "state S" in bench.status().detail
    bench.write(read={})
    assert outcome(bench.round(1.0)) == ALL_OK
    assert bench.status().hangs == 1
    began = bench.status().since
    assert began == bench.clock.instant()
    bench.round()
    assert bench.status().since == began


def test_a_device_that_hung_is_read_after_all_others(bench: Bench) -> None:
    """The second hang of a device costs its siblings nothing."""
    bench.write(read={"a": "hang"})
    bench.fall(ReaderState.HUNG, "a")
    bench.clock.advance(1.0)
    before = len(bench.samples)
    bench.fall(ReaderState.HUNG, "a")
    assert outcome(bench.samples[before:]) == {"b": "ok", "c": "ok", "a": "hung"}
    assert bench.log[-1] == "start skip= last=a"


@pytest.mark.parametrize(("behaviour", "state"), [("hang", ReaderState.HUNG), ("abort", ReaderState.CRASHED)])
def test_a_device_that_fell_twice_is_left_alone_and_tried_again(
    bench: Bench, behaviour: str, state: ReaderState
) -> None:
    """A quarantined device keeps saying why, its siblings are read, and after a while it gets another chance."""
    bench.write(read={"b": behaviour})
    for wait in (0.0, 1.0):
        bench.clock.advance(wait)
        if behaviour == "hang":
            bench.fall(state, "b")
        else:
            bench.until(lambda: bench.status().state is state and bench.status().pid is None)
    fell = bench.status().looked
    told = bench.round(2.0)
    assert outcome(told) == {"a": "ok", "c": "ok", "b": state.value}
    assert {entry.failure.as_of for entry in told if entry.failure} == {fell}
    assert bench.status().quarantined == ("b",)
    assert bench.status().state is ReaderState.RUNNING
    bench.write(read={})
    for _ in range(3):
        bench.round(INTERVAL)
    bench.until(lambda: bench.status().starts == 4 and bench.supervisor.settled)
    assert bench.status().quarantined == ()
    assert outcome(bench.samples) == ALL_OK
    assert bench.log[-2:] == ["stop", "start skip= last=b"]


def test_a_reader_that_cannot_be_forked_looks_at_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round tells that nothing is read; how its driver does is as old as when that was told last."""

    def fork(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    bench.round()
    os.kill(bench.status().pid or 0, signal.SIGKILL)
    bench.until(lambda: bench.status().pid is None)
    fell = bench.status().looked
    monkeypatch.setattr("nodevet.agent.readers.reader.Child", fork)
    told = len(bench.samples)
    for _ in range(3):
        bench.clock.advance(INTERVAL)
        bench.supervisor.tick()
    assert "no further process is allowed" in bench.failure.detail
    assert outcome(bench.samples[told:]) == {"a": "reader", "b": "reader", "c": "reader"}
    assert {entry.failure.as_of for entry in bench.samples[told:] if entry.failure} == {fell} == {bench.status().looked}


def test_a_reader_that_was_never_forked_has_never_looked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same from the agent's start on."""

    def fork(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("nodevet.agent.readers.reader.Child", fork)
    bench.supervisor.tick()
    assert (bench.failure.as_of, bench.status().looked) == (NEVER, None)


def test_a_crash_tells_signal_call_and_last_words(bench: Bench) -> None:
    """A library that aborts takes its child down, and the status says how."""
    bench.round()
    bench.write(read={"c": "abort"})
    bench.clock.advance(INTERVAL)
    bench.until_state(ReaderState.CRASHED)
    assert bench.failure.kind is FailureKind.CRASHED
    assert "was killed by SIGABRT in: fake_read(c, fast)" in bench.status().detail
    assert "driver: assertion failed in fake_call" in bench.status().detail
    assert outcome(bench.samples)["c"] == "crashed"


def test_a_reader_that_dies_at_start_is_restarted_ever_later(bench: Bench) -> None:
    """Restarts wait one, two, four seconds: a broken library is not called in a loop."""
    bench.write(start="exit")
    for starts, wait in ((1, 1.0), (2, 2.0), (3, 4.0)):
        bench.until(lambda: bench.status().state is ReaderState.CRASHED and bench.status().pid is None)
        assert bench.status().starts == starts
        bench.clock.advance(wait - 0.1)
        bench.supervisor.tick()
        assert bench.status().starts == starts
        bench.clock.advance(0.2)
        bench.supervisor.tick()
        assert bench.status().starts == starts + 1


def test_a_hang_while_loading_is_a_hang(bench: Bench) -> None:
    """A library that does not even initialise is told with its call."""
    bench.write(start="hang")
    bench.until(lambda: bench.call() == "fake_init")
    bench.pass_time(60.0)
    bench.until_state(ReaderState.HUNG)
    assert "fake_init has not returned for 60.0 s" in bench.status().detail


@pytest.mark.parametrize("kind", ["no_library", "no_driver", "no_devices"])
def test_an_absent_vendor_is_absent_and_looked_for_again(bench: Bench, kind: str) -> None:
    """What was never there is no fault of the reader; it is looked for after five minutes, or when told to."""
    bench.write(start=kind)
    bench.round()
    assert bench.status().state is ReaderState.ABSENT
    assert bench.status().failure == Failure(FailureKind(kind), "scripted", of_driver=True)
    bench.clock.advance(299.0)
    bench.supervisor.tick()
    assert bench.status().starts == 1
    bench.write(start="ok")
    bench.supervisor.retry()
    assert outcome(bench.round()) == ALL_OK


def test_an_absent_vendor_stays_absent_while_it_is_looked_for(bench: Bench) -> None:
    """A look that finds nothing, as most do, changes nothing that anybody is told."""
    bench.write(start="no_driver")
    bench.round()
    before = bench.status()
    bench.write(start="hang")
    bench.clock.advance(300.0)
    bench.until(lambda: bench.call() == "fake_init")
    during = bench.status()
    assert (during.state, during.detail, during.failure) == (ReaderState.ABSENT, before.detail, before.failure)
    bench.pass_time(60.0)
    bench.until_state(ReaderState.HUNG)


def test_what_is_required_is_looked_for_as_often_as_before(bench: Bench) -> None:
    """Without it the node is unknown: once it is repaired that should not last."""
    bench.write(start="no_devices")
    bench.supervisor = bench.supervise([msgspec.structs.replace(bench.plan(), required=True)])
    bench.round()
    for starts in range(2, 5):
        bench.round(300.0)
        assert bench.status().starts == starts


def test_an_absent_vendor_costs_ever_less(bench: Bench) -> None:
    """Most nodes have accelerators of one vendor at most: the others are looked for twice an hour in the end."""
    bench.write(start="no_devices")
    bench.round()
    for starts, wait in enumerate((300.0, 600.0, 1200.0, 1800.0, 1800.0), start=1):
        bench.clock.advance(wait - 1.0)
        bench.supervisor.tick()
        assert bench.status().starts == starts
        bench.round(2.0)
        assert (bench.status().starts, bench.status().state) == (starts + 1, ReaderState.ABSENT)


def test_an_absent_vendor_is_absent_after_a_release(bench: Bench) -> None:
    """It held no device that could be let go of, so nobody waits for its answer: the node stays ok."""
    bench.write(start="no_devices")
    bench.round()
    bench.supervisor.release()
    bench.supervisor.resume()
    assert bench.status().state is ReaderState.ABSENT


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Bench, Bench]]:
    """An absent vendor, and the script of a host that is read beside it."""
    folder = tmp_path / "host"
    folder.mkdir()
    absent, host = Bench(tmp_path, start="no_driver"), Bench(folder)
    plans = [absent.plan(), msgspec.structs.replace(host.plan(), backend="host")]
    absent.supervisor = absent.supervise(plans)
    yield absent, host
    absent.close()
    host.close()


def test_a_vendor_whose_boards_another_reader_shows_is_looked_for_every_five_minutes(
    two: tuple[Bench, Bench],
) -> None:
    """The host sees boards of this vendor: its library is missing, and the node is closed until it is there."""
    absent, _ = two
    absent.round()
    for starts in range(2, 6):
        absent.round(300.0)
        assert (absent.status().state, absent.status().starts) == (ReaderState.ABSENT, starts)


def test_a_vendor_whose_boards_are_shown_is_asked_thrice_within_a_minute(two: tuple[Bench, Bench]) -> None:
    """Its driver may be loading yet; a refusal needs looks, and those are counted until one succeeds."""
    absent, _ = two
    absent.round()
    assert (absent.status().starts, absent.status().refusals) == (1, 1)
    for looks in (2, 3):
        absent.round(20.0)
        assert (absent.status().starts, absent.status().refusals) == (looks, looks)
    absent.round(20.0)
    assert absent.status().starts == 3
    absent.write(start="ok")
    absent.round(300.0)
    absent.until_state(ReaderState.RUNNING)
    assert absent.status().refusals == 0


def test_an_absent_vendor_is_looked_for_when_another_reader_lists_anew(two: tuple[Bench, Bench]) -> None:
    """The host shows a board, or that a driver took hold of one: nobody waits for the next look."""
    absent, host = two
    absent.round()
    absent.round(INTERVAL)
    assert (absent.status().state, absent.status().starts) == (ReaderState.ABSENT, 1)
    host.write(devices=["a", "b", "c", "d"])
    absent.write(start="ok")
    absent.round(INTERVAL)
    absent.until_state(ReaderState.RUNNING)
    assert absent.status().starts == 2


def test_a_library_that_counts_no_device_is_absent_not_running(bench: Bench) -> None:
    """Zero devices is an explicit state, never a healthy reader of nothing."""
    bench.write(devices=[])
    bench.round()
    assert bench.status().state is ReaderState.ABSENT
    assert bench.failure.kind is FailureKind.NO_DEVICES


@pytest.mark.parametrize("kind", ["denied", "version_mismatch", "error"])
def test_a_library_that_refuses_has_failed(bench: Bench, kind: str) -> None:
    """A library that is there and does not work is a failure with its reason."""
    bench.write(start=kind)
    bench.round()
    assert bench.status().state is ReaderState.FAILED
    assert bench.status().failure == Failure(FailureKind(kind), "scripted", of_driver=True)


def test_a_reader_of_another_version_is_refused(bench: Bench) -> None:
    """After an upgrade under a running agent nothing is misread, and no driver has said anything."""
    bench.write(start="other_protocol")
    bench.until(lambda: bench.status().state is ReaderState.FAILED and bench.status().pid is None)
    assert "restart the agent" in bench.status().detail
    assert bench.failure.kind is FailureKind.READER


def test_devices_of_a_lost_library_are_told_as_failed_each_round(bench: Bench) -> None:
    """A driver that is unloaded under the agent leaves its devices known and failed, not silent."""
    bench.round()
    bench.write(read={"a": "no_driver"}, start="no_driver")
    bench.clock.advance(INTERVAL)
    bench.until(lambda: bench.status().state is ReaderState.FAILED and bench.status().pid is None)
    for _ in range(2):
        bench.clock.advance(INTERVAL + DEADLINE)
        before = len(bench.samples)
        bench.until(lambda: bench.status().pid is None)
        assert outcome(bench.samples[before:]) == dict.fromkeys("abc", "no_driver")
    assert [device.id for device in bench.supervisor.devices] == ["a", "b", "c"]


def test_a_lost_device_is_passed_on_and_the_reader_goes_on(bench: Bench) -> None:
    """A device that answers with an error is that device's failure alone."""
    bench.write(read={"b": "lost"})
    assert outcome(bench.round()) == {"a": "ok", "b": "lost", "c": "ok"}
    assert bench.status().state is ReaderState.RUNNING


def test_a_list_that_lacks_a_device_tells_under_which_shortage_it_was_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked at a start, whose list may be short already, and where a device is left out, until none is short."""
    short: list[str] = []
    monkeypatch.setattr(Shortages, "descriptor_shortage", lambda _self: "".join(short))
    bench.round()
    short.append("all descriptors are in use")
    bench.round(INTERVAL)
    assert bench.status().shortage == "", "nothing was left out"
    bench.write(devices=["a", "b"])
    for _ in range(2):
        bench.round(INTERVAL)
        assert bench.status().shortage == "all descriptors are in use"
    short.clear()
    bench.round(INTERVAL)
    assert bench.status().shortage == ""
    short.append("all descriptors are in use")
    bench.write(read={"a": "kill"})
    bench.clock.advance(INTERVAL)
    bench.until(lambda: bench.status().state is ReaderState.CRASHED and bench.status().pid is None)
    bench.write(read={})
    bench.round(INTERVAL)
    assert (bench.status().starts, bench.status().shortage) == (2, "all descriptors are in use")


@pytest.mark.parametrize("behaviour", ["garbage", "hang_up"])
def test_a_child_that_breaks_the_protocol_is_replaced(bench: Bench, behaviour: str) -> None:
    """Bytes that are no message, or a closed channel, end the child; the next one is asked again."""
    bench.write(read={"b": behaviour})
    if behaviour == "hang_up":
        bench.until_in("fake_read(b")
        bench.until(lambda: (bench.supervisor.next_deadline or 0) <= bench.clock.monotonic() + 1.0)
        bench.clock.advance(1.0)
    bench.until(lambda: bench.status().state is ReaderState.CRASHED and bench.status().pid is None)
    words = "closed its channel and was terminated" if behaviour == "hang_up" else "broke the protocol"
    assert words in bench.status().detail
    bench.write(read={})
    assert outcome(bench.round(1.0)) == ALL_OK


def test_a_flood_of_events_is_cut_and_counted(bench: Bench) -> None:
    """A driver that reports without end fills no memory and keeps no device from being read."""
    bench.write(read={"b": "flood"})
    assert bench.supervisor.wait(lambda: bench.supervisor.settled, REAL_SECONDS)
    assert len(bench.events) == 1000
    assert bench.dropped == 19000
    assert outcome(bench.samples) == ALL_OK


def test_what_a_library_prints_reaches_the_log_but_not_the_protocol(bench: Bench) -> None:
    """Standard output of a chatty library goes to the log, a few lines per round."""
    bench.write(read={"b": "chatter"})
    assert outcome(bench.round()) == ALL_OK
    said = [note for note in bench.notes if note.event == "collector output"]
    assert 0 < len(said) <= 40
    assert said[0].fields == {"backend": "fake", "line": "a vendor library prints"}


def test_a_paused_machine_is_no_hang(bench: Bench) -> None:
    """An agent that was held up itself grants its child another second before it speaks of a hang."""
    bench.write(read={"b": "hang"})
    bench.until_in("fake_read(b")
    bench.clock.advance(3600.0)
    bench.supervisor.tick()
    assert bench.status().state is ReaderState.RUNNING
    bench.pass_time(0.75)
    assert bench.status().state is ReaderState.RUNNING
    bench.pass_time(0.25)
    assert bench.status().state is ReaderState.HUNG
    assert bench.status().witnessed == 0


def test_an_answer_that_waits_in_the_pipe_is_not_late(bench: Bench) -> None:
    """A busy agent that looks late at a child's answer does not take it for a hang."""
    bench.until(lambda: bench.status().state is ReaderState.RUNNING)
    end = time.monotonic() + REAL_SECONDS
    while bench.call() != "idle" and time.monotonic() < end:
        time.sleep(0.01)
    bench.clock.advance(DEADLINE)
    bench.supervisor.tick()
    assert bench.status().state is ReaderState.RUNNING
    bench.round()
    assert outcome(bench.samples) == ALL_OK


def test_stop_asks_first_and_leaves_no_process(bench: Bench) -> None:
    """A healthy child is asked to stop, closes its library and is gone."""
    bench.round()
    pid = bench.status().pid
    bench.supervisor.stop()
    bench.until(lambda: bench.supervisor.at_rest)
    assert bench.status().state is ReaderState.STOPPED
    assert bench.log[-1] == "stop"
    assert pid is not None
    assert start_ticks(pid) is None


def test_stop_ends_a_hung_reader_within_its_patience(bench: Bench) -> None:
    """A child that does not listen is terminated after 0.6 s: the agent stops within its two seconds."""
    bench.write(read={"a": "hang"})
    bench.until_in("fake_read(a")
    bench.supervisor.stop()
    bench.supervisor.tick()
    assert not bench.supervisor.at_rest
    bench.clock.advance(0.6)
    bench.until(lambda: bench.supervisor.at_rest)
    assert bench.status().state is ReaderState.STOPPED
    assert bench.supervisor.records == ()


def test_release_closes_the_devices_until_the_time_is_over(bench: Bench) -> None:
    """While released nothing is read and nothing is said to be missing; afterwards everything is read again."""
    bench.round()
    bench.supervisor.release(600.0)
    bench.until(lambda: bench.supervisor.at_rest)
    assert bench.status().state is ReaderState.RELEASED
    bench.clock.advance(599.0)
    bench.until(lambda: True)
    assert len(bench.samples) == 3
    bench.clock.advance(1.0)
    bench.until(lambda: bench.status().state is ReaderState.RUNNING and bench.supervisor.settled)
    assert len(bench.samples) == 6


def test_a_hung_reader_can_be_released(bench: Bench) -> None:
    """A reset of a wedged GPU is just when its handles must go."""
    bench.write(read={"a": "hang"})
    bench.until_in("fake_read(a")
    bench.supervisor.release()
    bench.clock.advance(3.0)
    bench.until(lambda: bench.supervisor.at_rest)
    assert bench.status().state is ReaderState.RELEASED
    bench.write(read={})
    bench.supervisor.resume()
    assert outcome(bench.round()) == ALL_OK


def test_a_child_in_state_d_is_given_up_and_never_doubled(bench: Bench, freeze: Freeze, tmp_path: Path) -> None:
    """What cannot be killed is told and remembered; another reader starts only when it is gone, by any agent."""
    bench.round()
    bench.write(read={"b": "hang"})
    bench.clock.advance(INTERVAL)
    bench.until_in("fake_read(b")
    pid = bench.status().pid
    assert pid is not None
    thaw = freeze(pid)
    bench.pass_time(DEADLINE)
    bench.until_state(ReaderState.HUNG)
    assert "state D" in bench.status().detail
    bench.clock.advance(2.0)
    bench.until_state(ReaderState.STUCK)
    assert "fake_read(b, fast) cannot be terminated" in bench.status().detail
    before = len(bench.samples)
    bench.clock.advance(INTERVAL + DEADLINE)
    bench.until(lambda: len(bench.samples) > before)
    assert outcome(bench.samples[before:]) == {"a": "reader", "b": "stuck", "c": "reader"}
    assert bench.status().starts == 1

    (tmp_path / "next").mkdir()
    following = Bench(tmp_path / "next", remembered=bench.supervisor.records)
    for _ in range(10):
        following.until(lambda: True)
        following.clock.advance(1.0)
    assert following.status().state is ReaderState.STUCK
    assert following.status().starts == 0
    assert following.supervisor.records == bench.supervisor.records

    thaw()
    bench.write(read={})
    bench.until(lambda: bench.status().pid is None)
    bench.clock.advance(1.0)
    bench.until(lambda: bench.status().starts == 2)
    assert outcome(bench.round(INTERVAL)) == ALL_OK
    following.clock.advance(1.0)
    assert outcome(following.round()) == ALL_OK
    following.close()


def test_a_record_of_another_process_or_boot_stops_nobody(tmp_path: Path) -> None:
    """Process ids are used again: only pid, start and boot together are the same process."""
    pid, ticks, boot = os.getpid(), start_ticks(os.getpid()), SystemClock().instant().boot_id
    assert ticks is not None
    assert is_alive(ChildRecord("fake", pid, ticks, boot), boot)
    for record in (ChildRecord("fake", pid, ticks + 1, boot), ChildRecord("fake", pid, ticks, "another boot")):
        assert not is_alive(record, boot)
        (folder := tmp_path / str(record.start_ticks)).mkdir()
        bench = Bench(folder, remembered=(record,))
        assert outcome(bench.round()) == ALL_OK
        bench.close()


def test_a_program_that_cannot_be_started_is_a_crash_with_its_reason(tmp_path: Path) -> None:
    """A missing interpreter is told like any other crash, and tried again."""
    selector = selectors.DefaultSelector()
    plan = ReaderPlan(backend="fake", cadences={"fast": Cadence(10, 5)}, argv=(str(tmp_path / "none"),))
    supervisor = Supervisor([plan], SteppedClock(), selector, lambda _told: None)
    supervisor.tick()
    assert supervisor.statuses[0].state is ReaderState.CRASHED
    assert "cannot be started" in supervisor.statuses[0].detail
    assert selector.get_map() == {}
    selector.close()


HUNG = Failure(FailureKind.HUNG, "fake_read has not returned", of_driver=True)


@pytest.mark.parametrize(("offences", "wait"), [(2, 30.0), (3, 60.0), (4, 120.0), (6, 480.0), (7, 600.0), (20, 600.0)])
def test_quarantine_grows_up_to_ten_minutes(offences: int, wait: float) -> None:
    """Each further offence doubles the time a device is left alone, up to a limit."""
    quarantine = Quarantine()
    for _ in range(offences):
        quarantine.record_failure("a", HUNG, 0.0)
    assert quarantine.skipped == {"a": HUNG}
    assert quarantine.next_deadline == wait
    assert not quarantine.try_again(wait - 0.1)
    assert quarantine.try_again(wait)
    assert quarantine.suspects == ("a",)


def test_an_offence_is_forgiven_only_after_ten_good_minutes() -> None:
    """One good reading does not make a device that hung a trusted one."""
    quarantine = Quarantine()
    quarantine.record_failure("a", HUNG, 0.0)
    quarantine.record_success("a", 599.0)
    assert "a" in quarantine.suspects
    quarantine.record_success("a", 600.0)
    assert "a" not in quarantine.suspects


def test_an_excused_hang_counts_as_none() -> None:
    """Two in a row are skipped for half a minute, however often; the first one that is proven is the first."""
    quarantine = Quarantine()
    for now in (0.0, 100.0, 200.0, 300.0):
        quarantine.record_excused("a", HUNG, now)
        assert quarantine.next_deadline == (now + 30.0 if now else None)
        assert quarantine.try_again(now + 30.0) is (now > 0.0)
        assert quarantine.suspects == ("a",)
    quarantine.record_success("a", 340.0)
    quarantine.record_excused("a", HUNG, 350.0)
    assert quarantine.suspects == ("a",)
    quarantine.record_failure("a", HUNG, 360.0)
    assert quarantine.suspects == ("a",)
    quarantine.record_failure("a", HUNG, 370.0)
    assert quarantine.next_deadline == 400.0


class Load:
    """A scripted load child on a clock that the test moves."""

    def __init__(self, folder: Path, **script: Any) -> None:
        """Start it."""
        self.clock = SteppedClock()
        self.selector = selectors.DefaultSelector()
        self.ticks: list[ProgressMessage] = []
        file = folder / "script.json"
        file.write_text(json.dumps({"log": str(folder / "log"), "devices": ["a"], **script}))
        self.child = LoadChild(
            "load",
            (sys.executable, "-I", str(SCRIPTED), str(file)),
            ("a",),
            self.clock,
            self.selector,
            silence_seconds=30.0,
            on_tick=self.ticks.append,
        )

    def until(self, done: Callable[[], bool]) -> None:
        """Run the loop, without moving the clock, until *done*."""
        end = time.monotonic() + REAL_SECONDS
        while not done():
            self.child.tick()
            assert time.monotonic() < end
            for key, mask in self.selector.select(0.05):
                key.data(mask)

    def close(self) -> None:
        """End it, in whatever state it is."""
        self.child.stop()
        self.clock.advance(1.5)
        self.until(lambda: self.child.at_rest)
        self.selector.close()


def test_a_load_gives_one_result_per_workload(tmp_path: Path) -> None:
    """One child runs several workloads, tells its progress, and stops when told to."""
    load = Load(tmp_path)
    for count in (1, 2):
        load.child.burn("gemm", {"seconds": 0}, 60.0)
        assert load.child.busy
        load.until(lambda count=count: len(load.child.results) == count)  # type: ignore[misc]
    assert [result.state for result in load.child.results] == [ResultState.FINISHED] * 2
    assert [tick.ratio for tick in load.ticks] == [0.5, 0.5]
    load.child.stop()
    load.until(lambda: load.child.at_rest)
    load.close()


@pytest.mark.parametrize(
    ("behaviour", "seconds", "state", "words"),
    [
        ("abort", 0.0, ResultState.DIED, "was killed by SIGABRT in: fake_launch(gemm)"),
        ("exit", 0.0, ResultState.DIED, "ended with status 3"),
        ("garbage", 0.0, ResultState.DIED, "broke the protocol"),
        ("hang", 30.0, ResultState.DIED, "no message for 30 s in: fake_launch(gemm)"),
        ("hang", 20.0, ResultState.DIED, "is not done after its deadline"),
    ],
)
def test_a_load_that_falls_has_a_result_that_says_so(
    tmp_path: Path, behaviour: str, seconds: float, state: ResultState, words: str
) -> None:
    """Whatever becomes of the process, the workload ends in a result."""
    load = Load(tmp_path, burn=behaviour)
    load.child.burn("gemm", {}, 20.0 if "deadline" in words else 60.0)
    load.until(
        lambda: bool(load.ticks) and "launch" in (load.child.record or ChildRecord("", 0, 0, "", "launch")).detail
    )
    for _ in range(int(seconds)):  # a leap of the clock is a suspension, and no silence
        load.clock.advance(1.0)
        load.child.tick()
    load.until(lambda: bool(load.child.results))
    assert load.child.results[0].state is state
    assert words in load.child.results[0].detail
    assert load.child.results[0].devices == ("a",)
    load.close()


def test_a_stopped_load_is_interrupted_not_dead(tmp_path: Path) -> None:
    """A workload that is stopped in the middle says that it was interrupted; the process is gone in two seconds."""
    load = Load(tmp_path, burn="hang")
    load.child.burn("gemm", {}, 60.0)
    load.until(lambda: bool(load.ticks))
    load.child.stop("the prolog claims the node")
    load.clock.advance(1.0)
    load.until(lambda: load.child.at_rest)
    assert load.child.results[0].state is ResultState.INTERRUPTED
    assert load.child.results[0].detail == "the prolog claims the node"
    load.close()
