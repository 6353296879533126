"""What a person said of a fault, for how long it holds, and in which words it stays visible. Pure.

An acknowledgement stops a fault from counting. Repeats of the fault update it, also with a worse outcome; only a harder
action opens it anew, and the first bad look after its expiry. The expiry alone closes nothing: the node is then
degraded, and says why. Within a boot the time since boot decides about the expiry, so that no change of the wall clock
does; how long the machine was off only the wall clock knows, which is asked once after a reboot.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sized
from datetime import UTC, datetime
from operator import attrgetter

import msgspec

from nodevet.checks.core.model import (
    Action,
    Episode,
    EpisodeState,
    FaultClass,
    Finding,
    Instant,
    Key,
    Outcome,
    PartKind,
    compared_serial,
    told_serial,
)

from .damping import later

ANNOUNCED_SECONDS = 86_400.0
"""So long before its end an expiry is announced: a day, in which somebody is at work."""

RANK = {Outcome.UNMEASURED: 0, Outcome.WARN: 1, Outcome.FAIL: 2}
"""Which outcome is worse."""


class Returns(msgspec.Struct, frozen=True):
    """The end of a word that has no term of its own, and covers returns of its fault ``until`` then, in its boot."""

    until: Instant


def granted(
    episode: Episode, *, note: str, actor: str, time: Instant | None, until: Instant | Returns | None
) -> Episode:
    """Return *episode* as *actor* acknowledges it at *time*; a later word replaces an earlier one.

    What the earlier one was about stays known: who gives a word another term or note does not take it back. A resume of
    the node says less than a word that stands: it adds for how long returns are covered, where that has no term.
    """
    stands = is_word(episode) and episode.expired is None
    covers = until.until if isinstance(until, Returns) else None
    if stands and episode.until is None and not isinstance(until, Instant):
        covers = max(filter(None, (covers, episode.covers)), key=lambda end: end.boottime_ns, default=None)
    if stands and isinstance(until, Returns):
        return episode if episode.until is not None else msgspec.structs.replace(episode, covers=covers)
    return msgspec.structs.replace(
        episode,
        state=EpisodeState.ACKNOWLEDGED,
        note=note,
        actor=actor,
        acknowledged=time,
        until=until if isinstance(until, Instant) else None,
        expired=None,
        covers=covers,
        known=_known(episode),
    )


def _known(episode: Episode) -> tuple[Outcome, Action]:
    """Return outcome and action that are known of *episode*: those of now, or worse ones of a word that is in force."""
    now = (episode.outcome, episode.finding.action)
    if episode.state is not EpisodeState.ACKNOWLEDGED or episode.expired is not None or episode.known is None:
        return now
    return (max(now[0], episode.known[0], key=RANK.__getitem__), max(now[1], episode.known[1], key=attrgetter("rank")))


def extended(word: Episode, *, note: str, actor: str, time: Instant | None, until: Instant) -> Episode:
    """Return the *word* about a fault that is not there at *time*, as *actor* says it anew: until another moment."""
    return msgspec.structs.replace(word, note=note, actor=actor, acknowledged=time, until=until, covers=None)


def covered(episode: Episode, word: Episode | None) -> Episode:
    """Return *episode*, which returns, under the acknowledgement of *word*, where that covers it."""
    if word is None or are_other_boards(word.serial, episode.serial) or is_harder(word, episode.finding):
        return episode
    return msgspec.structs.replace(
        episode,
        state=EpisodeState.ACKNOWLEDGED,
        note=word.note,
        actor=word.actor,
        acknowledged=word.acknowledged,
        until=word.until,
        expired=None,
        covers=word.covers,
        known=word.known,
    )


def are_other_boards(serial: str | None, other: str | None) -> bool:
    """Return whether two serials under one name are those of two boards: one that was never told cannot differ.

    Nor can the number of a chip, which AMD SMI gives where the board has no serial, from the serial of a board.
    """
    serial, other = told_serial(serial), told_serial(other)
    if serial is None or other is None:
        return False
    return compared_serial(serial) != compared_serial(other) and _is_chip(serial) == _is_chip(other)


def may_be_of_another(episode: Episode, now: Instant) -> bool:
    """Return whether the word about *episode*, whose board tells its name *now* first, may be about another board.

    Boards are exchanged while the power is off, and in the boot of the word this one was known by its address alone, or
    by a number.
    """
    said = episode.acknowledged
    nameless = episode.pci is None or episode.key.device.endswith(episode.pci)
    return nameless and told_serial(episode.serial) is None and said is not None and said.boot_id != now.boot_id


def _is_chip(serial: str) -> bool:
    return re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", serial) is not None


def is_over(until: Instant | None, now: Instant) -> bool:
    """Return whether *until* is reached: by the time since boot within its boot, else by the wall clock."""
    if until is None:
        return False
    if until.boot_id == now.boot_id:
        return now.boottime_ns >= until.boottime_ns
    return now.wall_seconds >= until.wall_seconds


def anchored(episode: Episode, now: Instant) -> Episode:
    """Return *episode* with the end of its term in the boot of *now*, by the wall clock, once after each reboot.

    From then on a clock that is set changes nothing. A clock that was lost gives at most the whole term anew.
    """
    until = episode.until
    if until is None or until.boot_id == now.boot_id:
        return episode
    left = until.wall_seconds - now.wall_seconds
    if episode.acknowledged is not None:
        left = min(left, until.wall_seconds - episode.acknowledged.wall_seconds)
    moment = Instant(now.boot_id, now.boottime_ns + round(left * 1e9), until.wall_seconds)
    return msgspec.structs.replace(episode, until=moment)


def covering_end(episode: Episode) -> Instant | None:
    """Return until when the return of *episode* is covered; None where it is not, or for as long as it lasts."""
    return episode.until or episode.covers


def covers_at(episode: Episode, now: Instant) -> bool:
    """Return whether the word about *episode* covers a return of it *now*: a term does so over a reboot too."""
    end = covering_end(episode)
    return end is not None and not is_over(end, now) and (episode.until is not None or end.boot_id == now.boot_id)


def expire(episode: Episode, now: Instant) -> Episode:
    """Return *episode* with the mark of its expiry, where that is reached *now*, or without a cover that is over."""
    if episode.covers is not None and not covers_at(episode, now):
        return msgspec.structs.replace(episode, covers=None)
    is_due = episode.state is EpisodeState.ACKNOWLEDGED and episode.expired is None and is_over(episode.until, now)
    return msgspec.structs.replace(episode, expired=now) if is_due else episode


def is_harder(episode: Episode, finding: Finding) -> bool:
    """Return whether *finding* asks for more than what the person knew; of what was not measured no fault was known."""
    outcome, action = episode.known or (episode.outcome, episode.finding.action)
    if finding.outcome is Outcome.UNMEASURED:
        return False
    return outcome is Outcome.UNMEASURED or finding.action.rank > action.rank


def says_more(episode: Episode, finding: Finding) -> bool:
    """Return whether *finding* is graver than *episode*, or as grave and asks for a harder action."""
    rank = RANK[finding.outcome] - RANK[episode.outcome]
    return rank > 0 or (rank == 0 and finding.action.rank > episode.finding.action.rank)


def was_seen(shown: Episode, newest: Episode) -> bool:
    """Return whether who saw *shown* knows of *newest* too, which may not be shown yet: a word covers no more.

    It does not where it asks for more, or is of another board.
    """
    seen = msgspec.structs.replace(shown, known=(shown.outcome, shown.finding.action))
    more = newest.state is EpisodeState.OPEN and is_harder(seen, newest.finding)
    return not more and not are_other_boards(shown.serial, newest.serial)


def reopens_after_expiry(episode: Episode, finding: Finding, now: Instant) -> bool:
    """Return whether the bad look *finding* was taken after the acknowledgement of *episode* was over.

    What each round tells without a look of its own is as old as the last one. A look of this boot is later than an end
    that an earlier one noticed; one of another boot is not later than anything.
    """
    expired = episode.expired
    if expired is None:
        return False
    taken = finding.as_of or finding.evidence_time or now
    if taken.boot_id == expired.boot_id:
        return taken.boottime_ns > expired.boottime_ns
    return taken.boot_id == now.boot_id


def standing(episodes: Iterable[Episode]) -> tuple[Episode, ...]:
    """Return the acknowledged faults that do not count, gravest first; an application's own are none of the node."""
    found = [
        episode
        for episode in episodes
        if episode.state is EpisodeState.ACKNOWLEDGED
        and episode.expired is None
        and episode.finding.fault_class is not FaultClass.APPLICATION
    ]
    return tuple(sorted(found, key=lambda entry: (-RANK[entry.outcome], -entry.finding.action.rank, entry.key)))


