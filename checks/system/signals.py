"""Signals as events of the main loop's selector, so that a handler never interrupts other code."""

from __future__ import annotations

import selectors
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def ending() -> tuple[signal.Signals, ...]:
    """Return the signals that end a load: without SIGHUP where it was ignored at the start, as by nohup(1).

    A load that runs for days outlives the terminal that started it.
    """
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in HANDLED if number is not signal.SIGHUP or not outlives)


def begin_undisposed() -> None:
    """Reset inherited signal settings that would make ours useless; children inherit the result.

    Where SIGCHLD is ignored the kernel reports no child's status, and a blocked signal ends nothing (execve(2),
    waitpid(2)). SIGHUP that nohup(1) ignores stays ignored, and ends no load (``ending``).
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class SignalPipe:
    """Turns SIGTERM, SIGINT and SIGHUP into calls of *handler* from the loop that owns *selector*."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        handler: Callable[[int], None],
        numbers: tuple[signal.Signals, ...] = HANDLED,
    ) -> None:
        """Prepare for *numbers*; ``with`` installs and removes the handlers."""
        self._selector = selector
        self._handler = handler
        self._numbers = numbers
        self._came: set[int] = set()

    def __enter__(self) -> Self:
        """Install the handlers. Main thread only."""
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in self._numbers}
        self._selector.register(self._receiver, selectors.EVENT_READ, self._ready)
        return self

    def __exit__(self, *_raised: object) -> None:
        """Give the signals back."""
        self._selector.unregister(self._receiver)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._receiver.close()
        self._sender.close()

    def _note(self, number: int, _frame: FrameType | None) -> bool:
        """Return whether the process is to end: site code in progress is interrupted then (checks/core/overrun.py)."""
        # The descriptor alone is not enough: it is full after hundreds of signals within one turn of the loop.
        self._came.add(number)
        # Nor is it enough that the kernel's byte wakes the loop: while code of a site begins, the descriptor is taken
        # away for a moment, and a signal that another thread receives then leaves none.
        with suppress(OSError):
            self._sender.send(bytes((number,)))
        return number != signal.SIGHUP

    def _ready(self, _mask: int) -> None:
        """Handle the signals since the last turn, each once, ending ones first."""
        with suppress(BlockingIOError):
            while numbers := self._receiver.recv(4096):
                self._came.update(numbers)
        for number in HANDLED:
            if number in self._came:
                self._came.discard(number)
                self._handler(number)


class PassedBy:
    """Number of signals that were ignored."""

    def __init__(self) -> None:
        """Start at 0."""
        self.count = 0

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Count a signal; installed as its handler."""
        self.count += 1


@contextmanager
def undisturbed() -> Iterator[PassedBy]:
    """Ignore SIGTERM, SIGINT and SIGHUP: hours of measurements are judged and stored before the end.

    The signals are counted, so that waits may be shortened. A handler is installed, because a child would inherit an
    ignored signal. Main thread only.
    """
    passed = PassedBy()
    before = {number: signal.signal(number, passed.note) for number in ending()}
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def heeding_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C interrupt the work within ``undisturbed``, by KeyboardInterrupt. Main thread only."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupting() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt the work as Ctrl-C does, so that its cleanup runs. Main thread only."""
    numbers = [number for number in ending() if number is not signal.SIGINT]
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
