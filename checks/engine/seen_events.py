"""The numbered events of the site's commands that were counted: a command may print them to several agents."""

from __future__ import annotations

import msgspec

from nodevet.checks.core.digest import blake2b
from nodevet.checks.core.model import Event
from nodevet.checks.core.readings import MAXIMUM_EVENTS

MAXIMUM_TOLD = 2 * MAXIMUM_EVENTS
"""As many as one command can print at once, in its two groups."""


class SeenEvent(msgspec.Struct, frozen=True):
    """A counted event: its source and boot, and a short identifier."""

    source: str
    boot_id: str
    digest: bytes


class SeenEvents:
    """Admits each event once, by number and text: a program that restarts its numbers reports other events."""

    def __init__(self, state: tuple[SeenEvent, ...] = ()) -> None:
        """Restore *state*."""
        self._seen_events: dict[str, dict[SeenEvent, None]] = {}
        for event in state:
            self._seen_events.setdefault(event.source, {})[event] = None

    def admit(self, event: Event) -> bool:
        """Return whether *event* is new, and record it if so."""
        words = msgspec.msgpack.encode((event.sequence, event.code, event.device, event.text))
        new = SeenEvent(event.source, event.time.boot_id, blake2b(words, 8))
        known = self._seen_events.setdefault(new.source, {})
        if new in known:
            return False
        oldest = next(iter(known), new)
        if oldest.boot_id != new.boot_id:
            known.clear()
        elif len(known) >= MAXIMUM_TOLD:
            del known[oldest]
        known[new] = None
        return True

    @property
    def state(self) -> tuple[SeenEvent, ...]:
        """Return the state to keep across a restart."""
        return tuple(event for known in self._seen_events.values() for event in known)
