"""Clocks: boot clock and wall clock, injected everywhere, so that tests, replays and simulations need no waiting.

Ages are computed from CLOCK_BOOTTIME, which cannot be set and counts suspended time. The wall clock is stored beside
it for display; no decision uses it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from .model import Instant

UNKNOWN_BOOT = "unknown"
"""The boot id where the kernel reports none: instants still compare within one process."""


class Clock(Protocol):
    """A source of time."""

    def instant(self) -> Instant:
        """Return the present moment with its boot."""
        ...

    def monotonic(self) -> float:
        """Return monotonic seconds without suspended time: for deadlines within this process."""
        ...


class SystemClock:
    """The machine's own clock. The boot id is read once from *root*, so a captured tree keeps its own."""

    def __init__(self, root: str = "/") -> None:
        """Read the boot id under *root*."""
        self._boot_id = read_boot_id(root)

    def instant(self) -> Instant:
        """Return the present moment."""
        return Instant(self._boot_id, time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time())

    def monotonic(self) -> float:
        """Return monotonic seconds; suspended time does not count, so a suspended machine misses no deadline."""
        return time.monotonic()


def read_boot_id(root: str = "/") -> str:
    """Return the kernel's id of this boot from ``proc/sys/kernel/random/boot_id`` under *root*, or ``unknown``."""
    try:
        text = Path(root, "proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return UNKNOWN_BOOT
    return text.strip() or UNKNOWN_BOOT
