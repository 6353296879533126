"""The source of a threshold, and the precedence of sources.

Precedence: configuration > baseline > profile > reported by the device > table. The device's own margin (T.Limit)
is no limit but a measured distance to one: checks use it before any absolute temperature.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from nodevet.checks.core.model import Limit

from .tables import load_table


class TableLimit(msgspec.Struct, frozen=True):
    """A row of reference/limits.csv."""

    key: str
    op: str
    value: float
    unit: str
    source: str


@lru_cache(maxsize=1)
def _table() -> dict[str, Limit]:
    rows = load_table("limits.csv", TableLimit)
    return {row.key: Limit(row.op, row.value, row.unit, f"table limits.csv {row.key}") for row in rows}


def from_table(key: str) -> Limit:
    """Return the limit *key* of reference/limits.csv."""
    return _table()[key]


def choose(
    key: str,
    *,
    configuration: float | None = None,
    baseline: float | None = None,
    profile: float | None = None,
    reported: float | None = None,
) -> Limit:
    """Return the limit in force for *key*: the first given value in order of precedence, else the table's."""
    fallback = from_table(key)
    candidates = (
        (configuration, "configuration"),
        (baseline, "baseline"),
        (profile, "profile"),
        (reported, "reported by the device"),
    )
    for value, source in candidates:
        if value is not None:
            return Limit(fallback.op, value, fallback.unit, source)
    return fallback
