"""An end to what may run without one: code of a site in the main thread, interrupted when its time is over.

A signal interrupts whatever Python does there: a loop without end, a wait, a file of a server that is gone. What stays
in a library's own code, or in the kernel in state D, is not interrupted: then the loop stands still, as systemd sees.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

AGAIN_SECONDS = 0.2
"""How soon code that caught the interruption and goes on is interrupted again."""

ENDS = (signal.SIGTERM, signal.SIGINT)
NEVER_SET = (signal.SIGKILL, signal.SIGSTOP)
LIMITS = tuple(sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_")))
STREAMS = ("stdin", "stdout", "stderr")
UMASK = re.compile(r"^Umask:\s*([0-7]+)$", re.MULTILINE)

Returned = TypeVar("Returned")
Handler = Callable[[int, FrameType | None], Any]


class Overrun(BaseException):
    """The time is over. No Exception: who catches those to try again would never end."""


class _Alarm:
    """Raises Overrun while it is set, and remembers it: a finalizer or a broad except may have kept it from us."""

    def __init__(self) -> None:
        self.is_set = True
        self.rang = ""

    def ring(self, _number: int, _frame: FrameType | None) -> None:
        self._raise("it did not end in time and was interrupted")

    def behind(self, handler: Handler) -> Handler:
        """Return what lets *handler* take a signal, and rings where that returns True: this process is to end."""

        def take(number: int, frame: FrameType | None) -> None:
            if handler(number, frame) is True:
                self._raise("it was interrupted: the agent is to end")

        return take

    def _raise(self, why: str) -> None:
        if self.is_set:
            self.rang = why
            raise Overrun(why)


class _Signals:
    """How this process takes each signal, which of them are blocked, and what is told of them; to be had again."""

    def __init__(self) -> None:
        # All are blocked while the descriptor is read, for that takes it away.
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._told = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        self._taken = {number: signal.getsignal(number) for number in signal.valid_signals() if number not in NEVER_SET}

    def restore(self) -> None:
        signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        for number, handler in self._taken.items():
            # What another than Python takes, such as a crash (faulthandler), is not known here, and left as it is.
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler or signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)


class _Process:
    """What this process hands on to its children, or opens files by; to be had again."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._folder = self._mask = None
        with suppress(OSError):
            self._folder = os.getcwd()  # noqa: PTH109
        with suppress(
            OSError
        ):  # umask(2) tells the mask only by setting another, which a thread might open a file with
            self._mask = UMASK.search(Path("/proc/self/status").read_text(encoding="utf-8", errors="replace"))
        self._limits = {number: resource.getrlimit(number) for number in LIMITS}
        self._streams = {name: getattr(sys, name) for name in STREAMS}

    def restore(self) -> None:
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        # One after the other, and those alone that changed: another thread may start a child meanwhile.
        for name, text in self._environment.items():
            if os.environ.get(name) != text:
                os.environ[name] = text
        with suppress(OSError):
            if self._folder is not None and os.getcwd() != self._folder:  # noqa: PTH109
                os.chdir(self._folder)
        if self._mask is not None:
            os.umask(int(self._mask[1], 8))
        for number, limits in self._limits.items():
            with suppress(OSError, ValueError):  # only root raises a hard limit again
                if resource.getrlimit(number) != limits:
                    resource.setrlimit(number, limits)
        for name, stream in self._streams.items():
            setattr(sys, name, stream)


def within(seconds: float, work: Callable[[], Returned]) -> Returned:
    """Return what *work* returns; raise Overrun where that takes longer than *seconds*. Main thread only.

    A signal is taken as ever; where its handler returns True the work is over too. In another thread the work runs to
    its end, for a signal reaches none. What the work sets for the whole process is undone: with a time-out for each
    socket, or SIGCHLD ignored, no child of the agent could be read, with SIGPIPE as scripts have it whoever hangs up
    on the agent would end it, and with another LD_LIBRARY_PATH a reader would not find the driver's library.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    alarm = _Alarm()
    before, process = _Signals(), _Process()
    timeout = socket.getdefaulttimeout()
    signal.signal(signal.SIGALRM, alarm.ring)
    try:
        for number in ENDS:
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, alarm.behind(handler))
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
        try:
            with warnings.catch_warnings():
                done = work()
        finally:
            alarm.is_set = False
    except Overrun:
        alarm.is_set = False  # it rang between the end of the work and that line
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        before.restore()
        process.restore()
        socket.setdefaulttimeout(timeout)
    if alarm.rang:
        raise Overrun(alarm.rang)
    return done
