"""The newest readings of each device that are recent enough to be shown."""

from __future__ import annotations

from nodevet.checks.core.model import Failure, Instant, Reading, ReadingStatus, Snapshot
from nodevet.exporters.metrics.quantity import STALE_MINIMUM_SECONDS, STALE_ROUNDS


class CurrentReadings:
    """The current readings of each device; a stale reading counts as absent."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Sort the samples of *snapshot* by device and quantity."""
        longest = max(STALE_MINIMUM_SECONDS, STALE_ROUNDS * snapshot.agent.interval_seconds)
        self._readings: dict[str, dict[str, list[Reading]]] = {}
        self._failures: dict[str, Failure] = {}
        self._newest: dict[str, Instant] = {}
        for sample in sorted(snapshot.samples, key=lambda sample: sample.time.wall_seconds):
            self._newest[sample.device] = sample.time
            age = snapshot.time.seconds_since(sample.time)
            if age is None or age > longest:
                continue
            if sample.failure is not None:
                self._failures[sample.device] = sample.failure
            by_quantity = self._readings.setdefault(sample.device, {})
            for reading in sample.readings:
                by_quantity.setdefault(reading.quantity, []).append(reading)

    def readings(self, device: str, quantity: str) -> tuple[Reading, ...]:
        """Return the readings of *quantity* on the parts of *device*; those that it does not support are left out."""
        found = self._readings.get(device, {}).get(quantity, ())
        return tuple(reading for reading in found if reading.status is not ReadingStatus.UNSUPPORTED)

    def reading(self, device: str, quantity: str, name: str = "") -> Reading | None:
        """Return the reading of *quantity* on the part *name*, or None if there is none."""
        return next((reading for reading in self.readings(device, quantity) if reading.part.name == name), None)

    def value(self, device: str, quantity: str, name: str = "") -> float | None:
        """Return the measured number, or None."""
        found = self.reading(device, quantity, name)
        return number_of(found)

    def failure(self, device: str) -> Failure | None:
        """Return why the device could not be read as a whole, or None."""
        return self._failures.get(device)

    def last_read(self, device: str) -> Instant | None:
        """Return the time of the last reading of *device*, of any age; None if it was never read."""
        return self._newest.get(device)

    def is_read(self, device: str) -> bool:
        """Return whether any reading of *device* is recent, even a refused one."""
        return bool(self._readings.get(device))


def number_of(reading: Reading | None) -> float | None:
    """Return the number that *reading* measured, or None."""
    if reading is None or reading.value is None or isinstance(reading.value, str):
        return None
    return float(reading.value)
