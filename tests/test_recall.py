"""What is stored in one piece: an entry that cannot be read costs itself, whatever list or mapping it lies in."""

from __future__ import annotations

import enum
import types
import typing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from fakes.episodes import BOOT_ID, episode, moment
from fakes.showing_child import configuration
from hypothesis import given
from hypothesis import strategies as st

from nodevet.agent.readers.remembered import Remembered, recalled_readers
from nodevet.agent.slurm.memory import Kept, load_memory
from nodevet.agent.store.journal import Journal
from nodevet.agent.store.opening import DATABASE_NAME, open_store
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import (
    Device,
    DeviceKind,
    Episode,
    Event,
    EventCount,
    Instant,
    Key,
    Part,
    PartKind,
    Refusal,
    Result,
)
from nodevet.checks.core.recall import recalled
from nodevet.checks.engine.arrivals import KeptArrivals, Page
from nodevet.checks.engine.engine import Engine
from nodevet.checks.engine.episodes import Ledger
from nodevet.checks.engine.growth import Counter
from nodevet.checks.engine.hours import Hourly
from nodevet.checks.engine.lapses import Lapse
from nodevet.checks.engine.seen_events import SeenEvent
from nodevet.checks.engine.view import KnownDevices
from nodevet.checks.kernel_log.dedupe import DeduplicatorState

KINDS: dict[str, Any] = {
    "arrivals": KeptArrivals,
    "ledger": Ledger,
    "inventory": KnownDevices,
    "counters": tuple[Counter, ...],
    "times": tuple[tuple[str, str, Instant], ...],
    "hourly": tuple[Hourly, ...],
    "lapses": tuple[Lapse, ...],
    "results": tuple[Result, ...],
    "events": DeduplicatorState,
    "seen_events": tuple[SeenEvent, ...],
    "event_counts": tuple[EventCount, ...],
    "waiting": dict[str, tuple[Event, ...]],
    "refusals": dict[str, Refusal],
    "renamed": dict[str, str],
}
"""What an engine keeps, by name."""

PLAIN: dict[Any, Any] = {
    Instant: moment,
    Key: lambda number: episode(device=f"GPU-{number}").key,
    Episode: lambda number: episode(device=f"GPU-{number}"),
    Part: lambda number: Part(PartKind.DEVICE, f"vendor:x{number}"),
    Page: lambda number: Page("nvidia", f"vendor{number}"),
    Device: lambda number: Device(
        id=f"GPU-{number}", kind=DeviceKind.ACCELERATOR, vendor="nvidia", model="H100", backend="nvidia"
    ),
    str: "x{}".format,
    int: int,
    float: float,
    bool: bool,
    bytes: lambda number: b"%d" % number,
}
POISON: tuple[object, ...] = (7, None, [7], {"poison": 7})


def sample(kind: Any, number: int = 0, *, of_entry: bool = False) -> Any:
    """Return what a *kind* may look like when it is stored, with three entries in each list that is no entry's own."""
    shape, of = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return msgspec.to_builtins(PLAIN[kind](number), builtin_types=(bytes,))
    if shape in (types.UnionType, typing.Union):
        return sample(next(each for each in of if each is not type(None)), number, of_entry=of_entry)
    if shape is tuple and of[-1] is not Ellipsis:
        return [sample(each, number, of_entry=True) for each in of]
    if shape in (tuple, frozenset):
        return [sample(of[0], each, of_entry=True) for each in range(3)]
    if shape is dict:
        return {f"x{each}": sample(of[1], each, of_entry=True) for each in range(3)}
    if shape is Literal:
        return of[0]
    if issubclass(kind, enum.Enum):
        return next(iter(kind)).value
    fields = [field for field in msgspec.structs.fields(kind) if field.required or not of_entry]
    values = {field.encode_name: sample(field.type, number, of_entry=of_entry) for field in fields}
    values |= {"boot_id": BOOT_ID} if "boot_id" in values else {}
    return list(values.values()) if kind.__struct_config__.array_like else values


def places(raw: Any) -> list[Any]:
    """Return the lists and mappings of *raw* that have entries: itself, its values, and the lists one level further.

    A list one level further that has not three entries is itself an entry.
    """
    within = raw.values() if isinstance(raw, dict) else ()
    further = (each for value in within if isinstance(value, dict) for each in value.values())
    deeper = (each for each in further if isinstance(each, list) and len(each) == 3)
    return [raw, *(each for each in (*within, *deeper) if isinstance(each, (list, dict)))]


def poisoned(raw: Any, place: int, poison: object) -> bool:
    """Put *poison* between the entries of one *place* of *raw*; False where that may be a field that nobody knows."""
    where = places(raw)[place % len(places(raw))]
    if isinstance(where, list):
        where.insert(1, poison)
    else:
        where["poison"] = 7
    return isinstance(where, list)


