"""Lines on their way to standard error or standard output, which may stop taking them at any time.

journald that is stopped, a terminal with Ctrl-S and a pipe that nobody reads make every write wait. Here only a thread
of its own waits: lines queue up within a bound, and those that find no room are dropped and counted.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import NamedTuple

from nodevet.checks.system.background import Background

LIMIT_BYTES = 1 << 20
"""How much may wait: minutes of a noisy agent, and little beside its memory."""

RETRY_SECONDS = 1.0
"""How long to wait for room in a pipe that another process has made non-blocking."""


class _Line(NamedTuple):
    descriptor: int
    data: bytes


class Outlet:
    """Writes lines from a thread of its own, in the order in which they came. Nothing but that thread ever waits."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        """Let at most *limit_bytes* wait."""
        self._limit_bytes = limit_bytes
        self._condition = threading.Condition()
        self._lines: deque[_Line] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._closing = False
        self._thread = Background(self._run)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Return how many lines were dropped because there was no room for them."""
        with self._condition:
            return self._dropped

    def put(self, descriptor: int, text: str) -> None:
        """Have *text* written to *descriptor* soon, or drop it where too much waits already."""
        data = text.encode("utf-8", "backslashreplace")
        with self._condition:
            if self._waiting_bytes + len(data) > self._limit_bytes:
                self._dropped += 1
                return
            self._lines.append(_Line(descriptor, data))
            self._waiting_bytes += len(data)
            self._condition.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything is written; False where that takes longer than *timeout_seconds*."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._lines, timeout_seconds)

    def close(self, timeout_seconds: float = 0.3) -> bool:
        """Write the queued output and end; False where that took longer than *timeout_seconds*."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closing or bool(self._lines))
                if not self._lines:
                    return
                line = self._lines[0]
            _write(line)
            with self._condition:
                self._lines.popleft()
                self._waiting_bytes -= len(line.data)
                self._condition.notify_all()


class Stream:
    """The part of a text stream that structlog and ``print`` write to; each write is one line for an *outlet*."""

    def __init__(self, outlet: Outlet, descriptor: int) -> None:
        """Write to *descriptor* through *outlet*."""
        self._outlet = outlet
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        """Hand *text* on; it never waits and never fails."""
        self._outlet.put(self._descriptor, text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: the output is queued already."""


def _write(line: _Line) -> None:
    """Write *line* whole; a full disk or a reader that went away loses it, and the agent goes on."""
    left = memoryview(line.data)
    while left:
        try:
            left = left[os.write(line.descriptor, left) :]
        except BlockingIOError:
            poll = select.poll()  # select(2) takes no descriptor above 1023
            poll.register(line.descriptor, select.POLLOUT)
            poll.poll(RETRY_SECONDS * 1000)
        except OSError:
            return
