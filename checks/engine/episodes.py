"""From findings to episodes: confirmation, latching and clearing, as a pure fold.

Nothing here ages: an episode ends only by the evidence in its row of reference/clearing.csv, or stops counting when it
is acknowledged. The same findings folded twice, or folded by a restarted agent, change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import msgspec

from nodevet.checks.core.model import Clearing, Episode, EpisodeState, Finding, Instant, Key, Outcome
from nodevet.checks.core.occurrences import is_ahead, is_dealt_with

from .acknowledgement import (
    RANK,
    Returns,
    anchored,
    covered,
    covers_at,
    expire,
    extended,
    granted,
    is_covering,
    is_harder,
    is_word,
    may_be_of_another,
    person_words,
    reopens_after_expiry,
    says_more,
)
from .damping import Flap, closed, hold_seconds, is_forgotten, is_held, reopened
from .disproof import Evidence, disproof, other_serial
from .lapses import is_excuse
from .losses import driverless, ended_with_loss, follows, known_loss, loss_word, with_word
from .overflow import Overflow
from .retest import ClearingRow, WrongResult, aged, clearing_table, escalated, merged

BEFORE = "; before: "
"""Separates the present state of a fault that only evidence ends from its earlier one."""


class Settled(msgspec.Struct, frozen=True):
    """An occurrence that was dealt with: a counter still shows it, but it must not reopen its episode."""

    key: Key
    occurrence: str


class Ledger(msgspec.Struct, frozen=True):
    """The whole state of the fold: episodes that are not cleared, and occurrences that are settled.

    ``flaps`` are recent flapping conditions. ``standing`` are cleared episodes whose acknowledgement still covers a
    return, for its term or for an hour after a resume of the node. ``wrong`` are wrong results of loads, disproved ones
    included.
    """

    episodes: tuple[Episode, ...] = ()
    settled: tuple[Settled, ...] = ()
    flaps: tuple[Flap, ...] = ()
    standing: tuple[Episode, ...] = ()
    wrong: tuple[WrongResult, ...] = ()

    def find(self, key: Key) -> Episode | None:
        """Return the episode of *key*, or None."""
        return next((episode for episode in self.episodes if episode.key == key), None)

    def spoken_of(self, key: Key) -> Episode | None:
        """Return the episode of *key* that can be acknowledged: an open one, or a past one whose return is covered.

        An unconfirmed episode cannot be acknowledged.
        """
        episode = self.find(key)
        if episode is not None and episode.state is not EpisodeState.PENDING:
            return episode
        return next((word for word in self.standing if word.key == key), None)

    @property
    def lasting(self) -> tuple[Episode, ...]:
        """Return the episodes that are not cleared, and those whose return is covered by an acknowledgement."""
        return (*self.episodes, *self.standing)

    def adopting(self, lasting: Iterable[Episode]) -> Ledger:
        """Return this ledger with *lasting* in place of the result of ``lasting``."""
        lasting = tuple(lasting)
        episodes = tuple(episode for episode in lasting if not is_covering(episode))
        return msgspec.structs.replace(self, episodes=episodes, standing=tuple(filter(is_covering, lasting)))


class _Work(msgspec.Struct):
    """The working state of one round: the parts of the ledger by key, and the evidence of the round."""

    active: dict[Key, Episode]
    settled: dict[Key, str]
    flaps: dict[Key, Flap]
    standing: dict[Key, Episode]
    wrong: tuple[WrongResult, ...]
    evidence: Evidence
    overflow: Overflow

    @property
    def now(self) -> Instant:
        """Return the time of the round."""
        return self.evidence.now


def fold(ledger: Ledger, findings: Iterable[Finding], evidence: Evidence) -> tuple[Ledger, tuple[Episode, ...]]:
    """Return the ledger after one round, and the episodes whose change a journal must keep.

    A pending episode that is never confirmed leaves no trace.
    """
    before = {episode.key: episode for episode in ledger.episodes}
    work = _begun(ledger, before, evidence)
    replaced = _take_replaced(work)
    devices = (*evidence.devices, *evidence.remembered)
    present = {device.id for device in evidence.devices}
    quiet = Outcome.PASS, Outcome.SKIPPED
    for finding in findings:
        is_good = finding.outcome in quiet or not finding.bad  # most pass: nothing else is asked of them
        if is_good and not (finding.shown or work.active or work.settled or replaced):
            continue  # on a healthy node a good finding changes nothing
        # Otherwise it still refers to the board that is gone.
        if not replaced or finding.key not in replaced or finding.device in present:
            work.wrong, told = escalated(work.wrong, finding, devices, evidence.now)
            _look(work, told)
    for finding in work.overflow.findings():
        _look(work, finding)
    active = work.active
    over = ended_with_loss(active.values())
    # Wrong results first: other results of the same load are compared with them in the same round.
    for episode in sorted(active.values(), key=lambda entry: not entry.finding.shown):
        proof = over.get(episode.key) or disproof(episode, evidence, active.values())
        if proof and (episode.key in over or not _outlasts_job(work, episode)):
            active[episode.key] = _cleared(episode, proof, evidence.now)
            if _is_damped(episode) and _row(episode).job_ended:
                work.flaps[episode.key] = closed(work.flaps.get(episode.key), episode.key, evidence.now)
            if episode.finding.occurrence is not None:  # its counter still shows it; after a good observation none does
                work.settled[episode.key] = episode.finding.occurrence
    said = (*active.values(), *work.standing.values())
    for key, episode in active.items():
        active[key] = driverless(episode, said, evidence.devices, evidence.remembered)
    known = {key: episode for key, episode in before.items() if key not in replaced}
    changed = (episode for key, episode in active.items() if _is_change(known.get(key), episode))
    changes = (*(entry for entry in replaced.values() if entry.state is EpisodeState.CLEARED), *changed)
    return _ended(work), changes


Knew = Callable[[Episode], bool]
"""Whether the actor knew an episode in its present state: the displayed one may be older than the last round."""


def anybody(_episode: Episode) -> bool:
    """Return True: every episode was known in its present state."""
    return True


def acknowledge(
    ledger: Ledger,
    key: Key,
    *,
    note: str,
    actor: str,
    time: Instant | None = None,
    until: Instant | Returns | None = None,
    knew: Knew = anybody,
) -> tuple[Ledger, Episode] | None:
    """Return the ledger with the episode of *key* acknowledged *until* a time, and that episode.

    None if there is none, or if its *actor* *knew* less of it. Of a past episode, only the term that covers its return
    can change.
    """
    episode = ledger.spoken_of(key)
    if episode is None or not knew(episode) or (is_covering(episode) and not isinstance(until, Instant)):
        return None
    if is_covering(episode) and isinstance(until, Instant):
        word = extended(episode, note=note, actor=actor, time=time, until=until)
        standing = tuple(word if entry.key == key else entry for entry in ledger.standing)
        told = msgspec.structs.replace(word, cleared_by=f"a return is acknowledged too, {person_words(word)}")
        return msgspec.structs.replace(ledger, standing=standing), told
    known = granted(episode, note=note, actor=actor, time=time, until=until)
    return msgspec.structs.replace(ledger, episodes=with_word(ledger.episodes, known)), known


def _begun(ledger: Ledger, before: Mapping[Key, Episode], evidence: Evidence) -> _Work:
    """Return the working state of the round, with time-dependent changes applied: expiries, and holds that are over."""
    now = evidence.now
    names = evidence.names
    flaps = {
        _named(flap.key, names): msgspec.structs.replace(flap, key=_named(flap.key, names)) for flap in ledger.flaps
    }
    meant = (entry for entry in ledger.standing if entry.key.device not in names or not may_be_of_another(entry, now))
    words = tuple(anchored(_moved(entry, names), now) for entry in meant)
    active = {key: expire(anchored(episode, now), now) for key, episode in _renamed(before, evidence).items()}
    for key, episode in active.items():
        if episode.flapping and not is_held(flaps.get(key), now):
            active[key] = msgspec.structs.replace(episode, flapping=0)
    standing = {entry.key: entry for entry in words if covers_at(entry, now)}
    for key, episode in active.items():
        active[key] = known_loss(episode, chain(active.values(), standing.values()))
    return _Work(
        active=active,
        settled={
            _named(entry.key, names): entry.occurrence
            for entry in ledger.settled
            if not is_ahead(entry.occurrence, now.boottime_ns)
        },
        flaps=flaps,
        standing=standing,
        wrong=tuple(aged(entry, now) for entry in ledger.wrong),
        evidence=evidence,
        overflow=Overflow(active.values()),
    )


def _ended(work: _Work) -> Ledger:
    """Return the ledger after the round."""
    kept = tuple(episode for episode in work.active.values() if episode.state is not EpisodeState.CLEARED)
    is_open = {episode.key for episode in kept if episode.state is not EpisodeState.PENDING}
    return Ledger(
        kept,
        tuple(Settled(key, occurrence) for key, occurrence in sorted(work.settled.items())),
        tuple(
            flap for key, flap in sorted(work.flaps.items()) if not is_forgotten(flap, work.now, is_open=key in is_open)
        ),
        tuple(entry for _, entry in sorted(work.standing.items())),
        work.wrong,
    )


def _take_replaced(work: _Work) -> dict[Key, Episode]:
    """Remove from *work* the episodes of replaced boards, ended; return them by key.

    They end before the findings are folded: new findings are of the new board, and no acknowledgement covers them.
    """
    taken = {}
    for key, episode in tuple(work.active.items()):
        proof = other_serial(episode, work.evidence) if episode.state is not EpisodeState.CLEARED else None
        if proof and clearing_table()[episode.finding.clearing].other_serial:
            is_pending = episode.state is EpisodeState.PENDING
            taken[key] = episode if is_pending else _cleared(episode, proof, work.now)
            del work.active[key]
            for memory in (work.settled, work.flaps, work.standing):
                memory.pop(key, None)
    return taken


def _renamed(episodes: Mapping[Key, Episode], evidence: Evidence) -> dict[Key, Episode]:
    """Return *episodes* with those of a device that has just reported its name under that name; the old ones end.

    An acknowledgement continues under that name only if it cannot be another board's.
    """
    active = dict(episodes)
    for key, episode in episodes.items():
        if key.device in evidence.names and is_word(episode) and may_be_of_another(episode, evidence.now):
            said = f"{evidence.names[key.device]} tells its name after a reboot, and may be another board"
            active[key] = _cleared(episode, said, evidence.now)
        elif key.device in evidence.names:
            active[key] = _cleared(episode, f"goes on as {evidence.names[key.device]}", evidence.now)
            moved = _moved(episode, evidence.names)
            active.setdefault(moved.key, moved)
    return active


def _moved(episode: Episode, names: Mapping[str, str]) -> Episode:
    """Return *episode* under the name that its device has reported in this round."""
    finding = msgspec.structs.replace(episode.finding, device=names.get(episode.key.device, episode.key.device))
    return msgspec.structs.replace(episode, key=finding.key, finding=finding)


def _named(key: Key, names: Mapping[str, str]) -> Key:
    """Return *key* under the name that its device has reported in this round."""
    return msgspec.structs.replace(key, device=names.get(key.device, key.device))


def _look(work: _Work, finding: Finding) -> None:
    """Fold one finding into *work*."""
    key, active = finding.key, work.active
    episode = active.get(key)
    if episode is not None and episode.state is EpisodeState.CLEARED:
        episode = None
    if finding.outcome is Outcome.PASS:
        work.settled.pop(key, None)
    if episode is not None and finding.follows:
        active[key] = _gone(work, episode, f"follows from the loss of {finding.follows}")
        return
    if episode is not None and _same_evidence(episode, finding):
        return
    if finding.bad:
        if episode is None:
            if not is_dealt_with(finding.occurrence, work.settled.get(key)) and work.overflow.admits(finding):
                active[key] = _confirmed(work, None, _opened(finding, work.evidence))
        else:
            active[key] = _confirmed(work, episode, _seen_again(episode, finding, work.now))
    elif episode is not None and finding.outcome is Outcome.PASS:
        improved = _good_look(work, episode, finding)
        if improved is None:
            del active[key]
        else:
            active[key] = improved
    elif episode is not None and episode.outcome is Outcome.UNMEASURED and is_excuse(finding):
        active[key] = _gone(work, episode, "no longer required")
    elif episode is not None and finding.outcome is Outcome.UNMEASURED:
        active[key] = msgspec.structs.replace(episode, good=0, milder=0, looked=finding.evidence_time)


def _confirmed(work: _Work, before: Episode | None, episode: Episode) -> Episode:
    """Return *episode* after a bad observation, with the history of a condition that returns.

    An acknowledgement whose term is not over covers its return, unless that requests a harder action, and that of a
    loss covers its other code; a flapping condition is held open.
    """
    key = episode.key
    flap = work.flaps.get(key)
    is_open = before is not None and before.state is not EpisodeState.PENDING
    if before is not None and before.outcome is Outcome.UNMEASURED and episode.outcome is not Outcome.UNMEASURED:
        is_open = False  # it comes back behind a look that could not be taken: a return like any other
    if episode.state is EpisodeState.PENDING or (is_open and not episode.flapping):
        return episode
    if before is not None and is_open:
        row = _row(before)
        if flap is None or not row.good_samples or before.good < row.good_samples:
            return episode
        work.flaps[key] = flap = msgspec.structs.replace(flap, times=flap.times + 1)
        return msgspec.structs.replace(episode, flapping=flap.times)
    if flap is not None and _is_damped(episode):
        work.flaps[key] = flap = reopened(flap, work.now)
        episode = msgspec.structs.replace(episode, flapping=flap.times if is_held(flap, work.now) else 0)
    word = work.standing.pop(key, None)
    return covered(episode, word or loss_word(key, chain(work.active.values(), work.standing.values())))


def _row(episode: Episode) -> ClearingRow:
    """Return the clearing row of *episode* in its present state."""
    table = clearing_table()
    return table[Clearing.UNMEASURED if episode.outcome is Outcome.UNMEASURED else episode.finding.clearing]


def _is_damped(episode: Episode) -> bool:
    """Return whether *episode* may be held open: never one that closes a gate."""
    return _row(episode).damped and not _is_hard(episode)


def _outlasts_job(work: _Work, episode: Episode) -> bool:
    """Return whether *episode* stays although its process may have ended: process after process fails, as in a loop.

    Once none has failed for the duration of the first hold, the loop is over, and the error ends with its process.
    """
    if not (_row(episode).job_ended and _is_damped(episode)):
        return False
    since = work.now.seconds_since(episode.last_seen)
    goes_on = since is not None and since <= hold_seconds(1)
    return goes_on and is_held(work.flaps.get(episode.key), work.now)


def _is_hard(episode: Episode) -> bool:
    """Return whether *episode* is a failure that may close a gate."""
    return episode.outcome is Outcome.FAIL and episode.finding.hard


def _same_evidence(episode: Episode, finding: Finding) -> bool:
    """Return whether this observation was already counted: same sample, and no new occurrence in it.

    The kernel may record two events within one microsecond: the time is the same, and one may have more content.
    """
    if finding.evidence_time is None or finding.evidence_time != episode.looked:
        return False
    if finding.occurrence is None:
        return True
    return finding.occurrence == episode.finding.occurrence and not says_more(episode, finding)


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
    """Return the episode after another bad observation. An unmeasured one counts at once and confirms no fault.

    If only warnings follow a hard failure, the failure ends after as many observations as end its condition: the
    warning remains, and a gate that stays closed would report an absent fault.
    """
    is_fault = finding.outcome is not Outcome.UNMEASURED
    recent = (*episode.recent, is_fault)[-max(finding.window, 1) :]
    is_confirmed = not is_fault or sum(recent) >= finding.needed
    is_pending = episode.state is EpisodeState.PENDING
    rank = RANK[finding.outcome] - RANK[episode.outcome]
    is_known = is_dealt_with(finding.occurrence, episode.finding.occurrence)
    is_new = finding.occurrence is not None and not is_known
    is_earlier = is_known and finding.occurrence != episode.finding.occurrence
    milder = episode.milder + 1 if finding.outcome is Outcome.WARN and episode.outcome is Outcome.FAIL else 0
    is_milder = _is_hard(episode) and milder >= (_row(episode).good_samples or math.inf)
    takes_over = is_pending or is_milder or (is_confirmed and rank >= is_earlier)
    if finding.shown or episode.finding.shown:
        finding = msgspec.structs.replace(finding, shown=merged(episode.finding.shown, finding.shown))
    returns = is_harder(episode, finding) or (rank >= 0 and reopens_after_expiry(episode, finding, now))
    reopens = episode.state is EpisodeState.ACKNOWLEDGED and is_confirmed and returns
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
        milder=0 if takes_over else milder,
        recent=recent,
        looked=finding.evidence_time,
    )


def _good_look(work: _Work, episode: Episode, finding: Finding) -> Episode | None:
    """Return the episode after a good observation, cleared if that was enough, or None if it was never confirmed."""
    key, now = episode.key, work.now
    recent = (*episode.recent, False)[-max(episode.finding.window, 1) :]
    if episode.state is EpisodeState.PENDING:
        return msgspec.structs.replace(episode, recent=recent, looked=finding.evidence_time) if any(recent) else None
    needed = _row(episode).good_samples
    if needed is None:
        stays = bool(episode.finding.shown)  # a short load without a wrong result is no proof, in any class
        if episode.state is EpisodeState.ACKNOWLEDGED and episode.expired is None and not stays:
            return _gone(work, episode, "acknowledged, and no longer present")
        return msgspec.structs.replace(episode, looked=finding.evidence_time, finding=_past(episode.finding, finding))
    good = episode.good + 1
    if good < needed or (_is_damped(episode) and is_held(work.flaps.get(key), now)):
        seen = finding.evidence_time
        return msgspec.structs.replace(episode, good=good, milder=episode.milder + 1, recent=recent, looked=seen)
    if _is_damped(episode):
        work.flaps[key] = closed(work.flaps.get(key), key, now)
    proof = f"{good} good samples in a row" if good > 1 else f"measured again: {finding.message}"
    return _gone(work, episode, proof)


def _gone(work: _Work, episode: Episode, proof: str) -> Episode:
    """Return *episode* ended because it is not observed any more; an acknowledgement may still cover its return."""
    ended = _cleared(episode, proof, work.now)
    is_own = not is_word(episode) or not any(follows(episode, word) for word in work.active.values())
    if is_own and is_word(episode) and is_covering(ended):
        work.standing[episode.key] = ended
    return ended


def _past(fault: Finding, good: Finding) -> Finding:
    """Return *fault* described as past: it stays open until disproved, and its text must not contradict the present."""
    if BEFORE in fault.message:
        return fault
    proof = "a re-test must prove" if clearing_table()[fault.clearing].passed_retest else "ends nothing"
    return msgspec.structs.replace(fault, message=f"{good.message} now, which {proof}{BEFORE}{fault.message}")


def _cleared(episode: Episode, proof: str, now: Instant) -> Episode:
    return msgspec.structs.replace(episode, state=EpisodeState.CLEARED, cleared=now, cleared_by=proof)


def _is_change(before: Episode | None, after: Episode) -> bool:
    """Return whether a journal must keep the difference: not for an observation that only confirmed the known state."""
    if after.state is EpisodeState.PENDING:
        return False
    if before is None or before.state is EpisodeState.PENDING:
        return True
    return _told(before) != _told(after)


def _told(episode: Episode) -> tuple[object, ...]:
    """Return the fields of *episode* of which a journal keeps each change."""
    until = None if episode.until is None else episode.until.wall_seconds
    return (episode.state, episode.outcome, episode.count, episode.note, until, episode.expired)
