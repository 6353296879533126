"""Explain a code, a check or a quantity, and the action for it: `nodevet explain xid 79`."""

from __future__ import annotations

import argparse
import difflib
import inspect
import os

import msgspec

from nodevet.agent.config.load import usual_runtime_directory
from nodevet.agent.store.site_marks import known_marks
from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import say
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import Action, Outcome
from nodevet.checks.core.quantities import QUANTITIES
from nodevet.checks.engine.explanation import ACTIONS, Explanation, declared_rules, explain_event, explain_rule
from nodevet.checks.engine.registry import Check, installed
from nodevet.checks.reference.kernel_policy import known_codes

SUMMARY = "explain a code, a check or a quantity"

READING = "reading."
"""A code with this start and the name of a quantity reports that a required reading is missing."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet explain``."""
    parser.add_argument(
        "words", nargs="+", metavar="NAME", help="for example: xid 79, sxid 20034, device.lost, thermal, power_watts"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; exit 64 for an unknown name."""
    name = ".".join(arguments.words).lower()
    installed(known_marks(usual_runtime_directory(os.environ, os.geteuid())))  # keeps out what ended the agent
    for explain in (_event, _finding, _check, _quantity):
        text = explain(name)
        if text is not None:
            say(text)
            return exits.OK
    known = [*known_codes(), *declared_rules(), *(declared.name for declared in installed()), *QUANTITIES]
    near = difflib.get_close_matches(name, known, 3)
    hint = f", did you mean {', '.join(near)}?" if near else "; give one such as xid 79, thermal or power_watts"
    raise UsageError(f"explain: {name!r} is not a code, check or quantity{hint}")


def _event(name: str) -> str | None:
    code = f"nvidia.{name}" if name.startswith(("xid.", "sxid.")) else name
    found = explain_event(code)
    return None if found is None else _told(f"{code}: {found.title}: {found.meaning}", found)


def _finding(name: str) -> str | None:
    rules = declared_rules()
    rule = rules.get(name)
    if rule is None and name.removeprefix(READING) in QUANTITIES and name.startswith(READING):
        rule = rules.get(f"{READING}missing")
    if rule is None:
        return None
    rule = msgspec.structs.replace(rule, code=name)
    found = explain_rule(rule)
    return _told(f"{found.code}: {found.title}; {found.meaning}", found)


def _told(headline: str, found: Explanation) -> str:
    outcome = found.outcome.value
    if found.at_first is not None:
        outcome = f"{found.at_first.value}; {outcome} when it repeats"
    lines = [headline, f"  outcome: {outcome}, fault class: {found.fault_class.value}"]
    is_named = found.action is not Action.NONE or found.outcome not in (Outcome.WARN, Outcome.FAIL)
    lines.append(f"  action: {ACTIONS[found.action.value] if is_named else 'as the next step says'}")
    if found.ends:
        lines.append(f"  clears on: {found.ends}")
    if found.source:
        lines.append(f"  source: {found.source}")
    return "\n".join(lines)


def _check(name: str) -> str | None:
    declared = next((entry for entry in installed() if entry.name in _possible_names(name)), None)
    return None if declared is None else _describe(declared)


def _possible_names(name: str) -> tuple[str, ...]:
    """Return check names that *name* may stand for: the name itself, or the check of a family of codes."""
    return (name, name.replace(".", "-"), name.partition(".")[0])


def _describe(declared: Check) -> str:
    text = inspect.cleandoc(declared.broken or declared.judge.__doc__ or "")
    lines = [f"check {declared.name}: {text}", ""]
    fields = declared.policy.__struct_fields__
    lines.append("  settings:" if fields else "  settings: none except enabled and mode")
    values = ((field, getattr(declared.policy(), field)) for field in fields)
    lines += [
        f"    {field} {'is not set: the device or a table gives the value' if value is None else f'= {value}'}"
        for field, value in values
    ]
    lines.append("  reads:" if declared.inputs else "  reads: no reading of a device")
    lines += [f"    {key}: {QUANTITIES[key].help}" for key in declared.inputs]
    return "\n".join(lines)


def _quantity(name: str) -> str | None:
    entry = QUANTITIES.get(name)
    if entry is None:
        return None
    return f"{entry.key} ({entry.kind.value}, per {entry.part.value}): {entry.help}"
