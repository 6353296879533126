"""The table of quantities: key with unit, kind, help and plausible range, in ``quantities.csv``.

Metric names, help texts, the reference page and the command backend's schema are generated from this table.
A value outside the plausible range is not a measurement: backends report it as ``error``. The bounds are those of
physics, not of today's devices: a value beyond them is a wrong unit, a torn read or a marker for "no value". They are
written ``low;high;source``, or as the key of a quantity with the same ones.
"""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path

import msgspec

from .model import PartKind, Reading, ReadingStatus, Scalar
from .tables import read_table


class QuantityKind(StrEnum):
    """The behaviour of a quantity: a counter only grows within an epoch, a state is one of named words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    FLAG = "flag"
    STATE = "state"
    TEXT = "text"


class Bounds(msgspec.Struct, frozen=True):
    """The range of plausible values, and why no device measures others; None is no bound."""

    low: int | float | None
    high: int | float | None
    source: str


class Quantity(msgspec.Struct, frozen=True):
    """One quantity. Counters ``judged_by_growth`` keep their last value over a restart.

    Counters ``judged_by_hour`` also count their growth within the last hour. Parts ``never_zero`` never read exactly 0
    while they work: an empty register or a dead sensor does, but a running chip is warmer than the air that cools it.
    The metrics page without detail has the parts ``shown`` (``*``: all), and no page has the ``hidden`` ones, which do
    not show whether a node is fit. Gauges ``rolled`` are kept as minute figures. A healthy device may read ``example``.
    """

    key: str
    kind: QuantityKind
    part: PartKind
    help: str
    example: Scalar
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
        """Return the unit that the key ends in, or an empty string for counts, flags and texts."""
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


class _Quantity(msgspec.Struct, frozen=True):
    """A row of ``quantities.csv``."""

    key: str
    kind: QuantityKind
    part: PartKind
    bounds: tuple[str, ...]
    exported: bool
    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    rolled: bool
    judged_by_growth: bool
    judged_by_hour: bool
    never_zero: tuple[str, ...]
    states: tuple[str, ...]
    example: str
    help: str


def _quantities() -> dict[str, Quantity]:
    rows = read_table(Path(__file__).with_name("quantities.csv"), _Quantity)
    bounds = {row.key: _bounds(*row.bounds) for row in rows if len(row.bounds) > 1}
    return {
        row.key: Quantity(
            **{
                **msgspec.structs.asdict(row),
                "bounds": bounds[row.key if row.key in bounds else row.bounds[0]] if row.bounds else None,
                "example": _example(row),
            }
        )
        for row in rows
    }


def _bounds(low: str, high: str, *source: str) -> Bounds:
    return msgspec.convert({"low": low, "high": high, "source": "; ".join(source)}, Bounds, strict=False)


def _example(row: _Quantity) -> Scalar:
    if row.kind in (QuantityKind.STATE, QuantityKind.TEXT):
        return row.example
    number: bool | int | float = msgspec.json.decode(row.example, type=bool | int | float)
    return number


QUANTITIES = _quantities()
"""All quantities by key."""

UNKNOWN_ACTION = "unknown"
"""An action in no table: the driver recommends an action that a later version of nodevet may know."""

RECOVERY_ACTIONS = tuple(word for word in QUANTITIES["recovery_action"].states if word != UNKNOWN_ACTION)

LARGEST_COUNT = 2**63 - 1
SHOWN_LETTERS = 100
"""Largest number of characters of an implausible value in a message."""
IMPLAUSIBLE = " is implausible: "
"""Marks the detail of a reading whose value was read and is implausible."""
NO_VALUE = "no value: "
"""Starts the detail of a reading for which a command printed no value, such as NaN."""

ONES = frozenset({2**32 - 1, 2**64 - 1})
"""Values of a field of 32 or 64 bits that is not filled, such as UINT_MAX in the metrics of a driver."""


def measured(reading: Reading) -> Reading:
    """Return *reading*, or a copy with status ``error`` where no device can have measured its value."""
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
    """Return why *value* is no measurement of the quantity, or None where it is plausible."""
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
    """Return whether *reading* is an error because of its value; a failed read is not."""
    is_odd = IMPLAUSIBLE in reading.detail or reading.detail.startswith(NO_VALUE)
    return reading.status is ReadingStatus.ERROR and is_odd


def _implausible(reading: Reading, why: str) -> Reading:
    value = reading.value
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:  # too many digits, which Python may refuse to print
        shown = f"a number of {value.bit_length()} bits"
    else:
        shown = repr(value)[:SHOWN_LETTERS]
    return Reading(reading.quantity, None, reading.part, ReadingStatus.ERROR, f"{shown}{IMPLAUSIBLE}{why}")
