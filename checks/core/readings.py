"""The document that a site's command prints, devices with their readings: strict parsing, every mistake reported.

Schema ``nodevet.readings/1``; docs/reference/command-backend.md explains it, readings_schema.py writes it as JSON
Schema. A document with one mistake is refused as a whole, because the meaning of the rest is uncertain. Every mistake
is reported with its place, for the author of the command. An unusable value costs only its reading, and words are cut:
the agent takes such a document through backends/command/unread_values.py.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from .guard import printable
from .model import DeviceKind, Reading, ReadingStatus, Scalar
from .parts import PART_NAMES, WHOLE, Part, PartKind
from .quantities import NO_VALUE, QUANTITIES, Quantity, QuantityKind, measured

SCHEMA = "nodevet.readings/1"

LARGEST_NUMBER = 2**63 - 1
"""Largest number in a document: no counter of a device and no memory size is larger."""

VENDOR_PART = "^vendor:[a-z0-9_.-]{1,32}$"
"""Pattern of part names outside our closed sets."""

MAXIMUM_EVENTS = 1000
"""Number of events remembered per command, so that an event that is printed again is not counted again."""

PROCESS_IDS = re.compile(r"(\d{1,10}(,\d{1,10})*)?")
MISTAKES_TOLD = 50

TEXT_CHARACTERS = 200
DETAIL_CHARACTERS = 500

Name = Annotated[str, Meta(pattern=r"^[!-~]{1,128}$", description="1 to 128 printable ASCII characters, no blank.")]
Word = Annotated[str, Meta(pattern="^[a-z][a-z0-9_-]{0,31}$", description="A lower-case word.")]
Text = Annotated[
    str,
    Meta(
        pattern=rf"^[^\x00-\x1f\x7f]{{1,{TEXT_CHARACTERS}}}$",
        description=f"1 to {TEXT_CHARACTERS} characters, no control character.",
    ),
]
PCI_ADDRESS = r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$"
PciAddress = Annotated[
    str, Meta(pattern=PCI_ADDRESS, description="Domain, bus, device and function in lower case: 0000:19:00.0.")
]
Index = Annotated[int, Meta(ge=0, le=65535)]
EventSequence = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
EventSeverity = Literal["warning", "error", "fatal"]


class PartEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a device that a reading is about; its kind is that of the quantity."""

    kind: PartKind
    name: str = ""
    index: Index | None = None


class ReadingEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reading. The value is absent or null exactly when the status is not ``ok``."""

    quantity: str
    value: Scalar | None = None
    part: PartEntry | None = None
    status: ReadingStatus = ReadingStatus.OK
    detail: Annotated[str, Meta(pattern=rf"^[^\x00-\x1f\x7f]{{0,{DETAIL_CHARACTERS}}}$")] = ""


class LinkEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link port; ``peer`` is an id of this document, a PCI address, or ``switch``."""

    port: Index
    peer: Name | None = None
    generation: Text | None = None


class FirmwareEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A firmware component and its version."""

    component: Text
    version: Text


class FailureEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason why a device has no readings: it no longer answers, access is denied, or another one."""

    kind: Literal["lost", "denied", "error"]
    detail: Text


class DeviceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device: its identity, and either its readings or the reason why there are none."""

    id: Annotated[Name, Meta(description="Names the device within this document and from run to run.")]
    kind: Literal["accelerator", "cpu", "nic", "memory", "disk"]
    vendor: Word
    model: Text
    uuid: (
        Annotated[str, Meta(pattern="^[!-~]{8,128}$", description="Unique in the world, and so on the node.")] | None
    ) = None
    serial: Name | None = None
    pci: PciAddress | None = None
    minor: Annotated[Index, Meta(description="Number of the device node, such as 3 of /dev/accel/accel3.")] | None = (
        None
    )
    parent: Annotated[Name, Meta(description="Id of the device that this one is a part of.")] | None = None
    numa_node: Index | None = None
    driver: Text | None = None
    firmware: tuple[FirmwareEntry, ...] = ()
    links: tuple[LinkEntry, ...] = ()
    memory_bytes: Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)] | None = None
    readings: tuple[ReadingEntry, ...] = ()
    failure: FailureEntry | None = None

    @property
    def device_kind(self) -> DeviceKind:
        """Return the kind in our vocabulary."""
        return DeviceKind(self.kind)


class EventEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event. ``sequence`` and the other fields together identify it within this boot."""

    code: Word
    sequence: EventSequence
    text: Text
    severity: EventSeverity = "error"
    device: (
        Annotated[Name, Meta(description="Id of a device of this document; the node where none is named.")] | None
    ) = None


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole output of one run of a command."""

    schema: Literal["nodevet.readings/1"]
    devices: tuple[DeviceEntry, ...]
    events: Annotated[tuple[EventEntry, ...], Meta(max_length=MAXIMUM_EVENTS)] = ()
    versions: dict[Word, Text] = {}


class Mistake(msgspec.Struct, frozen=True):
    """One mistake: its place in the document, such as ``devices[0].readings[3].part``, and its description."""

    place: str
    text: str

    def __str__(self) -> str:
        """Return ``place: text``."""
        return f"{self.place}: {self.text}"


def parse(data: bytes) -> tuple[Document | None, tuple[Mistake, ...]]:
    """Return the document in *data*, or None with every mistake in it."""
    try:
        text = data.decode("utf-8")
        document = msgspec.json.decode(text, type=Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The decoder stops at the first mistake: search for all of them, entry by entry.
        mistakes = _every_mistake(data) or [Mistake("document", str(error))]
    else:
        mistakes = [*repeated_keys(text), *_wrong_readings(document), *_contradictions(document)]
        if not mistakes:
            return document, ()
    return None, tuple(map(_shown, mistakes[:MISTAKES_TOLD]))


def reading_of(entry: ReadingEntry) -> Reading:
    """Return *entry* as a Reading of the data model; an implausible value becomes status ``error``."""
    part = WHOLE if entry.part is None else Part(entry.part.kind, entry.part.name, entry.part.index)
    return measured(Reading(entry.quantity, entry.value, part, entry.status, entry.detail))


def address_of(name: str) -> str:
    """Return *name* as the kernel writes it where it is a PCI address: vendors' tools print wider domains."""
    domain, _, rest = name.partition(":")
    return f"{int(domain, 16):04x}:{rest}" if re.match(PCI_ADDRESS, name) else name


def doubts(document: Document) -> tuple[Mistake, ...]:
    """Return values that the agent rejects as measurements: implausible ones, and devices without any value."""
    found = []
    for number, device in enumerate(document.devices):
        readings = [reading_of(entry) for entry in device.readings]
        for index, (entry, reading) in enumerate(zip(device.readings, readings, strict=True)):
            place = f"devices[{number}].readings[{index}].value"
            if entry.status is not reading.status:
                found.append(Mistake(place, f"{entry.quantity}: {reading.detail}: check the unit"))
            elif entry.status is ReadingStatus.ERROR and entry.detail.startswith(NO_VALUE):
                found.append(Mistake(place, entry.detail.removeprefix(NO_VALUE)))
        if readings and not any(reading.status is ReadingStatus.OK for reading in readings):
            found.append(Mistake(f"devices[{number}]", "has no measured value, so its state is unknown"))
    return tuple(found)


def _shown(mistake: Mistake) -> Mistake:
    """Return *mistake* as one printable line."""
    place, text = (printable(part[:300]) for part in (mistake.place, mistake.text))
    return Mistake(place, text)


def _malformed(data: bytes, reason: str) -> Mistake:
    """Return the mistake in malformed JSON, with its line and column."""
    text = data.decode("utf-8")
    if not text.strip():
        return Mistake("output", "is empty: print one JSON document")
    found = re.search(r"\(byte (\d+)\)", reason)
    before = data[: int(found[1])] if found else data
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    place = f"line {line}, column {column}"
    if "trailing" in reason:
        return Mistake(place, "something follows the document: print exactly one")
    if "truncated" in reason:
        return Mistake(place, "the document ends too early: print it completely")
    what = reason.removeprefix("JSON is malformed: ").partition(" (byte")[0].partition(" - at")[0]
    return Mistake(place, f"not valid JSON: {what[:1].lower()}{what[1:]}")


_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def _convert(raw: object, struct: type[_Struct], place: str, mistakes: list[Mistake]) -> _Struct | None:
    try:
        return msgspec.convert(raw, struct)
    except msgspec.ValidationError as error:
        text, _, inner = str(error).partition(" - at `$")
        inner = inner.rstrip("`").removeprefix("." if not place else "")
        mistakes.append(Mistake(f"{place}{inner}" or "document", f"{text[:1].lower()}{text[1:]}"))
        return None


