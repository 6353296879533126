"""The phases of a reader, the requests of the agent, the time limit of each, and when a group of readings is due."""

from __future__ import annotations

from enum import Enum

import msgspec

from nodevet.checks.core.model import Failure, FailureKind, ReaderState
from nodevet.checks.engine.view import Cadence
from nodevet.checks.ipc.child_process import Patience

FIRST_RESTART_SECONDS = 1.0
LONGEST_RESTART_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""A reader that ran so long restarts with the shortest wait."""

RETRY_SECONDS = 300.0
LONGEST_RETRY_SECONDS = 1800.0
"""Retry interval for an absent library or device of a vendor: it grows, because they are seldom added."""

LINES_PER_ROUND = 20

HELD_UP_SECONDS = 1.0
"""An agent that handles a deadline later than this was delayed itself, as on a paused machine, and its child too."""

STOP = Patience(terminate=0.6, kill=0.9, abandon=1.3)
RELEASE = Patience(terminate=3.0, kill=4.0, abandon=5.0)
PAST_DEADLINE = Patience(terminate=0.0, kill=0.3, abandon=2.0)

ABSENT = frozenset({FailureKind.NO_LIBRARY, FailureKind.NO_DRIVER, FailureKind.NO_DEVICES})
FALLEN = frozenset({FailureKind.HUNG, FailureKind.STUCK, FailureKind.CRASHED, FailureKind.READER})


class Phase(Enum):
    """The phase of the reader's process."""

    NONE = "none"
    LOADING = "loading"
    SERVING = "serving"
    ENDING = "ending"
    STUCK = "stuck"


class Wish(Enum):
    """The agent's request to the reader."""

    READ = "read"
    RELEASE = "release"
    STOP = "stop"


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


class Round(msgspec.Struct):
    """The round in progress: the devices still to be read, in order, and the deadline of the next one."""

    group: str
    number: int
    began: float
    deadline: float
    left: list[str]
    extended: bool = False
    unreadable: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """The report and the next step after the present process exits."""

    state: ReaderState
    detail: str
    failure: Failure | None
    restart_after_seconds: float
