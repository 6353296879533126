"""The reference pages that follow from the code and its tables: each is a function that returns its Markdown."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from fakes.calls_reference import calls_page
from fakes.metrics_reference import metrics_page
from fakes.peaks_reference import peaks_page
from fakes.scenario_reference import scenarios_page
from fakes.torch_reference import torch_page

from nodevet.agent.cli import commands
from nodevet.agent.config.decoding import description, expected, field_types
from nodevet.agent.config.load import SECTIONS
from nodevet.agent.config.settings import CheckSettings
from nodevet.checks.core.model import Action, Clearing, Outcome
from nodevet.checks.core.quantities import QUANTITIES
from nodevet.checks.engine.damping import damping
from nodevet.checks.engine.explanation import ACTIONS
from nodevet.checks.engine.judging import Rule
from nodevet.checks.engine.registry import Check, discover
from nodevet.checks.engine.retest import ClearingRow, clearing_table
from nodevet.checks.health.freshness import BROKEN, READING
from nodevet.checks.health.throttle import FAULTS
from nodevet.checks.health.throttle import NEXT_STEPS as THROTTLE_STEPS
from nodevet.checks.reference.kernel_policy import SxidEffect, SxidRow, XidRow
from nodevet.checks.reference.limits import TableLimit
from nodevet.checks.reference.tables import load_table

__all__ = ["PAGES"]

GENERATED = "<!-- Written by make golden from {source}. Edit that, not this page. -->"


def checks_page(_repository: Path) -> str:
    """Every check: what it judges, what it looks at, what can be set, what it can find."""
    lines = _head("Checks", "checks/health and checks/reference/limits.csv")
    lines += [
        "A check judges recorded values; it reads nothing itself. The tables list the next step for each finding.",
        "[Clearing](clearing.md) describes how a finding ends. A *measured* finding depends on a noisy value. It",
        "counts when `needed` of the last `window` samples agree. Without an agent, `nodevet check` takes two",
        "samples, which must agree, and up to four if a growing counter is not confirmed yet. All other findings",
        "count at once. If a limit is not set in the configuration, the limit that the device reports applies, or",
        "else the one in the [table of limits](#limits).",
        "",
        "The *fault class* says where the fault lies: the hardware, the configuration, the drivers and",
        "software of the node (`node`), or an application; otherwise it is `unknown`. *Clears as* is the [clearing",
        "class](clearing.md).",
        "",
        "Every check can also raise `check.error`: the check could not run, or could not judge one record. This is",
        "a bug in the check. The agent raises `agent.error` if one of its parts failed. Both make a node `unknown`",
        "and close no gate. For one check and one outcome (`warn`, `fail` or `unmeasured`), at most 500 findings",
        "that close no gate are open at once. `findings.not_kept` counts the others. The first finding of each",
        "device, and every finding that may close a gate, is always kept.",
    ]
    for declared in discover():
        lines += ["", f"## {declared.name}", "", inspect.cleandoc(declared.judge.__doc__ or "")]
        lines += _inputs(declared)
        lines += _policy(declared)
        lines += _codes(declared)
    lines += ["", "## Limits", ""]
    rows = load_table("limits.csv", TableLimit)
    lines += _table(
        ("Limit", "Broken when", "Source"),
        ((f"`{row.key}`", f"{row.op} {_amount(row.value, row.unit)}", row.source) for row in rows),
    )
    return _page(lines)


def _amount(value: float, unit: str) -> str:
    """Return *value* in a *unit* that a person reads: whole mebibytes as these."""
    mebibytes, rest = divmod(value, 1 << 20)
    return f"{mebibytes:g} MiB" if unit == "bytes" and mebibytes and not rest else f"{value:g} {unit.replace('_', ' ')}"


def configuration_page(_repository: Path) -> str:
    """Every setting with its default and range."""
    lines = _head("Configuration", "agent/config/settings.py and checks/health")
    lines += [
        "The agent reads one TOML file: the file of `--config`, or else `nodevet.toml` in systemd's",
        "`$CONFIGURATION_DIRECTORY`, or else `/etc/nodevet/nodevet.toml` for root and",
        "`~/.config/nodevet/nodevet.toml` for other users. Only the file of `--config` must exist. The agent",
        "rejects a file with unknown keys, wrong types or values out of range. It reports all errors of these kinds",
        "at once, each with the key path and the accepted values. Errors of other kinds, such as an address without a",
        "port, appear only after the errors of these kinds in the same section are corrected. `nodevet config check`",
        "validates a file without using it. `nodevet config show` prints the active settings as a file. [How to",
        "configure](../how-to/configure.md) describes the common cases.",
        "",
        "If `state_dir` or `runtime_dir` is not set, the agent uses systemd's `$STATE_DIRECTORY` and",
        "`$RUNTIME_DIRECTORY`. Without systemd it uses `/var/lib/nodevet` and `/run/nodevet` for root, and",
        "`~/.local/state/nodevet` and `$XDG_RUNTIME_DIR/nodevet` for other users.",
    ]
    for name, struct in SECTIONS.items():
        lines += _section(name, struct)
    lines += ["", "## `[checks.NAME]`", "", "One table per check. [Checks](checks.md) explains each setting.", ""]
    rows = [(*_field(CheckSettings, name)[:3], "every check") for name in ("enabled", "mode")]
    for declared in discover():
        fields = msgspec.structs.fields(declared.policy)
        rows += [(*_field(declared.policy, field.name)[:3], f"`{declared.name}`") for field in fields]
    lines += _table(
        ("Key", "Default", "Accepts", "Check"),
        ((f"`{key}`", default, what, check) for key, default, what, check in rows),
    )
    return _page(lines)


def command_line_page(_repository: Path) -> str:
    """Every command with its arguments."""
    lines = _head("Command line", "agent/commands")
    lines += [
        "Exit codes: 0 `ok`, 1 `degraded`, 2 `failed`, 3 `unknown` or could not measure, 64 wrong usage, 78 wrong",
        "configuration, 70 a bug in nodevet, 130 interrupted. Errors are one line on standard error.",
        "",
        "Colour and progress bars appear on a terminal only; `NO_COLOR` is honoured.",
    ]
    for name in commands():
        module = importlib.import_module(f"nodevet.agent.commands.{name.replace('-', '_')}")
        parser = argparse.ArgumentParser(prog=f"nodevet {name}", description=module.__doc__)
        module.configure(parser)
        lines += ["", f"## nodevet {name}", "", *(module.__doc__ or "").strip().splitlines()]
        if _arguments(parser):
            lines += ["", *_arguments(parser)]
        for part in _subparsers(parser):
            lines += ["", f"`{part.prog}`", "", *_arguments(part)]
        lines += ["", _exits(module.run.__doc__ or "")]
    return _page(lines)


def _wrong_result_words(row: ClearingRow) -> list[str]:
    """What a re-test must be where a result was wrong."""
    hours = (row.retest_longest_seconds or 0) / 3600
    return [
        f"For a `{row.clearing.value}` finding, where k of n GEMMs were wrong, the re-test must be one load that meets",
        "all these conditions:",
        "",
        f"- It verifies at least {row.retest_products_per_wrong}n/k GEMMs, in the same number format and shape.",
        f"- It takes at least {(row.retest_seconds or 0) / 60:.0f} minutes.",
        f"- The device is at most {row.retest_cooler_celsius:.0f} °C cooler, and draws at least as much power, as"
        " during the load with the",
        "  wrong result (or during the last minute before it). If the temperature or the power of a load was",
        "  not recorded, the load clears nothing. A value that the device does not support is not compared.",
        f"- It uses at least {(row.retest_memory_ratio or 1) * 100:.0f} % of the memory that the load with the wrong"
        " result used.",
        "",
        f"If this load would take longer than {hours:.0f} hours, only another serial clears the finding; `nodevet ack`"
        " takes it out of",
        f"the verdict. If {row.replace_after} loads on the same node find wrong results of one serial within"
        f" {row.replace_within_days:.0f} days, the finding asks",
        "for a replacement.",
        "",
    ]


def clearing_page(_repository: Path) -> str:
    """What ends a finding, by its class."""
    lines = _head("How a finding clears", "checks/reference/clearing.csv")
    lines += [
        "A finding clears on the evidence that its *clearing class* requires, never by age and never by a restart.",
        "[Verdict](../explanation/verdict.md#how-a-finding-clears) explains the classes. In every class, a finding",
        "that a person acknowledged (`nodevet ack`) does not count. It counts again if it needs a more severe action,",
        "or if it clears and occurs again. With `--until`, an occurrence before that time does not count either.",
        "",
        "*Never* in the table applies while the finding counts. An acknowledged finding clears after one good sample,",
        "except a wrong result, and a replacement because of a second wrong result.",
        "",
    ]
    rows = clearing_table().values()
    lines += _table(
        (
            "Clearing class",
            "Good samples in a row",
            "Passed re-test",
            "Device with another serial",
            "Its process ended",
            "Stays open while it flaps",
        ),
        (
            (
                f"`{row.clearing.value}`",
                "never" if row.good_samples is None else str(row.good_samples),
                *map(_yes, (row.passed_retest, row.other_serial, row.job_ended, row.damped)),
            )
            for row in rows
        ),
    )
    lines += ["", "A passed re-test is a finished burn-in or probe that meets all these conditions:", ""]
    lines += [
        "- Its self-test found every injected fault.",
        "- It verified at least one GEMM and found none wrong.",
        "- It began after the finding was last seen.",
        "- The device has no open wrong result of another workload or number format.",
    ]
    for row in rows:
        if row.retest_products_per_wrong is not None:
            lines += ["", *_wrong_result_words(row)]
    for row in rows:
        if row.retest_needs_reboot:
            actions = " or ".join(f"`{action.value}`" for action in row.retest_needs_reboot)
            lines += [f"If the action is {actions}, the re-test must run after a reboot."]
    lines += ["", "| Clearing class | Why |", "|---|---|"]
    lines += [f"| `{row.clearing.value}` | {_cell(row.source)} |" for row in rows]
    lines += ["", "## Flapping", "", *_damping_lines()]
    lines += [
        "",
        "## Actions",
        "",
        "Each action is more severe than the one above it. The action of a verdict is the most severe of its findings.",
        "",
    ]
    lines += _table(("Action", "In words"), ((f"`{action.value}`", ACTIONS[action.value]) for action in Action))
    return _page(lines)


def _damping_lines() -> list[str]:
    """Return how long a condition that flaps stays open."""
    row = damping()
    return [
        f"A condition opens as soon as it is confirmed. After {row.reopenings} returns in"
        f" {row.window_seconds / 3600:g} h it stays open as `flapping, n times` for"
        f" {row.first_hold_seconds / 60:g} min,",
        f"even if its samples are good. Each later return makes this time {row.factor:g} times as long, up to"
        f" {row.longest_hold_seconds / 3600:g} h.",
        "After that time, good samples clear the finding. The agent forgets the returns when the finding was absent",
        "for as long, and for at least an hour. A hard failure, which may close the gate, never stays open in this",
        "way, and neither does an unmeasured finding. The agent counts the time since boot: a restart of the agent",
        "does not change it, and a reboot resets it. An application error stays open in the same way if one process",
        "fails after another.",
        "",
        f"Source: {row.source}",
    ]


def xid_page(_repository: Path) -> str:
    """Every XID and SXid with what it means and what to do."""
    lines = _head("XID and SXid", "checks/reference/nvidia_xid.csv, nvidia_sxid.csv and nvidia_sxid_effects.csv")
    lines += [
        "Codes that the NVIDIA driver reports for a GPU (XID, `nvidia.xid.N`) and for an NVSwitch (SXid,",
        "`nvidia.sxid.N`). `nodevet explain xid 79` prints the same on the command line. A number without a row counts",
        "as `warn`, with the fault class `unknown` and the action `inspect`. The page on [the kernel",
        "log](kernel-log.md#where-an-answer-is-arguable) lists the rows for which another answer is possible. The",
        "fault class `application` has no effect on the verdict of the node. *Gates*: a node with this fault should",
        "not start new jobs.",
        "",
        "## XID",
        "",
    ]
    rows = load_table("nvidia_xid.csv", XidRow)
    told = [row for row in rows if row.name != "unused"]
    lines += _table(
        ("XID", "Case", "Meaning", "Counts as", "Fault class", "Action", "Clears as", "Gates"),
        (
            (
                str(row.xid),
                row.variant,
                f"{row.name}: {row.meaning}",
                row.outcome.value,
                row.fault_class.value,
                f"`{row.action.value}`",
                _ends(row),
                _yes(row.gates),
            )
            for row in told
        ),
    )
    numbers = ", ".join(_ranges(row.xid for row in rows if row.name == "unused"))
    lines += ["", f"The vendor lists these numbers as unused, so they count as unknown ones: {numbers}."]
    sources = sorted({row.source for row in rows})
    lines += ["", f"Source: {'; '.join(sources)}.", "", "## SXid", ""]
    lines += ["If the line contains `Fatal` or `Non-fatal`, this word decides; otherwise the table decides.", ""]
    effects = load_table("nvidia_sxid_effects.csv", SxidEffect)
    lines += _table(
        ("Effect", "Meaning", "Counts as", "Action", "Clears as", "Gates"),
        (
            (
                f"`{row.effect}`",
                row.meaning,
                row.outcome.value,
                f"`{row.action.value}`",
                _ends(row),
                _yes(row.gates),
            )
            for row in effects
        ),
    )
    lines += [""]
    lines += _table(
        ("SXid", "Name", "Effect"),
        ((str(row.sxid), row.name, f"`{row.effect}`") for row in load_table("nvidia_sxid.csv", SxidRow)),
    )
    return _page(lines)


PAGES: dict[str, Callable[[Path], str]] = {
    "calls.md": calls_page,
    "checks.md": checks_page,
    "clearing.md": clearing_page,
    "command-line.md": command_line_page,
    "configuration.md": configuration_page,
    "metrics.md": metrics_page,
    "peaks.md": peaks_page,
    "scenarios.md": scenarios_page,
    "torch.md": torch_page,
    "xid.md": xid_page,
}
"""Every generated page of docs/reference by its name."""


def _head(title: str, source: str) -> list[str]:
    return [f"# {title}", "", GENERATED.format(source=source), ""]


def _page(lines: Sequence[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _inputs(declared: Check) -> list[str]:
    if not declared.inputs:
        return []
    return ["", "Looks at: " + ", ".join(f"`{key}`" for key in declared.inputs if key in QUANTITIES) + "."]


def _policy(declared: Check) -> list[str]:
    fields = msgspec.structs.fields(declared.policy)
    if not fields:
        return ["", "This check has no settings except `enabled` and `mode`."]
    rows = [_field(declared.policy, field.name) for field in fields]
    return [
        "",
        *_table(("Setting", "Default", "Accepts", "Meaning"), ((f"`{row[0]}`", *row[1:]) for row in rows)),
    ]


def _codes(declared: Check) -> list[str]:
    rows = [*_declared_codes(declared), *MADE_WHILE_JUDGING.get(declared.name, ())]
    lines = ["", *_table(("Code", "Counts as", "Fault class", "Action", "Clears as", "Next step"), rows)]
    if declared.name == "kernel-log":
        lines += ["", "And one code per kind of event: [XID and SXid](xid.md), [the kernel log](kernel-log.md)."]
    return lines


def _declared_codes(declared: Check) -> list[tuple[str, ...]]:
    """Return a row per rule that the check's module declares, with what the module ever says by it."""
    module = importlib.import_module(declared.module)
    said = _outcomes_said(inspect.getsource(module))
    found: dict[str, tuple[str, ...]] = {}
    for name, rule in vars(module).items():
        if isinstance(rule, Rule) and rule.check == declared.name and rule.code not in REPLACED:
            found.setdefault(rule.code, _row(rule, said.get(name)))
    return list(found.values())


