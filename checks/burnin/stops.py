"""The time in which a process was stopped or frozen, like a suspended job: the device is then not under load.

No clock leaves that time out. A thread that polls the clock cannot poll meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from nodevet.checks.system.background import Background

LOOK_SECONDS = 0.5
STOPPED_SECONDS = 5.0
"""A longer gap between two polls is no wait for a processor, however busy the host is. SLURM suspends for 30 s and
more (SchedulerTimeSlice)."""


class Stops:
    """Adds up the time in which this process did not run, from ``with`` to its end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Use *clock* as the time source, in seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = clock()
        self._lost = 0.0
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Start polling."""
        Background(self._watch).start()
        return self

    def __exit__(self, *_raised: object) -> None:
        """Stop polling."""
        self._over.set()

    @property
    def seconds(self) -> float:
        """Return the seconds in which the process was stopped so far."""
        with self._lock:
            now = self._clock()
            gap, self._seen = now - self._seen, now
            if gap > STOPPED_SECONDS:
                self._lost += gap
            return self._lost

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            _ = self.seconds
