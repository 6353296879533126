"""The data model: every value that passes from one room to another.

All values are frozen, so that a recording can be judged again. A time is a boot id and CLOCK_BOOTTIME in nanoseconds,
which survives a changed wall clock and counts suspended time; the wall clock stands beside it for display.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from .device import NODE, Device, DeviceKind, Firmware, Link, compared_serial, told_serial
from .errors import ModelError
from .parts import PART_NAMES, WHOLE, Part, PartKind
from .sample import NEVER, Failure, FailureKind, Instant, Reading, ReadingStatus, Sample, Scalar
from .scheduler import Permit, WriterStatus

__all__ = [
    "NEVER",
    "NODE",
    "PART_NAMES",
    "WHOLE",
    "Device",
    "DeviceKind",
    "Failure",
    "FailureKind",
    "Firmware",
    "Instant",
    "Link",
    "Part",
    "PartKind",
    "Reading",
    "ReadingStatus",
    "Sample",
    "Scalar",
    "compared_serial",
    "told_serial",
]


class Severity(StrEnum):
    """The severity of an event as its source rates it."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"


class Provenance(StrEnum):
    """The origin of an event: the driver's interface, a kernel record that only a driver writes, or anybody's text."""

    DRIVER = "driver"
    KERNEL = "kernel"
    TEXT = "text"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One occurrence. ``sequence`` and ``stamp_us`` (kernel log clock, microseconds) are those of the kernel record.

    An event that the driver reports without the log has the time of that clock at which it was reported.
    """

    code: str
    source: str
    time: Instant
    text: str
    severity: Severity = Severity.ERROR
    device: str | None = None
    pci: str | None = None
    sequence: int | None = None
    stamp_us: int | None = None
    line: int | None = None
    pid: int | None = None
    process: str | None = None
    fields: dict[str, str] = {}
    provenance: Provenance = Provenance.TEXT


class EventCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of events of one code on one device since counting began, and the time of the last one."""

    code: str
    device: str
    fault_class: FaultClass
    count: int
    last: Instant


class ResultState(StrEnum):
    """The end of a workload. Only ``finished`` measured everything that it set out to."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"
    DIED = "died"


class Metric(msgspec.Struct, frozen=True):
    """One figure of a workload with its unit."""

    name: str
    value: float | int | None
    unit: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a workload on its devices, with their conditions."""

    workload: str
    devices: tuple[str, ...]
    state: ResultState
    started: Instant
    ended: Instant
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    seed: int | None = None
    pattern: str | None = None
    detail: str = ""
    conditions: dict[str, Any] = {}
    metrics: tuple[Metric, ...] = ()

    def metric(self, name: str) -> float | int | None:
        """Return the value of the metric *name*, or None where it was not measured."""
        return next((metric.value for metric in self.metrics if metric.name == name), None)


class Limit(msgspec.Struct, frozen=True):
    """A threshold with its unit and where it comes from (``configuration``, ``reported``, ``table`` ...)."""

    op: str
    value: float
    unit: str
    source: str

    def holds(self, value: float) -> bool:
        """Return whether *value* satisfies the relation of the limit, such as ``value >= 85``."""
        match self.op:
            case ">=":
                return value >= self.value
            case ">":
                return value > self.value
            case "<=":
                return value <= self.value
            case "<":
                return value < self.value
            case "==":
                return value == self.value
            case "!=":
                return value != self.value
        raise ModelError(f"limit operator {self.op!r} is not one of >= > <= < == !=")


class Outcome(StrEnum):
    """The outcome of a check on one subject."""

    PASS = "pass"  # noqa: S105 (not a password)
    WARN = "warn"
    FAIL = "fail"
    UNMEASURED = "unmeasured"
    SKIPPED = "skipped"


class FaultClass(StrEnum):
    """The cause of a fault by owner: decides who is notified and whether the node is closed."""

    HARDWARE = "hardware"
    NODE = "node"
    CONFIGURATION = "configuration"
    APPLICATION = "application"
    UNKNOWN = "unknown"


class Action(StrEnum):
    """The action to take, from mild to hard; ``rank`` orders them."""

    NONE = "none"
    WATCH = "watch"
    RESTART_APP = "restart_app"
    RESET_DEVICE = "reset_device"
    DRAIN_RESET = "drain_reset"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    INSPECT = "inspect"
    REPLACE = "replace"

    @property
    def rank(self) -> int:
        """Return the position from mild (0) to hard."""
        return list(Action).index(self)


class Clearing(StrEnum):
    """The row of reference/clearing.csv that decides how an episode ends."""

    CONDITION = "condition"
    UNMEASURED = "unmeasured"
    HARDWARE_EVENT = "hardware_event"
    WRONG_RESULT = "wrong_result"
    REPLACEMENT = "replacement"
    APPLICATION_EVENT = "application_event"


