"""When a group of readings is due. Pure: the caller brings the time, in monotonic seconds."""

from __future__ import annotations

import msgspec

from nodevet.checks.engine.view import Cadence


class Schedule(msgspec.Struct):
    """When a group is due next, and how many rounds of it were asked for or missed."""

    cadence: Cadence
    due: float
    number: int = 0

    def advance(self, now: float) -> None:
        """Count the round that is due and set the next one in step; rounds long missed are not made up for."""
        self.number += 1
        self.due += self.cadence.interval_seconds
        if self.due <= now:
            self.due = now + self.cadence.interval_seconds

    @property
    def given_up(self) -> float:
        """Return when a round that could not be asked for is told as missed."""
        return self.due + self.cadence.deadline_seconds
