"""One fault reported by several sources counts once.

The driver's interface (NVML) and the kernel log report the same XID within moments, and the log prints one line per
channel that it stops. Events of one code on one device of one boot that are close in time are one event.
"""

from __future__ import annotations

import msgspec

from nodevet.checks.core.model import Event, Outcome, Provenance
from nodevet.checks.core.occurrences import SOURCES_APART_SECONDS
from nodevet.checks.core.parts import unit_of
from nodevet.checks.reference.kernel_policy import policy_of

from .rules import is_same_address, normalised_pci

REPEAT_SECONDS = 1.0
"""Within this time the same source repeats an event: one line per stopped channel."""

MAXIMUM_REMEMBERED = 1024
"""Distinct faults beyond this number within one window are all counted; the oldest are forgotten."""

_GRAVITY: tuple[Outcome | None, ...] = (Outcome.PASS, Outcome.WARN, Outcome.FAIL)


class SeenEvent(msgspec.Struct, frozen=True):
    """An admitted event, which later ones are compared with."""

    code: str
    device: str
    boot_id: str
    boottime_ns: int
    source: str
    is_evidence: bool = False
    variant: str = ""
    outcome: Outcome | None = None


class DeduplicatorState(msgspec.Struct, frozen=True):
    """The state to store over a restart, so that nothing is counted twice."""

    seen: tuple[SeenEvent, ...] = ()


class Deduplicator:
    """Admits the first of several events of the same fault. The order of arrival does not matter."""

    def __init__(self, window_seconds: float = SOURCES_APART_SECONDS, state: DeduplicatorState | None = None) -> None:
        """Compare sources over *window_seconds*; continue from *state*."""
        self._window_ns = int(window_seconds * 1e9)
        self._repeat_ns = min(self._window_ns, int(REPEAT_SECONDS * 1e9))
        self._seen = list(state.seen) if state else []

    def admit(self, event: Event) -> bool:
        """Return whether *event* is new, and remember it then."""
        new = _seen_event(event)
        if any(self._same_fault(new, old) for old in self._seen):
            return False
        # A text may have reported the same before: evidence is admitted all the same, or a user could suppress it.
        newest = max([new.boottime_ns, *(old.boottime_ns for old in self._seen if old.boot_id == new.boot_id)])
        self._seen = [
            old
            for old in [*self._seen, new]
            if old.boot_id == new.boot_id and newest - old.boottime_ns <= self._window_ns
        ][-MAXIMUM_REMEMBERED:]
        return True

    @property
    def state(self) -> DeduplicatorState:
        """Return the state to store over a restart."""
        return DeduplicatorState(tuple(self._seen))

    def _same_fault(self, one: SeenEvent, other: SeenEvent) -> bool:
        if (one.code, one.boot_id) != (other.code, other.boot_id) or not is_same_address(one.device, other.device):
            return False
        if one.is_evidence and not other.is_evidence:
            return False
        if one.source == other.source and (one.variant, one.outcome) != (other.variant, other.outcome):
            return False  # first a link's harmless error, then its fatal one: a code alone does not identify a fault
        if one.source != other.source and one.variant and _is_graver(one, other):
            return False  # NVML reports only the number of an XID; the text in the log says that it is fatal
        window = self._repeat_ns if one.source == other.source else self._window_ns
        return abs(one.boottime_ns - other.boottime_ns) <= window


def _is_graver(one: SeenEvent, other: SeenEvent) -> bool:
    """Return whether *one* is graver than *other*; the outcome of events from an earlier version is unknown."""
    known = one.outcome in _GRAVITY and other.outcome in _GRAVITY
    return known and _GRAVITY.index(one.outcome) > _GRAVITY.index(other.outcome)


def _seen_event(event: Event) -> SeenEvent:
    pci = normalised_pci(event.pci) if event.pci else None
    return SeenEvent(
        code=event.code,
        device=pci or event.device or unit_of(event.fields),
        boot_id=event.time.boot_id,
        boottime_ns=event.time.boottime_ns,
        source=event.source,
        is_evidence=event.provenance is not Provenance.TEXT,
        variant=event.fields.get("variant") or event.fields.get("word", "").lower(),
        outcome=policy_of(event).outcome,
    )
