"""The reasons in failed samples of unread devices: no device looks healthy because it was not read."""

from __future__ import annotations

import msgspec

from nodevet.checks.core.model import NEVER, Failure, FailureKind, Instant

from .stages import FALLEN


def seen_at(failure: Failure, instant: Instant) -> Failure:
    """Return *failure* with *instant* as the time of its first observation, however often it is repeated."""
    return msgspec.structs.replace(failure, as_of=instant)


def why_unread(device: str, failure: Failure | None, guilty: str | None) -> Failure:
    """Return why *device* is not read while its reader is down with *failure*, which *guilty* caused.

    A device is not charged for a failure that another device caused.
    """
    if failure is None:
        return Failure(FailureKind.READER, "the collector has not started yet", as_of=NEVER)
    if failure.kind is FailureKind.READER:
        return failure
    if failure.kind in FALLEN and device != guilty:
        return Failure(FailureKind.READER, f"its collector is down: {failure.detail}", as_of=failure.as_of)
    return failure
