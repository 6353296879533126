"""Failed samples of unread devices, with the reason, so that no device looks healthy because it was not read."""

from __future__ import annotations

import msgspec

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.checks.core.model import NEVER, Failure, FailureKind, Instant, Sample

from .stages import FALLEN


def seen_at(failure: Failure, instant: Instant) -> Failure:
    """Return *failure* with *instant* as the time of its first observation, however often it is repeated."""
    return msgspec.structs.replace(failure, as_of=instant)


def unread(plan: ReaderPlan, device: str, group: str, number: int, instant: Instant, failure: Failure) -> Sample:
    """Return the failed sample of *device* for round *number* of *group*."""
    simulated = plan.stand_in is not None
    return Sample(plan.backend, group, device, number, instant, 0.0, failure=failure, simulated=simulated)


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
