"""Counts of events by code and device, which outlive their findings.

An application's event is no fault of the node and ends with its job; its count stays, so that an operator of the fleet
can see a device on which many jobs fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodevet.checks.core.model import Event, EventCount
from nodevet.checks.reference.kernel_policy import told_code, told_policy

from .view import View

MAXIMUM_COUNTED = 100
"""Limit of counted pairs of code and device; the least recently reported are dropped."""

Counts = Mapping[tuple[str, str], EventCount]


def count_events(before: Counts, events: Iterable[Event], view: View) -> Counts:
    """Return *before* with *events* added, each on its device in *view*."""
    counts = dict(before)
    for event in events:
        key = (told_code(event), view.owner(event))
        known = counts.pop(key, None)  # the latest are last, independent of the wall clock
        counts[key] = EventCount(
            code=key[0],
            device=key[1],
            fault_class=told_policy(event).fault_class,
            count=(known.count if known else 0) + 1,
            last=event.time,
        )
    return dict(list(counts.items())[-MAXIMUM_COUNTED:])
