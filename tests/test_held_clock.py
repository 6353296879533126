"""The clock held under load, against a simulated device that shares no code with the estimator."""

from __future__ import annotations

import statistics

import pytest
from fakes.clocked_device import Board, Course, run
from hypothesis import given
from hypothesis import strategies as st

from nodevet.checks.burnin.held_clock import HeldClock, clock_step_hertz, held_clock

STEP = 15e6
COOL = Board(limit_watts=2000.0)
CAPPED = Board()
HOT = Board(kelvin_per_watt=0.11, heat_seconds=60.0)
STABLE = [(float(second), 1.5e9) for second in range(0, 60, 5)]


def estimated(course: Course, step: float = STEP) -> HeldClock | None:
    """Return the estimate from the polls of *course*."""
    return held_clock([(poll.seconds, poll.megahertz * 1e6) for poll in course.polls], course.first, course.last, step)


@pytest.mark.parametrize(
    ("board", "every", "seconds"),
    [(COOL, 5.0, 120.0), (CAPPED, 5.0, 120.0), (CAPPED, 10.0, 60.0), (HOT, 2.0, 60.0), (HOT, 10.0, 120.0)],
    ids=["at its highest clock", "at its power limit", "with few polls", "heating up", "heating up with few polls"],
)
def test_efficiency_at_the_held_clock_is_recovered_within_its_interval(
    board: Board, every: float, seconds: float
) -> None:
    """In 95 % of loads or more the true efficiency lies in the interval, and polls may be late or missing."""
    hits = told = 0
    widths = []
    for seed in range(60):
        efficiency = 0.55 + 0.005 * seed
        course = run(board, seed, every=every, seconds=seconds, efficiency=efficiency, operations_per_cycle=540e3)
        held = estimated(course)
        if held is None:
            continue
        told += 1
        rate, per_hertz = course.mean_rate, 540e3 / 1e6
        hits += rate / (per_hertz * held.high_hertz) <= efficiency <= rate / (per_hertz * held.low_hertz)
        widths.append((held.high_hertz - held.low_hertz) / held.hertz)
    assert told >= 50
    assert hits >= 0.95 * told
    assert statistics.median(widths) < 0.05


def test_interval_narrows_with_readings_down_to_the_step() -> None:
    """Ten times the readings give a narrower interval, never one below the step of the driver."""
    widths = []
    for every in (10.0, 1.0):
        held = estimated(run(CAPPED, 1, every=every, late=0.0, missing=0.0))
        assert held is not None
        widths.append(held.high_hertz - held.low_hertz)
    assert widths[0] > widths[1] > STEP


def test_many_equal_readings_leave_the_step() -> None:
    """A clock that stands still is known to half of a step of the driver, however often it is read."""
    held = held_clock([(second / 10, 1.5e9) for second in range(601)], 0.0, 60.0, STEP)
    assert held is not None
    assert STEP <= held.high_hertz - held.low_hertz < 1.1 * STEP


def test_a_slow_drift_does_not_count_as_spread() -> None:
    """A clock that falls by 120 MHz in a minute is known better than its standard deviation suggests."""
    drift = [(float(second), 1.8e9 - 2e6 * second) for second in range(1, 60, 2)]
    held = held_clock(drift, 0.0, 60.0, 1e6)
    assert held is not None
    assert held.hertz == pytest.approx(1.74e9, abs=1e5)
    assert held.high_hertz - held.low_hertz < 3.5e6


def test_late_polls_shift_no_weight() -> None:
    """Many readings of the cold start and few of the rest: time counts, not the number of readings."""
    start = [(second / 10, 1.9e9) for second in range(100)]
    rest = [(float(second), 1.5e9) for second in range(20, 100, 20)]
    held = held_clock([*start, *rest], 0.0, 100.0, STEP)
    assert held is not None
    assert held.hertz == pytest.approx(0.15 * 1.9e9 + 0.85 * 1.5e9, rel=0.01)


def test_readings_of_the_idle_device_are_ignored() -> None:
    """Polls before and after the load have the idle clock."""
    idle = [(-5.0, 345e6), (-1.0, 345e6)]
    held = held_clock([*idle, *STABLE, (61.0, 345e6)], 0.0, 60.0, STEP)
    assert held is not None
    assert (held.hertz, held.readings) == (1.5e9, 12)


@pytest.mark.parametrize(
    "readings",
    [
        [],
        STABLE[:1],
        [(10.0, 1.5e9), (50.0, 1.5e9)],
        STABLE[:5],
        [(0.0, 1.5e9), (1.0, 1.5e9), (59.0, 1.5e9)],
    ],
    ids=["none", "one", "two", "first half", "hole"],
)
def test_too_few_readings_are_no_clock(readings: list[tuple[float, float]]) -> None:
    """Fewer than three readings, or a hole of more than half of the load, give no figure."""
    assert held_clock(readings, 0.0, 60.0, STEP) is None


def test_an_empty_load_has_no_clock() -> None:
    """A load that took no time divides nothing by zero."""
    assert held_clock([(1.0, 1e9)] * 3, 1.0, 1.0, STEP) is None


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(1e8, 3e9)), max_size=40))
def test_mean_lies_within_the_readings_and_the_interval_around_it(readings: list[tuple[float, float]]) -> None:
    """Whatever was read, the estimate is no extrapolation."""
    readings = sorted(readings)
    held = held_clock(readings, 0.0, 100.0, STEP)
    if held is not None:
        values = [hertz for _, hertz in readings]
        assert min(values) * (1 - 1e-9) <= held.hertz <= max(values) * (1 + 1e-9)
        assert held.low_hertz + STEP / 2 <= held.hertz <= held.high_hertz - STEP / 2


def test_steps_are_those_of_the_vendor() -> None:
    """An unknown vendor gets the coarsest step."""
    assert [clock_step_hertz(vendor) for vendor in ("nvidia", "amd", "other")] == [15e6, 1e6, 15e6]
