"""The XID that caused the clean-up of an NVIDIA GPU, and the bounded memory of facts by PCI address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from nodevet.checks.core.model import Event, Instant, Provenance
from nodevet.checks.reference.kernel_policy import policy_of

from .rules import base_address

T = TypeVar("T")

MAXIMUM_ADDRESSES = 256
"""Largest number of devices whose names and last XID are remembered."""

FOLLOW_SECONDS = 60.0
"""Longest time from another XID to the clean-up (XID 45) that it causes."""

CLEAN_UP = "nvidia.xid.45"


class CleanUps:
    """Remembers the last XID of each GPU, to name the one that a clean-up follows."""

    def __init__(self) -> None:
        """Start empty."""
        self._last_xid: dict[str, Event] = {}

    def attributed(self, events: Sequence[Event]) -> list[Event]:
        """Return *events*, each clean-up (XID 45) with the XID of the same GPU that caused it, where one is near.

        The one before it in the log is preferred to the one after it: some logs begin with the newest line.
        """
        following: dict[str, Event] = {}
        behind: list[Event | None] = []
        for event in reversed(events):
            gpu = known_as(event.pci or "", event.provenance)
            behind.append(following.get(gpu))
            if _may_cause(event):
                following[gpu] = event
        attributed: list[Event] = []
        for event, later in zip(events, reversed(behind), strict=True):
            gpu = known_as(event.pci or "", event.provenance)
            if _may_cause(event):
                keep(self._last_xid, gpu, event)
            causes = (self._last_xid.get(gpu), later)
            attributed.append(_caused(event, causes) if event.code == CLEAN_UP else event)
        return attributed


def known_as(pci: str, provenance: Provenance) -> str:
    """Return the key for facts about *pci*: facts from text have a separate one and serve only other texts."""
    return f"{base_address(pci)} {provenance is Provenance.TEXT}"


def keep(known: dict[str, T], address: str, value: T) -> None:
    """Set the fact about *address*; the oldest ones are dropped, because a text may name any number of addresses."""
    known.pop(address, None)
    known[address] = value
    while len(known) > MAXIMUM_ADDRESSES:
        del known[next(iter(known))]


def _may_cause(event: Event) -> bool:
    return bool(event.pci) and event.code.startswith("nvidia.xid.") and event.code != CLEAN_UP


def _caused(event: Event, causes: tuple[Event | None, ...]) -> Event:
    near = [cause for cause in causes if cause is not None and _near(event.time, cause.time)]
    if not near or "follows" in event.fields:
        return event
    fields = {**event.fields, "variant": "consequence", "follows": near[0].code}
    event = msgspec.structs.replace(event, fields=fields)
    return msgspec.structs.replace(event, severity=policy_of(event).severity)


def _near(one: Instant, other: Instant) -> bool:
    """Return whether two times are close; lines without a time are close because they are in the same log."""
    if one.boottime_ns and other.boottime_ns:
        return one.boot_id == other.boot_id and abs(one.boottime_ns - other.boottime_ns) <= FOLLOW_SECONDS * 1e9
    if one.wall_seconds and other.wall_seconds:
        return abs(one.wall_seconds - other.wall_seconds) <= FOLLOW_SECONDS
    return True
