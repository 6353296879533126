"""How far a counter grew within the last hour, from its growth in spans of five minutes: no list of samples is kept.

What is counted are the last 55 to 60 minutes: the span of now, which goes on, and the eleven before it. A shorter time,
such as one that begins anew each half hour, would see a steady rate above the limit at times and at times not. What
grew between two looks counts for the earlier one, so that never more than an hour is counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodevet.checks.core.model import Instant, Part

SPAN_SECONDS = 300.0
SPANS = 12
HOUR_SECONDS = SPANS * SPAN_SECONDS
QUIET_SECONDS = 120.0
"""A counter that stood still for so long is no rate any more: what it counted before is history."""


Key = tuple[str, str, Part]
"""Whose counter it is: device, quantity and part."""


class Hourly(msgspec.Struct, frozen=True, array_like=True):
    """What is known of the counter *key*: its value, when it was read and when it grew, to within a span.

    ``spans`` are the growth within each of the last spans of five minutes since the boot in which it grew.
    """

    key: Key
    value: float
    read: Instant
    grew: Instant
    spans: tuple[tuple[int, float], ...] = ()


class Hours:
    """The growth of counters over the last 55 to 60 minutes, whatever the cadence of their samples.

    ``kept`` goes over a restart: else an agent that is restarted each half hour would never see a whole one.
    """

    def __init__(self, kept: Iterable[Hourly] = ()) -> None:
        """Go on with what another one *kept*."""
        self._counters = {entry.key: entry for entry in kept}

    @property
    def kept(self) -> tuple[Hourly, ...]:
        """Return what another one goes on with."""
        return tuple(self._counters.values())

    def grown(self, key: Key, value: float, time: Instant) -> float:
        """Return how far the counter *key* grew in the last 55 to 60 minutes, or since it was first seen.

        A counter that fell, is of another boot, or was not looked at for an hour begins anew; one that stands still
        has not grown.
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
        elif _span(known.read) != _span(time):  # once in a span, or each look would be written
            kept = tuple((span, amount) for span, amount in known.spans if span > recent)
            known = self._counters[key] = Hourly(key, value, time, known.grew, kept)
        still = time.seconds_since(known.grew)
        return 0.0 if still is None or still >= QUIET_SECONDS else sum((amount for _, amount in known.spans), 0.0)


def _span(time: Instant) -> int:
    """Return the number of the span since the boot that *time* lies in."""
    return int(time.boottime_ns // round(SPAN_SECONDS * 1e9))
