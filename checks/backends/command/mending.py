"""Entries of a command's document with unusable fields: each is taken as far as it can be understood.

An event is often a line of a log: longer than a text may be, of several lines, or about a card that is gone. Its faults
cost the event none of its other fields, and no card its readings. A dead card has an empty serial, and sysfs tells a
NUMA node of -1 where there is none: such an optional field is not told.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from nodevet.checks.core.guard import one_line, printable
from nodevet.checks.core.readings import (
    MAXIMUM_EVENTS,
    TEXT_CHARACTERS,
    DeviceEntry,
    EventEntry,
    EventSequence,
    EventSeverity,
    FirmwareEntry,
    LinkEntry,
    Name,
    Text,
    Word,
    address_of,
)

UNREADABLE = "unreadable_event"
"""The code of an event without a usable code, and of events that are too many."""

TOO_MANY = f"the command prints more than {MAXIMUM_EVENTS} events: the oldest are left out"
NO_TEXT = "no text is given"

IDENTITY = ("uuid", "serial", "pci")
"""Optional fields that say which device it is."""

_FIELDS: dict[str, Any] = {
    field.name: field.type
    for field in msgspec.structs.fields(DeviceEntry)
    if field.name in (*IDENTITY, "minor", "numa_node", "driver", "memory_bytes")
}
_LISTS: dict[str, type[msgspec.Struct]] = {"firmware": FirmwareEntry, "links": LinkEntry}
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


def without_unusable_fields(device: dict[str, Any]) -> dict[str, str]:
    """Remove each optional field of *device* that cannot be taken, and return them as printed.

    Raises TypeError where one is no JSON.
    """
    unusable = {}
    for name, kind in _FIELDS.items():
        value = device.get(name)
        if value is not None and not _is_usable(kind, value):
            unusable[name] = shown(json.dumps(device.pop(name)))
    for name, kind in _LISTS.items():
        entries = device.get(name, [])
        usable = [entry for entry in entries if _is_usable(kind, entry)] if isinstance(entries, list) else []
        if usable != entries:
            unusable[name] = shown(json.dumps(entries))
            device[name] = usable
    return unusable


def each_once(devices: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return *devices*, each id once: of one that is printed more often, nothing is known but that it is there."""
    counts = Counter(name for device in devices if isinstance(name := device.get("id"), str))
    found: dict[object, dict[str, Any]] = {}
    for number, device in enumerate(devices):
        name = device.get("id")
        count = counts.get(name, 1) if isinstance(name, str) else 1
        if count == 1:
            found[number] = device
        elif name not in found:
            failure = {"kind": "error", "detail": f"the command prints it {count} times in one run"}
            identity = {key: value for key, value in device.items() if key != "readings"}
            found[name] = {**identity, "failure": failure}
    return list(found.values())


def without_shared_identities(devices: Iterable[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Remove each identifier of *devices* that two of them have, and return them as printed, by device.

    Engineering samples may all have one serial: it says nothing, and costs no reading. A part has the address and
    serial of its whole.
    """
    known = tuple(devices)
    unusable: dict[str, dict[str, str]] = {}
    for field in IDENTITY:
        own = [device for device in known if field == "uuid" or device.get("parent") is None]
        values = [value for device in own if isinstance(value := device.get(field), str)]
        counts = Counter(map(address_of, values))
        for device in own:
            value = device.get(field)
            if isinstance(value, str) and counts[address_of(value)] > 1:
                unusable.setdefault(str(device.get("id")), {})[field] = shown(json.dumps(device.pop(field)))
    return unusable


def without_unusable_versions(versions: dict[Any, Any]) -> bool:
    """Remove each version that cannot be taken; return whether there was one."""
    unusable = [name for name, text in versions.items() if not (_is_usable(Word, name) and _is_usable(Text, text))]
    for name in unusable:
        json.dumps(versions.pop(name))
    return bool(unusable)


def with_known_identity(devices: tuple[DeviceEntry, ...], known: Mapping[str, DeviceEntry]) -> tuple[DeviceEntry, ...]:
    """Return *devices*, each with the identifiers of *known*, which is by id, that are not told this time.

    A card whose UUID or address is not told for once would be another one, and the one that it is would be lost.
    Nothing is taken from a card that tells another identity, or that another one of *devices* has.
    """
    told = {(field, getattr(device, field)) for device in devices for field in IDENTITY}

    def completed(device: DeviceEntry) -> DeviceEntry:
        before = known.get(device.id)
        if before is None or not is_one_card(device, before):
            return device
        values = {field: getattr(before, field) for field in IDENTITY if getattr(device, field) is None}
        return msgspec.structs.replace(device, **dict(values.items() - told))

    return tuple(map(completed, devices))


def is_one_card(device: DeviceEntry, before: DeviceEntry) -> bool:
    """Return whether *device* may be the card that a document named alike *before*: no identifier is another one."""
    pairs = [(getattr(device, field), getattr(before, field)) for field in IDENTITY]
    is_like = (device.kind, device.vendor, device.parent) == (before.kind, before.vendor, before.parent)
    return is_like and all(None in pair or pair[0] == pair[1] for pair in pairs)


def _is_usable(kind: Any, value: object) -> bool:
    found = _as(kind, value)
    texts = (
        [found]
        if isinstance(found, str)
        else msgspec.structs.astuple(found)
        if isinstance(found, msgspec.Struct)
        else ()
    )
    return found is not None and all(text.isprintable() for text in texts if isinstance(text, str))


def _mended(printed: object) -> EventEntry:
    """Return an event of *printed*; its text names the fields that cannot be taken."""
    whole = json.dumps(printed)
    if not isinstance(printed, dict):
        return EventEntry(code=UNREADABLE, sequence=0, text=fitted(f"not an event: {whole}", TEXT_CHARACTERS))
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
