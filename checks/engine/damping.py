"""Conditions that come and go: after a few returns in an hour one stays open for a while, each time for longer. Pure.

A condition opens at once, always; damping only delays its end, and the good looks that its end needs are counted
meanwhile. What closes a gate is not damped, and neither is what could not be measured: clearing.csv has the column.
The numbers are in reference/damping.csv. Times are those of the boot, so that a wall clock decides nothing; a reboot
begins anew.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from nodevet.checks.core.model import Instant, Key
from nodevet.checks.reference.tables import load_table


class DampingRow(msgspec.Struct, frozen=True):
    """After how many returns in which time a condition is held open, and for how long."""

    reopenings: int
    window_seconds: float
    first_hold_seconds: float
    factor: float
    longest_hold_seconds: float
    source: str


class Flap(msgspec.Struct, frozen=True):
    """How a condition came and went lately.

    It was ``closed`` last at that moment; ``reopened`` are its latest returns and ``times`` counts them; ``holds`` is
    how often it was held open, ``until`` the end of the last hold.
    """

    key: Key
    closed: Instant
    reopened: tuple[Instant, ...] = ()
    times: int = 0
    holds: int = 0
    until: Instant | None = None


@lru_cache(maxsize=1)
def damping() -> DampingRow:
    """Return the row of reference/damping.csv."""
    row: DampingRow = load_table("damping.csv", DampingRow)[0]
    return row


def hold_seconds(holds: int) -> float:
    """Return how long the hold of that number lasts: each longer than the one before, up to the longest."""
    row = damping()
    seconds = row.first_hold_seconds
    for _ in range(holds - 1):
        seconds = min(seconds * row.factor, row.longest_hold_seconds)
    return min(seconds, row.longest_hold_seconds)


def closed(flap: Flap | None, key: Key, now: Instant) -> Flap:
    """Return what is remembered of the condition of *key*, which ends *now*; one that was steadily bad begins anew."""
    if flap is None or (flap.reopened and _is_past(flap.until or flap.reopened[-1], flap, now)):
        return Flap(key, now)
    return msgspec.structs.replace(flap, closed=now)


def reopened(flap: Flap, now: Instant) -> Flap:
    """Return what is remembered of a condition that is back *now*: held open where it came back too often."""
    row = damping()
    recent = [then for then in flap.reopened if _within(then, now, row.window_seconds)]
    returns = (*recent, now)[-row.reopenings :]
    flap = msgspec.structs.replace(flap, reopened=returns, times=flap.times + 1)
    if not flap.holds and len(returns) < row.reopenings:
        return flap
    return msgspec.structs.replace(flap, holds=flap.holds + 1, until=later(now, hold_seconds(flap.holds + 1)))


def later(moment: Instant, seconds: float) -> Instant:
    """Return the moment *seconds* after *moment* in its boot."""
    return Instant(moment.boot_id, moment.boottime_ns + round(seconds * 1e9), moment.wall_seconds + seconds)


def is_held(flap: Flap | None, now: Instant) -> bool:
    """Return whether the condition of *flap* stays open *now*, however good it looks."""
    return flap is not None and flap.until is not None and (flap.until.seconds_since(now) or 0.0) > 0


def is_forgotten(flap: Flap, now: Instant, *, is_open: bool) -> bool:
    """Return whether *flap* says nothing now: of another boot, or over for as long as its last hold, or a window."""
    return flap.closed.boot_id != now.boot_id or (not is_open and _is_past(flap.closed, flap, now))


def _is_past(since: Instant, flap: Flap, now: Instant) -> bool:
    return not _within(since, now, max(damping().window_seconds, hold_seconds(flap.holds) if flap.holds else 0.0))


def _within(then: Instant, now: Instant, seconds: float) -> bool:
    passed = now.seconds_since(then)
    return passed is not None and passed <= seconds
