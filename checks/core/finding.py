"""Findings of the checks, and episodes: findings over time."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .device import NODE
from .errors import ModelError
from .parts import WHOLE, Part
from .sample import Instant, Scalar


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
        outcome = self.outcome
        if outcome is Outcome.PASS or outcome is Outcome.SKIPPED:  # of most findings, and asked of each in every round
            return False
        return outcome is not Outcome.UNMEASURED or self.required


class EventCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of events of one code on one device since counting began, and the time of the last one."""

    code: str
    device: str
    fault_class: FaultClass
    count: int
    last: Instant


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
