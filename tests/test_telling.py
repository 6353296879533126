"""What readers tell the agent: a flood is cut, no kind of event is lost by it, all is counted."""

from __future__ import annotations

import io
import selectors
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fakes.bench import Bench
from fakes.clocks import SteppedClock
from fakes.heard import Heard
from fakes.views import event

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.agent.daemon.event_log import EventLog
from nodevet.agent.daemon.ingest import Ingest
from nodevet.agent.daemon.log import make_logger
from nodevet.agent.daemon.notify import Notifier
from nodevet.agent.daemon.pace import Pace
from nodevet.agent.readers.blame import Blame
from nodevet.agent.readers.heartbeat import Heartbeat
from nodevet.agent.readers.reader import Reader
from nodevet.agent.readers.stages import LINES_PER_ROUND
from nodevet.agent.readers.telling import Cut, Telling
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
    """A look alone takes seconds: the one word of a board that falls off the bus came after a storm."""
    heard = Heard()
    telling = Telling(heard.take, SteppedClock())
    for number in range(FLOOD):
        telling.event(event("nvidia.xid.31", device="gpu0", sequence=number))
    alone = [event("nvidia.xid.79", device="gpu0", sequence=1), event("nvidia.xid.31", device="gpu1", sequence=1)]
    for told in (*alone, *alone):
        telling.event(told)
    assert heard.events[Telling.EVENTS :] == alone
    telling.end_turn()
    assert len(heard.events) + heard.dropped == FLOOD + 4
    telling.event(alone[0])
    telling.end_turn()
    assert heard.events[Telling.EVENTS :] == [*alone, alone[0]]
    assert len(heard.events) + heard.dropped == FLOOD + 5


def test_lines_beyond_those_of_a_round_are_counted() -> None:
    """What a library printed is in the log, or in a count."""
    clock, selector, heard, looks = SteppedClock(), selectors.DefaultSelector(), Heard(), Surroundings()
    blame, telling = Blame("fake", clock, looks, Heartbeat(clock, selector)), Telling(heard.take, clock)
    reader = Reader(ReaderPlan(backend="fake", cadences={}), clock, selector, telling, blame, looks)
    for number in range(FLOOD):
        reader.on_line(f"debug {number}")
    telling.end_turn()
    assert [note.fields["line"] for note in heard.notes] == [f"debug {number}" for number in range(LINES_PER_ROUND)]
    assert heard.dropped == FLOOD - LINES_PER_ROUND
    selector.close()


def test_what_was_cut_is_told_once_a_minute_with_its_number() -> None:
    """Before, nobody read the count."""
    stream, seconds, clock = io.StringIO(), [0.0], SteppedClock()
    event_log = EventLog(make_logger(stream=stream), Notifier(None), monotonic=lambda: seconds[-1])
    nobody, supervise = cast("Any", None), cast("Any", lambda _take: None)
    ingest = Ingest(nobody, nobody, nobody, Pace(clock, 1.0), event_log, Guard(event_log.trouble), supervise)
    for _ in range(5):
        ingest.take(Cut(FLOOD))
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
    assert bench.status().state is ReaderState.RELEASED
    assert len(bench.events) + bench.dropped == 20_000
