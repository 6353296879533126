"""Malformed answers of a driver cost the one reading that they are: every item of every vendor, with odd values."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pynvml
import pytest
from fakes.bench import Bench
from fakes.views import gpu
from hypothesis import given
from hypothesis import strategies as st

from nodevet.checks.backends.amd import amdsmi
from nodevet.checks.backends.amd import items as amd_items
from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.driver_errors import Asked, code_names
from nodevet.checks.backends.nvidia import items as nvidia_items
from nodevet.checks.backends.nvidia import nvml
from nodevet.checks.backends.sound import Checked, sound_device, sound_readings, sound_sample, sound_text
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.core.model import (
    WHOLE,
    Device,
    Failure,
    FailureKind,
    Instant,
    Part,
    PartKind,
    Reading,
    ReadingStatus,
    Sample,
)
from nodevet.checks.core.quantities import QUANTITIES, is_implausible
from nodevet.checks.core.wire import Decoder, Message, Note, Sampled, encode

ODD_TEXTS = ["", " ", "x", "N/A", "12", "-1", "0x", "1e999", "570", "570.", "\udcff\udcfe", "\x00\x1b[2J", "é" * 2000]
ODD: list[Any] = [
    None, *ODD_TEXTS, b"", b"\xff\xfe", -1, 0, 2**31, 2**64 + 1, -(2**80), 1e308, float("nan"), float("inf"), True,
    [], [None], ["x"], {}, {"pid": "x"}, {"status": None}, (), object(), SimpleNamespace(state="x", pid=None),
]  # fmt: skip
"""What no documentation promises, and some driver prints one day."""


class OddLibrary:
    """Answers every call of a device with the same odd value."""

    module = pynvml

    def __init__(self, value: Any) -> None:
        """Answer with *value*."""
        self.value = value

    def on(self, _target: object, *_call: object) -> tuple[int, Any]:
        """Return success, and the odd value."""
        return 0, self.value


def nvidia_plan(value: Any) -> nvml.Plan:
    """Return the plan of every NVIDIA item, each of whose sources answers *value*."""
    items = (*nvidia_items.fast_items(18, "12.570"), *nvidia_items.slow_items(18))
    calls = (msgspec.structs.replace(item, sources=(nvml.Call("odd"),)) for item in items)
    return nvml.Plan(OddLibrary(value), nvml.Target(None, "GPU 0"), calls)  # type: ignore[arg-type]


def amd_plan(value: Any) -> amdsmi.Plan:
    """Return the plan of every AMD item, each of whose sources answers *value*."""
    throttle = amd_items.ThrottleClock()
    items = (
        *amd_items.fast_items(8, throttle),
        *amd_items.slow_items(8, amd_items.BLOCKS),
        *amd_items.partition_items(),
    )
    return amdsmi.Plan(OddLibrary(value), amdsmi.Target(None, "GPU 0"), items)  # type: ignore[arg-type]


def assert_sound(readings: list[Reading]) -> None:
    """Each reading is a value that can be sent and judged, or says why it is none."""
    sample = Sample("b", "g", "d", 1, Instant("boot", 1, 1.0), 0.1, sound_readings(readings))
    sent = encode(Sampled(sound_sample(sample)))
    (taken,) = Decoder().feed(sent)
    assert isinstance(taken, Sampled)
    assert len(taken.sample.readings) == len(readings)
    for reading in taken.sample.readings:
        assert (reading.status is ReadingStatus.OK) == (reading.value is not None)
        assert reading.status is ReadingStatus.OK or reading.detail


@pytest.mark.parametrize("value", ODD, ids=lambda value: ascii(value)[:20])
@pytest.mark.parametrize("plan", [nvidia_plan, amd_plan], ids=["nvidia", "amd"])
def test_every_item_takes_every_odd_answer(plan: Any, value: Any) -> None:
    """Twice, since what came last is remembered; no item raises, and each gives one reading or says it has none."""
    made = plan(value)
    for _ in range(2):
        assert_sound(made.read())


answers = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(answers)
def test_no_answer_at_all_brings_a_reader_down(value: Any) -> None:
    """Whatever shape an answer has."""
    for plan in (nvidia_plan(value), amd_plan(value)):
        assert_sound(plan.read())


def refuses(answer: object) -> NoReturn:
    """Take no answer: each that means something is known."""
    raise ValueError(f"{answer} means nothing")


@pytest.mark.parametrize("vendor", [nvml, amdsmi])
def test_an_answer_that_means_nothing_is_an_odd_value_of_either_vendor(vendor: Any) -> None:
    """It counts as any implausible value does: no sooner than the reading before it is old."""
    call = vendor.Call("odd") if vendor is nvml else vendor.Call("odd", take=refuses)
    item = vendor.Item("pcie_link_generation", Part(PartKind.PCIE), (call,))
    items = [msgspec.structs.replace(item, convert=refuses) if vendor is nvml else item]
    (told,) = vendor.Plan(OddLibrary(7), vendor.Target(None, "GPU 0"), items).read()
    assert is_implausible(told)
    assert told.detail == "odd: its answer is implausible: 7 means nothing"


FIELDS = [field for field in Device.__struct_fields__ if field != "kind"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_device_that_tells_nonsense_of_itself_keeps_the_rest(field: str) -> None:
    """Every field with every odd value: the device can be sent, the other fields stand, and what was wrong is told."""
    whole = gpu()
    assert sound_device(whole) == (whole, ())
    for value in ODD:
        device, complaints = sound_device(msgspec.structs.replace(whole, **{field: value}))
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(device), type=Device)
        others = [name for name in FIELDS if name != field]
        assert [getattr(again, name) for name in others] == [getattr(whole, name) for name in others]
        assert all(complaint.isprintable() for complaint in complaints)
        assert again.id
    sizes = msgspec.structs.replace(whole, memory_bytes=-1, compute_units=0, maximum_clock_hertz=-5)
    device, complaints = sound_device(sizes)
    assert (device.memory_bytes, device.compute_units, device.maximum_clock_hertz) == (None, None, None)
    assert len(complaints) == 3


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_text_is_one_printable_line_whatever_it_was(text: str) -> None:
    """No control characters, no broken bytes, and of bounded length."""
    plain = sound_text(text)
    assert plain.isprintable()
    assert len(plain.encode()) <= 4 * 500
    assert sound_text(plain) == plain


@pytest.mark.parametrize("quantity", sorted(QUANTITIES))
def test_every_quantity_refuses_what_is_none_of_it(quantity: str) -> None:
    """A reading of each quantity with each odd value is measured or told as unreadable."""
    odd = [Reading(quantity, value, Part(PartKind.DEVICE)) for value in ODD if value is not None]
    assert_sound(odd)


def test_a_name_that_a_driver_gives_a_part_may_be_no_text() -> None:
    """Two parts stay two, and their values with them; before, the whole device was unread for it."""
    names = ("vendor:a\udcff", "vendor:a\udcfe", "vendor:b")
    readings = [Reading("temperature_celsius", 40.0, Part(PartKind.SENSOR, name)) for name in names]
    assert_sound(readings)
    sample = Sample("b", "g", "d", 1, Instant("boot", 1, 1.0), 0.1, sound_readings(readings))
    assert [(reading.part.name, reading.value) for reading in sound_sample(sample).readings] == [
        ("vendor:a\\udcff", 40.0),
        ("vendor:a\\udcfe", 40.0),
        ("vendor:b", 40.0),
    ]


POOL = [
    *(Reading("temperature_celsius", value, Part(PartKind.SENSOR, "core")) for value in (40.0, 41.0, 1e9, -1e9)),
    *(Reading("temperature_celsius", 40.0, Part(PartKind.SENSOR, f"vendor:{name}")) for name in ("a", "a\udcff")),
    Reading("compute_process_ids", "1,2", WHOLE),
    Reading("compute_process_ids", "\udcff\x00", WHOLE),
    Reading("memory_used_bytes", 2**64 + 1, WHOLE),
    Reading("partitioned", True, WHOLE),
    Reading("ecc_enabled", None, WHOLE, ReadingStatus.ERROR, "\udcfe"),
]


@given(st.lists(st.lists(st.integers(0, len(POOL) - 1), max_size=6), max_size=8))
def test_what_was_checked_before_is_sent_as_if_it_was_checked_again(rounds: list[list[int]]) -> None:
    """Whichever objects of earlier samples a backend returns again, in any order and number."""
    checked = Checked()
    for number, chosen in enumerate(rounds):
        told = [POOL[index] for index in chosen]
        readings = checked.readings(told)
        assert readings == sound_readings(told)
        sample = Sample("b", "g", "d", number, Instant("boot", number, 1.0), 0.1, readings)
        assert checked.sample(sample) == sound_sample(sample)


def test_a_pci_text_that_is_none_is_no_address() -> None:
    """An empty address of a link's peer is no peer, not the end of the reader."""
    from nodevet.checks.backends.nvidia.identity import _address

    assert _address("00000000:1B:00.0") == "0000:1b:00.0"
    for text in ("", ":", "x:1b:00.0", "\udcff"):
        assert _address(text) is None


