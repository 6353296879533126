"""Which numbered events of the site's commands were counted: a command may print them again, also to a later agent."""

from __future__ import annotations

import hashlib

import msgspec

from nodevet.checks.core.model import Event
from nodevet.checks.core.readings import MAXIMUM_EVENTS

__all__ = ["MAXIMUM_TOLD", "ToldEvent", "ToldEvents"]

MAXIMUM_TOLD = 2 * MAXIMUM_EVENTS
"""As many as one command can print at a time, in its two groups."""


class ToldEvent(msgspec.Struct, frozen=True):
    """An event that was counted: who told of it in which boot, and what tells it from others, in short."""

    source: str
    boot_id: str
    digest: bytes


class ToldEvents:
    """Admits each event once. Number and words tell them apart: a program that counts anew tells of other events."""

    def __init__(self, state: tuple[ToldEvent, ...] = ()) -> None:
        """Go on from *state*."""
        self._told: dict[str, dict[ToldEvent, None]] = {}
        for event in state:
            self._told.setdefault(event.source, {})[event] = None

    def admit(self, event: Event) -> bool:
        """Return whether *event* is new, and remember it if so."""
        words = msgspec.msgpack.encode((event.sequence, event.code, event.device, event.text))
        new = ToldEvent(event.source, event.time.boot_id, hashlib.blake2b(words, digest_size=8).digest())
        known = self._told.setdefault(new.source, {})
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
    def state(self) -> tuple[ToldEvent, ...]:
        """Return what to keep over a restart."""
        return tuple(event for known in self._told.values() for event in known)
