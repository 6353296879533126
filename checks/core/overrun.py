"""A time limit for site code in the main thread, which a signal interrupts.

The signal interrupts any Python code: an endless loop, a wait, a read from a file server that is gone. It does not
interrupt a library's own code or a call in state D: then the main loop stands still, and systemd's watchdog notices.
"""

from __future__ import annotations

import faulthandler
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
"""Seconds after which code that caught the interruption and goes on is interrupted again."""

ENDS = (signal.SIGTERM, signal.SIGINT)
NEVER_SET = (signal.SIGKILL, signal.SIGSTOP)
TIMERS = (signal.ITIMER_PROF, signal.ITIMER_VIRTUAL)
LEFT_BEHIND = (signal.SIGPROF, signal.SIGVTALRM, signal.SIGIO)
"""Signals of profilers and of descriptors with O_ASYNC: they may arrive after the work has ended."""

REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)

LIMITS = tuple(sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_")))
STREAMS = ("stdin", "stdout", "stderr")
BADNESS = Path("/proc/self/oom_score_adj")
UMASK = re.compile(r"^Umask:\s*([0-7]+)$", re.MULTILINE)

Returned = TypeVar("Returned")
Handler = Callable[[int, FrameType | None], Any]


class Overrun(BaseException):
    """The time is over. No Exception: code that catches those to retry would never end."""


class _Alarm:
    """Raises Overrun while it is set, and remembers it: a finalizer or a broad except may swallow it."""

    def __init__(self) -> None:
        self.is_set = True
        self.rang = ""

    def ring(self, _number: int, _frame: FrameType | None) -> None:
        self._raise("it did not end in time and was interrupted")

    def behind(self, handler: Handler) -> Handler:
        """Return a handler that calls *handler* and raises Overrun where that returns True: this process is to end."""

        def take(number: int, frame: FrameType | None) -> None:
            if handler(number, frame) is True:
                self._raise("it was interrupted: the agent is to end")

        return take

    def _raise(self, why: str) -> None:
        if self.is_set:
            self.rang = why
            raise Overrun(why)


class _Signals:
    """The signal handlers, blocked signals and wakeup descriptor of this process, to restore later."""

    def __init__(self) -> None:
        # All signals are blocked while the descriptor is read, because reading it removes it.
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        self._taken = {number: signal.getsignal(number) for number in signal.valid_signals() if number not in NEVER_SET}

    def restore(self) -> None:
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for number, handler in self._taken.items():
            # A handler that Python did not install, such as that of faulthandler, is unknown here and stays as it is.
            if signal.getsignal(number) is not handler or number in LEFT_BEHIND:
                signal.signal(number, self._restored(number, handler or signal.SIG_DFL))
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)

    @staticmethod
    def _restored(number: int, handler: Handler | int) -> Handler | int:
        """Return *handler*, or one that does nothing: what the work started may send a signal whose default kills."""
        is_ours = number in LEFT_BEHIND or number in REAL_TIME  # of the others a person or systemd may send some
        return _pass_over if is_ours and handler is signal.SIG_DFL else handler


def _pass_over(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. Children do not inherit a handler, as they would an ignored signal."""


class _Priority:
    """The place of this process among others, which its children inherit, to restore later."""

    def __init__(self) -> None:
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._processors = self._policy = None
        with suppress(OSError):  # some sandboxes refuse these
            self._processors = os.sched_getaffinity(0)
            self._policy = os.sched_getscheduler(0), os.sched_getparam(0)
        self._badness = _badness()

    def restore(self) -> None:
        with suppress(OSError):  # only root can raise its priority again
            if self._policy is not None and self._policy != (os.sched_getscheduler(0), os.sched_getparam(0)):
                os.sched_setscheduler(0, *self._policy)
        with suppress(OSError):
            if self._nice != os.getpriority(os.PRIO_PROCESS, 0):
                os.setpriority(os.PRIO_PROCESS, 0, self._nice)
        with suppress(OSError):
            if self._processors is not None and self._processors != os.sched_getaffinity(0):
                os.sched_setaffinity(0, self._processors)
        with suppress(OSError):
            if self._badness not in (b"", _badness()):
                _set_badness(self._badness)


def _badness() -> bytes:
    """Return how likely the out of memory killer ends this process; empty if that cannot be read."""
    with suppress(OSError):
        descriptor = os.open(BADNESS, os.O_RDONLY)
        try:
            return os.read(descriptor, 16)
        finally:
            os.close(descriptor)
    return b""


def _set_badness(value: bytes) -> None:
    descriptor = os.open(BADNESS, os.O_WRONLY)
    try:
        os.write(descriptor, value)
    finally:
        os.close(descriptor)


class _Process:
    """The settings of this process that its children inherit or its open files use, to restore later."""

    def __init__(self) -> None:
        self._priority = _Priority()
        self._environment = dict(os.environ)
        self._folder = self._mask = None
        with suppress(OSError):
            self._folder = os.getcwd()  # noqa: PTH109
        # umask(2) returns the mask only by setting another one, which a thread might open a file with.
        with suppress(OSError):
            self._mask = UMASK.search(Path("/proc/self/status").read_text(encoding="utf-8", errors="replace"))
        self._limits = {number: resource.getrlimit(number) for number in LIMITS}
        self._streams = {name: getattr(sys, name) for name in STREAMS}
        self._user, self._group = os.geteuid(), os.getegid()

    def restore(self) -> None:
        with suppress(OSError):
            if (os.geteuid(), os.getegid()) != (self._user, self._group):
                os.seteuid(self._user)
                os.setegid(self._group)
        self._priority.restore()
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        # One by one, and only the changed ones: another thread may start a child meanwhile.
        for name, text in self._environment.items():
            if os.environ.get(name) != text:
                os.environ[name] = text
        with suppress(OSError):
            if self._folder is not None and os.getcwd() != self._folder:  # noqa: PTH109
                os.chdir(self._folder)
        if self._mask is not None:
            os.umask(int(self._mask[1], 8))
        for number, limits in self._limits.items():
            with suppress(OSError, ValueError):  # only root can raise a hard limit again
                if resource.getrlimit(number) != limits:
                    resource.setrlimit(number, limits)
        for name, stream in self._streams.items():
            setattr(sys, name, stream)


def within(seconds: float, work: Callable[[], Returned]) -> Returned:
    """Return the result of *work*; raise Overrun where it takes longer than *seconds*. Main thread only.

    Signals are handled as usual; where a handler returns True the work ends too. In another thread the work runs to its
    end, because signals reach only the main one. Changes of process-wide settings are undone: with a default socket
    timeout or SIGCHLD ignored, no child of the agent could be read; with SIGPIPE at its default, a client that hangs up
    would end the agent; with another LD_LIBRARY_PATH, a reader would not find the driver's library; with the lowest
    priority, no reader would run on a busy node.
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
        alarm.is_set = False  # the alarm rang between the end of the work and that line
        raise
    finally:
        for timer in (signal.ITIMER_REAL, *TIMERS):
            signal.setitimer(timer, 0.0)
        faulthandler.cancel_dump_traceback_later()  # it may be one that ends the process
        before.restore()
        process.restore()
        socket.setdefaulttimeout(timeout)
    if alarm.rang:
        raise Overrun(alarm.rang)
    return done
