"""Damping of flapping conditions: after some returns in an hour an episode is held open, longer each time. Pure.

A condition always opens at once; damping only delays its end, while the good observations for its end are counted.
Neither faults that close a gate nor unmeasured readings are damped: see the column in clearing.csv. The numbers are in
reference/damping.csv. Times are seconds since boot, independent of the wall clock; a reboot resets them.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from nodevet.checks.core.model import Instant, Key
from nodevet.checks.reference.tables import load_table


class DampingRow(msgspec.Struct, frozen=True):
    """The number of returns and the window after which a condition is held open, and the hold time."""

    reopenings: int
    window_seconds: float
    first_hold_seconds: float
    factor: float
    longest_hold_seconds: float
    source: str


class Flap(msgspec.Struct, frozen=True):
    """The recent history of a flapping condition.

    ``closed`` is its last end; ``reopened`` are the times of its latest returns, ``times`` their number; ``holds`` is
    the number of holds, ``until`` the end of the last one.
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
    """Return the duration in seconds of hold number *holds*: each is longer than the one before, up to a maximum."""
    row = damping()
    seconds = row.first_hold_seconds
    for _ in range(holds - 1):
        seconds = min(seconds * row.factor, row.longest_hold_seconds)
    return min(seconds, row.longest_hold_seconds)


def closed(flap: Flap | None, key: Key, now: Instant) -> Flap:
    """Return the history of the condition *key*, which ends *now*; a steadily bad condition starts a new one."""
    if flap is None or (flap.reopened and _is_past(flap.until or flap.reopened[-1], flap, now)):
        return Flap(key, now)
    return msgspec.structs.replace(flap, closed=now)


def reopened(flap: Flap, now: Instant) -> Flap:
    """Return the history of a condition that returns *now*: held open if it returned too often."""
    row = damping()
    recent = [then for then in flap.reopened if _within(then, now, row.window_seconds)]
    returns = (*recent, now)[-row.reopenings :]
    flap = msgspec.structs.replace(flap, reopened=returns, times=flap.times + 1)
    if not flap.holds and len(returns) < row.reopenings:
        return flap
    return msgspec.structs.replace(flap, holds=flap.holds + 1, until=later(now, hold_seconds(flap.holds + 1)))


def later(moment: Instant, seconds: float) -> Instant:
    """Return the time *seconds* after *moment* in the same boot."""
    return Instant(moment.boot_id, moment.boottime_ns + round(seconds * 1e9), moment.wall_seconds + seconds)


def is_held(flap: Flap | None, now: Instant) -> bool:
    """Return whether the condition of *flap* is held open *now*, regardless of good observations."""
    return flap is not None and flap.until is not None and (flap.until.seconds_since(now) or 0.0) > 0


def is_forgotten(flap: Flap, now: Instant, *, is_open: bool) -> bool:
    """Return whether *flap* is obsolete now: of another boot, or ended longer ago than its last hold or the window."""
    return flap.closed.boot_id != now.boot_id or (not is_open and _is_past(flap.closed, flap, now))


def _is_past(since: Instant, flap: Flap, now: Instant) -> bool:
    return not _within(since, now, max(damping().window_seconds, hold_seconds(flap.holds) if flap.holds else 0.0))


def _within(then: Instant, now: Instant, seconds: float) -> bool:
    passed = now.seconds_since(then)
    return passed is not None and passed <= seconds