def _every_mistake(data: bytes) -> list[Mistake]:
    """Convert level by level: one wrong reading must not hide the next."""
    try:
        raw = msgspec.json.decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return [Mistake(f"byte {error.start}", "is not UTF-8")]
    except (msgspec.DecodeError, RecursionError) as error:
        return [_malformed(data, str(error))]
    mistakes: list[Mistake] = []
    _convert(_emptied(raw, "devices", "events"), Document, "", mistakes)
    for place, entry in _entries(raw, "devices", ""):
        _convert(_emptied(entry, "readings"), DeviceEntry, place, mistakes)
        for inner, raw_reading in _entries(entry, "readings", f"{place}."):
            reading = _convert(raw_reading, ReadingEntry, inner, mistakes)
            if reading is not None:
                mistakes.extend(Mistake(f"{inner}.{field}", text) for field, text in _reading_mistakes(reading))
    events = list(_entries(raw, "events", ""))
    if len(events) > MAXIMUM_EVENTS:
        text = f"has {len(events)} events, expected at most {MAXIMUM_EVENTS}: print the newest"
        mistakes.append(Mistake("events", text))
    for place, entry in events:
        _convert(entry, EventEntry, place, mistakes)
    return mistakes


def repeated_keys(text: str) -> Iterator[Mistake]:
    """Yield the keys that occur twice in one object: decoders keep one of the two and report nothing."""
    # Objects become tuples, which no JSON value is; numbers are not needed and may have any length.
    return _keys_twice(json.loads(text, object_pairs_hook=tuple, parse_int=len, parse_float=len), "")


def _keys_twice(found: object, place: str) -> Iterator[Mistake]:
    match found:
        case tuple():
            seen: set[str] = set()
            for key, value in found:
                inner = f"{place}.{key}".lstrip(".")
                if key in seen:
                    yield Mistake(inner, "stands twice in one object")
                seen.add(key)
                yield from _keys_twice(value, inner)
        case list():
            for index, value in enumerate(found):
                yield from _keys_twice(value, f"{place}[{index}]")


def _wrong_readings(document: Document) -> Iterator[Mistake]:
    """Yield the mistakes within single readings."""
    for number, device in enumerate(document.devices):
        for index, entry in enumerate(device.readings):
            for field, text in _reading_mistakes(entry):
                yield Mistake(f"devices[{number}].readings[{index}].{field}", text)


def _reading_mistakes(entry: ReadingEntry) -> list[tuple[str, str]]:
    """Return the fields of *entry* that do not fit its quantity, each with the reason."""
    quantity = QUANTITIES.get(entry.quantity)
    if quantity is None:
        return [("quantity", _unknown_quantity(entry.quantity))]
    of_part = [("part", text) for text in _part_mistakes(entry.part, quantity)]
    return of_part + [("value", text) for text in value_mistakes(entry, quantity)]


def _emptied(raw: object, *names: str) -> object:
    """Return *raw* with the lists called *names* empty: their entries are converted one by one."""
    if not isinstance(raw, Mapping):
        return raw
    return {key: [] if key in names and isinstance(value, list) else value for key, value in raw.items()}


def _entries(raw: object, name: str, before: str) -> Iterator[tuple[str, object]]:
    """Yield the entries of the list *name* with their places, which begin with *before*."""
    entries = raw.get(name) if isinstance(raw, Mapping) else None
    if isinstance(entries, list):
        yield from ((f"{before}{name}[{index}]", entry) for index, entry in enumerate(entries))


def _unknown_quantity(name: str) -> str:
    near = difflib.get_close_matches(name, QUANTITIES, 1, 0.4)
    hint = f"did you mean {near[0]}?" if near else "docs/reference/readings-1.schema.json lists them"
    return f"no quantity is called {name!r}, {hint}"


def _part_mistakes(part: PartEntry | None, quantity: Quantity) -> Iterator[str]:
    kind = PartKind.DEVICE if part is None else part.kind
    if kind is not quantity.part:
        yield f"{quantity.key} requires a part of kind {quantity.part.value}, found {kind.value}"
        return
    name, index = ("", None) if part is None else (part.name, part.index)
    if name not in PART_NAMES[kind] and not re.fullmatch(VENDOR_PART[1:-1], name):
        names = ", ".join(sorted(PART_NAMES[kind] - {""})) or "no name"
        yield f"a {kind.value} is not called {name!r}: allowed are {names}, or vendor:WORD"
    if kind is PartKind.LINK and index is None:
        yield "a link needs the index of its port"


