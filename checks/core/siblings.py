"""Which of several devices of one model is slower than their natural spread explains. Pure arithmetic.

The slowest device is compared with the mean and the standard deviation of the others. The same is done for the two
slowest at once, because two slow devices widen each other's spread. The limits are those that one healthy node of 2000
passes by chance, whatever the spread is (``sibling_limits.csv``). With fewer than six devices no limit tells a slow
device from a wide spread.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec


class SiblingLimit(msgspec.Struct, frozen=True):
    """A row of ``sibling_limits.csv``: the limit for the *slow* slowest of *devices*, in standard deviations."""

    devices: int
    slow: int
    limit: float
    source: str


class Slower(msgspec.Struct, frozen=True):
    """A device that is slower than its siblings: by a ratio of their mean, with the spread of the siblings."""

    device: str
    below_ratio: float
    spread_ratio: float
    deviations: float
    limit: float


def slower_devices(
    rates: Mapping[str, Sequence[float]], limits: Sequence[SiblingLimit], least_spread: float
) -> tuple[Slower, ...]:
    """Return the devices that are slower than their siblings, the slowest first.

    *rates* are the rates of each device in the same workloads, in the same order, above 0. *least_spread* is the ratio
    that the standard deviation is taken to be at least: devices that are almost equal make a small difference large.
    """
    if len({len(values) for values in rates.values()}) != 1:
        return ()
    logarithms = _logarithms(rates)
    order = sorted(logarithms, key=lambda device: (logarithms[device], device))
    for row in sorted((row for row in limits if row.devices == len(order)), key=lambda row: -row.slow):
        slow, others = order[: row.slow], [logarithms[device] for device in order[row.slow :]]
        mean, spread = statistics.fmean(others), max(statistics.stdev(others), least_spread)
        deviations = (mean - logarithms[slow[-1]]) / (spread * math.sqrt(1 + 1 / len(others)))
        if deviations > row.limit:
            return tuple(
                Slower(
                    device=device,
                    below_ratio=1 - math.exp(logarithms[device] - mean),
                    spread_ratio=spread,
                    deviations=deviations,
                    limit=row.limit,
                )
                for device in slow
            )
    return ()


def _logarithms(rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean logarithm of each device's rates, each workload relative to its median device."""
    middles = [statistics.median(values) for values in zip(*rates.values(), strict=True)]
    return {
        device: statistics.fmean(math.log(value / middle) for value, middle in zip(values, middles, strict=True))
        for device, values in rates.items()
    }
