"""Events of the kernel log, each judged by the reference tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import msgspec

from nodevet.checks.core.counts import records_lost
from nodevet.checks.core.guard import one_line
from nodevet.checks.core.model import (
    NODE,
    WHOLE,
    Action,
    Clearing,
    DeviceKind,
    Event,
    FaultClass,
    Finding,
    Outcome,
    Part,
    Provenance,
)
from nodevet.checks.core.occurrences import stamped
from nodevet.checks.core.parts import at_address, of_memory, unit_of
from nodevet.checks.engine.judging import Rule
from nodevet.checks.engine.registry import check
from nodevet.checks.engine.view import KernelLogState, View, device_name
from nodevet.checks.reference.kernel_policy import NUMBERED, event_clearing, told_code, told_policy

TEXT = "; the source is text that a user can write, so it closes no gate: compare with dmesg on the node"

RECORD = "; a user can write this line too, so it closes no gate: compare with the counters of the device"
"""The same if the kernel's own log was read: dmesg shows nothing more."""

PROCESSES = re.compile(r"\b(?:process|thread) (?s:.{0,16}) pid:? \d{1,10}\b|\bpid[ :=]{1,2}'?\d{1,10}\b")
"""A process, a thread or a pid alone, as amdgpu and mlx5 print them: a thread has its own name and number."""

NAMED = re.compile(r"\bname=(?!<unknown>)(?:(?s:.{0,15})(?=, )|(?s:.{0,99}?)(?=, |\Z))")
"""The name in an XID: up to the last comma that may end it, because a name may contain commas.

A process name of a guest has up to 99 bytes; it ends at the first comma.
"""

KERNEL_LOG = "kernel_log"
"""The source of the events of the log."""

AS_TEXT = " as text that a user can write, so its events close no gate"

READABLE = Rule(
    check="kernel-log",
    code="kernel_log.readable",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.CONFIGURATION,
    action=Action.INSPECT,
    clearing=Clearing.UNMEASURED,
    next_step="let the agent's user read /dev/kmsg (root, CAP_SYSLOG or kernel.dmesg_restrict=0; mount it in a"
    " container) or the journal (group adm or systemd-journal)",
)
_count = partial(Rule, check="kernel-log", outcome=Outcome.SKIPPED, fault_class=FaultClass.NODE)
LOST = _count(code="kernel_log.lost_records")
SKIPPED = _count(code="kernel_log.skipped_bytes")


class KernelLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings: events are judged by the reference tables."""


@check("kernel-log", policy=KernelLog)
def judge(view: View, _policy: KernelLog) -> Iterator[Finding]:
    """The kernel log is readable and reports no device fault."""
    yield from _readable(view)
    for event in view.events:
        yield _event(view, event)


def _readable(view: View) -> Iterator[Finding]:
    state = view.kernel_log
    if state is None:
        yield READABLE.on_node(Outcome.SKIPPED, "the kernel log is not read in this run")
        return
    watched = any(device.backend != "host" for device in view.of_kind(DeviceKind.ACCELERATOR))
    is_read = state.readable and not state.begun
    yield READABLE.on_node(
        Outcome.PASS if is_read else Outcome.UNMEASURED,
        _reading(state),
        required=watched and not is_read,
        evidence_time=state.read,
    )
    if state.lost_records:
        yield LOST.on_node(
            Outcome.SKIPPED,
            records_lost(state.lost_records),
            value=state.lost_records,
        )
    if state.skipped_bytes:
        path = state.path or "the kernel log"
        yield SKIPPED.on_node(
            Outcome.SKIPPED,
            f"{state.skipped_bytes} bytes of {path} were skipped to reach its newest lines",
            value=state.skipped_bytes,
        )


def _reading(state: KernelLogState) -> str:
    """Return how far the kernel log is read."""
    path = state.path or "the kernel log"
    if not state.readable:
        return f"the kernel log cannot be read: {state.detail or state.path}"
    if state.begun:
        return f"{path} is not read to its end yet, so its newest lines are not known: wait"
    return f"{path} is read{'' if state.is_evidence else AS_TEXT}"


def _event(view: View, event: Event) -> Finding:
    """Judge one event. An event that is no fault is no proof of health either, so it never passes."""
    policy = told_policy(event)
    device = view.owner(event)
    is_fault = policy.outcome in (Outcome.WARN, Outcome.FAIL)
    hint = _hint(view) if event.provenance is Provenance.TEXT else ""
    return Finding(
        check="kernel-log",
        code=told_code(event),
        outcome=policy.outcome if is_fault else Outcome.SKIPPED,
        message=f"{device_name(view, device)}: {policy.name}: {policy.meaning}{hint} [{_without_process(event)}]",
        device=device,
        part=_part(event, device),
        fault_class=policy.fault_class,
        action=policy.action if is_fault else Action.NONE,
        clearing=event_clearing(policy),
        gates=policy.gates,
        occurrence=_identity(event),
        pid=event.pid,
        evidence_time=event.time,
    )


def _part(event: Event, owner: str) -> Part:
    """Return the part that *event* is about if no reader lists it: a card, a memory module.

    Each has a finding of its own: an acknowledgement of one does not cover another. Events from user-writable text,
    which may contain any number, share one.
    """
    named = event.pci or unit_of(event.fields)
    if owner != NODE or event.provenance is Provenance.TEXT or not named:
        return WHOLE
    return of_memory(named) if event.code.startswith("memory.") else at_address(named)


def _hint(view: View) -> str:
    """Return why an event from user-writable text closes no gate, and where to verify it."""
    state = view.kernel_log
    return RECORD if state is not None and state.readable and state.is_evidence else TEXT


def _without_process(event: Event) -> str:
    """Return the kernel's line without pid and name of a process: everyone who may scrape can read the message.

    A name may contain line ends and control sequences; the message is one line of plain text.
    """
    is_numbered = event.code.rpartition(".")[0] in NUMBERED  # else "name=" may be of the name of a process
    text = NAMED.sub("name=-", event.text) if is_numbered else event.text
    for word in (event.pid, event.process):
        if word is not None:
            text = re.sub(rf"(?<!\w){re.escape(str(word))}(?!\w)", "-", text)
    text = PROCESSES.sub("-", text)
    return one_line(text)


def _identity(event: Event) -> str:
    """Return the unique identifier of this event, the same after the log is read again, from ring buffer or journal."""
    if event.stamp_us is not None:
        return stamped(event.time.boot_id, event.stamp_us, is_of_log=event.source == KERNEL_LOG)
    number = event.sequence if event.sequence is not None else f"{event.source}:{event.time.boottime_ns}"
    return f"{event.time.boot_id}:{number}"
