"""What readers have to tell on its way to the agent: a flood is cut, no kind of event is lost by it, all is counted."""

from __future__ import annotations

import io
import selectors
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fakes.bench import Bench
from fakes.clocks import SteppedClock
from fakes.views import event

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.agent.daemon.event_log import EventLog
from nodevet.agent.daemon.ingest import Ingest
from nodevet.agent.daemon.log import make_logger
from nodevet.agent.daemon.notify import Notifier
from nodevet.agent.daemon.pace import Pace
from nodevet.agent.readers.blame import Blame
from nodevet.agent.readers.heartbeat import Heartbeat
from nodevet.agent.readers.outbox import Outbox
from nodevet.agent.readers.reader import Reader
from nodevet.agent.readers.stages import LINES_PER_ROUND
from nodevet.agent.readers.supervisor import Collected, Supervisor
from nodevet.agent.readers.witness import Surroundings
from nodevet.checks.core.guard import Guard
from nodevet.checks.core.model import ReaderState

FLOOD = 3000


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A supervisor with one scripted reader."""
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_the_first_of_each_kind_is_taken_behind_any_flood() -> None:
    """A look alone collects for seconds: the one word of a board that falls off the bus came after a storm."""
    outbox = Outbox()
    for number in range(FLOOD):
        outbox.event(event("nvidia.xid.31", device="gpu0", sequence=number))
    alone = [event("nvidia.xid.79", device="gpu0"), event("nvidia.xid.31", device="gpu1")]
    for told in (*alone, *alone):
        outbox.event(told)
    assert outbox.events[Outbox.EVENTS :] == alone
    assert len(outbox.events) + outbox.dropped == FLOOD + 4
    outbox.clear()
    outbox.event(alone[0])
    assert outbox.events == [alone[0]]


def test_lines_beyond_those_of_a_round_are_counted() -> None:
    """What a library printed is in the log, or in a count."""
    clock, selector, outbox, looks = SteppedClock(), selectors.DefaultSelector(), Outbox(), Surroundings()
    blame = Blame("fake", clock, looks, Heartbeat(clock, selector))
    reader = Reader(ReaderPlan(backend="fake", cadences={}), clock, selector, outbox, blame, looks)
    for number in range(FLOOD):
        reader.on_line(f"debug {number}")
    assert [note.fields["line"] for note in outbox.notes] == [f"debug {number}" for number in range(LINES_PER_ROUND)]
    assert outbox.dropped == FLOOD - LINES_PER_ROUND
    selector.close()


class Readers:
    """Stands for a supervisor whose readers told too much."""

    statuses = ()
    settled = True

    def tick(self) -> None:
        """Do nothing."""

    def collect(self) -> Collected:
        """Return what was told, each time."""
        return Collected(dropped=FLOOD)


class Deaf:
    """Stands for an engine that takes what it is given."""

    def take_readers(self, _statuses: object) -> None:
        """Take it."""


def test_what_was_cut_is_told_once_a_minute_with_its_number() -> None:
    """Before, nobody read the count."""
    stream, seconds, clock = io.StringIO(), [0.0], SteppedClock()
    event_log = EventLog(make_logger(stream=stream), Notifier(None), monotonic=lambda: seconds[-1])
    nobody = cast("Any", Deaf())
    ingest = Ingest(nobody, nobody, nobody, Pace(clock, 1.0), event_log, Guard(event_log.trouble))
    for _ in range(5):
        ingest.take_readings(cast("Supervisor", Readers()), ())
        event_log.tick()
    assert stream.getvalue() == ""
    seconds.append(60.0)
    event_log.tick()
    (line,) = stream.getvalue().splitlines()
    assert f"count={5 * FLOOD}" in line
    assert "events and lines of collectors" in line


def test_what_a_reader_tells_on_its_way_out_is_taken(bench: Bench) -> None:
    """A driver tells an event once: one that was under way when its devices were released is there."""
    bench.round()
    bench.write(read={"b": "flood"})
    bench.clock.advance(10.0)
    bench.until(lambda: bool(bench.events))
    bench.supervisor.release()
    bench.until(lambda: bench.supervisor.at_rest)
    bench.collect()
    assert bench.status().state is ReaderState.RELEASED
    assert len(bench.events) + bench.dropped == 20_000
