"""How often what was told: counts of events by code and device, which outlive the findings that they raised.

An event of an application is no fault of the node and ends with its job; its count stays, so that one who looks at the
fleet can see a device on which many jobs fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodevet.checks.core.model import Event, EventCount
from nodevet.checks.reference.kernel_policy import told_code, told_policy

from .view import View

MAXIMUM_COUNTED = 100
"""So many pairs of code and device are counted; the ones that were not told for longest are given up."""

Counts = Mapping[tuple[str, str], EventCount]


def count_events(before: Counts, events: Iterable[Event], view: View) -> Counts:
    """Return *before* with *events* added, each on the device that *view* knows it belongs to."""
    counts = dict(before)
    for event in events:
        key = (told_code(event), view.owner(event))
        known = counts.pop(key, None)  # the latest stand last, whatever the wall clock said
        counts[key] = EventCount(
            code=key[0],
            device=key[1],
            fault_class=told_policy(event).fault_class,
            count=(known.count if known else 0) + 1,
            last=event.time,
        )
    return dict(list(counts.items())[-MAXIMUM_COUNTED:])
