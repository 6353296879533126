"""Samples: readings with their time, and the ways in which reading fails.

Other rooms import these names from checks.core.model.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .errors import ModelError
from .parts import WHOLE, Part

Scalar = float | int | bool | str

EARLIEST_WALL_SECONDS = -62_135_596_800.0
LATEST_WALL_SECONDS = 253_402_300_799.0
"""The years 1 to 9999, which RFC 3339 and Python's datetime can show."""

LARGEST_BOOTTIME_NS = 2**63 - 1
"""The largest integer of SQLite."""


class Instant(msgspec.Struct, frozen=True):
    """A moment: the boot id, the nanoseconds since that boot, and the wall clock in seconds.

    Every Instant can be shown and stored: a clock that states a time beyond its range counts as lost and is 0.
    """

    boot_id: str
    boottime_ns: int
    wall_seconds: float

    def __post_init__(self) -> None:
        """Set a wall time outside of the years 1 to 9999 to 0, and a time since boot that SQLite cannot store."""
        if not EARLIEST_WALL_SECONDS <= self.wall_seconds <= LATEST_WALL_SECONDS:
            msgspec.structs.force_setattr(self, "wall_seconds", 0.0)
        if not -LARGEST_BOOTTIME_NS <= self.boottime_ns <= LARGEST_BOOTTIME_NS:
            msgspec.structs.force_setattr(self, "boottime_ns", 0)

    def seconds_since(self, earlier: Instant) -> float | None:
        """Return the seconds since *earlier*, or None where it is of another boot."""
        if earlier.boot_id != self.boot_id:
            return None
        return (self.boottime_ns - earlier.boottime_ns) / 1e9


NEVER = Instant("", 0, 0.0)
"""The time of a sample that was not taken since the agent's start: of no boot."""


class ReadingStatus(StrEnum):
    """The state of a reading, or the reason for its missing value. Age is no status: it depends on the time."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    DENIED = "denied"
    ERROR = "error"


class Reading(msgspec.Struct, frozen=True):
    """One measured value of one quantity on one part. The value is None exactly when status is not ok."""

    quantity: str
    value: Scalar | None
    part: Part = WHOLE
    status: ReadingStatus = ReadingStatus.OK
    detail: str = ""

    def __post_init__(self) -> None:
        """Refuse a missing value with status ok, and a value with any other status."""
        if (self.value is None) is (self.status is ReadingStatus.OK):
            raise ModelError(
                f"reading {self.quantity} of {self.part}: value {self.value!r} with status {self.status.value}"
            )


class FailureKind(StrEnum):
    """The way in which reading a whole sample, device or backend failed."""

    NO_DRIVER = "no_driver"
    NO_LIBRARY = "no_library"
    NO_DEVICES = "no_devices"
    VERSION_MISMATCH = "version_mismatch"
    DENIED = "denied"
    LOST = "lost"
    RESET_REQUIRED = "reset_required"  # the driver reports that only a reset recovers the device
    FAULTY = "faulty"  # the driver reports a hardware fault and does not open the device
    HUNG = "hung"
    STUCK = "stuck"  # hung in the kernel (state D): cannot be killed
    CRASHED = "crashed"
    ERROR = "error"
    READER = "reader"  # the reader ended or was delayed outside of a driver call: no evidence against anyone


class Failure(msgspec.Struct, frozen=True):
    """The reason why a sample has no readings: the kind, and the details for a person (call, error text).

    ``of_driver``: this is evidence against the driver or the device: a listed error code, a kernel record or a witness.
    Everything else is no evidence: a wrapper of another release cannot call the driver, the machine refuses memory, or
    a library returns unlisted codes. ``as_of``: when a failure was observed that each round repeats for a device that
    is left alone.
    """

    kind: FailureKind
    detail: str
    of_driver: bool = False
    as_of: Instant | None = None

    def __post_init__(self) -> None:
        """Replace what no text can hold: a name of a file or a program may be any bytes."""
        if not self.detail.isascii():
            plain = self.detail.encode("utf-8", "backslashreplace").decode()
            msgspec.structs.force_setattr(self, "detail", plain)


class Sample(msgspec.Struct, frozen=True):
    """The readings of one group of one device, read together by one backend."""

    backend: str
    group: str
    device: str
    sequence: int
    time: Instant
    duration_seconds: float
    readings: tuple[Reading, ...] = ()
    failure: Failure | None = None
    simulated: bool = False


def held_once(sample: Sample, before: Sample | None) -> Sample:
    """Return *sample* with the readings of the one *before* where they are equal: findings and growth hold those, too.

    Most are equal, and so each is held once, and is the same object when it is compared.
    """
    if before is None:
        return sample
    known = before.readings
    readings = [
        old if old == new and type(old.value) is type(new.value) else new
        for old, new in zip(known, sample.readings, strict=False)
    ]
    return msgspec.structs.replace(sample, readings=(*readings, *sample.readings[len(known) :]))
