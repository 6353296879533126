"""How far a fault may reach: be seen, close the local gate, or drain the node. Pure.

Whatever closes the gate needs a permit, which the agent takes under the limits of the whole cluster.

Only what one look proves reaches anything: a measured fault, such as a rate below its limit, is shown whatever the mode
says, so that a bad threshold pushed everywhere cannot take a cluster. An acknowledged fault reaches nothing, and
a simulated node has no gate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from nodevet.checks.model import (
    NODE,
    Device,
    DeviceKind,
    Episode,
    EpisodeState,
    FailureKind,
    Mode,
    Outcome,
    ReaderState,
    Snapshot,
    State,
    Verdict,
)
from nodevet.checks.vendors import LENT_DRIVERS

__all__ = ["Reach", "asked", "closing", "draining", "driver_refuses_all", "gating", "named", "reach"]

Reach = Literal["hard", "refused", "unpermitted", "observed", "soft"]
"""What a verdict rests on: faults that close the gate, a driver that refuses every accelerator, either of them without
a permit, faults that may only be seen, or none."""

REFUSALS = frozenset(
    {
        FailureKind.NO_DRIVER,
        FailureKind.NO_DEVICES,
        FailureKind.VERSION_MISMATCH,
        FailureKind.LOST,
        FailureKind.ERROR,
    }
)
"""What a driver itself says. A missing library, a permission that lacks and a fault of ours are none of it."""

FALLS = frozenset({FailureKind.HUNG, FailureKind.STUCK, FailureKind.CRASHED})
"""What brings a reader down. The first time nothing is known, and it starts again within a second; whether it is the
driver's doing, and of which board, the check of readers says from witnesses. A refusal it is for a board that is left
alone for it, while the others are read."""

REFUSED_CHECKS = ("freshness", "inventory")
"""The checks that tell what could not be read."""

SPEAKING = frozenset({ReaderState.ABSENT, ReaderState.FAILED})
"""States of a reader that rest on what the driver said last."""


def closing(snapshot: Snapshot, verdict: Verdict | None = None) -> tuple[Episode, ...]:
    """Return the faults that close the gate: all of *snapshot*, or those that *verdict* of one of its devices names."""
    return gating(snapshot, verdict) if snapshot.agent.permit.held else ()


def gating(snapshot: Snapshot, verdict: Verdict | None = None) -> tuple[Episode, ...]:
    """Return the faults that close the gate as soon as there is a permit; see ``closing``.

    Where nothing is hard, that is what could not be read because the driver refuses every accelerator.
    """
    looked_at = verdict or snapshot.verdict
    return _hard(snapshot, looked_at, Mode.GATE) or _refused(snapshot, looked_at)


def driver_refuses_all(snapshot: Snapshot) -> bool:
    """Return whether a driver that is there was asked, and gave not one accelerator of this boot: measured inability.

    The accelerators must be on the PCI bus in this boot, with a reader of their vendor that reads or tried to; those
    that are lent to virtual machines do not count. A backend that a site enabled by mistake proves nothing.
    """
    if snapshot.simulated or not snapshot.agent.ready or snapshot.agent.stopping:
        return False
    boards = _boards(snapshot)
    return bool(boards) and all(_is_refused(snapshot, board) for board in boards)


def draining(snapshot: Snapshot) -> tuple[Episode, ...]:
    """Return the faults of *snapshot* for which the node may be drained."""
    return _hard(snapshot, snapshot.verdict, Mode.DRAIN)


def asked(snapshot: Snapshot) -> bool:
    """Return whether the agent is asking the scheduler for the permit or a drain, so that a job may wait for it."""
    agent, writer = snapshot.agent, snapshot.agent.slurm
    if writer is None or writer.writer != "drain" or not agent.ready or agent.stopping:
        return False
    due = gating(snapshot)
    return bool(due) and (writer.asking or named(due) != writer.considered)


def named(faults: Iterable[Episode]) -> tuple[str, ...]:
    """Return a word for each of *faults*: another when it asks for something else, the same when it occurs again."""
    return tuple(
        f"{entry.key.code} {entry.key.device} {entry.key.part} {entry.opened.boottime_ns} {entry.finding.action.value}"
        for entry in faults
    )


def reach(snapshot: Snapshot, verdict: Verdict) -> Reach:
    """Return what *verdict*, the node's or that of a device of *snapshot*, rests on."""
    if not verdict.hard:
        if not _refused(snapshot, verdict):
            return "soft"
        return "refused" if snapshot.agent.permit.held else "unpermitted"
    if not gating(snapshot, verdict):
        return "observed"
    return "hard" if snapshot.agent.permit.held else "unpermitted"


def _boards(snapshot: Snapshot) -> tuple[Device, ...]:
    """Return the accelerators on the PCI bus that were looked at in this boot, but those that are lent."""
    here = {sample.device for sample in snapshot.samples if sample.time.boot_id == snapshot.time.boot_id}
    return tuple(
        device
        for device in snapshot.devices
        if device.kind is DeviceKind.ACCELERATOR
        and device.pci is not None
        and device.id in here
        and not (device.backend == "host" and device.driver in LENT_DRIVERS)
    )


def _is_refused(snapshot: Snapshot, board: Device) -> bool:
    """Return whether the driver of *board* said something that leaves it unread, or did so again and again."""
    reader = next((entry for entry in snapshot.readers if entry.backend == board.vendor), None)
    if reader is None:
        return False
    if reader.state is not ReaderState.RUNNING:
        return reader.state in SPEAKING and reader.failure is not None and reader.failure.kind in REFUSALS
    if board.backend == "host":
        return True  # its driver answers, and not for this one
    samples = [sample for sample in snapshot.samples if sample.device == board.id]
    words = REFUSALS | FALLS if board.id in reader.quarantined else REFUSALS
    return all(sample.failure is not None and sample.failure.kind in words for sample in samples)


def _refused(snapshot: Snapshot, verdict: Verdict) -> tuple[Episode, ...]:
    """Return what *verdict* could not measure because the driver refuses every accelerator."""
    if verdict.state is not State.UNKNOWN or not driver_refuses_all(snapshot):
        return ()
    named, boards = frozenset(verdict.episodes), {board.id for board in _boards(snapshot)}
    return tuple(
        episode
        for episode in snapshot.episodes
        if episode.key in named
        and episode.state is EpisodeState.OPEN
        and episode.outcome is Outcome.UNMEASURED
        and episode.check in REFUSED_CHECKS
        and (episode.key.device in boards or episode.key.device == NODE)
        and snapshot.modes.of(episode.check).rank >= Mode.GATE.rank
    )


def _hard(snapshot: Snapshot, verdict: Verdict, mode: Mode) -> tuple[Episode, ...]:
    """Return the open, hard faults that *verdict* names and that may reach as far as *mode*."""
    if snapshot.simulated:
        return ()
    named = frozenset(verdict.episodes)
    return tuple(
        episode
        for episode in snapshot.episodes
        if episode.key in named
        and episode.state is EpisodeState.OPEN
        and episode.outcome is Outcome.FAIL
        and episode.finding.hard
        and snapshot.modes.of(episode.check).rank >= mode.rank
    )
