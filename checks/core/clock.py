"""What time it is: injected everywhere, so that a test, a replay or a simulation needs no waiting.

Ages come from CLOCK_BOOTTIME, which nobody can set and which counts while the machine sleeps. The wall clock is
carried along for people and decides nothing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from .model import Instant

UNKNOWN_BOOT = "unknown"
"""The boot id where the kernel does not tell one: instants still compare within one process."""


class Clock(Protocol):
    """A source of time."""

    def instant(self) -> Instant:
        """Return the present moment with its boot."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only grow, without suspended time: for deadlines within this process."""
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
        """Return seconds that only grow; a machine that was suspended has not missed a deadline."""
        return time.monotonic()


def read_boot_id(root: str = "/") -> str:
    """Return the kernel's id of this boot from ``proc/sys/kernel/random/boot_id`` under *root*, or ``unknown``."""
    try:
        text = Path(root, "proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return UNKNOWN_BOOT
    return text.strip() or UNKNOWN_BOOT
