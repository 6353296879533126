"""Acknowledgements of faults: their term, their effect and their text. Pure.

An acknowledged fault does not count. Repeats of the fault update it, also with a worse outcome. It reopens only if it
requests a harder action, or with the first bad observation after the expiry. The expiry alone closes no gate: the node
is then degraded, and the reason says why. Within a boot the time since boot decides about the expiry, so that no change
of the wall clock does; only the wall clock knows how long the machine was off, so it is read once after a reboot.
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
"""An expiry is announced so many seconds before: a day, in which an operator is at work."""

RANK = {Outcome.UNMEASURED: 0, Outcome.WARN: 1, Outcome.FAIL: 2}
"""Severity of outcomes, ascending."""


class Returns(msgspec.Struct, frozen=True):
    """The end of an acknowledgement without a term: it covers returns of its fault ``until`` then, in the same boot."""

    until: Instant


def granted(
    episode: Episode, *, note: str, actor: str, time: Instant | None, until: Instant | Returns | None
) -> Episode:
    """Return *episode* as acknowledged by *actor* at *time*; a later acknowledgement replaces an earlier one.

    The outcome and action that the earlier one covered stay covered: a new term or note does not withdraw it. A resume
    of the node is weaker than an acknowledgement in force: it only adds how long returns are covered, if that has no
    term.
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
    """Return outcome and action that are known of *episode*: the present ones, or worse ones acknowledged in force."""
    now = (episode.outcome, episode.finding.action)
    if episode.state is not EpisodeState.ACKNOWLEDGED or episode.expired is not None or episode.known is None:
        return now
    return (max(now[0], episode.known[0], key=RANK.__getitem__), max(now[1], episode.known[1], key=attrgetter("rank")))


def extended(word: Episode, *, note: str, actor: str, time: Instant | None, until: Instant) -> Episode:
    """Return *word*, an acknowledgement of a fault absent at *time*, as renewed by *actor* until another time."""
    return msgspec.structs.replace(word, note=note, actor=actor, acknowledged=time, until=until, covers=None)


def covered(episode: Episode, word: Episode | None) -> Episode:
    """Return *episode*, which returns, with the acknowledgement of *word* if that covers it."""
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
    """Return whether two serials under one name belong to two boards; an unknown serial differs from none.

    A chip number, which AMD SMI reports for boards without a serial, does not differ from a serial either.
    """
    serial, other = told_serial(serial), told_serial(other)
    if serial is None or other is None:
        return False
    return compared_serial(serial) != compared_serial(other) and _is_chip(serial) == _is_chip(other)


def may_be_of_another(episode: Episode, now: Instant) -> bool:
    """Return whether the acknowledgement of *episode*, whose board first reports its name *now*, may be of another.

    Boards are exchanged while the power is off, and in the boot of the acknowledgement this one was known only by its
    address or by a number.
    """
    said = episode.acknowledged
    nameless = episode.pci is None or episode.key.device.endswith(episode.pci)
    return nameless and told_serial(episode.serial) is None and said is not None and said.boot_id != now.boot_id


def _is_chip(serial: str) -> bool:
    return re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", serial) is not None


def is_over(until: Instant | None, now: Instant) -> bool:
    """Return whether *until* has passed: by the time since boot within its boot, else by the wall clock."""
    if until is None:
        return False
    if until.boot_id == now.boot_id:
        return now.boottime_ns >= until.boottime_ns
    return now.wall_seconds >= until.wall_seconds


