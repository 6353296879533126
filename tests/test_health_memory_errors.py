"""Memory errors: hard where data was lost, measured where it was repaired."""

from __future__ import annotations

import pytest
from fakes.views import BAD, CONTROLLER, DRAM, bad, gpu, healthy, judge, of

from nodevet.checks.model import WHOLE, Action, Clearing, FaultClass, Outcome, Part, PartKind, ReadingStatus, Scalar
from nodevet.checks.quantities import RECOVERY_ACTIONS

PASS, WARN, FAIL = Outcome.PASS, Outcome.WARN, Outcome.FAIL


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


@pytest.mark.parametrize(("errors", "outcome"), [(0, PASS), (27, PASS), (28, WARN), (46_000, WARN)])
def test_corrected_errors_are_judged_by_their_rate(errors: float, outcome: Outcome) -> None:
    """In ten seconds 27 are below 10,000 per hour and 28 above; thousands per second are not overlooked."""
    finding = of(
        judge("memory-errors", healthy(growth={("ecc_corrected_errors", DRAM): errors})), "memory.corrected_rate"
    )
    assert (finding.outcome, finding.hard) == (outcome, False)


def test_corrected_errors_of_the_past_are_no_rate() -> None:
    """A high total that does not grow is well; uncorrected and corrected counts are never mixed up."""
    findings = judge("memory-errors", healthy({("ecc_corrected_errors", DRAM): 20_000_000}))
    assert of(findings, "memory.corrected_rate").outcome is PASS
    assert of(findings, "memory.uncorrected").outcome is PASS


@pytest.mark.parametrize(("errors", "outcome"), [(0.02, PASS), (1, WARN)])
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
