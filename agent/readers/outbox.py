"""What readers have to tell, on its way to the daemon's loop."""

from __future__ import annotations

from collections.abc import Mapping

from nodevet.checks.core.model import Event, Sample
from nodevet.checks.core.wire import Note


class Outbox:
    """What readers have to tell, until it is collected. A flood is cut and counted; of events the first of each kind is
    taken behind any flood, because a driver tells some of them once.
    """

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
        self._kinds: set[tuple[str, str | None, str | None]] = set()

    def event(self, event: Event) -> None:
        """Add *event* unless there are too many already, and one of its kind among them."""
        kind = (event.code, event.device, event.pci)
        if len(self.events) < self.EVENTS or kind not in self._kinds:
            self.events.append(event)
            self._kinds.add(kind)
        else:
            self.dropped += 1

    def note(self, level: str, event: str, fields: Mapping[str, str]) -> None:
        """Add a line for the log unless there are too many already."""
        if len(self.notes) < self.NOTES:
            self.notes.append(Note(level, event, dict(fields)))
        else:
            self.dropped += 1

    def line(self, backend: str, line: str, *, room: bool) -> None:
        """Add a *line* that the reader of *backend* printed, where there is *room* for another of that reader."""
        if room:
            self.note("info", "collector output", {"line": line, "backend": backend})
        else:
            self.dropped += 1
