"""Plots as SVG text: lines over time, and bars. No script, nothing from outside; the style sheet colours them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

import msgspec

__all__ = ["Line", "bar", "line_plot"]

WIDTH, HEIGHT = 480, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 26
MAXIMUM_POINTS = 240
"""Per line: more than the pixels of the plot say nothing."""

COLOURS = 8
"""Lines beyond this many repeat a colour; the style sheet names colours ``s0`` to ``s7``."""


class Line(msgspec.Struct, frozen=True):
    """One curve: its name and its points (seconds, value)."""

    name: str
    points: tuple[tuple[float, float], ...]


def line_plot(title: str, unit: str, lines: Sequence[Line]) -> str:
    """Return *lines* over time as an SVG element, or an empty string where no line has two points."""
    drawn = [Line(line.name, _thinned(_finite(line.points))) for line in lines]
    if not any(len(line.points) > 1 for line in drawn):
        return ""
    times = [time for line in drawn for time, _ in line.points]
    values = [value for line in drawn for _, value in line.points]
    divisor, clock = _clock(max(times))
    across = _Axis([tick * divisor for tick in _ticks(0.0, max(*times, 1.0) / divisor, 6)], LEFT, WIDTH - RIGHT)
    up = _Axis(_ticks(*_padded(min(values), max(values)), 5), HEIGHT - BOTTOM, TOP)
    curves = "".join(
        f'<path class="s{index % COLOURS}" d="{_path(line.points, across, up)}">'
        f"<title>{escape(line.name)}</title></path>"
        for index, line in enumerate(drawn)
        if len(line.points) > 1
    )
    spoken = f"{title} of {len(drawn)} devices over time: {_number(min(values))} to {_number(max(values))} {unit}"
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(spoken)}">'
        f"{_grid(across, up, divisor, clock)}{curves}</svg>"
    )


def bar(ratio: float, mark: float | None = None) -> str:
    """Return a bar filled to *ratio* of its length, with a tick at *mark*; both are cut to 0 to 1."""
    filled = 100 * min(max(ratio, 0.0), 1.0)
    tick = ""
    if mark is not None:
        at = 100 * min(max(mark, 0.0), 1.0)
        tick = f'<rect class="mark" x="{max(at - 0.6, 0):.1f}" y="0" width="1.2" height="8"/>'
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="8"/><rect class="fill" width="{filled:.1f}" height="8"/>{tick}</svg>'
    )


class _Axis:
    """Maps values to pixels between the first and the last tick."""

    def __init__(self, ticks: list[float], start: float, end: float) -> None:
        self.ticks = ticks
        self._scale = (end - start) / (ticks[-1] - ticks[0])
        self._start = start

    def at(self, value: float) -> float:
        return self._start + (value - self.ticks[0]) * self._scale


def _grid(across: _Axis, up: _Axis, divisor: float, clock: str) -> str:
    parts = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up.at(tick):.1f}" y2="{up.at(tick):.1f}"/>'
        f'<text class="y" x="{LEFT - 6}" y="{up.at(tick) + 4:.1f}">{_number(tick)}</text>'
        for tick in up.ticks
    ]
    parts += [
        f'<text class="x" x="{across.at(tick):.1f}" y="{HEIGHT - 8}">{_number(tick / divisor)}</text>'
        for tick in across.ticks[:-1]
    ]
    last = f"{_number(across.ticks[-1] / divisor)} {clock}"
    parts.append(f'<text class="x end" x="{WIDTH - RIGHT}" y="{HEIGHT - 8}">{last}</text>')
    return "".join(parts)


def _path(points: Iterable[tuple[float, float]], across: _Axis, up: _Axis) -> str:
    return "M" + "L".join(f"{across.at(time):.1f} {up.at(value):.1f}" for time, value in points)


def _finite(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    return tuple((time, value) for time, value in points if math.isfinite(time) and math.isfinite(value))


def _thinned(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """Return lowest and highest point of each stretch of time, so that a short dip stays visible."""
    if len(points) <= MAXIMUM_POINTS:
        return points
    stretch = math.ceil(len(points) / (MAXIMUM_POINTS // 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return tuple(kept)


def _padded(low: float, high: float) -> tuple[float, float]:
    """Return a range of at least a twentieth of the value, so that noise does not look like a mountain."""
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
    """Return the unit in which a person tells *seconds*, as its own seconds and its sign."""
    if seconds <= 120:
        return 1.0, "s"
    return (60.0, "min") if seconds <= 7200 else (3600.0, "h")
