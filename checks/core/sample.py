"""What was read, and when: readings, how they can fail, and the samples in which they come.

The names are those of checks.model, from which everything else imports them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .errors import ModelError
from .parts import WHOLE, Part

Scalar = float | int | bool | str


class Instant(msgspec.Struct, frozen=True):
    """A moment: which boot, how long into it, and what the wall clock said."""

    boot_id: str
    boottime_ns: int
    wall_seconds: float

    def seconds_since(self, earlier: Instant) -> float | None:
        """Return the seconds that passed since *earlier*, or None where it lies in another boot."""
        if earlier.boot_id != self.boot_id:
            return None
        return (self.boottime_ns - earlier.boottime_ns) / 1e9


NEVER = Instant("", 0, 0.0)
"""When something was looked into that was not since the agent's start: in no boot."""


class ReadingStatus(StrEnum):
    """Why a reading has its value, or why it has none. Old is not a status: it depends on now."""

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
        """Refuse a missing value that claims to be ok, and a value beside a failure."""
        if (self.value is None) is (self.status is ReadingStatus.OK):
            raise ModelError(
                f"reading {self.quantity} of {self.part}: value {self.value!r} with status {self.status.value}"
            )


class FailureKind(StrEnum):
    """How a whole sample, device or backend failed to be read."""

    NO_DRIVER = "no_driver"
    NO_LIBRARY = "no_library"
    NO_DEVICES = "no_devices"
    VERSION_MISMATCH = "version_mismatch"
    DENIED = "denied"
    LOST = "lost"
    RESET_REQUIRED = "reset_required"  # the driver says that only a reset brings the device back
    FAULTY = "faulty"  # the driver names a fault of the hardware, for which it does not open the device
    HUNG = "hung"
    STUCK = "stuck"  # hung in the kernel (state D): cannot even be killed
    CRASHED = "crashed"
    ERROR = "error"
    READER = "reader"  # the reader ended or was held up outside of a driver's call: no witness, nobody to blame


class Failure(msgspec.Struct, frozen=True):
    """Why a sample carries no readings: the kind, and what a person needs to see (call, error text).

    ``of_driver`` tells that this is evidence against the driver or the device: a listed error code, what the kernel
    shows, or a witness. Whatever nobody showed to be evidence is none: a wrapper of another release cannot ask the
    driver, the machine refuses memory, and a library has codes that nobody here knows. ``as_of``: when that was seen
    which each round tells anew of a device that is left alone.
    """

    kind: FailureKind
    detail: str
    of_driver: bool = False
    as_of: Instant | None = None


class Sample(msgspec.Struct, frozen=True):
    """The readings of one group of one device, taken together by one backend."""

    backend: str
    group: str
    device: str
    sequence: int
    time: Instant
    duration_seconds: float
    readings: tuple[Reading, ...] = ()
    failure: Failure | None = None
    simulated: bool = False
