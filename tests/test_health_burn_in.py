"""Results of verified workloads: one wrong bit fails, and what was not verified proves nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fakes.views import GPU, burn_in, healthy, judge, of

from nodevet.checks.core.model import Action, Clearing, Outcome, ResultState

PASS, FAIL, UNMEASURED, SKIPPED = Outcome.PASS, Outcome.FAIL, Outcome.UNMEASURED, Outcome.SKIPPED


def test_verified_result_passes() -> None:
    """Healthy twin of all below."""
    findings = judge("burn-in", healthy())
    assert {f.outcome for f in findings if f.device == GPU} == {PASS}


def test_wrong_result_is_a_hard_fault_of_the_hardware() -> None:
    """One of five thousand is enough, and only a passed re-test ends it."""
    findings = judge("burn-in", healthy(results=(burn_in(mismatches=1),)))
    finding = of(findings, "burnin.mismatch")
    assert (finding.outcome, finding.hard, finding.clearing) == (FAIL, True, Clearing.WRONG_RESULT)
    assert (finding.action, finding.value) == (Action.INSPECT, 1)
    assert finding.occurrence


@pytest.mark.parametrize(
    "metrics",
    [
        {"gemms_verified": 0},
        {"gemms_verified": None, "mismatches": None},
        {"self_test_found": 5},
        {"mismatches": None},
    ],
)
def test_result_that_proves_nothing_is_unmeasured(metrics: dict[str, Any]) -> None:
    """Nothing verified, or a checker that missed a planted fault: never a pass."""
    findings = judge("burn-in", healthy(results=(burn_in(**metrics),)))
    unverified = of(findings, "burnin.unverified")
    assert (unverified.outcome, unverified.required) == (UNMEASURED, True)
    assert of(findings, "burnin.mismatch").outcome is SKIPPED


def test_workload_that_died_warns() -> None:
    """It proved nothing, and its end needs a reason."""
    died = msgspec.structs.replace(burn_in(state=ResultState.DIED), metrics=(), detail="out of memory")
    finding = of(judge("burn-in", healthy(results=(died,))), "burnin.died")
    assert finding.outcome is Outcome.WARN
    assert "out of memory" in finding.message


def test_load_that_was_killed_is_unknown_and_no_fault_of_its_device() -> None:
    """The out of memory killer sends SIGKILL, a device does not; a load that is verified ends the finding."""
    died = burn_in(state=ResultState.DIED)
    words = "the load was killed by SIGKILL"
    killed = msgspec.structs.replace(died, metrics=(), detail=words, conditions={"killed": True})
    findings = judge("burn-in", healthy(results=(killed,)))
    finding = of(findings, "burnin.killed")
    assert (finding.outcome, finding.required, finding.hard) == (UNMEASURED, True, False)
    assert "killed by SIGKILL" in finding.message and "repeat the burn-in" in finding.message
    assert of(findings, "burnin.died").outcome is SKIPPED
    assert of(judge("burn-in", healthy()), "burnin.killed").outcome is PASS
    wrong = msgspec.structs.replace(killed, metrics=burn_in(mismatches=1).metrics)
    assert of(judge("burn-in", healthy(results=(wrong,))), "burnin.mismatch").outcome is FAIL


@pytest.mark.parametrize("state", [ResultState.INTERRUPTED, ResultState.REFUSED])
def test_workload_that_was_stopped_says_nothing(state: ResultState) -> None:
    """A job came, or the device was busy."""
    stopped = msgspec.structs.replace(burn_in(state=state), metrics=())
    assert {f.outcome for f in judge("burn-in", healthy(results=(stopped,))) if f.device == GPU} == {SKIPPED}


@pytest.mark.parametrize("state", [ResultState.INTERRUPTED, ResultState.DIED])
def test_wrong_result_counts_although_its_workload_did_not_finish(state: ResultState) -> None:
    """To be stopped by a job excuses no wrong product that was found before."""
    stopped = burn_in(state=state, mismatches=3)
    assert of(judge("burn-in", healthy(results=(stopped,))), "burnin.mismatch").outcome is FAIL


def test_device_without_result_is_skipped() -> None:
    """Not every node was burned in."""
    assert {f.outcome for f in judge("burn-in", healthy(results=()))} == {SKIPPED}


def test_good_workload_does_not_hide_a_wrong_one() -> None:
    """Whatever the order, the worst of a device's results is told."""
    wrong = msgspec.structs.replace(burn_in(started=-900, mismatches=2), workload="other")
    for results in ((wrong, burn_in()), (burn_in(), wrong)):
        assert of(judge("burn-in", healthy(results=results)), "burnin.mismatch").outcome is FAIL


def test_workload_that_verifies_nothing_by_design_is_left_alone() -> None:
    """A bandwidth test makes no claim about results."""
    plain = msgspec.structs.replace(burn_in(), metrics=(), workload="bandwidth")
    findings = judge("burn-in", healthy(results=(plain,)))
    assert of(findings, "burnin.mismatch").outcome is SKIPPED
    assert of(findings, "burnin.died").outcome is PASS


def test_a_load_of_a_part_is_neither_proof_nor_fault() -> None:
    """The service of the agent has some of the processors: its probe proves nothing, and the node stays what it was."""
    part = msgspec.structs.replace(burn_in(), conditions={"left_out": "62 of 64 processors"})
    assert {f.outcome for f in judge("burn-in", healthy(results=(part,))) if f.device == GPU} == {SKIPPED, PASS}
    assert of(judge("burn-in", healthy(results=(part,))), "burnin.mismatch").outcome is SKIPPED
    wrong = msgspec.structs.replace(burn_in(mismatches=1), conditions=part.conditions)
    assert of(judge("burn-in", healthy(results=(wrong,))), "burnin.mismatch").outcome is FAIL
