"""Episodes and findings to the verdict of a device, and verdicts to that of the node. Pure.

What is acknowledged counts no more and stays in the reason; an acknowledgement that expired is a degraded node that
closes nothing, until a look is bad again. Where it was about what could not be measured, the node stays unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from nodevet.checks.core.model import Action, Episode, EpisodeState, FaultClass, Finding, Outcome, State, Verdict

from .acknowledgement import acknowledged_words, counted_words, covering_count, covering_words, standing

NOT_EVALUATED = "nothing was evaluated"
"""The reason of a verdict that rests on nothing."""

EXPIRED = "acknowledgement expired"


def verdict(device: str, episodes: Iterable[Episode], findings: Iterable[Finding], *, partial: bool = False) -> Verdict:
    """Return the verdict of one *device* id from its episodes; ``unknown`` where no check passed or failed on it.

    Only a pass that rests on something read proves health: that a device is listed, or once passed a load, does not. It
    is enough where only some checks were asked for (*partial*). Without any the reason says what could not be measured.
    """
    own = [episode for episode in episodes if episode.key.device == device]
    counting = [episode for episode in own if _counts(episode)]
    if counting:
        return _worst(counting)
    looks = [finding for finding in findings if finding.device == device]
    passed = [finding for finding in looks if finding.outcome is Outcome.PASS]
    times = [finding.evidence_time for finding in passed if finding.evidence_time]
    if not times and not (partial and passed):
        unmeasured = (finding.message for finding in looks if finding.outcome is Outcome.UNMEASURED)
        return Verdict(state=State.UNKNOWN, reason=next(unmeasured, NOT_EVALUATED))
    oldest = min(times, key=lambda time: time.boottime_ns) if times else None
    pending = any(episode.state is EpisodeState.PENDING for episode in own)
    healthy = "healthy, one bad sample is not confirmed yet" if pending else "healthy"
    return Verdict(
        state=State.OK,
        reason=acknowledged_words(own) or healthy,
        action=Action.WATCH if pending else Action.NONE,
        oldest_evidence=oldest,
    )


def node_verdict(
    verdicts: Mapping[str, Verdict],
    names: Mapping[str, str],
    episodes: Iterable[Episode] = (),
    covered: Collection[Episode] = (),
) -> Verdict:
    """Return the worst of *verdicts* by device id; its reason names the device by *names* and counts the others.

    What is acknowledged among all *episodes* of the node stays in the reason, and so does the acknowledgement of what
    is *covered*: faults that are over, and whose return does not count.
    """
    known = standing(episodes)
    if not verdicts:
        return not_judged(NOT_EVALUATED, known, covered)
    worst_id, worst = max(verdicts.items(), key=lambda item: (item[1].state.rank, item[1].hard, item[1].action.rank))
    times = [entry.oldest_evidence for entry in verdicts.values() if entry.oldest_evidence]
    oldest = min(times, key=lambda time: time.boottime_ns) if times else None
    if worst.state is State.OK:
        said = (acknowledged_words(known) or worst.reason, covering_words(covered))
        return msgspec.structs.replace(worst, oldest_evidence=oldest, reason="; ".join(filter(None, said)))
    others = sum(entry.state is not State.OK for entry in verdicts.values()) - 1
    name = names.get(worst_id, worst_id)
    reason = (worst.reason if name in worst.reason else f"{name}: {worst.reason}") + (
        f" (and {others} more)" if others else ""
    )
    return Verdict(
        state=worst.state,
        reason=_with_words(reason, known, covered),
        action=_hardest((entry.state, entry.action) for entry in verdicts.values()),
        episodes=tuple(key for entry in verdicts.values() for key in entry.episodes),
        oldest_evidence=oldest,
        hard=any(entry.hard for entry in verdicts.values()),
    )


def not_judged(why: str, episodes: Iterable[Episode], covered: Collection[Episode]) -> Verdict:
    """Return the verdict of a node that was not judged, and *why*; what is acknowledged stays in its reason."""
    return Verdict(state=State.UNKNOWN, reason=_with_words(why, standing(episodes), covered))


def _with_words(reason: str, known: tuple[Episode, ...], covered: Collection[Episode]) -> str:
    """Return *reason* with how many persons' words stand beside it: about what is *known*, and what is *covered*."""
    return "; ".join(filter(None, (reason, counted_words(known) if known else "", covering_count(covered))))


def _counts(episode: Episode) -> bool:
    counts = episode.state is EpisodeState.OPEN or _is_expired(episode)
    return counts and episode.finding.fault_class is not FaultClass.APPLICATION


def _is_expired(episode: Episode) -> bool:
    """Return whether a person's word was over, and no look since was bad."""
    return episode.state is EpisodeState.ACKNOWLEDGED and episode.expired is not None


def _state(episode: Episode) -> State:
    """Return the state that *episode* makes of its device; the end of a word makes nothing known that is not."""
    if _is_expired(episode) and episode.outcome is not Outcome.UNMEASURED:
        return State.DEGRADED
    return {Outcome.FAIL: State.FAILED, Outcome.WARN: State.DEGRADED}.get(episode.outcome, State.UNKNOWN)


def _is_hard(episode: Episode) -> bool:
    """Return whether *episode* may close a gate: it is the one to be told where several failed."""
    return _state(episode) is State.FAILED and episode.finding.hard


def _hardest(asked: Iterable[tuple[State, Action]]) -> Action:
    """Return the hardest action asked for; beside a failure, what could not be measured asks for nothing."""
    entries = tuple(asked)
    failed = any(state is State.FAILED for state, _ in entries)
    actions = [action for state, action in entries if not (failed and state is State.UNKNOWN)]
    return max(actions, key=lambda action: action.rank)


def _worst(episodes: list[Episode]) -> Verdict:
    worst = max(
        episodes,
        key=lambda episode: (
            _state(episode).rank,
            _is_hard(episode),
            episode.finding.action.rank,
            -episode.opened.wall_seconds,
        ),
    )
    return Verdict(
        state=_state(worst),
        reason=_reason(worst),
        action=_hardest((_state(episode), episode.finding.action) for episode in episodes),
        episodes=tuple(episode.key for episode in episodes),
        oldest_evidence=worst.finding.evidence_time,
        hard=any(map(_is_hard, episodes)),
    )


def _reason(worst: Episode) -> str:
    said = worst.finding.message
    if _is_expired(worst):
        said = f"{EXPIRED}: {said}"
    if worst.flapping:
        said += f"; flapping, {worst.flapping} times"
    return said
