"""Signals as events of the main loop's selector, so that a handler never interrupts anything."""

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
    """Return the signals that end a load: not SIGHUP where whoever started it has that ignored, as nohup(1) does.

    What runs for days outlives the terminal that it was started from.
    """
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in HANDLED if number is not signal.SIGHUP or not outlives)


def begin_undisposed() -> None:
    """Undo what a process inherits of its starter's signals and what would make ours useless; children inherit it too.

    Where SIGCHLD is ignored the kernel tells nobody how a child ended, and a signal that is blocked ends nothing
    (execve(2), waitpid(2)). SIGHUP that nohup(1) ignores stays so, and ends no load (``ending``).
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
        """Prepare for *numbers* of these; ``with`` installs and removes."""
        self._selector = selector
        self._handler = handler
        self._numbers = numbers
        self._came: set[int] = set()

    def __enter__(self) -> Self:
        """Take over the signals. Main thread only."""
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
        """Return whether the process is to end: code of a site at work is interrupted then (checks/core/overrun.py)."""
        # The descriptor alone does not tell: it is full once a signal came hundreds of times within a turn of the loop.
        self._came.add(number)
        return number != signal.SIGHUP

    def _ready(self, _mask: int) -> None:
        """Handle what came since the last turn, each signal once, those that end first."""
        with suppress(BlockingIOError):
            while numbers := self._receiver.recv(4096):
                self._came.update(numbers)
        for number in HANDLED:
            if number in self._came:
                self._came.discard(number)
                self._handler(number)


class PassedBy:
    """How many signals were let pass by."""

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Count a signal, as its handler."""
        self.count += 1


@contextmanager
def undisturbed() -> Iterator[PassedBy]:
    """Let SIGTERM, SIGINT and SIGHUP pass by: what was measured for hours is judged and kept before the end.

    They are counted, so that what waits for somebody else may wait less. A handler of our own, because a child would
    inherit that a signal is ignored. Main thread only.
    """
    passed = PassedBy()
    before = {number: signal.signal(number, passed.note) for number in ending()}
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupting() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what runs as Ctrl-C does, so that it is cleaned up after. Main thread only."""
    numbers = [number for number in ending() if number is not signal.SIGINT]
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
