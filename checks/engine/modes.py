"""The reach of a fault: observed only, closing the local gate, or draining the node. Pure.

Closing the gate needs a permit, which the agent takes under the limits of the whole cluster.

Only faults that one sample proves reach further: a measured fault, such as a rate below its limit, is only shown in any
mode, so that a wrong threshold deployed everywhere cannot take down a cluster. An acknowledged fault reaches nothing,
and a simulated node has no gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Literal

from nodevet.checks.core.guard import attempt
from nodevet.checks.core.model import NODE, Episode, EpisodeState, Mode, Outcome, Snapshot, State, Verdict

from .acknowledgement import standing
from .consequences import LOSSES, parts_lost
from .losses import GONE, is_driverless, taken_out
from .refusal import boards_of, driver_refuses_all

Reach = Literal["hard", "refused", "unpermitted", "observed", "soft"]
"""The basis of a verdict: faults that close the gate, a driver that refuses every accelerator, either of them without a
permit, faults that are only observed, or none.
"""

Refuses = Callable[[bool], bool]

REFUSED_CHECKS = ("freshness", "inventory")
"""The checks that report unreadable devices."""


def closing(snapshot: Snapshot, verdict: Verdict | None = None) -> tuple[Episode, ...]:
    """Return the faults that close the gate: all of *snapshot*, or those in *verdict* of one of its devices."""
    return gating(snapshot, verdict) if snapshot.agent.permit.held else ()


def gating(snapshot: Snapshot, verdict: Verdict | None = None) -> tuple[Episode, ...]:
    """Return the faults that close the gate as soon as there is a permit; see ``closing``.

    Without a hard fault, these are the unmeasured findings of a driver that refuses every accelerator.
    """
    return _gating(snapshot, verdict or snapshot.verdict, _refusing(snapshot))


def _gating(snapshot: Snapshot, verdict: Verdict, refuses: Refuses) -> tuple[Episode, ...]:
    return _hard(snapshot, verdict, Mode.GATE) or _refused(snapshot, verdict, refuses)


def draining(snapshot: Snapshot) -> tuple[Episode, ...]:
    """Return the faults of *snapshot* for which the node may be drained."""
    return _hard(snapshot, snapshot.verdict, Mode.DRAIN)


def asked(snapshot: Snapshot) -> bool:
    """Return whether the agent is requesting a permit or a drain from the scheduler, so that a job may wait for it."""
    agent, writer = snapshot.agent, snapshot.agent.slurm
    if writer is None or writer.writer != "drain" or not agent.ready or agent.stopping:
        return False
    due = gating(snapshot)
    return bool(due) and (writer.asking or named(due) != writer.considered)


def named(faults: Iterable[Episode]) -> tuple[str, ...]:
    """Return an identifier of each of *faults*: it changes with the requested action, and not when the fault recurs."""
    return tuple(
        f"{entry.key.code} {entry.key.device} {entry.key.part} {entry.opened.boottime_ns} {entry.finding.action.value}"
        for entry in faults
    )


def reach(snapshot: Snapshot, verdict: Verdict, device: str = "") -> Reach:
    """Return the basis of *verdict*: of *device*, by its id, or of the whole node if none is given."""
    return reaches(snapshot)(verdict, device)


def reaches(snapshot: Snapshot) -> Callable[[Verdict, str], Reach]:
    """Return ``reach`` as a function for many verdicts of *snapshot*; their common part is computed once."""
    return partial(_reach, snapshot, _refusing(snapshot), taken_out(snapshot.episodes))


def _reach(snapshot: Snapshot, refuses: Refuses, gone: frozenset[str], verdict: Verdict, device: str) -> Reach:
    if device in gone:
        return "observed"  # it does not count against the node either
    if not verdict.hard:
        refused = _refused(snapshot, verdict, refuses, Mode.OBSERVE, in_one_look=True)
        if not any(snapshot.modes.of(episode.check).rank >= Mode.GATE.rank for episode in refused):
            return "observed" if refused or _is_accepted(snapshot, verdict, refuses, device) else "soft"
        # A permit is requested only once it is a refusal: until then it closes nothing, nor is it ignorance.
        return "refused" if snapshot.agent.permit.held and _refused(snapshot, verdict, refuses) else "unpermitted"
    if not _gating(snapshot, verdict, refuses):
        return "observed"
    return "hard" if snapshot.agent.permit.held else "unpermitted"


def _is_accepted(snapshot: Snapshot, verdict: Verdict, refuses: Refuses, device: str) -> bool:
    """Return whether the unreadable state that *verdict* is based on is acknowledged, and it has no other basis.

    That is the state of *device*, or all unknown states of the node; an acknowledgement of the node covers a driver
    that refuses all, and one of a device's loss covers that the device is unreadable. The expiry alone does not make it
    unknown: it counts with the next observation.
    """
    known = {episode.key for episode in snapshot.episodes if _is_unread(episode, EpisodeState.ACKNOWLEDGED)}
    if verdict.state is not State.UNKNOWN or not known.issuperset(verdict.episodes):
        return False
    if NODE in {key.device for key in known} and refuses(True):
        return True
    unread = {entry.device for entry in snapshot.findings if entry.outcome is Outcome.UNMEASURED and entry.key in known}
    unread |= _known_losses(snapshot)
    unknown = {name for name, entry in snapshot.device_verdicts.items() if entry.state is State.UNKNOWN}
    asked_for = {device} if device else unknown
    return bool(asked_for) and asked_for <= unread


def _known_losses(snapshot: Snapshot) -> set[str]:
    """Return the devices that do not answer now, and whose loss has an acknowledgement in force.

    If their driver has no board, which is acknowledged too, they are not required one by one.
    """
    seen = {finding.key for finding in snapshot.findings if finding.outcome is Outcome.FAIL}
    words = standing(snapshot.episodes)
    none_left = any(is_driverless(word.key) and word.key in seen for word in words)
    known = {
        word.key.device
        for word in words
        if word.key.code in LOSSES | GONE and word.outcome is Outcome.FAIL and (none_left or word.key in seen)
    }
    return known | {part for part, board in parts_lost(snapshot.findings).items() if board in known}


def _refusing(snapshot: Snapshot) -> Refuses:
    """Return a function that tests if the driver refuses every accelerator, in one round or in as many as required."""
    return cache(lambda in_one_look: attempt(partial(driver_refuses_all, snapshot, in_one_look=in_one_look)) is True)


def _is_unread(episode: Episode, state: EpisodeState) -> bool:
    return episode.state is state and episode.outcome is Outcome.UNMEASURED and episode.check in REFUSED_CHECKS


def _refused(
    snapshot: Snapshot, verdict: Verdict, refuses: Refuses, mode: Mode = Mode.GATE, *, in_one_look: bool = False
) -> tuple[Episode, ...]:
    """Return the unmeasured findings of *verdict*, because a driver refuses all accelerators, that may reach *mode*."""
    if verdict.state is not State.UNKNOWN or not refuses(in_one_look):
        return ()
    named, boards = frozenset(verdict.episodes), {board.id for board in boards_of(snapshot)}
    return tuple(
        episode
        for episode in snapshot.episodes
        if episode.key in named
        and _is_unread(episode, EpisodeState.OPEN)
        and (episode.key.device in boards or episode.key.device == NODE)
        and snapshot.modes.of(episode.check).rank >= mode.rank
    )


def _hard(snapshot: Snapshot, verdict: Verdict, mode: Mode) -> tuple[Episode, ...]:
    """Return the open, hard faults of *verdict* that may reach as far as *mode*."""
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
