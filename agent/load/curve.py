"""A quantity over time in bounded memory, for the curves of a report and the conditions of a load."""

from __future__ import annotations

import statistics
from typing import Self

import msgspec

MAXIMUM_POINTS = 480
_STRETCHES = (MAXIMUM_POINTS - 1) // 2
"""Each gives two points, its lowest and its highest; one is left for the last point of all."""


class _Stretch(msgspec.Struct, frozen=True):
    """So many points in a row: the first and last moment, the lowest and highest point, and the sum of the values.

    ``gap`` is the longest time between two of them.
    """

    first: float
    last: float
    low: tuple[float, float]
    high: tuple[float, float]
    total: float
    count: int
    gap: float = 0.0

    @classmethod
    def of(cls, seconds: float, value: float) -> Self:
        """Return the stretch of one point."""
        return cls(seconds, seconds, (seconds, value), (seconds, value), value, 1)

    def joined(self, later: _Stretch) -> _Stretch:
        """Return this one and the *later* one as one."""
        return _Stretch(
            self.first,
            later.last,
            min(self.low, later.low, key=_value),
            max(self.high, later.high, key=_value),
            self.total + later.total,
            self.count + later.count,
            max(self.gap, later.first - self.last, later.gap),
        )


class Curve:
    """Points (seconds, value) in the order of time. A load of days keeps as many as one of minutes.

    Where there are too many, stretches of as many points each keep their lowest and highest, so that a short dip is
    never lost, and no part of a long load is told by fewer points than another.
    """

    def __init__(self) -> None:
        """Start without points."""
        self._stretches: list[_Stretch] = []
        self._width = 1
        self._newest: tuple[float, float] | None = None

    def add(self, seconds: float, value: float) -> None:
        """Add a point that is later than all before."""
        self._newest = (seconds, value)
        point = _Stretch.of(seconds, value)
        if self._stretches and self._stretches[-1].count < self._width:
            self._stretches[-1] = self._stretches[-1].joined(point)
            return
        self._stretches.append(point)
        if len(self._stretches) > _STRETCHES:
            self._width *= 2
            pairs = zip(self._stretches[::2], self._stretches[1::2], strict=True)  # their number is even
            self._stretches = [earlier.joined(later) for earlier, later in pairs]

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """Return the points that were kept."""
        kept = [point for each in self._stretches for point in sorted({each.low, each.high})]
        if self._newest is not None and kept[-1] != self._newest:
            kept.append(self._newest)
        return tuple(kept)

    def median(self, first: float, last: float) -> float | None:
        """Return the median from the moment *first* to *last*, or None where nothing was added between them.

        Of means: the lowest and highest of a stretch are its exceptions.
        """
        within = [each for each in self._stretches if first <= (each.first + each.last) / 2 <= last]
        return statistics.median(each.total / each.count for each in within) if within else None

    def mean(self, first: float, last: float) -> float | None:
        """Return the mean from the moment *first* to *last*, or None where nothing was added between them."""
        within = [each for each in self._stretches if first <= (each.first + each.last) / 2 <= last]
        return sum(each.total for each in within) / sum(each.count for each in within) if within else None

    def longest_gap(self, first: float, last: float) -> float:
        """Return the longest time from the moment *first* to *last* in which nothing was added, ends included."""
        within = [each for each in self._stretches if first <= each.last and each.first <= last]
        ends = [first, *(moment for each in within for moment in (each.first, each.last)), last]
        between = [later - earlier for earlier, later in zip(ends[::2], ends[1::2], strict=True)]
        return max(*between, *(each.gap for each in within), 0.0)


def _value(point: tuple[float, float]) -> float:
    return point[1]
