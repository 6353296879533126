"""Events of the kernel log and of drivers, counted; application events are included."""

from __future__ import annotations

import msgspec

from nodevet.checks.core.model import Snapshot
from nodevet.exporters.format import age, counted

MAXIMUM_EVENTS = 40


class EventRow(msgspec.Struct, frozen=True):
    """One kind of event on one device."""

    code: str
    device: str
    fault_class: str
    count: str
    last: str


class EventsSection(msgspec.Struct, frozen=True):
    """The section of events; ``hidden`` is the number of kinds left out."""

    rows: tuple[EventRow, ...]
    hidden: str


def events_section(snapshot: Snapshot, names: dict[str, str]) -> EventsSection | None:
    """Return the section of events, newest first; None without any event."""
    events = sorted(snapshot.events, key=lambda event: -event.last.wall_seconds)
    if not events:
        return None
    rows = (
        EventRow(
            event.code,
            names.get(event.device, event.device),
            event.fault_class.value,
            f"{event.count:,}",
            age(snapshot.time, event.last),
        )
        for event in events[:MAXIMUM_EVENTS]
    )
    hidden = len(events) - MAXIMUM_EVENTS
    return EventsSection(tuple(rows), counted(hidden, "kind") if hidden > 0 else "")
