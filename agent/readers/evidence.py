"""Evidence on a call that hangs: whether it leads to the driver.

The driver is blamed only for a call that waits for it, or in which its library computes or waits for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from .system_call import COMPUTES, Leads, Wait
from .witness import Other, ProcessStatus

ELSEWHERE = frozenset({Leads.FILE, Leads.PROGRAM})
NOBODY_KNOWS = frozenset({Leads.UNKNOWN, Leads.HIDDEN})
OF_PARTS = frozenset({Leads.INSIDE, Leads.UNSURE})
"""Waits that another thread of the library, or a program that it started, may end."""


class Cause(msgspec.Struct, frozen=True):
    """The wait that a call comes down to, and the thread or program whose wait it is; None: the call's own."""

    wait: Wait
    part: Other | None = None


THE_DRIVER = Cause(COMPUTES)


def other_cause(
    look: ProcessStatus, others: Mapping[Other, ProcessStatus], still: Collection[Other] | None = None
) -> Cause:
    """Return the wait that shows another cause than the driver, or that none is known; THE_DRIVER: the driver.

    *others* are the threads and child processes. One at rest is a cause only if no other one waits for the driver.
    *still* are those that have not run since the watch of the call began, all by default: a part that runs reads its
    device from time to time, and is no witness where there is another cause.
    """
    wait = look.wait
    if wait.leads not in OF_PARTS:
        return THE_DRIVER if wait.leads in (Leads.DRIVER, Leads.LIBRARY) else Cause(wait)
    resting = {other: status for other, status in others.items() if status.at_rest}
    working = {other: status for other, status in others.items() if not status.at_rest}
    if found := _first(working, ELSEWHERE | {Leads.UNSURE}):
        return found
    at_driver = [other for other, status in working.items() if status.wait.leads is Leads.DRIVER]
    if any(still is None or other in still for other in at_driver):
        return THE_DRIVER
    if found := _first(working, NOBODY_KNOWS) or _first(resting, ELSEWHERE | NOBODY_KNOWS | {Leads.UNSURE}):
        return found
    return Cause(wait) if wait.leads is Leads.UNSURE else THE_DRIVER


def _first(others: Mapping[Other, ProcessStatus], kinds: frozenset[Leads]) -> Cause | None:
    for other, status in others.items():
        if status.wait.leads in kinds:
            words = f"its part {other.name} (process {other.pid}), which it may wait for: {status.wait.words}"
            return Cause(Wait(status.wait.leads, words), other)
    return None
