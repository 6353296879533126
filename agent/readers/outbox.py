"""What readers have to tell, on its way to the daemon's loop."""

from __future__ import annotations

from collections.abc import Mapping

from nodevet.checks.model import Event, Sample
from nodevet.checks.wire import Note

__all__ = ["Outbox"]


class Outbox:
    """What readers have to tell, until the daemon's loop collects it. Bounded: a flood is cut and counted."""

    EVENTS = 1000
    NOTES = 500

    def __init__(self) -> None:
        """Begin empty. ``listed_anew``, that devices came or went, is for other readers: it outlives a collection."""
        self.listed_anew = False
        self.clear()

    def clear(self) -> None:
        """Begin again."""
        self.samples: list[Sample] = []
        self.events: list[Event] = []
        self.notes: list[Note] = []
        self.inventory_changed = False
        self.dropped = 0

    def event(self, event: Event) -> None:
        """Add *event* unless there are too many already."""
        if len(self.events) < self.EVENTS:
            self.events.append(event)
        else:
            self.dropped += 1

    def note(self, level: str, event: str, fields: Mapping[str, str]) -> None:
        """Add a line for the log unless there are too many already."""
        if len(self.notes) < self.NOTES:
            self.notes.append(Note(level, event, dict(fields)))
        else:
            self.dropped += 1
