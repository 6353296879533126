"""Figures from counts and seconds: pure arithmetic, no clock and no device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

LATE_FACTOR = 2.0
UNKNOWN_SECONDS = 0.1


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which *share* (0 to 1) of *values* lies, interpolated. Raises ValueError for none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def late_batches(seconds: Sequence[float]) -> list[int]:
    """Return the positions of batches that took more than twice the median of all."""
    if len(seconds) < 3:
        return []
    limit = LATE_FACTOR * statistics.median(seconds)
    return [position for position, value in enumerate(seconds) if value > limit]


def usual(known: Sequence[float], seconds: float) -> float:
    """Return the assumed seconds of a batch during which the process was stopped, so that its *seconds* are too many.

    That is the median of the *known* ones before it; the first one counts as almost nothing.
    """
    return min(seconds, statistics.median(known) if known else UNKNOWN_SECONDS)


def believed(reported: float, passed: float) -> float:
    """Return the seconds of a batch: *reported* by the device's timer, unless they exceed the seconds that *passed*.

    The device is the suspect. A timer that runs too fast would end ten minutes of load after some seconds.
    """
    return reported if 0 < reported <= passed else passed


def overhead_ratio(checked: Sequence[float], unchecked: Sequence[float]) -> float | None:
    """Return by how much a checked batch takes longer than an unchecked one, as a ratio, from equal numbers of each.

    Medians, so that one interrupted batch does not decide. None where nothing was measured; a small
    negative value is noise and is reported as such.
    """
    if not checked or not unchecked:
        return None
    return statistics.median(checked) / statistics.median(unchecked) - 1.0


def upper_bound_95(wrong: int, trials: int) -> float | None:
    """Return the 95 % upper bound of a rate with *wrong* events in *trials* (Clopper-Pearson, exact).

    With no event this is 1 - 0.05**(1/trials), about 3 / trials. None without a trial.
    """
    if trials <= 0:
        return None
    if wrong >= trials:
        return 1.0
    low, high = wrong / trials, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if _chance_of_at_most(wrong, trials, middle) > 0.05:
            low = middle
        else:
            high = middle
    return high


def _chance_of_at_most(wrong: int, trials: int, rate: float) -> float:
    """Return the binomial probability of at most *wrong* events; above the mean the terms decrease quickly."""
    if rate >= 1.0:
        return 0.0
    log_term = (
        math.lgamma(trials + 1)
        - math.lgamma(wrong + 1)
        - math.lgamma(trials - wrong + 1)
        + (wrong * math.log(rate) if wrong else 0.0)
        + (trials - wrong) * math.log1p(-rate)
    )
    term = total = math.exp(log_term)
    for count in range(wrong, 0, -1):
        term *= count * (1 - rate) / ((trials - count + 1) * rate)
        total += term
        if term < total * 1e-12:
            break
    return total
