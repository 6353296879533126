"""Events that a command of the site prints: each counts once, also to an agent that was restarted meanwhile."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import at

from nodevet.checks.core.model import AgentInfo, Event, Severity
from nodevet.checks.engine.engine import Engine
from nodevet.checks.engine.seen_events import MAXIMUM_TOLD, SeenEvents

TOOL = "command.acme"
FLAP = Event(
    code=f"{TOOL}.flap",
    source=TOOL,
    time=at(),
    text="port 3 went down",
    severity=Severity.ERROR,
    device="acme:a",
    sequence=1,
)
OTHERS: dict[str, dict[str, object]] = {
    "another number": {"sequence": 2},
    "another text, as of a program that counts anew": {"text": "port 4 went down"},
    "another device": {"device": "acme:b"},
    "another command": {"source": "command.other"},
    "another boot": {"time": at(600, boot="another boot")},
}


def later(**changes: object) -> Event:
    """Return the event as it is printed ten minutes later, with *changes*."""
    return msgspec.structs.replace(FLAP, **{"time": at(600), **changes})


def engine() -> Engine:
    """Return an engine that knows nothing yet."""
    return Engine((), node="n1", clock=lambda: at(600))


def counted(judged: Engine) -> int:
    """Return how many events were counted."""
    snapshot = judged.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10)).snapshot
    return sum(entry.count for entry in snapshot.events)


@pytest.mark.parametrize("other", OTHERS)
def test_an_event_is_known_by_its_number_and_its_words(other: str) -> None:
    """What is printed again is the same event to a restarted agent; what differs in anything is another."""
    first = engine()
    first.take_event(FLAP)
    assert counted(first) == 1
    restarted = engine()
    restarted.restore(first.memory())
    restarted.take_event(later())
    assert counted(restarted) == 1
    restarted.take_event(later(**OTHERS[other]))
    assert counted(restarted) == 2


def test_two_events_of_one_document_are_two() -> None:
    """They come within a moment, as repeated lines of a kernel log do, and have numbers of their own."""
    judged = engine()
    judged.take_event(FLAP)
    judged.take_event(msgspec.structs.replace(FLAP, sequence=2))
    assert counted(judged) == 2


def test_the_memory_is_bounded_for_each_command() -> None:
    """One command that floods makes the events of no other be forgotten."""
    told = SeenEvents()
    assert told.admit(later(source="command.other"))
    assert sum(told.admit(later(sequence=number)) for number in range(2 * MAXIMUM_TOLD)) == 2 * MAXIMUM_TOLD
    assert len(told.state) == MAXIMUM_TOLD + 1
    assert not told.admit(later(source="command.other"))
    assert not told.admit(later(sequence=2 * MAXIMUM_TOLD - 1))
