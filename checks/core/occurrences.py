"""What tells one occurrence of a fault from another: an event's stamp, a counter's value, the identity of a result."""

from __future__ import annotations

import re

SOURCES_APART_SECONDS = 5.0
"""Within this time two sources, the driver's interface and the kernel's log, tell the same fault."""

_STAMPED = re.compile(r"(?P<boot>.*):at (?P<stamp>\d{1,19})", re.ASCII | re.DOTALL)


def stamped(boot_id: str, stamp_us: int, *, is_of_log: bool = True) -> str:
    """Return the occurrence of what the kernel recorded at *stamp_us* of its own clock.

    What the driver itself told then, the log tells too, a little later at most: both are dealt with at once.
    """
    return f"{boot_id}:at {stamp_us if is_of_log else stamp_us + int(SOURCES_APART_SECONDS * 1e6)}"


def is_dealt_with(occurrence: str | None, settled: str | None) -> bool:
    """Return whether *occurrence* was dealt with when *settled* was: it is the same, or was recorded before it.

    A log that is read again tells all events of a fault, of which the last one alone is remembered.
    """
    if occurrence is None or settled is None:
        return False
    one, other = _STAMPED.fullmatch(occurrence), _STAMPED.fullmatch(settled)
    if one is None or other is None or one["boot"] != other["boot"]:
        return occurrence == settled
    return int(one["stamp"]) <= int(other["stamp"])


def is_ahead(occurrence: str, boottime_ns: int) -> bool:
    """Return whether *occurrence* has a stamp that is still to come: a virtual machine was set back to a snapshot.

    What a driver told a moment ago is stamped ahead by the time that the log may take to tell it, and no more.
    """
    found = _STAMPED.fullmatch(occurrence)
    return found is not None and int(found["stamp"]) * 1000 > boottime_ns + int(SOURCES_APART_SECONDS * 1e9)
