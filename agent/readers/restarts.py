"""How long a reader waits before it starts again: longer after each failure, and long where its vendor is absent."""

from __future__ import annotations

FIRST_RESTART_SECONDS = 1.0
LONGEST_RESTART_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""A reader that ran so long restarts with the shortest wait."""

RETRY_SECONDS = 300.0
LONGEST_RETRY_SECONDS = 1800.0
"""Retry interval for an absent library or device of a vendor: it grows, because they are seldom added."""


class Restarts:
    """The failures of one reader in a row, and the wait after each."""

    def __init__(self) -> None:
        """Begin without any."""
        self._falls = 0
        self.absences = 0

    def next_wait(self) -> float:
        """Return the seconds until the next start, doubled each time."""
        wait = min(FIRST_RESTART_SECONDS * 2.0**self._falls, LONGEST_RESTART_SECONDS)
        self._falls += 1
        return wait

    def next_look(self) -> float:
        """Return the seconds until a library or a device that was not there is looked for again."""
        return min(RETRY_SECONDS * 2.0 ** max(self.absences - 1, 0), LONGEST_RETRY_SECONDS)

    def record_success(self, seconds: float | None) -> None:
        """Record that the reader has read for so many *seconds*."""
        if (seconds or 0.0) >= STEADY_SECONDS:
            self._falls = 0
