"""Since when a reading could not be had: one odd value is a round without it, and makes no device unknown by itself.

A sample that did not come makes a device unknown once it is old, not at once, because the last one still says
something. A single reading of it is treated alike: what was read a moment ago is not missing yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nodevet.checks.core.model import (
    WHOLE,
    Clearing,
    Finding,
    Instant,
    Outcome,
    Part,
    PartKind,
    Reading,
    ReadingStatus,
    Sample,
    Scalar,
)
from nodevet.checks.core.quantities import is_implausible

EXCUSES = frozenset(
    {
        ("partitioned", WHOLE),  # links of a board that is split read as down, and it owes no row repairs
        ("ecc_enabled", WHOLE),  # without error correction no errors are counted
        ("energy_joules", Part(PartKind.POWER_SCOPE, "device")),  # little was used since a driver was loaded anew
    }
)
"""Readings that excuse what else would be a fault: one look without them takes no excuse away."""


class Lapse(msgspec.Struct, frozen=True, array_like=True):
    """A reading that could not be had in the last sample of its group, and when it was had; None: never."""

    device: str
    group: str
    quantity: str
    part: Part
    read: Instant | None


class Told(msgspec.Struct, frozen=True):
    """What a reading was when it was had last, and when."""

    value: Scalar
    time: Instant
    backend: str
    group: str


class Lapses:
    """The readings that could not be had in the last sample of their group, and what those that excuse were last."""

    def __init__(self, kept: Iterable[Lapse] = ()) -> None:
        """Go on with what another one *kept*."""
        self._lapses: dict[tuple[str, str], dict[tuple[str, Part], Lapse]] = {}
        self.told: dict[tuple[str, str, Part], Told] = {}
        for lapse in kept:
            self._lapses.setdefault((lapse.device, lapse.group), {})[lapse.quantity, lapse.part] = lapse

    @property
    def kept(self) -> tuple[Lapse, ...]:
        """Return what another one goes on with."""
        return tuple(lapse for lapses in self._lapses.values() for lapse in lapses.values())

    def take(self, sample: Sample, before: Instant | None) -> None:
        """Note what *sample* lacks; *before* is when the last sample of its group was taken."""
        owner = (sample.device, sample.group)
        known = self._lapses.pop(owner, {})
        lapses = {}
        for entry in sample.readings:
            if entry.value is not None and (entry.quantity, entry.part) in EXCUSES:
                self.told[sample.device, entry.quantity, entry.part] = Told(
                    entry.value, sample.time, sample.backend, sample.group
                )
            if _passes(entry):
                key = (entry.quantity, entry.part)
                lapses[key] = known.get(key) or Lapse(*owner, *key, before)
        if lapses:
            self._lapses[owner] = lapses

    def times(self) -> Mapping[tuple[str, str, Part], Instant]:
        """Return when each reading that lapsed was had, by device, quantity and part."""
        return {(one.device, one.quantity, one.part): one.read for one in self.kept if one.read is not None}


def is_excuse(finding: Finding) -> bool:
    """Return whether *finding* shows that a reading which was missing is not owed: that it was missing is over."""
    is_seen = finding.outcome is Outcome.SKIPPED and finding.evidence_time is not None
    return is_seen and finding.clearing is Clearing.UNMEASURED


def _passes(reading: Reading) -> bool:
    """Return whether it may be over in the next round: an odd value, a busy driver; not a lack, refusal or failure."""
    return reading.status is ReadingStatus.UNAVAILABLE or is_implausible(reading)
