"""Bad pages of device memory: retired, pending retirement, or impossible to retire.

A retired page is no longer used. The device keeps the list over reboots, and its vendor limits the length of the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from nodevet.checks.core.counts import count_of
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
    next_step="jobs may continue; reset the device when it is idle, or reboot the node if the device has no reset",
)
UNRESERVABLE = Rule(
    check="bad-pages",
    code="memory.bad_pages_unreservable",
    action=Action.REPLACE,
    clearing=Clearing.REPLACEMENT,
    next_step="have the board replaced",
)
THRESHOLD = Rule(
    check="bad-pages",
    code="memory.bad_pages_threshold",
    action=Action.REPLACE,
    clearing=Clearing.REPLACEMENT,
    next_step="the board qualifies for replacement: have it replaced",
)


class BadPages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limit of bad pages; None takes the limit of the device or its vendor."""

    threshold: (
        Annotated[
            int,
            Meta(
                ge=1,
                description="Retired pages that qualify a board for replacement; unset: limit of device or vendor.",
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
    """Every bad page of device memory is retired, and the number of retired pages is below the threshold."""
    for device in view.devices:
        yield from looked(view, _pages, device, policy)


def _pages(asked: Asked, policy: BadPages) -> Iterator[Finding]:
    """Judge the pages of one device."""
    for observation in asked.observations("bad_pages_pending"):
        yield PENDING.judge(observation, bool, _waiting)
    for observation in asked.observations("bad_pages_unreservable"):
        yield UNRESERVABLE.judge(observation, bool, _unreservable)
    for observation in asked.observations("bad_pages_retired"):
        yield _threshold(asked, observation, policy)


def _unreservable(pages: float) -> str:
    return f"{count_of(pages, 'bad memory page')} cannot be retired"


def _waiting(pages: float) -> str:
    """Return how many pages are pending; a driver that does not count them reports 1."""
    return (
        f"{pages:.0f} bad memory pages are pending retirement" if pages != 1 else "retirement of bad memory is pending"
    )


def _threshold(asked: Asked, observation: Observation, policy: BadPages) -> Finding:
    unmeasured = THRESHOLD.unmeasured(observation)
    if unmeasured:
        return unmeasured
    assert observation.number is not None
    pages = count_of(observation.number, "retired memory page")
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
        return THRESHOLD.unmeasured(*told) or THRESHOLD.skip(observation, f"{pages}; no threshold is known")
    limit = Limit(">=", reported.number, "", "reported by the device")
    return THRESHOLD.against(
        observation, observation.number, limit, f"{pages}, limit {limit.value:.0f}", beside=(reported,)
    )
