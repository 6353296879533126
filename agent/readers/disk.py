"""Questions about files, asked in a thread of their own: a file server that gives no answer holds whoever asks it.

A driver's libraries may lie on one, as ROCm often does, and the main loop must never wait for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nodevet.checks.system.background import Background

ANSWER_SECONDS = 0.5
"""How long an answer is waited for: a disk gives hundreds within milliseconds."""

Answer = TypeVar("Answer")


class Disk:
    """Asks one question at a time, and waits for none for long."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        """Wait for at most *seconds*, once: nothing is asked while an answer is out."""
        self._seconds = seconds
        self._thread: Background | None = None

    @property
    def is_silent(self) -> bool:
        """Return whether an answer is still out."""
        return self._thread is not None and self._thread.is_alive()

    def ask(self, look: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return what *look* returns; *otherwise* where no answer comes in time, or no thread can be had."""
        if self.is_silent:
            return otherwise
        found: list[Answer] = []
        thread = Background(lambda: found.append(look()))
        try:
            thread.start(self._seconds)
        except RuntimeError:  # it is asked again
            return otherwise
        self._thread = thread
        thread.join(self._seconds)
        return found[0] if found else otherwise
