"""The last output of a child, and the cause of its end that the output reports."""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache

import msgspec

from nodevet.checks.reference.tables import load_table

NEWEST_LINES = 20


class Want(msgspec.Struct, frozen=True):
    """A row of reference/refused_resources.csv: the texts by which a library reports the resource, and the remedy.

    ``of_boards``: a broken device may also make a library request more than there is.
    """

    pattern: str
    name: str
    step: str
    of_boards: bool
    source: str

    @property
    def words(self) -> re.Pattern[str]:
        """Return the texts as an expression to search for."""
        return re.compile(self.pattern, re.IGNORECASE)


INTERPRETER = re.compile(r"^Fatal Python error", re.MULTILINE)
NOT_INSTALLED = re.compile(
    r"ModuleNotFoundError|ImportError|SyntaxError|marshal data|\[Errno 5\]|error while loading shared libraries|"
    r"version `[^']+' not found|by ld\.so:|init_fs_encoding|No module named 'encodings'"
)


@lru_cache(maxsize=1)
def wants() -> tuple[Want, ...]:
    """Return the resources that a library may report as refused."""
    return load_table("refused_resources.csv", Want)


class LastWords:
    """The newest lines that a child printed, and the first line for each kind of cause, kept regardless of later lines.

    An interpreter that aborts prints its whole stack after the one line with the cause.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._newest: deque[str] = deque(maxlen=NEWEST_LINES)
        self._telling: dict[re.Pattern[str], str] = {}
        self._patterns = (INTERPRETER, NOT_INSTALLED, *(want.words for want in wants()))

    def append(self, line: str) -> None:
        """Add *line*, which the child has just printed."""
        self._newest.append(line)
        for pattern in self._patterns:
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