def _row(rule: Rule, said: set[str] | None) -> tuple[str, ...]:
    counts = "informational" if rule.code in NEVER_BROKEN else rule.outcome.value
    if said and not said & {"FAIL", "WARN"}:
        counts = "unknown" if "UNMEASURED" in said else "informational"
    step = rule.next_step
    action = ACTIONS_ELSEWHERE.get(rule.code, f"`{rule.action.value}`")
    clearing = "`unmeasured`" if counts == "unknown" else f"`{rule.clearing.value}`"
    clearing = "" if counts == "informational" else clearing
    return f"`{rule.code}`", counts, rule.fault_class.value, action, clearing, step


def _outcomes_said(source: str) -> dict[str, set[str]]:
    """Return by name of a rule the outcomes that *source* hands to its ``on_node``, where that is all."""
    found: dict[str, set[str]] = {}
    used_otherwise: set[str] = set()
    for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        aliases: dict[str, set[str]] = {}
        counted: set[ast.AST] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names = [part for part in ast.walk(node.value) if isinstance(part, ast.Name) and part.id.isupper()]
                aliases.setdefault(node.targets[0].id, set()).update(part.id for part in names)
                counted.update(names)
        for node in ast.walk(function):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name) as receiver, attr="on_node")) if node.args:
                    counted.add(receiver)
                    for rule in aliases.get(name, {name}):
                        found.setdefault(rule, set()).update(_outcomes_in(node.args[0]))
        reads = (node for node in ast.walk(function) if isinstance(node, ast.Name) and node not in counted)
        used_otherwise.update(node.id for node in reads)
    return {name: outcomes for name, outcomes in found.items() if name not in used_otherwise}


