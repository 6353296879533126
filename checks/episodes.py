"""Findings to episodes to verdict: confirmation, latching and clearing, as a pure fold.

Nothing here ages: an episode ends only by the evidence that its row of reference/clearing.csv names, or stops counting
when a person acknowledges it. The same findings folded twice, or folded by a restarted agent, change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nodevet.checks.model import (
    NODE,
    Action,
    Clearing,
    Device,
    DeviceKind,
    Episode,
    EpisodeState,
    FaultClass,
    Finding,
    Instant,
    Key,
    Outcome,
    Result,
    State,
    Verdict,
)
from nodevet.checks.retest import ClearingRow, clearing_table, is_later, is_passed_retest, retest_proof

__all__ = [
    "NOT_EVALUATED",
    "ClearingRow",
    "Evidence",
    "Holders",
    "Ledger",
    "Settled",
    "acknowledge",
    "clearing_table",
    "fold",
    "is_passed_retest",
    "node_verdict",
    "verdict",
]


class Settled(msgspec.Struct, frozen=True):
    """An occurrence that was dealt with: still visible in a counter, it must not open its episode again."""

    key: Key
    occurrence: str


class Ledger(msgspec.Struct, frozen=True):
    """The fold's whole state: episodes that are not cleared, and occurrences that are settled."""

    episodes: tuple[Episode, ...] = ()
    settled: tuple[Settled, ...] = ()

    def find(self, key: Key) -> Episode | None:
        """Return the episode of *key*, or None."""
        return next((episode for episode in self.episodes if episode.key == key), None)


