"""The tables behind kernel events: complete, consistent, and each row with its source."""

from __future__ import annotations

import re

import pytest

from nodevet.checks.core.model import Action, Clearing, Event, FaultClass, Instant, Outcome, Severity
from nodevet.checks.kernel_log.lines import Line, Origin
from nodevet.checks.kernel_log.parse import events_from_lines
from nodevet.checks.kernel_log.report import describe, to_json
from nodevet.checks.kernel_log.rules import match_line
from nodevet.checks.reference.kernel_policy import (
    KernelRule,
    Policy,
    RuleKind,
    SxidRow,
    XidRow,
    kernel_rules,
    known_codes,
    policy_of,
    policy_of_code,
    sxid_effect,
    sxid_policy,
    xid_policy,
)
from nodevet.checks.reference.tables import load_table

XIDS = load_table("nvidia_xid.csv", XidRow)
TELLS = (RuleKind.EVENT, RuleKind.HEADER, RuleKind.ECHO)


def test_every_listed_xid_is_there_once() -> None:
    """The codes 1 to 176 are listed; no row twice; each names its source."""
    keys = [(row.xid, row.variant) for row in XIDS]
    assert len(keys) == len(set(keys))
    assert {row.xid for row in XIDS if not row.variant} == set(range(1, 177))
    assert all(row.source and row.name and row.meaning for row in XIDS)


@pytest.mark.parametrize("row", XIDS, ids=lambda row: f"{row.xid}-{row.variant}")
def test_xid_rows_do_not_contradict_themselves(row: XidRow) -> None:
    """What gates fails, what fails has an action, an application's error never gates and is no hardware fault."""
    if row.gates:
        assert row.outcome is Outcome.FAIL
    if row.outcome is Outcome.FAIL:
        assert row.severity in (Severity.ERROR, Severity.FATAL)
        assert row.action.rank >= Action.RESET_DEVICE.rank
        assert row.clearing is Clearing.HARDWARE_EVENT
    if row.severity is Severity.FATAL:
        assert row.outcome is Outcome.FAIL
    if row.fault_class is FaultClass.APPLICATION:
        assert (row.gates, row.clearing) == (False, Clearing.APPLICATION_EVENT)
        assert row.action.rank <= Action.RESTART_APP.rank


@pytest.mark.parametrize("xid", [177, 180, 999])
def test_unknown_xid_is_surfaced(xid: int) -> None:
    """A code that nobody lists is a warning to inspect, of unknown class, and does not gate."""
    policy = xid_policy(xid)
    assert (policy.outcome, policy.fault_class, policy.action) == (Outcome.WARN, FaultClass.UNKNOWN, Action.INSPECT)
    assert not policy.gates


@pytest.mark.parametrize(
    ("xid", "variant", "action", "gates"),
    [
        (79, "", Action.REBOOT, True),
        (48, "", Action.DRAIN_RESET, True),
        (64, "", Action.DRAIN_RESET, True),
        (63, "", Action.RESET_DEVICE, False),
        (94, "", Action.RESTART_APP, False),
        (119, "", Action.DRAIN_RESET, True),
        (54, "", Action.INSPECT, True),
        (109, "", Action.DRAIN_RESET, True),
        (45, "consequence", Action.NONE, False),
        (149, "nonfatal", Action.WATCH, False),
        (149, "fatal", Action.DRAIN_RESET, True),
        (149, "a variant of tomorrow", Action.INSPECT, False),
        (165, "", Action.REPLACE, False),
    ],
)
def test_contested_codes_are_settled_as_documented(xid: int, variant: str, action: Action, gates: bool) -> None:
    """The codes that tools rate differently have the rating that the documentation gives."""
    policy = xid_policy(xid, variant)
    assert (policy.action, policy.gates) == (action, gates)


