"""Reuse of findings: a look whose inputs are unchanged since the last round is not run again. Pure.

A look is a part of a check that sees one device through the observations that it requests (reading, growth, name,
sample time), and its policy; it sees neither the time nor the view. Its requests, answers and findings are kept until
the next round, which repeats the requests. If every answer is equal, its findings are reused, evidence time included,
so that they count as no new sample; if one differs, such as that of a sample that became old, the look runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from nodevet.checks.core.model import Device, Finding

from .judging import Observation, observations
from .view import View


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


class _Kept(msgspec.Struct, frozen=True):
    device: Device
    policy: msgspec.Struct
    answers: tuple[tuple[str, tuple[Observation, ...]], ...]
    findings: tuple[Finding, ...]

    def stands(self, view: View, device: Device, policy: msgspec.Struct) -> bool:
        """Return whether the same look at *device* would get the same answers."""
        if self.device != device or self.policy != policy:
            return False
        return all(observations(view, device, quantity) == answer for quantity, answer in self.answers)


class Reuse:
    """The findings of looks in the last round and in this one; older ones are deleted."""

    def __init__(self) -> None:
        """Start without any."""
        self._before: dict[tuple[Look, str], _Kept] = {}
        self._now: dict[tuple[Look, str], _Kept] = {}

    def turn(self) -> None:
        """Start the next round."""
        self._before, self._now = self._now, {}

    def look(self, view: View, look: Look, device: Device, policy: msgspec.Struct) -> tuple[Finding, ...]:
        """Return the findings of *look* for *device*, reused from the last round if its inputs are unchanged."""
        key = (look, device.id)
        kept = self._before.get(key)
        if kept is None or not kept.stands(view, device, policy):
            asked = Asked(view, device)
            found = tuple(look(asked, policy))
            kept = _Kept(device, policy, tuple(asked.answers.items()), found)
        self._now[key] = kept
        return kept.findings


def looked(view: View, look: Look, device: Device, policy: msgspec.Struct) -> tuple[Finding, ...]:
    """Return the findings of *look* for *device* in *view*; without a reuse in the view, it always runs."""
    if view.reuse is None:
        return tuple(look(Asked(view, device), policy))
    return view.reuse.look(view, look, device, policy)
