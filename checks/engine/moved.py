"""A board that a boot may have moved to another address: unlisted under its name, and silent without one. Pure."""

from __future__ import annotations

from collections.abc import Collection

from nodevet.checks.core.model import Device, Failure, FailureKind

from .baseline import UNNAMED
from .view import View

TOLD_AS_LOSS = frozenset({FailureKind.LOST, FailureKind.RESET_REQUIRED, FailureKind.FAULTY})
"""Failures that each have a finding of their own with the outcome ``fail``."""


def is_told(failure: Failure | None, kinds: Collection[FailureKind]) -> bool:
    """Return whether *failure* is one of *kinds*, and evidence: without memory a library reports any board as lost."""
    return failure is not None and failure.kind in kinds and failure.of_driver


def moved_board(view: View, backend: str) -> tuple[Device, Device] | tuple[None, None]:
    """Return the only unlisted board of *backend*, and the only one that is silent and unidentified.

    Addresses may change with a boot. That both are one board is likely, not proven: it is reported as one loss, not as
    a name. A board that is silent for another reason is no loss, and replaces none.
    """
    present = {device.id for device in view.devices}
    known = [seen.device for seen in view.memory.seen.values() if seen.device.backend == backend]
    unlisted = [board for board in known if board.uuid and board.parent is None and board.id not in present]
    nameless = [board for board in view.devices if board.backend == backend and not board.uuid]
    silent = [board for board in nameless if is_told(view.failure(board.id), TOLD_AS_LOSS)]
    if len(unlisted) != 1 or len(silent) != 1 or silent[0].model not in (UNNAMED, unlisted[0].model):
        return None, None
    return unlisted[0], silent[0]
