"""The machine's clock, moved forward by hand so that nothing has to be waited for."""

from __future__ import annotations

from nodevet.checks.core.clock import SystemClock

__all__ = ["LateClock"]


class LateClock(SystemClock):
    """Goes as the machine's does, ``ahead`` seconds before it."""

    def __init__(self) -> None:
        """Begin at the present moment."""
        super().__init__()
        self.ahead = 0.0

    def monotonic(self) -> float:
        """Return the seconds that the loop goes by."""
        return super().monotonic() + self.ahead
