"""Pages of device memory that were found bad: taken out of use, waiting for it, or beyond it.

A retired page is repaired as far as that goes: nothing uses it any more. The device keeps the list over reboots, and
its vendor says how long it may become.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.model import Action, Clearing, Finding, Limit, Outcome, ReadingStatus
from nodevet.checks.engine.judging import Observation, Rule, number_of
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.reuse import Asked, looked
from nodevet.checks.engine.view import View
from nodevet.checks.reference.vendors import vendor_of

PENDING = Rule(
    check="bad-pages",
    code="memory.bad_pages_pending",
    outcome=Outcome.WARN,
    action=Action.RESET_DEVICE,
    next_step="jobs may go on; reset the device when it is next idle, or reboot the node where it cannot be reset",
)
UNRESERVABLE = Rule(
    check="bad-pages",
    code="memory.bad_pages_unreservable",
    action=Action.REPLACE,
    clearing=Clearing.REPLACEMENT,
    next_step="the memory cannot be kept from use: have the board replaced",
)
THRESHOLD = Rule(
    check="bad-pages",
    code="memory.bad_pages_threshold",
    action=Action.REPLACE,
    clearing=Clearing.REPLACEMENT,
    next_step="the vendor replaces boards from there on: have the board replaced",
)


class BadPages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many bad pages a device may have; None takes what the device or its vendor says."""

    threshold: (
        Annotated[
            int,
            Meta(
                ge=1, description="Bad pages from which a board is replaced; unset: the device's own, or its vendor's."
            ),
        ]
        | None
    ) = None


@check(
    "bad-pages",
    policy=BadPages,
    inputs=("bad_pages_retired", "bad_pages_pending", "bad_pages_unreservable", "bad_pages_threshold"),
)
def judge(view: View, policy: BadPages) -> Iterator[Finding]:
    """Every bad page of device memory was taken out of use, and they are few."""
    for device in view.devices:
        yield from looked(view, _pages, device, policy)


def _pages(asked: Asked, policy: BadPages) -> Iterator[Finding]:
    """Judge the pages of one device."""
    for observation in asked.observations("bad_pages_pending"):
        yield PENDING.judge(observation, bool, _waiting)
    for observation in asked.observations("bad_pages_unreservable"):
        yield UNRESERVABLE.judge(
            observation, bool, lambda pages: f"{pages:.0f} bad memory pages cannot be taken out of use"
        )
    for observation in asked.observations("bad_pages_retired"):
        yield _threshold(asked, observation, policy)


def _waiting(pages: float) -> str:
    """Return how many pages wait: 1 is also what a driver says that does not count them."""
    return (
        f"{pages:.0f} bad memory pages wait to be taken out of use" if pages != 1 else "bad memory waits to be retired"
    )


def _threshold(asked: Asked, observation: Observation, policy: BadPages) -> Finding:
    unmeasured = THRESHOLD.unmeasured(observation)
    if unmeasured:
        return unmeasured
    pages = f"{observation.number:.0f} bad memory pages were taken out of use"
    told = asked.observations("bad_pages_threshold")
    reported = number_of(told, observation.part)
    if policy.threshold is not None:
        limit = Limit(">=", policy.threshold, "", "configuration")
        return THRESHOLD.against(observation, observation.number, limit, f"{pages}, limit {limit.value:.0f}")
    by_vendor = vendor_of(asked.device.vendor).retired_pages_limit
    is_told = any(other.reading.status is not ReadingStatus.UNSUPPORTED for other in told)
    if by_vendor is not None and not is_told:
        limit = Limit(">=", by_vendor, "", "table")
        return THRESHOLD.against(observation, observation.number, limit, f"{pages}, limit {limit.value:.0f}")
    if reported is None or reported.number is None:
        return THRESHOLD.unmeasured(*told) or THRESHOLD.skip(
            observation, f"{pages}; how many there may be is not known"
        )
    limit = Limit(">=", reported.number, "", "reported by the device")
    return THRESHOLD.against(
        observation, observation.number, limit, f"{pages}, limit {limit.value:.0f}", beside=(reported,)
    )