def command_words(key: Key) -> str:
    """Return what names *key* behind ``nodevet ack`` in a shell: ``link.down --device GPU-aaaa --part 'link 17'``."""
    part = () if key.part.kind is PartKind.DEVICE else ("--part", str(key.part))
    device = (f"--device={key.device}",) if key.device.startswith("-") else ("--device", key.device)
    return shlex.join((key.code, *device, *part))


def is_word(episode: Episode) -> bool:
    """Return whether a person's word stands at *episode*, in force or expired."""
    return episode.state is EpisodeState.ACKNOWLEDGED


def is_covering(episode: Episode) -> bool:
    """Return whether *episode* is over, and what a person said of it covers its return."""
    return episode.state is EpisodeState.CLEARED and covering_end(episode) is not None and episode.expired is None


def is_announced(episode: Episode, now: Instant) -> bool:
    """Return whether the acknowledgement of *episode*, or of its return, ends within a day, and has not yet."""
    if not (is_word(episode) or is_covering(episode)) or episode.until is None or episode.expired is not None:
        return False
    return is_over(episode.until, later(now, ANNOUNCED_SECONDS))


def acknowledged_words(episodes: Iterable[Episode]) -> str:
    """Return what is acknowledged among *episodes* in one phrase, such as ``1 acknowledged failure (GPU 6: ...)``.

    The gravest is told with who acknowledged it, when, why and until when; empty where nothing is.
    """
    known = standing(episodes)
    gravest = next(iter(known), None)
    if gravest is None:
        return ""
    more = f", and {len(known) - 1} more" if len(known) > 1 else ""
    return f"{counted_words(known)} ({gravest.finding.message}; {person_words(gravest)}{more})"


