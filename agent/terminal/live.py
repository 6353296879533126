"""The live table of a load: a row per device, redrawn in place on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import TextIO, cast

import msgspec

from .output import dispensable, is_redrawn, say, uses_colour

WIDTH = 80
"""Columns of the table; a narrower terminal gets fewer of them, a wider one no more."""

PLAIN_SECONDS = 60.0
"""A log gets one line in so many seconds, and one for each change."""

_RED, _YELLOW, _OFF = "\x1b[31m", "\x1b[33m", "\x1b[0m"
_GAP = 1
_MARGIN = 1  # a terminal may wrap at its last column


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one device does now. ``throttle`` is one word, ``no`` for none. None is unknown, and shown as ``-``."""

    device: str
    phase: str
    tflops: float | None = None
    peak_ratio: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    clock_hertz: float | None = None
    throttle: str | None = None
    verified: int = 0
    wrong: int = 0
    left_seconds: float | None = None


class _Column(msgspec.Struct, frozen=True):
    """A column: its heading, width, text for a row, and rank. The highest rank is the first to go."""

    heading: str
    width: int
    text: Callable[[LiveRow], str]
    rank: int
    left: bool = False


def figure(value: float | None) -> str:
    """Return *value* with three digits, and without a decimal where it has more before the point."""
    if value is None:
        return "-"
    if value >= 99.95 or value == 0:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.0e}"


def whole(value: float | None, factor: float = 1.0) -> str:
    """Return *value* times *factor* as a whole number."""
    return "-" if value is None else f"{value * factor:.0f}"


def count(number: int) -> str:
    """Return *number* in at most seven characters."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= 100 * size or (number >= size and unit != "k"):
            return f"{number / size:.4g}{unit}"
    return str(number)


def clock_words(seconds: float | None) -> str:
    """Return *seconds* in at most five characters: ``0:42``, ``12:05``, ``7h59m``, ``23.5h``, ``7d23h``."""
    if seconds is None:
        return "-"
    left = max(0, round(seconds))
    if left < 3600:
        return f"{left // 60}:{left % 60:02}"
    if left < 36000:
        return f"{left // 3600}h{left % 3600 // 60:02}m"
    if left < 359820:
        return f"{left / 3600:.1f}h"
    days, hours = left // 86400, left % 86400 // 3600
    return f"{days}d{hours:02}h" if days < 10 else f"{days}d"


_COLUMNS = (
    _Column("DEVICE", 7, lambda row: row.device, 0, left=True),
    _Column("PHASE", 12, lambda row: row.phase, 1, left=True),
    _Column("TFLOPS", 6, lambda row: figure(row.tflops), 4),
    _Column("%PEAK", 5, lambda row: whole(row.peak_ratio, 100), 7),
    _Column("degC", 4, lambda row: whole(row.temperature_celsius), 5),
    _Column("W", 5, lambda row: whole(row.power_watts), 6),
    _Column("MHz", 4, lambda row: whole(row.clock_hertz, 1e-6), 9),
    _Column("THROTTLE", 8, lambda row: row.throttle or "-", 8, left=True),
    _Column("VERIFIED", 8, lambda row: count(row.verified), 3),
    _Column("WRONG", 5, lambda row: count(row.wrong), 2),
    _Column("ETA", 5, lambda row: clock_words(row.left_seconds), 10),
)


def table_lines(rows: Sequence[LiveRow], width: int = WIDTH, *, colour: bool = False) -> list[str]:
    """Return heading and *rows* as lines of at most *width* cells; columns that do not fit are left out."""
    columns = list(_COLUMNS)
    while len(columns) > 1 and sum(each.width + _GAP for each in columns) - _GAP > width - _MARGIN:
        columns.remove(max(columns, key=lambda each: each.rank))
    lines = [_line([each.heading for each in columns], columns)]
    for row in rows:
        cells = [each.text(row)[: each.width] for each in columns]
        line = _line(cells, columns)[: width - _MARGIN]
        lines.append(_painted(line, row) if colour else line)
    return lines


def _line(cells: Sequence[str], columns: Sequence[_Column]) -> str:
    padded = (
        _printable(cell).ljust(column.width) if column.left else _printable(cell).rjust(column.width)
        for cell, column in zip(cells, columns, strict=True)
    )
    return (" " * _GAP).join(padded).rstrip()


def _painted(line: str, row: LiveRow) -> str:
    if row.wrong:
        return f"{_RED}{line}{_OFF}"
    return f"{_YELLOW}{line}{_OFF}" if row.throttle not in (None, "no") else line


def _printable(text: str) -> str:
    """Return *text* in cells of one column each: device names come from outside."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)


