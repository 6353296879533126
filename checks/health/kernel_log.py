"""What the kernel said: every event is judged by the tables, whoever parsed it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from nodevet.checks.judging import Rule
from nodevet.checks.model import Action, Clearing, DeviceKind, Event, FaultClass, Finding, Outcome, Provenance
from nodevet.checks.reference.kernel_policy import Policy, event_clearing, policy_of
from nodevet.checks.registry import check
from nodevet.checks.view import View, device_name

__all__ = ["TEXT_PREFIX", "KernelLog", "judge"]

TEXT_PREFIX = "text."
"""What stands before the code of a finding that rests on text: a file, a FIFO, or a record that proves nothing."""

READABLE = Rule(
    check="kernel-log",
    code="kernel_log.readable",
    outcome=Outcome.UNMEASURED,
    fault_class=FaultClass.CONFIGURATION,
    action=Action.INSPECT,
    clearing=Clearing.UNMEASURED,
    next_step="let the agent's user read it: group adm or systemd-journal, or kernel.dmesg_restrict=0",
)
LOST = Rule(check="kernel-log", code="kernel_log.lost_records", fault_class=FaultClass.NODE)


class KernelLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events are judged by the reference tables alone."""


@check("kernel-log", policy=KernelLog)
def judge(view: View, _policy: KernelLog) -> Iterator[Finding]:
    """The kernel log can be read, and what it told of devices is no fault."""
    yield from _readable(view)
    for event in view.events:
        yield _event(view, event)


def _readable(view: View) -> Iterator[Finding]:
    state = view.kernel_log
    if state is None:
        yield READABLE.on_node(Outcome.SKIPPED, "the kernel log is not read in this run")
        return
    watched = any(device.backend != "host" for device in view.of_kind(DeviceKind.ACCELERATOR))
    yield READABLE.on_node(
        Outcome.PASS if state.readable else Outcome.UNMEASURED,
        f"{state.path or 'the kernel log'} is read"
        if state.readable
        else f"the kernel log cannot be read: {state.detail or state.path}",
        required=watched and not state.readable,
        evidence_time=state.read,
    )
    if state.lost_records:
        yield LOST.on_node(
            Outcome.SKIPPED,
            f"{state.lost_records} records were overwritten before they could be read",
            value=state.lost_records,
        )


def _event(view: View, event: Event) -> Finding:
    """Judge one event. An event that is no fault is no proof of health either, so it never passes."""
    policy = policy_of(event)
    device = view.owner(event)
    is_fault = policy.outcome in (Outcome.WARN, Outcome.FAIL)
    if is_fault and event.provenance is Provenance.TEXT:
        return _informed(view, event, policy)
    return Finding(
        check="kernel-log",
        code=event.code,
        outcome=policy.outcome if is_fault else Outcome.SKIPPED,
        message=f"{device_name(view, device)}: {policy.name}: {policy.meaning} [{_without_process(event)}]",
        device=device,
        fault_class=policy.fault_class,
        action=policy.action if is_fault else Action.NONE,
        clearing=event_clearing(policy),
        gates=policy.gates,
        occurrence=_identity(event),
        pid=event.pid,
        evidence_time=event.time,
    )


def _informed(view: View, event: Event, policy: Policy) -> Finding:
    """Tell what a line says that a user could have written: under a code of its own, so that neither it nor what is
    done about it, such as an acknowledgement, touches what the kernel itself tells of the same fault.
    """
    device = view.owner(event)
    is_grave = policy.outcome is Outcome.FAIL
    blames_hardware = policy.fault_class is FaultClass.HARDWARE
    return Finding(
        check="kernel-log",
        code=TEXT_PREFIX + event.code,
        outcome=Outcome.WARN,
        message=f"{device_name(view, device)}: {policy.name}: {policy.meaning}; told only by text that a user can "
        f"write, so it closes no gate: look into the log of the kernel itself (dmesg) [{_without_process(event)}]",
        device=device,
        fault_class=FaultClass.UNKNOWN if blames_hardware else policy.fault_class,
        action=Action.INSPECT if is_grave else policy.action,
        clearing=event_clearing(policy),
        gates=False,
        occurrence=_identity(event),
        pid=event.pid,
        evidence_time=event.time,
    )


def _without_process(event: Event) -> str:
    """Return the kernel's line without pid and name of a process: a message is read by everyone who may scrape."""
    text = event.text.strip()
    for word in (event.pid, event.process):
        if word is not None:
            text = re.sub(rf"(?<!\w){re.escape(str(word))}(?!\w)", "-", text)
    return text


def _identity(event: Event) -> str:
    """Return what tells this event from every other, also after the log is read again."""
    number = event.sequence if event.sequence is not None else f"{event.source}:{event.time.boottime_ns}"
    return f"{event.time.boot_id}:{number}"
