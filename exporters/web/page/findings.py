"""What was found and is not over: each with its value and limit, what to do, since when, and how it ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from nodevet.checks.core.model import WHOLE, Action, Episode, EpisodeState, Finding, Instant, Outcome, Snapshot
from nodevet.checks.engine.acknowledgement import is_word
from nodevet.checks.engine.explanation import ACTIONS, ending
from nodevet.exporters.format import age, amount, counted, moment, words

from .markup import Html, element, joined
from .shapes import badge

__all__ = ["MAXIMUM_FINDINGS", "Told", "findings_section", "told"]

MAXIMUM_FINDINGS = 60
"""Findings that are written out; a machine with more has one trouble, and the API lists the rest."""

LISTED_IN_FULL = 3
"""So many things that could not be judged on one device are told one by one, more of them in one line."""

CLEARS = "How it clears"

NAMED = 6
"""Of more than those so many are named."""

_GRAVITY = {Outcome.FAIL: 0, Outcome.UNMEASURED: 1, Outcome.WARN: 2}
_STATES = {
    EpisodeState.PENDING: "seen, not confirmed yet",
    EpisodeState.OPEN: "open",
    EpisodeState.ACKNOWLEDGED: "acknowledged",
}


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A finding as the page tells it. ``state`` and ``first_seen`` are None for one that no episode confirms."""

    finding: Finding
    outcome: Outcome
    state: EpisodeState | None = None
    first_seen: Instant | None = None
    last_seen: Instant | None = None
    count: int = 1
    note: str | None = None
    word: str = ""
    flapping: int = 0

    @property
    def counts(self) -> bool:
        """Return whether it is confirmed: open, or acknowledged by a person."""
        return self.state in (EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED)


def told(snapshot: Snapshot) -> tuple[Told, ...]:
    """Return what is not over, and what the last look did not pass without confirming it; gravest first."""
    lasting = [episode for episode in snapshot.episodes if episode.state is not EpisodeState.CLEARED]
    keys = {episode.key for episode in lasting}
    entries = [_from_episode(episode) for episode in lasting]
    entries += [
        Told(finding=finding, outcome=finding.outcome, last_seen=finding.evidence_time)
        for finding in snapshot.findings
        if finding.outcome in _GRAVITY and finding.key not in keys
    ]
    return tuple(sorted(entries, key=lambda entry: (not entry.counts, entry.state is None, _GRAVITY[entry.outcome])))


def findings_section(snapshot: Snapshot, entries: Sequence[Told], names: dict[str, str]) -> Html:
    """Return the section of findings; one line where there are none, which says what that rests on."""
    single, grouped = _grouped(entries)
    items = [_item(number, entry, snapshot.time, names) for number, entry in single[:MAXIMUM_FINDINGS]]
    items += [_group(device, places, entries, names) for device, places in list(grouped.items())[:MAXIMUM_FINDINGS]]
    hidden = max(0, len(single) - MAXIMUM_FINDINGS) + max(0, len(grouped) - MAXIMUM_FINDINGS)
    if hidden:
        rest = element("a", "the status as JSON", href="/api/v1/status")
        items.append(element("li", element("p", f"and {hidden:,} more: see ", rest, class_="soft")))
    body = element("ul", *items, class_="findings") if items else element("p", _nothing(snapshot), class_="soft quiet")
    return element("section", element("h2", "Findings", id="findings-name"), body, aria_labelledby="findings-name")


def _nothing(snapshot: Snapshot) -> str:
    ran = [run for run in snapshot.checks if run.success]
    if not ran:
        return "No check has run yet, so nothing is known."
    passed = sum(run.outcomes.get(Outcome.PASS.value, 0) for run in ran)
    return f"None. {counted(len(ran), 'check')} made {counted(passed, 'comparison')}, and every one passed."


def _from_episode(episode: Episode) -> Told:
    return Told(
        finding=episode.finding,
        outcome=episode.outcome if episode.outcome in _GRAVITY else Outcome.UNMEASURED,
        state=episode.state,
        first_seen=episode.opened,
        last_seen=episode.last_seen,
        count=episode.count,
        note=episode.note,
        word=_word(episode),
        flapping=episode.flapping,
    )