def value_mistakes(entry: ReadingEntry, quantity: Quantity) -> Iterator[str]:
    """Yield the mistakes in the value of *entry*, a reading of *quantity*."""
    value = entry.value
    if entry.status is not ReadingStatus.OK:
        if value is not None:
            yield f"status {entry.status.value} must have no value, found {value!r}"
        return
    if value is None:
        yield "a reading without a value needs a status: unsupported, unavailable, denied or error"
        return
    if not fits(value, quantity):
        yield f"{quantity.key} is {expected(quantity)}, found {value!r}"


def expected(quantity: Quantity) -> str:
    """Return the type of a value of *quantity*, for display."""
    if quantity.kind is QuantityKind.STATE:
        return f"one of {', '.join(quantity.states)}"
    return {QuantityKind.FLAG: "true or false", QuantityKind.TEXT: "text"}.get(quantity.kind, "a number")


def fits(value: Scalar, quantity: Quantity) -> bool:
    """Return whether *value* has the type of *quantity*; plausibility is checked elsewhere."""
    match quantity.kind:
        case QuantityKind.FLAG:
            return isinstance(value, bool)
        case QuantityKind.STATE:
            return isinstance(value, str)
        case QuantityKind.TEXT if quantity.key == "compute_process_ids":
            return isinstance(value, str) and PROCESS_IDS.fullmatch(value) is not None
        case QuantityKind.TEXT:
            return isinstance(value, str) and value.isprintable() and len(value) <= 500
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER


def _contradictions(document: Document) -> Iterator[Mistake]:
    """Yield contradictions between entries that are valid by themselves."""
    devices = document.devices
    text = msgspec.json.encode(document).decode("utf-8")
    if "\\" in text or not text.isprintable():
        yield from _unprintable(msgspec.to_builtins(document), "")
    for field in ("id", "uuid", "pci", "serial"):
        yield from _twice(devices, field)
    ids = {device.id for device in devices}
    for number, device in enumerate(devices):
        place = f"devices[{number}]"
        if device.parent is not None and (device.parent not in ids or device.parent == device.id):
            yield Mistake(f"{place}.parent", f"{device.parent!r} is not another device of this document")
        if (device.failure is None) is not bool(device.readings):
            found = "both" if device.failure else "neither"
            yield Mistake(place, f"needs either readings or a failure, found {found}")
        yield from _readings_twice(device.readings, place)
    for number, event in enumerate(document.events):
        if event.device is not None and event.device not in ids:
            yield Mistake(f"events[{number}].device", f"{event.device!r} is not a device of this document")


def _unprintable(found: object, place: str) -> Iterator[Mistake]:
    """Yield every text with characters that break or hide a line in a log or a state file."""
    match found:
        case str() if not found.isprintable():
            yield Mistake(place, f"{found[:40]!r} contains characters that cannot be printed")
        case dict():
            for key, value in found.items():
                yield from _unprintable(key, f"{place}.{key!r}".lstrip("."))
                yield from _unprintable(value, f"{place}.{key}".lstrip("."))
        case list() | tuple():
            for index, value in enumerate(found):
                yield from _unprintable(value, f"{place}[{index}]")


def _twice(devices: Iterable[DeviceEntry], field: str) -> Iterator[Mistake]:
    """Yield the identities that two devices share. A part of a device has the address and serial of the whole."""
    seen: dict[str, int] = {}
    for number, device in enumerate(devices):
        value: str | None = getattr(device, field)
        if value is None or (device.parent is not None and field in ("pci", "serial")):
            continue
        first = seen.setdefault(address_of(value), number)
        if first != number:
            yield Mistake(f"devices[{number}].{field}", f"devices[{first}] also has {value!r}")


def _readings_twice(readings: Iterable[ReadingEntry], place: str) -> Iterator[Mistake]:
    whole = PartEntry(kind=PartKind.DEVICE)
    seen: dict[tuple[str, PartEntry], int] = {}
    for index, entry in enumerate(readings):
        first = seen.setdefault((entry.quantity, entry.part or whole), index)
        if first != index:
            yield Mistake(f"{place}.readings[{index}]", f"readings[{first}] also has {entry.quantity} of this part")