class Key(msgspec.Struct, frozen=True, order=True):
    """The subject of an episode: a code on a part of a device."""

    code: str
    device: str
    part: Part = WHOLE

    def __str__(self) -> str:
        """Return ``code on device, part`` for display."""
        return f"{self.code} on {self.device}" + ("" if self.part == WHOLE else f", {self.part}")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A wrong result: *wrong* of *of* products of one format and shape, with duration, temperature and power.

    A condition that is None was not recorded, unless ``unsupported`` names it: then the device does not measure it.
    Every load reports the memory that it used; results of an earlier version have None.
    """

    load: str
    workload: str
    dtype: str | None
    shape: tuple[int, ...]
    wrong: int
    of: int | None
    seconds: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    unsupported: tuple[str, ...] = ()
    memory_bytes: int | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check on one subject from one sample: stateless.

    ``needed`` of ``window`` samples must agree before it counts (1 of 1 for hard findings). ``occurrence`` separates a
    new fault from an old one that is still visible: an event's identity, or a counter's value. ``evidence`` names the
    quantities that were judged, ``evidence_time`` is when they were read. ``pid`` is the process that an application
    event belongs to. ``shown`` holds the wrong results behind the finding. ``follows`` names its cause: the lost
    device, or the switch. ``required``: the node must be able to measure this, else it is unknown.
    ``again``: seconds after which another sample may decide this; 0 is none. ``as_of``: time of the last real sample
    behind a finding that each round repeats without one, such as a driver that is called again only after minutes.
    ``gates`` is False for findings that never close a gate or drain: their source is a user's text, a site's number or
    a bug of nodevet.
    """

    check: str
    code: str
    outcome: Outcome
    message: str
    device: str = NODE
    part: Part = WHOLE
    fault_class: FaultClass = FaultClass.HARDWARE
    value: Scalar | None = None
    unit: str = ""
    limit: Limit | None = None
    action: Action = Action.NONE
    clearing: Clearing = Clearing.CONDITION
    needed: int = 1
    window: int = 1
    required: bool = False
    again: float = 0.0
    gates: bool = True
    follows: str = ""
    occurrence: str | None = None
    pid: int | None = None
    shown: tuple[Shown, ...] = ()
    evidence: tuple[str, ...] = ()
    evidence_time: Instant | None = None
    as_of: Instant | None = None

    @property
    def key(self) -> Key:
        """Return the key of an episode of this finding."""
        return Key(self.code, self.device, self.part)

    @property
    def hard(self) -> bool:
        """Return whether one sample is enough to close a gate."""
        return self.gates and self.needed == 1 and self.window == 1

    @property
    def bad(self) -> bool:
        """Return whether this sample counts against the device: a fault, or a required reading that is missing."""
        return self.outcome in (Outcome.WARN, Outcome.FAIL) or (self.required and self.outcome is Outcome.UNMEASURED)


class EpisodeState(StrEnum):
    """The state of an episode."""

    PENDING = "pending"
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    CLEARED = "cleared"


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """A fault over time: when it was first seen, confirmed, last seen, how often, and what ended it.

    ``outcome`` is the worst that was confirmed; ``recent`` holds the last samples (True = bad) for confirmation;
    ``good`` counts consecutive good samples, which a condition needs to clear; ``milder`` counts consecutive samples
    with a warning or nothing during a failure; ``looked`` is when the last sample was taken, so that none is counted
    twice.
    ``serial`` and ``pci`` are the device's at the time.
    The person ``actor`` acknowledged it at ``acknowledged`` with a ``note``; ``known`` is its outcome and action at
    that time. The acknowledgement holds until ``until``; ``expired`` is the first round after that. Without ``until``
    it may still cover returns until ``covers``, as a resume of the node does. ``flapping`` is how often the fault
    returned while it is held open for that.
    """

    key: Key
    check: str
    state: EpisodeState
    outcome: Outcome
    finding: Finding
    opened: Instant
    last_seen: Instant
    confirmed: Instant | None = None
    cleared: Instant | None = None
    count: int = 1
    good: int = 0
    recent: tuple[bool, ...] = ()
    looked: Instant | None = None
    serial: str | None = None
    pci: str | None = None
    cleared_by: str | None = None
    note: str | None = None
    actor: str | None = None
    acknowledged: Instant | None = None
    until: Instant | None = None
    expired: Instant | None = None
    covers: Instant | None = None
    known: tuple[Outcome, Action] | None = None
    flapping: int = 0
    milder: int = 0


class State(StrEnum):
    """The verdict on a device or a node. Order for the gate: failed > unknown > degraded > ok."""

    OK = "ok"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"
    FAILED = "failed"

    @property
    def rank(self) -> int:
        """Return the position from harmless (0) to closed."""
        return list(State).index(self)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a device or the node, its reason, and the action to take."""

    state: State
    reason: str
    action: Action = Action.NONE
    episodes: tuple[Key, ...] = ()
    oldest_evidence: Instant | None = None
    hard: bool = False


class Mode(StrEnum):
    """The strongest effect of a hard finding: observe only, close the local gate, or also drain the node."""

    OBSERVE = "observe"
    GATE = "gate"
    DRAIN = "drain"

    @property
    def rank(self) -> int:
        """Return the position from observing (0) to draining."""
        return list(Mode).index(self)


class Modes(msgspec.Struct, frozen=True):
    """The modes in force: the site's and those of its checks; the lower one counts."""

    site: Mode = Mode.DRAIN
    checks: dict[str, Mode] = {}

    def of(self, check: str) -> Mode:
        """Return the mode of *check*."""
        return min(self.site, self.checks.get(check, self.site), key=lambda mode: mode.rank)


