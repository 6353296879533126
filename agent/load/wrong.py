"""What a load that goes on knows to be wrong: told as soon as it is known, for its end may be hours away."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from nodevet.checks.core.model import Metric, Result, ResultState

COMPARED = "gemms_checked"
"""The metric that says of how many products the wrong ones are, which is what a re-test is measured by."""

GROWING = (COMPARED, "measured_seconds")

TOLD_AGAIN = 1.25
"""A wrong result is told again when it is one of so many times the products: some sixty times in a load of days."""


def carried_on(known: Result, figures: Mapping[str, Any]) -> Result:
    """Return the wrong result *known* with the *figures* of now: what was right since makes it rarer.

    Else a device that was wrong once in its first seconds, and died an hour later, was wrong once in a few products.
    """
    return msgspec.structs.replace(
        known, metrics=tuple(_grown(entry, figures.get(entry.name)) for entry in known.metrics)
    )


def _grown(metric: Metric, now: object) -> Metric:
    is_more = isinstance(now, int | float) and math.isfinite(now) and now > (metric.value or 0)
    return msgspec.structs.replace(metric, value=now) if is_more and metric.name in GROWING else metric


class UntoldWrong:
    """Picks the wrong results of one load that were not told yet, or when they were one of far fewer products."""

    def __init__(self) -> None:
        """Begin with nothing told."""
        self._told: dict[tuple[tuple[str, ...], str | None], float] = {}

    def of(self, known: Iterable[Result]) -> tuple[Result, ...]:
        """Return those of *known* that are wrong and not told yet, as results of a load that goes on."""
        return tuple(
            msgspec.structs.replace(result, state=ResultState.INTERRUPTED, detail="found before its load ended")
            for result in known
            if result.metric("mismatches") and self._is_untold(result)
        )

    def told(self, results: Iterable[Result]) -> None:
        """Note that *results* have arrived: they are not told again as they are."""
        self._told |= {(result.devices, result.dtype): result.metric(COMPARED) or 0 for result in results}

    def _is_untold(self, result: Result) -> bool:
        told = self._told.get((result.devices, result.dtype))
        return told is None or (result.metric(COMPARED) or 0) > TOLD_AGAIN * told