def plain_line(ratio: float, rows: Sequence[LiveRow], width: int = WIDTH) -> str:
    """Return *rows* as one line of at most *width* characters, the most important first."""
    wrong, hot = sum(row.wrong for row in rows), [row for row in rows if row.throttle not in (None, "no")]
    rates = [row.tflops for row in rows if row.tflops is not None]
    phases = list(dict.fromkeys(row.phase for row in rows))
    left = max((row.left_seconds or 0.0 for row in rows), default=0.0)
    parts = [
        f"{ratio:4.0%}  {rows[0].device if len(rows) == 1 else f'{len(rows)} devices'}: {', '.join(phases[:2])}",
        f"{wrong} wrong",
        f"{count(sum(row.verified for row in rows))} verified",
        _span(rates, " TFLOPS"),
        _most((row.temperature_celsius for row in rows), " degC"),
        _most((row.power_watts for row in rows), " W"),
        f"throttled: {hot[0].device} {hot[0].throttle}" if hot else "",
        f"{clock_words(left)} left" if left else "",
    ]
    line = ""
    for part in filter(None, map(_printable, parts)):
        longer = f"{line}, {part}" if line else part
        if len(longer) <= width:
            line = longer
    return line or _printable(parts[0])[:width]


def _stage(row: LiveRow) -> str:
    """Return what a log tells at once: another format, and that the load is ending; the set-up has many phases."""
    return row.phase if row.phase.endswith("stop") else row.phase.partition(" ")[0]


def _span(values: Sequence[float], unit: str) -> str:
    if not values:
        return ""
    least, most = figure(min(values)), figure(max(values))
    return (least if least == most else f"{least} to {most}") + unit


def _most(values: Iterator[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):.0f}{unit}" if known else ""


class LiveTable:
    """Shows how far a load is; ``with`` keeps lines of others above the table."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to *stream* (default: standard error, so that standard output stays clean)."""
        self._stream = stream or sys.stderr
        self._clock = clock
        self._drawn: list[int] = []
        self._frame: object = None
        self._said_at = float("-inf")
        self._said: object = None

    @contextmanager
    def above(self) -> Iterator[None]:
        """Have what others write to standard error appear above the table, which is taken away at the end."""
        try:
            with redirect_stderr(cast(TextIO, _Above(self._stream, self))):
                yield
        finally:
            self.done()

    def show(self, title: str, ratio: float, rows: Sequence[LiveRow]) -> None:
        """Show *title* and *rows* where that is possible: a terminal may close, a disk may be full."""
        with dispensable(self._stream):
            if is_redrawn(self._stream):
                self._draw(title, rows)
            else:
                self._tell(ratio, rows)

    def _draw(self, title: str, rows: Sequence[LiveRow]) -> None:
        width, height = _size(self._stream)
        shown, left_out = _fitting(rows, height - 4)
        lines = [_printable(title)[: min(width, WIDTH) - _MARGIN]]
        lines += table_lines(shown, min(width, WIDTH), colour=uses_colour(self._stream))
        if left_out:
            lines.append(f"and {left_out} more"[: width - _MARGIN])
        size = (width, height)
        if self._drawn and (lines, size) == self._frame:
            return
        self._frame = (lines, size)
        # One write: a frame that is dropped because nobody reads is dropped whole.
        self._stream.write(self._back(width) + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        self._stream.flush()
        self._drawn = [_cells(line) for line in lines]

    def _back(self, width: int) -> str:
        """Return what moves to the first line of the last frame: one that became too long has wrapped."""
        lines = sum(max(1, -(-cells // width)) for cells in self._drawn)
        return f"\r\x1b[{lines}A" if lines else "\r"

    def _tell(self, ratio: float, rows: Sequence[LiveRow]) -> None:
        changed = [(_stage(row), bool(row.wrong)) for row in rows]
        now = self._clock()
        if changed != self._said or now - self._said_at >= PLAIN_SECONDS:
            self._said, self._said_at = changed, now
            say(plain_line(ratio, rows), self._stream)

    def erase(self) -> None:
        """Take the table away until it is shown again."""
        if self._drawn:
            back, self._drawn = self._back(_size(self._stream)[0]), []
            self._stream.write(f"{back}\x1b[J")
            self._stream.flush()

    def done(self) -> None:
        """Take the table away, as far as the terminal is there."""
        with dispensable(self._stream):
            self.erase()


class _Above:
    """Standard error while a table is drawn: whoever writes to it has the table taken away first."""

    def __init__(self, stream: TextIO, table: LiveTable) -> None:
        self._stream = stream
        self._table = table

    def write(self, text: str) -> int:
        """Write *text* where the table stood."""
        self._table.erase()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def _fitting(rows: Sequence[LiveRow], most: int) -> tuple[list[LiveRow], int]:
    """Return those of *rows* that fit *most* lines, the wrong and throttled ones of all, and how many are left out."""
    if len(rows) <= max(1, most):
        return list(rows), 0
    order = sorted(range(len(rows)), key=lambda index: (not rows[index].wrong, rows[index].throttle in (None, "no")))
    kept = sorted(order[: max(1, most - 1)])
    return [rows[index] for index in kept], len(rows) - len(kept)


def _cells(line: str) -> int:
    for code in (_RED, _YELLOW, _OFF):
        line = line.replace(code, "")
    return len(line)


def _size(stream: TextIO) -> tuple[int, int]:
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return WIDTH, 24
    return size.columns or WIDTH, size.lines or 24
