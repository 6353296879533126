"""The due time of a group of readings. Pure: the caller passes the time in monotonic seconds."""

from __future__ import annotations

import msgspec

from nodevet.checks.engine.view import Cadence


class Schedule(msgspec.Struct):
    """The next due time of a group, and the number of its rounds that were requested or missed."""

    cadence: Cadence
    due: float
    number: int = 0

    def advance(self, now: float) -> None:
        """Count the due round and set the next one in step; rounds missed long ago are not repeated."""
        self.number += 1
        self.due += self.cadence.interval_seconds
        if self.due <= now:
            self.due = now + self.cadence.interval_seconds

    @property
    def given_up(self) -> float:
        """Return when a round that could not be requested is reported as missed."""
        return self.due + self.cadence.deadline_seconds
