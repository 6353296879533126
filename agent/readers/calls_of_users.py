"""Calls into a driver that read what users write or leave about: how they go is up to users, not to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from nodevet.checks.reference.tables import load_table

__all__ = ["CallRow", "calls_of_users"]


class CallRow(msgspec.Struct, frozen=True):
    """A call, why users decide how long it takes (``meaning``), and why they can make it crash (``crash``)."""

    call: str
    meaning: str
    crash: str
    source: str


@lru_cache(maxsize=1)
def calls_of_users() -> Mapping[str, CallRow]:
    """Return the rows of reference/calls_of_users.csv by the name of the call."""
    return {row.call: row for row in load_table("calls_of_users.csv", CallRow)}
