"""Exceptions that end in no code of ours: of a thread, or where Python cannot raise, such as while it cleans up.

Python prints a traceback of each to standard error, past the queue of the log and past its folding. Here each waits to
become one line of the log.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Self

from nodevet.checks.core.guard import attempt

WAITING_LINES = 64
"""So many wait for the next turn of the loop; of more, the oldest are given up."""

LINE_LENGTH = 300


class Strays:
    """Takes such exceptions of this process from ``with`` to its end. ``take`` returns what came since."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lines: deque[str] = deque(maxlen=WAITING_LINES)

    def __enter__(self) -> Self:
        """Take the place of what prints tracebacks."""
        self._before = threading.excepthook, sys.unraisablehook
        threading.excepthook, sys.unraisablehook = self._of_thread, self._ignored
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back."""
        threading.excepthook, sys.unraisablehook = self._before

    def take(self) -> list[str]:
        """Return a line for each exception that came since the last call."""
        lines = []
        with suppress(IndexError):
            while True:
                lines.append(self._lines.popleft())
        return lines

    def _of_thread(self, told: threading.ExceptHookArgs) -> None:
        self._keep(f"thread {told.thread.name}" if told.thread else "a thread", told.exc_type, told.exc_value)

    def _ignored(self, told: sys.UnraisableHookArgs) -> None:
        self._keep((told.err_msg or "exception ignored").rstrip(":").lower(), told.exc_type, told.exc_value)

    def _keep(self, where: str, kind: type[BaseException], error: BaseException | None) -> None:
        # Nothing but this: it may be called in the middle of any other code of this thread, which may hold a lock.
        attempt(lambda: self._lines.append(f"{where}: {kind.__name__}: {'' if error is None else error}"[:LINE_LENGTH]))
