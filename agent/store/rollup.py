"""Minute summaries of gauges, for the history of a device."""

from __future__ import annotations

from nodevet.checks.core.model import ReadingStatus, Sample
from nodevet.checks.core.quantities import QUANTITIES, QuantityKind

from .rows import Rollup

ROLLED = frozenset(key for key, quantity in QUANTITIES.items() if quantity.rolled)


class MinuteRollups:
    """Collects the samples of one wall-clock minute."""

    def __init__(self) -> None:
        """Start with nothing collected."""
        self._minute: int | None = None
        self._values: dict[tuple[str, str, str], list[float]] = {}

    def take(self, sample: Sample) -> tuple[Rollup, ...]:
        """Add *sample*; return the summaries of the minute before where this one began another."""
        minute = int(sample.time.wall_seconds // 60)
        finished: tuple[Rollup, ...] = ()
        if self._minute is not None and minute != self._minute:
            finished = self.finish()
        self._minute = minute
        for reading in sample.readings:
            if reading.quantity in ROLLED and reading.status is ReadingStatus.OK:
                assert QUANTITIES[reading.quantity].kind is QuantityKind.GAUGE
                key = (sample.device, reading.quantity, str(reading.part))
                self._values.setdefault(key, []).append(float(reading.value or 0))
        return finished

    def finish(self) -> tuple[Rollup, ...]:
        """Return the summaries of what was collected, and start anew."""
        minute = self._minute or 0
        rollups = tuple(
            Rollup(minute, device, quantity, part, min(values), sum(values) / len(values), max(values), len(values))
            for (device, quantity, part), values in self._values.items()
        )
        self._values.clear()
        return rollups
