"""Say what a code, a check or a quantity means, and what to do about it: `nodevet explain xid 79`."""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
from collections.abc import Callable

from nodevet.agent import exits
from nodevet.agent.terminal import say
from nodevet.agent.text import ACTIONS
from nodevet.checks.episodes import clearing_table
from nodevet.checks.errors import UsageError
from nodevet.checks.judging import Rule
from nodevet.checks.model import Action, Clearing, Outcome
from nodevet.checks.quantities import QUANTITIES
from nodevet.checks.reference.kernel_policy import event_clearing, known_codes, policy_of_code
from nodevet.checks.registry import Check, installed

SUMMARY = "what a code, a check or a quantity means"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet explain``."""
    parser.add_argument("words", nargs="+", help="such as: xid 79, sxid 20034, device.lost, thermal, power_watts")


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; wrong usage where the words name nothing."""
    name = ".".join(arguments.words).lower()
    for explain in (_event, _finding, _check, _quantity):
        text = explain(name)
        if text is not None:
            say(text)
            return exits.OK
    known = [*known_codes(), *_rules(), *(declared.name for declared in installed()), *QUANTITIES]
    near = difflib.get_close_matches(name, known, 3)
    raise UsageError(f"explain: nothing is called {name!r}" + (f", did you mean {', '.join(near)}?" if near else ""))


def _event(name: str) -> str | None:
    code = f"nvidia.{name}" if name.startswith(("xid.", "sxid.")) else name
    policy = policy_of_code(code)
    if policy is None:
        return None
    lines = [f"{code}: {policy.name}: {policy.meaning}"]
    lines.append(f"  counts as {policy.outcome.value}, fault of: {policy.fault_class.value}")
    lines.append(f"  what to do: {ACTIONS[policy.action.value]}")
    if policy.outcome in (Outcome.WARN, Outcome.FAIL):
        lines.append(f"  how it clears: {_ending(event_clearing(policy), policy.action)}")
    lines.append(f"  source: {policy.source}")
    return "\n".join(lines)


def _finding(name: str) -> str | None:
    rule = _rules().get(name)
    if rule is None:
        return None
    lines = [f"{rule.code}: a finding of check {rule.check}: {rule.next_step or ACTIONS[rule.action.value]}"]
    lines.append(f"  counts as {rule.outcome.value}, fault of: {rule.fault_class.value}")
    lines.append(f"  what to do: {ACTIONS[rule.action.value]}")
    lines.append(f"  how it clears: {_ending(rule.clearing, rule.action)}")
    return "\n".join(lines)


def _rules() -> dict[str, Rule]:
    """Return what each check declares beside its judgement, by code."""
    found: dict[str, Rule] = {}
    for declared in installed():
        for value in vars(importlib.import_module(declared.module)).values():
            entries = value.values() if isinstance(value, dict) else (value,)
            found |= {entry.code: entry for entry in entries if isinstance(entry, Rule)}
    return found


def _check(name: str) -> str | None:
    declared = next((entry for entry in installed() if entry.name in _possible_names(name)), None)
    return None if declared is None else _describe(declared)


def _possible_names(name: str) -> tuple[str, ...]:
    """Return names of the check that *name* may mean: itself, or the check that gives findings of that family."""
    return (name, name.replace(".", "-"), name.partition(".")[0])


def _describe(declared: Check) -> str:
    text = inspect.cleandoc(declared.judge.__doc__ or "")
    lines = [f"check {declared.name}: {text}", "", "  policy:"]
    lines += [f"    {field} = {getattr(declared.policy(), field)}" for field in declared.policy.__struct_fields__]
    lines += ["  looks at:", *(f"    {key}: {QUANTITIES[key].help}" for key in declared.inputs)]
    return "\n".join(lines)


def _quantity(name: str) -> str | None:
    entry = QUANTITIES.get(name)
    if entry is None:
        return None
    return f"{entry.key} ({entry.kind.value}, per {entry.part.value}): {entry.help}"


def _ending(clearing: Clearing, action: Action) -> str:
    row = clearing_table()[clearing]
    reboot = " after a reboot" if action in row.retest_needs_reboot else ""
    ways: list[tuple[bool, Callable[[], str]]] = [
        (row.good_samples is not None, lambda: f"{row.good_samples} good samples in a row"),
        (row.passed_retest, lambda: f"a passed re-test{reboot} (nodevet burn-in)"),
        (row.other_serial, lambda: "another device in its place"),
        (row.job_ended, lambda: "the end of its process"),
    ]
    return ", ".join([text() for applies, text in ways if applies] + ["or an acknowledgement (nodevet ack)"])
