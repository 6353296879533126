"""Heat, power and clock of the devices while a load runs, for the curves of its report and for its re-test."""

from __future__ import annotations

import functools
import statistics
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec

from nodevet.checks.core.model import PartKind, Reading, ReadingStatus, Result, Sample
from nodevet.checks.engine.retest import CONDITIONS
from nodevet.exporters.documents.types import SeriesDocument

from .conditions import Conditions, is_throttling, joined
from .curve import Curve

RECORDED = {
    ("temperature_celsius", PartKind.SENSOR): ("core", "hotspot", "package"),
    ("power_watts", PartKind.POWER_SCOPE): ("device",),
    ("clock_hertz", PartKind.CLOCK): ("sm", "graphics", "core"),
}
"""What says whether a device was hot, capped or slow: one sensor of each kind, the device's own; where it has several,
as a processor of several dies, all of them."""
_FLAG, _COUNTERS = "throttle_active", ("throttle_seconds", "throttle_events")
QUANTITIES = frozenset(quantity for quantity, _ in RECORDED)
_TAKEN = QUANTITIES | {_FLAG, *_COUNTERS}


RECENT_POINTS = 64
STAMPED_AT_MOST = 64

FIRST_GAP_SECONDS = 10.0
"""How far apart readings are where only one came so far: the agent's interval where nobody chose another."""

SHOWING_SECONDS = 60.0
"""Heat and power of a wrong result are of so long before it: more than noise, less than a device takes to heat."""

LATE = 1.5
"""A reading stands for what comes until the next one is due, which may be late by half of that."""


class _Recent:
    """The last readings of one quantity: a curve of hours tells of minutes, and a wrong result may show in seconds."""

    def __init__(self) -> None:
        """Begin without readings."""
        self._points: deque[tuple[float, float]] = deque(maxlen=RECENT_POINTS)

    def add(self, seconds: float, value: float) -> None:
        """Add a reading of *seconds* after boot."""
        self._points.append((seconds, value))

    @property
    def since(self) -> float:
        """Return the moment of the first reading."""
        return self._points[0][0]

    def median(self, first: float, last: float) -> float | None:
        """Return the median from the moment *first* to *last*, else what was read before and still stood, or None."""
        moments = sorted({seconds for seconds, _ in self._points if seconds <= last})
        if not moments:
            return None
        gaps = [later - earlier for earlier, later in pairwise(moments)]
        if last - moments[-1] > LATE * statistics.median(gaps or [FIRST_GAP_SECONDS]):
            return None
        since = min(first, moments[-1])
        return statistics.median(value for seconds, value in self._points if since <= seconds <= last)


