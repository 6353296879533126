"""Entries of a command's document with unusable fields: each is taken as far as it can be understood.

An event is often a line of a log: longer than a text may be, of several lines, or about a card that is gone. Its faults
cost the event none of its other fields, and no card its readings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from nodevet.checks.core.guard import one_line, printable
from nodevet.checks.core.readings import (
    MAXIMUM_EVENTS,
    TEXT_CHARACTERS,
    EventEntry,
    EventSequence,
    EventSeverity,
    Name,
    Word,
)

UNREADABLE = "unreadable_event"
"""The code of an event without a usable code, and of events that are too many."""

TOO_MANY = f"the command prints more than {MAXIMUM_EVENTS} events: the oldest are left out"
NO_TEXT = "no text is given"
SHOWN_CHARACTERS = 40


def fitted(text: str, most: int) -> str:
    """Return *text* on one line, cut to *most* characters."""
    line = one_line(text)
    return line if len(line) <= most else line[: most - 3] + "..."


def shown(value: str) -> str:
    """Return *value* for a message: cut, and without unprintable characters."""
    cut = value[:SHOWN_CHARACTERS] + ("..." if len(value) > SHOWN_CHARACTERS else "")
    return printable(cut)


def mended_events(raw: Iterable[object]) -> tuple[tuple[EventEntry, ...], bool]:
    """Return the events in *raw*, and whether one of them was changed.

    Raises TypeError where *raw* has what JSON cannot hold.
    """
    found, is_changed = [], False
    for printed in raw:
        entry = _as(EventEntry, printed)
        if entry is None or not entry.text.isprintable():
            entry, is_changed = _mended(printed), True
        found.append(entry)
    if len(found) > MAXIMUM_EVENTS:
        newest = sorted(found, key=lambda entry: entry.sequence)[1 - MAXIMUM_EVENTS :]
        return (*newest, EventEntry(code=UNREADABLE, sequence=0, text=TOO_MANY)), True
    return tuple(found), is_changed


def _mended(printed: object) -> EventEntry:
    """Return an event of *printed*; its text names the fields that cannot be taken."""
    whole = json.dumps(printed)
    if not isinstance(printed, dict):
        return EventEntry(code=UNREADABLE, sequence=0, text=fitted(f"it is no event: {whole}", TEXT_CHARACTERS))
    code, severity = _as(Word, printed.get("code")), _as(EventSeverity, printed.get("severity", "error"))
    device, sequence = _as(Name, printed.get("device")), _as(EventSequence, printed.get("sequence"))
    lost = (("code", code), ("severity", severity), ("device", device))
    named = [
        f"{name} {shown(json.dumps(printed.get(name)))}: " for name, value in lost if _is_lost(printed, name, value)
    ]
    text = printed.get("text")
    words = text if isinstance(text, str) else "" if text is None else json.dumps(text)
    return EventEntry(
        code=code or UNREADABLE,
        sequence=sequence or 0,
        text=fitted("".join(named) + (one_line(words) or NO_TEXT), TEXT_CHARACTERS),
        severity=severity or "error",
        device=device,
    )


def _is_lost(printed: dict[str, Any], name: str, value: object) -> bool:
    return value is None and (name == "code" or printed.get(name) is not None)


def _as(kind: Any, value: object) -> Any:
    """Return *value* if it is a *kind*, else None."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None