class Holders(msgspec.Struct, frozen=True):
    """The process ids that held a device at a moment."""

    pids: frozenset[int]
    time: Instant


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one round saw besides findings.

    ``devices`` are present, ``remembered`` those known from before; ``moved`` names those that sat in another slot
    before; ``names`` gives their ids to those that were known by address alone, or by another UUID, until now.
    ``processes`` tell who held each device; one that could not be asked is absent.
    """

    now: Instant
    devices: tuple[Device, ...] = ()
    remembered: tuple[Device, ...] = ()
    moved: frozenset[str] = frozenset()
    names: Mapping[str, str] = {}
    results: tuple[Result, ...] = ()
    processes: Mapping[str, Holders] = {}


NOT_EVALUATED = "nothing was evaluated"
"""The reason of a verdict that rests on nothing."""

_RANK = {Outcome.UNMEASURED: 0, Outcome.WARN: 1, Outcome.FAIL: 2}


def fold(ledger: Ledger, findings: Iterable[Finding], evidence: Evidence) -> tuple[Ledger, tuple[Episode, ...]]:
    """Return the ledger after one round, and the episodes whose change a journal must keep.

    A pending episode that is never confirmed leaves without a trace.
    """
    before = {episode.key: episode for episode in ledger.episodes}
    active = _renamed(before, evidence)
    settled = {entry.key: entry.occurrence for entry in ledger.settled}
    for finding in findings:
        _look(active, settled, finding, evidence)
    for episode in tuple(active.values()):
        proof = _disproof(episode, evidence)
        if proof:
            active[episode.key] = _cleared(episode, proof, evidence.now)
    changes = tuple(episode for key, episode in active.items() if _is_change(before.get(key), episode))
    for episode in active.values():
        if episode.state is EpisodeState.CLEARED and episode.finding.occurrence is not None:
            settled[episode.key] = episode.finding.occurrence
    kept = tuple(episode for episode in active.values() if episode.state is not EpisodeState.CLEARED)
    return Ledger(kept, tuple(Settled(key, occurrence) for key, occurrence in sorted(settled.items()))), changes


def acknowledge(ledger: Ledger, key: Key, *, note: str, actor: str) -> tuple[Ledger, Episode] | None:
    """Return the ledger with the episode of *key* acknowledged, and that episode; None where there is none."""
    episode = ledger.find(key)
    if episode is None or episode.state is EpisodeState.PENDING:
        return None
    known = msgspec.structs.replace(episode, state=EpisodeState.ACKNOWLEDGED, note=note, actor=actor)
    episodes = tuple(known if entry.key == key else entry for entry in ledger.episodes)
    return Ledger(episodes, ledger.settled), known


def verdict(device: str, episodes: Iterable[Episode], findings: Iterable[Finding], *, partial: bool = False) -> Verdict:
    """Return the verdict of one *device* id from its episodes; ``unknown`` where no check passed or failed on it.

    Only a pass that rests on something read proves health: that a device is listed, or once passed a load, does not. It
    is enough where only some checks were asked for (*partial*). Without any the reason says what could not be measured.
    """
    counting = [episode for episode in episodes if episode.key.device == device and _counts(episode)]
    if counting:
        return _worst(counting)
    looks = [finding for finding in findings if finding.device == device]
    passed = [finding for finding in looks if finding.outcome is Outcome.PASS]
    times = [finding.evidence_time for finding in passed if finding.evidence_time]
    if not times and not (partial and passed):
        unmeasured = (finding.message for finding in looks if finding.outcome is Outcome.UNMEASURED)
        return Verdict(state=State.UNKNOWN, reason=next(unmeasured, NOT_EVALUATED))
    oldest = min(times, key=lambda time: time.boottime_ns) if times else None
    pending = any(episode.key.device == device and episode.state is EpisodeState.PENDING for episode in episodes)
    return Verdict(
        state=State.OK,
        reason="healthy, one reading waits to be confirmed" if pending else "healthy",
        action=Action.WATCH if pending else Action.NONE,
        oldest_evidence=oldest,
    )


def node_verdict(verdicts: Mapping[str, Verdict], names: Mapping[str, str]) -> Verdict:
    """Return the worst of *verdicts* by device id; its reason names the device by *names* and counts the others."""
    if not verdicts:
        return Verdict(state=State.UNKNOWN, reason=NOT_EVALUATED)
    worst_id, worst = max(verdicts.items(), key=lambda item: (item[1].state.rank, item[1].action.rank))
    times = [entry.oldest_evidence for entry in verdicts.values() if entry.oldest_evidence]
    oldest = min(times, key=lambda time: time.boottime_ns) if times else None
    if worst.state is State.OK:
        return msgspec.structs.replace(worst, oldest_evidence=oldest)
    others = sum(entry.state is not State.OK for entry in verdicts.values()) - 1
    name = names.get(worst_id, worst_id)
    reason = worst.reason if name in worst.reason else f"{name}: {worst.reason}"
    return Verdict(
        state=worst.state,
        reason=reason + (f" (and {others} more)" if others else ""),
        action=_hardest((entry.state, entry.action) for entry in verdicts.values()),
        episodes=tuple(key for entry in verdicts.values() for key in entry.episodes),
        oldest_evidence=oldest,
        hard=any(entry.hard for entry in verdicts.values()),
    )


def _renamed(episodes: Mapping[Key, Episode], evidence: Evidence) -> dict[Key, Episode]:
    """Return *episodes* with those of a device that has just told its name under that name; the old ones end."""
    active = dict(episodes)
    for key, episode in episodes.items():
        name = evidence.names.get(key.device)
        if name is not None:
            active[key] = _cleared(episode, f"goes on as {name}", evidence.now)
            finding = msgspec.structs.replace(episode.finding, device=name)
            active.setdefault(finding.key, msgspec.structs.replace(episode, key=finding.key, finding=finding))
    return active


def _look(active: dict[Key, Episode], settled: dict[Key, str], finding: Finding, evidence: Evidence) -> None:
    """Fold one finding into *active*."""
    key = finding.key
    episode = active.get(key)
    if episode is not None and episode.state is EpisodeState.CLEARED:
        episode = None
    bad = finding.outcome in (Outcome.WARN, Outcome.FAIL) or (
        finding.outcome is Outcome.UNMEASURED and finding.required
    )
    if finding.outcome is Outcome.PASS:
        settled.pop(key, None)
    if episode is not None and _same_evidence(episode, finding):
        return
    if bad:
        if episode is None:
            if finding.occurrence is None or settled.get(key) != finding.occurrence:
                active[key] = _opened(finding, evidence)
        else:
            active[key] = _seen_again(episode, finding, evidence.now)
    elif episode is not None and finding.outcome is Outcome.PASS:
        improved = _good_look(episode, finding, evidence.now)
        if improved is None:
            del active[key]
        else:
            active[key] = improved
    elif episode is not None and finding.outcome is Outcome.UNMEASURED:
        active[key] = msgspec.structs.replace(episode, good=0, looked=finding.evidence_time)


def _same_evidence(episode: Episode, finding: Finding) -> bool:
    """Return whether this look was already counted: same sample, and no occurrence that is new in it."""
    if finding.evidence_time is None:
        return False
    return finding.evidence_time == episode.looked and finding.occurrence in (None, episode.finding.occurrence)


def _opened(finding: Finding, evidence: Evidence) -> Episode:
    is_fault = finding.outcome is not Outcome.UNMEASURED
    at_once = finding.needed <= 1 or not is_fault
    known = (*evidence.devices, *evidence.remembered)
    device = next((device for device in known if device.id == finding.device), None)
    return Episode(
        key=finding.key,
        check=finding.check,
        state=EpisodeState.OPEN if at_once else EpisodeState.PENDING,
        outcome=finding.outcome,
        finding=finding,
        opened=evidence.now,
        last_seen=evidence.now,
        confirmed=evidence.now if at_once else None,
        recent=(is_fault,),
        looked=finding.evidence_time,
        serial=device.serial if device else None,
        pci=device.pci if device else None,
    )


def _seen_again(episode: Episode, finding: Finding, now: Instant) -> Episode:
    """Return the episode after another bad look. Inability to measure counts at once and confirms no fault."""
    is_fault = finding.outcome is not Outcome.UNMEASURED
    recent = (*episode.recent, is_fault)[-max(finding.window, 1) :]
    is_confirmed = not is_fault or sum(recent) >= finding.needed
    is_pending = episode.state is EpisodeState.PENDING
    rank = _RANK[finding.outcome] - _RANK[episode.outcome]
    is_new = finding.occurrence is not None and finding.occurrence != episode.finding.occurrence
    takes_over = is_pending or (is_confirmed and rank >= 0)
    reopens = episode.state is EpisodeState.ACKNOWLEDGED and is_confirmed and (is_new or rank > 0)
    opens = is_pending and is_confirmed
    return msgspec.structs.replace(
        episode,
        state=EpisodeState.OPEN if opens or reopens else episode.state,
        confirmed=now if opens else episode.confirmed,
        outcome=finding.outcome if takes_over else episode.outcome,
        finding=finding if takes_over else episode.finding,
        last_seen=now if takes_over and (is_new or finding.occurrence is None) else episode.last_seen,
        count=episode.count + is_new,
        good=0,
        recent=recent,
        looked=finding.evidence_time,
    )


def _good_look(episode: Episode, finding: Finding, now: Instant) -> Episode | None:
    """Return the episode after a good look, cleared where that was enough, or None where it was never confirmed."""
    recent = (*episode.recent, False)[-max(episode.finding.window, 1) :]
    if episode.state is EpisodeState.PENDING:
        return msgspec.structs.replace(episode, recent=recent, looked=finding.evidence_time) if any(recent) else None
    clearing = Clearing.UNMEASURED if episode.outcome is Outcome.UNMEASURED else episode.finding.clearing
    needed = clearing_table()[clearing].good_samples
    if needed is None:
        if episode.state is EpisodeState.ACKNOWLEDGED:
            return _cleared(episode, "acknowledged, and no longer there", now)
        return msgspec.structs.replace(episode, looked=finding.evidence_time)
    good = episode.good + 1
    if good < needed:
        return msgspec.structs.replace(episode, good=good, recent=recent, looked=finding.evidence_time)
    return _cleared(episode, f"{good} good samples in a row" if good > 1 else "measured again", now)


def _disproof(episode: Episode, evidence: Evidence) -> str | None:
    """Return what ends *episode* besides good samples, or None."""
    if episode.state not in (EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED):
        return None
    row = clearing_table()[episode.finding.clearing]
    return (
        (row.passed_retest and _retest(episode, row, evidence))
        or (row.other_serial and _other_serial(episode, evidence))
        or (row.job_ended and _job_ended(episode, evidence))
        or None
    )


def _retest(episode: Episode, row: ClearingRow, evidence: Evidence) -> str | None:
    """Return the proof of a passed re-test; a fault of the node is disproved by all its accelerators, or processors."""
    tested: tuple[str, ...] = (episode.key.device,)
    if episode.key.device == NODE:
        by_kind = {kind: tuple(d.id for d in evidence.devices if d.kind is kind) for kind in DeviceKind}
        tested = by_kind[DeviceKind.ACCELERATOR] or by_kind[DeviceKind.CPU]
    proofs = [retest_proof(device, episode, row, evidence.results, evidence.now) for device in tested]
    return proofs[0] if proofs and all(proofs) else None


def _other_serial(episode: Episode, evidence: Evidence) -> str | None:
    """Return the proof that the device was replaced: another serial where it sat, and itself nowhere.

    A device that sat in another slot before replaced nothing: addresses change when a board falls out.
    """
    devices = evidence.devices
    if not episode.serial or not episode.pci or any(device.serial == episode.serial for device in devices):
        return None
    for device in devices:
        if device.pci == episode.pci and device.serial and device.id not in evidence.moved:
            return f"replaced: serial {device.serial} where {episode.serial} was"
    return None


def _job_ended(episode: Episode, evidence: Evidence) -> str | None:
    if episode.last_seen.boot_id != evidence.now.boot_id:
        return "its process ended with the boot"
    holders = evidence.processes.get(episode.key.device)
    if holders is None or not is_later(holders.time, episode.last_seen):
        return None
    pid = episode.finding.pid
    if pid is None:
        return None if holders.pids else "no process holds the device"
    return None if pid in holders.pids else f"process {pid} ended"


def _cleared(episode: Episode, proof: str, now: Instant) -> Episode:
    return msgspec.structs.replace(episode, state=EpisodeState.CLEARED, cleared=now, cleared_by=proof)


def _is_change(before: Episode | None, after: Episode) -> bool:
    """Return whether a journal must keep the difference: not for a look that only confirmed what was known."""
    if after.state is EpisodeState.PENDING:
        return False
    if before is None or before.state is EpisodeState.PENDING:
        return True
    return (before.state, before.outcome, before.count, before.note) != (
        after.state,
        after.outcome,
        after.count,
        after.note,
    )


def _counts(episode: Episode) -> bool:
    return episode.state is EpisodeState.OPEN and episode.finding.fault_class is not FaultClass.APPLICATION


def _hardest(asked: Iterable[tuple[State, Action]]) -> Action:
    """Return the hardest action asked for; beside a failure, what could not be measured asks for nothing."""
    entries = tuple(asked)
    failed = any(state is State.FAILED for state, _ in entries)
    actions = [action for state, action in entries if not (failed and state is State.UNKNOWN)]
    return max(actions, key=lambda action: action.rank)


def _worst(episodes: list[Episode]) -> Verdict:
    states = {Outcome.FAIL: State.FAILED, Outcome.WARN: State.DEGRADED, Outcome.UNMEASURED: State.UNKNOWN}
    worst = max(
        episodes,
        key=lambda episode: (
            states[episode.outcome].rank,
            episode.finding.action.rank,
            -episode.opened.wall_seconds,
        ),
    )
    return Verdict(
        state=states[worst.outcome],
        reason=worst.finding.message,
        action=_hardest((states[episode.outcome], episode.finding.action) for episode in episodes),
        episodes=tuple(episode.key for episode in episodes),
        oldest_evidence=worst.finding.evidence_time,
        hard=any(episode.outcome is Outcome.FAIL and episode.finding.hard for episode in episodes),
    )
