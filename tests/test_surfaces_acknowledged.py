"""What a person acknowledged stands on every surface: who, when, why and until when, and how many they are."""

from __future__ import annotations

import html
import io
import itertools
import json
import re
from collections import Counter

import msgspec
import pytest
from fakes.reports import from_snapshot
from fakes.snapshots import at, gpu_id, gpu_node, open_episode
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from nodevet.agent.daemon.event_log import EventLog
from nodevet.agent.daemon.log import make_logger
from nodevet.agent.daemon.notify import Notifier
from nodevet.agent.daemon.term import checked_note
from nodevet.agent.terminal.text import devices_table, status_text
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import (
    NODE,
    Action,
    Clearing,
    Episode,
    EpisodeState,
    Finding,
    Outcome,
    Part,
    PartKind,
    Snapshot,
    State,
)
from nodevet.checks.engine.acknowledgement import date_words, granted
from nodevet.checks.engine.verdicts import narrowed
from nodevet.exporters.documents.schema import burn_in_document, encode, status_document
from nodevet.exporters.metrics.prometheus import MetricsPage
from nodevet.exporters.report.render import render, render_file
from nodevet.exporters.statefile.reader import StateFile, parse
from nodevet.exporters.statefile.writer import state_text
from nodevet.exporters.web.page.render import StatusPage

DAY = 86_400.0
HOSTILE = (
    "</p><script>alert(1)</script>",
    'a "quoted" note',
    "back\\slash {{ 7*7 }}",
    "50 % of $(reboot)",
    "; ok 0 1 healthy",
)


def is_note(text: str) -> bool:
    """Return whether the agent takes *text* for a note as it stands."""
    try:
        return checked_note(text) == text
    except UsageError:
        return False


NOTES = st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1, max_size=40).filter(is_note))


@st.composite
def words(draw: st.DrawFn) -> Episode:
    """Draw a fault that a person acknowledged."""
    number = draw(st.integers(0, 3))
    device = NODE if number == 3 else gpu_id(number)
    finding = Finding(
        check="links",
        code=f"link.{draw(st.sampled_from(['down', 'errors']))}",
        outcome=draw(st.sampled_from([Outcome.FAIL, Outcome.WARN])),
        message=f"GPU {number}: a fault for a test",
        device=device,
        part=Part(PartKind.LINK, "", draw(st.integers(0, 2))),
        action=draw(st.sampled_from([Action.WATCH, Action.REPLACE])),
        clearing=Clearing.HARDWARE_EVENT,
    )
    until = draw(st.sampled_from([None, -DAY / 2, -7 * DAY]))
    known = granted(
        open_episode(finding),
        note=draw(NOTES),
        actor=f"uid {draw(st.integers(0, 3))}",
        time=at(600),
        until=None if until is None else at(until),
    )
    return msgspec.structs.replace(known, expired=at(5)) if draw(st.integers(0, 5)) == 0 else known


def node_with(episodes: tuple[Episode, ...]) -> Snapshot:
    """Return a healthy node with *episodes*, judged."""
    found = {episode.key: episode for episode in episodes}
    snapshot = gpu_node(episodes=tuple(found.values()))
    return narrowed(snapshot, {"links", *(run.check for run in snapshot.checks)})


def page_of(snapshot: Snapshot) -> str:
    """Return the status page of *snapshot*."""
    return StatusPage(lambda: snapshot.time).render(snapshot).decode()


def on_one_line(text: str) -> str:
    """Return *text* as a state file writes it."""
    return " ".join(text.replace("\\", " ").split())


def seen_in_metrics(snapshot: Snapshot, *, openmetrics: bool) -> set[tuple[str, ...]]:
    """Return code, device, actor, note and state of each series of a word."""
    body = MetricsPage().render(snapshot, openmetrics).decode()
    return {
        tuple(sample.labels[name] for name in ("code", "device", "actor", "note", "state"))
        for family in (parse_openmetrics if openmetrics else parse_text)(body)
        for sample in family.samples
        if family.name == "nodevet_acknowledged_episodes"
    }


