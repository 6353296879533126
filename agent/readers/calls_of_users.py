"""Driver calls that read data of users: their duration and outcome depend on users, not on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from nodevet.checks.reference.limits import from_table
from nodevet.checks.reference.tables import load_table

LEFT_OUT_SECONDS = from_table("reader.left_out").value
"""Retry interval, in seconds, of a user-dependent call that ended its reader: the user's program may have exited."""


class CallRow(msgspec.Struct, frozen=True):
    """A call, why users determine its duration (``meaning``), and why they can make it crash (``crash``)."""

    call: str
    meaning: str
    crash: str
    source: str


@lru_cache(maxsize=1)
def calls_of_users() -> Mapping[str, CallRow]:
    """Return the rows of reference/calls_of_users.csv by the name of the call."""
    return {row.call: row for row in load_table("calls_of_users.csv", CallRow)}


def meaning_of_users(call: str) -> str:
    """Return why users determine the duration of *call*; empty if they do not."""
    row = calls_of_users().get(call.partition(" ")[0])
    return row.meaning if row is not None else ""


class LeftOut:
    """User-dependent calls that ended their reader: they are omitted for a while, so that devices are still read."""

    def __init__(self) -> None:
        """Start without any."""
        self._until: dict[str, float] = {}

    def note(self, call: str, now: float) -> bool:
        """Omit *call*, which ended its reader, from now on; return whether it is a user-dependent call."""
        name = call.partition(" ")[0]
        if name not in calls_of_users():
            return False
        self._until[name] = now + LEFT_OUT_SECONDS
        return True

    def try_again(self, now: float) -> bool:
        """Enable the calls whose retry time has come; return whether there are any."""
        due = [name for name, until in self._until.items() if until <= now]
        for name in due:
            del self._until[name]
        return bool(due)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the omitted calls."""
        return tuple(self._until)

    @property
    def next_deadline(self) -> float | None:
        """Return the time of the next retry."""
        return min(self._until.values(), default=None)
