"""The clock of a device, read now and then while a load runs, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable

MOST_READINGS = 480

EVERY_SECONDS = 0.25
"""A probe of two seconds still has enough readings for an interval; a driver renews its clock more often."""

COST_SHARE = 0.01
"""Largest share of the time that reading may take."""


class ClockLog:
    """Reads a clock when one is due. A device that does not tell it is not asked again."""

    def __init__(self, read_hertz: Callable[[], float | None], now: Callable[[], float]) -> None:
        """Read by *read_hertz*, None where the device has no answer; *now* is in seconds."""
        self._read = read_hertz
        self._now = now
        self._every = EVERY_SECONDS
        self._due: float | None = now()
        self._readings: list[tuple[float, float]] = []

    @property
    def readings(self) -> tuple[tuple[float, float], ...]:
        """Return the readings (seconds, hertz) in the order of time; of a long load, means of neighbours."""
        return tuple(self._readings)

    def look(self) -> None:
        """Read the clock if a reading is due. Where there are too many, neighbours become their mean."""
        began = self._now()
        if self._due is None or began < self._due:
            return
        hertz = self._read()
        if not hertz:
            self._due = None
            return
        self._readings.append((began, float(hertz)))
        if len(self._readings) >= MOST_READINGS:
            pairs = zip(self._readings[::2], self._readings[1::2], strict=True)
            self._readings = [((early + late) / 2, (low + high) / 2) for (early, low), (late, high) in pairs]
            self._every *= 2
        self._due = began + max(self._every, (self._now() - began) / COST_SHARE)
