"""The head of the page: verdict, staleness and action."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter

import msgspec

from nodevet.checks.core.model import WHOLE, Action, DeviceKind, EpisodeState, Instant, ReaderState, Snapshot, State
from nodevet.checks.engine.acknowledgement import (
    command_words,
    is_announced,
    is_covering,
    is_word,
    longest_first,
    person_words,
)
from nodevet.checks.engine.completeness import standing_wrong
from nodevet.checks.engine.explanation import ACTIONS
from nodevet.checks.engine.modes import gating, reach
from nodevet.exporters.format import age, counted, duration, moment, number

from .findings import ListedFinding

STALE_ROUNDS = 3
STALE_MINIMUM_SECONDS = 30.0
"""A verdict older than both is stale: the agent judges in every round."""

MOST_ENDS = 5
"""Number of expiring acknowledgements that are listed one by one above the verdict."""

_KINDS = {DeviceKind.ACCELERATOR: "GPU", DeviceKind.CPU: "CPU", DeviceKind.NIC: "NIC"}


def staleness(snapshot: Snapshot, now: Instant, complaint: str | None) -> str:
    """Return why *snapshot* is stale *now*, or an empty string while it is current."""
    seconds = now.seconds_since(snapshot.time)
    if seconds is None:
        return "the last verdict is from before the last boot"
    longest = max(STALE_MINIMUM_SECONDS, STALE_ROUNDS * snapshot.agent.interval_seconds)
    if seconds > longest:
        return f"the last verdict is older than {duration(longest)}"
    return complaint or ""


class Banner(msgspec.Struct, frozen=True):
    """A notice above the verdict: its kind (a colour), a strong word, and the text."""

    kind: str
    strong: str
    text: str = ""


class VerdictSection(msgspec.Struct, frozen=True):
    """The verdict with its reason, action and evidence."""

    state: str
    reason: str
    remedy: str
    details: tuple[str, ...]


def banners(snapshot: Snapshot, stale: str) -> Iterator[Banner]:
    """Yield the banners above the verdict."""
    if snapshot.simulated:
        said = "Simulated node. No value on this page was measured on hardware. No gate closes, and nothing drains it."
        yield Banner("simulated", said)
    if stale:
        said = f"{stale[:1].upper()}{stale[1:]}. All values below are from that time: read the agent's log."
        yield Banner("stale", "Stale.", said)
    released = [reader.backend for reader in snapshot.readers if reader.state is ReaderState.RELEASED]
    if released:
        said = f"Devices of {', '.join(released)} are released (nodevet release) and not read."
        yield Banner("note", "Released.", said)
    for said in (*_ends(snapshot), *_covering(snapshot)):
        yield Banner("note", "Acknowledgement.", said)
    if snapshot.agent.stopping:
        yield Banner("note", "Stopping.", "The agent is stopping; this page ends with it.")
    elif not snapshot.agent.ready:
        yield Banner("note", "Starting.", "The first round of reading is not complete.")


def _ends(snapshot: Snapshot) -> Iterator[str]:
    """Yield the acknowledgements that expire soon or have expired, earliest first, with the command to renew them."""
    ends = [
        (episode.until.wall_seconds, episode.key, episode.until, episode.expired is not None, is_covering(episode))
        for episode in (*snapshot.episodes, *snapshot.covered)
        if episode.until is not None
        and (is_announced(episode, snapshot.time) or (is_word(episode) and episode.expired is not None))
    ]
    for _, key, until, expired, covers in sorted(ends, key=itemgetter(0, 1))[:MOST_ENDS]:
        said = "has expired" if expired else f"ends at {moment(until)}"
        again = f"nodevet ack {command_words(key)} --note '...'" + (" --until '...'" if covers else "")
        yield f"{key.code}: {said}; acknowledge it again ({again}), or repair and re-test."
    if len(ends) > MOST_ENDS:
        yield f"{number(len(ends) - MOST_ENDS)} more end within a day or have expired: see the findings."


def _covering(snapshot: Snapshot) -> Iterator[str]:
    """Yield the acknowledgements that cover the return of cleared faults, latest expiry first."""
    words = longest_first(snapshot.covered)
    for episode in words[:MOST_ENDS]:
        key, device = episode.key, next((each for each in snapshot.devices if each.id == episode.key.device), None)
        where = key.device if device is None or device.pci is None else device.pci
        part = "" if key.part == WHOLE else f", {key.part}"
        said = "is not present now, and its return is acknowledged"
        yield f"{key.code} on {where}{part} {said}: {person_words(episode)}"
    if len(words) > MOST_ENDS:
        yield f"{number(len(words) - MOST_ENDS)} more acknowledge the return of cleared faults: see nodevet status."


def verdict_section(snapshot: Snapshot, entries: Sequence[ListedFinding], stale: str) -> VerdictSection:
    """Return the verdict with its reason and action; a stale verdict is unknown."""
    verdict = snapshot.verdict
    state = State.UNKNOWN.value if stale else verdict.state.value
    reason = f"stale; the last verdict was {verdict.state.value}: {verdict.reason}" if stale else verdict.reason
    remedy = "" if verdict.action is Action.NONE else ACTIONS[verdict.action.value]
    return VerdictSection(state, reason, remedy, tuple(_since(snapshot, entries)))


def _since(snapshot: Snapshot, entries: Sequence[ListedFinding]) -> Iterator[str]:
    """Yield the start of the verdict, by its episodes, and the age of its oldest sample."""
    verdict = snapshot.verdict
    keys = set(verdict.episodes)
    opened = [entry.first_seen for entry in entries if entry.finding.key in keys and entry.first_seen is not None]
    if opened:
        first = min(opened, key=lambda instant: instant.wall_seconds)
        yield f"since {moment(first)} ({age(snapshot.time, first)})"
    oldest = verdict.oldest_evidence
    seconds = None if oldest is None else snapshot.time.seconds_since(oldest)
    if seconds is not None:
        yield f"oldest sample {duration(seconds)} old"
    match reach(snapshot, verdict):
        case "hard":
            yield "closes the gate"
        case "refused":
            yield "the driver refuses every accelerator: closes the gate where on_driver_refusal=fail"
        case "unpermitted" if not gating(snapshot, verdict):
            yield "the driver refuses every accelerator, not confirmed yet: the gate stays open"
        case "unpermitted":
            fault = "hard fault" if verdict.hard else "the driver refuses every accelerator"
            yield f"{fault}, no permit: the gate stays open: {snapshot.agent.permit.why}"
        case "observed" if not snapshot.simulated:
            fault = "hard fault" if verdict.hard else "unreadable accelerator"
            how = "mode is observe" if verdict.hard else "acknowledged, or mode is observe"
            yield f"{fault}, {how}: the gate stays open"


def tallies(snapshot: Snapshot, entries: Sequence[ListedFinding]) -> tuple[tuple[str, str, str], ...]:
    """Return four figures of the node: name, figure and remark."""
    return (
        ("Devices", *_devices(snapshot)),
        ("Findings", *_findings(snapshot, entries)),
        ("GEMMs verified", *_verified(snapshot)),
        ("Readings", *_readings(snapshot)),
    )


def _devices(snapshot: Snapshot) -> tuple[str, str]:
    order = list(DeviceKind)
    devices = sorted(snapshot.devices, key=lambda device: order.index(device.kind))
    devices = [device for device in devices if device.kind is not DeviceKind.NODE]
    kinds = Counter(_KINDS.get(device.kind, device.kind.value) for device in devices)
    states = Counter(
        snapshot.device_verdicts[device.id].state.value
        if device.id in snapshot.device_verdicts
        else State.UNKNOWN.value
        for device in devices
    )
    figure = ", ".join(counted(count, kind) for kind, count in kinds.items()) or "none"
    worst = sorted(states.items(), key=lambda entry: -State(entry[0]).rank)
    beside = [f"{count} {state}" for state, count in worst]
    known = len(
        {episode.key.device for episode in snapshot.episodes if is_word(episode)} & {each.id for each in devices}
    )
    beside += [f"{known} with acknowledged findings"] if known else []
    return figure, ", ".join(beside)


def _findings(snapshot: Snapshot, entries: Sequence[ListedFinding]) -> tuple[str, str]:
    if not snapshot.checks and not entries:
        return "unknown", "no check has run"
    states = Counter(entry.state for entry in entries)
    number, known = states[EpisodeState.OPEN], states[EpisodeState.ACKNOWLEDGED]
    others = len(entries) - number - known
    beside = [f"{known:,} acknowledged"] if known else []
    beside += [f"{others:,} not confirmed"] if others else []
    return (f"{number:,} open" if entries else "none"), ", ".join(beside)


def _verified(snapshot: Snapshot) -> tuple[str, str]:
    verified = sum(int(result.metric("gemms_verified") or 0) for result in snapshot.results)
    wrong = sum(int(result.metric("mismatches") or 0) for result in snapshot.results)
    if not snapshot.results:
        return "none", "no burn-in has run"
    told = f"{wrong:,} wrong" if verified or wrong else "nothing verified"
    before = 0 if wrong else sum(shown.wrong for _, shown in standing_wrong(snapshot.episodes))
    told += f", {before:,} wrong in an earlier burn-in" if before else ""
    return number(verified) if verified else "none", f"{told}, {age(snapshot.time, snapshot.results[-1].ended)}"


def _readings(snapshot: Snapshot) -> tuple[str, str]:
    """Return the number of readings, and how many could not be read."""
    total = Counter(reading.status.value for sample in snapshot.samples for reading in sample.readings)
    failures = sum(sample.failure is not None for sample in snapshot.samples)
    missed = sum(count for status, count in total.items() if status not in ("ok", "unsupported"))
    beside = [f"{missed:,} could not be read"] if missed else []
    beside += [f"{counted(failures, 'group')} failed"] if failures else []
    if not total and not failures:
        return "none", "no reading yet"
    return number(total["ok"]), ", ".join(beside) or ("no read error" if total["ok"] else "")