def engine_with(memory: dict[str, Any]) -> tuple[dict[str, bytes], str]:
    """Return what an engine keeps that was given *memory*, and what it told of it."""
    engine, told = Engine((), node="node", clock=lambda: moment(9)), ""
    try:
        engine.restore({name: msgspec.msgpack.encode(raw) for name, raw in memory.items()})
    except msgspec.ValidationError as error:
        told = str(error)
    return engine.memory(), told


@pytest.mark.parametrize("name", KINDS)
@given(place=st.integers(0, 5), poison=st.sampled_from(POISON))
def test_an_entry_that_cannot_be_read_costs_itself(name: str, place: int, poison: object) -> None:
    """In all that an engine keeps. Before, one such entry lost every finding, counter, baseline or result beside it."""
    whole, damaged = sample(KINDS[name]), sample(KINDS[name])
    must_tell = poisoned(damaged, place, poison)
    kept, told = engine_with({name: whole})
    assert told == ""
    assert kept[name] != engine_with({})[0][name]
    after, told = engine_with({name: damaged})
    assert after[name] == kept[name]
    assert told.startswith(f"{name}: 1 of its entries cannot be read") or (told == "" and not must_tell)


def test_a_finding_that_cannot_be_read_in_the_memory_is_there_from_its_own_row(tmp_path: Path) -> None:
    """Beside the others, and told once: what the memory holds anew has no such entry."""
    known = tuple(episode(device=f"GPU-{number}") for number in range(3))
    ledger = {"episodes": (known[0], {"code": "of a later version"}, known[2])}
    settings = configuration(tmp_path)
    store = open_store(Path(settings.agent.state_dir) / DATABASE_NAME).store
    store.save_round(known, {"ledger": msgspec.msgpack.encode(ledger)}, time=moment(1))
    store.close()
    told = []
    for _ in range(2):
        engine = Engine((), node="node", clock=lambda: moment(9))
        with Journal(settings, SystemClock()) as journal:
            journal.restore(engine)
            told.append(journal.notices)
            assert engine.episodes == known
            journal.keep_round((), engine.memory())
    assert ["ledger: 1 of its entries cannot be read" in line for line in told[0]] == [True]
    assert told[1] == ()


def test_every_value_that_an_engine_keeps_is_tried() -> None:
    """One more of them is one more kind here."""
    assert set(engine_with({})[0]) == set(KINDS)


@given(
    field=st.sampled_from(("records", "falls")),
    at=st.integers(0, 3),
    poison=st.sampled_from(POISON),
    both=st.booleans(),
)
def test_a_fall_that_cannot_be_read_costs_no_other_and_no_process(
    field: str, at: int, poison: object, both: bool
) -> None:
    """A process that cannot be ended was forgotten, and a driver's second crash was its first."""
    raw, told = sample(Remembered), list[str]()
    for name in ("records", "falls") if both else (field,):
        raw[name].insert(at, poison)
    kept = recalled_readers(msgspec.msgpack.encode(raw), told.append)
    assert kept == msgspec.convert(sample(Remembered), Remembered)
    assert len(told) == 1
    assert f"{1 + both} of its entries cannot be read and are left out" in told[0]


@given(place=st.integers(0, 1), poison=st.sampled_from(POISON), in_file=st.booleans())
def test_a_resume_that_cannot_be_read_costs_no_other(place: int, poison: object, in_file: bool) -> None:
    """Of what a person resumed the node with, in the store and in the file: else it was drained against their word."""
    raw = sample(Kept)
    whole = msgspec.convert(raw, Kept)
    assert len(whole.memory.resumed) == len(whole.memory.known) == 3
    raw["memory"][("known", "resumed")[place]].insert(1, poison)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "slurm.json"
        if in_file:
            path.write_bytes(msgspec.json.encode(raw))
        found = load_memory(path, None if in_file else msgspec.msgpack.encode(raw), BOOT_ID)
    assert found == whole


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x07", msgspec.msgpack.encode({"episodes": 7, "settled": [7]})])
def test_a_value_of_which_nothing_can_be_read_is_none(packed: bytes) -> None:
    """Nothing is made up in its place."""
    with pytest.raises(msgspec.DecodeError):
        recalled(packed, Ledger)


def test_an_entry_is_whole_or_nothing() -> None:
    """Half of it could mean the opposite: a device without the links that were ever up has lost none."""
    raw = sample(KnownDevices)
    raw["seen"]["x1"]["links_up"] = [1, "poison"]
    found, lost = recalled(msgspec.msgpack.encode(raw), KnownDevices)
    assert set(found.seen) == {"x0", "x2"}
    assert lost.startswith("1 of its entries cannot be read and are left out (")
