"""Clocks held down: every combination of reasons is judged reason by reason."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import CONTROLLER, GPU, REASONS, bad, healthy, judge, of, reason

from nodevet.checks.core.model import Outcome, Part, Reading, ReadingStatus, Scalar

FAULTS = {"hardware_slowdown", "hardware_thermal", "power_brake"}
CHOSEN = {"applications_clocks", "sync_boost", "display_clocks"}
MUTANTS = {
    "a power cap is a fault": (
        "active and flag.part.name not in NORMAL",
        "active",
        "test_each_of_the_512_masks_is_judged_bit_by_bit",
    )
}
NO_TIMES: dict[tuple[str, Part], Scalar | Reading | None] = {
    ("throttle_seconds", reason(name)): None for name in ("hardware_thermal", "software_thermal", "power_cap")
}


def expected(name: str, *, active: bool) -> Outcome:
    """Return what the reason means on its own."""
    if name in CHOSEN:
        return Outcome.SKIPPED
    if not active or name in ("idle", "power_cap"):
        return Outcome.PASS
    return Outcome.FAIL if name in FAULTS else Outcome.WARN


def test_each_of_the_512_masks_is_judged_bit_by_bit() -> None:
    """No combination hides a fault in it or makes one of a harmless reason."""
    for mask in range(2 ** len(REASONS)):
        active = {name for bit, name in enumerate(REASONS) if mask >> bit & 1}
        flags = {("throttle_active", reason(name)): name in active for name in REASONS}
        findings = judge("throttle", healthy({**NO_TIMES, **flags}))
        told = {name: of(findings, f"throttle.{name}").outcome for name in REASONS}
        assert told == {name: expected(name, active=name in active) for name in REASONS}, f"mask {mask:#x}"


@pytest.mark.parametrize(
    ("name", "seconds", "outcome"),
    [
        ("hardware_thermal", 0.0, Outcome.PASS),
        ("hardware_thermal", 0.1, Outcome.PASS),
        ("hardware_thermal", 0.11, Outcome.FAIL),
        ("software_thermal", 0.0, Outcome.PASS),
        ("software_thermal", 2.0, Outcome.WARN),
        ("power_cap", 9.9, Outcome.PASS),
        ("processor_hot", 0.11, Outcome.FAIL),
        ("socket_thermal", 0.1, Outcome.PASS),
        ("socket_thermal", 0.11, Outcome.WARN),
        ("memory_thermal", 0.11, Outcome.WARN),
        ("regulator_thermal", 0.11, Outcome.WARN),
    ],
)
def test_counted_time_decides_above_one_percent(name: str, seconds: float, outcome: Outcome) -> None:
    """In ten seconds 0.1 s is the limit; a violation of 0.0 s never fails, although its flag may be set."""
    changes = {("throttle_active", reason(name)): True, ("throttle_seconds", reason(name)): 100.0}
    view = healthy(changes, {("throttle_seconds", reason(name)): seconds})
    finding = of(judge("throttle", view), f"throttle.{name}")
    assert finding.outcome is outcome
    assert outcome is Outcome.PASS or "check" in finding.message


def test_heat_that_is_counted_apart_is_not_told_twice() -> None:
    """NVML's older counter adds up what newer drivers count by kind: it is judged where it alone is there."""
    total = ("throttle_seconds", reason("vendor:thermal"))
    apart = ("throttle_seconds", reason("software_thermal"))
    hardware = ("throttle_seconds", reason("hardware_thermal"))
    both = healthy({total: 9.0}, growth={total: 2.0, apart: 2.0})
    told = [f.code for f in judge("throttle", both) if f.outcome is Outcome.WARN and f.device == GPU]
    assert told == ["throttle.software_thermal"]
    alone = healthy({total: 9.0, apart: None, hardware: None}, growth={total: 2.0})
    told = [f.code for f in judge("throttle", alone) if f.outcome is Outcome.WARN and f.device == GPU]
    assert told == ["throttle.thermal"]


def test_first_sample_is_judged_by_the_flag() -> None:
    """Before growth can be seen the flag of the moment decides."""
    view = healthy({("throttle_active", reason("hardware_thermal")): True})
    finding = of(judge("throttle", msgspec.structs.replace(view, growth={})), "throttle.hardware_thermal")
    assert (finding.outcome, finding.evidence) == (Outcome.FAIL, ("throttle_active",))


def test_unreadable_reason_is_unmeasured_although_its_other_reading_is_unsupported() -> None:
    """What could not be read says more than what does not exist."""
    part = reason("hardware_thermal")
    view = healthy(
        {
            ("throttle_seconds", part): bad("throttle_seconds", part, ReadingStatus.UNSUPPORTED),
            ("throttle_active", part): bad("throttle_active", part, ReadingStatus.DENIED),
        }
    )
    assert of(judge("throttle", view), "throttle.hardware_thermal").outcome is Outcome.UNMEASURED


@pytest.mark.parametrize(("events", "outcome"), [(0.0, Outcome.PASS), (1.0, Outcome.WARN)])
def test_processor_is_judged_by_the_events_that_the_kernel_counts(events: float, outcome: Outcome) -> None:
    """A count that stands still is history; one that grows is heat now."""
    view = healthy(host_growth={("throttle_events", reason("package")): events})
    assert of(judge("throttle", view), "throttle.package", CONTROLLER).outcome is outcome


@pytest.mark.parametrize(
    ("seconds", "events", "outcome"), [(0.0, 3.0, Outcome.PASS), (2.0, 0.0, Outcome.WARN), (None, 3.0, Outcome.WARN)]
)
def test_processor_that_counts_time_and_events_is_judged_once(
    seconds: float | None, events: float, outcome: Outcome
) -> None:
    """Two findings of one key would clear each other: the time decides, events only where it cannot be read."""
    part = reason("package")
    time = 60.0 if seconds is not None else bad("throttle_seconds", part, ReadingStatus.UNSUPPORTED)
    growth = {("throttle_events", part): events, ("throttle_seconds", part): seconds or 0.0}
    view = healthy(host={("throttle_seconds", part): time}, host_growth=growth)
    assert of(judge("throttle", view), "throttle.package", CONTROLLER).outcome is outcome
