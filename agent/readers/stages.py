"""What a reader can be doing, what may be wished of it, and how long each takes."""

from __future__ import annotations

from enum import Enum

import msgspec

from nodevet.checks.core.model import Failure, FailureKind, ReaderState
from nodevet.checks.ipc.child_process import Patience

FIRST_RESTART_SECONDS = 1.0
LONGEST_RESTART_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""A reader that served so long starts again from the shortest wait."""

RETRY_SECONDS = 300.0
LONGEST_RETRY_SECONDS = 1800.0
"""When to look again for a vendor's library or devices that were not there: ever later, for they seldom come."""

LINES_PER_ROUND = 20

HELD_UP_SECONDS = 1.0
"""An agent that looks at a deadline later than this was held up itself, as on a paused machine, and its child too."""

STOP = Patience(terminate=0.6, kill=0.9, abandon=1.3)
RELEASE = Patience(terminate=3.0, kill=4.0, abandon=5.0)
PAST_DEADLINE = Patience(terminate=0.0, kill=0.3, abandon=2.0)

ABSENT = frozenset({FailureKind.NO_LIBRARY, FailureKind.NO_DRIVER, FailureKind.NO_DEVICES})
FALLEN = frozenset({FailureKind.HUNG, FailureKind.STUCK, FailureKind.CRASHED, FailureKind.READER})


class Phase(Enum):
    """What the reader's process does."""

    NONE = "none"
    LOADING = "loading"
    SERVING = "serving"
    ENDING = "ending"
    STUCK = "stuck"


class Wish(Enum):
    """What the agent wants of the reader."""

    READ = "read"
    RELEASE = "release"
    STOP = "stop"


class Round(msgspec.Struct):
    """The round that is being answered: devices still to come, in order, and until when the next must be done."""

    group: str
    number: int
    began: float
    deadline: float
    left: list[str]
    extended: bool = False
    unreadable: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """What to say and do once the present process is gone."""

    state: ReaderState
    detail: str
    failure: Failure | None
    restart_after_seconds: float
