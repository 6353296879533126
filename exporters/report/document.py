"""The data of a report, made from a Snapshot, a burn-in or a status in JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from nodevet.checks.core.documents import copied, decoded
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import DeviceKind, Instant, Metric, Result, ResultState, State, Verdict
from nodevet.checks.engine.completeness import Planned, account, judged
from nodevet.exporters.documents.completeness import CompletenessDocument, completeness_document
from nodevet.exporters.documents.types import (
    BURN_IN_SCHEMA,
    STATUS_SCHEMA,
    AcknowledgedDocument,
    AgentDocument,
    BurnInDocument,
    DeviceDocument,
    FindingDocument,
    ResultDocument,
    SeriesDocument,
    StatusDocument,
)
from nodevet.exporters.format import short_name

_SIGNS = {
    "_hertz": (1e-6, "MHz"),
    "_celsius": (1.0, "°C"),
    "_watts": (1.0, "W"),
    "_bytes": (2.0**-20, "MiB"),
    "_seconds": (1.0, "s"),
}
"""Scale and unit for people, by the suffix of a condition's key."""


_NO_SETTINGS = ("load", "planned_results", "simulated")
"""Conditions that the page shows elsewhere, or that mean nothing to people."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One workload on its device, with all its figures by name; a missing or empty figure is None."""

    name: str
    device: str
    label: str
    dtype: str | None
    shape: tuple[int, ...]
    state: str
    verdict: str | None
    detail: str
    seed: int | None
    started: str | None
    ended: str | None
    conditions: dict[str, Any]
    figures: dict[str, float | int | None]

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """Return the conditions that fit on one line, with their units."""
        said = ((key, _said(key, value)) for key, value in self.conditions.items() if key not in _NO_SETTINGS)
        return tuple((_without_unit(key), value) for key, value in said if value)

    @property
    def mismatch_reports(self) -> tuple[dict[str, Any], ...]:
        """Return the examination of each wrong result: its place, its difference, and whether it repeats."""
        reports = self.conditions.get("mismatch_reports")
        return tuple(report for report in reports if isinstance(report, dict)) if isinstance(reports, list) else ()

    def figure(self, name: str) -> float | int | None:
        """Return the figure *name*, or None if it was not measured."""
        return self.figures.get(name)


class ReportDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page of a report."""

    node: str
    simulated: bool
    verdict: str
    reason: str
    action: str
    time: str
    devices: tuple[DeviceDocument, ...]
    labels: dict[str, str]
    workloads: tuple[Workload, ...]
    findings: tuple[FindingDocument, ...]
    acknowledged: tuple[AcknowledgedDocument, ...]
    series: tuple[SeriesDocument, ...]
    completeness: CompletenessDocument | None
    provenance: tuple[tuple[str, str], ...]

    @property
    def open_findings(self) -> int:
        """Return the number of open findings: confirmed, not over and not acknowledged."""
        return sum(finding.state == "open" for finding in self.findings)

    @property
    def device_count(self) -> int:
        """Return the number of devices, without the node itself."""
        return sum(device.kind != DeviceKind.NODE.value for device in self.devices)

    @property
    def has_efficiency(self) -> bool:
        """Return whether a share of the peak is known for any workload."""
        return any(workload.figure("efficiency_ratio") for workload in self.workloads)

    @property
    def gemms_verified(self) -> int:
        """Return the number of products verified on all devices."""
        return sum(int(workload.figure("gemms_verified") or 0) for workload in self.workloads)

    @property
    def wrong(self) -> bool:
        """Return whether any wrong result was examined."""
        return any(workload.mismatch_reports for workload in self.workloads)

    @property
    def mismatches(self) -> int:
        """Return the number of wrong products."""
        return sum(int(workload.figure("mismatches") or 0) for workload in self.workloads)


def from_burn_in(document: BurnInDocument) -> ReportDocument:
    """Return the report of a burn-in."""
    plan = [("plan", document.plan)] if document.plan else []
    report = _report(document, document.findings, document.series, document.agent, plan)
    return msgspec.structs.replace(report, completeness=document.completeness)


def _judged_anew(document: BurnInDocument) -> BurnInDocument:
    """Return *document* with the verdict that its own rows prove: statements of others are not trusted.

    Its verdict may be worse than its rows, never better.
    """
    names = {device.id: device.pci or device.id for device in document.devices}
    told = document.completeness
    planned = [Planned(entry.device, entry.dtype) for entry in (() if told is None else told.accounts)]
    load = account(planned, [_result(workload) for workload in _workloads(document.results, {})])
    verdict = judged(_told(document), load, names)
    return msgspec.structs.replace(
        document, verdict=verdict.state.value, reason=verdict.reason, completeness=completeness_document(load, names)
    )


def _told(document: BurnInDocument) -> Verdict:
    """Return the verdict stated in *document*, or a worse one if other statements in it contradict it."""
    if document.verdict not in set(State):
        return Verdict(state=State.UNKNOWN, reason=f"its verdict {document.verdict!r} is not known")
    verdict = Verdict(state=State(document.verdict), reason=document.reason)
    if document.verified.mismatches and verdict.state is not State.FAILED:
        return Verdict(state=State.FAILED, reason=f"wrong GEMMs: {document.verified.mismatches}")
    told = document.completeness
    if told is not None and told.state != "complete" and verdict.state is State.OK:
        return Verdict(state=State.UNKNOWN, reason=told.reason or f"the load was {told.state}")
    return verdict


def _result(workload: Workload) -> Result:
    never = Instant("", 0, 0.0)
    return Result(
        workload=workload.name,
        devices=tuple(workload.device.split(",")),
        state=ResultState(workload.state) if workload.state in set(ResultState) else ResultState.INTERRUPTED,
        started=never,
        ended=never,
        dtype=workload.dtype,
        detail=workload.detail,
        conditions=workload.conditions,
        metrics=tuple(Metric(name, value, "") for name, value in workload.figures.items()),
    )


def read_document(content: bytes, name: str = "document") -> ReportDocument:
    """Return the report of the JSON in *content*. Raises UsageError, with *name*, if it is no known document."""
    try:
        schema = decoded(content, _Named).schema
        if schema == BURN_IN_SCHEMA:
            return from_burn_in(_judged_anew(decoded(content, BurnInDocument)))
        if schema == STATUS_SCHEMA:
            status = decoded(content, StatusDocument)
            return _report(status, status.findings, (), status.agent, [])  # a status has no curves
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{name} is not a report document: {error}; write one with `nodevet burn-in --json` or "
            "`nodevet check --json`"
        ) from error
    raise UsageError(f"{name} has schema {schema!r}: a report is made from {BURN_IN_SCHEMA} or {STATUS_SCHEMA}")


class _Named(msgspec.Struct):
    schema: str


def _report(
    document: BurnInDocument | StatusDocument,
    findings: tuple[FindingDocument, ...],
    series: tuple[SeriesDocument, ...],
    agent: AgentDocument | None,
    plan: list[tuple[str, str]],
) -> ReportDocument:
    labels = {device.id: short_name(device.id, device.kind, device.minor) for device in document.devices}
    workloads = _workloads(document.results, labels)
    return copied(
        ReportDocument,
        document,
        labels=labels,
        workloads=workloads,
        findings=findings,
        series=series,
        completeness=None,
        provenance=(*plan, *_provenance(agent, workloads)),
    )


def _workloads(results: Iterable[ResultDocument], labels: dict[str, str]) -> tuple[Workload, ...]:
    """Return the rows of *results*, one per figure, as one workload per run."""
    groups: dict[tuple[str, str, str | None, str | None], list[ResultDocument]] = {}
    for row in results:
        groups.setdefault((row.workload, row.device, row.dtype, row.started), []).append(row)
    return tuple(_workload(rows, labels) for rows in groups.values())


def _workload(rows: list[ResultDocument], labels: dict[str, str]) -> Workload:
    # If rows of one run disagree, the worst of them counts.
    first = next((row for row in rows if row.state != ResultState.FINISHED), rows[0])
    figures = {row.metric: row.value for row in rows}
    wrong = [row.value for row in rows if row.metric == "mismatches" and row.value]
    return copied(
        Workload,
        first,
        name=first.workload,
        label=", ".join(labels.get(device, device) for device in first.device.split(",")),
        figures=figures | ({"mismatches": max(wrong)} if wrong else {}),
    )


def _without_unit(key: str) -> str:
    return next((key.removesuffix(ending) for ending in _SIGNS if key.endswith(ending)), key)


def _said(key: str, value: object) -> str:
    """Return *value* for people, in the unit at the end of its *key*; empty if it does not fit on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, (str, int)) for each in value):
        return ", ".join(map(str, value))
    if not isinstance(value, (int, float)):
        return ""
    for ending, (scale, sign) in _SIGNS.items():
        if key.endswith(ending):
            return f"{value * scale:,.4g} {sign}" if value * scale < 1000 else f"{value * scale:,.0f} {sign}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _provenance(agent: AgentDocument | None, workloads: Iterable[Workload]) -> Iterable[tuple[str, str]]:
    seeds = sorted({workload.seed for workload in workloads if workload.seed is not None})
    if seeds:
        yield "seed", ", ".join(map(str, seeds))
    if agent is not None:
        yield "nodevet", agent.version
        yield "configuration digest", agent.configuration_digest or "built-in defaults"
        yield "rules digest", agent.rules_digest or "not recorded"
