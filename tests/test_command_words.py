"""One word of a command's document that cannot be taken costs what it is about, and hides no fault."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes.site_tool import SettableTool, device, document, reading, temperature
from fakes.views import at
from test_agent_command import agent, table, verdicts
from test_readings_command import configured

from nodevet.agent.cli import main
from nodevet.checks.backends.base import BackendError, Context
from nodevet.checks.backends.command.backend import CommandBackend
from nodevet.checks.backends.command.mending import NO_TEXT, TOO_MANY, UNREADABLE
from nodevet.checks.backends.command.spec import CommandSpec
from nodevet.checks.backends.command.unread_values import NO_WORDS, Mended, usable
from nodevet.checks.core.readings import MAXIMUM_EVENTS

OTHERS = {"acme:b": "ok", "acme:c": "ok"}
LONG = "the tool says: " + "x" * 200
WORDS: dict[str, tuple[object, str]] = {
    "long": (LONG, f"{LONG[:197]}..."),
    "of two lines": ("no answer\nfrom port 3", "no answer from port 3"),
    "not printable": ("no\u2028answer\x1b[0m", "no answer [0m"),
    "empty": ("", NO_WORDS),
    "of line breaks": ("\n\n", NO_WORDS),
    "no text": (None, NO_WORDS),
}


def healthy() -> list[dict[str, Any]]:
    """Return three cards that are well."""
    return [device(name, serial=f"S-{name}") for name in "abc"]


def of(printed: dict[str, Any]) -> Mended:
    """Return *printed* as the agent takes it."""
    found, mistakes = usable(json.dumps(printed).encode())
    assert found is not None, mistakes
    return found


def test_a_loss_is_told_whatever_its_words_are(tmp_path: Path) -> None:
    """A script passes on what its tool says of the dead card: the card is lost, and its siblings are read."""
    tool = SettableTool(tmp_path)
    tool.print(*healthy())
    with agent(tmp_path, table(tool.program)) as running:
        running.wait_for_verdict("ok")
        lost = device("a", serial="S-a", failure={"kind": "lost", "detail": f"{LONG}\n"})
        tool.print(lost, *healthy()[1:])
        running.wait_for_finding("device.lost")
        assert verdicts(running.status()) == {"acme:a": "failed", **OTHERS}


@pytest.mark.parametrize(("words", "taken"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_failure_are_fitted(words: object, taken: str) -> None:
    """They are for people: on one line, cut, and with a stand-in where there are none."""
    found = of(document(device("a", failure={"kind": "lost", "detail": words}), device("b")))
    failure = found.document.devices[0].failure
    assert failure is not None
    assert (failure.kind, failure.detail) == ("lost", taken)
    assert len(found.document.devices) == 2


def test_the_words_of_a_failure_may_be_missing() -> None:
    """A loss without any words is a loss."""
    failure = of(document(device("a", failure={"kind": "lost"}))).document.devices[0].failure
    assert failure is not None
    assert (failure.kind, failure.detail) == ("lost", NO_WORDS)


def test_the_words_of_a_reading_are_cut() -> None:
    """A tool says more of a sensor than a detail can hold."""
    denied = reading("power_watts", part={"kind": "power_scope", "name": "device"}, status="denied", detail="x" * 501)
    first, second = of(document(device("a", temperature(45), denied))).document.devices[0].readings
    assert (first.value, second.status.value, second.detail) == (45, "denied", "x" * 497 + "...")


def test_a_failure_of_no_known_kind_refuses_the_document() -> None:
    """Its words are fitted; what it means cannot be known."""
    found, mistakes = usable(json.dumps(document(device("a", failure={"kind": "hung", "detail": LONG}))).encode())
    assert found is None
    assert [mistake.place for mistake in mistakes] == ["devices[0].failure.kind"]


@pytest.mark.parametrize("is_configured", [True, False])
def test_the_author_is_told_of_words_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_configured: bool
) -> None:
    """The agent takes the rest; `nodevet readings check` names the place and shows what is taken."""
    tool = SettableTool(tmp_path)
    tool.print(device("a", failure={"kind": "lost", "detail": LONG}), device("b"))
    words = ["--command", "acme", *configured(tmp_path, tool.program)] if is_configured else [f"{tmp_path}/printed"]
    assert main(["readings", "check", *words]) == 2
    first, *_, last = capsys.readouterr().out.splitlines()
    assert "devices[0].failure.detail: expected `str` matching regex" in first
    assert last.split()[-3:] == ["1", "of", "1"]


EVENTS: dict[str, tuple[object, tuple[str, str | None, str, int, str]]] = {
    "long": ({"text": LONG}, ("flap", "b", "error", 1, f"{LONG[:197]}...")),
    "of two lines": ({"text": "one\ntwo"}, ("flap", "b", "error", 1, "one two")),
    "not printable": ({"text": "one\u2028two\ud800"}, ("flap", "b", "error", 1, "one two")),
    "empty": ({"text": ""}, ("flap", "b", "error", 1, NO_TEXT)),
    "without a text": ({"text": None}, ("flap", "b", "error", 1, NO_TEXT)),
    "of a number": ({"text": 79}, ("flap", "b", "error", 1, "79")),
    "of a severity that nobody knows": ({"severity": "info"}, ("flap", "b", "error", 1, 'severity "info": down')),
    "of a card that has no name": ({"device": 3}, ("flap", None, "error", 1, "device 3: down")),
    "of a card that is not listed": ({"device": "z"}, ("flap", "z", "error", 1, "down")),
    "without a number": ({"sequence": "17"}, ("flap", "b", "error", 0, "down")),
    "of a code that is no word": ({"code": "LinkFlap"}, (UNREADABLE, "b", "error", 1, 'code "LinkFlap": down')),
    "with an unknown field": ({"colour": "red", "severity": "fatal"}, ("flap", "b", "fatal", 1, "down")),
    "no event": ("port 3\ndown", (UNREADABLE, None, "error", 0, 'not an event: "port 3\\ndown"')),
}
FLAP = {"code": "flap", "sequence": 1, "text": "down", "device": "b"}
GOOD = {"code": "link_flap", "sequence": 2, "text": "port 4 went down", "device": "c"}


def test_an_event_that_cannot_be_taken_costs_no_card(tmp_path: Path) -> None:
    """A line of a log is often longer than 200 letters, and often about a card that is gone."""
    tool = SettableTool(tmp_path)
    tool.print(*healthy())
    odd = [{**FLAP, **entry} if isinstance(entry, dict) else entry for entry, _ in EVENTS.values()]
    with agent(tmp_path, table(tool.program)) as running:
        running.wait_for_verdict("ok")
        tool.print(*healthy(), events=[*odd, GOOD])
        running.wait_for_finding("command.acme.link_flap")
        status = running.status()
        assert "unknown" not in verdicts(status).values()
        found = {(entry["code"], entry["device"]): entry for entry in status["findings"]}
        assert "[z, which is not listed: down]" in found["command.acme.flap", "node"]["message"]
        assert 'code "LinkFlap": down' in found[f"command.acme.{UNREADABLE}", "acme:b"]["message"]


@pytest.mark.parametrize(("printed", "taken"), EVENTS.values(), ids=EVENTS)
def test_an_event_is_taken_as_far_as_it_can_be_understood(
    printed: object, taken: tuple[str, str | None, str, int, str]
) -> None:
    """A field that cannot be taken costs itself, and the text names it; the good event beside it is as it was."""
    odd = {**FLAP, **printed} if isinstance(printed, dict) else printed
    found = of(document(*healthy(), events=[odd, GOOD]))
    event, good = found.document.events
    assert (event.code, event.device, event.severity, event.sequence, event.text) == taken
    assert (good.code, good.device, good.sequence, good.text) == ("link_flap", "c", 2, "port 4 went down")
    assert found.is_changed


def backend(tool: SettableTool, notes: list[Mapping[str, str]], monkeypatch: pytest.MonkeyPatch) -> CommandBackend:
    """Return the backend of *tool*, which adds its lines for the log to *notes*."""
    monkeypatch.setattr("nodevet.checks.backends.command.backend.LIFELINE", None)
    spec = CommandSpec(name="acme", argv=(str(tool.program),), timeout_seconds=10.0, groups=("fast",))
    context = SimpleNamespace(
        root="/",
        progress=SimpleNamespace(write=lambda _: None),
        now=at,
        note=lambda level, event, **fields: notes.append({"level": level, "event": event, **fields}),
    )
    return CommandBackend(spec, cast("Context", context))


def test_an_event_of_a_card_that_is_gone_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the card that it is about; it is no other one because the card is not listed any more."""
    tool = SettableTool(tmp_path)
    older, newer = {**FLAP, "device": "a"}, {**FLAP, "device": "a", "sequence": 2}
    tool.print(*healthy(), events=[older])
    read = backend(tool, [], monkeypatch)
    first = read.devices()[0]
    assert [(event.device, event.text) for event in read.events()] == [("acme:a", "down")]
    tool.print(*healthy()[1:], events=[older, newer])
    for _ in range(2):
        with pytest.raises(BackendError, match="does not list it any more"):
            read.read("fast", first)
    assert [(event.device, event.text) for event in read.events()] == [(None, "a, which is not listed: down")]


