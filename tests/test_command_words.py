"""One word of a command's document that cannot be taken costs what it is about, and hides no fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.site_tool import SettableTool, device, document, reading, temperature
from test_agent_command import agent, table, verdicts
from test_readings_command import configured

from nodevet.agent.cli import main
from nodevet.checks.backends.command.unread_values import NO_WORDS, Mended, usable

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