class ReaderState(StrEnum):
    """The state of the child process that reads a backend."""

    STARTING = "starting"
    RUNNING = "running"
    ABSENT = "absent"  # no device of this vendor is in the machine
    FAILED = "failed"  # the vendor's library refuses
    HUNG = "hung"
    STUCK = "stuck"
    CRASHED = "crashed"
    RELEASED = "released"
    STOPPED = "stopped"


class ReaderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One reader: its state, ``since`` when its present process reads, and its last failure.

    ``looked`` is when it last reported on its driver: at the end of a round, by a refusal, by a crash or by a hang.
    ``required``: somebody declared that this node has such devices, so that their absence is no proof of health.
    ``hangs`` and ``crashes`` count since the agent's start, ``witnessed`` the recent ones inside a driver call while
    nothing else delayed the reader, ``blamed`` the same for each device. ``left_alone`` describes the last failure of
    each quarantined device, ``refusals`` counts how often in a row its library or backend ended it with a reason.
    """

    backend: str
    state: ReaderState
    detail: str = ""
    pid: int | None = None
    starts: int = 0
    hangs: int = 0
    crashes: int = 0
    last_round: Instant | None = None
    failure: Failure | None = None
    versions: dict[str, str] = {}
    quarantined: tuple[str, ...] = ()
    left_alone: dict[str, str] = {}
    required: bool = False
    witnessed: int = 0
    blamed: dict[str, int] = {}
    refusals: int = 0
    since: Instant | None = None
    looked: Instant | None = None


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive refusals of an accelerator by its driver: their number, since when, and the last one.

    ``evidence`` separates the last refusal from the next one.
    """

    looks: int
    since: Instant
    last: Instant
    evidence: str


class CheckRun(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of one check. A check that raised did not run, and its findings are unmeasured."""

    check: str
    time: Instant
    duration_seconds: float
    success: bool
    error: str = ""
    outcomes: dict[str, int] = {}


class OwnUse(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that the agent's process uses; None where one could not be read.

    Of a page that several processes share, ``resident_bytes`` counts all and ``proportional_bytes`` a part (PSS).
    """

    resident_bytes: int | None = None
    proportional_bytes: int | None = None
    cpu_seconds: float | None = None
    open_descriptors: int | None = None
    threads: int | None = None


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's own state. ``load`` describes the load that runs, or why none does; ``probing``: one may run now.

    ``store`` and ``state_file`` hold the error of the last write, empty where it succeeded. ``jobs`` counts the jobs
    that claim the node, ``gate_decisions`` the decisions of their prologs. Without ``permit`` no gate closes.
    ``dropped_log_lines`` counts lines that the log queue had no room for, ``refused_connections`` those of the HTTP
    server. ``own_use`` is the use of the agent's process alone, without its readers.
    """

    version: str
    started: Instant
    interval_seconds: float
    configuration_digest: str = ""
    rules_digest: str = ""
    configuration_file: str | None = None
    configuration_accepted: bool = True
    configuration_message: str = ""
    ready: bool = False
    stopping: bool = False
    load: str = ""
    probing: bool = False
    store: str = ""
    state_file: str = ""
    notices: tuple[str, ...] = ()
    jobs: int = 0
    oldest_job_seconds: float | None = None
    gate_decisions: dict[str, int] = msgspec.field(default_factory=dict)
    dropped_log_lines: int = 0
    refused_connections: int = 0
    slurm: WriterStatus | None = None
    permit: Permit = Permit()
    own_use: OwnUse = OwnUse()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All data that a surface may show, taken at one moment. Surfaces render it and add nothing.

    ``samples`` are the latest of each (device, group); ``findings`` the latest of every check; ``episodes`` all that
    are not cleared; ``results`` the latest of each workload and device; ``events`` counts the events of kernel log and
    drivers, also those that are no hardware fault; ``refusals`` are the driver's, by accelerator.
    ``covered`` are faults that are over and whose acknowledgement still covers their return; ``names`` maps former
    device ids to present ones, as far as this agent has seen. ``on_bus`` are the accelerators as the PCI bus shows
    them now, also where ``devices`` has the one that its own reader lists or listed last.
    """

    generation: int
    time: Instant
    node: str
    scope: str
    simulated: bool
    verdict: Verdict
    device_verdicts: dict[str, Verdict]
    devices: tuple[Device, ...]
    samples: tuple[Sample, ...]
    findings: tuple[Finding, ...]
    episodes: tuple[Episode, ...]
    results: tuple[Result, ...]
    readers: tuple[ReaderStatus, ...]
    checks: tuple[CheckRun, ...]
    agent: AgentInfo
    modes: Modes = Modes()
    events: tuple[EventCount, ...] = ()
    refusals: dict[str, Refusal] = {}
    covered: tuple[Episode, ...] = ()
    names: dict[str, str] = {}
    on_bus: tuple[Device, ...] = ()
