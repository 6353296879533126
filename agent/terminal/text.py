"""A status document as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nodevet.checks.engine.explanation import ACTIONS
from nodevet.checks.engine.standing import NOT_EVALUATED
from nodevet.checks.engine.view import device_node_name
from nodevet.exporters.documents.types import (
    AcknowledgedDocument,
    DeviceDocument,
    FindingDocument,
    ResultDocument,
    StatusDocument,
)
from nodevet.exporters.format import amount, one_in

from .output import paint, table

LISTED_IN_FULL = 3
"""Up to this number, unmeasured findings of a device are listed one by one."""

NAMED = 6
"""Number of codes that are named where there are more."""


def headline(document: StatusDocument) -> str:
    """Return the verdict in one line."""
    simulated = " (simulated)" if document.simulated else ""
    return f"{document.node}{simulated}: {verdict_words(document.verdict, document.reason)}"


def verdict_words(verdict: str, reason: str) -> str:
    """Return *verdict* with its *reason*; for a healthy node only the acknowledged findings."""
    said = reason.partition("; ")[2] if verdict == "ok" and reason.startswith("healthy") else reason
    if verdict != "ok":
        return f"{paint(verdict)}: {said}"
    return f"{paint(verdict)}, {said}" if said else paint(verdict)


def status_text(document: StatusDocument) -> str:
    """Return the document as text: verdict, devices, findings, results, and problems of the agent."""
    lines = [headline(document)]
    if document.verdict != "ok" and document.action != "none":
        actions = [finding.action for finding in document.findings if finding.state == "open"]
        of = f" (the most severe of {len(actions)} findings)" if len(set(actions)) > 1 else ""
        lines.append(f"action{of}: {ACTIONS[document.action]}")
    lines += _gate(document)
    if document.devices:
        lines += ["", devices_table(document)]
    findings = list(findings_lines(document))
    if findings:
        lines += ["", *findings]
    results = list(_results_lines(document))
    if results:
        lines += ["", *results]
    troubles = list(_troubles(document))
    if troubles:
        lines += ["", *troubles]
    return "\n".join(lines)


def _gate(document: StatusDocument) -> Iterator[str]:
    """Yield the effect on jobs: whether the gate is closed, and the state of the drain in SLURM."""
    if document.gate.closed:
        yield f"gate: closed by {', '.join(document.gate.codes)} where the prolog is installed"
    elif document.gate.codes:
        codes = ", ".join(document.gate.codes)
        yield f"gate: open despite {codes}, no permit: {document.gate.permit_reason}"
    elif document.hard and not document.simulated:
        yield "gate: open, mode is observe for these faults (mode in [gate] and [checks.NAME])"
    if document.slurm is not None:
        whose = {"nodevet": "drained by nodevet", "other": "drained by another user or program"}
        doing = document.slurm.doing or whose.get(document.slurm.drained_by or "", "")
        if doing:
            yield f"slurm: {doing}"


def devices_table(document: StatusDocument) -> str:
    """Return the devices as a table; a verdict is followed by the number of acknowledged findings of the device."""
    known = Counter(word.device for word in document.acknowledged if word.present)
    rows = [
        (
            _kind(device),
            device.model,
            device.pci or device.id,
            device.serial or "-",
            ("not judged" if device.reason == NOT_EVALUATED else paint(device.verdict))
            + (f", {known[device.id]} acknowledged" if known[device.id] else ""),
        )
        for device in sorted(document.devices, key=lambda device: device.pci or "")
    ]
    return table(rows, ("DEVICE", "MODEL", "ADDRESS", "SERIAL", "VERDICT"))


def findings_lines(document: StatusDocument) -> Iterator[str]:
    """Yield two lines for each finding, then one line for each device with many unmeasured findings.

    An unreadable device lacks dozens of readings for one reason, which a confirmed finding reports already.
    """
    unjudged = Counter(finding.device for finding in document.findings if _is_unjudged(finding))
    missing: dict[str, list[str]] = {}
    words = {(word.code, word.device, word.part): word for word in document.acknowledged if word.present}
    for finding in document.findings:
        if _is_unjudged(finding) and unjudged[finding.device] > LISTED_IN_FULL:
            missing.setdefault(finding.device, []).append(finding.code)
            continue
        yield f"{paint(finding.outcome)}  {finding.code}  {finding.message}"
        yield "      " + "; ".join(_details(finding, words.get((finding.code, finding.device, finding.part))))
    for device, codes in missing.items():
        names = tuple(dict.fromkeys(codes))
        more = f" and {len(names) - NAMED} more (--json lists them)" if len(names) > NAMED else ""
        listed = ", ".join(names[:NAMED]) + more
        yield f"{paint('unmeasured')}  {_name(document, device)}: not judged: {listed}"


def _is_unjudged(finding: FindingDocument) -> bool:
    return finding.outcome == "unmeasured" and finding.state is None


def _name(document: StatusDocument, device: str) -> str:
    """Return the name of *device* in the table of devices."""
    known = next((entry for entry in document.devices if entry.id == device), None)
    return device if known is None else f"{_kind(known)} ({known.pci or known.id})"


def _kind(device: DeviceDocument) -> str:
    return device.kind if device.minor is None else f"{device.kind} {device_node_name(device.minor)}"


def _details(finding: FindingDocument, word: AcknowledgedDocument | None) -> Iterator[str]:
    state = finding.state or "pending"
    yield (f"{state}, not confirmed yet" if state == "pending" else state) if word is None else _word(word)
    if finding.flapping:
        yield f"flapping, {finding.flapping} times"
    if finding.limit is not None:
        yield f"limit {finding.limit.op} {amount(finding.limit.value, finding.unit)} ({finding.limit.source})"
    if finding.count > 1:
        yield f"{finding.count} times"
    if finding.first_seen:
        yield f"since {finding.first_seen}"
    if finding.note:
        yield f"note: {finding.note}"
    if finding.state != "acknowledged" and finding.action != "none" and ACTIONS[finding.action] not in finding.message:
        yield ACTIONS[finding.action]


def _word(word: AcknowledgedDocument) -> str:
    """Return the acknowledgement of a fault: actor, time and expiry."""
    said = f"acknowledged by {word.actor or 'a person'}" + (f" on {word.time}" if word.time else "")
    said += f" until {word.until}" if word.until else ""
    return said + (", expired" if word.expired else ", ends within a day" if word.ends_soon else "")


def _results_lines(document: StatusDocument) -> Iterator[str]:
    """Yield one line for each workload, device and number format: main figures, and why nothing was verified."""
    runs: dict[tuple[str, str, str], dict[str, ResultDocument]] = {}
    for result in document.results:
        runs.setdefault((result.workload, result.device, result.dtype or ""), {})[result.metric] = result
    for (workload, device, dtype), figures in runs.items():
        last = next(iter(figures.values()))
        bound = figures[_BOUND].value if _BOUND in figures else None
        rate = f"error rate below {one_in(bound)} (95 % confidence)" if bound else ""
        shown = ", ".join(
            filter(None, (*(_figure(figures.get(name), words, factor) for name, words, factor in _FIGURES), rate))
        )
        proof = str(last.conditions.get("verification", ""))
        said = last.detail or ("" if proof == "verified" else proof)
        yield f"{workload} {dtype} on {_name(document, device)}: {last.state}: {'; '.join(filter(None, (shown, said)))}"


_FIGURES = (
    ("tflops_median", "{:.3g} TFLOPS (median)", 1),
    ("efficiency_ratio", "{:.0f} % of the theoretical peak", 100),
    ("clock_fraction_ratio", "{:.0f} % of the specified clock", 100),
    ("efficiency_held_ratio", "{:.0f} % of the peak at that clock", 100),
    ("gemms_verified", "{:.0f} GEMMs verified", 1),
    ("mismatches", "{:.0f} wrong", 1),
)
_BOUND = "mismatch_rate_upper_bound_95"


def _figure(result: ResultDocument | None, text: str, factor: int) -> str:
    return "" if result is None or result.value is None else text.format(factor * result.value)


_UNEXPLAINED = {"released": "nodevet release closed its device handles; the agent reads its devices again afterwards"}
"""Reasons for states of a collector that come without a detail."""


def unread_lines(document: StatusDocument) -> Iterator[str]:
    """Yield a line for each collector that is down: its devices are missing from the output."""
    yield from (line for _, line in _unread(document))


def _unread(document: StatusDocument) -> Iterator[tuple[str, str]]:
    """Yield the state of each collector that is down and should run, and a line with the reason."""
    for reader in document.readers:
        if reader.state not in ("running", "absent", "starting", "stopped"):
            why = reader.detail or _UNEXPLAINED.get(reader.state, "no detail is known")
            yield reader.state, f"{reader.backend} collector {reader.state}: {why}"


def _troubles(document: StatusDocument) -> Iterator[str]:
    told = {finding.code for finding in document.findings}
    yield from (line for state, line in _unread(document) if f"reader.{state}" not in told)
    for check in document.checks:
        if not check.success:
            yield f"check {check.check} did not run: {check.error}"
    if not document.agent.configuration_accepted:
        yield f"configuration: {document.agent.configuration_message}"
    yield from document.agent.notices
    for word in document.acknowledged:
        if word.ends_soon or word.expired:
            ends = "has expired" if word.expired else "ends within a day"
            yield f"acknowledgement of {word.code} on {word.device} {ends}: acknowledge it again, or repair and re-test"
        if not word.present:
            where = f"{word.device}, {word.part}" if word.part else word.device
            note = f"; note: {word.note}" if word.note else ""
            yield f"cleared, a return is acknowledged too: {word.code} on {where}: {_word(word)}{note}"
    if document.agent.load:
        yield f"load: {document.agent.load}"
    if document.agent.jobs:
        oldest = document.agent.oldest_job_seconds or 0.0
        yield f"jobs: {document.agent.jobs} with a claim on this node, the oldest for {oldest / 3600:.1f} h"
    decided = [f"{name} {count}" for name, count in document.agent.gate_decisions.items() if count]
    if decided:
        yield f"gate decisions: {', '.join(decided)}"
