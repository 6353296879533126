"""File operations in a separate thread: a file server that does not answer blocks only that thread.

Libraries of a driver, often those of ROCm, may lie on such a server, and the main loop must never wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nodevet.checks.system.background import Background

ANSWER_SECONDS = 0.5
"""Timeout of an answer: a disk answers hundreds of requests within milliseconds."""

Answer = TypeVar("Answer")


class Disk:
    """Runs one file operation at a time, with a short timeout."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        """Wait at most *seconds*, and only once: while an answer is outstanding, no other operation starts."""
        self._seconds = seconds
        self._thread: Background | None = None

    @property
    def is_silent(self) -> bool:
        """Return whether an answer is still outstanding."""
        return self._thread is not None and self._thread.is_alive()

    def ask(self, look: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return the result of *look*; *otherwise* after the timeout, or if no thread can be started."""
        if self.is_silent:
            return otherwise
        found: list[Answer] = []
        thread = Background(lambda: found.append(look()))
        try:
            thread.start(self._seconds)
        except RuntimeError:  # the caller asks again
            return otherwise
        self._thread = thread
        thread.join(self._seconds)
        return found[0] if found else otherwise
