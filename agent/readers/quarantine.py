"""Devices that hung or crashed their reader: after the second time they are left alone, so that siblings are read.

Pure: the caller brings the time. A quarantined device is tried again after 30 s, then ever later, up to ten minutes.
"""

from __future__ import annotations

import msgspec

from nodevet.checks.core.model import Failure

__all__ = ["Quarantine"]

OFFENCES = 2
FIRST_RETRY_SECONDS = 30.0
LONGEST_RETRY_SECONDS = 600.0
FORGIVEN_AFTER_SECONDS = 600.0
"""An offence is forgotten once the device was read for so long without another."""


class Offence(msgspec.Struct, frozen=True):
    """What a device did: how often, when last, and until when it is left alone (None: it is being read)."""

    failure: Failure
    count: int
    last: float
    retry_at: float | None


class Quarantine:
    """The offences of one backend's devices. All times are monotonic seconds."""

    def __init__(self) -> None:
        """Begin without any."""
        self._offences: dict[str, Offence] = {}

    def charge(self, device: str, failure: Failure, now: float) -> None:
        """Note that *device* brought its reader down; from the second time on it is left alone for a while."""
        earlier = self._offences.get(device)
        count = 1 if earlier is None else earlier.count + 1
        retry_at = None
        if count >= OFFENCES:
            retry_at = now + min(FIRST_RETRY_SECONDS * 2.0 ** (count - OFFENCES), LONGEST_RETRY_SECONDS)
        self._offences[device] = Offence(failure, count, now, retry_at)

    def acquit(self, device: str, now: float) -> None:
        """Note that *device* was attempted and its reader lived; forget its offences after a good while."""
        offence = self._offences.get(device)
        if offence is not None and now - offence.last >= FORGIVEN_AFTER_SECONDS:
            del self._offences[device]

    def try_again(self, now: float) -> bool:
        """Let the devices whose time has come out on probation; return whether there are any."""
        due = [device for device, offence in self._offences.items() if _over(offence, now)]
        for device in due:
            self._offences[device] = msgspec.structs.replace(self._offences[device], retry_at=None)
        return bool(due)

    @property
    def skipped(self) -> dict[str, Failure]:
        """Return the devices that are left alone now, with what they did."""
        return {device: offence.failure for device, offence in self._offences.items() if offence.retry_at is not None}

    @property
    def suspects(self) -> tuple[str, ...]:
        """Return the devices that are read, after all others."""
        return tuple(device for device, offence in self._offences.items() if offence.retry_at is None)

    @property
    def next_deadline(self) -> float | None:
        """Return when the next device may be tried again."""
        return min((entry.retry_at for entry in self._offences.values() if entry.retry_at is not None), default=None)


def _over(offence: Offence, now: float) -> bool:
    return offence.retry_at is not None and offence.retry_at <= now
