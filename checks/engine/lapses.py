"""Lapses: since when a reading is missing. One implausible value alone makes no device unknown.

A sample that does not arrive makes a device unknown only once the last one is old, because that still has value. A
single reading of a sample is treated alike: a recent reading is not missing yet.
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
        ("partitioned", WHOLE),  # links of a partitioned board read as down, and it reports no row repairs
        ("ecc_enabled", WHOLE),  # without ECC no errors are counted
        ("energy_joules", Part(PartKind.POWER_SCOPE, "device")),  # a recently loaded driver has counted little energy
    }
)
"""Readings that excuse an apparent fault: one missing sample of them does not withdraw the excuse."""

EXCUSING = frozenset(quantity for quantity, _ in EXCUSES)


class Lapse(msgspec.Struct, frozen=True, array_like=True):
    """A reading that is missing in the last sample of its group, and the time of its last value; None: never."""

    device: str
    group: str
    quantity: str
    part: Part
    read: Instant | None


class Told(msgspec.Struct, frozen=True):
    """The last value of a reading, and its time."""

    value: Scalar
    time: Instant
    backend: str
    group: str


class Lapses:
    """The readings that are missing in the last sample of their group, and the last values of excusing readings."""

    def __init__(self, kept: Iterable[Lapse] = ()) -> None:
        """Restore the *kept* lapses."""
        self._lapses: dict[tuple[str, str], dict[tuple[str, Part], Lapse]] = {}
        self.told: dict[tuple[str, str, Part], Told] = {}
        for lapse in kept:
            self._lapses.setdefault((lapse.device, lapse.group), {})[lapse.quantity, lapse.part] = lapse

    @property
    def kept(self) -> tuple[Lapse, ...]:
        """Return the state for the next agent."""
        return tuple(lapse for lapses in self._lapses.values() for lapse in lapses.values())

    def take(self, sample: Sample, before: Instant | None) -> None:
        """Record the missing readings of *sample*; *before* is the time of the previous sample of its group."""
        owner = (sample.device, sample.group)
        known = self._lapses.pop(owner, {})
        lapses = {}
        for entry in sample.readings:
            if entry.value is not None:  # most have one, and excuse nothing
                if entry.quantity in EXCUSING and (entry.quantity, entry.part) in EXCUSES:
                    self.told[sample.device, entry.quantity, entry.part] = Told(
                        entry.value, sample.time, sample.backend, sample.group
                    )
            elif _passes(entry):
                key = (entry.quantity, entry.part)
                lapses[key] = known.get(key) or Lapse(*owner, *key, before)
        if lapses:
            self._lapses[owner] = lapses

    def times(self) -> Mapping[tuple[str, str, Part], Instant]:
        """Return the time of the last value of each lapsed reading, by device, quantity and part."""
        return {(one.device, one.quantity, one.part): one.read for one in self.kept if one.read is not None}


def is_excuse(finding: Finding) -> bool:
    """Return whether *finding* shows that a missing reading is not required: the earlier finding is then over."""
    is_seen = finding.outcome is Outcome.SKIPPED and finding.evidence_time is not None
    return is_seen and finding.clearing is Clearing.UNMEASURED


def _passes(reading: Reading) -> bool:
    """Return whether it may be over in the next round: an implausible value or a busy driver, no lack or refusal."""
    return reading.status is ReadingStatus.UNAVAILABLE or is_implausible(reading)
