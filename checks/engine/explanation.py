"""Meaning and action of each code, with the same words on terminal, status page and documents."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import msgspec

from nodevet.checks.core.documents import copied
from nodevet.checks.core.guard import AGENT
from nodevet.checks.core.model import Action, Clearing, FaultClass, Outcome
from nodevet.checks.reference.kernel_policy import event_clearing, policy_of_code

from .judging import Rule
from .overflow import MAXIMUM_KEPT, NOT_KEPT
from .registry import Check, installed
from .retest import ClearingRow, clearing_table

ACTIONS = {
    "none": "no action",
    "watch": "monitor it",
    "restart_app": "restart the application",
    "reset_device": "reset the device when it is idle",
    "drain_reset": "drain the node, then reset the device",
    "reboot": "drain and reboot the node",
    "power_cycle": "drain and power-cycle the node",
    "inspect": "inspect the node",
    "replace": "replace the device",
}
"""Every action as an instruction."""


ANY_CHECK = "*"
"""Stands for the check of a rule that every check has."""

ORIGINS = {AGENT: "the agent", ANY_CHECK: "any check"}
"""The origin of findings that are not of one check."""

BUGS = tuple(
    Rule(
        check=check,
        code=code,
        outcome=Outcome.UNMEASURED,
        fault_class=FaultClass.UNKNOWN,
        action=Action.WATCH,
        clearing=Clearing.UNMEASURED,
        next_step=f"{what}; this is a bug in nodevet and no hardware fault: report it with the agent's log",
    )
    for check, code, what in (
        (AGENT, "agent.error", "an internal part of the agent failed"),
        (ANY_CHECK, "check.error", "a check did not run, or could not judge one record"),
    )
)
"""Parts that failed."""

OWN_RULES = (
    *BUGS,
    Rule(
        check=AGENT,
        code=NOT_KEPT,
        outcome=Outcome.WARN,
        fault_class=FaultClass.UNKNOWN,
        action=Action.INSPECT,
        clearing=Clearing.HARDWARE_EVENT,
        gates=False,
        next_step=f"one check has more than {MAXIMUM_KEPT} open findings that close no gate: look for a common cause",
    ),
)
"""Rules about nodevet itself, which no check declares."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of a code. ``ends`` says what clears its finding; empty for one that opens none.

    ``at_first`` is the outcome of a fault that has not repeated yet, None if it is ``outcome``.
    """

    code: str
    title: str
    meaning: str
    outcome: Outcome
    fault_class: FaultClass
    action: Action
    ends: str
    at_first: Outcome | None = None
    source: str = ""


def explain_event(code: str) -> Explanation | None:
    """Return what an event of the kernel log means by its *code*, or None for a code of no table."""
    policy = policy_of_code(code)
    if policy is None:
        return None
    is_fault = policy.outcome in (Outcome.WARN, Outcome.FAIL)
    ends = ending(event_clearing(policy), policy.action) if is_fault else ""
    return copied(Explanation, policy, code=code, title=policy.name, ends=ends)


def explain_rule(rule: Rule) -> Explanation:
    """Return what a finding of *rule* means."""
    title = f"finding of {ORIGINS.get(rule.check, f'the check {rule.check}')}"
    meaning = f"next step: {rule.next_step or ACTIONS[rule.action.value]}"
    clearing = Clearing.UNMEASURED if rule.outcome is Outcome.UNMEASURED else rule.clearing
    ends = "" if rule.outcome is Outcome.SKIPPED else ending(clearing, rule.action)
    return copied(Explanation, rule, title=title, meaning=meaning, ends=ends)


def declared_rules() -> Mapping[str, Rule]:
    """Return what each installed check declares beside its judgement, and nodevet of itself, by code."""
    found: dict[str, Rule] = {rule.code: rule for rule in OWN_RULES}
    for declared in installed():
        found |= {} if declared.broken else _rules_of(declared)
    return found


def ending(clearing: Clearing, action: Action) -> str:
    """Return what clears a finding of the class *clearing* whose remedy is *action*, and what only silences it."""
    row = clearing_table()[clearing]
    reboot = " after a reboot" if action in row.retest_needs_reboot else ""
    good = f"{row.good_samples} good samples in a row" if row.good_samples != 1 else "the next good sample"
    ways = [
        (row.good_samples is not None, good),
        (row.passed_retest, f"a passed re-test (nodevet burn-in){reboot}{_length(row)}"),
        (row.other_serial, "replacement of the device"),
        (row.job_ended, "the end of the process that caused it"),
    ]
    *others, last = [text for applies, text in ways if applies]
    evidence = f"{', '.join(others)}, or {last}" if others else last
    return f"{evidence}; an acknowledgement (nodevet ack) takes it out of the verdict"


def _length(row: ClearingRow) -> str:
    """Return how long a re-test must be where the class says so."""
    if row.retest_products_per_wrong is None:
        return ""
    minutes = (row.retest_seconds or 0) / 60
    return (
        f" of at least {minutes:.0f} min with {row.retest_products_per_wrong}n/k GEMMs (if k of n GEMMs were wrong) of"
        " the same format and shape, at the same temperature and power"
    )


def _rules_of(declared: Check) -> dict[str, Rule]:
    """Return the rules of a check by their codes: of those with one code the first, of which the others are cases."""
    values = vars(importlib.import_module(declared.module)).values()
    entries = [entry for value in values for entry in (value.values() if isinstance(value, dict) else (value,))]
    return {entry.code: entry for entry in reversed(entries) if isinstance(entry, Rule)}
