"""Heat, power, clock and throttling of a device at one moment, as the live table of a load shows them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from nodevet.checks.reference.tables import load_table


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What was read last of one device; None is what it does not tell or nobody read.

    ``throttle`` has the reasons that hold its clock down, none where it tells that nothing does.
    """

    temperature_celsius: float | None = None
    power_watts: float | None = None
    clock_hertz: float | None = None
    throttle: tuple[str, ...] | None = None


UNREAD = Conditions()
"""Of a device that nobody reads."""


def joined(one: Conditions, other: Conditions) -> Conditions:
    """Return what *one* and *other* tell together, of two groups of readings of a device."""
    reasons = (
        None if one.throttle is None and other.throttle is None else (*(one.throttle or ()), *(other.throttle or ()))
    )
    return Conditions(
        temperature_celsius=_known(one.temperature_celsius, other.temperature_celsius),
        power_watts=_known(one.power_watts, other.power_watts),
        clock_hertz=_known(one.clock_hertz, other.clock_hertz),
        throttle=reasons,
    )


def _known(one: float | None, other: float | None) -> float | None:
    return other if one is None else one


KnownConditions = Mapping[str, Conditions]
"""Conditions by the device's id."""


class _ThrottleWord(msgspec.Struct, frozen=True):
    """A row of reference/throttle_words.csv: how a reason is called in eight letters; the worst one comes first."""

    reason: str
    word: str
    source: str


@lru_cache(maxsize=1)
def _words() -> dict[str, str]:
    return {row.reason: row.word for row in load_table("throttle_words.csv", _ThrottleWord)}


def is_throttling(reason: str) -> bool:
    """Return whether *reason* holds the clock of a device under load down: to be idle, or to be set so, does not."""
    return reason in _words() or reason.startswith("vendor:")


def throttle_word(reasons: Iterable[str]) -> str:
    """Return the worst of *reasons* in eight letters, with a plus where others are there as well; ``no`` for none."""
    known = list(dict.fromkeys(reasons))
    order = list(_words())
    ordered = sorted(known, key=lambda reason: order.index(reason) if reason in order else len(order))
    words = list(dict.fromkeys(_words().get(reason, reason.removeprefix("vendor:"))[:8] for reason in ordered))
    if not words:
        return "no"
    return words[0] if len(words) == 1 else f"{words[0][:7]}+"
