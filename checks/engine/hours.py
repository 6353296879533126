"""Growth of a counter within the last hour, from spans of five minutes: no list of samples is kept.

The window is the last 55 to 60 minutes: the current span and the eleven before it. In a shorter window, such as one
that restarts each half hour, a steady rate above the limit would be seen only at times. Growth between two samples
counts for the time of the earlier one, so that never more than an hour is counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodevet.checks.core.model import Instant, Part

SPAN_SECONDS = 300.0
SPANS = 12
HOUR_SECONDS = SPANS * SPAN_SECONDS
QUIET_SECONDS = 120.0
"""A counter without growth for so long has no rate any more: its earlier growth is history."""


Key = tuple[str, str, Part]
"""Device, quantity and part of the counter."""


class Hourly(msgspec.Struct, frozen=True, array_like=True):
    """The state of the counter *key*: its value, its read time and the time of its growth, to within a span.

    ``spans`` is the growth in each of the last spans of five minutes since boot with growth.
    """

    key: Key
    value: float
    read: Instant
    grew: Instant
    spans: tuple[tuple[int, float], ...] = ()


class Hours:
    """Growth of counters in the last 55 to 60 minutes, independent of the interval of their samples.

    ``kept`` survives a restart: otherwise an agent that restarts each half hour would never see a whole hour.
    """

    def __init__(self, kept: Iterable[Hourly] = ()) -> None:
        """Restore the *kept* state."""
        self._counters = {entry.key: entry for entry in kept}

    @property
    def kept(self) -> tuple[Hourly, ...]:
        """Return the state for the next agent."""
        return tuple(self._counters.values())

    def grown(self, key: Key, value: float, time: Instant) -> float:
        """Return the growth of the counter *key* in the last 55 to 60 minutes, or since its first sample.

        A counter that fell, is of another boot, or was not read for an hour restarts; a constant one has no growth.
        """
        known = self._counters.get(key)
        unread = None if known is None else time.seconds_since(known.read)
        if known is None or unread is None or value < known.value or unread >= HOUR_SECONDS:
            self._counters[key] = Hourly(key, value, time, time)
            return 0.0
        recent = _span(time) - SPANS
        if value > known.value:
            spans = dict(known.spans)
            spans[_span(known.read)] = spans.get(_span(known.read), 0.0) + value - known.value
            kept = tuple((span, amount) for span, amount in spans.items() if span > recent)
            known = self._counters[key] = Hourly(key, value, time, time, kept)
        elif _span(known.read) != _span(time):  # once per span, or each sample would be stored
            kept = tuple((span, amount) for span, amount in known.spans if span > recent)
            known = self._counters[key] = Hourly(key, value, time, known.grew, kept)
        still = time.seconds_since(known.grew)
        return 0.0 if still is None or still >= QUIET_SECONDS else sum((amount for _, amount in known.spans), 0.0)


def _span(time: Instant) -> int:
    """Return the number of the span since boot that contains *time*."""
    return int(time.boottime_ns // round(SPAN_SECONDS * 1e9))