def test_a_message_that_cannot_be_read_costs_itself() -> None:
    """Those before and behind it are taken; a length that is none ends the conversation."""
    told: list[str] = []
    decoder = Decoder(told.append)
    bad = b"\x00\x00\x00\x03\xc1\xc1\xc1"
    frames = encode(Note("info", "a")) + bad + encode(Note("info", "b")) + bad
    taken: list[Message] = list(decoder.feed(frames))
    assert taken == [Note("info", "a"), Note("info", "b")]
    assert len(told) == 2


def test_a_device_whose_sample_cannot_be_read_is_unread_alone(tmp_path: Path) -> None:
    """Its siblings are measured in the same round, the reader lives, and its next sample ends it."""
    bench = Bench(tmp_path)
    bench.round()
    bench.write(read={"b": "unreadable"})
    told = {sample.device: sample.failure for sample in bench.round(10.0)}
    assert (told["a"], told["c"]) == (None, None)
    failure = told["b"]
    assert failure is not None
    assert failure.kind is FailureKind.READER
    assert "sent an unreadable message" in failure.detail
    bench.write(read={})
    assert {sample.failure for sample in bench.round(10.0)} == {None}
    assert (bench.status().starts, bench.status().crashes) == (1, 0)
    bench.close()


def test_what_a_caller_expects_is_no_bug() -> None:
    """An error that is let through is raised as it is."""

    def refuse() -> NoReturn:
        raise KeyError("expected")

    with pytest.raises(KeyError):
        attempt(refuse, let=(LookupError,))
    assert isinstance(attempt(refuse, let=(OSError,)), Bug)
    assert Failure(FailureKind.READER, "").kind is FailureKind.READER


