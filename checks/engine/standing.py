"""Computes the verdict of a device from episodes and findings, and that of the node from verdicts. Pure.

Acknowledged episodes no longer count but stay in the reason. An expired acknowledgement makes the node degraded and
closes no gate, until the next bad observation. If it was about an unmeasured reading, the node stays unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from nodevet.checks.core.model import Action, Episode, EpisodeState, FaultClass, Finding, Outcome, State, Verdict

from .acknowledgement import acknowledged_words, counted_words, covering_count, covering_words, standing

NOT_EVALUATED = "no check judged a value"
"""The reason of a verdict without any basis."""

EXPIRED = "acknowledgement expired"


def verdict(device: str, episodes: Iterable[Episode], findings: Iterable[Finding], *, partial: bool = False) -> Verdict:
    """Return the verdict of one *device* id from its episodes; ``unknown`` if no check passed or failed on it.

    Only a pass that is based on a reading proves health: being listed, or having passed a load once, does not, except
    if only some checks were requested (*partial*). Without any pass the reason names the unmeasured readings.
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

    Acknowledged faults among all *episodes* of the node stay in the reason, and so do acknowledgements of *covered*
    faults: past ones whose return does not count.
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
        f"; {others} more device{'s are' if others > 1 else ' is'} not ok" if others else ""
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
    """Return the verdict of a node that was not judged, with *why*; acknowledged faults stay in its reason."""
    return Verdict(state=State.UNKNOWN, reason=_with_words(why, standing(episodes), covered))


def _with_words(reason: str, known: tuple[Episode, ...], covered: Collection[Episode]) -> str:
    """Return *reason* with the number of acknowledgements: of *known* faults, and of *covered* ones."""
    return "; ".join(filter(None, (reason, counted_words(known) if known else "", covering_count(covered))))


def _counts(episode: Episode) -> bool:
    counts = episode.state is EpisodeState.OPEN or _is_expired(episode)
    return counts and episode.finding.fault_class is not FaultClass.APPLICATION


def _is_expired(episode: Episode) -> bool:
    """Return whether an acknowledgement expired without a bad observation since."""
    return episode.state is EpisodeState.ACKNOWLEDGED and episode.expired is not None


def _state(episode: Episode) -> State:
    """Return the state of a device with *episode*; an expiry does not make an unknown state known."""
    if _is_expired(episode) and episode.outcome is not Outcome.UNMEASURED:
        return State.DEGRADED
    return {Outcome.FAIL: State.FAILED, Outcome.WARN: State.DEGRADED}.get(episode.outcome, State.UNKNOWN)


def _is_hard(episode: Episode) -> bool:
    """Return whether *episode* may close a gate: of several failures it is reported first."""
    return _state(episode) is State.FAILED and episode.finding.hard


def _hardest(asked: Iterable[tuple[State, Action]]) -> Action:
    """Return the hardest requested action; beside a failure, unmeasured readings request nothing."""
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
