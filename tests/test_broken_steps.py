"""An exception of our own amid a step of a reader costs that step: the reader reads again, and nobody is blamed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import psutil
import pytest
from fakes.bench import DEADLINE, INTERVAL, REAL_SECONDS, Bench, outcome
from fakes.views import GPU, event, healthy

from nodevet.agent.daemon.ingest import Ingest
from nodevet.agent.readers.blame import Blame
from nodevet.agent.readers.reader import Reader
from nodevet.agent.readers.rounds import Rounds
from nodevet.agent.readers.telling import Listed, Told
from nodevet.checks.core.guard import Bug, Guard, attempt
from nodevet.checks.core.model import ReaderState, Reading, Sample
from nodevet.checks.core.wire import Note
from nodevet.checks.ipc import child_process
from nodevet.checks.ipc.child_process import Child

STEPS: dict[str, tuple[str, object, str]] = {
    "no_process": ("segv", subprocess, "Popen"),
    "open": ("segv", Child, "_open"),
    "watch": ("segv", Child, "_watch"),
    "end": ("segv", Child, "_poll_end"),
    "close": ("segv", Child, "_close"),
    "limit": ("segv", child_process, "tight_limit"),
    "start": ("segv", Reader, "_start"),
    "fell": ("segv", Reader, "_fell"),
    "tell": ("segv", Rounds, "_tell_unread"),
    "on_end": ("segv", Reader, "on_end"),
    "ready": ("segv", Reader, "_on_ready"),
    "list": ("segv", Rounds, "list_devices"),
    "finish": ("hang", Reader, "_finish"),
    "told": ("hang", Reader, "_note"),
    "starts": ("segv", Blame, "starts"),
    "loaded": ("segv", Blame, "loaded"),
    "ended": ("segv", Blame, "ended"),
}
"""What is done for a reader that falls and starts again, and may raise: MemoryError for instance."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A reader whose supervisor is driven as the agent does: what it raises is noted, and it is driven on."""
    bench = Bench(tmp_path)
    bench.round()
    yield bench
    bench.close()


class Once:
    """Raises when it is called first, before anything is done."""

    def __init__(self, work: Callable[..., Any]) -> None:
        """Stand for *work*."""
        self.work = work
        self.calls = 0

    def stands_for(self, *arguments: Any, **named: Any) -> Any:
        """Be called as the work."""
        self.calls += 1
        if self.calls == 1:
            raise MemoryError
        return self.work(*arguments, **named)


