"""The clock that a device held while a load measured its rate, and the two efficiencies that follow."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nodevet.checks.core.conditions import sound_conditions
from nodevet.checks.core.model import Result

from .held_clock import HeldClock, clock_step_hertz, held_clock
from .metrics import figures

_TERA = 1e12

HELD_FIGURES = (
    "peak_held_tflops",
    "efficiency_held_ratio",
    "efficiency_held_low_ratio",
    "efficiency_held_high_ratio",
    "clock_held_hertz",
    "clock_held_low_hertz",
    "clock_held_high_hertz",
    "clock_fraction_ratio",
    "clock_fraction_low_ratio",
    "clock_fraction_high_ratio",
    "clock_readings",
)
"""The figures that need readings of the clock; None without them."""

_Figures = dict[str, float | int | None]


def with_held_clock(result: Result, readings: Sequence[tuple[float, float]], vendor: str) -> Result:
    """Return *result* with the figures of the held clock, from *readings* (seconds of CLOCK_BOOTTIME, hertz).

    Unchanged where the load does not tell when it measured, or where too few readings are of that time. The interval
    includes the step in which drivers of *vendor* report clocks.
    """
    conditions = sound_conditions(result.conditions)
    measured = conditions.get("measured_boottime_seconds")
    if not measured or result.metric("clock_held_hertz") is not None:
        return result
    first, last = measured
    held = held_clock(readings, first, last, clock_step_hertz(vendor))
    if held is None:
        return result
    told = _clock_figures(held, conditions.get("specification_clock_hertz"))
    told |= _efficiency_figures(held, result.metric("tflops_mean"), conditions.get("operations_per_clock"))
    known = tuple(metric for metric in result.metrics if metric.name not in told)
    return msgspec.structs.replace(result, metrics=(*known, *figures(told)))


def _clock_figures(held: HeldClock, specification: float | None) -> _Figures:
    told: _Figures = {
        "clock_held_hertz": held.hertz,
        "clock_held_low_hertz": held.low_hertz,
        "clock_held_high_hertz": held.high_hertz,
        "clock_readings": held.readings,
    }
    if specification:
        told |= {
            "clock_fraction_ratio": held.hertz / specification,
            "clock_fraction_low_ratio": held.low_hertz / specification,
            "clock_fraction_high_ratio": held.high_hertz / specification,
        }
    return told


def _efficiency_figures(held: HeldClock, tflops: float | None, per_clock: float | None) -> _Figures:
    """Return the peak at the held clock and the share of it; a higher clock means a lower share."""
    if not per_clock or held.low_hertz <= 0:
        return {}
    told: _Figures = {"peak_held_tflops": per_clock * held.hertz / _TERA}
    if tflops is not None:
        told |= {
            "efficiency_held_ratio": tflops * _TERA / (per_clock * held.hertz),
            "efficiency_held_low_ratio": tflops * _TERA / (per_clock * held.high_hertz),
            "efficiency_held_high_ratio": tflops * _TERA / (per_clock * held.low_hertz),
        }
    return told