def _outcomes_in(argument: ast.expr) -> set[str]:
    """Return the outcomes that *argument* may be; ``rule.outcome`` is that of the rule itself, a fault."""
    attributes = {part.attr for part in ast.walk(argument) if isinstance(part, ast.Attribute)}
    return {name for name in attributes if name in Outcome.__members__} | (
        {"FAIL"} if "outcome" in attributes else set()
    )


REPLACED = frozenset({"reading.missing"})
"""Rules that never appear under their own code."""

NEVER_BROKEN = frozenset({"power.reading"})
"""Rules that only say whether something can be read."""

ACTIONS_ELSEWHERE = {"memory.recovery_action": "the action that the driver requests"}
MADE_WHILE_JUDGING: dict[str, tuple[tuple[str, ...], ...]] = {
    "freshness": (
        (
            "`reading.QUANTITY`",
            "unknown",
            READING.fault_class.value,
            f"`{READING.action.value}`",
            "`unmeasured`",
            READING.next_step,
        ),
        *(
            (
                f"`{rule.code}`",
                "fail" if rule.at_first is None else "unknown; fail when it repeats",
                "node",
                "`reboot`",
                "`hardware_event`",
                rule.next_step,
            )
            for rule in BROKEN.values()
        ),
    ),
    "throttle": tuple(
        (
            f"`throttle.{reason}`",
            "fail" if reason in FAULTS else "warn",
            "hardware",
            "`inspect`",
            "`condition`",
            THROTTLE_STEPS[reason],
        )
        for reason in sorted(THROTTLE_STEPS)
    ),
}
"""Codes that a check puts together from what it sees."""


