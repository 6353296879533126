"""A word that the agent does not know, as of a reader of a later release: it costs itself, and never makes healthy."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from fakes.views import GPU, event, healthy

from nodevet.checks.core.errors import WireError
from nodevet.checks.core.model import (
    Failure,
    FailureKind,
    Part,
    PartKind,
    Provenance,
    Reading,
    ReadingStatus,
    Sample,
    Severity,
)
from nodevet.checks.core.wire import Decoder, EventMessage, Failed, Message, Note, Ready, Sampled, encode

SAMPLE = msgspec.structs.replace(
    healthy().samples[GPU, "fast"],
    readings=(
        Reading("temperature_celsius", 40.0, Part(PartKind.SENSOR, "core")),
        Reading("power_watts", None, Part(), ReadingStatus.DENIED, "no"),
        Reading("link_active", True, Part(PartKind.LINK, "", 3)),
    ),
)


def taken(message: Message, *path: object, word: object) -> tuple[list[Message], list[str]]:
    """Return what the agent takes of *message* where it says *word* at *path*, and what it cannot read."""
    raw: Any = msgspec.msgpack.decode(encode(message)[4:])
    place = raw
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = word
    body, unread = msgspec.msgpack.encode(raw), list[str]()
    return list(Decoder(unread.append).feed(struct.pack(">I", len(body)) + body)), unread


def sampled(*path: object, word: object) -> tuple[Sample, str]:
    """Return the sample that is taken, and the note on what was left out."""
    (note, message), unread = taken(Sampled(SAMPLE), "sample", *path, word=word)
    assert isinstance(note, Note)
    assert isinstance(message, Sampled)
    assert unread == []
    return message.sample, note.fields["detail"]


@pytest.mark.parametrize(
    ("path", "word"),
    [(("status",), "asleep"), (("value",), [1]), (("value",), None), (("detail",), 5)],
    ids=str,
)
def test_an_unknown_word_of_a_reading_costs_that_reading(path: tuple[str, ...], word: object) -> None:
    """It is an error that says what to do; those beside it are measured."""
    sample, note = sampled("readings", 0, *path, word=word)
    broken, *others = sample.readings
    assert (broken.quantity, broken.part, broken.value) == ("temperature_celsius", SAMPLE.readings[0].part, None)
    assert broken.status is ReadingStatus.ERROR
    assert "restart the agent after the upgrade" in broken.detail
    assert tuple(others) == SAMPLE.readings[1:]
    assert note.startswith("reading temperature_celsius: ")


@pytest.mark.parametrize(
    ("path", "word"), [(("part", "kind"), "tile"), (("part", "name"), "of_tomorrow"), (("quantity",), 7)], ids=str
)
def test_a_reading_of_what_is_not_known_is_left_out(path: tuple[str, ...], word: object) -> None:
    """Nobody knows where it was taken: it is told, and missing."""
    sample, note = sampled("readings", 0, *path, word=word)
    assert sample.readings == SAMPLE.readings[1:]
    assert note.startswith("reading ")


def test_a_failure_of_an_unknown_kind_is_one_that_blames_nobody() -> None:
    """It was a word of the driver, of which nobody here knows what it means."""
    failed = msgspec.structs.replace(SAMPLE, readings=(), failure=Failure(FailureKind.LOST, "fell off", True))
    of_one, _ = taken(Sampled(failed), "sample", "failure", "kind", word="molten")
    of_all, _ = taken(Failed(Failure(FailureKind.ERROR, "fell off", True)), "failure", "kind", word="molten")
    assert isinstance(of_one[1], Sampled)
    assert isinstance(of_all[1], Failed)
    for failure in (of_one[1].sample.failure, of_all[1].failure):
        assert failure is not None
        assert (failure.kind, failure.of_driver) == (FailureKind.READER, False)
        assert failure.detail.startswith("molten: fell off: ")


@pytest.mark.parametrize(("name", "left"), [("severity", Severity.ERROR), ("provenance", Provenance.TEXT)])
def test_an_event_of_unknown_words_is_taken_without_them(name: str, left: object) -> None:
    """It comes once: it is an error, and where nobody is known to vouch for it, it closes no gate."""
    told = msgspec.structs.replace(event("nvidia.xid.79"), severity=Severity.FATAL, provenance=Provenance.DRIVER)
    (note, message), unread = taken(EventMessage(told), "event", name, word="of_tomorrow")
    assert isinstance(note, Note)
    assert isinstance(message, EventMessage)
    assert message.event == msgspec.structs.replace(told, **{name: left})
    assert (unread, "of_tomorrow" in note.fields["detail"]) == ([], True)


def test_what_cannot_be_repaired_is_set_aside_as_before() -> None:
    """A device of an unknown kind, a message of no kind, and a time that is none."""
    devices = tuple(healthy().devices)
    for message, path in ((Ready(devices), ("devices", 0, "kind")), (Sampled(SAMPLE), ("sample", "time"))):
        messages, unread = taken(message, *path, word="of_tomorrow")
        assert (messages, len(unread)) == ([], 1)
    body = msgspec.msgpack.encode({"type": "OfTomorrow"})
    with pytest.raises(WireError):
        list(Decoder().feed(struct.pack(">I", len(body)) + body))
