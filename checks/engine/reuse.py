"""Reuse of findings: a look whose inputs are unchanged since the last round is not run again. Pure.

A look is a part of a check that sees one device through the observations that it requests (reading, growth, name,
sample time), and its policy; it sees neither the time nor the view. Its requests, answers and findings are kept until
the next round, which repeats the requests. If every answer is equal, its findings are reused, evidence time included,
so that they count as no new sample; if one differs, such as that of a sample that became old, the look runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from nodevet.checks.core.model import Device, Failure, Finding, Part, Reading, Sample
from nodevet.checks.core.quantities import QUANTITIES

from .judging import Observation, observations
from .view import Growth, View


class Asked:
    """The inputs of a look: its device and the answers to its requests."""

    __slots__ = ("_view", "answers", "device")

    def __init__(self, view: View, device: Device) -> None:
        """Answer requests about *device* from *view*."""
        self._view = view
        self.device = device
        self.answers: dict[str, tuple[Observation, ...]] = {}
        """The answers so far, by quantity."""

    def observations(self, quantity: str) -> tuple[Observation, ...]:
        """Return the observations of *quantity*, one for each part of the device that ever reported it."""
        found = self.answers[quantity] = observations(self._view, self.device, quantity)
        return found


Look = Callable[[Asked, Any], Iterable[Finding]]
"""A function of a module: it is identified by itself, and its findings must depend on its arguments only."""


Entries = tuple[tuple[Reading, Sample], ...]
"""The readings of one quantity of a device, with their samples."""

Index = Mapping[tuple[str, str], Entries]
"""The readings of a sample by device and quantity."""

Kind = TypeVar("Kind")


class _Kept(msgspec.Struct, frozen=True):
    device: Device
    failure: Failure | None
    policy: msgspec.Struct
    answers: tuple[tuple[str, Entries, tuple[Observation, ...]], ...]
    growth: tuple[tuple[tuple[str, str, Part], Growth | None], ...]
    findings: tuple[Finding, ...]

    def stands(self, view: View, device: Device, policy: msgspec.Struct) -> bool:
        """Return whether the same look at *device* would get the same answers."""
        if self.device != device or self.policy != policy or self.failure is not view.failure(device.id):
            return False
        has_grown = any(view.growth.get(key) is not growth for key, growth in self.growth)
        return all(
            (not has_grown and view.readings(device.id, quantity) is entries)
            or observations(view, device, quantity) == answer
            for quantity, entries, answer in self.answers
        )


def _kept(
    view: View,
    device: Device,
    policy: msgspec.Struct,
    answers: Mapping[str, tuple[Observation, ...]],
    findings: tuple[Finding, ...],
) -> _Kept:
    counters = [
        (device.id, quantity, entry.part)
        for quantity, answer in answers.items()
        if (known := QUANTITIES.get(quantity)) is None or known.judged_by_growth
        for entry in answer
    ]
    return _Kept(
        device=device,
        failure=view.failure(device.id),
        policy=policy,
        answers=tuple((quantity, view.readings(device.id, quantity), entry) for quantity, entry in answers.items()),
        growth=tuple((key, view.growth.get(key)) for key in counters),
        findings=findings,
    )


class _Latest(Generic[Kind]):
    """Values that were put or found in the last round or in this one; older ones are deleted."""

    def __init__(self) -> None:
        self._before: dict[Any, Kind] = {}
        self._now: dict[Any, Kind] = {}

    def turn(self) -> None:
        self._before, self._now = self._now, {}

    def get(self, key: object) -> Kind | None:
        return self._now.get(key) or self._before.get(key)

    def put(self, key: object, value: Kind) -> Kind:
        self._now[key] = value
        return value


class Reuse:
    """The findings of looks and the indexes of samples, of the last round and of this one."""

    def __init__(self) -> None:
        """Start without any."""
        self._looks = _Latest[_Kept]()
        self._indexes = _Latest[tuple[Sample, Index]]()

    def turn(self) -> None:
        """Start the next round."""
        self._looks.turn()
        self._indexes.turn()

    def look(self, view: View, look: Look, device: Device, policy: msgspec.Struct) -> tuple[Finding, ...]:
        """Return the findings of *look* for *device*, reused from the last round if its inputs are unchanged."""
        key = (look, device.id)
        kept = self._looks.get(key)
        if kept is None or not kept.stands(view, device, policy):
            asked = Asked(view, device)
            found = tuple(look(asked, policy))
            kept = _kept(view, device, policy, asked.answers, found)
        return self._looks.put(key, kept).findings

    def index(self, sample: Sample, make: Callable[[], Index]) -> Index:
        """Return the index of *sample*: the same object as long as the sample is, else that of *make*."""
        key = (sample.device, sample.group)
        kept = self._indexes.get(key)
        if kept is None or kept[0] is not sample:
            kept = sample, make()
        return self._indexes.put(key, kept)[1]


def looked(view: View, look: Look, device: Device, policy: msgspec.Struct) -> tuple[Finding, ...]:
    """Return the findings of *look* for *device* in *view*; without a reuse in the view, it always runs."""
    if view.reuse is None:
        return tuple(look(Asked(view, device), policy))
    return view.reuse.look(view, look, device, policy)
