"""Moves a clock by hand as time passes on a machine that keeps it: in steps, with every answer heard in between."""

from __future__ import annotations

from collections.abc import Callable

from fakes.clocks import SteppedClock

from nodevet.agent.readers.supervisor import Supervisor

__all__ = ["pass_time"]

STEP_SECONDS, EARLY_STEP_SECONDS = 0.25, 1.0
WATCHED_SECONDS = 6.0
"""The end of a deadline, in which a call that is out is watched; before it only the agent itself must keep time."""

Until = Callable[[Callable[[], bool]], None]


def pass_time(clock: SteppedClock, supervisor: Supervisor, until: Until, seconds: float) -> None:
    """Let *seconds* pass; *until* runs the loop, without moving the clock, until something is so."""
    left = seconds
    while left > 1e-9:
        step = min(STEP_SECONDS, left) if left <= WATCHED_SECONDS else min(EARLY_STEP_SECONDS, left - WATCHED_SECONDS)
        clock.advance(step)
        left -= step
        until(lambda: not supervisor.heartbeat.waits)
