"""Heat, power and clock of the devices while a load runs, for the curves of its report."""

from __future__ import annotations

from nodevet.agent.load.curve import Curve
from nodevet.checks.model import Part, PartKind, ReadingStatus, Sample
from nodevet.exporters.schema import SeriesDocument

__all__ = ["LoadRecorder"]

RECORDED = {
    ("temperature_celsius", Part(PartKind.SENSOR, "core")),
    ("temperature_celsius", Part(PartKind.SENSOR, "hotspot")),
    ("temperature_celsius", Part(PartKind.SENSOR, "package")),
    ("power_watts", Part(PartKind.POWER_SCOPE, "device")),
    ("clock_hertz", Part(PartKind.CLOCK, "sm")),
    ("clock_hertz", Part(PartKind.CLOCK, "graphics")),
    ("clock_hertz", Part(PartKind.CLOCK, "core")),
}
"""What says whether a device was hot, capped or slow: one sensor of each kind, the device's own."""


class LoadRecorder:
    """Collects from ``begin`` to ``end``; at other times samples pass by."""

    def __init__(self) -> None:
        """Start idle."""
        self._began: float | None = None
        self._curves: dict[tuple[str, str], Curve] = {}

    def begin(self, seconds: float) -> None:
        """Begin a recording at *seconds* of CLOCK_BOOTTIME, unless one is under way."""
        if self._began is None:
            self._began = seconds
            self._curves = {}

    def end(self) -> tuple[SeriesDocument, ...]:
        """End the recording and return its curves."""
        self._began = None
        return tuple(
            SeriesDocument(device, quantity, curve.points) for (device, quantity), curve in self._curves.items()
        )

    def take(self, sample: Sample) -> None:
        """Add what *sample* says of the recorded quantities."""
        if self._began is None:
            return
        seconds = sample.time.boottime_ns / 1e9 - self._began
        for reading in sample.readings:
            if (reading.quantity, reading.part) in RECORDED and reading.status is ReadingStatus.OK:
                curve = self._curves.setdefault((sample.device, reading.quantity), Curve())
                curve.add(seconds, float(reading.value or 0))