@given(st.lists(words(), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_every_acknowledged_failure_is_on_every_surface(episodes: list[Episode]) -> None:
    """With its actor and note: JSON, metrics in both formats, page, reports, text; and nothing of a note is markup."""
    snapshot = node_with(tuple(episodes))
    documents = [
        json.loads(encode(document)) for document in (status_document(snapshot), burn_in_document(snapshot, plan="p"))
    ]
    pages = [page_of(snapshot), render(from_snapshot(snapshot)), render_file(encode(status_document(snapshot)))]
    text = status_text(status_document(snapshot))
    metrics = [seen_in_metrics(snapshot, openmetrics=form) for form in (False, True)]
    for episode in snapshot.episodes:
        key, note, actor = episode.key, episode.note or "", episode.actor or ""
        state = "standing" if episode.expired is None else "expired"
        for document in documents:
            (word,) = [
                entry for entry in document["acknowledged"]
                if (entry["code"], entry["device"], entry["part"]) == (key.code, key.device, str(key.part))
            ]  # fmt: skip
            assert (word["actor"], word["note"], word["expired"]) == (actor, note, episode.expired is not None)
            assert (word["time"] is None, word["until"] is None) == (False, episode.until is None)
        for found in metrics:
            assert (key.code, key.device, actor, note, state) in found
        for page in pages:
            plain = html.unescape(re.sub(r"<[^>]*>", "", page))
            assert note in plain
            assert f"by {actor} on 2026-11-20" in plain
            assert "<script>alert" not in page
        assert f"acknowledged by {actor} on 2026-11-20" in text
        assert f"note: {note}" in text


@given(st.lists(words(), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_the_metrics_tell_when_somebody_acknowledged_a_fault(episodes: list[Episode]) -> None:
    """Of each code and device; of several parts that of the last word."""

    def said(shown: Snapshot) -> dict[tuple[str, str], float]:
        return {
            (sample.labels["code"], sample.labels["device"]): sample.value
            for family in parse_text(MetricsPage().render(shown).decode())
            for sample in family.samples
            if family.name == "nodevet_acknowledgement_timestamp_seconds"
        }

    snapshot = node_with(tuple(episodes))
    faults = {(entry.key.code, entry.key.device) for entry in snapshot.episodes}
    assert said(snapshot) == dict.fromkeys(faults, at(600).wall_seconds)
    first, *others = snapshot.episodes
    changed = msgspec.structs.replace(snapshot, episodes=(msgspec.structs.replace(first, acknowledged=at(60)), *others))
    assert said(changed)[first.key.code, first.key.device] == at(60).wall_seconds


@given(st.lists(words(), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_the_headline_counts_what_is_acknowledged(episodes: list[Episode]) -> None:
    """Of the node and of each device, in its reason on every surface; the gravest with actor, note and term."""
    snapshot = node_with(tuple(episodes))
    file = parse(state_text(snapshot, ttl_seconds=60))
    assert isinstance(file, StateFile)
    lines = {device.id: device for device in file.devices}
    for device in {episode.key.device for episode in snapshot.episodes}:
        own = [episode for episode in snapshot.episodes if episode.key.device == device]
        if any(episode.expired is not None for episode in own):
            assert (lines[device].state, lines[device].hard) == ("degraded", False)
            assert lines[device].reason.startswith("acknowledgement expired: ")
            continue
        assert lines[device].state == "ok"
        assert re.match(f"{len(own)} acknowledged (failure|finding)s? ", lines[device].reason)
        assert any(on_one_line(f"acknowledged by {each.actor} on ") in lines[device].reason for each in own)
        assert any(on_one_line(each.note or "") in lines[device].reason for each in own)
    known = {episode.key.device for episode in snapshot.episodes} - {NODE}
    if known:
        assert f"{len(known)} with acknowledged findings" in page_of(snapshot)
    rows = devices_table(status_document(snapshot)).splitlines()
    assert sum(" acknowledged" in row for row in rows) == len(known)
    standing = [episode for episode in snapshot.episodes if episode.expired is None]
    said = status_text(status_document(snapshot)).splitlines()[0]
    if len(standing) == len(snapshot.episodes):
        assert snapshot.verdict.state is State.OK
        assert f": ok, {len(standing)} acknowledged " in said
        assert on_one_line(snapshot.verdict.reason) == file.reason
    else:
        assert snapshot.verdict.state is State.DEGRADED
        assert not snapshot.verdict.hard
    if standing:
        assert f"{len(standing)} acknowledged " in snapshot.verdict.reason
        assert snapshot.verdict.reason in html.unescape(page_of(snapshot))


@pytest.mark.parametrize("number", [1, 2, 8])
def test_a_word_whose_fault_is_not_there_is_on_every_surface(number: int) -> None:
    """It covers a return until its term is over: headline, JSON, metrics, page, report, text and state file say so."""
    found = [
        Finding(
            check="links",
            code="link.down",
            outcome=Outcome.FAIL,
            message=f"GPU 3, link {link}: down",
            device=gpu_id(3),
            part=Part(PartKind.LINK, "", link),
        )
        for link in range(number)
    ]
    words = (
        granted(open_episode(entry), note="cable <b>ordered</b>", actor="uid 7", time=at(600), until=at(-DAY * 9))
        for entry in found
    )
    over = tuple(msgspec.structs.replace(word, state=EpisodeState.CLEARED, cleared=at(60)) for word in words)
    snapshot = narrowed(msgspec.structs.replace(gpu_node(), covered=over), {"links", "thermal"})
    said = "1 acknowledgement covers" if number == 1 else f"{number} acknowledgements cover"
    assert snapshot.verdict.state is State.OK
    assert f"healthy; {said} cleared faults (GPU 3, link 0: down; acknowledged by uid 7 on " in (
        snapshot.verdict.reason
    )
    document = status_document(snapshot)
    assert [(word.part, word.note, word.present, word.expired, word.ends_soon) for word in document.acknowledged] == [
        (f"link {link}", "cable <b>ordered</b>", False, False, False) for link in range(number)
    ]
    assert seen_in_metrics(snapshot, openmetrics=False) == {
        ("link.down", gpu_id(3), "uid 7", "cable <b>ordered</b>", "absent")
    }
    assert MetricsPage().render(snapshot).decode().count("nodevet_acknowledgement_expiry_timestamp_seconds{") == 1
    text = status_text(document)
    assert f": ok, {said} cleared faults (GPU 3, link 0: down; acknowledged by uid 7 on " in text.splitlines()[0]
    assert text.count("cleared, a return is acknowledged too: link.down on ") == number
    assert "note: cable <b>ordered</b>" in text
    assert ", 1 acknowledged" not in devices_table(document)
    page = page_of(snapshot)
    assert page.count("is not present now, and its return is acknowledged: acknowledged by uid 7") == min(number, 5)
    assert ("3 more acknowledge the return of cleared faults" in page) is (number == 8)
    report = render(from_snapshot(snapshot))
    assert report.count("acknowledged, not seen now") == number
    for rendered in (page, report):
        assert "<b>ordered" not in rendered
        assert "cable <b>ordered</b>" in html.unescape(re.sub(r"<[^>]*>", "", rendered))
    assert "cleared faults" in state_text(snapshot, ttl_seconds=60).splitlines()[0]
    assert narrowed(snapshot, {"thermal"}).covered == ()


@pytest.mark.parametrize(("hours", "present"), [(None, True), (30, True), (20, True), (30, False), (20, False)])
def test_an_expiry_is_a_metric_and_a_notice_a_day_ahead(hours: int | None, present: bool) -> None:
    """An alert compares the metric with now; text, page and JSON say it within the last day.

    Also where the fault is not there at the moment: one that comes and goes closes the gate when it returns after that.
    """
    finding = Finding(check="links", code="link.down", outcome=Outcome.FAIL, message="GPU 0: down", device=gpu_id(0))
    until = None if hours is None else at(-3600.0 * hours)
    word = granted(open_episode(finding), note="n", actor="uid 0", time=at(600), until=until)
    snapshot = node_with((word,))
    if not present:
        over = msgspec.structs.replace(word, state=EpisodeState.CLEARED, cleared=at(60))
        snapshot = narrowed(msgspec.structs.replace(gpu_node(), covered=(over,)), {"links", "thermal"})
    body = MetricsPage().render(snapshot).decode()
    found = re.findall(r"^nodevet_acknowledgement_expiry_timestamp_seconds\{.*\} (\S+)$", body, re.MULTILINE)
    assert [float(value) for value in found] == ([] if until is None else [until.wall_seconds])
    told = hours == 20
    text = status_text(status_document(snapshot))
    assert ("ends within a day: acknowledge it again" in text) is told
    page = html.unescape(re.sub(r"<[^>]*>", "", page_of(snapshot)))
    assert ("Acknowledgement. link.down: ends at " in page) is told
    # Of what is not there only the term can be changed.
    assert (" --note '...' --until '...')" in page) is (told and not present)
    assert status_document(snapshot).acknowledged[0].ends_soon is told
    if until is not None:
        assert f"until {date_words(until)}" in snapshot.verdict.reason


def test_the_log_says_once_that_a_word_ends_and_that_it_expired() -> None:
    """A day ahead, and when it is over; not with each judgement."""
    finding = Finding(check="links", code="link.down", outcome=Outcome.FAIL, message="GPU 0: down", device=gpu_id(0))
    word = granted(open_episode(finding), note="n", actor="uid 0", time=at(600), until=at(-DAY / 2))
    early = msgspec.structs.replace(word, until=at(-2 * DAY))
    expired = msgspec.structs.replace(word, expired=at(0))
    stream = io.StringIO()
    event_log = EventLog(make_logger(stream=stream), Notifier(None), monotonic=lambda: 0.0)
    over = msgspec.structs.replace(word, state=EpisodeState.CLEARED, cleared=at(60))
    absent = msgspec.structs.replace(node_with(()), covered=(over,))
    snapshots = [node_with((early,)), absent, *(node_with((episode,)) for episode in (word, word, expired))]
    for before, after in itertools.pairwise(snapshots):
        changed = tuple(episode for episode in after.episodes if episode.expired is not None)
        event_log.changes(before, after, changed)
    assert stream.getvalue().count("acknowledgement ends") == 1
    assert stream.getvalue().count("acknowledgement expired") >= 1


def test_a_hundred_parts_under_one_word_are_one_series_per_device() -> None:
    """A resume acknowledges all links of a board at once; the page of metrics does not grow by them."""
    finding = Finding(check="links", code="link.down", outcome=Outcome.FAIL, message="down", device=gpu_id(0))
    episodes = tuple(
        granted(
            open_episode(msgspec.structs.replace(finding, device=gpu_id(gpu), part=Part(PartKind.LINK, "", link))),
            note="resumed",
            actor="somebody in SLURM",
            time=at(5),
            until=at(-DAY),
        )
        for gpu in range(8)
        for link in range(18)
    )
    body = MetricsPage().render(node_with(episodes)).decode()
    found = re.findall(r"^(nodevet_acknowledge\w+)\{.*\} (\S+)$", body, re.MULTILINE)
    assert Counter(family for family, _ in found) == {
        "nodevet_acknowledged_episodes": 8,
        "nodevet_acknowledgement_timestamp_seconds": 8,
        "nodevet_acknowledgement_expiry_timestamp_seconds": 8,
    }
    assert [float(value) for _, value in found[:8]] == [18.0] * 8


def test_the_figure_of_open_findings_of_a_report_leaves_out_what_is_acknowledged() -> None:
    """It is counted as open nowhere."""
    finding = Finding(check="links", code="link.down", outcome=Outcome.FAIL, message="GPU 0: down", device=gpu_id(0))
    word = granted(open_episode(finding), note="n", actor="uid 0", time=at(600), until=None)
    assert from_snapshot(node_with((word,))).open_findings == 0
    assert from_snapshot(node_with((open_episode(finding),))).open_findings == 1


def test_flapping_is_told_on_every_surface() -> None:
    """With how often it came back."""
    finding = Finding(
        check="links", code="link.errors", outcome=Outcome.WARN, message="GPU 0: errors", device=gpu_id(0)
    )
    snapshot = node_with((msgspec.structs.replace(open_episode(finding), flapping=4),))
    said = "flapping, 4 times"
    file = parse(state_text(snapshot, ttl_seconds=60))
    assert isinstance(file, StateFile)
    document = status_document(snapshot)
    assert document.findings[0].flapping == 4
    for text in (document.reason, file.reason, status_text(document).splitlines()[0], page_of(snapshot)):
        assert said in text
    assert f"open; {said}" in status_text(document)
    assert said in render(from_snapshot(snapshot)).split("<h2>Findings</h2>")[1]


@pytest.mark.parametrize("faults", [2, 6, 300])
def test_the_ends_of_many_acknowledgements_are_told_apart_and_leave_room_for_the_verdict(faults: int) -> None:
    """The same code on several parts: each banner says what to type, and a handful stands above the verdict."""
    found = [
        Finding(
            check="links",
            code="link.down",
            outcome=Outcome.FAIL,
            message="a link is down",
            device=gpu_id(0),
            part=Part(PartKind.LINK, "", number),
            clearing=Clearing.HARDWARE_EVENT,
        )
        for number in range(faults)
    ]
    words = (
        granted(open_episode(finding), note="known", actor="uid 0", time=at(600), until=at(-60 - number))
        for number, finding in enumerate(found)
    )
    page = html.unescape(page_of(node_with(tuple(words))))
    banners = re.findall(r"Acknowledgement. </strong>([^<]*)", page)
    assert [f"--part 'link {number}'" in banner for number, banner in enumerate(banners[:5])] == [True] * min(faults, 5)
    assert banners[5:] == ([f"{faults - 5} more end within a day or have expired: see the findings."] * (faults > 5))
