"""The last output of a child, and the cause of its end that the output reports."""

from __future__ import annotations

import re
from collections import deque

import msgspec

NEWEST_LINES = 20

REFUSED = r"(?:failed to|unable to|could ?n[o']t|cannot|can't) "


class Want(msgspec.Struct, frozen=True):
    """A resource that a library reports as refused: the text patterns, the name of the resource, and the remedy.

    ``of_boards``: a broken device may also make a library request more than there is.
    """

    words: re.Pattern[str]
    name: str
    step: str
    of_boards: bool = True


INTERPRETER = re.compile(r"^Fatal Python error", re.MULTILINE)
NOT_INSTALLED = re.compile(
    r"ModuleNotFoundError|ImportError|SyntaxError|marshal data|\[Errno 5\]|error while loading shared libraries|"
    r"version `[^']+' not found|by ld\.so:|init_fs_encoding|No module named 'encodings'"
)
WANTS = tuple(
    Want(re.compile(pattern, re.IGNORECASE), name, step, of_boards)
    for pattern, name, step, of_boards in (
        (
            r"read-only file system|EROFS|disk quota exceeded|EDQUOT|file too large|EFBIG",
            "leave to write to a disk",
            "see /proc/mounts, quotas, and ReadWritePaths= and LimitFSIZE= of the agent's unit",
            False,
        ),
        (
            r"no space left|ENOSPC|(?:disk|file ?system) (?:is )?full|(?:insufficient|out of) disk space",
            "room on a disk",
            "see df -h and df -i",
            True,
        ),
        (
            r"bad_alloc|(?:out[ -]of|not enough|insufficient|virtual) memory|memory (?:allocation|exhausted)|"
            rf"MemoryError|ENOMEM|{REFUSED}(?:re-?)?allocate",
            "memory",
            "see free -m and journalctl -k",
            True,
        ),
        (r"too many open files|EMFILE|ENFILE", "descriptors", "raise LimitNOFILE of the agent", True),
        (
            r"resource temporarily unavailable|EAGAIN|pthread_create|thread constructor failed|"
            rf"{REFUSED}(?:create|start|spawn|fork)(?: a)?(?: new| worker)?(?: thread| process|$)",
            "threads",
            "see pids.max, pid_max and ulimit -u",
            True,
        ),
    )
)
"""The resources that a library may report as refused, and remedies: texts of strerror(3), C++ and Python."""

TELLING = (INTERPRETER, NOT_INSTALLED, *(want.words for want in WANTS))


class LastWords:
    """The newest lines that a child printed, and the first line for each kind of cause, kept regardless of later lines.

    An interpreter that aborts prints its whole stack after the one line with the cause.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._newest: deque[str] = deque(maxlen=NEWEST_LINES)
        self._telling: dict[re.Pattern[str], str] = {}

    def append(self, line: str) -> None:
        """Add *line*, which the child has just printed."""
        self._newest.append(line)
        for pattern in TELLING:
            if pattern not in self._telling and pattern.search(line):
                self._telling[pattern] = line

    def clear(self) -> None:
        """Delete all lines: they do not explain later failures."""
        self._newest.clear()
        self._telling.clear()

    @property
    def last(self) -> str:
        """Return the line to report: why the interpreter aborted, else the newest; empty without any."""
        return self._telling.get(INTERPRETER) or (self._newest[-1] if self._newest else "")

    @property
    def text(self) -> str:
        """Return all stored lines."""
        return "\n".join((*self._telling.values(), *self._newest))
