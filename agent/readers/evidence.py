"""Evidence on a call that hangs: whether it leads to the driver.

The driver is blamed only for a call that waits for it, or in which its library computes, sleeps or waits for itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from .system_call import COMPUTES, Leads, Wait
from .witness import Other, ProcessStatus

ELSEWHERE = frozenset({Leads.FILE, Leads.PROGRAM})
NOBODY_KNOWS = frozenset({Leads.UNKNOWN, Leads.HIDDEN})


def other_cause(
    look: ProcessStatus, others: Mapping[Other, ProcessStatus], opened: frozenset[str] = frozenset()
) -> Wait:
    """Return the wait that shows another cause than the driver, or that none is known; COMPUTES: the driver.

    *others* are the threads and child processes that are not at rest, *opened* the sockets that the call has opened.
    """
    wait = look.wait
    if wait.leads is Leads.LIBRARY and opened:
        words = "it computes or sleeps with a socket that it opened in this call; check the daemons of the driver"
        return Wait(Leads.PROGRAM, words)
    if wait.leads not in (Leads.INSIDE, Leads.PROGRAM):
        return COMPUTES if wait.leads in (Leads.DRIVER, Leads.LIBRARY) else wait
    found = {other: status.wait for other, status in others.items()}
    for kinds in (ELSEWHERE, NOBODY_KNOWS):
        for other, its in found.items():
            if its.leads in kinds:
                return Wait(its.leads, f"{other.name} (process {other.pid}), which it may wait for: {its.words}")
        if any(its.leads is Leads.DRIVER for its in found.values()):
            return COMPUTES
    return wait if wait.leads is Leads.PROGRAM else COMPUTES
