"""Identity of one occurrence of a fault: an event's time stamp, a counter's value or the identity of a result."""

from __future__ import annotations

import re

SOURCES_APART_SECONDS = 5.0
"""Two sources, the driver's interface and the kernel log, report the same fault within this time."""

_STAMPED = re.compile(r"(?P<boot>.*):at (?P<stamp>\d{1,19})", re.ASCII | re.DOTALL)


def stamped(boot_id: str, stamp_us: int, *, is_of_log: bool = True) -> str:
    """Return the occurrence of a kernel record at *stamp_us*, microseconds of the kernel log clock.

    A driver's own report appears in the log at most a little later; settling one settles both.
    """
    return f"{boot_id}:at {stamp_us if is_of_log else stamp_us + int(SOURCES_APART_SECONDS * 1e6)}"


def is_dealt_with(occurrence: str | None, settled: str | None) -> bool:
    """Return whether settling *settled* settles *occurrence* too: it is the same, or was recorded earlier.

    A log that is read again repeats all events of a fault, and only the last one is remembered.
    """
    if occurrence is None or settled is None:
        return False
    one, other = _STAMPED.fullmatch(occurrence), _STAMPED.fullmatch(settled)
    if one is None or other is None or one["boot"] != other["boot"]:
        return occurrence == settled
    return int(one["stamp"]) <= int(other["stamp"])


def is_ahead(occurrence: str, boottime_ns: int) -> bool:
    """Return whether the stamp of *occurrence* lies in the future: a virtual machine was set back to a snapshot.

    A driver's report is stamped ahead by the time that the log may take to repeat it, and no more.
    """
    found = _STAMPED.fullmatch(occurrence)
    return found is not None and int(found["stamp"]) * 1000 > boottime_ns + int(SOURCES_APART_SECONDS * 1e9)
