"""The vocabulary: every value that crosses from one room of the house to another.

All of it is frozen: what was judged once can be judged again from a recording. Time is boot id and CLOCK_BOOTTIME in
nanoseconds, which outlives a changed wall clock and counts sleep; the wall clock stands beside it for people.
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
    "Action",
    "AgentInfo",
    "CheckRun",
    "Clearing",
    "Device",
    "DeviceKind",
    "Episode",
    "EpisodeState",
    "Event",
    "EventCount",
    "Failure",
    "FailureKind",
    "FaultClass",
    "Finding",
    "Firmware",
    "Instant",
    "Key",
    "Limit",
    "Link",
    "Metric",
    "Mode",
    "Modes",
    "Outcome",
    "OwnUse",
    "Part",
    "PartKind",
    "Provenance",
    "ReaderState",
    "ReaderStatus",
    "Reading",
    "ReadingStatus",
    "Result",
    "ResultState",
    "Sample",
    "Scalar",
    "Severity",
    "Snapshot",
    "State",
    "Verdict",
    "compared_serial",
    "told_serial",
]


class Severity(StrEnum):
    """How grave the source of an event rates it."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"


class Provenance(StrEnum):
    """Who vouches: the driver's interface, the kernel by a record that only a driver writes, or a text of anybody's."""

    DRIVER = "driver"
    KERNEL = "kernel"
    TEXT = "text"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened once. ``sequence`` and ``stamp_us``, its clock's, are the kernel's own of the record.

    What a driver tells without the log has the moment of that clock at which it was told.
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
    """How often events of one code came on one device since they are counted, and when the last one came."""

    code: str
    device: str
    fault_class: FaultClass
    count: int
    last: Instant


class ResultState(StrEnum):
    """How a workload ended. Only ``finished`` measured what it set out to."""

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
    """What a workload measured on its devices, and under which conditions."""

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
        """Return whether *value* stands in the relation that the limit names, such as ``value >= 85``."""
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
    """What a check says of one thing it looked at."""

    PASS = "pass"  # noqa: S105 (not a password)
    WARN = "warn"
    FAIL = "fail"
    UNMEASURED = "unmeasured"
    SKIPPED = "skipped"


class FaultClass(StrEnum):
    """Whose fault it is: decides who is told and whether the node is closed."""

    HARDWARE = "hardware"
    NODE = "node"
    CONFIGURATION = "configuration"
    APPLICATION = "application"
    UNKNOWN = "unknown"


class Action(StrEnum):
    """What to do, from mild to hard; ``rank`` orders them."""

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
    """Which row of reference/clearing.csv says what ends an episode."""

    CONDITION = "condition"
    UNMEASURED = "unmeasured"
    HARDWARE_EVENT = "hardware_event"
    WRONG_RESULT = "wrong_result"
    REPLACEMENT = "replacement"
    APPLICATION_EVENT = "application_event"


class Key(msgspec.Struct, frozen=True, order=True):
    """What an episode is about: a code on a part of a device."""

    code: str
    device: str
    part: Part = WHOLE

    def __str__(self) -> str:
        """Return ``code on device, part`` for people."""
        return f"{self.code} on {self.device}" + ("" if self.part == WHOLE else f", {self.part}")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A wrong result as it showed: *wrong* of *of* products of one format and shape, in how many seconds, how warm.

    A condition that is None was not recorded, unless ``unsupported`` names it: then the device cannot tell it. The
    memory that the load took is told by each load; what an earlier version kept has None.
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
    """What one check says of one thing, from one look: stateless.

    ``needed`` of ``window`` looks must agree before it counts (1 of 1 for hard findings). ``occurrence`` tells a new
    fault from an old one that is still visible: an event's identity, or a counter's value. ``evidence`` names the
    quantities that were looked at, ``evidence_time`` says when the judged one was read. ``pid`` is the process that an
    application event belongs to. ``shown`` are the wrong results that it rests on. ``follows`` names the lost device,
    or says the switch, that it follows from. ``required``: the node must be able to measure this, or is unknown.
    ``again``: another look after so many seconds may tell what this one could not; 0 is none. ``as_of``: when that was
    looked into last which each round tells anew without a look of its own, such as a driver that is asked again after
    minutes.
    ``gates`` is False for what never closes a gate or drains: it rests on a user's text, a site's number, or our fault.
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
        """Return what an episode of this finding would be about."""
        return Key(self.code, self.device, self.part)

    @property
    def hard(self) -> bool:
        """Return whether one look is enough to close a gate."""
        return self.gates and self.needed == 1 and self.window == 1

    @property
    def bad(self) -> bool:
        """Return whether this look speaks against the device: a fault, or a required reading that was not had."""
        return self.outcome in (Outcome.WARN, Outcome.FAIL) or (self.required and self.outcome is Outcome.UNMEASURED)


class EpisodeState(StrEnum):
    """Where an episode stands."""

    PENDING = "pending"
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    CLEARED = "cleared"


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """A fault over time: when it was first seen, confirmed, last seen, how often, and what ended it.

    ``outcome`` is the worst that was confirmed; ``recent`` holds the last looks (True = bad) that confirmation counts;
    ``good`` counts the good looks in a row that a condition needs to clear, ``milder`` those in a row that showed a
    warning or nothing where it is a failure; ``looked`` is when the evidence of the last look was taken, so that one
    sample is never counted twice. ``serial`` and ``pci`` are the device's at the time.
    A person of the name ``actor`` acknowledged it at ``acknowledged`` with a ``note``, ``known`` being its outcome and
    action then; that holds to ``until``, and the first round after it was at ``expired``. One without such an end may
    cover returns until ``covers`` all the same, as a resume of the node does. ``flapping`` says how often it came back
    while it is held open for that.
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
    """The verdict of a device or a node. For a gate that must choose: failed > unknown > degraded > ok."""

    OK = "ok"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"
    FAILED = "failed"

    @property
    def rank(self) -> int:
        """Return the position from harmless (0) to closed."""
        return list(State).index(self)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a device or of the node, why, and what to do."""

    state: State
    reason: str
    action: Action = Action.NONE
    episodes: tuple[Key, ...] = ()
    oldest_evidence: Instant | None = None
    hard: bool = False


class Mode(StrEnum):
    """How far a hard finding of a check may reach: be seen, close the local gate, or also drain the node."""

    OBSERVE = "observe"
    GATE = "gate"
    DRAIN = "drain"

    @property
    def rank(self) -> int:
        """Return the position from seen only (0) to draining."""
        return list(Mode).index(self)


class Modes(msgspec.Struct, frozen=True):
    """The modes in force: the site's, and those of its checks. The lower of the two counts."""

    site: Mode = Mode.DRAIN
    checks: dict[str, Mode] = {}

    def of(self, check: str) -> Mode:
        """Return how far a hard finding of *check* may reach."""
        return min(self.site, self.checks.get(check, self.site), key=lambda mode: mode.rank)


