"""Devices that hung or crashed their reader: after the second failure they are skipped, so that siblings are read.

Pure: the caller passes the time. A quarantined device is retried after 30 s, then at growing intervals up to ten
minutes; one whose hangs are excused, always after 30 s.
"""

from __future__ import annotations

import msgspec

from nodevet.checks.core.model import Failure

FAILURES = 2
FIRST_RETRY_SECONDS = 30.0
LONGEST_RETRY_SECONDS = 600.0
FORGOTTEN_AFTER_SECONDS = 600.0
"""A failure is forgotten after the device was read for so long without another one."""


class FailureRecord(msgspec.Struct, frozen=True):
    """Failures of a device: number, time of the last one, and end of the quarantine (None: the device is read).

    ``answered``: the device was read since the last one.
    """

    failure: Failure
    count: int
    last: float
    retry_at: float | None
    answered: bool = False


class Quarantine:
    """The failures of one backend's devices. All times are monotonic seconds."""

    def __init__(self) -> None:
        """Start without any."""
        self._records: dict[str, FailureRecord] = {}

    def record_failure(self, device: str, failure: Failure, now: float) -> None:
        """Record that *device* ended its reader; from the second time on, quarantine it."""
        earlier = self._records.get(device)
        count = 1 if earlier is None else earlier.count + 1
        retry_at = None
        if count >= FAILURES:
            retry_at = now + min(FIRST_RETRY_SECONDS * 2.0 ** (count - FAILURES), LONGEST_RETRY_SECONDS)
        self._records[device] = FailureRecord(failure, count, now, retry_at)

    def record_excused(self, device: str, failure: Failure, now: float) -> None:
        """Record that a call on *device* hung and another cause was seen: the device is read after all others.

        It is skipped if it was not read since its last failure: its siblings are read although the cause stays.
        """
        earlier = self._records.get(device)
        is_in_a_row = earlier is not None and not earlier.answered
        retry_at = now + FIRST_RETRY_SECONDS if is_in_a_row else None
        self._records[device] = FailureRecord(failure, 0 if earlier is None else earlier.count, now, retry_at)

    def record_success(self, device: str, now: float) -> None:
        """Record that *device* was read and its reader lived; forget its failures after FORGOTTEN_AFTER_SECONDS."""
        record = self._records.get(device)
        if record is None:
            return
        if now - record.last >= FORGOTTEN_AFTER_SECONDS:
            del self._records[device]
        elif not record.answered:
            self._records[device] = msgspec.structs.replace(record, answered=True)

    def try_again(self, now: float) -> bool:
        """Release the devices whose quarantine has ended, on probation; return whether there are any."""
        due = [device for device, record in self._records.items() if _over(record, now)]
        for device in due:
            self._records[device] = msgspec.structs.replace(self._records[device], retry_at=None)
        return bool(due)

    @property
    def skipped(self) -> dict[str, Failure]:
        """Return the quarantined devices with their last failure."""
        return {device: record.failure for device, record in self._records.items() if record.retry_at is not None}

    @property
    def suspects(self) -> tuple[str, ...]:
        """Return the devices that are read after all others."""
        return tuple(device for device, record in self._records.items() if record.retry_at is None)

    @property
    def next_deadline(self) -> float | None:
        """Return the time of the next release."""
        return min((entry.retry_at for entry in self._records.values() if entry.retry_at is not None), default=None)


def _over(record: FailureRecord, now: float) -> bool:
    return record.retry_at is not None and record.retry_at <= now