def test_a_fault_that_the_driver_names_is_one() -> None:
    """Of a board that it does not open; that it is in use, not ready or not allowed is none."""
    kinds = {code: nvml.refused(code, "open", Asked.OPEN).failure.kind for code in code_names("nvml")}
    assert {code for code, kind in kinds.items() if kind is FailureKind.FAULTY} == {8, 14}


@pytest.mark.parametrize("known", [0, nvml.NOT_SUPPORTED, nvml.INVALID_ARGUMENT, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_an_argument_that_is_refused_loses_no_device_that_the_driver_knows(known: int) -> None:
    """A structure may be what is refused; what else the driver says of the handle tells."""

    def answer(code: int) -> int:
        if code:
            raise pynvml.NVMLError(code)
        return 0

    module = SimpleNamespace(
        NVMLError=pynvml.NVMLError,
        c_nvmlFieldValue_t=pynvml.c_nvmlFieldValue_t,
        nvmlDeviceGetMigMode=lambda _handle: answer(nvml.INVALID_ARGUMENT),
        nvmlDeviceGetIndex=lambda _handle: answer(known),
    )
    progress = SimpleNamespace(call=lambda _text: None, returned=lambda: None)
    library = nvml.Library(module, progress)  # type: ignore[arg-type]
    call = nvml.Call("nvmlDeviceGetMigMode")
    plan = nvml.Plan(library, nvml.Target(None, "GPU 0"), [nvml.Item("partitioned", WHOLE, (call,))])
    kinds = {nvml.INVALID_ARGUMENT: FailureKind.LOST, pynvml.NVML_ERROR_RESET_REQUIRED: FailureKind.RESET_REQUIRED}
    if known not in kinds:
        assert [reading.status for reading in plan.read()] == [ReadingStatus.UNSUPPORTED]
        return
    with pytest.raises(BackendError) as raised:
        plan.read()
    assert raised.value.failure.kind is kinds[known]
