"""The words that SLURM itself puts at a node, behind the reason that stands there or in its place. Pure.

They are no person's: a node that nodevet closed is not taken over by them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

import msgspec

from nodevet.checks.reference.tables import load_table

__all__ = ["is_slurms", "without_additions"]

BETWEEN = " : "
"""Stands between a reason and what SLURM adds to it (set_node_reason)."""


class Words(msgspec.Struct, frozen=True):
    """Words of SLURM's own, as a pattern, and whether they stand alone, behind another reason, or both."""

    words: str
    place: Literal["alone", "behind", "both"]
    source: str


def without_additions(reason: str) -> str:
    """Return *reason* up to what SLURM added to it."""
    parts = reason.split(BETWEEN)
    while len(parts) > 1 and _are(parts[-1], "behind"):
        parts.pop()
    return BETWEEN.join(parts)


def is_slurms(reason: str) -> bool:
    """Return whether SLURM gave *reason* by itself; what a person added makes it theirs."""
    # A node that registers less than its line says may lack several things.
    return all(_are(part, "alone") for part in without_additions(reason).split(", "))


def _are(text: str, place: str) -> bool:
    return any(fnmatchcase(text, row.words) for row in _table() if row.place in (place, "both"))


@lru_cache(maxsize=1)
def _table() -> tuple[Words, ...]:
    return load_table("slurm_reasons.csv", Words)
