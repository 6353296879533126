"""Bad pages of device memory: waiting is a warning, no room left for them is the end of the board."""

from __future__ import annotations

import pytest
from fakes.views import BAD, bad, healthy, judge, of

from nodevet.checks.model import WHOLE, Action, Clearing, Outcome, ReadingStatus

PASS, WARN, FAIL, SKIPPED = Outcome.PASS, Outcome.WARN, Outcome.FAIL, Outcome.SKIPPED


@pytest.mark.parametrize(
    ("code", "quantity", "pages", "outcome", "action", "clearing"),
    [
        ("memory.bad_pages_pending", "bad_pages_pending", 1, WARN, Action.RESET_DEVICE, Clearing.CONDITION),
        ("memory.bad_pages_unreservable", "bad_pages_unreservable", 1, FAIL, Action.REPLACE, Clearing.REPLACEMENT),
        ("memory.bad_pages_threshold", "bad_pages_retired", 128, FAIL, Action.REPLACE, Clearing.REPLACEMENT),
    ],
)
def test_fault_is_hard_and_its_healthy_twin_passes(
    code: str, quantity: str, pages: int, outcome: Outcome, action: Action, clearing: Clearing
) -> None:
    """One look is enough; the same key passes on the healthy node, and nothing passes that could not be read."""
    finding = of(judge("bad-pages", healthy({(quantity, WHOLE): pages})), code)
    assert (finding.outcome, finding.action, finding.clearing, finding.hard) == (outcome, action, clearing, True)
    twin = of(judge("bad-pages", healthy()), code)
    assert (twin.outcome, twin.key, twin.action) == (PASS, finding.key, Action.NONE)
    for status in BAD:
        missing = of(judge("bad-pages", healthy({(quantity, WHOLE): bad(quantity, WHOLE, status)})), code)
        assert missing.outcome is (SKIPPED if status is ReadingStatus.UNSUPPORTED else Outcome.UNMEASURED)


@pytest.mark.parametrize(("pages", "outcome"), [(0, PASS), (127, PASS), (128, FAIL), (129, FAIL)])
def test_threshold_is_the_one_that_the_device_reports(pages: int, outcome: Outcome) -> None:
    """The vendor replaces a board at its threshold, not beyond it."""
    finding = of(judge("bad-pages", healthy({("bad_pages_retired", WHOLE): pages})), "memory.bad_pages_threshold")
    assert finding.outcome is outcome
    assert finding.limit is not None
    assert (finding.limit.value, finding.limit.source) == (128, "reported by the device")


def test_site_may_replace_sooner_than_the_vendor() -> None:
    """The configuration comes before what the device reports."""
    view = healthy({("bad_pages_retired", WHOLE): 16})
    finding = of(judge("bad-pages", view, threshold=16), "memory.bad_pages_threshold")
    assert (finding.outcome, finding.limit.source if finding.limit else "") == (FAIL, "configuration")


def test_board_that_names_no_threshold_is_not_judged_by_one() -> None:
    """Retired pages alone are repaired memory."""
    none = bad("bad_pages_threshold", WHOLE, ReadingStatus.UNSUPPORTED)
    view = healthy({("bad_pages_retired", WHOLE): 900, ("bad_pages_threshold", WHOLE): none})
    assert of(judge("bad-pages", view), "memory.bad_pages_threshold").outcome is SKIPPED
