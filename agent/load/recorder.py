"""Heat, power and clock of the devices while a load runs, for the curves of its report."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodevet.agent.load.curve import Curve
from nodevet.checks.model import Part, PartKind, ReadingStatus, Result, Sample
from nodevet.checks.retest import CONDITIONS
from nodevet.exporters.schema import SeriesDocument

__all__ = ["LoadRecorder", "cannot_tell"]

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

    def stamped(self, result: Result, samples: Iterable[Sample]) -> Result:
        """Return *result* with the heat and power of its device while it ran, for the re-test that may follow.

        One that the device cannot tell, by its latest *samples*, stands under ``unsupported``; one that was not
        recorded is None. What the load told itself is kept.
        """
        if len(result.devices) != 1 or any(name in result.conditions for name in (*CONDITIONS, "unsupported")):
            return result
        (device,) = result.devices
        told = {name: self._median(device, name, result) for name in CONDITIONS}
        missing = [name for name, value in told.items() if value is None]
        unsupported = [name for name in missing if cannot_tell(device, name, samples)]
        return msgspec.structs.replace(result, conditions={**result.conditions, **told, "unsupported": unsupported})

    def _median(self, device: str, quantity: str, result: Result) -> float | None:
        curve = self._curves.get((device, quantity))
        if self._began is None or curve is None:
            return None
        first, last = (moment.boottime_ns / 1e9 - self._began for moment in (result.started, result.ended))
        return curve.median(first, last)

    def take(self, sample: Sample) -> None:
        """Add what *sample* says of the recorded quantities."""
        if self._began is None:
            return
        seconds = sample.time.boottime_ns / 1e9 - self._began
        for reading in sample.readings:
            if (reading.quantity, reading.part) in RECORDED and reading.status is ReadingStatus.OK:
                curve = self._curves.setdefault((sample.device, reading.quantity), Curve())
                curve.add(seconds, float(reading.value or 0))


def cannot_tell(device: str, quantity: str, samples: Iterable[Sample]) -> bool:
    """Return whether *device* was read and has no sensor of *quantity* that is recorded: absence alone is no proof."""
    parts = [part for name, part in RECORDED if name == quantity]
    own = [sample for sample in samples if sample.device == device]
    if not own or any(sample.failure is not None for sample in own):
        return False
    found = [
        reading.status
        for sample in own
        for reading in sample.readings
        if reading.quantity == quantity and reading.part in parts
    ]
    return all(status is ReadingStatus.UNSUPPORTED for status in found)
