"""A curve in bounded memory."""

from __future__ import annotations

import itertools

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


@pytest.mark.parametrize("count", [481, 5_000, 200_000])
def test_each_part_of_a_long_load_is_told_by_as_many_points(count: int) -> None:
    """The first hours are not thinned out for the last minutes."""
    times = [time for time, _ in drawn([700.0 + second % 3 for second in range(count)]).points]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) <= count / 50
    assert sum(time < count / 2 for time in times) >= len(times) / 4


def test_the_median_of_a_part_is_that_of_all_of_its_values() -> None:
    """It is taken of all points, not of the lowest and highest that are kept for the eye."""
    odd = {7: 50, 57: -50}
    curve = drawn([float(second // 10_000 * 10 + odd.get(second % 100, 0)) for second in range(50_000)])
    for part in range(5):
        median = curve.median(part * 10_000, part * 10_000 + 9_999)
        assert median == pytest.approx(part * 10, abs=0.5)
    assert curve.median(60_000, 70_000) is None


def test_means_are_the_points_until_there_are_too_many() -> None:
    """Then each stands for so many of them, at their middle, and none is lost from the mean of all."""
    assert drawn([1.0, 2.0, 1.5]).means == ((0.0, 1.0), (1.0, 2.0), (2.0, 1.5))
    means = drawn([float(second) for second in range(4096)]).means
    assert len(means) < MAXIMUM_POINTS
    assert sum(value for _, value in means) / len(means) == pytest.approx(2047.5, rel=0.01)
    assert all(moment == value for moment, value in means)
