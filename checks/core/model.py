"""The data model: every value that passes from one room to another.

All values are frozen, so that a recording can be judged again. A time is a boot id and CLOCK_BOOTTIME in nanoseconds,
which survives a changed wall clock and counts suspended time; the wall clock stands beside it for display.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .device import NODE, Device, DeviceKind, Firmware, Link, compared_serial, told_serial
from .event import Event, Provenance, Severity
from .finding import (
    Action,
    Clearing,
    Episode,
    EpisodeState,
    EventCount,
    FaultClass,
    Finding,
    Key,
    Limit,
    Outcome,
    Shown,
)
from .parts import PART_NAMES, WHOLE, Part, PartKind
from .result import Metric, Result, ResultState
from .sample import NEVER, Failure, FailureKind, Instant, Reading, ReadingStatus, Sample, Scalar
from .scheduler import Permit, WriterStatus

__all__ = [
    "NEVER",
    "NODE",
    "PART_NAMES",
    "WHOLE",
    "Action",
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
    "Outcome",
    "Part",
    "PartKind",
    "Provenance",
    "Reading",
    "ReadingStatus",
    "Result",
    "ResultState",
    "Sample",
    "Scalar",
    "Severity",
    "Shown",
    "compared_serial",
    "told_serial",
]


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
    ``shortage`` is what the machine refused to it, or may have, when it last listed fewer devices or started: such a
    list proves no loss.
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
    shortage: str = ""


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
