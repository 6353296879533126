"""XIDs from NVML's event set: a driver that reports one at every call costs no board its reading."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from nodevet.checks.backends.base import MOST_EVENTS
from nodevet.checks.backends.nvidia.nvml import TIMEOUT
from nodevet.checks.backends.nvidia.xids import XidEvents
from nodevet.checks.core.model import Instant

XID = SimpleNamespace(device=1, eventType=8, eventData=79, gpuInstanceId=0xFFFFFFFF, computeInstanceId=0xFFFFFFFF)
NOW = Instant("b", 10_000_000_000, 1e9)
ENDLESS = 100_000
"""Events of one look from which on it has no end."""


class Driver:
    """NVML whose event set has *count* events."""

    def __init__(self, count: int) -> None:
        """Begin with all of them."""
        self.left = count
        self.notes: list[tuple[str, ...]] = []
        library: Any = SimpleNamespace(attempt=self._answer)
        context: Any = SimpleNamespace(now=lambda: NOW, note=lambda *words, **_fields: self.notes.append(words))
        self.events = XidEvents(library, context)
        self.events.watch(())

    def look(self) -> int:
        """Return how many events a look takes."""
        return sum(1 for _ in islice(self.events.read(), ENDLESS))

    def _answer(self, _text: str, symbol: str, *_arguments: object) -> tuple[int, Any]:
        if symbol != "nvmlEventSetWait_v2":
            return 0, object()
        if not self.left:
            return TIMEOUT, None
        self.left -= 1
        return 0, XID


@pytest.mark.parametrize(
    ("count", "looks", "notes"),
    [
        (MOST_EVENTS - 1, [MOST_EVENTS - 1, 0], 0),
        (MOST_EVENTS + 5, [MOST_EVENTS, 5], 1),
        (3 * ENDLESS, [MOST_EVENTS] * 3, 1),
    ],
    ids=["few", "more", "endless"],
)
def test_events_that_never_end_are_taken_a_part_at_a_time(count: int, looks: list[int], notes: int) -> None:
    """What a look takes has an end, the rest comes at the next one, and it is told once that there was more."""
    driver = Driver(count)
    assert [driver.look() for _ in looks] == looks
    assert len(driver.notes) == notes