def longest_first(covered: Iterable[Episode]) -> list[Episode]:
    """Return the acknowledgements of *covered* faults, those that end last first."""
    ends = ((covering_end(entry), entry) for entry in covered)
    return [entry for _, entry in sorted(ends, key=lambda end: (-(end[0].wall_seconds if end[0] else 0.0), end[1].key))]


def covering_words(covered: Iterable[Episode]) -> str:
    """Return which acknowledgements cover the return of faults that are over, in one phrase; empty where none does.

    That which ends last is told with who acknowledged what, when, why and until when.
    """
    words = longest_first(covered)
    if not words:
        return ""
    longest, more = words[0], f", and {len(words) - 1} more" if len(words) > 1 else ""
    return f"{covering_count(words)} ({longest.finding.message}; {person_words(longest)}{more})"


def covering_count(words: Sized) -> str:
    """Return how many acknowledgements cover what is not seen now, in words; empty where none does."""
    noun = "1 acknowledgement covers" if len(words) == 1 else f"{len(words)} acknowledgements cover"
    return f"{noun} cleared faults" if words else ""


def counted_words(known: tuple[Episode, ...]) -> str:
    """Return how many faults are acknowledged: ``2 acknowledged failures``."""
    noun = "failure" if any(entry.outcome is Outcome.FAIL for entry in known) else "finding"
    return f"{len(known)} acknowledged {noun}{'' if len(known) == 1 else 's'}"


def person_words(episode: Episode) -> str:
    """Return who acknowledged *episode*, when, until when and with which note."""
    said = f"acknowledged by {episode.actor or 'a person'}"
    if episode.acknowledged is not None:
        said += f" on {date_words(episode.acknowledged)}"
    end = covering_end(episode) if is_covering(episode) else episode.until
    if end is not None:
        said += f", until {date_words(end)}"
    return said + (f": {episode.note}" if episode.note else "")


def date_words(moment: Instant) -> str:
    """Return the wall time of *moment* as people write it, to the minute."""
    return datetime.fromtimestamp(moment.wall_seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
