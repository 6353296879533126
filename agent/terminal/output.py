"""Text for people: lines and tables, in colour on a terminal. ``NO_COLOR`` is honoured."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from io import TextIOWrapper
from typing import TextIO, cast

from nodevet.checks.core.errors import NodevetError

from .outlet import Outlet, Stream

_COLOURS = {
    "ok": "32",
    "pass": "32",
    "degraded": "33",
    "warn": "33",
    "failed": "31",
    "fail": "31",
    "unknown": "35",
    "unmeasured": "35",
}


WAITING_BYTES = 1 << 14
"""How much may wait for a reader of standard error: more of it is old by the time that it reads on."""

LAST_SECONDS = 1.0
"""How long the lines that wait have at the end."""


class OutputError(NodevetError):
    """Output cannot be written, such as to a file on a full disk."""


def complete_streams() -> None:
    """Open on nothing what was closed when the process began, or files opened later would receive what is printed.

    Text that the output's encoding lacks is escaped: a name in another script must not end a command.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        elif number and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str = "", stream: TextIO | None = None) -> None:
    """Write one line of output, at once, so that a pipe sees it as it happens. Raises OutputError."""
    chosen = stream or sys.stdout
    with _writing(chosen):
        print(text, file=chosen, flush=True)


def emit(document: bytes) -> None:
    """Write a *document* to standard output. Raises OutputError."""
    with _writing(sys.stdout):
        sys.stdout.buffer.write(document)
        sys.stdout.flush()


def tell(text: str) -> None:
    """Write one line to standard error where that is possible: what is told must not end what it is told of.

    A terminal may close, the reader of a pipe may end by the same Ctrl-C, a disk may be full.
    """
    with dispensable(sys.stderr):
        say(text, sys.stderr)


class _Unhindered(Stream):
    """Standard error that never blocks on its receiver."""

    def __init__(self, outlet: Outlet, stream: TextIO) -> None:
        super().__init__(outlet, stream.fileno())
        self._stream = stream

    def fileno(self) -> int:
        """Return the descriptor, for the size of a terminal."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return whether a terminal reads it."""
        return self._stream.isatty()


@contextmanager
def unhindered() -> Iterator[None]:
    """Write standard error from a thread of its own: Ctrl-S or a pipe that nobody reads holds up nothing else."""
    try:
        sys.stderr.fileno()
    except (OSError, ValueError):  # it is memory, which takes everything
        yield
        return
    outlet = Outlet(WAITING_BYTES)
    try:
        with redirect_stderr(cast(TextIO, _Unhindered(outlet, sys.stderr))):
            yield
    finally:
        outlet.close(LAST_SECONDS)


@contextmanager
def dispensable(stream: TextIO) -> Iterator[None]:
    """Continue where *stream* cannot be written; later output is dropped."""
    with suppress(OutputError, BrokenPipeError), _writing(stream):
        yield


@contextmanager
def _writing(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _give_up(stream)
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(f"output cannot be written: {error.strerror}") from error


def _give_up(stream: TextIO) -> None:
    """Send what *stream* still holds nowhere, or Python tries again at its end and changes the exit code."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def let_go_of_output() -> None:
    """Forget output that cannot be written: for the end of a process to which that does not matter."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _give_up(stream)


def uses_colour(stream: TextIO) -> bool:
    """Return whether *stream* is a terminal that wants colour (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_redrawn(stream: TextIO) -> bool:
    """Return whether *stream* is a terminal on which lines can be written again."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(word: str) -> str:
    """Return *word*, coloured by its meaning where the output is a terminal: ``ok``, ``degraded``, ``failed`` ..."""
    code = _COLOURS.get(word)
    return f"\x1b[{code}m{word}\x1b[0m" if code and uses_colour(sys.stdout) else word


def table(rows: Sequence[Sequence[str]], headings: Sequence[str] = (), *, gap: int = 2) -> str:
    """Return *rows* as columns under *headings*, *gap* blanks apart; the last column keeps its length."""
    lines = [list(headings), *map(list, rows)] if headings else [list(row) for row in rows]
    if not lines:
        return ""
    lines = [[_printable(cell) for cell in line] for line in lines]
    widths = [max(_width(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        (" " * gap).join(cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _printable(text: str) -> str:
    """Return *text* without control characters: device names and kernel text come from outside."""
    if "\x1b[" in text and all(part[:3].rstrip("m").isdigit() or part[:1] == "0" for part in text.split("\x1b[")[1:]):
        return text
    return "".join(" " if unicodedata.category(letter) == "Cc" else letter for letter in text)


def _width(text: str) -> int:
    plain, escape = 0, False
    for letter in text:
        if letter == "\x1b":
            escape = True
        elif escape:
            escape = letter != "m"
        else:
            plain += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
    return plain
