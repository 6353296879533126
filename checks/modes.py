"""How far a fault may reach: be seen, close the local gate, or drain the node. Pure.

Only what one look proves reaches anything: a measured fault, such as a rate below its limit, is shown whatever the mode
says, so that a bad threshold pushed everywhere cannot take a cluster. An acknowledged fault reaches nothing, and
a simulated node has no gate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from nodevet.checks.model import Episode, EpisodeState, Mode, Outcome, Snapshot, Verdict

__all__ = ["Reach", "closing", "draining", "named", "owed", "reach"]

Reach = Literal["hard", "observed", "soft"]
"""What a verdict rests on: faults that may close the gate, hard ones that may only be seen, or nothing hard."""


def closing(snapshot: Snapshot, verdict: Verdict | None = None) -> tuple[Episode, ...]:
    """Return the faults that close the gate: all of *snapshot*, or those that *verdict* of one of its devices names."""
    return _hard(snapshot, verdict or snapshot.verdict, Mode.GATE)


def draining(snapshot: Snapshot) -> tuple[Episode, ...]:
    """Return the faults of *snapshot* for which the node may be drained."""
    return _hard(snapshot, snapshot.verdict, Mode.DRAIN)


def owed(snapshot: Snapshot) -> bool:
    """Return whether the writer to the scheduler has still to tell it of a fault of *snapshot*."""
    agent, writer = snapshot.agent, snapshot.agent.slurm
    if writer is None or writer.writer != "drain" or not agent.ready or agent.stopping:
        return False
    due = draining(snapshot)
    return bool(due) and (bool(writer.wanted) or named(due) != writer.considered)


def named(faults: Iterable[Episode]) -> tuple[str, ...]:
    """Return a word for each of *faults* as far as it is known, which is another when it occurs anew."""
    return tuple(
        f"{entry.key.code} {entry.key.device} {entry.key.part} {entry.opened.boottime_ns} {entry.count}"
        for entry in faults
    )


def reach(snapshot: Snapshot, verdict: Verdict) -> Reach:
    """Return what *verdict*, the node's or that of a device of *snapshot*, rests on."""
    if not verdict.hard:
        return "soft"
    return "hard" if closing(snapshot, verdict) else "observed"


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
