"""What takes all that readers tell, and keeps it."""

from __future__ import annotations

from nodevet.agent.readers.telling import Cut, Told
from nodevet.checks.core.model import Event, Sample
from nodevet.checks.core.wire import Note

__all__ = ["Heard"]


class Heard:
    """Everything that readers told but their lists of devices, which a supervisor has."""

    def __init__(self) -> None:
        """Begin without anything."""
        self.samples: list[Sample] = []
        self.events: list[Event] = []
        self.notes: list[Note] = []
        self.dropped = 0

    def take(self, told: Told) -> None:
        """Keep what was *told*."""
        match told:
            case Sample():
                self.samples.append(told)
            case Event():
                self.events.append(told)
            case Note():
                self.notes.append(told)
            case Cut():
                self.dropped += told.count
