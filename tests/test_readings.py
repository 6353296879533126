"""What a command prints: every mistake is told with its place, and the JSON Schema agrees with what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.site_tool import device, document, reading, temperature
from hypothesis import given, strategies
from jsonschema import Draft202012Validator

from nodevet.checks.backends.command.schema import readings_schema
from nodevet.checks.backends.command.unread_values import mended
from nodevet.checks.core.model import Reading, ReadingStatus, Scalar
from nodevet.checks.core.parts import PART_NAMES, Part, PartKind
from nodevet.checks.core.quantities import LARGEST_COUNT, QUANTITIES, Bounds, Quantity, QuantityKind, measured
from nodevet.checks.core.readings import Document, doubts, parse, reading_of

CORE = {"kind": "sensor", "name": "core"}

WRONG_ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown quantity": (
        document(device("a", reading("temperature_celcius", 45, part=CORE))),
        "devices[0].readings[0].quantity: no quantity is called 'temperature_celcius', "
        "did you mean temperature_celsius?",
    ),
    "a part of another kind": (
        document(device("a", reading("power_watts", 90, part=CORE))),
        "devices[0].readings[0].part: power_watts requires a part of kind power_scope, found sensor",
    ),
    "no part where one is needed": (
        document(device("a", reading("temperature_celsius", 45))),
        "devices[0].readings[0].part: temperature_celsius requires a part of kind sensor, found device",
    ),
    "a name outside the closed set": (
        document(device("a", reading("temperature_celsius", 45, part={"kind": "sensor", "name": "lid"}))),
        "devices[0].readings[0].part: a sensor is not called 'lid': allowed are core, edge,",
    ),
    "a link without its port": (
        document(device("a", reading("link_active", True, part={"kind": "link"}))),
        "devices[0].readings[0].part: a link needs the index of its port",
    ),
    "a value beside a bad status": (
        document(device("a", {**temperature(45), "status": "denied"})),
        "devices[0].readings[0].value: status denied must have no value, found 45",
    ),
    "no value and no status": (
        document(device("a", temperature(None))),
        "devices[0].readings[0].value: a reading without a value needs a status",
    ),
    "an unknown status": (
        document(device("a", {**temperature(None), "status": "broken"})),
        "devices[0].readings[0].status: invalid enum value 'broken'",
    ),
    "text for a number": (
        document(device("a", temperature("45 C"))),
        "devices[0].readings[0].value: temperature_celsius is a number, found '45 C'",
    ),
    "true for a number": (
        document(device("a", temperature(True))),
        "devices[0].readings[0].value: temperature_celsius is a number, found True",
    ),
    "a number for a flag": (
        document(device("a", reading("ecc_enabled", 1))),
        "devices[0].readings[0].value: ecc_enabled is true or false, found 1",
    ),
    "process ids that are none": (
        document(device("a", reading("compute_process_ids", "12, root"))),
        "devices[0].readings[0].value: compute_process_ids is text, found '12, root'",
    ),
    "a number with more bits than a counter": (
        document(device("a", reading("memory_used_bytes", 2**63))),
        "devices[0].readings[0].value: memory_used_bytes is a number, found 9223372036854775808",
    ),
    "an unknown field": (
        document(device("a", colour="red")),
        "devices[0]: object contains unknown field `colour`",
    ),
    "a PCI address in capitals": (
        document(device("a", pci="0000:4D:00.0")),
        "devices[0].pci: expected `str` matching regex",
    ),
    "neither readings nor a failure": (
        document({**device("a"), "readings": []}),
        "devices[0]: needs either readings or a failure, found neither",
    ),
    "both readings and a failure": (
        document({**device("a", failure={"kind": "error", "detail": "x"}), "readings": [temperature(45)]}),
        "devices[0]: needs either readings or a failure, found both",
    ),
    "a failure of no known kind": (
        document(device("a", failure={"kind": "hung", "detail": "x"})),
        "devices[0].failure.kind: invalid enum value 'hung'",
    ),
    "another schema": ({**document(), "schema": "nodevet.readings/2"}, "schema: invalid enum value"),
    "no devices": ({"schema": "nodevet.readings/1"}, "document: object missing required field `devices`"),
    "a list": ([], "document: expected `object`, got `array`"),  # type: ignore[dict-item]
}
"""Documents with one mistake that lies in one entry, and how it is told."""

CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "two devices of one id": (document(device("a"), device("a")), "devices[1].id: devices[0] also has 'a'"),
    "two devices of one serial": (
        document(device("a", serial="S1"), device("b", serial="S1")),
        "devices[1].serial: devices[0] also has 'S1'",
    ),
    "two devices in one slot": (
        document(device("a", pci="0000:04:00.0"), device("b", pci="0000:04:00.0")),
        "devices[1].pci: devices[0] also has '0000:04:00.0'",
    ),
    "a parent that is not there": (document(device("a", parent="z")), "devices[0].parent: 'z' is not another device"),
    "one reading twice": (
        document(device("a", temperature(45), temperature(46))),
        "devices[0].readings[1]: readings[0] also has temperature_celsius of this part",
    ),
    "an event of a device that is not there": (
        document(device("a"), events=[{"code": "flap", "sequence": 1, "text": "x", "device": "z"}]),
        "events[0].device: 'z' is not a device of this document",
    ),
    "an identity with a line break": (
        document(device("a\n")),
        "devices[0].id: 'a\\n' contains characters that cannot be printed",
    ),
    "a model that hides its letters": (
        document(device("a", model="X1\u2028")),
        "devices[0].model: 'X1\\u2028' contains characters that cannot be printed",
    ),
}
"""Documents whose entries are each in order, and how what is wrong between them is told."""

NOT_JSON = {
    "nothing": (b" \n", "output: is empty: print one JSON document"),
    "NaN": (b'{\n "value": NaN}', "line 2, column 11: not valid JSON: invalid character"),
    "half a document": (b'{"schema": "nodevet.rea', "line 1, column 24: the document ends too early"),
    "two documents": (b"{}\n{}", "line 2, column 2: something follows the document: print exactly one"),
    "bytes that are no UTF-8": (b'{"schema": "\xff"}', "byte 12: is not UTF-8"),
    "a number that no computer holds": (b'{"schema": 1e999}', "line 1, column 18: not valid JSON: number out of range"),
    "nesting without end": (b"[" * 100_000, "line 1, column"),
    "plain text": (b"hl-smi: command not found", "line 1, column 1: not valid JSON"),
}


def told(data: bytes) -> list[str]:
    """Return the mistakes in *data* as lines."""
    found, mistakes = parse(data)
    assert (found is None) is bool(mistakes)
    return [str(mistake) for mistake in mistakes]


@pytest.mark.parametrize("name", WRONG_ENTRIES | CONTRADICTIONS)
def test_a_mistake_is_told_with_its_place(name: str) -> None:
    """One mistake gives one line that names the place and what is allowed."""
    wrong, expected = (WRONG_ENTRIES | CONTRADICTIONS)[name]
    (line,) = told(json.dumps(wrong).encode())
    assert line.startswith(expected)


REPEATED_KEYS = {
    "devices": ('"devices": [], "devices"', "devices"),
    "id": ('"id": "b", "id"', "devices[0].id"),
    "value": ('"value": 200, "value"', "devices[0].readings[0].value"),
    "name": (r'"name": "memory", "n\u0061me"', "devices[0].readings[0].part.name"),
}


@pytest.mark.parametrize("key", REPEATED_KEYS)
def test_a_key_that_stands_twice_is_refused(key: str) -> None:
    """JSON leaves open which of two counts: neither may win unseen."""
    twice, place = REPEATED_KEYS[key]
    text = json.dumps(document(device("a", temperature(45)))).replace(f'"{key}"', twice, 1)
    assert told(text.encode()) == [f"{place}: stands twice in one object"]


def test_one_address_in_two_widths_is_one_address() -> None:
    """The kernel writes domains with four digits, some tools with eight."""
    twice = document(device("a", pci="0000:04:00.0"), device("b", pci="00000000:04:00.0"))
    (line,) = told(json.dumps(twice).encode())
    assert line == "devices[1].pci: devices[0] also has '00000000:04:00.0'"


def test_the_whole_device_is_one_part_whether_it_is_named_or_not() -> None:
    """A reading that stands twice is found although one of the two spells out its part."""
    total = reading("memory_total_bytes", 1 << 30)
    twice = document(device("a", total, {**total, "part": {"kind": "device"}}))
    (line,) = told(json.dumps(twice).encode())
    assert line == "devices[0].readings[1]: readings[0] also has memory_total_bytes of this part"


def test_more_events_than_can_be_remembered_are_refused() -> None:
    """A command that prints all that ever happened would have old events told anew."""
    event = {"code": "flap", "text": "port 3 went down"}
    full = [{**event, "sequence": number} for number in range(1000)]
    assert told(json.dumps(document(device("a"), events=full)).encode()) == []
    (line,) = told(json.dumps(document(device("a"), events=[*full, {**event, "sequence": 1000}])).encode())
    assert line == "events: has 1001 events, expected at most 1000: print the newest"


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_no_document_is_told_at_its_line(name: str) -> None:
    """Broken text gives one line with the place, whatever it holds."""
    data, expected = NOT_JSON[name]
    (line,) = told(data)
    assert line.startswith(expected)


def test_one_mistake_does_not_hide_the_next() -> None:
    """Every device and every reading is looked at, and each mistake has its own line."""
    first = device("a", reading("temprature", 45), reading("power_watts", "90 W", part=CORE))
    lines = told(json.dumps(document(first, device("b", pci="4D:00.0"))).encode())
    assert [line.partition(":")[0] for line in lines] == [
        "devices[0].readings[0].quantity",
        "devices[0].readings[1].part",
        "devices[0].readings[1].value",
        "devices[1].pci",
    ]


def test_a_flood_of_mistakes_is_cut() -> None:
    """A message stays a message, however much is wrong."""
    wrong = document(*(device(str(number), reading("nothing", 1)) for number in range(1000)))
    assert len(told(json.dumps(wrong).encode())) == 50


def test_parts_of_a_device_share_its_address_and_serial() -> None:
    """A partition has a parent, and its address and serial are those of the whole."""
    whole = device("a", serial="S1", pci="0000:04:00.0")
    part = device("a/0", serial="S1", pci="0000:04:00.0", parent="a", uuid="ACME-0000-0001")
    assert told(json.dumps(document(whole, part)).encode()) == []


def test_a_value_in_the_wrong_unit_is_an_error_and_is_doubted() -> None:
    """A power in milliwatts is no measurement: its reading has status error, and the author is told."""
    wrong = reading("power_watts", 90_000, part={"kind": "power_scope", "name": "device"})
    found, _ = parse(json.dumps(document(device("a", temperature(45), wrong))).encode())
    assert found is not None
    (doubt,) = doubts(found)
    assert str(doubt).startswith("devices[0].readings[1].value: power_watts: 90000 is implausible")
    assert reading_of(found.devices[0].readings[1]).status is ReadingStatus.ERROR


def test_a_device_of_which_nothing_is_measured_is_doubted() -> None:
    """Readings that all lack a value say nothing of the device."""
    found, _ = parse(json.dumps(document(device("a", {**temperature(None), "status": "unsupported"}))).encode())
    assert found is not None
    assert [str(doubt) for doubt in doubts(found)] == ["devices[0]: has no measured value, so its state is unknown"]


def _healthy(quantity: Quantity) -> tuple[dict[str, Any], Reading]:
    """Return a reading of *quantity* as printed, and as it is to be understood."""
    value = quantity.example
    name = sorted(PART_NAMES[quantity.part])[0]
    index = 3 if quantity.part is PartKind.LINK else None
    part = {"kind": quantity.part.value, "name": name, **({} if index is None else {"index": index})}
    return reading(quantity.key, value, part=part), Reading(quantity.key, value, Part(quantity.part, name, index))


def test_every_quantity_can_be_printed() -> None:
    """A reading of each quantity is accepted by us and by the schema, and arrives as it was meant."""
    pairs = [_healthy(quantity) for quantity in QUANTITIES.values()]
    whole = document(device("a", *(printed for printed, _ in pairs)))
    found, mistakes = parse(json.dumps(whole).encode())
    assert found is not None, mistakes
    assert [reading_of(entry) for entry in found.devices[0].readings] == [meant for _, meant in pairs]
    assert [error.message for error in Draft202012Validator(readings_schema()).iter_errors(whole)] == []


@pytest.mark.parametrize("quantity", QUANTITIES.values(), ids=lambda quantity: quantity.key)
def test_the_example_of_a_quantity_is_sound(quantity: Quantity) -> None:
    """A device can have measured it, and the reading in the schema is one that the schema accepts."""
    _, meant = _healthy(quantity)
    assert measured(meant) is meant
    (example,) = readings_schema()["$defs"][f"quantity_{quantity.key}"]["examples"]
    assert Draft202012Validator(readings_schema()).is_valid(document(device("a", example)))


def test_the_schema_is_one() -> None:
    """It is valid JSON Schema of the dialect that it names."""
    Draft202012Validator.check_schema(readings_schema())


@pytest.mark.parametrize("name", WRONG_ENTRIES)
def test_the_schema_refuses_what_we_refuse(name: str) -> None:
    """An author who validates by the schema finds each mistake that lies in one entry."""
    assert not Draft202012Validator(readings_schema()).is_valid(WRONG_ENTRIES[name][0])


def test_the_schema_also_refuses_a_value_in_the_wrong_unit() -> None:
    """Ranges are part of the schema: we take such a value for an error of the device, and say so."""
    wrong = document(device("a", reading("utilization_ratio", 55, part={"kind": "engine", "name": "compute"})))
    assert not Draft202012Validator(readings_schema()).is_valid(wrong)


def test_the_committed_schema_is_up_to_date(repository: Path, golden: Callable[[Path, str], None]) -> None:
    """The file that authors validate by is what the code gives now."""
    path = repository / "docs" / "reference" / "readings-1.schema.json"
    golden(path, json.dumps(readings_schema(), indent=2) + "\n")


def _quantities() -> str:
    """Return the table of what can be printed."""
    lines = ["| Quantity | Part | Value | Example | Meaning |", "|---|---|---|---|---|"]
    for entry in QUANTITIES.values():
        names = ", ".join(f"`{name}`" for name in sorted(PART_NAMES[entry.part] - {""}))
        part = f"`{entry.part.value}`" + (f": {names}" if names else "")
        lines.append(f"| `{entry.key}` | {part} | {_accepts(entry)} | {_shown(entry.example)} | {entry.help} |")
    lines += [
        "",
        "A value beyond the bounds is no measurement: its reading is an `error`. The bounds and their reasons:",
        "",
    ]
    by_bounds: dict[Bounds, list[str]] = {}
    for entry in QUANTITIES.values():
        if entry.bounds:
            by_bounds.setdefault(entry.bounds, []).append(entry.key)
    lines += ["| Values | Reason | Quantities |", "|---|---|---|"]
    lines += [
        f"| {_range(bounds)} | {bounds.source} | {', '.join(f'`{key}`' for key in keys)} |"
        for bounds, keys in by_bounds.items()
    ]
    return "\n".join(lines)


def _range(bounds: Bounds) -> str:
    low, high = (None if bound is None else f"{bound:g}" for bound in (bounds.low, bounds.high))
    return f"from {low}" if high is None or bounds.high == LARGEST_COUNT else f"from {low} to {high}"


def _shown(example: Scalar) -> str:
    return f"`{json.dumps(example)}`"


def _accepts(entry: Quantity) -> str:
    if entry.states:
        return ", ".join(f"`{state}`" for state in entry.states)
    match entry.kind:
        case QuantityKind.FLAG:
            return "true or false"
        case QuantityKind.TEXT:
            return "text"
    kind = "counter" if entry.kind is QuantityKind.COUNTER else "number"
    return f"{kind} {_range(entry.bounds)}" if entry.bounds else kind


def test_the_page_lists_every_quantity(repository: Path, golden: Callable[[Path, str], None]) -> None:
    """Its table is what the code gives now."""
    path = repository / "docs" / "reference" / "command-backend.md"
    before, opening, _ = path.read_text().partition("<!-- Written by make golden. -->\n")
    golden(path, f"{before}{opening}\n{_quantities()}\n\n<!-- end -->\n")


def test_the_document_on_the_page_is_accepted(repository: Path) -> None:
    """What the page shows is what the agent takes, and the schema agrees."""
    page = (repository / "docs" / "reference" / "command-backend.md").read_text()
    shown = page.partition("```json\n")[2].partition("```")[0]
    found, mistakes = parse(shown.encode())
    assert found is not None, mistakes
    assert doubts(found) == ()
    assert Draft202012Validator(readings_schema()).is_valid(json.loads(shown))


JSON_VALUES = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats(allow_nan=False, allow_infinity=False)
    | strategies.text(max_size=20),
    lambda inner: strategies.lists(inner, max_size=4) | strategies.dictionaries(strategies.text(max_size=8), inner),
    max_leaves=12,
)
WHOLE_DOCUMENT = document(
    device("a", *(_healthy(entry)[0] for entry in QUANTITIES.values()), uuid="ACME-0000-0001", links=[{"port": 1}]),
    device("b", failure={"kind": "lost", "detail": "gone"}, parent="a", firmware=[{"component": "x", "version": "1"}]),
    events=[{"code": "flap", "sequence": 1, "text": "x", "device": "a"}],
    versions={"driver": "1"},
)


def _places(value: object, before: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the path of every value below *value*."""
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [path for key, entry in inner for path in ((*before, key), *_places(entry, (*before, key)))]


