"""Since when a reading could not be had: one odd value is a round without it, and makes no device unknown by itself.

A sample that did not come makes a device unknown once it is old, not at once, because the last one still says
something. A single reading of it is treated alike: what was read a moment ago is not missing yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nodevet.checks.model import Instant, Part, Reading, ReadingStatus, Sample
from nodevet.checks.quantities import is_implausible

__all__ = ["Lapse", "Lapses"]


class Lapse(msgspec.Struct, frozen=True, array_like=True):
    """A reading that could not be had in the last sample of its group, and when it was had; None: never."""

    device: str
    group: str
    quantity: str
    part: Part
    read: Instant | None


class Lapses:
    """The readings that could not be had in the last sample of their group."""

    def __init__(self, kept: Iterable[Lapse] = ()) -> None:
        """Go on with what another one *kept*."""
        self._lapses: dict[tuple[str, str], dict[tuple[str, Part], Lapse]] = {}
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
            if _passes(entry):
                key = (entry.quantity, entry.part)
                lapses[key] = known.get(key) or Lapse(*owner, *key, before)
        if lapses:
            self._lapses[owner] = lapses

    def times(self) -> Mapping[tuple[str, str, Part], Instant]:
        """Return when each reading that lapsed was had, by device, quantity and part."""
        return {(one.device, one.quantity, one.part): one.read for one in self.kept if one.read is not None}


def _passes(reading: Reading) -> bool:
    """Return whether it may be over in the next round: an odd value, a busy driver; not a lack, refusal or failure."""
    return reading.status is ReadingStatus.UNAVAILABLE or is_implausible(reading)
