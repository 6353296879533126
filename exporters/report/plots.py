"""The data of plots, lines over time and bars, laid out for their template."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from nodevet.exporters.format import bar_length

WIDTH, HEIGHT = 480, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 26
FRAME = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT}
"""The frame of all plots, for the template (pixels)."""

MAXIMUM_POINTS = 240
"""Maximum number of points per line: more points than pixels show nothing new."""

COLOURS = 8
"""Lines beyond this many repeat a colour; the style sheet names colours ``s0`` to ``s7``."""


class Line(msgspec.Struct, frozen=True):
    """One curve: its name and its points (seconds, value)."""

    name: str
    points: tuple[tuple[float, float], ...]


class Curve(msgspec.Struct, frozen=True):
    """A line as drawn: its colour in the style sheet, its name, and the path through its points."""

    colour: int
    name: str
    path: str


class Plot(msgspec.Struct, frozen=True):
    """Lines over time. ``rows`` and ``columns`` are positions (pixels), each with its label."""

    title: str
    unit: str
    spoken: str
    rows: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    curves: tuple[Curve, ...]


class Bar(msgspec.Struct, frozen=True):
    """A bar: the filled part (%) and the position of its tick (%), empty if it has none."""

    length: str
    mark: str


def line_plot(title: str, unit: str, lines: Sequence[Line]) -> Plot | None:
    """Return *lines* over time, or None if no line has two points."""
    drawn = [Line(line.name, _thinned(_finite(line.points))) for line in lines]
    if not any(len(line.points) > 1 for line in drawn):
        return None
    times = [time for line in drawn for time, _ in line.points]
    values = [value for line in drawn for _, value in line.points]
    divisor, clock = _clock(max(times))
    across = _Axis([tick * divisor for tick in _ticks(0.0, max(*times, 1.0) / divisor, 6)], LEFT, WIDTH - RIGHT)
    up = _Axis(_ticks(*_padded(min(values), max(values)), 5), HEIGHT - BOTTOM, TOP)
    columns = [(f"{across.at(tick):.1f}", _number(tick / divisor)) for tick in across.ticks]
    columns[-1] = (str(WIDTH - RIGHT), f"{columns[-1][1]} {clock}")
    return Plot(
        title,
        unit,
        f"{title} of {len(drawn)} devices over time: {_number(min(values))} to {_number(max(values))} {unit}",
        tuple((f"{up.at(tick):.1f}", _number(tick)) for tick in up.ticks),
        tuple(columns),
        tuple(
            Curve(index % COLOURS, line.name, _path(line.points, across, up))
            for index, line in enumerate(drawn)
            if len(line.points) > 1
        ),
    )


def bar(ratio: float, mark: float | None = None) -> Bar:
    """Return a bar filled to *ratio* of its length, with a tick at *mark*; both are clipped to 0 to 1."""
    return Bar(bar_length(ratio), "" if mark is None else f"{max(float(bar_length(mark)) - 0.6, 0):.1f}")


class _Axis:
    """Maps values to pixels between the first and the last tick."""

    def __init__(self, ticks: list[float], start: float, end: float) -> None:
        self.ticks = ticks
        self._scale = (end - start) / (ticks[-1] - ticks[0])
        self._start = start

    def at(self, value: float) -> float:
        return self._start + (value - self.ticks[0]) * self._scale


def _path(points: Iterable[tuple[float, float]], across: _Axis, up: _Axis) -> str:
    return "M" + "L".join(f"{across.at(time):.1f} {up.at(value):.1f}" for time, value in points)


def _finite(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    return tuple((time, value) for time, value in points if math.isfinite(time) and math.isfinite(value))


def _thinned(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """Return the lowest and highest point of each time interval, so that a short dip stays visible."""
    if len(points) <= MAXIMUM_POINTS:
        return points
    stretch = math.ceil(len(points) / (MAXIMUM_POINTS // 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return tuple(kept)


def _padded(low: float, high: float) -> tuple[float, float]:
    """Return a range of at least a twentieth of the value, so that noise is not magnified."""
    missing = (max(abs(high), abs(low)) / 20 or 1.0) - (high - low)
    return (low - missing / 2, high + missing / 2) if missing > 0 else (low, high)


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Return about *count* round numbers that enclose *low* to *high*."""
    rough = (high - low) / count or 1.0
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _clock(seconds: float) -> tuple[float, str]:
    """Return the unit of time for *seconds* that suits people: its length (s) and its symbol."""
    if seconds <= 120:
        return 1.0, "s"
    return (60.0, "min") if seconds <= 7200 else (3600.0, "h")
