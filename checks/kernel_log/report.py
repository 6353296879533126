"""Events as the public JSON of ``nodevet check kernel-log --json``, and as lines for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nodevet.checks.core.guard import printable
from nodevet.checks.core.model import Event, Outcome, Provenance, Severity
from nodevet.checks.reference.kernel_policy import policy_of

SCHEMA = "nodevet.kernel-log/1"


def to_json(events: Iterable[Event]) -> dict[str, Any]:
    """Return *events* as the document of schema ``nodevet.kernel-log/1``; values that a line does not state are null.

    ``gates`` is always false: the source is a saved text, which any user may have written.
    """
    return {
        "schema": SCHEMA,
        "source": Provenance.TEXT.value,
        "gates": False,
        "events": [_event(event) for event in events],
    }


def describe(event: Event) -> str:
    """Return *event* in one line: place, severity, text, row of the tables, action.

    An event that fails no node is not called fatal, such as an error of an earlier boot whose record calls it fatal.
    """
    policy = policy_of(event)
    is_past = event.severity is Severity.FATAL and policy.outcome is not Outcome.FAIL
    word = (policy.severity if is_past else event.severity).value
    where = f"line {event.line}: " if event.line is not None else ""
    device = f" on {event.pci}" if event.pci else ""
    by = f", process {event.process or '?'} ({event.pid})" if event.pid else ""
    line = f"{where}{word}: {event.code}{device}{by}: {policy.name}: {policy.meaning}; action: {policy.action.value}"
    # A process name may contain line ends and terminal control characters.
    return printable(line)


def _event(event: Event) -> dict[str, Any]:
    policy = policy_of(event)
    return {
        "line": event.line,
        "code": event.code,
        "pci": event.pci,
        "severity": event.severity.value,
        "action": policy.action.value,
        "pid": event.pid,
        "process": event.process,
        "fault_class": policy.fault_class.value,
        "fields": dict(sorted(event.fields.items())),
        "text": event.text,
        "provenance": event.provenance.value,
    }
