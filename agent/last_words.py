"""What a child says before it ends, and what it tells of the cause."""

from __future__ import annotations

import re
from collections import deque

__all__ = ["INTERPRETER", "NOT_INSTALLED", "WANTS", "LastWords"]

NEWEST_LINES = 20

NO_MEMORY = re.compile(
    r"bad_alloc|out of memory|cannot allocate memory|failed to allocate|memory allocation|MemoryError|ENOMEM",
    re.IGNORECASE,
)
NO_TASKS = re.compile(
    r"resource temporarily unavailable|EAGAIN|can't start new thread|pthread_create|failed to create thread",
    re.IGNORECASE,
)
INTERPRETER = re.compile(r"^Fatal Python error", re.MULTILINE)
NO_DESCRIPTORS = re.compile(r"too many open files|EMFILE|ENFILE", re.IGNORECASE)
NOT_INSTALLED = re.compile(
    r"ModuleNotFoundError|ImportError|SyntaxError|marshal data|\[Errno 5\]|error while loading shared libraries|"
    r"version `[^']+' not found|by ld\.so:"
)
WANTS = (
    (NO_MEMORY, "memory", "see free -m and journalctl -k"),
    (NO_DESCRIPTORS, "descriptors", "raise LimitNOFILE of the agent"),
    (NO_TASKS, "threads", "see pids.max, pid_max and ulimit -u"),
)
"""What a library may say that it was refused, and where to look."""

TELLING = (INTERPRETER, NOT_INSTALLED, *(pattern for pattern, _, _ in WANTS))


class LastWords:
    """The newest lines that a child printed, and the first of each kind that tells of a cause, whatever followed.

    An interpreter that ends itself prints all that it was in behind its one line about the cause.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._newest: deque[str] = deque(maxlen=NEWEST_LINES)
        self._telling: dict[re.Pattern[str], str] = {}

    def append(self, line: str) -> None:
        """Keep *line*, which it has just printed."""
        self._newest.append(line)
        for pattern in TELLING:
            if pattern not in self._telling and pattern.search(line):
                self._telling[pattern] = line

    def clear(self) -> None:
        """Forget what was printed: it is no reason for what follows."""
        self._newest.clear()
        self._telling.clear()

    @property
    def last(self) -> str:
        """Return the line to tell people: why the interpreter ended itself, else the newest; empty without any."""
        return self._telling.get(INTERPRETER) or (self._newest[-1] if self._newest else "")

    @property
    def text(self) -> str:
        """Return all that is kept."""
        return "\n".join((*self._telling.values(), *self._newest))
