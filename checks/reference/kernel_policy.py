"""The meaning and the action of a kernel event: looked up in tables, never decided in code."""

from __future__ import annotations

import functools
from enum import StrEnum
from typing import Literal

import msgspec

from nodevet.checks.core.documents import copied
from nodevet.checks.core.model import Action, Clearing, Event, FaultClass, Outcome, Provenance, Severity

from .tables import load_table

TEXT_PREFIX = "text."
"""Code prefix of events whose source is text: a file, a FIFO, or a record without proof of its origin."""

UNKNOWN_NUMBER = "unknown"
"""Replaces an unlisted number in the code of an event whose source is text."""

NUMBERED = ("nvidia.xid", "nvidia.sxid")
"""Families whose codes end in the number in the line."""


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """What an event means, how grave it is, whose fault, what to do, what clears it, and who says so.

    ``hard``: one event is enough. ``gates``: the node must not start new jobs.
    """

    meaning: str
    severity: Severity
    outcome: Outcome
    fault_class: FaultClass
    action: Action
    clearing: Clearing
    hard: bool
    gates: bool
    source: str


class Policy(Ruling, frozen=True, kw_only=True):
    """The ruling on an event, with what a person calls it."""

    name: str


class XidRow(Policy, frozen=True, kw_only=True):
    """One row of nvidia_xid.csv. ``variant`` tells cases apart that the line itself distinguishes."""

    xid: int
    variant: str


SxidEffectName = Literal["harmless", "nonfatal", "fatal", "always_fatal", "unknown"]


class SxidRow(msgspec.Struct, frozen=True):
    """One row of nvidia_sxid.csv: the name of an NVSwitch code, and its effect where the line does not state one."""

    sxid: int
    name: str
    effect: SxidEffectName
    source: str


class SxidEffect(Ruling, frozen=True, kw_only=True):
    """One row of nvidia_sxid_effects.csv: what an effect means for the node."""

    effect: SxidEffectName


class _Name(msgspec.Struct, frozen=True):
    """One row of kernel_names.csv: the display name of a code whose last part is an abbreviation."""

    code: str
    name: str
    source: str


class RuleKind(StrEnum):
    """The role of a line that matches a rule.

    ``event``: it happened. ``header``: announces the event that ``joins`` names, and is an event itself where none
    follows. ``echo``: repeats the event just reported, and is an event itself where there was none. ``detail``: adds to
    the event just reported. ``context``: adds to an event that follows. ``rename``: changes an event of the three lines
    before it to the rule's code. ``identity``: names a device. ``ignore``: is no fault.
    """

    EVENT = "event"
    HEADER = "header"
    ECHO = "echo"
    DETAIL = "detail"
    CONTEXT = "context"
    RENAME = "rename"
    IDENTITY = "identity"
    IGNORE = "ignore"


class Proof(StrEnum):
    """The proof of origin that a matching line needs to be evidence; a rule without one only informs.

    ``line``: the pattern is the whole grammar of the line up to its last field. ``device``: the driver logs it with
    dev_printk, so the DEVICE of the record, which no user can write, must also name the address in the text.
    """

    LINE = "line"
    DEVICE = "device"


class KernelRule(msgspec.Struct, frozen=True):
    """One row of kernel_rules.csv. ``marker`` is a lower-case text that every matching line contains.

    ``pattern`` is a regular expression that must match from the first byte of a record, case ignored; ``%PCI%`` stands
    for an address in the group ``pci``, ``%ADDRESS%`` for one without a group, ``%AMD%`` for the prefixes that amdgpu
    may print, ``%AMDHEAD%`` for the prefix of amdgpu or one of its functions, ``%AMDWORD%`` for any function or the
    word of an error alone. Other named groups become fields of the event. At least 16 bytes that a user cannot choose
    precede the first one that a user can: a process name has 15. ``proof`` is the proof of origin.
    ``joins`` is the beginning of a code, or several separated by ``|``. Rows with one pattern are one rule: the first
    one matches, and the others rate the event where another line of its record states another severity.
    """

    code: str
    kind: RuleKind
    marker: str
    pattern: str
    proof: Proof | None
    joins: str
    severity: Severity | None
    outcome: Outcome | None
    fault_class: FaultClass | None
    action: Action | None
    clearing: Clearing | None
    hard: bool | None
    gates: bool | None
    meaning: str
    source: str


_UNKNOWN = Policy(
    name="unknown code",
    meaning="this version of nodevet has no entry for it; look it up in the documentation of the vendor",
    severity=Severity.WARNING,
    outcome=Outcome.WARN,
    fault_class=FaultClass.UNKNOWN,
    action=Action.INSPECT,
    clearing=Clearing.HARDWARE_EVENT,
    hard=True,
    gates=False,
    source="own rule: an unknown code is surfaced, never dropped",
)


def kernel_rules() -> tuple[KernelRule, ...]:
    """Return the rules in matching order."""
    return load_table("kernel_rules.csv", KernelRule)


def policy_of(event: Event) -> Policy:
    """Return the policy of *event*; an unknown code is a warning to inspect, never dropped."""
    family, _, number = event.code.rpartition(".")
    if family == "nvidia.xid" and number.isdecimal():
        return xid_policy(int(number), event.fields.get("variant", ""))
    if family == "nvidia.sxid" and number.isdecimal():
        return sxid_policy(int(number), event.fields.get("word", ""))
    policies = _rule_policies()
    return policies.get((event.code, event.severity)) or policies.get((event.code, None), _UNKNOWN)