def test_of_too_many_events_the_newest_are_taken() -> None:
    """A command that prints its whole log costs no card; that the oldest are left out is an event too."""
    events = [{**FLAP, "sequence": number} for number in range(MAXIMUM_EVENTS + 500)]
    found = of(document(*healthy(), events=[*events[700:], *events[:700]]))
    *newest, cut = found.document.events
    assert [event.sequence for event in newest] == list(range(501, MAXIMUM_EVENTS + 500))
    assert (cut.code, cut.text, cut.device) == (UNREADABLE, TOO_MANY, None)


def test_events_that_are_no_json_refuse_the_document() -> None:
    """Where they end cannot be known."""
    printed = json.dumps(document(device("a"), events=[{**FLAP, "sequence": float("nan")}]))
    assert usable(printed.encode())[0] is None


FIELDS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "no serial": ({"serial": ""}, {"serial": '""'}),
    "serial that is a number": ({"serial": 1234}, {"serial": "1234"}),
    "serial with a blank": ({"serial": "not known"}, {"serial": '"not known"'}),
    "no uuid": ({"uuid": ""}, {"uuid": '""'}),
    "no NUMA node": ({"numa_node": -1}, {"numa_node": "-1"}),
    "address in capitals": ({"pci": "0000:4D:00.0"}, {"pci": '"0000:4D:00.0"'}),
    "number of no device node": ({"minor": "3"}, {"minor": '"3"'}),
    "driver of two lines": ({"driver": "a\nb"}, {"driver": '"a\\nb"'}),
    "driver that hides its letters": ({"driver": "a\u2028"}, {"driver": '"a\\u2028"'}),
    "memory that is text": ({"memory_bytes": "64 GB"}, {"memory_bytes": '"64 GB"'}),
    "firmware that is no list": ({"firmware": "1.2"}, {"firmware": '"1.2"'}),
}


