"""Bad pages of device memory: waiting is a warning, no room left for them is the end of the board."""

from __future__ import annotations

import pytest
from fakes.nvml.scenario import FakeNvml
from fakes.rig import Rig
from fakes.views import BAD, bad, gpu, healthy, judge, of

from nodevet.checks.backends.nvidia.items import slow_items
from nodevet.checks.backends.nvidia.nvml import _STRUCTURED, Call
from nodevet.checks.core.model import WHOLE, Action, Clearing, Outcome, ReadingStatus

PASS, WARN, FAIL, SKIPPED = Outcome.PASS, Outcome.WARN, Outcome.FAIL, Outcome.SKIPPED

MUTANTS = {
    "a board without a threshold of its own may retire any number of pages": (
        "if by_vendor is not None and not is_told:",
        "if False:",
        "test_board_that_names_no_threshold_is_judged_by_that_of_its_vendor",
    )
}


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


@pytest.mark.parametrize(("pages", "outcome"), [(0, PASS), (59, PASS), (60, FAIL), (64, FAIL)])
def test_board_that_names_no_threshold_is_judged_by_that_of_its_vendor(pages: int, outcome: Outcome) -> None:
    """NVIDIA takes boards back from 60 retired pages on; of a vendor that says nothing they are repaired memory."""
    for none in (bad("bad_pages_threshold", WHOLE, ReadingStatus.UNSUPPORTED), None):
        readings = {("bad_pages_retired", WHOLE): pages, ("bad_pages_threshold", WHOLE): none}
        finding = of(judge("bad-pages", healthy(readings)), "memory.bad_pages_threshold")
        assert finding.outcome is outcome
        assert finding.limit is not None
        assert (finding.limit.value, finding.limit.source) == (60, "table")
        other = of(judge("bad-pages", healthy(readings, device=gpu(vendor="acme"))), "memory.bad_pages_threshold")
        assert other.outcome is SKIPPED


@pytest.mark.parametrize(
    ("answers", "codes"),
    [
        ({"retired_pages_corrected": 3, "retired_pages_uncorrectable": 2, "retired_pages_pending": 0}, set()),
        ({"retired_pages_corrected": 0, "retired_pages_uncorrectable": 0, "retired_pages_pending": 0}, set()),
        ({"retired_pages_pending": 1}, {"memory.bad_pages_pending"}),
        ({"retired_pages_corrected": 45, "retired_pages_uncorrectable": 15}, {"memory.bad_pages_threshold"}),
        ({}, set()),
    ],
)
def test_retired_pages_of_a_board_before_ampere_are_read(
    fake_nvml: FakeNvml, answers: dict[str, int], codes: set[str]
) -> None:
    """Of both causes together; a board that repairs rows does not know the question."""
    fake_nvml.update({f"{key}.3": value for key, value in answers.items()})
    with Rig(fake_nvml) as rig:
        snapshot = rig.look(3)
    assert {entry.key.code for entry in snapshot.episodes} == codes
    told = {
        entry.quantity: entry.value
        for sample in snapshot.samples
        if sample.device == fake_nvml.uuid(3)
        for entry in sample.readings
        if entry.quantity in ("bad_pages_retired", "bad_pages_pending")
    }
    both = {"retired_pages_corrected", "retired_pages_uncorrectable"} <= set(answers)
    pages = answers["retired_pages_corrected"] + answers["retired_pages_uncorrectable"] if both else None
    assert told.get("bad_pages_retired") == pages
    assert told.get("bad_pages_pending") == answers.get("retired_pages_pending")
    for finding in (entry.finding for entry in snapshot.episodes):
        assert finding.action is (Action.REPLACE if "threshold" in finding.code else Action.RESET_DEVICE)
        assert "reset the device" in finding.message or "replaced" in finding.message


class Wrapper:
    """NVIDIA's wrapper on a board with two pages of one cause and one of the other."""

    @staticmethod
    def nvmlDeviceGetRetiredPages(_handle: object, cause: int) -> list[int]:  # noqa: N802
        """Return the addresses of the pages of *cause*."""
        return [[0x1000, 0x2000], [0x3000]][cause]


def test_retired_pages_of_both_causes_are_asked_for_and_counted_together() -> None:
    """And that some wait is told without their number."""
    items = {item.quantity: item for item in slow_items(0)}
    (count,), (pending,) = items["bad_pages_retired"].sources, items["bad_pages_pending"].sources
    assert (count, pending) == (Call("nvmlDeviceGetRetiredPages"), Call("nvmlDeviceGetRetiredPagesPendingStatus"))
    assert _STRUCTURED["nvmlDeviceGetRetiredPages"](Wrapper)(None) == 3
    assert [items["bad_pages_pending"].convert(told) for told in (0, 1)] == [0, 1]
