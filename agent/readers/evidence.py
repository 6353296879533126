"""Evidence on a call that hangs: whether it leads to the driver.

The driver is blamed only for a call that waits for it, or in which its library computes or waits for itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from .system_call import COMPUTES, Leads, Wait
from .witness import Other, ProcessStatus

ELSEWHERE = frozenset({Leads.FILE, Leads.PROGRAM})
NOBODY_KNOWS = frozenset({Leads.UNKNOWN, Leads.HIDDEN})
OF_PARTS = frozenset({Leads.INSIDE, Leads.PROGRAM})
"""Waits that another thread of the library, or a program that it started, may end."""


def other_cause(look: ProcessStatus, others: Mapping[Other, ProcessStatus]) -> Wait:
    """Return the wait that shows another cause than the driver, or that none is known; COMPUTES: the driver.

    *others* are the threads and child processes. One at rest is a cause only if no other one waits for the driver.
    """
    wait = look.wait
    if wait.leads not in OF_PARTS:
        return COMPUTES if wait.leads in (Leads.DRIVER, Leads.LIBRARY) else wait
    resting = {other: status for other, status in others.items() if status.at_rest}
    working = {other: status for other, status in others.items() if not status.at_rest}
    if found := _first(working, ELSEWHERE):
        return found
    if any(status.wait.leads is Leads.DRIVER for status in working.values()):
        return COMPUTES
    if found := _first(working, NOBODY_KNOWS) or _first(resting, ELSEWHERE | NOBODY_KNOWS):
        return found
    return wait if wait.leads is Leads.PROGRAM else COMPUTES


def _first(others: Mapping[Other, ProcessStatus], kinds: frozenset[Leads]) -> Wait | None:
    for other, status in others.items():
        if status.wait.leads in kinds:
            words = f"its part {other.name} (process {other.pid}), which it may wait for: {status.wait.words}"
            return Wait(status.wait.leads, words)
    return None
