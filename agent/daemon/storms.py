"""Folds storms of lines: the first few of a kind are told one by one, the rest as a count.

A driver in trouble logs the same error thousands of times a second. Every one of them is judged and counted; a person
who reads the log needs the first lines and how many followed.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

WINDOW_SECONDS = 60.0
"""How long a storm is counted before its line is written."""

LINES_PER_WINDOW = 5
"""So many lines of one kind are written within a window; those after them are counted."""


class Folded(msgspec.Struct, frozen=True):
    """The end of a window: what kind of line, and how many were not written. The kind is None for kinds too many."""

    kind: Hashable | None
    count: int
    seconds: float


class _Window(msgspec.Struct):
    """What one kind said since the window began, in monotonic seconds."""

    began: float
    written: int = 0
    folded: int = 0


class Storms:
    """Decides which lines are written. Used by one thread; time is handed in, in monotonic seconds."""

    def __init__(self, *, kinds: int) -> None:
        """Let some lines of each kind through per window; more than *kinds* kinds are one storm."""
        self._kinds = kinds
        self._windows: dict[Hashable | None, _Window] = {}

    @property
    def next_deadline(self) -> float | None:
        """Return when ``ended`` has something to tell, in monotonic seconds."""
        return min((entry.began + WINDOW_SECONDS for entry in self._windows.values()), default=None)

    def admits(self, kind: Hashable, now: float) -> bool:
        """Return whether a line of *kind* is written; one that is not is counted."""
        kind, window = self._window(kind, now)
        if kind is not None and window.written < LINES_PER_WINDOW:
            window.written += 1
            return True
        window.folded += 1
        return False

    def fold(self, kind: Hashable, count: int, now: float) -> None:
        """Count *count* lines of *kind* of which none is written."""
        self._window(kind, now)[1].folded += count

    def _window(self, kind: Hashable, now: float) -> tuple[Hashable | None, _Window]:
        """Return *kind*, or None where there are too many kinds, and what it said since its window began."""
        if kind not in self._windows and len(self._windows) >= self._kinds:
            kind = None
        return kind, self._windows.setdefault(kind, _Window(now))

    def ended(self, now: float) -> tuple[Folded, ...]:
        """Return what was folded in the windows that are over by *now*, and begin those anew."""
        over = [kind for kind, entry in self._windows.items() if now >= entry.began + WINDOW_SECONDS]
        windows = [(kind, self._windows.pop(kind)) for kind in over]
        return tuple(Folded(kind, entry.folded, now - entry.began) for kind, entry in windows if entry.folded)
