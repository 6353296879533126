"""The clock that a device held under load, from a few readings in steps: a mean with its interval. Pure arithmetic.

The interval has two parts. A clock is reported in steps, so each reading may be half a step beside the clock: nothing
averages this away where the clock stands still. And the clock changes between two readings: how much, the differences
of neighbouring readings tell. Those, unlike the spread around the mean, stay small while a device heats up slowly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from nodevet.checks.reference.tables import load_table

LEAST_READINGS = 3
"""Two readings give one difference, which says nothing of the spread of differences."""

UNREAD_AT_MOST = 0.5
"""Longest part of the load without a reading: what nobody read may have been another clock."""

_STUDENT_95 = (
    (1, 12.71),
    (2, 4.303),
    (3, 3.182),
    (4, 2.776),
    (5, 2.571),
    (6, 2.447),
    (8, 2.306),
    (10, 2.228),
    (15, 2.131),
    (20, 2.086),
    (30, 2.042),
    (60, 2.0),
    (1000, 1.962),
)
"""Two-sided 95 % quantiles of Student's t distribution by degrees of freedom."""


class ClockStep(msgspec.Struct, frozen=True):
    """A row of ``clock_steps.csv``: the step in which drivers of *vendor* report clocks."""

    vendor: str
    step_hertz: float
    source: str


class HeldClock(msgspec.Struct, frozen=True, kw_only=True):
    """The mean clock of a load, with the interval that holds it with about 95 % confidence."""

    hertz: float
    low_hertz: float
    high_hertz: float
    readings: int


def held_clock(
    readings: Sequence[tuple[float, float]], first: float, last: float, step_hertz: float
) -> HeldClock | None:
    """Return the mean clock from the moment *first* to *last*, or None where too little of that time was read.

    *readings* are (seconds, hertz) in the order of time; those outside the load are ignored. Each stands for the time
    that is nearer to it than to any other, so polls that are late or missing shift no weight to one end.
    """
    within = [(seconds, hertz) for seconds, hertz in readings if first <= seconds <= last]
    moments = [seconds for seconds, _ in within]
    if len(within) < LEAST_READINGS or last <= first:
        return None
    if max(later - earlier for earlier, later in pairwise([first, *moments, last])) > UNREAD_AT_MOST * (last - first):
        return None
    borders = [first, *((earlier + later) / 2 for earlier, later in pairwise(moments)), last]
    shares = [(end - begin) / (last - first) for begin, end in pairwise(borders)]
    mean = math.fsum(share * hertz for share, (_, hertz) in zip(shares, within, strict=True))
    margin = step_hertz / 2 + _sampling_margin([hertz for _, hertz in within], shares, step_hertz)
    return HeldClock(hertz=mean, low_hertz=mean - margin, high_hertz=mean + margin, readings=len(within))


def clock_step_hertz(vendor: str) -> float:
    """Return the step in which the driver of *vendor* reports clocks; the coarsest known one for others."""
    rows = load_table("clock_steps.csv", ClockStep)
    known = (row.step_hertz for row in rows if row.vendor == vendor)
    return next(known, max(row.step_hertz for row in rows))


def _sampling_margin(values: Sequence[float], shares: Sequence[float], step_hertz: float) -> float:
    """Return by how much the mean may be wrong because the clock was not read all the time.

    Half of the mean squared difference of neighbours is the variance of one reading; equal readings may still differ
    within their step. These differences share readings, so they count as two thirds of their number (von Neumann).
    """
    squares = [(later - earlier) ** 2 for earlier, later in pairwise(values)]
    variance = max(math.fsum(squares) / len(squares) / 2, step_hertz**2 / 12)
    freedom = max(1.0, 2 * len(squares) / 3)
    quantile = next(value for least, value in reversed(_STUDENT_95) if least <= freedom)
    return quantile * math.sqrt(variance * math.fsum(share**2 for share in shares))
