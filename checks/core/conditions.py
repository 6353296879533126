"""The conditions of a result that nodevet reads itself. A workload may add others, which are shown as they are."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

LARGEST_NUMBER = 1e30
"""More than any figure of a load; not-a-number and infinity are no measurements."""

Number = Annotated[float, msgspec.Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]


class MismatchFacts(msgspec.Struct, frozen=True):
    """The facts of one wrong product that findings and report show, all optional; see ``burnin.locate.Mismatch``."""

    product: int | None = None
    origin: str = ""
    persistence: str = ""
    cells: int | None = None
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    flipped_bits: dict[str, int] = {}
    reruns: int | None = None
    reruns_wrong: int | None = None


class KnownConditions(msgspec.Struct, frozen=True):
    """Each condition by its key; ``curves`` are ``{quantity: [[seconds, value], ...]}``."""

    load: str | None = None
    planned_results: int | None = None
    asked: bool = False
    refusal: str | None = None
    killed: bool = False
    left_out: str | None = None
    verification: str | None = None
    temperature_celsius: Number | None = None
    power_watts: Number | None = None
    unsupported: tuple[str, ...] = ()
    specification_clock_hertz: Number | None = None
    operations_per_clock: Number | None = None
    measured_boottime_seconds: tuple[Number, Number] | None = None
    mismatch_reports: tuple[MismatchFacts | str, ...] = ()
    self_test: tuple[dict[str, Any], ...] = ()
    curves: dict[str, tuple[tuple[Number, Number], ...]] = {}


CAUTIOUS: dict[str, Any] = {"left_out": "a part that cannot be read", "asked": True}
"""Conditions that limit what a result proves: one of another type limits it all the same."""


def sound_conditions(conditions: dict[str, Any]) -> dict[str, Any]:
    """Return *conditions* without the known ones that are of another type or no finite number.

    Those that limit what the result proves are replaced.
    """
    if _is_sound(conditions):
        return conditions
    sound = {name: value for name, value in conditions.items() if _is_sound({name: value})}
    return sound | {name: value for name, value in CAUTIOUS.items() if name in conditions and name not in sound}


def _is_sound(conditions: dict[str, Any]) -> bool:
    try:
        msgspec.convert(conditions, KnownConditions)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter for half of a surrogate pair
        return False
    return True
