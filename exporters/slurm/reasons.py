"""The words that SLURM itself puts at a node, behind the reason that stands there or in its place. Pure.

They are no person's: a node that nodevet closed is not taken over by them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

import msgspec

from nodevet.checks.reference.tables import load_table

BETWEEN = " : "
"""Stands between a reason and what SLURM adds to it (set_node_reason)."""


class Words(msgspec.Struct, frozen=True):
    """Words of SLURM's own, as a pattern, and whether they stand alone, behind another reason, or both.

    Those that come ``first`` stand alone too, and only at a node that was not drained before.
    """

    words: str
    place: Literal["alone", "behind", "both", "first"]
    source: str


def without_additions(reason: str) -> str:
    """Return *reason* up to what SLURM added to it."""
    parts = reason.split(BETWEEN)
    while len(parts) > 1 and _are(parts[-1], "behind"):
        parts.pop()
    return BETWEEN.join(parts)


def is_slurms(reason: str) -> bool:
    """Return whether SLURM gave *reason* by itself; what a person added makes it theirs."""
    return _is_all(reason, "alone", "first")


def replaces_reasons(reason: str) -> bool:
    """Return whether SLURM puts *reason* also at a node that is drained, in the place of what stands there."""
    return _is_all(reason, "alone")


def _is_all(reason: str, *places: str) -> bool:
    # A node that registers less than its line says may lack several things.
    return all(_are(part, *places) for part in without_additions(reason).split(", "))


def _are(text: str, *places: str) -> bool:
    return any(fnmatchcase(text, row.words) for row in _table() if row.place in (*places, "both"))


@lru_cache(maxsize=1)
def _table() -> tuple[Words, ...]:
    return load_table("slurm_reasons.csv", Words)