class LoadRecorder:
    """Collects from ``begin`` to ``end``; of other times it knows the last readings alone."""

    def __init__(self) -> None:
        """Start idle."""
        self._began: float | None = None
        self._curves: dict[tuple[str, str], Curve] = {}
        self._recent: dict[tuple[str, str], _Recent] = {}
        self._stamped: dict[tuple[object, ...], dict[str, float | None]] = {}
        self._now: dict[str, dict[str, tuple[float, Conditions]]] = {}
        self._counted: dict[tuple[str, str, object], float] = {}
        self._throttled: dict[str, dict[str, Curve]] = {}

    def now(self, seconds: float) -> dict[str, Conditions]:
        """Return what was read of each device in the minute before this moment, in seconds after boot."""
        known = {}
        for device, groups in self._now.items():
            fresh = [conditions for read, conditions in groups.values() if seconds - read <= SHOWING_SECONDS]
            if fresh:
                known[device] = functools.reduce(joined, fresh)
        return known

    def begin(self, seconds: float) -> None:
        """Begin a recording at *seconds* of CLOCK_BOOTTIME, unless one is under way."""
        if self._began is None:
            self._began = seconds
            self._curves = {}
            self._throttled = {}

    def end(self) -> tuple[SeriesDocument, ...]:
        """End the recording and return its curves."""
        self._began = None
        return tuple(
            SeriesDocument(device, quantity, curve.points) for (device, quantity), curve in self._curves.items()
        )

    def stamped(self, result: Result, samples: Iterable[Sample]) -> Result:
        """Return *result* with the heat and power of its device while it ran, for the re-test that may follow.

        One that the device cannot tell, by its latest *samples*, stands under ``unsupported``; one that was not
        recorded is None. What the load told itself is kept, and of a wrong result what was known when it was found: the
        readings of that moment are gone at the end of its load.
        """
        if len(result.devices) != 1 or any(name in result.conditions for name in (*CONDITIONS, "unsupported")):
            return result
        (device,) = result.devices
        told = {name: self._median(device, name, result) for name in CONDITIONS}
        if result.metric("mismatches"):
            told = self._filled(device, result, told)
        missing = [name for name, value in told.items() if value is None]
        unsupported = [name for name in missing if cannot_tell(device, name, samples)]
        told |= self._held(device, result)
        return msgspec.structs.replace(result, conditions={**result.conditions, **told, "unsupported": unsupported})

    def _held(self, device: str, result: Result) -> dict[str, Any]:
        """Return the clock that *device* held during *result*, and the share of readings that each reason throttled."""
        if self._began is None:
            return {}
        first, last = (moment.boottime_ns / 1e9 - self._began for moment in (result.started, result.ended))
        clock = self._curves.get((device, "clock_hertz"))
        shares = {name: curve.mean(first, last) for name, curve in self._throttled.get(device, {}).items()}
        throttle = {name: round(share, 4) for name, share in shares.items() if share}
        held = None if clock is None else clock.median(first, last)
        told: dict[str, Any] = {} if held is None else {"clock_hertz": held}
        return told | ({"throttle": throttle} if any(share is not None for share in shares.values()) else {})

    def _median(self, device: str, quantity: str, result: Result) -> float | None:
        """Return the median while *result* was made; for a passed one None where half of that time was not read.

        What nobody read may have been cold, and a median of the other half would be that of a part.
        """
        curve = self._curves.get((device, quantity))
        if self._began is None or curve is None:
            return None
        first, last = (moment.boottime_ns / 1e9 - self._began for moment in (result.started, result.ended))
        longest = max(SHOWING_SECONDS, (last - first) / 2)
        if not result.metric("mismatches") and curve.longest_gap(first, last) > longest:
            return None
        return curve.median(first, last)

    def _filled(self, device: str, result: Result, told: dict[str, float | None]) -> dict[str, float | None]:
        """Return what was *told* of the wrong *result*, or more: what was told of it before, else what was read last.

        It may have shown only when a fan had failed, an hour behind a cool start. What was read last would prove too
        much of a passed one, whose whole time counts.
        """
        name = (result.workload, result.devices, result.dtype, result.started)
        before = self._stamped.pop(name, {})
        known = {key: self._last(device, key, result) if before.get(key) is None else before[key] for key in told}
        full = {key: _most(value, known[key]) for key, value in told.items()}
        self._stamped[name] = full
        while len(self._stamped) > STAMPED_AT_MOST:
            del self._stamped[next(iter(self._stamped))]
        return full

    def _last(self, device: str, quantity: str, result: Result) -> float | None:
        """Return what was read last before the end of *result*; None where it was not read from its start on."""
        recent = self._recent.get((device, quantity))
        first, last = (moment.boottime_ns / 1e9 for moment in (result.started, result.ended))
        is_all = recent is not None and (recent.since <= first or (self._began is not None and self._began <= first))
        return recent.median(max(first, last - SHOWING_SECONDS), last) if recent is not None and is_all else None

    def take(self, sample: Sample) -> None:
        """Add what *sample* says of the recorded quantities, and of what throttles its device."""
        seconds = sample.time.boottime_ns / 1e9
        now: dict[str, float] = {}
        reasons: dict[str, bool] = {}
        is_told = sample.failure is not None
        for reading in sample.readings:
            if reading.quantity not in _TAKEN:  # most of a sample
                continue
            is_told = True
            if reading.status is not ReadingStatus.OK:
                continue
            if reading.quantity not in QUANTITIES:
                if is_throttling(reading.part.name):
                    holds = self._throttles(sample.device, reading)
                    reasons[reading.part.name] = reasons.get(reading.part.name, False) or holds
                continue
            if not _is_recorded(reading):
                continue
            name, value = (sample.device, reading.quantity), float(reading.value or 0)
            now[reading.quantity] = max(value, now.get(reading.quantity, value))
            self._recent.setdefault(name, _Recent()).add(seconds, value)
            if self._began is not None:
                self._curves.setdefault(name, Curve()).add(seconds - self._began, value)
        if is_told:  # what it does not tell any more is unknown, not as it was
            throttle = tuple(name for name, holds in reasons.items() if holds) if reasons else None
            conditions = Conditions(**now, throttle=throttle)
            self._now.setdefault(sample.device, {})[sample.group] = (seconds, conditions)
        if self._began is not None:
            curves = self._throttled.setdefault(sample.device, {})
            for reason, holds in reasons.items():
                curves.setdefault(reason, Curve()).add(seconds - self._began, float(holds))

    def _throttles(self, device: str, reading: Reading) -> bool:
        """Return whether *reading* says that its reason holds now, or that its counter grew since it was read before.

        A counter that was not read before says nothing of now.
        """
        if reading.quantity == _FLAG:
            return bool(reading.value)
        key, value = (device, reading.quantity, reading.part), float(reading.value or 0)
        before = self._counted.get(key, value)
        self._counted[key] = value
        return value > before


def _most(*values: float | None) -> float | None:
    """Return the largest of *values*, or None where none is known."""
    return max((value for value in values if value is not None), default=None)


def _is_recorded(reading: Reading) -> bool:
    """Return whether *reading* is of a sensor that is recorded, whatever its number."""
    return reading.part.name in RECORDED.get((reading.quantity, reading.part.kind), ())


def cannot_tell(device: str, quantity: str, samples: Iterable[Sample]) -> bool:
    """Return whether *device* was read and has no sensor of *quantity* that is recorded: absence alone is no proof."""
    own = [sample for sample in samples if sample.device == device]
    if not own or any(sample.failure is not None for sample in own):
        return False
    found = [
        reading.status
        for sample in own
        for reading in sample.readings
        if reading.quantity == quantity and _is_recorded(reading)
    ]
    return all(status is ReadingStatus.UNSUPPORTED for status in found)
