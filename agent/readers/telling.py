"""How readers report results: at once, by one callback. Of a flood, the surplus of each turn is only counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import Device, Event, Sample
from nodevet.checks.core.wire import Note


class Listed(msgspec.Struct, frozen=True):
    """The new list of a backend's devices."""

    backend: str
    devices: tuple[Device, ...]


class Cut(msgspec.Struct, frozen=True):
    """The number of events and log lines that were dropped from floods."""

    count: int


Told = Sample | Event | Listed | Note | Cut
Take = Callable[[Told], None]
"""Receives all reports of readers; it raises nothing."""


class Telling:
    """Passes the reports of all readers to ``take``. A flood is cut and counted; the first event of each kind is always
    reported, because a driver reports some of them only once.
    """

    EVENTS = 1000
    NOTES = 500

    def __init__(self, take: Take, clock: Clock) -> None:
        """Report to *take*, with times of *clock*."""
        self.take = take
        self._clock = clock
        self._begin()

    def end_turn(self) -> None:
        """Report how much was dropped since the last call, and reset the counts."""
        cut = self._cut
        self._begin()
        if cut:
            self.take(Cut(cut))

    def event(self, event: Event) -> None:
        """Report *event*, unless there were too many already and one of its kind among them."""
        kind = (event.code, event.device, event.pci)
        if self._events >= self.EVENTS and kind in self._kinds:
            self._cut += 1
            return
        self._events += 1
        self._kinds.add(kind)
        now = self._clock
        asleep_ns = now.instant().boottime_ns - round(now.monotonic() * 1e9)
        self.take(by_clock_of_log(event, asleep_ns))

    def note(self, level: str, event: str, fields: Mapping[str, str]) -> None:
        """Report a line for the log, unless there were too many already."""
        self._notes += 1
        if self._notes > self.NOTES:
            self._cut += 1
        else:
            self.take(Note(level, event, dict(fields)))

    def line(self, backend: str, line: str, *, room: bool) -> None:
        """Report a *line* that the reader of *backend* printed, if its limit leaves *room*."""
        if room:
            self.note("info", "collector output", {"line": line, "backend": backend})
        else:
            self._cut += 1

    def _begin(self) -> None:
        self._cut = self._events = self._notes = 0
        self._kinds: set[tuple[str, str | None, str | None]] = set()


def by_clock_of_log(event: Event, asleep_ns: int) -> Event:
    """Return *event* with its time by the clock of the kernel log, which may report it too; it stops in suspend.

    Events that a command numbers are distinguished by that number.
    """
    if event.sequence is not None or event.stamp_us is not None:
        return event
    return msgspec.structs.replace(event, stamp_us=(event.time.boottime_ns - asleep_ns) // 1000)
