"""The reasons that SLURM itself writes at a node, after or in place of an existing reason. Pure functions.

They are not a person's: a node that nodevet closed is not taken over by them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

import msgspec

from nodevet.checks.reference.tables import load_table

BETWEEN = " : "
"""Separator between a reason and SLURM's addition (set_node_reason)."""


class Words(msgspec.Struct, frozen=True):
    """A pattern of SLURM's own reason, and whether it stands alone, after another reason, or both.

    A ``first`` reason stands alone too, and only at a node that was not drained before.
    """

    words: str
    place: Literal["alone", "behind", "both", "first"]
    source: str


def without_additions(reason: str) -> str:
    """Return *reason* without SLURM's additions."""
    parts = reason.split(BETWEEN)
    while len(parts) > 1 and _are(parts[-1], "behind"):
        parts.pop()
    return BETWEEN.join(parts)


def is_slurms(reason: str) -> bool:
    """Return whether SLURM itself gave *reason*; an addition of a person makes it theirs."""
    return _is_all(reason, "alone", "first")


def replaces_reasons(reason: str) -> bool:
    """Return whether SLURM also writes *reason* at a drained node, in place of the existing reason."""
    return _is_all(reason, "alone")


def _is_all(reason: str, *places: str) -> bool:
    # A node that registers with fewer resources than configured may lack several of them.
    return all(_are(part, *places) for part in without_additions(reason).split(", "))


def _are(text: str, *places: str) -> bool:
    return any(fnmatchcase(text, row.words) for row in _table() if row.place in (*places, "both"))


@lru_cache(maxsize=1)
def _table() -> tuple[Words, ...]:
    return load_table("slurm_reasons.csv", Words)
