"""A status document as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from nodevet.agent.terminal import paint, table
from nodevet.exporters.schema import FindingDocument, ResultDocument, StatusDocument

__all__ = ["devices_table", "findings_lines", "headline", "status_text"]

ACTIONS = {
    "none": "nothing to do",
    "watch": "watch it",
    "restart_app": "restart the application",
    "reset_device": "reset the device when it is idle",
    "drain_reset": "drain the node, then reset the device",
    "reboot": "drain and reboot the node",
    "power_cycle": "drain and power-cycle the node",
    "inspect": "have the hardware inspected",
    "replace": "have the device replaced",
}
"""Every action in words that say what to do."""


def headline(document: StatusDocument) -> str:
    """Return the verdict in one line."""
    simulated = " (simulated)" if document.simulated else ""
    line = f"{document.node}{simulated}: {paint(document.verdict)}"
    return line if document.verdict == "ok" else f"{line}: {document.reason}"


def status_text(document: StatusDocument) -> str:
    """Return the whole document as text: verdict, devices, findings, results, and the agent's own troubles."""
    lines = [headline(document)]
    if document.verdict != "ok" and document.action != "none":
        lines.append(f"what to do: {ACTIONS[document.action]}")
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


def devices_table(document: StatusDocument) -> str:
    """Return the devices as a table."""
    rows = [
        (
            device.kind + (f" {device.minor}" if device.minor is not None else ""),
            device.model,
            device.pci or device.id,
            device.serial or "-",
            paint(device.verdict),
        )
        for device in document.devices
    ]
    return table(rows, ("DEVICE", "MODEL", "PLACE", "SERIAL", "VERDICT"))


def findings_lines(document: StatusDocument) -> Iterator[str]:
    """Yield each finding in two lines: what it is, then value, limit, state and what to do."""
    for finding in document.findings:
        yield f"{paint(finding.outcome)}  {finding.code}  {finding.message}"
        yield "      " + "; ".join(_details(finding))


def _details(finding: FindingDocument) -> Iterator[str]:
    yield finding.state or "not confirmed"
    if finding.limit is not None:
        yield f"limit {finding.limit.op} {finding.limit.value:g} {finding.unit} ({finding.limit.source})"
    if finding.count > 1:
        yield f"{finding.count} times"
    if finding.first_seen:
        yield f"since {finding.first_seen}"
    if finding.note:
        yield f"note: {finding.note}"
    if finding.action != "none":
        yield ACTIONS[finding.action]


def _results_lines(document: StatusDocument) -> Iterator[str]:
    """Yield one line per workload, device and number format with its main figures."""
    runs: dict[tuple[str, str, str], dict[str, ResultDocument]] = {}
    for result in document.results:
        runs.setdefault((result.workload, result.device, result.dtype or ""), {})[result.metric] = result
    for (workload, device, dtype), figures in runs.items():
        state = next(iter(figures.values())).state
        shown = [_figure(figures.get(name), words) for name, words in _FIGURES]
        yield f"{workload} {dtype} on {device}: {state}: {', '.join(filter(None, shown))}"


_FIGURES = (
    ("tflops_median", "{:.3g} TFLOPS (median)"),
    ("efficiency_ratio", "{:.0%} of the theoretical peak"),
    ("gemms_verified", "{:.0f} products verified"),
    ("mismatches", "{:.0f} wrong"),
)


def _figure(result: ResultDocument | None, text: str) -> str:
    return "" if result is None or result.value is None else text.format(result.value)


def _troubles(document: StatusDocument) -> Iterator[str]:
    for reader in document.readers:
        if reader.state not in ("running", "absent", "starting", "stopped"):
            yield f"reader {reader.backend}: {reader.state}: {reader.detail}"
    for check in document.checks:
        if not check.success:
            yield f"check {check.check} did not run: {check.error}"
    if not document.agent.configuration_accepted:
        yield f"configuration: {document.agent.configuration_message}"
    yield from document.agent.notices
    if document.agent.load:
        yield f"load: {document.agent.load}"
