"""Calls into a driver that read what users write or leave about: how they go is up to users, not to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from nodevet.checks.reference.limits import from_table
from nodevet.checks.reference.tables import load_table

LEFT_OUT_SECONDS = from_table("reader.left_out").value
"""A call that users brought down is made again after so long: their program may have ended."""


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


def meaning_of_users(call: str) -> str:
    """Return why users decide how long *call* takes; empty where they do not."""
    row = calls_of_users().get(call.partition(" ")[0])
    return row.meaning if row is not None else ""


class LeftOut:
    """The calls of users that brought their reader down: they are left out for a while, so that boards stay read."""

    def __init__(self) -> None:
        """Begin without any."""
        self._until: dict[str, float] = {}

    def note(self, call: str, now: float) -> bool:
        """Leave *call*, which brought its reader down, out from now on; return whether it is one of those of users."""
        name = call.partition(" ")[0]
        if name not in calls_of_users():
            return False
        self._until[name] = now + LEFT_OUT_SECONDS
        return True

    def try_again(self, now: float) -> bool:
        """Let the calls whose time has come be made again; return whether there are any."""
        due = [name for name, until in self._until.items() if until <= now]
        for name in due:
            del self._until[name]
        return bool(due)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the calls that are left out."""
        return tuple(self._until)

    @property
    def next_deadline(self) -> float | None:
        """Return when the next one may be made again."""
        return min(self._until.values(), default=None)
