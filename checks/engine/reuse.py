"""Findings that stand: what a check asked of one device, and was answered as before, it need not judge again. Pure.

A look is a part of a check that sees one device by the observations that it asks for (reading, growth, name, time of
its sample), and its policy: neither the time nor the view. What it asked, what it was answered and what it found is
kept until the next round, in which the same is asked. Where every answer is equal its findings stand, evidence time
included, so they are no new look; where one is not, such as that of a sample that grew old, it looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from nodevet.checks.core.model import Device, Finding

from .judging import Observation, observations
from .view import View


class Asked:
    """All that a look may see: its device and the answers to what it asks."""

    __slots__ = ("_view", "answers", "device")

    def __init__(self, view: View, device: Device) -> None:
        """Answer from *view* what is asked of *device*."""
        self._view = view
        self.device = device
        self.answers: dict[str, tuple[Observation, ...]] = {}
        """What was asked so far, by quantity."""

    def observations(self, quantity: str) -> tuple[Observation, ...]:
        """Return the observations of *quantity*, one for each part of the device that ever reported it."""
        found = self.answers[quantity] = observations(self._view, self.device, quantity)
        return found


Look = Callable[[Asked, Any], Iterable[Finding]]
"""A function of a module: it is known again by itself, and what it finds must follow from what it is given."""


class _Kept(msgspec.Struct, frozen=True):
    device: Device
    policy: msgspec.Struct
    answers: tuple[tuple[str, tuple[Observation, ...]], ...]
    findings: tuple[Finding, ...]

    def stands(self, view: View, device: Device, policy: msgspec.Struct) -> bool:
        """Return whether the same look at *device* would be answered the same."""
        if self.device != device or self.policy != policy:
            return False
        return all(observations(view, device, quantity) == answer for quantity, answer in self.answers)


class Reuse:
    """What the looks of the round before found, and those of this one; older ones are forgotten."""

    def __init__(self) -> None:
        """Begin with none."""
        self._before: dict[tuple[Look, str], _Kept] = {}
        self._now: dict[tuple[Look, str], _Kept] = {}

    def turn(self) -> None:
        """Begin the next round."""
        self._before, self._now = self._now, {}

    def look(self, view: View, look: Look, device: Device, policy: msgspec.Struct) -> tuple[Finding, ...]:
        """Return what *look* finds of *device*, or what it found in the round before where that stands."""
        key = (look, device.id)
        kept = self._before.get(key)
        if kept is None or not kept.stands(view, device, policy):
            asked = Asked(view, device)
            found = tuple(look(asked, policy))
            kept = _Kept(device, policy, tuple(asked.answers.items()), found)
        self._now[key] = kept
        return kept.findings


def looked(view: View, look: Look, device: Device, policy: msgspec.Struct) -> tuple[Finding, ...]:
    """Return what *look* finds of *device* in *view*; where nothing is to be reused it looks in any case."""
    if view.reuse is None:
        return tuple(look(Asked(view, device), policy))
    return view.reuse.look(view, look, device, policy)
