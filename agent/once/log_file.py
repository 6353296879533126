"""A saved kernel log, judged: what `nodevet check kernel-log --from FILE` says."""

from __future__ import annotations

import msgspec

from nodevet.agent.terminal import exits
from nodevet.checks.core.model import Event, FaultClass, Outcome
from nodevet.checks.kernel_log.reader import events_from_file
from nodevet.checks.kernel_log.report import describe, to_json
from nodevet.checks.reference.kernel_policy import policy_of

NO_EVIDENCE = "source: text that a user can write; its events close no gate"


class KernelLogReport(msgspec.Struct, frozen=True):
    """The events as text and as JSON, and the exit code of the worst of them."""

    text: str
    json: bytes
    exit_code: int


def kernel_log_report(path: str) -> KernelLogReport:
    """Return what the saved log *path* (``-``: standard input) tells. Raises UsageError when it cannot be read."""
    events = events_from_file(path)
    lines = [*map(describe, events), NO_EVIDENCE] if events else ["no device event in this log"]
    return KernelLogReport("\n".join(lines), msgspec.json.encode(to_json(events)) + b"\n", _exit_code(events))


def _exit_code(events: list[Event]) -> int:
    """Return 2 where an event fails a node, 1 where one degrades it, else 0: a user's own error is no fault of it."""
    policies = [policy_of(event) for event in events]
    outcomes = {policy.outcome for policy in policies if policy.fault_class is not FaultClass.APPLICATION}
    if Outcome.FAIL in outcomes:
        return exits.FAILED
    return exits.DEGRADED if Outcome.WARN in outcomes else exits.OK
