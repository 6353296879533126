"""Every quantity once: key with unit, kind, help and plausible range, in ``quantities.csv`` and ``bounds.csv``.

Metric names, help texts, the reference page and the command backend's schema are made from these tables.
A value outside the plausible range is not a measurement: backends report it as ``error``. The bounds are those of
physics, not of today's boards: what lies beyond is a wrong unit, a torn read or a marker for "no value". Each states
where it comes from.
"""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path

import msgspec

from .model import PartKind, Reading, ReadingStatus, Scalar
from .tables import read_table


class QuantityKind(StrEnum):
    """How a quantity behaves: a counter only grows within an epoch, a state is one of named words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    FLAG = "flag"
    STATE = "state"
    TEXT = "text"


class Bounds(msgspec.Struct, frozen=True):
    """Between which values a measurement lies, and why no device measures anything else; None is no bound."""

    low: int | float | None
    high: int | float | None
    source: str


class Quantity(msgspec.Struct, frozen=True):
    """One quantity. ``judged_by_growth`` counters keep their last value over a restart.

    Those ``judged_by_hour`` also count how far they grew within the last one. Parts ``never_zero`` have no value of
    exactly 0 while they answer: it is what an empty register or a sensor that died reads. A chip that answers is warmer
    than the air that cools it, and a board draws some power and has no limit of 0. A page of metrics without detail
    has the parts ``shown``, ``*`` for all of them, and none has the ``hidden`` ones, which tell nothing of whether a
    node is fit. Gauges are ``rolled`` into minutes whose course over days is worth its space.
    """

    key: str
    kind: QuantityKind
    part: PartKind
    help: str
    bounds: Bounds | None = None
    states: tuple[str, ...] = ()
    exported: bool = True
    shown: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    rolled: bool = False
    judged_by_growth: bool = False
    judged_by_hour: bool = False
    never_zero: tuple[str, ...] = ()

    @property
    def low(self) -> float | None:
        """Return the lowest plausible value, or None where there is no bound."""
        return self.bounds.low if self.bounds else None

    @property
    def high(self) -> float | None:
        """Return the highest plausible value, or None where there is no bound."""
        return self.bounds.high if self.bounds else None

    @property
    def unit(self) -> str:
        """Return the unit that the key ends in, or an empty string for counts, flags and words."""
        units = {
            "celsius": "celsius",
            "watts": "watts",
            "joules": "joules",
            "hertz": "hertz",
            "bytes": "bytes",
            "seconds": "seconds",
            "ratio": "ratio",
        }
        if self.key.endswith("bytes_per_second"):
            return "bytes_per_second"
        return units.get(self.key.rsplit("_", 1)[-1], "")


class _Bounds(Bounds, frozen=True, kw_only=True):
    """A row of ``bounds.csv``."""

    name: str


class _Quantity(msgspec.Struct, frozen=True):
    """A row of ``quantities.csv``: a quantity that names its bounds."""

    key: str
    kind: QuantityKind
    part: PartKind
    bounds: str | None
    exported: bool
    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    rolled: bool
    judged_by_growth: bool
    judged_by_hour: bool
    never_zero: tuple[str, ...]
    states: tuple[str, ...]
    help: str


def _quantities() -> dict[str, Quantity]:
    folder = Path(__file__).parent
    bounds = {row.name: Bounds(row.low, row.high, row.source) for row in read_table(folder / "bounds.csv", _Bounds)}
    rows = read_table(folder / "quantities.csv", _Quantity)
    return {
        row.key: Quantity(**{**msgspec.structs.asdict(row), "bounds": bounds[row.bounds] if row.bounds else None})
        for row in rows
    }


QUANTITIES = _quantities()
"""All quantities by key."""

UNKNOWN_ACTION = "unknown"
"""An action that no table knows: the driver asks for something, and a younger version of nodevet may know what."""

RECOVERY_ACTIONS = tuple(word for word in QUANTITIES["recovery_action"].states if word != UNKNOWN_ACTION)

LARGEST_COUNT = 2**63 - 1
SHOWN_LETTERS = 100
"""So much of an odd value is told."""
IMPLAUSIBLE = " is implausible: "
"""Stands in the detail of a reading whose value was told and is none."""
NO_VALUE = "no value: "
"""The detail of a reading begins so where what a command printed for it is no value at all, such as NaN."""

ONES = frozenset({2**32 - 1, 2**64 - 1})
"""What a field of 32 or 64 bits reads that nobody fills, such as UINT_MAX in the metrics of a driver."""


def measured(reading: Reading) -> Reading:
    """Return *reading*, or the same with status ``error`` where no device can have measured its value."""
    if reading.value is None:
        return reading
    entry = QUANTITIES[reading.quantity]
    why = _doubt(reading.value, entry)
    if why is None and reading.value == 0 and reading.part.name in entry.never_zero:
        why = "exactly 0 is an empty register or a dead sensor"
    if why is None and reading.value in ONES and entry.high == LARGEST_COUNT:
        why = "ones alone are an empty register"
    return _implausible(reading, why) if why else reading


def _doubt(value: Scalar, entry: Quantity) -> str | None:
    """Return why *value* is no measurement of the quantity, or None where it may be one."""
    match entry.kind:
        case QuantityKind.STATE:
            return None if value in entry.states else f"not one of {', '.join(entry.states)}"
        case QuantityKind.TEXT:
            return None if isinstance(value, str) else "no text"
        case QuantityKind.FLAG:
            return None if isinstance(value, bool) else "neither true nor false"
    if isinstance(value, (bool, str)) or (isinstance(value, float) and not math.isfinite(value)):
        return "no number"
    if (entry.low is not None and value < entry.low) or (entry.high is not None and value > entry.high):
        return f"outside {entry.low} to {entry.high}"
    return None


def is_implausible(reading: Reading) -> bool:
    """Return whether *reading* had a value that was none; one that could not be read at all is another matter."""
    is_odd = IMPLAUSIBLE in reading.detail or reading.detail.startswith(NO_VALUE)
    return reading.status is ReadingStatus.ERROR and is_odd


def _implausible(reading: Reading, why: str) -> Reading:
    value = reading.value
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:  # its digits are of no use, and Python may refuse them
        shown = f"a number of {value.bit_length()} bits"
    else:
        shown = repr(value)[:SHOWN_LETTERS]
    return Reading(reading.quantity, None, reading.part, ReadingStatus.ERROR, f"{shown}{IMPLAUSIBLE}{why}")
