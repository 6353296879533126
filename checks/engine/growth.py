"""Growth of counters between samples: their last values, and the state for a restarted agent."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodevet.checks.core.model import Instant, Part, Reading, Sample
from nodevet.checks.core.quantities import QUANTITIES

from .hours import Hourly, Hours
from .view import Growth

Key = tuple[str, str, Part]
"""Device, quantity and part of a counter."""

COUNTERS = frozenset(key for key, quantity in QUANTITIES.items() if quantity.judged_by_growth)
"""The quantities of which growth is kept: a few of those in each sample."""


class Counter(msgspec.Struct, frozen=True):
    """The last value of a counter that is judged by its growth.

    ``time`` is that of its last change, or after an *interrupted* reading that of its last reading: an unchanged
    counter is not stored again, and the time of its group's last sample applies to it.
    """

    device: str
    quantity: str
    part: Part
    value: float
    time: Instant
    group: str = ""
    interrupted: bool = False


class Counters:
    """The counters of all devices, and their growth up to the last sample."""

    def __init__(
        self,
        kept: Iterable[Counter] = (),
        hourly: Iterable[Hourly] = (),
        times: Iterable[tuple[str, str, Instant]] = (),
    ) -> None:
        """Restore the *kept* counters, the *hourly* growth, and the times of the last samples."""
        self._counters: dict[Key, Counter] = {}
        self._of_group: dict[tuple[str, str], set[Key]] = {}
        for entry in kept:
            self._keep((entry.device, entry.quantity, entry.part), entry)
        self._hours = Hours(hourly)
        self._times = {(device, group): moment for device, group, moment in times}
        self.growth: dict[Key, Growth] = {}
        """The growth of each counter between its last two samples."""

    @property
    def kept(self) -> tuple[Counter, ...]:
        """Return the last value of each counter."""
        return tuple(self._counters.values())

    @property
    def hourly(self) -> tuple[Hourly, ...]:
        """Return the growth within the last hour."""
        return self._hours.kept

    @property
    def times(self) -> tuple[tuple[str, str, Instant], ...]:
        """Return the last read time of each group of each device: device, group, time."""
        return tuple((*key, moment) for key, moment in self._times.items())

    def last_time(self, sample: Sample) -> Instant | None:
        """Return the time of the previous sample of the group of *sample*; None if there was none."""
        return self._times.get((sample.device, sample.group))

    def take(self, sample: Sample) -> None:
        """Record the growth of the counters of *sample*, which did not fail, since the sample before it."""
        read = [entry for entry in sample.readings if entry.quantity in COUNTERS and entry.value is not None]
        self._interrupt(sample, read)
        for entry in read:
            if not isinstance(entry.value, str):
                self._count(sample, entry.quantity, entry.part, float(entry.value or 0))
        self._times[sample.device, sample.group] = sample.time

    def _interrupt(self, sample: Sample, read: Iterable[Reading]) -> None:
        """Keep the time of the last reading of each counter of *sample* that is not among those *read*."""
        last = self.last_time(sample)
        if last is None:
            return
        device = sample.device
        present = {(device, entry.quantity, entry.part) for entry in read}
        for key in self._of_group.get((device, sample.group), set()) - present:
            counter = self._counters[key]
            if not counter.interrupted:
                self._counters[key] = msgspec.structs.replace(counter, time=last, interrupted=True)

    def _keep(self, key: Key, counter: Counter) -> None:
        """Store *counter* in place of its last value, which may have arrived in another group."""
        before = self._counters.get(key)
        if before is not None and before.group != counter.group:
            self._of_group[before.device, before.group].discard(key)
        self._counters[key] = counter
        self._of_group.setdefault((counter.device, counter.group), set()).add(key)

    def _count(self, sample: Sample, quantity: str, part: Part, value: float) -> None:
        key = (sample.device, quantity, part)
        before = self._counters.get(key)
        by_hour = QUANTITIES[quantity].judged_by_hour
        within_hour = self._hours.grown(key, value, sample.time) if by_hour else 0.0
        if before is not None:
            since = before.time if before.interrupted else self.last_time(sample) or before.time
            seconds = sample.time.seconds_since(since)
            if seconds is not None and seconds > 0 and value >= before.value:
                self.growth[key] = Growth(value - before.value, seconds, sample.time, within_hour)
            elif seconds is None or value < before.value:
                self.growth.pop(key, None)
            else:
                return
        is_same = before is not None and before.value == value and before.time.boot_id == sample.time.boot_id
        if before is None or not is_same or before.interrupted:
            self._keep(key, Counter(sample.device, quantity, part, value, sample.time, sample.group))