def test_switch_codes_follow_the_line_before_the_table() -> None:
    """The word of the line decides; the table tells always fatal from fatal and knows harmless codes."""
    assert sxid_effect(20034, "Fatal") == "fatal"
    assert sxid_effect(22003, "Fatal") == "always_fatal"
    assert sxid_effect(20034, "Non-fatal") == "nonfatal"
    assert sxid_effect(11012, "Non-fatal") == "harmless"
    assert sxid_effect(20034) == "fatal"
    assert sxid_effect(26008) == "unknown"
    assert sxid_policy(26008).action is Action.INSPECT
    assert sxid_policy(99999, "Fatal").outcome is Outcome.FAIL
    rows = load_table("nvidia_sxid.csv", SxidRow)
    assert len({row.sxid for row in rows}) == len(rows)


def test_rules_are_complete() -> None:
    """A rule that tells an event rates it; one that does not has no rating; joins name codes that exist."""
    codes = {rule.code for rule in kernel_rules() if rule.kind in TELLS}
    for rule in kernel_rules():
        rating = (rule.outcome, rule.fault_class, rule.action, rule.clearing, rule.hard, rule.gates)
        by_number = rule.code in ("nvidia.xid", "nvidia.sxid")
        if rule.kind in TELLS and not by_number:
            assert rule.severity is not None and None not in rating and rule.meaning, rule.code
        else:
            assert rule.severity is None and set(rating) == {None}, rule.code
        assert rule.marker == rule.marker.lower() and rule.source, rule.code
        for joins in rule.joins.split("|"):
            assert not joins or any(code.startswith(joins) for code in codes), rule.code


def test_rules_compile_and_ordinary_lines_match_none() -> None:
    """Every pattern is a regular expression, and an ordinary line fits none."""
    assert match_line(Line("systemd: started", Origin.KERNEL)) is None
    for rule in kernel_rules():
        re.compile(rule.pattern.replace("%PCI%", "x").replace("%ADDRESS%", "x"), re.IGNORECASE)


@pytest.mark.parametrize(
    "rule", [rule for rule in kernel_rules() if rule.outcome is Outcome.FAIL], ids=lambda r: r.code
)
def test_failing_rules_gate_and_are_hard(rule: KernelRule) -> None:
    """What fails by a single line gates and needs evidence to clear."""
    assert rule.gates and rule.hard
    assert rule.clearing in (Clearing.HARDWARE_EVENT, Clearing.REPLACEMENT)


def test_policy_of_an_event_uses_its_severity() -> None:
    """One code with several severities has several policies; an unknown code is surfaced."""

    def policy(code: str, severity: Severity) -> Policy:
        return policy_of(Event(code=code, source="x", time=Instant("", 0, 0.0), text="", severity=severity))

    assert policy("pcie.aer", Severity.FATAL).action is Action.REBOOT
    assert policy("pcie.aer", Severity.INFO).outcome is Outcome.PASS
    assert policy("vendor.novelty", Severity.INFO).action is Action.INSPECT


ABBREVIATIONS = re.compile(r"\b(?:aca|aer|apei|bar|bert|ce|cf|cpu|de|dpc|ecc|edac|ip|mce|mes|ras|reg|rm|smu|ue)\b")


@pytest.mark.parametrize("code", [code for code in known_codes() if not code.startswith(("nvidia.xid", "nvidia.sxid"))])
def test_the_name_of_an_event_is_words(code: str) -> None:
    """The code is for programs; a person reads the name, and no abbreviation of a kernel's file stands in it."""
    policy = policy_of_code(code)
    assert policy is not None
    assert not ABBREVIATIONS.search(policy.name), policy.name


def test_what_fails_no_node_is_not_called_fatal() -> None:
    """The record of an earlier boot says fatal; the line for a person says what it means in this one."""
    lines = ["[ 1.0] [Hardware Error]: event severity: fatal", "[ 1.0] [Hardware Error]:   section_type: PCIe error"]
    (found,) = events_from_lines(lines)
    told = describe(found)
    assert told.startswith("line 2: error: pcie.bert: PCI Express error of an earlier boot: "), told
    assert "fatal" not in told
    assert to_json([found])["events"][0]["severity"] == "fatal"
