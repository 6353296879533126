"""Results of verified workloads: a wrong result is a hardware fault, an unverified one proves nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.model import Action, Clearing, Device, FaultClass, Finding, Outcome, Result, ResultState
from nodevet.checks.engine.completeness import KILLED
from nodevet.checks.engine.judging import Rule
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.retest import LEFT_OUT, ClearingRow, clearing_table, demand_words, is_passed_retest, shown_by
from nodevet.checks.engine.view import View, device_name

MISMATCH = Rule(
    check="burn-in",
    code="burnin.mismatch",
    action=Action.INSPECT,
    clearing=Clearing.WRONG_RESULT,
    next_step="drain the node; move the device to another slot and repeat the burn-in to find the faulty part",
)
UNVERIFIED = Rule(
    check="burn-in",
    code="burnin.unverified",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.UNKNOWN,
    action=Action.WATCH,
    clearing=Clearing.UNMEASURED,
    next_step="repeat the burn-in: the device is not verified",
)
DIED = Rule(
    check="burn-in",
    code="burnin.died",
    outcome=Outcome.WARN,
    fault_class=FaultClass.UNKNOWN,
    action=Action.INSPECT,
    clearing=Clearing.HARDWARE_EVENT,
    next_step="read the log of the burn-in and the kernel log, then repeat the burn-in",
)


KILLED_LOAD = Rule(
    check="burn-in",
    code="burnin.killed",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.UNKNOWN,
    action=Action.WATCH,
    clearing=Clearing.UNMEASURED,
    gates=False,
    next_step="if it was killed, free memory or raise the memory limit; if it was stopped, find the sender of SIGSTOP; "
    "then repeat the burn-in",
)


class BurnIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: one wrong result is a fault."""


@check("burn-in", policy=BurnIn)
def judge(view: View, _policy: BurnIn) -> Iterator[Finding]:
    """Every verified result of a workload is bit-exact."""
    for device in view.devices:
        results = [result for result in view.results if device.id in result.devices]  # in the order in which they came
        if not results:
            yield MISMATCH.on_node(
                Outcome.SKIPPED, f"{device_name(view, device.id)}: no burn-in has run yet", device=device.id
            )
            continue
        verified = [result for result in results if _is_verified_workload(result)]
        yield _mismatch(view, device, results)
        yield _unverified(view, device, verified)
        yield _died(view, device, [result for result in results if not result.conditions.get(KILLED)])
        yield _killed(view, device, results)


def _is_verified_workload(result: Result) -> bool:
    names = {metric.name for metric in result.metrics}
    is_whole = not result.conditions.get(LEFT_OUT)  # a partial one proves nothing about its device, and is no fault
    return result.state is ResultState.FINISHED and is_whole and bool(names & {"mismatches", "gemms_verified"})


def _mismatch(view: View, device: Device, results: Sequence[Result]) -> Finding:
    """Judge wrong results, also those of a workload that was stopped or died before its end."""
    wrong = [result for result in results if (result.metric("mismatches") or 0) > 0]
    name = device_name(view, device.id)
    if wrong:
        last = wrong[-1]
        count, of = last.metric("mismatches"), last.metric("gemms_checked") or last.metric("gemms_verified")
        shown = tuple(shown_by(result) for result in wrong)
        said = f"{_workload(last)}: {count} of {of} GEMMs {'is' if count == 1 else 'are'} wrong{_where(last)}"
        finding = MISMATCH.on_node(
            Outcome.FAIL,
            f"{name}: {said}; {demand_words(shown[-1], _row())}",
            device=device.id,
            value=count,
            evidence_time=last.ended,
        )
        return msgspec.structs.replace(finding, occurrence=_identity(last), shown=shown)
    proven = [result for result in results if is_passed_retest(result)]
    if proven:
        facts = f"{proven[-1].workload}: {proven[-1].metric('gemms_verified')} GEMMs verified, 0 wrong"
        return MISMATCH.on_node(Outcome.PASS, f"{name}: {facts}", device=device.id)
    return MISMATCH.on_node(Outcome.SKIPPED, f"{name}: no result was verified", device=device.id)


def _unverified(view: View, device: Device, results: Sequence[Result]) -> Finding:
    name = device_name(view, device.id)
    blank = [result for result in results if not is_passed_retest(result) and not result.metric("mismatches")]
    if blank:
        last = blank[-1]
        found, planted = last.metric("self_test_found"), last.metric("self_test_planted")
        why = last.conditions.get("verification") or (
            "no result was verified"
            if found == planted
            else f"the self-test found {found} of {planted} injected faults"
        )
        return UNVERIFIED.on_node(
            Outcome.UNMEASURED,
            f"{name}: {last.workload}: {why}",
            device=device.id,
            required=True,
            evidence_time=last.ended,
        )
    outcome = Outcome.PASS if results else Outcome.SKIPPED
    return UNVERIFIED.on_node(outcome, f"{name}: {count_of(len(results), 'workload')} verified", device=device.id)


def _died(view: View, device: Device, results: Sequence[Result]) -> Finding:
    name = device_name(view, device.id)
    dead = [result for result in results if result.state is ResultState.DIED]
    if dead:
        last = dead[-1]
        finding = DIED.on_node(
            Outcome.WARN, f"{name}: {last.workload} died: {last.detail}", device=device.id, evidence_time=last.ended
        )
        return msgspec.structs.replace(finding, occurrence=_identity(last))
    finished = [result for result in results if result.state is ResultState.FINISHED]
    outcome = Outcome.PASS if finished else Outcome.SKIPPED
    facts = f"{len(finished)} of {len(results)} workloads finished"
    return DIED.on_node(outcome, f"{name}: {facts}", device=device.id)


def _killed(view: View, device: Device, results: Sequence[Result]) -> Finding:
    """Return ``unknown`` for a load that a signal killed or stopped: no fault of its device, and no proof."""
    name = device_name(view, device.id)
    killed = [result for result in results if result.conditions.get(KILLED)]
    if killed:
        last = killed[-1]
        return KILLED_LOAD.on_node(
            Outcome.UNMEASURED,
            f"{name}: {_workload(last)} is not verified: {last.detail}",
            device=device.id,
            required=True,
            evidence_time=last.ended,
        )
    outcome = Outcome.PASS if any(result.state is ResultState.FINISHED for result in results) else Outcome.SKIPPED
    return KILLED_LOAD.on_node(outcome, f"{name}: no load was killed or stopped", device=device.id)


def _row() -> ClearingRow:
    return clearing_table()[Clearing.WRONG_RESULT]


def _workload(result: Result) -> str:
    return " ".join(part for part in (result.workload, result.dtype) if part)


def _where(result: Result) -> str:
    """Return the known facts about the first wrong GEMM: its origin, whether it repeats, its row and column."""
    reports = result.conditions.get("mismatch_reports")
    first = reports[0] if isinstance(reports, (list, tuple)) and reports else None
    if not isinstance(first, dict):
        return ""
    words = [str(first[name]).replace("_", " ") for name in ("origin", "persistence") if first.get(name)]
    places = [f"{kind} {first[name][0]}" for kind, name in (("row", "rows"), ("column", "columns")) if first.get(name)]
    return "; first: " + ", ".join([*words, *places])


def _identity(result: Result) -> str:
    """Return the identity of a workload: the same from its first wrong GEMM, which is reported at once, to its end."""
    return f"{result.workload}:{result.started.boot_id}:{result.started.boottime_ns}"