def _section(name: str, struct: type[msgspec.Struct]) -> list[str]:
    about = (struct.__doc__ or "").strip().splitlines()[0]
    fields = msgspec.structs.fields(struct)
    rows = [_field(struct, field.name) for field in fields if not isinstance(_default(field), msgspec.Struct)]
    lines = ["", f"## `[{name}]`", "", about, ""]
    lines += _table(("Key", "Default", "Accepts", "Meaning"), ((f"`{row[0]}`", *row[1:]) for row in rows))
    for field in fields:
        inner = _default(field)
        if isinstance(inner, msgspec.Struct):
            lines += _section(f"{name}.{field.name}", type(inner))
        entry = _table_type(struct, field.name)
        if entry is not None:
            lines += _section(f"[{name}.{field.name}]", entry)
    return lines


def _table_type(struct: type[msgspec.Struct], name: str) -> type[msgspec.Struct] | None:
    """Return what each table of the array of tables *name* is, or None where it is no such array."""
    kind = msgspec.inspect.type_info(field_types(struct)[name])
    kind = kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind
    if isinstance(kind, msgspec.inspect.VarTupleType) and isinstance(kind.item_type, msgspec.inspect.StructType):
        return kind.item_type.cls
    return None


def _field(struct: type[msgspec.Struct], name: str) -> tuple[str, str, str, str]:
    """Return key, default, what it accepts, and what it means."""
    field = next(entry for entry in msgspec.structs.fields(struct) if entry.name == name)
    kind = msgspec.inspect.type_info(field_types(struct)[name])
    default = _default(field)
    if default is msgspec.NODEFAULT:
        shown = "required"
    else:
        shown = "not set" if default is None else "" if default == "" else f"`{_toml(default)}`"
    return name, shown, expected(kind), description(kind)


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _arguments(parser: argparse.ArgumentParser) -> list[str]:
    actions = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
    rows = [(_usage(action), _cell(action.help or "")) for action in actions if action.dest != "help"]
    return _table(("Argument", "Meaning"), rows) if rows else []


