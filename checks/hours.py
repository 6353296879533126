"""How far a counter grew within the last hour, from two marks per counter: a rate per hour needs no list of samples."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from nodevet.checks.model import Instant

__all__ = ["Hours"]

HALF_HOUR_SECONDS = 1800.0
QUIET_SECONDS = 120.0
"""A counter that stood still for so long is no rate any more: what it counted before is history."""


class Hours:
    """The growth of counters over half an hour to an hour, whatever the cadence of their samples."""

    def __init__(self) -> None:
        """Begin without marks."""
        self._marks: dict[Hashable, _Marks] = {}

    def grown(self, key: Hashable, value: float, time: Instant) -> float:
        """Return how far the counter *key* grew since half an hour to an hour ago, or since it was first seen.

        A counter that fell, is of another boot, or was not looked at for an hour begins anew; one that stands still
        has not grown.
        """
        marks = self._marks.get(key)
        age = None if marks is None else time.seconds_since(marks.newer[1])
        if marks is None or age is None or value < marks.last[0] or age >= 2 * HALF_HOUR_SECONDS:
            self._marks[key] = _Marks((value, time), (value, time), (value, time))
            return 0.0
        last = (value, time) if value > marks.last[0] else marks.last
        older, newer = (marks.newer, (value, time)) if age >= HALF_HOUR_SECONDS else (marks.older, marks.newer)
        self._marks[key] = _Marks(older, newer, last)
        still = time.seconds_since(last[1])
        return 0.0 if still is None or still >= QUIET_SECONDS else value - older[0]


class _Marks(NamedTuple):
    """Value and time of two marks, and of the last growth."""

    older: tuple[float, Instant]
    newer: tuple[float, Instant]
    last: tuple[float, Instant]
