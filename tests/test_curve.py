"""A curve in bounded memory."""

from __future__ import annotations

import pytest

from nodevet.agent.load.curve import MAXIMUM_POINTS, Curve


def drawn(values: list[float]) -> Curve:
    """Return a curve through *values*, one each second."""
    curve = Curve()
    for second, value in enumerate(values):
        curve.add(float(second), value)
    return curve


def test_a_short_curve_is_kept_whole() -> None:
    """Nothing is lost while there is room."""
    assert drawn([1.0, 2.0, 1.5]).points == ((0.0, 1.0), (1.0, 2.0), (2.0, 1.5))


@pytest.mark.parametrize("count", [MAXIMUM_POINTS, MAXIMUM_POINTS + 1, 50_000])
def test_a_long_curve_is_bounded_and_in_order(count: int) -> None:
    """However long the load, the points fit, in the order of time, from its beginning to its end."""
    points = drawn([700.0 + second % 3 for second in range(count)]).points
    times = [time for time, _ in points]
    assert len(points) <= MAXIMUM_POINTS
    assert times == sorted(set(times))
    assert (times[0] < count / 50, times[-1] == count - 1) == (True, True)


@pytest.mark.parametrize("second", [0, 1, 999, 25_000, 49_999])
def test_one_slow_second_in_a_day_is_never_lost(second: int) -> None:
    """Lowest and highest survive every thinning."""
    values = [700.0] * 50_000
    values[second] = 3.0
    points = drawn(values).points
    assert (float(second), 3.0) in points