def _word(episode: Episode) -> str:
    """Return who acknowledged *episode*, when and until when; empty where nobody did."""
    if not is_word(episode):
        return ""
    said = f"by {episode.actor or 'a person'}"
    said += f" on {moment(episode.acknowledged)}" if episode.acknowledged is not None else ""
    said += f", until {moment(episode.until)}" if episode.until is not None else ""
    return said + (": expired" if episode.expired is not None else "")


def _grouped(entries: Sequence[Told]) -> tuple[list[tuple[int, Told]], dict[str, list[int]]]:
    """Return what is told one by one with its place among *entries*, and by device the places that share a line."""
    unjudged: dict[str, list[int]] = {}
    for place, entry in enumerate(entries):
        if entry.state is None and entry.outcome is Outcome.UNMEASURED:
            unjudged.setdefault(entry.finding.device, []).append(place)
    grouped = {device: places for device, places in unjudged.items() if len(places) > LISTED_IN_FULL}
    together = {place for places in grouped.values() for place in places}
    return [(place, entry) for place, entry in enumerate(entries) if place not in together], grouped


def _item(place: int, entry: Told, now: Instant, names: dict[str, str]) -> Html:
    finding = entry.finding
    where = names.get(finding.device, finding.device)
    part = "" if finding.part == WHOLE else f", {finding.part}"
    head = element(
        "p",
        badge(entry.outcome.value),
        " ",
        element("code", element("a", finding.code, href=f"#about-{finding.code}")),
        element("span", f" on {where}{part}", class_="where"),
        element("span", _state(entry), class_="state"),
        class_="head",
    )
    rows = list(_facts(entry, now))
    facts = element("dl", *(_fact(name, said) for name, said in rows))
    return element(
        "li", head, element("p", finding.message, class_="message"), facts, class_=entry.outcome.value,
        id=f"finding-{place}",
    )  # fmt: skip


def _fact(name: str, said: object) -> Html:
    return element("div", element("dt", name), element("dd", said), class_="long" if name == CLEARS else None)


def _facts(entry: Told, now: Instant) -> Iterable[tuple[str, object]]:
    finding = entry.finding
    if finding.value is not None and not isinstance(finding.value, bool):
        yield "Measured", amount(finding.value, finding.unit)
    if finding.limit is not None:
        limit = finding.limit
        yield "Limit", joined([f"{limit.op} {amount(limit.value, limit.unit)} ", element("small", limit.source)])
    if finding.action is not Action.NONE:
        yield "What to do", element("strong", ACTIONS[finding.action.value])
    if entry.first_seen is not None:
        times = "" if entry.count == 1 else f" {entry.count:,} times,"
        last = f"{age(now, entry.first_seen)}; seen{times} last {age(now, entry.last_seen)}"
        yield "Since", joined([moment(entry.first_seen), " ", element("small", last)])
    elif entry.last_seen is not None:
        yield "Seen", age(now, entry.last_seen)
    yield CLEARS, ending(finding.clearing, finding.action)
    if entry.word:
        yield "Acknowledged", entry.word
    if entry.note:
        yield "Note", entry.note


def _state(entry: Told) -> str:
    said = "not confirmed: the verdict does not rest on it" if entry.state is None else _STATES[entry.state]
    if entry.flapping:
        said += f", flapping, {entry.flapping:,} times"
    return f"{said}, {words(entry.finding.fault_class.value)} fault"


def _group(device: str, places: Sequence[int], entries: Sequence[Told], names: dict[str, str]) -> Html:
    codes = list(dict.fromkeys(entries[place].finding.code for place in places))
    more = f" and {len(codes) - NAMED} more" if len(codes) > NAMED else ""
    said = f"{names.get(device, device)} could not be judged"
    head = element("p", badge(Outcome.UNMEASURED.value), " ", element("span", said, class_="where"), class_="head")
    by = element("p", f"by {', '.join(codes[:NAMED])}{more}", class_="message")
    return element("li", head, by, class_="unmeasured", id=f"finding-{places[0]}")