class ReaderState(StrEnum):
    """How the child that reads a backend is doing."""

    STARTING = "starting"
    RUNNING = "running"
    ABSENT = "absent"  # nothing of this vendor is in the machine
    FAILED = "failed"  # the vendor's library refuses
    HUNG = "hung"
    STUCK = "stuck"
    CRASHED = "crashed"
    RELEASED = "released"
    STOPPED = "stopped"


class ReaderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One reader: what it does, ``since`` when its present process reads, and what it hung in.

    ``looked`` is when it told last how its driver does: at the end of a round, with a refusal, or by its fall.
    ``required``: somebody said that this node has such devices, so that their absence is no proof of health.
    ``hangs`` and ``crashes`` count since the agent's start, ``witnessed`` those of late inside a call of the driver
    while nothing else kept the reader from running, ``blamed`` the same for each device. ``left_alone`` says what each
    device in quarantine did last, ``refusals`` how often in a row its library or backend ended it with a reason.
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
    """How often in a row the driver refused an accelerator, ``since`` when and until when (``last``).

    ``evidence`` tells the last look from the next one.
    """

    looks: int
    since: Instant
    last: Instant
    evidence: str


class CheckRun(msgspec.Struct, frozen=True, kw_only=True):
    """How the last run of one check went. A check that raised did not run, and its findings are unmeasured."""

    check: str
    time: Instant
    duration_seconds: float
    success: bool
    error: str = ""
    outcomes: dict[str, int] = {}


class OwnUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of the agent takes of its machine; None where that could not be read.

    Of a page that several processes share, ``resident_bytes`` counts all and ``proportional_bytes`` a part (PSS).
    """

    resident_bytes: int | None = None
    proportional_bytes: int | None = None
    cpu_seconds: float | None = None
    open_descriptors: int | None = None
    threads: int | None = None


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's own state. ``load`` says in words why or what load runs; ``probing`` whether one may run now.

    ``store`` and ``state_file`` say why the last write of either failed, and are empty where it succeeded. ``jobs``
    counts those that claim the node, ``gate_decisions`` what their prologs decided. Without ``permit`` no gate closes.
    ``dropped_log_lines`` found no room on their way to the log, ``refused_connections`` none at the HTTP server.
    ``own_use`` is of the agent's process alone, not of its readers.
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
    """Everything that a surface may show, taken at one moment. Surfaces render it and add nothing.

    ``samples`` are the latest of each (device, group); ``findings`` the last look of every check; ``episodes`` all
    that are not cleared; ``results`` the last of each workload and device; ``events`` counts what the kernel log and
    the drivers told, also what is no fault of the hardware; ``refusals`` are those of each accelerator by its driver.
    ``covered`` are faults that are over and whose acknowledgement still covers their return; ``names`` gives their ids
    of now to devices that had another one before, as far as this agent has seen. ``on_bus`` are the accelerators as
    the PCI bus shows them now, also where ``devices`` has what their own reader tells, or told last.
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
