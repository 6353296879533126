"""An end to what may run without one: code of a site in the main thread, interrupted when its time is over.

A signal interrupts whatever Python does there: a loop without end, a wait, a file of a server that is gone. What stays
in a library's own code, or in the kernel in state D, is not interrupted: then the loop stands still, as systemd sees.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

__all__ = ["Overrun", "within"]

AGAIN_SECONDS = 1.0
"""How soon code that caught the interruption and goes on is interrupted again."""

Returned = TypeVar("Returned")


class Overrun(BaseException):
    """The time is over. No Exception: who catches those to try again would never end."""


class _Alarm:
    """Raises Overrun while it is set."""

    def __init__(self) -> None:
        self.is_set = True

    def ring(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_set:
            raise Overrun


def within(seconds: float, work: Callable[[], Returned]) -> Returned:
    """Return what *work* returns; raise Overrun where that takes longer than *seconds*. Main thread only.

    In another thread it runs to its end, for a signal reaches none.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    alarm = _Alarm()
    before = signal.signal(signal.SIGALRM, alarm.ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
        try:
            return work()
        finally:
            alarm.is_set = False
    except Overrun:
        alarm.is_set = False  # it rang between the end of the work and that line
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