def test_an_identity_that_cannot_be_taken_costs_no_card(tmp_path: Path) -> None:
    """A dead card tells an empty serial; sysfs tells -1 where there is no NUMA node."""
    tool = SettableTool(tmp_path)
    tool.print(*healthy())
    with agent(tmp_path, table(tool.program)) as running:
        running.wait_for_verdict("ok")
        hot = device("a", temperature(120), serial="", uuid="", numa_node=-1)
        tool.print(hot, *healthy()[1:])
        running.wait_for_finding("temperature.slowdown")
        assert verdicts(running.status()) == {"acme:a": "failed", **OTHERS}


@pytest.mark.parametrize(("odd", "unusable"), FIELDS.values(), ids=FIELDS)
def test_an_optional_field_that_cannot_be_taken_is_not_told(odd: dict[str, Any], unusable: dict[str, str]) -> None:
    """It is None as where it is not printed; its card and the others keep all else."""
    found = of(document({**device("a"), **odd}, device("b", serial="S-b")))
    first, second = found.document.devices
    assert found.unusable == {"a": unusable}
    assert {bool(getattr(first, field)) for field in odd} == {False}
    assert (len(first.readings), second.serial) == (1, "S-b")
    assert found.is_changed


def test_an_entry_of_a_list_that_cannot_be_taken_costs_itself() -> None:
    """The other firmware, links and versions are shown."""
    firmware = [{"component": "a", "version": ""}, {"component": "b", "version": "2"}]
    links = [{"port": 1}, {"port": -1}, "x"]
    printed = document(device("a", firmware=firmware, links=links), versions={"driver": "", "tool": "1.0", "A B": "2"})
    found = of(printed)
    (card,) = found.document.devices
    assert [entry.component for entry in card.firmware] == ["b"]
    assert [link.port for link in card.links] == [1]
    assert found.document.versions == {"tool": "1.0"}
    assert found.is_changed


