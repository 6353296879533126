"""How far a counter grew within the last hour, from two marks per counter: a rate per hour needs no list of samples."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodevet.checks.model import Instant, Part

__all__ = ["Hours", "Marks"]

HALF_HOUR_SECONDS = 1800.0
QUIET_SECONDS = 120.0
"""A counter that stood still for so long is no rate any more: what it counted before is history."""


Key = tuple[str, str, Part]
"""Whose counter it is: device, quantity and part."""


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """Value and time of two marks of the counter *key*, and of its last growth."""

    key: Key
    older: tuple[float, Instant]
    newer: tuple[float, Instant]
    last: tuple[float, Instant]


class Hours:
    """The growth of counters over half an hour to an hour, whatever the cadence of their samples.

    ``marks`` go over a restart: else an agent that is restarted each half hour would never see a whole one.
    """

    def __init__(self, marks: Iterable[Marks] = ()) -> None:
        """Go on with *marks*."""
        self._marks = {entry.key: entry for entry in marks}

    @property
    def marks(self) -> tuple[Marks, ...]:
        """Return what another one goes on with."""
        return tuple(self._marks.values())

    def grown(self, key: Key, value: float, time: Instant) -> float:
        """Return how far the counter *key* grew since half an hour to an hour ago, or since it was first seen.

        A counter that fell, is of another boot, or was not looked at for an hour begins anew; one that stands still
        has not grown.
        """
        marks = self._marks.get(key)
        age = None if marks is None else time.seconds_since(marks.newer[1])
        if marks is None or age is None or value < marks.last[0] or age >= 2 * HALF_HOUR_SECONDS:
            self._marks[key] = Marks(key, (value, time), (value, time), (value, time))
            return 0.0
        last = (value, time) if value > marks.last[0] else marks.last
        older, newer = (marks.newer, (value, time)) if age >= HALF_HOUR_SECONDS else (marks.older, marks.newer)
        self._marks[key] = Marks(key, older, newer, last)
        still = time.seconds_since(last[1])
        return 0.0 if still is None or still >= QUIET_SECONDS else value - older[0]