def anchored(episode: Episode, now: Instant) -> Episode:
    """Return *episode* with the end of its term converted to the boot of *now*, by the wall clock, once after a reboot.

    After that, setting the clock changes nothing. A lost clock restarts at most the whole term.
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
    """Return until when a return of *episode* is covered; None if it is not, or as long as the acknowledgement."""
    return episode.until or episode.covers


def covers_at(episode: Episode, now: Instant) -> bool:
    """Return whether the acknowledgement of *episode* covers a return *now*: with a term, also after a reboot."""
    end = covering_end(episode)
    return end is not None and not is_over(end, now) and (episode.until is not None or end.boot_id == now.boot_id)


def expire(episode: Episode, now: Instant) -> Episode:
    """Return *episode* marked as expired if its term has passed *now*, and without a cover that has ended."""
    if episode.covers is not None and not covers_at(episode, now):
        return msgspec.structs.replace(episode, covers=None)
    is_due = episode.state is EpisodeState.ACKNOWLEDGED and episode.expired is None and is_over(episode.until, now)
    return msgspec.structs.replace(episode, expired=now) if is_due else episode


def is_harder(episode: Episode, finding: Finding) -> bool:
    """Return whether *finding* requests more than was acknowledged; an unmeasured reading was no known fault."""
    outcome, action = episode.known or (episode.outcome, episode.finding.action)
    if finding.outcome is Outcome.UNMEASURED:
        return False
    return outcome is Outcome.UNMEASURED or finding.action.rank > action.rank


def says_more(episode: Episode, finding: Finding) -> bool:
    """Return whether *finding* is more severe than *episode*, or equally severe with a harder action."""
    rank = RANK[finding.outcome] - RANK[episode.outcome]
    return rank > 0 or (rank == 0 and finding.action.rank > episode.finding.action.rank)


def was_seen(shown: Episode, newest: Episode) -> bool:
    """Return whether an operator who saw *shown* knows *newest* too, which may not be displayed yet.

    Not if *newest* requests more, or is of another board: an acknowledgement covers only what was seen.
    """
    seen = msgspec.structs.replace(shown, known=(shown.outcome, shown.finding.action))
    more = newest.state is EpisodeState.OPEN and is_harder(seen, newest.finding)
    return not more and not are_other_boards(shown.serial, newest.serial)


def reopens_after_expiry(episode: Episode, finding: Finding, now: Instant) -> bool:
    """Return whether the bad observation *finding* was made after the acknowledgement of *episode* had expired.

    A finding that is repeated without a new sample has the time of the old one. An observation of this boot is later
    than an expiry of an earlier boot; one of another boot is later than nothing.
    """
    expired = episode.expired
    if expired is None:
        return False
    taken = finding.as_of or finding.evidence_time or now
    if taken.boot_id == expired.boot_id:
        return taken.boottime_ns > expired.boottime_ns
    return taken.boot_id == now.boot_id


def standing(episodes: Iterable[Episode]) -> tuple[Episode, ...]:
    """Return the acknowledged faults, which do not count, most severe first; application errors are no node faults."""
    found = [
        episode
        for episode in episodes
        if episode.state is EpisodeState.ACKNOWLEDGED
        and episode.expired is None
        and episode.finding.fault_class is not FaultClass.APPLICATION
    ]
    return tuple(sorted(found, key=lambda entry: (-RANK[entry.outcome], -entry.finding.action.rank, entry.key)))


def command_words(key: Key) -> str:
    """Return the arguments of ``nodevet ack`` for *key*: ``link.down --device GPU-aaaa --part 'link 17'``."""
    part = () if key.part.kind is PartKind.DEVICE else ("--part", str(key.part))
    device = (f"--device={key.device}",) if key.device.startswith("-") else ("--device", key.device)
    return shlex.join((key.code, *device, *part))


def is_word(episode: Episode) -> bool:
    """Return whether *episode* has an acknowledgement, in force or expired."""
    return episode.state is EpisodeState.ACKNOWLEDGED


def is_covering(episode: Episode) -> bool:
    """Return whether *episode* is over, and its acknowledgement covers a return."""
    return episode.state is EpisodeState.CLEARED and covering_end(episode) is not None and episode.expired is None


def is_announced(episode: Episode, now: Instant) -> bool:
    """Return whether the acknowledgement of *episode*, or of its return, ends within a day but has not ended yet."""
    if not (is_word(episode) or is_covering(episode)) or episode.until is None or episode.expired is not None:
        return False
    return is_over(episode.until, later(now, ANNOUNCED_SECONDS))


def acknowledged_words(episodes: Iterable[Episode]) -> str:
    """Return the acknowledged *episodes* in one phrase, such as ``1 acknowledged failure (GPU 6: ...)``.

    For the most severe one it names actor, time, note and expiry; empty if none is acknowledged.
    """
    known = standing(episodes)
    gravest = next(iter(known), None)
    if gravest is None:
        return ""
    more = f", and {len(known) - 1} more" if len(known) > 1 else ""
    return f"{counted_words(known)} ({gravest.finding.message}; {person_words(gravest)}{more})"


def longest_first(covered: Iterable[Episode]) -> list[Episode]:
    """Return the acknowledgements of *covered* faults, latest expiry first."""
    ends = ((covering_end(entry), entry) for entry in covered)
    return [entry for _, entry in sorted(ends, key=lambda end: (-(end[0].wall_seconds if end[0] else 0.0), end[1].key))]


def covering_words(covered: Iterable[Episode]) -> str:
    """Return the acknowledgements that cover returns of past faults in one phrase; empty if there are none.

    For the one with the latest expiry it names actor, fault, time, note and expiry.
    """
    words = longest_first(covered)
    if not words:
        return ""
    longest, more = words[0], f", and {len(words) - 1} more" if len(words) > 1 else ""
    return f"{covering_count(words)} ({longest.finding.message}; {person_words(longest)}{more})"


def covering_count(words: Sized) -> str:
    """Return the number of acknowledgements that cover a return, as text; empty if there are none."""
    noun = "1 acknowledgement covers" if len(words) == 1 else f"{len(words)} acknowledgements cover"
    return f"{noun} cleared faults" if words else ""


def counted_words(known: tuple[Episode, ...]) -> str:
    """Return the number of acknowledged faults as text: ``2 acknowledged failures``."""
    noun = "failure" if any(entry.outcome is Outcome.FAIL for entry in known) else "finding"
    return f"{len(known)} acknowledged {noun}{'' if len(known) == 1 else 's'}"


def person_words(episode: Episode) -> str:
    """Return actor, time, expiry and note of the acknowledgement of *episode*."""
    said = f"acknowledged by {episode.actor or 'a person'}"
    if episode.acknowledged is not None:
        said += f" on {date_words(episode.acknowledged)}"
    end = covering_end(episode) if is_covering(episode) else episode.until
    if end is not None:
        said += f", until {date_words(end)}"
    return said + (f": {episode.note}" if episode.note else "")


def date_words(moment: Instant) -> str:
    """Return the wall time of *moment* to the minute."""
    return datetime.fromtimestamp(moment.wall_seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