def without_unread(data: bytes) -> Document | None:
    """Return the document in *data* that was refused, as the agent takes it."""
    found = mended(data)
    return None if found is None else found.document


def _arrives(data: bytes) -> None:
    """Take *data* as the agent does: whatever it is, nothing is raised, and what is accepted crosses the wire."""
    found, mistakes = parse(data)
    assert (found is None) is bool(mistakes)
    found = found or without_unread(data)
    assert all(str(mistake).isprintable() for mistake in mistakes)
    for entry in found.devices if found else ():
        msgspec.msgpack.encode([reading_of(told) for told in entry.readings])


VALUES = WRONG_ENTRIES.keys() & {
    "no value and no status",
    "text for a number",
    "true for a number",
    "a number for a flag",
    "process ids that are none",
    "a number with more bits than a counter",
}
MENDED = {
    "an event of a device that is not there",
    "a PCI address in capitals",
    "two devices of one id",
    "two devices of one serial",
    "two devices in one slot",
}
"""Mistakes of which test_command_words.py tells the cost."""


@pytest.mark.parametrize("name", sorted((WRONG_ENTRIES | CONTRADICTIONS).keys() - MENDED))
def test_only_a_value_costs_no_more_than_its_reading(name: str) -> None:
    """Every other mistake refuses the whole, also beside a value that cannot be taken."""
    wrong, _ = (WRONG_ENTRIES | CONTRADICTIONS)[name]
    found = without_unread(json.dumps(wrong).encode())
    assert (found is not None) is (name in VALUES)
    if found is not None:
        assert [entry.status for entry in found.devices[0].readings] == [ReadingStatus.ERROR]
        assert str(doubts(found)[0]).startswith("devices[0].readings[0].value: ")
    elif isinstance(wrong, dict) and wrong.get("devices"):
        other = {**wrong, "devices": [*wrong["devices"], device("other", temperature(float("nan")), serial="other")]}
        assert without_unread(json.dumps(other).encode()) is None


