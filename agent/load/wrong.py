"""What a load that goes on knows to be wrong: told as soon as it is known, for its end may be hours away."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
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


FOUND_AGAIN_SECONDS = 10.0
"""When a wrong result that was not taken is told again."""


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


class WrongTelling:
    """Tells each wrong result of one load as soon as it is known, until it is taken."""

    def __init__(
        self, tell: Callable[[tuple[Result, ...]], str], say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        """Tell by *tell*, which returns why results are not taken, or an empty string; *say* takes that line."""
        self._tell = tell
        self._say = say
        self._clock = clock
        self._untold = UntoldWrong()
        self._again_at = -math.inf
        self._said = ""

    def found(self, known: Iterable[Result]) -> None:
        """Tell those of *known* that are wrong: the node is unfit now, not in some hours."""
        fresh = self._untold.of(known)
        if not fresh or self._clock() < self._again_at:
            return
        trouble = self._tell(fresh)
        if not trouble:
            self._untold.told(fresh)
            return
        self._again_at = self._clock() + FOUND_AGAIN_SECONDS
        if trouble != self._said:
            self._said = trouble
            self._say(f"a wrong result was found, and {trouble}")