def _subparsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [part for action in found for part in action.choices.values()]


def _usage(action: argparse.Action) -> str:
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper().replace("_", "-")
    )
    if not action.option_strings:
        return f"`{value}`" + (", may be given several times" if action.nargs in ("*", "+") else "")
    takes_value = action.nargs != 0
    words = ", ".join(f"`{option}{f' {value}' if takes_value else ''}`" for option in action.option_strings)
    return words + (" (required)" if action.required else "")


def _exits(doc: str) -> str:
    text = re.sub(r"\s+", " ", doc.strip().splitlines()[0])
    return text if text.endswith(".") else f"{text}."


def _ranges(numbers: Iterable[int]) -> list[str]:
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(low) if low == high else f"{low} to {high}" for low, high in found]


def _ends(row: XidRow | SxidEffect) -> str:
    """Return the class by which an event of *row* ends; nothing for one that is no fault."""
    is_fault = row.outcome in (Outcome.WARN, Outcome.FAIL)
    clearing = Clearing.HARDWARE_EVENT if row.clearing is Clearing.CONDITION else row.clearing
    return f"`{clearing.value}`" if is_fault else ""


def _yes(flag: bool) -> str:
    return "yes" if flag else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(headings)} |", f"|{'|'.join('---' for _ in headings)}|"]
    return [*lines, *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows)]
