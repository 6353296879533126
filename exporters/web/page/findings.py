"""Findings that are not cleared, each with value, limit, action, time and clearing condition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from nodevet.checks.core.documents import copied
from nodevet.checks.core.model import WHOLE, Action, Episode, EpisodeState, Finding, Instant, Outcome, Snapshot
from nodevet.checks.engine.acknowledgement import is_word
from nodevet.checks.engine.explanation import ACTIONS, ending
from nodevet.exporters.format import age, amount, counted, moment, words

MAXIMUM_FINDINGS = 60
"""Number of findings on the page; the API lists the rest."""

LISTED_IN_FULL = 3
"""Up to this number, unmeasured findings of a device are listed one by one; more share one line."""

NAMED = 6
"""Maximum number of codes that are named."""

_GRAVITY = {Outcome.FAIL: 0, Outcome.UNMEASURED: 1, Outcome.WARN: 2}
_MEASURED = {"temperature_margin_celsius": "Thermal margin"}
"""Names of measured values that read like another quantity of the same unit."""
_STATES = {
    EpisodeState.PENDING: "pending, not confirmed yet",
    EpisodeState.OPEN: "open",
    EpisodeState.ACKNOWLEDGED: "acknowledged",
}


class ListedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that is not cleared. ``state`` and ``first_seen`` are None without an episode."""

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


class Fact(msgspec.Struct, frozen=True):
    """A fact about a finding, with a remark in small print."""

    name: str
    text: str
    remark: str = ""
    is_strong: bool = False
    is_long: bool = False


class FindingItem(msgspec.Struct, frozen=True):
    """A finding that is written out."""

    anchor: int
    outcome: str
    code: str
    where: str
    state: str
    message: str
    facts: tuple[Fact, ...]


class UnjudgedItem(msgspec.Struct, frozen=True):
    """A device with many unmeasured findings, listed in one line."""

    anchor: int
    device: str
    codes: str


class FindingsSection(msgspec.Struct, frozen=True):
    """The section of findings; ``nothing`` is the text of a section without findings."""

    items: tuple[FindingItem, ...]
    unjudged: tuple[UnjudgedItem, ...]
    hidden: int
    nothing: str


def listed_findings(snapshot: Snapshot) -> tuple[ListedFinding, ...]:
    """Return findings that are not cleared, and unconfirmed ones of the last round; gravest first."""
    lasting = [episode for episode in snapshot.episodes if episode.state is not EpisodeState.CLEARED]
    keys = {episode.key for episode in lasting}
    entries = [_from_episode(episode) for episode in lasting]
    entries += [
        ListedFinding(finding=finding, outcome=finding.outcome, last_seen=finding.evidence_time)
        for finding in snapshot.findings
        if finding.outcome in _GRAVITY and finding.key not in keys
    ]
    return tuple(sorted(entries, key=lambda entry: (not entry.counts, entry.state is None, _GRAVITY[entry.outcome])))


def findings_section(snapshot: Snapshot, entries: Sequence[ListedFinding], names: dict[str, str]) -> FindingsSection:
    """Return the section of findings."""
    single, grouped = _grouped(entries)
    return FindingsSection(
        tuple(_item(number, entry, snapshot.time, names) for number, entry in single[:MAXIMUM_FINDINGS]),
        tuple(_unjudged(device, places, entries, names) for device, places in grouped[:MAXIMUM_FINDINGS]),
        max(0, len(single) - MAXIMUM_FINDINGS) + max(0, len(grouped) - MAXIMUM_FINDINGS),
        _nothing(snapshot),
    )


def _nothing(snapshot: Snapshot) -> str:
    ran = [run for run in snapshot.checks if run.success]
    if not ran:
        return "No check has run yet."
    passed = sum(run.outcomes.get(Outcome.PASS.value, 0) for run in ran)
    return f"None. {counted(len(ran), 'check')} ran, {counted(passed, 'comparison')} passed."


def _from_episode(episode: Episode) -> ListedFinding:
    outcome = episode.outcome if episode.outcome in _GRAVITY else Outcome.UNMEASURED
    return copied(ListedFinding, episode, outcome=outcome, first_seen=episode.opened, word=_word(episode))


def _word(episode: Episode) -> str:
    """Return actor, time and term of the acknowledgement of *episode*; empty if there is none."""
    if not is_word(episode):
        return ""
    said = f"by {episode.actor or 'a person'}"
    said += f" on {moment(episode.acknowledged)}" if episode.acknowledged is not None else ""
    said += f", until {moment(episode.until)}" if episode.until is not None else ""
    return said + (": expired" if episode.expired is not None else "")


def _grouped(entries: Sequence[ListedFinding]) -> tuple[list[tuple[int, ListedFinding]], list[tuple[str, list[int]]]]:
    """Return the findings listed one by one, with their indices, and by device the indices that share a line."""
    unjudged: dict[str, list[int]] = {}
    for place, entry in enumerate(entries):
        if entry.state is None and entry.outcome is Outcome.UNMEASURED:
            unjudged.setdefault(entry.finding.device, []).append(place)
    grouped = [(device, places) for device, places in unjudged.items() if len(places) > LISTED_IN_FULL]
    together = {place for _, places in grouped for place in places}
    return [(place, entry) for place, entry in enumerate(entries) if place not in together], grouped


def _item(place: int, entry: ListedFinding, now: Instant, names: dict[str, str]) -> FindingItem:
    finding = entry.finding
    part = "" if finding.part == WHOLE else f", {finding.part}"
    return FindingItem(
        place,
        entry.outcome.value,
        finding.code,
        f"{names.get(finding.device, finding.device)}{part}",
        _state(entry),
        finding.message,
        tuple(_facts(entry, now)),
    )


def _facts(entry: ListedFinding, now: Instant) -> Iterable[Fact]:
    finding, limit = entry.finding, entry.finding.limit
    if finding.value is not None and not isinstance(finding.value, bool):
        name = _MEASURED.get(next(iter(finding.evidence), ""), "Measured")
        yield Fact(name, amount(finding.value, finding.unit))
    if limit is not None:
        yield Fact("Limit", f"{limit.op} {amount(limit.value, limit.unit)}", limit.source)
    if finding.action is not Action.NONE:
        yield Fact("Action", ACTIONS[finding.action.value], is_strong=True)
    if entry.first_seen is not None:
        times = "" if entry.count == 1 else f" {entry.count:,} times,"
        last = f"{age(now, entry.first_seen)}; seen{times} last {age(now, entry.last_seen)}"
        yield Fact("Since", moment(entry.first_seen), last)
    elif entry.last_seen is not None:
        yield Fact("Seen", age(now, entry.last_seen))
    yield Fact("Clears on", ending(finding.clearing, finding.action), is_long=True)
    if entry.word:
        yield Fact("Acknowledged", entry.word)
    if entry.note:
        yield Fact("Note", entry.note)


def _state(entry: ListedFinding) -> str:
    said = "not confirmed, not part of the verdict" if entry.state is None else _STATES[entry.state]
    if entry.flapping:
        said += f", flapping, {entry.flapping:,} times"
    return f"{said}, {words(entry.finding.fault_class.value)} fault"


def _unjudged(
    device: str, places: Sequence[int], entries: Sequence[ListedFinding], names: dict[str, str]
) -> UnjudgedItem:
    codes = list(dict.fromkeys(entries[place].finding.code for place in places))
    more = f" and {len(codes) - NAMED} more" if len(codes) > NAMED else ""
    return UnjudgedItem(places[0], names.get(device, device), f"{', '.join(codes[:NAMED])}{more}")
