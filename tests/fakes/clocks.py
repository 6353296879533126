"""A clock that is moved by hand."""

from __future__ import annotations

from nodevet.checks.core.model import Instant


class SteppedClock:
    """A clock that stands still until it is moved."""

    def __init__(self, boot_id: str = "boot-1", seconds: float = 1000.0, wall_seconds: float = 1.75e9) -> None:
        """Begin *seconds* after the boot *boot_id*, at *wall_seconds* of the wall clock."""
        self.boot_id = boot_id
        self.wall_seconds = wall_seconds
        self._nanoseconds = round(seconds * 1e9)

    def instant(self) -> Instant:
        """Return the moment the clock stands at."""
        return Instant(self.boot_id, self._nanoseconds, self.wall_seconds)

    def monotonic(self) -> float:
        """Return the seconds since boot that the clock stands at."""
        return self._nanoseconds / 1e9

    def advance(self, seconds: float) -> None:
        """Move both time and wall clock forward by *seconds*."""
        self._nanoseconds += round(seconds * 1e9)
        self.wall_seconds += seconds

    def reboot(self, boot_id: str, seconds: float = 0.0) -> None:
        """Continue in another boot, *seconds* after its start; the wall clock goes on."""
        self.boot_id = boot_id
        self._nanoseconds = round(seconds * 1e9)
