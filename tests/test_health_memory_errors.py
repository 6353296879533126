"""Memory errors: hard where data was lost, measured where it was repaired."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import BAD, CONTROLLER, DRAM, GPU, at, bad, gpu, healthy, judge, of

from nodevet.checks.core.model import (
    WHOLE,
    Action,
    Clearing,
    FaultClass,
    Outcome,
    Part,
    PartKind,
    ReadingStatus,
    Scalar,
)
from nodevet.checks.core.quantities import RECOVERY_ACTIONS
from nodevet.checks.engine.hours import Hours
from nodevet.checks.engine.view import Growth

PASS, WARN, FAIL = Outcome.PASS, Outcome.WARN, Outcome.FAIL

MUTANTS = {
    "a burst of corrected errors is a rate": (
        "return enough.holds(growth.amount) and limit.holds(",
        "return limit.holds(",
        "test_few_errors_count_by_the_hour",
    )
}


@pytest.mark.parametrize(
    ("code", "quantity", "part", "value", "outcome", "action", "clearing"),
    [
        ("memory.uncorrected", "ecc_uncorrected_errors", DRAM, 1, FAIL, Action.DRAIN_RESET, Clearing.HARDWARE_EVENT),
        ("memory.deferred", "ecc_deferred_errors", DRAM, 1, WARN, Action.RESET_DEVICE, Clearing.CONDITION),
        ("memory.row_remap_failed", "row_remap_failed", WHOLE, True, FAIL, Action.REPLACE, Clearing.REPLACEMENT),
        ("memory.row_remap_pending", "row_remap_pending", WHOLE, True, WARN, Action.RESET_DEVICE, Clearing.CONDITION),
        ("memory.ecc_disabled", "ecc_enabled", WHOLE, False, WARN, Action.INSPECT, Clearing.CONDITION),
        (
            "memory.banks_without_spares",
            "row_remap_banks_without_spares",
            WHOLE,
            2,
            WARN,
            Action.WATCH,
            Clearing.CONDITION,
        ),
        (
            "memory.sram_threshold",
            "ecc_sram_threshold_exceeded",
            WHOLE,
            True,
            FAIL,
            Action.REPLACE,
            Clearing.REPLACEMENT,
        ),
        (
            "memory.recovery_action",
            "recovery_action",
            WHOLE,
            "drain_reset",
            FAIL,
            Action.DRAIN_RESET,
            Clearing.CONDITION,
        ),
    ],
)
def test_fault_is_hard_and_its_healthy_twin_passes(
    code: str, quantity: str, part: Part, value: Scalar, outcome: Outcome, action: Action, clearing: Clearing
) -> None:
    """One look is enough; the same key passes on the healthy node, else it could never clear."""
    finding = of(judge("memory-errors", healthy({(quantity, part): value})), code)
    assert (finding.outcome, finding.action, finding.clearing, finding.hard) == (outcome, action, clearing, True)
    twin = of(judge("memory-errors", healthy()), code)
    assert (twin.outcome, twin.key, twin.action) == (PASS, finding.key, Action.NONE)
    for status in BAD:
        missing = of(judge("memory-errors", healthy({(quantity, part): bad(quantity, part, status)})), code)
        unsupported = status is ReadingStatus.UNSUPPORTED
        assert missing.outcome is (Outcome.SKIPPED if unsupported else Outcome.UNMEASURED)
        assert missing.key == finding.key


def test_error_correction_that_is_off_names_the_command_and_the_class() -> None:
    """Somebody turned it off: no fault of the board, and the message says how it is turned on."""
    finding = of(judge("memory-errors", healthy({("ecc_enabled", WHOLE): False})), "memory.ecc_disabled")
    assert finding.fault_class is FaultClass.CONFIGURATION
    assert "nvidia-smi -e 1" in finding.message
    assert "reboot" in finding.message


def test_board_that_need_not_count_memory_errors_may_have_error_correction_off() -> None:
    """Workstation boards ship so."""
    view = healthy({("ecc_enabled", WHOLE): False}, device=gpu(model="NVIDIA RTX A5000"))
    assert of(judge("memory-errors", view), "memory.ecc_disabled").outcome is Outcome.SKIPPED


def test_an_action_that_no_table_knows_is_not_nothing() -> None:
    """A driver of tomorrow asks for something: the device is degraded, and nobody is told to reset or reboot."""
    finding = of(judge("memory-errors", healthy({("recovery_action", WHOLE): "unknown"})), "memory.recovery_action")
    assert (finding.outcome, finding.action, finding.hard) == (WARN, Action.INSPECT, False)


@pytest.mark.parametrize("asked", RECOVERY_ACTIONS)
def test_every_recovery_action_means_something(asked: str) -> None:
    """Only ``none`` passes; each other action of the driver asks a person to do something."""
    finding = of(judge("memory-errors", healthy({("recovery_action", WHOLE): asked})), "memory.recovery_action")
    assert (finding.outcome is PASS) is (asked == "none")
    assert (finding.action is Action.NONE) is (asked == "none")
    assert finding.outcome is (WARN if asked in ("drain_peer_to_peer", "recover_imex_domain") else finding.outcome)


def test_count_of_uncorrected_errors_tells_new_from_old() -> None:
    """The same count after another look is the same occurrence; a higher one is new."""
    one, again, two = (
        of(judge("memory-errors", healthy({("ecc_uncorrected_errors", DRAM): count})), "memory.uncorrected").occurrence
        for count in (1, 1, 2)
    )
    assert one == again != two


@pytest.mark.parametrize(("errors", "outcome"), [(0, PASS), (28, PASS), (99, PASS), (100, WARN), (46_000, WARN)])
def test_corrected_errors_are_judged_by_their_rate(errors: float, outcome: Outcome) -> None:
    """Fewer than a hundred between two looks are no rate, however short the time; thousands are not overlooked."""
    finding = of(
        judge("memory-errors", healthy(growth={("ecc_corrected_errors", DRAM): errors})), "memory.corrected_rate"
    )
    assert (finding.outcome, finding.hard) == (outcome, False)


DRAM_OF_GPU = (GPU, "ecc_corrected_errors", DRAM)


@pytest.mark.parametrize(
    ("seconds", "amount", "rounds", "outcome"),
    [
        (2, 7, 10, PASS),  # 21 in six seconds, and seventy in twenty
        (10, 20, 360, PASS),  # 7,200 within the hour
        (10, 60, 360, WARN),  # 21,600 within the hour, and never a hundred at once
        (10, 60, 100, PASS),  # 6,000 so far
        (10, 2, 720, PASS),
    ],
)
def test_few_errors_count_by_the_hour(seconds: int, amount: int, rounds: int, outcome: Outcome) -> None:
    """A burst is no rate, and a rate that stays low for each look is seen within the hour."""
    hours, growth = Hours(), None
    for number in range(rounds):
        within = hours.grown(DRAM_OF_GPU, number * amount, at(number * seconds))
        growth = Growth(amount, seconds, at(), within)
    assert growth is not None
    view = healthy()
    view = msgspec.structs.replace(view, growth={**view.growth, (GPU, "ecc_corrected_errors", DRAM): growth})
    assert of(judge("memory-errors", view), "memory.corrected_rate").outcome is outcome


def test_the_hour_begins_anew_with_the_counter() -> None:
    """A reset, another boot and a long silence leave nothing of what was counted before; a halt ends it."""
    hours = Hours()
    growing = ((5, 0), (9, 100), (20, 1800), (21, 1900))
    assert [hours.grown(DRAM_OF_GPU, value, at(seconds)) for value, seconds in growing] == [0, 4, 15, 16]
    assert hours.grown(DRAM_OF_GPU, 3, at(2000)) == 0
    assert hours.grown(DRAM_OF_GPU, 8, at(2100)) == 5
    assert hours.grown(DRAM_OF_GPU, 8, at(2219)) == 5
    assert hours.grown(DRAM_OF_GPU, 8, at(2220)) == 0
    assert hours.grown(DRAM_OF_GPU, 9, at(2290)) == 6
    assert hours.grown(DRAM_OF_GPU, 10, at(2300, boot="another")) == 0
    assert hours.grown(DRAM_OF_GPU, 99, at(9200, boot="another")) == 0


@pytest.mark.parametrize(("per_hour", "is_over"), [(9_990, False), (11_000, True), (15_000, True)])
@pytest.mark.parametrize("seconds", [2, 10, 60])
def test_steady_rate_is_over_its_limit_always_or_never(per_hour: int, is_over: bool, seconds: int) -> None:
    """A window that shrinks to half an hour saw 15,000 errors per hour in one half and not in the other."""
    assert {amount > 10_000 for amount in settled(per_hour, seconds)} == {is_over}


@pytest.mark.parametrize("seconds", [119, 290, 299, 300, 301, 600, 1799, 3599, 3600, 3601])
def test_never_more_than_an_hour_is_counted(seconds: int) -> None:
    """However seldom the counter is read: what grew between two looks may have grown at the beginning."""
    assert max(settled(10_000, seconds)) <= 10_000


def settled(per_hour: int, seconds: int) -> list[float]:
    """Return what is counted of a steady rate in each look of the second to the fifth hour."""
    hours = Hours()
    looks = range(0, 5 * 3600, seconds)
    counted = [hours.grown(DRAM_OF_GPU, per_hour * now // 3600, at(now)) for now in looks]
    return [amount for now, amount in zip(looks, counted, strict=True) if now > 3600]


def test_the_hour_goes_over_a_restart() -> None:
    """An agent that is restarted each ten minutes counts as one that never was; another boot begins anew."""
    whole, cut = Hours(), Hours()
    seen = []
    for minute in range(120):
        if minute % 10 == 0:
            cut = Hours(cut.kept)
        value, time = 250.0 * minute, at(60 * minute)
        seen.append(cut.grown(DRAM_OF_GPU, value, time))
        assert seen[-1] == whole.grown(DRAM_OF_GPU, value, time)
    assert max(seen) > 10_000
    assert Hours(cut.kept).grown(DRAM_OF_GPU, 250.0 * 119 + 9, at(60, boot="another")) == 0


def test_corrected_errors_of_the_past_are_no_rate() -> None:
    """A high total that does not grow is well; uncorrected and corrected counts are never mixed up."""
    findings = judge("memory-errors", healthy({("ecc_corrected_errors", DRAM): 20_000_000}))
    assert of(findings, "memory.corrected_rate").outcome is PASS
    assert of(findings, "memory.uncorrected").outcome is PASS


@pytest.mark.parametrize(("errors", "outcome"), [(0, PASS), (1, PASS), (9, PASS), (10, WARN)])
def test_host_memory_has_its_own_rate(errors: float, outcome: Outcome) -> None:
    """A memory controller may have nine corrected errors per hour."""
    part = Part(PartKind.MEMORY_BLOCK, "controller", 0)
    findings = judge("memory-errors", healthy(host_growth={("ecc_corrected_errors", part): errors}))
    assert of(findings, "memory.corrected_rate", CONTROLLER).outcome is outcome


def test_host_memory_with_uncorrected_errors_is_inspected() -> None:
    """No reset repairs a memory module."""
    part = Part(PartKind.MEMORY_BLOCK, "controller", 0)
    finding = of(
        judge("memory-errors", healthy(host={("ecc_uncorrected_errors", part): 1})), "memory.uncorrected", CONTROLLER
    )
    assert (finding.outcome, finding.action) == (FAIL, Action.INSPECT)
