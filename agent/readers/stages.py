"""The phases of a reader, the requests of the agent, and the time limit of each."""

from __future__ import annotations

from enum import Enum

import msgspec

from nodevet.checks.core.model import Failure, FailureKind, ReaderState
from nodevet.checks.ipc.child_process import Patience

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


class Outcome(msgspec.Struct, frozen=True):
    """The report and the next step after the present process exits."""

    state: ReaderState
    detail: str
    failure: Failure | None
    restart_after_seconds: float
