"""Public JSON: the fields of ``nodevet.status/1`` and ``nodevet.burn-in/1``."""

from __future__ import annotations

from typing import Any

import msgspec

from nodevet.checks.core.model import Scalar

from .completeness import CompletenessDocument

STATUS_SCHEMA = "nodevet.status/1"
BURN_IN_SCHEMA = "nodevet.burn-in/1"


class DeviceDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A device with its verdict. What gives its peak rates is null where its driver does not tell it."""

    id: str
    vendor: str
    kind: str
    model: str
    pci: str | None
    serial: str | None
    verdict: str
    reason: str = ""
    action: str = "none"
    parent: str | None = None
    numa_node: int | None = None
    driver: str | None = None
    minor: int | None = None
    architecture: str | None = None
    pci_device_id: str | None = None
    compute_units: int | None = None
    maximum_clock_hertz: int | None = None


class LimitDocument(msgspec.Struct, frozen=True):
    """A threshold and its source."""

    op: str
    value: float
    source: str


class FindingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that lasts, or a finding of a check's last run that did not pass.

    ``state`` is null if there is no episode: the finding is unconfirmed, and the verdict does not rest on it. ``hard``
    is true if one reading proves the fault; ``mode`` limits the effect of a hard fault.
    """

    check: str
    code: str
    device: str
    part: str | None
    outcome: str
    fault_class: str
    state: str | None
    message: str
    value: Scalar | None
    unit: str
    limit: LimitDocument | None
    action: str
    first_seen: str | None
    last_seen: str | None
    count: int
    clearing: str = "condition"
    required: bool = False
    note: str | None = None
    hard: bool = False
    mode: str = "drain"
    flapping: int = 0


class AcknowledgedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An acknowledged fault: actor, time, note and end of the term; ``ends_soon`` within a day, or ``expired``.

    One that is not ``present`` is over; a return before the end of the term is covered.
    """

    code: str
    device: str
    part: str | None
    outcome: str
    message: str
    actor: str | None
    note: str | None
    time: str | None
    until: str | None
    ends_soon: bool
    expired: bool
    present: bool = True


class GateDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Whether faults close the local gate, their codes, and the largest effect of a hard fault at this site.

    Without ``permit`` nothing closes; ``codes`` are then the codes that would close the gate.
    """

    closed: bool
    mode: str
    codes: tuple[str, ...]
    permit: bool
    permit_reason: str


class SlurmDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The status of the writer to SLURM."""

    writer: str
    node: str
    states: tuple[str, ...]
    drained_by: str | None
    would_drain: bool
    doing: str
    limit_reached: bool


class ReaderDocument(msgspec.Struct, frozen=True):
    """The status of the process that reads a backend."""

    backend: str
    state: str
    detail: str
    starts: int
    hangs: int
    last_round: str | None
    versions: dict[str, str]
    quarantined: tuple[str, ...]


class AgentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's own state."""

    version: str
    started: str
    interval_seconds: float
    ready: bool
    stopping: bool
    configuration_digest: str
    configuration_accepted: bool
    configuration_message: str
    rules_digest: str
    load: str
    notices: tuple[str, ...]
    jobs: int
    oldest_job_seconds: float | None
    gate_decisions: dict[str, int]


class CheckDocument(msgspec.Struct, frozen=True):
    """The last run of a check, and its number of findings by outcome."""

    check: str
    success: bool
    error: str
    last_run: str
    outcomes: dict[str, int]


class ResultDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a workload. ``verdict`` is null if no check judged it."""

    workload: str
    device: str
    dtype: str | None
    shape: tuple[int, ...]
    metric: str
    value: float | int | None
    unit: str
    conditions: dict[str, Any]
    verdict: str | None
    state: str = "finished"
    seed: int | None = None
    started: str | None = None
    ended: str | None = None
    detail: str = ""


class SeriesDocument(msgspec.Struct, frozen=True):
    """A quantity of a device over time: points of (seconds since the measurement began, value in the key's unit)."""

    device: str
    quantity: str
    points: tuple[tuple[float, float], ...]
    dtype: str | None = None


class VerifiedDocument(msgspec.Struct, frozen=True):
    """How many matrix products were verified, and how many elements or products were wrong."""

    gemms: int
    mismatches: int


class StatusDocument(msgspec.Struct, frozen=True, kw_only=True):
    """``nodevet.status/1``: the document of ``check``, ``status`` and ``/api/v1/status``."""

    schema: str = STATUS_SCHEMA
    node: str
    scope: str
    simulated: bool
    verdict: str
    reason: str
    action: str
    hard: bool
    oldest_evidence: str | None
    time: str
    generation: int
    devices: tuple[DeviceDocument, ...]
    findings: tuple[FindingDocument, ...]
    checks: tuple[CheckDocument, ...]
    readers: tuple[ReaderDocument, ...]
    results: tuple[ResultDocument, ...]
    agent: AgentDocument
    gate: GateDocument
    slurm: SlurmDocument | None
    acknowledged: tuple[AcknowledgedDocument, ...] = ()


class BurnInDocument(msgspec.Struct, frozen=True, kw_only=True):
    """``nodevet.burn-in/1``: the measurements of a burn-in, and the verdict of the node."""

    schema: str = BURN_IN_SCHEMA
    plan: str
    verdict: str
    devices: tuple[DeviceDocument, ...]
    results: tuple[ResultDocument, ...]
    verified: VerifiedDocument
    node: str = ""
    simulated: bool = False
    reason: str = ""
    action: str = "none"
    time: str = ""
    findings: tuple[FindingDocument, ...] = ()
    series: tuple[SeriesDocument, ...] = ()
    agent: AgentDocument | None = None
    acknowledged: tuple[AcknowledgedDocument, ...] = ()
    completeness: CompletenessDocument | None = None