def told_code(event: Event) -> str:
    """Return the code under which *event* is shown: a separate one where its source is text that a user can write.

    Thus neither such a text nor an action on it, such as an acknowledgement, affects the driver's own reports.
    Unlisted numbers of a family share one code there: the author of the text chooses the numbers, and must not create
    as many findings as there are numbers. The message quotes the line with its number.
    """
    if event.provenance is not Provenance.TEXT:
        return event.code
    family, _, number = event.code.rpartition(".")
    is_unknown = family in NUMBERED and number.isdecimal() and not _is_known_number(family, int(number))
    return f"{TEXT_PREFIX}{family}.{UNKNOWN_NUMBER}" if is_unknown else f"{TEXT_PREFIX}{event.code}"


def _is_known_number(family: str, number: int) -> bool:
    """Return whether the table of *family* contains *number*."""
    return number in _sxid_table() if family == "nvidia.sxid" else (number, "") in _xid_table()


def told_policy(event: Event) -> Policy:
    """Return the policy of *event* on this node: that of its code, and no more than a hint where its source is text."""
    policy = policy_of(event)
    return _informing(policy) if event.provenance is Provenance.TEXT else policy


def _informing(policy: Policy) -> Policy:
    """Return *policy* for a text: at most a warning, not a hardware fault, and closing no gate."""
    is_grave = policy.outcome is Outcome.FAIL
    blames_hardware = policy.fault_class is FaultClass.HARDWARE
    return msgspec.structs.replace(
        policy,
        outcome=Outcome.WARN if is_grave else policy.outcome,
        fault_class=FaultClass.UNKNOWN if blames_hardware else policy.fault_class,
        action=Action.INSPECT if is_grave else policy.action,
        gates=False,
    )


def event_clearing(policy: Policy) -> Clearing:
    """Return the clearing rule for an event of *policy*.

    A condition clears on good samples, but an event is never sampled again: a re-test must disprove it.
    """
    return Clearing.HARDWARE_EVENT if policy.clearing is Clearing.CONDITION else policy.clearing


def known_codes() -> tuple[str, ...]:
    """Return every code in the tables."""
    numbered = [f"nvidia.xid.{xid}" for xid, variant in _xid_table() if not variant]
    numbered += [f"nvidia.sxid.{sxid}" for sxid in _sxid_table()]
    return (*numbered, *dict.fromkeys(code for code, _ in _rule_policies()))


def policy_of_code(code: str) -> Policy | None:
    """Return the policy of *code* without the details of a line, or None for a code of no family."""
    if code.startswith(TEXT_PREFIX):
        policy = policy_of_code(code.removeprefix(TEXT_PREFIX))
        return None if policy is None else _informing(policy)
    if code == f"nvidia.sxid.{UNKNOWN_NUMBER}":
        return copied(Policy, _sxid_effects()["unknown"], name="unknown code")
    if code == f"nvidia.xid.{UNKNOWN_NUMBER}":
        return _UNKNOWN
    family, _, number = code.rpartition(".")
    if number.isdecimal() and family == "nvidia.xid":
        return xid_policy(int(number))
    if number.isdecimal() and family == "nvidia.sxid":
        return sxid_policy(int(number))
    return _rule_policies().get((code, None))


def xid_policy(xid: int, variant: str = "") -> Policy:
    """Return the policy of the XID; *variant* is a detail of its line, such as ``fatal`` or ``consequence``."""
    table = _xid_table()
    row = table.get((xid, variant)) or table.get((xid, ""))
    return _UNKNOWN if row is None else row


def sxid_policy(sxid: int, word: str = "") -> Policy:
    """Return the policy of the NVSwitch code; *word* is ``Fatal`` or ``Non-fatal`` where its line has it."""
    row = _sxid_table().get(sxid)
    effect = _sxid_effects()[sxid_effect(sxid, word)]
    return copied(Policy, effect, name=row.name if row else "unknown code")


def sxid_effect(sxid: int, word: str = "") -> SxidEffectName:
    """Return the effect of the NVSwitch code: the line's own *word* precedes the table."""
    row = _sxid_table().get(sxid)
    listed: SxidEffectName = row.effect if row else "unknown"
    match word.lower().replace("-", ""):
        case "fatal":
            return "always_fatal" if listed == "always_fatal" else "fatal"
        case "nonfatal":
            return "harmless" if listed == "harmless" else "nonfatal"
    return listed


@functools.lru_cache(maxsize=1)
def _xid_table() -> dict[tuple[int, str], XidRow]:
    return {(row.xid, row.variant): row for row in load_table("nvidia_xid.csv", XidRow)}


@functools.lru_cache(maxsize=1)
def _sxid_table() -> dict[int, SxidRow]:
    return {row.sxid: row for row in load_table("nvidia_sxid.csv", SxidRow)}


@functools.lru_cache(maxsize=1)
def _sxid_effects() -> dict[SxidEffectName, SxidEffect]:
    return {row.effect: row for row in load_table("nvidia_sxid_effects.csv", SxidEffect)}


@functools.lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    return {row.code: row.name for row in load_table("kernel_names.csv", _Name)}


@functools.lru_cache(maxsize=1)
def _rule_policies() -> dict[tuple[str, Severity | None], Policy]:
    """Return the policies by code and severity; severity None has the first rule of the code."""
    policies: dict[tuple[str, Severity | None], Policy] = {}
    for rule in kernel_rules():
        policy = _rule_policy(rule)
        if policy is not None:
            policies.setdefault((rule.code, policy.severity), policy)
            policies.setdefault((rule.code, None), policy)
    return policies


def _rule_policy(rule: KernelRule) -> Policy | None:
    if None in (rule.severity, rule.outcome, rule.fault_class, rule.action, rule.clearing):
        return None
    name = _names().get(rule.code) or rule.code.rpartition(".")[2].replace("_", " ")
    return copied(Policy, rule, name=name, hard=bool(rule.hard), gates=bool(rule.gates))