def drive(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have whatever the supervisor raises be noted, as the guard of the main loop does; return the notes."""
    bugs: list[str] = []

    def guarded(work: Callable[..., Any]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            if isinstance(done := attempt(lambda: work(*arguments)), Bug):
                bugs.append(str(done))

        return run

    for name in ("tick", "handle"):
        monkeypatch.setattr(bench.supervisor, name, guarded(getattr(bench.supervisor, name)))
    return bugs


def is_alive(process: psutil.Process) -> bool:
    """Return whether it runs yet."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def turn(bench: Bench) -> None:
    """Make one turn of the loop."""
    bench.supervisor.tick()
    for key, mask in bench.selector.select(0.02 if bench.supervisor.records else 0):
        bench.supervisor.handle(key, mask)


def reads_again(bench: Bench) -> bool:
    """Let time pass in steps of a minute until a whole round is read; return whether it is."""
    for _ in range(6):
        before = len(bench.samples)
        bench.clock.advance(61.0)
        for _ in range(40):
            turn(bench)
            if outcome(bench.samples[before:]) == dict.fromkeys("abc", "ok"):
                return True
    return False


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_raises_once_leaves_no_reader_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It reads again by itself, one fall stays one, and no process is left beside the new one."""
    bugs, (behaviour, owner, name) = drive(bench, monkeypatch), STEPS[step]
    once = Once(getattr(owner, name))
    # A function, for a class binds no other.
    monkeypatch.setattr(owner, name, lambda *given, **named: once.stands_for(*given, **named))  # noqa: PLW0108
    first = psutil.Process(bench.supervisor.records[0].pid)
    bench.write(read={"b": behaviour})
    bench.clock.advance(INTERVAL)
    bench.supervisor.tick()
    if behaviour == "hang":
        bench.until_in("fake_read(b")
        bench.pass_time(DEADLINE + 1.0)
    end = time.monotonic() + REAL_SECONDS
    while is_alive(first):
        assert time.monotonic() < end
        turn(bench)
    for _ in range(5):  # its end is seen before time passes: it would be overdue else, which is another step
        turn(bench)
    bench.write(read={})
    assert reads_again(bench)
    assert bench.status().state is ReaderState.RUNNING
    assert bugs
    assert bench.status().witnessed <= 1
    assert sum(map(is_alive, psutil.Process().children())) == 1 + (bench.supervisor.heartbeat.pid is not None)


def test_a_reader_that_always_raises_costs_no_other_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one behind it is read, and what it told is taken."""
    bench = Bench(tmp_path)
    plans = [msgspec.structs.replace(bench.plan(), backend=name) for name in ("broken", "fake")]
    told, guard = list[Sample](), Guard(lambda _line: None)
    idle = cast(Any, nobody(take_sample=told.append))
    ingest = Ingest(idle, idle, idle, idle, idle, guard, lambda take: bench.supervise(plans, take=take))
    bench.supervisor = ingest.supervisor
    monkeypatch.setattr(bench.supervisor._readers["broken"], "tick", lambda: 1 / 0)
    end = time.monotonic() + REAL_SECONDS
    while outcome(told) != dict.fromkeys("abc", "ok") and time.monotonic() < end:
        ingest.tick()
        assert bench.supervisor.records, "it had no turn"
        for key, mask in bench.selector.select(0.05):
            bench.supervisor.handle(key, mask)
    assert [fault.part for fault in guard.faults] == ["readers: turn"]
    assert outcome(told) == dict.fromkeys("abc", "ok")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        bench.supervisor.tick()
    bench.supervisor._readers.pop("broken")
    bench.close()


def test_a_quantity_of_a_later_release_costs_its_own_reading() -> None:
    """After an upgrade under a living agent a reader that starts anew may know more than the agent; told once."""
    taken, kept, told = list[Sample](), list[Sample](), list[str]()
    engine, journal = SimpleNamespace(take_sample=taken.append), SimpleNamespace(keep_sample=kept.append)
    event_log, recorder = SimpleNamespace(trouble=told.append), SimpleNamespace(take=lambda _sample: None)
    guard = Guard(told.append)
    ingest = Ingest(*cast(Any, (engine, journal, recorder, None, event_log, guard, print)))
    known = healthy().samples[GPU, "fast"]
    later = msgspec.structs.replace(known, readings=(*known.readings, Reading("of_tomorrow", 1.0)))
    for _ in range(2):
        ingest._take_sample(later)
    assert taken == kept == [known, known]
    assert told == ["readings of 'of_tomorrow' are left out: restart the agent after the upgrade"]


@pytest.mark.parametrize("step", ["note", "take_devices", "keep_devices", "kernel_event"])
def test_what_came_in_beside_a_step_that_raises_is_taken(step: str) -> None:
    """What readers and kernel tell comes once: what cannot be logged, or a list not kept, costs itself."""
    taken: list[object] = []
    works: dict[str, Callable[..., Any]] = {
        "take_devices": lambda backend, _listed: taken.append(backend),
        "take_sample": lambda sample: taken.append(sample.group),
        "take_event": lambda event: taken.append(event.code),
        "keep_devices": lambda _devices: taken.append("kept"),
    }
    once = Once(works.get(step, print))
    sample, events = healthy().samples[GPU, "fast"], [event("nvidia.xid.79"), event("nvidia.xid.48")]
    ingest = alone(nobody(**{**works, step: once.stands_for}))
    told: tuple[Told, ...] = (Listed("nvidia", ()), Listed("host", ()), Note("info", "x", {}), sample, *events)
    for entry in told:
        ingest.take(entry)
    ingest.tick()
    ingest.take_kernel_log(events, cast(Any, None))
    assert once.calls > 1 or step == "note"
    assert set(taken) == {"nvidia", "host", "kept", "fast", "nvidia.xid.79", "nvidia.xid.48"}
    assert [taken.count(event.code) for event in events] == [2, 2]


def test_only_a_step_that_raised_is_done_again() -> None:
    """The list of one backend is never taken: the others, and the store, are given theirs once and not in each turn."""
    taken: list[str] = []

    def take(backend: str, _listed: object) -> None:
        taken.append(backend)
        if backend == "nvidia":
            raise MemoryError

    ingest = alone(nobody(take_devices=take, keep_devices=lambda _devices: taken.append("kept")))
    counts = []
    for listed in ("nvidia", "", "", "host"):
        if listed:
            ingest.take(Listed(listed, ()))
        ingest.tick()
        counts.append([taken.count(name) for name in ("nvidia", "host", "kept")])
    assert counts == [[2, 0, 1], [3, 0, 1], [4, 0, 1], [6, 1, 2]]


def nobody(**works: Callable[..., Any]) -> SimpleNamespace:
    """Return what takes all that an intake hands on, and does what it *works* with that."""
    names = ["take_readers", "take_kernel_log", "take_devices", "take_sample", "take", "keep_sample", "keep_devices"]
    names += ["note", "cut", "kernel_event", "hurry", "readings_came", "look"]
    return SimpleNamespace(**{**dict.fromkeys(names, lambda *_, **__: None), **works})


def alone(idle: SimpleNamespace) -> Ingest:
    """Return an intake for *idle* whose readers tell nothing by themselves."""
    supervisor = SimpleNamespace(tick=print, statuses=(), settled=True)
    return Ingest(*cast(Any, (idle, idle, idle, idle, idle, Guard(lambda _line: None), lambda _take: supervisor)))
