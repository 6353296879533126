"""The time in which a process was stopped or frozen, as a suspended job is: nothing is loaded then.

No clock leaves it out. A thread that looks at the clock all the time does not get to look meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from nodevet.checks.system.background import Background

LOOK_SECONDS = 0.5
STOPPED_SECONDS = 5.0
"""Between two looks more than that is no wait for a processor, however busy the host is. SLURM suspends for 30 s and
more (SchedulerTimeSlice)."""


class Stops:
    """Adds up how long this process did not run, from ``with`` to its end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Tell the time by *clock*."""
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = clock()
        self._lost = 0.0
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Begin to look."""
        Background(self._watch).start()
        return self

    def __exit__(self, *_raised: object) -> None:
        """Look no more."""
        self._over.set()

    @property
    def seconds(self) -> float:
        """Return how long the process was stopped so far."""
        with self._lock:
            now = self._clock()
            gap, self._seen = now - self._seen, now
            if gap > STOPPED_SECONDS:
                self._lost += gap
            return self._lost

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            _ = self.seconds
