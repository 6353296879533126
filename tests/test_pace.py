"""When the agent judges: at once on news, once per round on readings, and when readings grow old."""

from __future__ import annotations

import pytest
from fakes.clocks import SteppedClock

from nodevet.agent.daemon.pace import Pace

INTERVAL = 10.0


@pytest.fixture
def clock() -> SteppedClock:
    """The clock of a pace."""
    return SteppedClock()


@pytest.fixture
def pace(clock: SteppedClock) -> Pace:
    """A pace whose first round has come in and was judged."""
    made = Pace(clock, INTERVAL)
    made.look(settled=True)
    made.judged()
    return made


def wait(pace: Pace, clock: SteppedClock) -> float:
    """Return the seconds until *pace* wants it judged."""
    return round(max(pace.next_deadline - clock.monotonic(), 0.0), 3)


def test_news_is_judged_at_once(pace: Pace, clock: SteppedClock) -> None:
    """An event or a reader that fell waits for nothing."""
    pace.hurry()
    assert (pace.due, wait(pace, clock)) == (True, 0.0)


def test_a_reading_waits_for_the_rest_of_its_round(pace: Pace, clock: SteppedClock) -> None:
    """The first of a round begins a short wait, which the next ones do not prolong; the last one ends it."""
    pace.readings_came(settled=False)
    clock.advance(0.2)
    pace.readings_came(settled=False)
    assert (pace.due, wait(pace, clock)) == (False, 0.05)
    pace.readings_came(settled=True)
    assert pace.due


def test_without_news_it_is_judged_once_per_interval(pace: Pace, clock: SteppedClock) -> None:
    """A reading grows old although nothing comes in."""
    assert wait(pace, clock) == INTERVAL + 0.25
    clock.advance(INTERVAL + 0.25)
    assert pace.due
    pace.judged()
    assert not pace.due


def test_the_first_judgement_waits_for_every_reader_but_not_for_ever(clock: SteppedClock) -> None:
    """Half a first round would call everything that is still to come missing; a reader that hangs hides no other."""
    pace = Pace(clock, INTERVAL)
    pace.hurry()
    pace.look(settled=False)
    assert (pace.ready, pace.due, wait(pace, clock)) == (False, False, 5.0)
    clock.advance(5.0)
    assert (pace.ready, pace.due) == (False, True)
    clock.advance(55.0)
    pace.look(settled=False)
    assert (pace.ready, pace.due) == (True, True)


def test_once_the_first_round_has_come_in_it_is_judged(clock: SteppedClock) -> None:
    """Nobody waits for readers that have all answered."""
    pace = Pace(clock, INTERVAL)
    pace.look(settled=True)
    assert (pace.ready, pace.due) == (True, True)


def test_after_a_stand_still_it_is_judged_by_new_readings(pace: Pace, clock: SteppedClock) -> None:
    """A virtual machine that is paused ages what was read; before, each pause was findings, and a node `unknown`."""
    clock.advance(60.0)
    pace.look(settled=True)
    assert (pace.due, wait(pace, clock)) == (False, 5.25)
    pace.readings_came(settled=True)
    assert pace.due
    pace.judged()
    assert wait(pace, clock) == INTERVAL + 0.25


def test_after_a_stand_still_no_reader_is_waited_for_for_ever(pace: Pace, clock: SteppedClock) -> None:
    """Nor does news wait, such as of the kernel."""
    clock.advance(60.0)
    pace.look(settled=True)
    clock.advance(5.25)
    pace.look(settled=True)
    assert pace.due
    pace.judged()
    clock.advance(60.0)
    pace.look(settled=True)
    pace.hurry()
    assert pace.due