@pytest.mark.parametrize(
    "printed", ["NaN", "-Infinity", "1e400", "9" * 20, "-" + "9" * 5000, '"' + "x" * 10**6 + '"', '"a\\u0000b"', "{}"]
)
def test_a_value_of_any_size_is_told_in_short(printed: str) -> None:
    """The detail names the quantity and shows how the value begins."""
    assert_costs_itself(printed)


@pytest.mark.parametrize(
    "printed",
    [
        *("nan", "-nan", "inf", "", " ", "N/A", "[N/A]", "[Not Supported]", "45 C", "01", ".5", "0x2d", "None"),
        *("45,3", "45,3 C", "1,234.5", "12:30", "N/A, N/A", "41\n43", 'no such sensor "core"', '"a" "b"'),
        "Unable to determine the device handle for GPU0: 0000:19:00.0: Unknown Error",
        *('"4\n5"', '"4\t5"', '"\x1b[31mhot"'),
    ],
)
def test_a_value_that_is_no_json_costs_its_reading_alone(printed: str) -> None:
    """C prints nan, a tool its own words, also of a dead board, and a shell whose variable is empty nothing."""
    assert_costs_itself(printed)


@pytest.mark.parametrize("printed", ["45,3", "sensor: gone", '"4\n5"'])
def test_words_are_told_from_what_follows_them(printed: str) -> None:
    """The value may stand before other keys of its reading, on a line of its own, and beside a text with its words."""
    gone = temperature(None) | {"part": {**CORE, "name": "memory"}, "status": "error", "detail": 'no "value": 4,5'}
    text = json.dumps(document(device("a", gone, {"value": 45} | temperature(45)))).replace(
        '"value": 45', f'"value":\n {printed} \n'
    )
    found = without_unread(text.encode())
    assert found is not None
    assert [entry.status for entry in found.devices[0].readings] == [ReadingStatus.ERROR] * 2
    assert found.devices[0].readings[0].detail == 'no "value": 4,5'


