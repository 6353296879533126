"""A quantity over time in bounded memory, for the curves of a report."""

from __future__ import annotations

__all__ = ["Curve"]

MAXIMUM_POINTS = 480
_STRETCH = 4


class Curve:
    """Points (seconds, value) in the order of time. A load of days keeps as many as one of minutes.

    When there are too many, of each few neighbours the lowest and the highest stay, so that a short dip is never lost.
    """

    def __init__(self) -> None:
        """Start without points."""
        self._points: list[tuple[float, float]] = []

    def add(self, seconds: float, value: float) -> None:
        """Add a point that is later than all before."""
        self._points.append((seconds, value))
        if len(self._points) > MAXIMUM_POINTS:
            self._points = self._thinned()

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """Return the points that were kept."""
        return tuple(self._points)

    def _thinned(self) -> list[tuple[float, float]]:
        kept: list[tuple[float, float]] = []
        for start in range(0, len(self._points), _STRETCH):
            part = self._points[start : start + _STRETCH]
            kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
        return kept
