"""Reuse of findings: a look whose inputs are unchanged since the last round is not run again. Pure.

A look is a part of a check that sees one device through the observations that it requests (reading, growth, name,
sample time), and its policy; it sees neither the time nor the view. Its requests, answers and findings are kept until
the next round, which repeats the requests. If every answer is equal, its findings are reused, evidence time included,
so that they count as no new sample; if one differs, such as that of a sample that became old, the look runs again.

Most values of the fast group are the same in every sample: links are up, no clock is throttled. A *dated* look sees no
growth, and the time of a sample only passes into the evidence time of its findings. If a later sample reads the same,
its findings get the time of that sample, as if it had looked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any, Generic, TypeVar

import msgspec

from nodevet.checks.core.model import Device, Failure, Finding, Part, Reading, Sample
from nodevet.checks.core.quantities import QUANTITIES

from .judging import Observation, observations
from .view import Growth, View


class Asked:
    """The inputs of a look: its device and the answers to its requests."""

    __slots__ = ("_grows", "_view", "answers", "device")

    def __init__(self, view: View, device: Device, *, grows: bool = True) -> None:
        """Answer requests about *device* from *view*, without growth unless it *grows*."""
        self._view = view
        self._grows = grows
        self.device = device
        self.answers: dict[str, tuple[Observation, ...]] = {}
        """The answers so far, by quantity."""

    def observations(self, quantity: str) -> tuple[Observation, ...]:
        """Return the observations of *quantity*, one for each part of the device that ever reported it."""
        found = observations(self._view, self.device, quantity)
        if not self._grows:
            found = tuple(msgspec.structs.replace(observation, growth=None) for observation in found)
        self.answers[quantity] = found
        return found


Look = Callable[[Asked, Any], Iterable[Finding]]
"""A function of a module: it is identified by itself, and its findings must depend on its arguments only."""


Entries = tuple[tuple[Reading, Sample], ...]
"""The readings of one quantity of a device, with their samples."""

Index = Mapping[tuple[str, str], Entries]
"""The readings of a sample by device and quantity."""

Kind = TypeVar("Kind")


class _Subject(msgspec.Struct, frozen=True):
    device: Device
    failure: Failure | None
    policy: msgspec.Struct

    def is_another(self, view: View, device: Device, policy: msgspec.Struct) -> bool:
        """Return whether the device, its failure or the policy changed."""
        return self.device != device or self.policy != policy or self.failure is not view.failure(device.id)


class _Kept(_Subject, frozen=True):
    answers: tuple[tuple[str, Entries, tuple[Observation, ...]], ...]
    growth: tuple[tuple[tuple[str, str, Part], Growth | None], ...]
    findings: tuple[Finding, ...]

    def stands(self, view: View, device: Device, policy: msgspec.Struct) -> bool:
        """Return whether the same look at *device* would get the same answers."""
        if self.is_another(view, device, policy):
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


class _Dated(_Subject, frozen=True):
    """The findings of a dated look, and the answers to its requests for *quantities*."""

    quantities: tuple[str, ...]
    answers: tuple[Entries, ...]
    findings: tuple[Finding, ...]

    def of(self, view: View, device: Device, policy: msgspec.Struct) -> _Dated | None:
        """Return the findings that the look would have now, or None where only the look itself can tell."""
        if self.is_another(view, device, policy):
            return None
        answers = tuple([view.readings(device.id, quantity) for quantity in self.quantities])
        if all(map(is_, answers, self.answers)):
            return self
        before, now = _only_sample(self.answers), _only_sample(answers)
        if before is None or now is None or before.time.boot_id != now.time.boot_id:
            return None
        if _readings(answers) != _readings(self.answers):
            return None
        findings = tuple(
            [
                finding if finding.evidence_time is None else msgspec.structs.replace(finding, evidence_time=now.time)
                for finding in self.findings
            ]
        )
        return msgspec.structs.replace(self, answers=answers, findings=findings)


def _only_sample(answers: Iterable[Entries]) -> Sample | None:
    """Return the sample of all *answers*, or None if there are several, or none."""
    only: Sample | None = None
    for entries in answers:
        for _, sample in entries:
            if sample is not only and only is not None:
                return None
            only = sample
    return only


def _readings(answers: Iterable[Entries]) -> list[Reading]:
    return [reading for entries in answers for reading, _ in entries]


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
        self._dated = _Latest[_Dated]()
        self._indexes = _Latest[tuple[Sample, Index]]()

    def turn(self) -> None:
        """Start the next round."""
        self._looks.turn()
        self._dated.turn()
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

    def dated(self, view: View, look: Look, device: Device, policy: msgspec.Struct) -> tuple[Finding, ...]:
        """Return the findings of the dated *look* for *device*, with the time of a later sample that reads the same."""
        name = look, device.id
        before = self._dated.get(name)
        kept = None if before is None else before.of(view, device, policy)
        if kept is None:
            asked = Asked(view, device, grows=False)
            found = tuple(look(asked, policy))
            quantities = tuple(asked.answers)
            answers = tuple(view.readings(device.id, quantity) for quantity in quantities)
            kept = _Dated(device, view.failure(device.id), policy, quantities, answers, found)
        return self._dated.put(name, kept).findings

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


def dated(view: View, look: Look, device: Device, policy: msgspec.Struct) -> tuple[Finding, ...]:
    """Return the findings of the dated *look* for *device* in *view*; without a reuse in the view, it always runs.

    It compares no times, such as those of two readings, and the device's own readings are all that it sees.
    """
    if view.reuse is None:
        return tuple(look(Asked(view, device, grows=False), policy))
    return view.reuse.dated(view, look, device, policy)