def test_a_line_break_in_the_words_of_a_reading_costs_nothing() -> None:
    """A shell prints what a tool said on two lines."""
    gone = temperature(None) | {"status": "error", "detail": "no answer\nfrom it"}
    other = temperature(0) | {"part": {**CORE, "name": "memory"}}
    text = json.dumps(document(device("a", gone, other)))
    for printed in (text, text.replace("\\n", "\n")):
        found = without_unread(printed.encode())
        assert found is not None
        assert [entry.detail for entry in found.devices[0].readings] == ["no answer from it", ""]


def assert_costs_itself(printed: str) -> None:
    """The reading of which *printed* is the value is an error in short, and the one beside it is taken."""
    text = json.dumps(document(device("a", temperature(45), temperature(0) | {"part": {**CORE, "name": "memory"}})))
    found = without_unread(text.replace("45", printed).encode())
    assert found is not None
    bad, good = found.devices[0].readings
    assert (bad.status, good.value) == (ReadingStatus.ERROR, 0)
    assert bad.detail.startswith("no value: temperature_celsius ")
    assert len(bad.detail) < 200


@pytest.mark.parametrize(
    ("whole", "odd"),
    [
        ('"serial": "s"', '"serial": NaN'),
        ('"serial": "s"', '"serial": nan'),
        ('"serial": "s"', '"serial": '),
        ('"serial": "s"', "serial: 1"),
        ('"value": 0', '"value": 0,'),
        ('"value": 0', '"value": 0 "unit": 1'),
        ('"value": 0', '"value": 1, "unit": 5'),
        ('"value": 0', '"value": 1,5, }'),
        ('"value": 0', '"value": "0'),
        ('"model": "X1"', '"model": "X\n1"'),
    ],
)
def test_a_word_elsewhere_than_as_a_value_refuses_the_whole(whole: str, odd: str) -> None:
    """Also beside a value that costs its own reading: what the other half meant cannot be known."""
    other = temperature(0) | {"part": {**CORE, "name": "memory"}}
    text = json.dumps(document(device("a", temperature(45), other, serial="s"))).replace("45", "nan")
    assert without_unread(text.encode()) is not None
    assert whole in text
    assert without_unread(text.replace(whole, odd).encode()) is None


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_no_document_has_no_values(name: str) -> None:
    """Nothing is made of it."""
    assert without_unread(NOT_JSON[name][0]) is None


@pytest.mark.parametrize("key", REPEATED_KEYS)
def test_a_key_that_stands_twice_is_refused_beside_a_value_that_cannot_be_taken(key: str) -> None:
    """The decoder that takes NaN keeps the last of two: neither may win unseen."""
    twice, _ = REPEATED_KEYS[key]
    text = json.dumps(document(device("a", temperature(45)), device("c", temperature(float("nan")))))
    assert without_unread(text.encode()) is not None
    assert without_unread(text.replace(f'"{key}"', twice, 1).encode()) is None


@given(strategies.binary(max_size=200))
def test_no_bytes_bring_the_reader_down(data: bytes) -> None:
    """Whatever a command prints is a document or a list of mistakes."""
    _arrives(data)


@given(strategies.sampled_from(_places(WHOLE_DOCUMENT)), JSON_VALUES)
def test_no_value_in_any_place_brings_the_reader_down(place: tuple[str | int, ...], value: object) -> None:
    """A document with any one value replaced by another is accepted or told of, and what is accepted can be sent."""
    changed = copy.deepcopy(WHOLE_DOCUMENT)
    inner: Any = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    _arrives(json.dumps(changed).encode())
