"""Events as the public JSON of ``nodevet check kernel-log --json``, and as lines for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nodevet.checks.core.guard import printable
from nodevet.checks.core.model import Event, Outcome, Provenance, Severity
from nodevet.checks.reference.kernel_policy import policy_of

SCHEMA = "nodevet.kernel-log/1"


def to_json(events: Iterable[Event]) -> dict[str, Any]:
    """Return *events* as the document of schema ``nodevet.kernel-log/1``; what a line does not state is null.

    ``gates`` is always false: the document is of a saved text, which anybody may have written.
    """
    return {
        "schema": SCHEMA,
        "source": Provenance.TEXT.value,
        "gates": False,
        "events": [_event(event) for event in events],
    }


def describe(event: Event) -> str:
    """Return *event* in one line: where, how grave, what in words, where in the tables, what to do.

    What fails no node is not called fatal, as the error of an earlier boot that its record calls so.
    """
    policy = policy_of(event)
    is_past = event.severity is Severity.FATAL and policy.outcome is not Outcome.FAIL
    word = (policy.severity if is_past else event.severity).value
    where = f"line {event.line}: " if event.line is not None else ""
    device = f" on {event.pci}" if event.pci else ""
    by = f", process {event.process or '?'} ({event.pid})" if event.pid else ""
    line = f"{where}{word}: {event.code}{device}{by}: {policy.name}: {policy.meaning}; action: {policy.action.value}"
    # A process may have line ends in its name, and what a terminal obeys.
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