def test_a_device_without_a_usable_id_refuses_the_document() -> None:
    """Which card it is cannot be known."""
    for identity in ("", None, 7):
        cards = [device("b"), {**device("a"), "id": identity}]
        assert usable(json.dumps(document(*cards, events=[{**FLAP, "text": ""}])).encode())[0] is None


@pytest.mark.parametrize("times", [2, 3])
def test_a_card_that_is_printed_twice_is_unread_alone(times: int) -> None:
    """Nothing is known of it but that it is there; a failure that it tells is one of two words."""
    gone = {"id": "a", "failure": {"kind": "lost", "detail": "gone"}}
    twice = [{**device("a"), "readings": [], **gone}, *(device("a") for _ in range(times - 1))]
    found = of(document(device("c"), *twice, device("b")))
    assert [card.id for card in found.document.devices] == ["c", "a", "b"]
    failures = [card.failure.detail if card.failure else "" for card in found.document.devices]
    assert failures == ["", f"the command prints it {times} times in one run", ""]
    assert [bool(card.readings) for card in found.document.devices] == [True, False, True]
    assert found.is_changed


@pytest.mark.parametrize(("field", "value"), [("serial", "S"), ("pci", "0000:04:00.0"), ("uuid", "U")])
def test_an_identifier_that_two_cards_have_is_that_of_none(field: str, value: str) -> None:
    """Engineering samples have one serial: each card goes on under its name, and its author is told."""
    found = of(document(device("a", **{field: value}), device("b", **{field: value}), device("c", serial="T")))
    assert [getattr(card, field) for card in found.document.devices[:2]] == [None, None]
    assert found.document.devices[2].serial == "T"
    assert found.unusable == {name: {field: f'"{value}"'} for name in "ab"}
    assert found.is_changed


def test_a_part_has_the_serial_and_address_of_its_whole() -> None:
    """They are not shared by two cards."""
    whole = device("a", serial="S", pci="0000:04:00.0")
    part = device("a/0", parent="a", serial="S", pci="0000:04:00.0")
    found = of(document(whole, part, events=[{**FLAP, "text": ""}]))
    assert [(card.serial, card.pci) for card in found.document.devices] == [("S", "0000:04:00.0")] * 2
    assert not found.unusable


def test_a_card_whose_uuid_is_not_told_for_once_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its name, and the field is told once."""
    tool, notes = SettableTool(tmp_path), list[Mapping[str, str]]()
    tool.print(device("a", uuid="ACME-0000-0001"), device("b"))
    read = backend(tool, notes, monkeypatch)
    first = read.devices()[0]
    tool.print(device("a", uuid="", numa_node=-1), device("b"))
    for _ in range(3):
        assert [reading.value for reading in read.read("fast", first)] == [45]
        assert read.devices()[0] == first
    assert [note["line"] for note in notes] == [
        '2 fields ignored: uuid "" of a, numa_node -1 of a; next: nodevet readings check --command acme'
    ]


@pytest.mark.parametrize(
    "now",
    [
        [device("a", uuid="", serial="S2")],
        [device("a", uuid="", vendor="other")],
        [device("a", uuid=""), device("b", uuid="ACME-0000-0001")],
        [device("c", uuid="")],
    ],
    ids=["another serial", "another vendor", "its UUID is that of another one", "another name"],
)
def test_no_card_gets_the_identity_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: list[dict[str, Any]]
) -> None:
    """Only a card that contradicts nothing of what it told before is that one."""
    tool = SettableTool(tmp_path)
    tool.print(device("a", uuid="ACME-0000-0001", serial="S1"))
    read = backend(tool, [], monkeypatch)
    (first,) = read.devices()
    tool.print(*now)
    with contextlib.suppress(BackendError):
        read.read("fast", first)
    assert [card.uuid for card in read.devices()] == [card.get("uuid") or None for card in now]
