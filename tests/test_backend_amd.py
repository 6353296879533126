"""The AMD backend in its real child process, over the real amdsmi wrapper, on machines with every kind of fault."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.amdsmi.build import build_fake_amdsmi
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi, pci, uuid
from fakes.host_tree import LINK, pci_device, write_tree
from fakes.reader import ReaderProcess
from fakes.shared_reader import SLOT, Read, machine, read

from nodevet.checks.backends.amd.amdsmi import NO_FUNCTION, UNREADABLE, Library, Target, number
from nodevet.checks.backends.amd.identity import is_virtual
from nodevet.checks.backends.amd.items import RESIDENCIES, ThrottleClock
from nodevet.checks.core.model import WHOLE, Failure, FailureKind, Link, Part, PartKind, ReadingStatus
from nodevet.checks.core.quantities import QUANTITIES, is_implausible
from nodevet.checks.core.wire import Sampled

HOTSPOT, MEMORY, EDGE = (Part(PartKind.SENSOR, name) for name in ("hotspot", "memory", "edge"))
BOARD = Part(PartKind.POWER_SCOPE, "device")
GRAPHICS, MEMORY_CLOCK = Part(PartKind.CLOCK, "graphics"), Part(PartKind.CLOCK, "memory")
DRAM, GFX, XGMI = (Part(PartKind.MEMORY_BLOCK, name) for name in ("dram", "vendor:gfx", "vendor:xgmi_wafl"))
PCIE = Part(PartKind.PCIE)
COMPUTE = Part(PartKind.ENGINE, "compute")
OK, UNSUPPORTED, UNAVAILABLE = ReadingStatus.OK, ReadingStatus.UNSUPPORTED, ReadingStatus.UNAVAILABLE
DENIED, ERROR = ReadingStatus.DENIED, ReadingStatus.ERROR

__all__ = ["machine", "read"]  # fixtures of these tests, imported above


def link(port: int | None) -> Part:
    """Return the part of one link."""
    return Part(PartKind.LINK, "", port)


def stack(index: int) -> Part:
    """Return the sensor of one stack of memory."""
    return Part(PartKind.SENSOR, "memory", index)


def reason(name: str) -> Part:
    """Return the part of one reason to hold the clocks down."""
    return Part(PartKind.REASON, name)


def tree(machine: FakeAmdSmi, **more: str) -> Path:
    """Write what the kernel shows of *machine*, and *more* of it, and return the root."""
    return write_tree(machine.path.parent / "root", machine.host_files() | more)


def reader_of(machine: FakeAmdSmi, *, skip: tuple[str, ...] = (), logged: bool = False) -> ReaderProcess:
    """Return a reader of *machine* below the tree that its kernel shows."""
    environment = machine.logged_environment if logged else machine.environment
    return ReaderProcess(environment, "amd", root=str(tree(machine)), skip=skip)


@pytest.fixture(scope="module")
def shared_machine(tmp_path_factory: pytest.TempPathFactory, fake_amdsmi_library: Path) -> FakeAmdSmi:
    """The machine of the reader that the tests of single values share."""
    return FakeAmdSmi(tmp_path_factory.mktemp("machine") / "amdsmi.scenario", fake_amdsmi_library)


@pytest.fixture(scope="module")
def shared_reader(shared_machine: FakeAmdSmi) -> Iterator[ReaderProcess]:
    """A reader that lives through all tests that only change what the devices answer."""
    with reader_of(shared_machine) as reader:
        reader.ready()
        yield reader
        assert reader.stop() == 0


# ---- Every value, by its injected cause ------------------------------------------------------------------------

FAST = [
    ({"temperature.3": 95}, "temperature_celsius", HOTSPOT, 95),
    ({"memory_temperature.3": 101}, "temperature_celsius", MEMORY, 101),
    ({"edge_temperature.3": 61}, "temperature_celsius", EDGE, 61),
    ({"stack_temperature.3.2": 77}, "temperature_celsius", stack(2), 77),
    ({"temperature.3": 95, "temperature_scale": 1000}, "temperature_celsius", HOTSPOT, 95),
    ({"power_milliwatts.3": 412000}, "power_watts", BOARD, 412),
    ({"power_limit_milliwatts.3": 500000}, "power_limit_watts", BOARD, 500),
    ({"power_limit_milliwatts.3": 500000, "power_cap_per_watt": 1}, "power_limit_watts", BOARD, 500),
    ({"sm_clock_megahertz.3": 345}, "clock_hertz", GRAPHICS, 345_000_000),
    ({"memory_clock_megahertz.3": 900}, "clock_hertz", MEMORY_CLOCK, 900_000_000),
    ({"utilization_percent.3": 97}, "utilization_ratio", COMPUTE, 0.97),
    ({"memory_used_bytes.3": 5 << 30}, "memory_used_bytes", WHOLE, 5 << 30),
    ({"link_state.3.5": 0}, "link_active", link(5), False),
    ({"link_state.3.5": 1}, "link_active", link(5), True),
]

SLOW = [
    ({"threshold_slowdown.3": 99}, "temperature_slowdown_celsius", HOTSPOT, 99),
    ({"threshold_shutdown.3": 109}, "temperature_shutdown_celsius", HOTSPOT, 109),
    ({"threshold_memory_slowdown.3": 104}, "temperature_slowdown_celsius", MEMORY, 104),
    ({"threshold_memory_shutdown.3": 114}, "temperature_shutdown_celsius", MEMORY, 114),
    ({"power_limit_default_milliwatts.3": 700000}, "power_limit_default_watts", BOARD, 700),
    ({"sm_clock_maximum_megahertz.3": 2000}, "clock_maximum_hertz", GRAPHICS, 2_000_000_000),
    ({"ecc_corrected_volatile_dram.3": 17}, "ecc_corrected_errors", DRAM, 17),
    ({"ecc_uncorrected_volatile_dram.3": 2}, "ecc_uncorrected_errors", DRAM, 2),
    ({"ecc_deferred_volatile_dram.3": 4}, "ecc_deferred_errors", DRAM, 4),
    ({"ecc_uncorrected_volatile_gfx.3": 1}, "ecc_uncorrected_errors", GFX, 1),
    ({"ecc_corrected_volatile_xgmi_wafl.3": 9}, "ecc_corrected_errors", XGMI, 9),
    ({"bad_pages_reserved.3": 5}, "bad_pages_retired", WHOLE, 5),
    ({"bad_pages_pending.3": 2}, "bad_pages_pending", WHOLE, 2),
    ({"bad_pages_unreservable.3": 1, "bad_pages_reserved.3": 7}, "bad_pages_unreservable", WHOLE, 1),
    ({"bad_page_threshold.3": 64}, "bad_pages_threshold", WHOLE, 64),
    ({"pcie_generation.3": 4}, "pcie_link_generation", PCIE, 4),
    ({"pcie_generation_maximum.3": 4}, "pcie_link_generation_maximum", PCIE, 4),
    ({"pcie_width.3": 8}, "pcie_link_width", PCIE, 8),
    ({"pcie_width_maximum.3": 8}, "pcie_link_width_maximum", PCIE, 8),
    ({"pcie_replays.3": 70000}, "pcie_replays", PCIE, 70000),
    ({"link_megabytes_per_second.3.4": 32000}, "link_bandwidth_bytes_per_second", link(4), 32e9),
    ({"compute_partition.3": "CPX"}, "compute_partition", WHOLE, "cpx"),
    ({"memory_partition.3": "NPS4"}, "memory_partition", WHOLE, "nps4"),
    ({"ecc_mode.3": 0}, "ecc_enabled", WHOLE, False),
]


@pytest.mark.parametrize(
    ("group", "values", "quantity", "part", "expected"),
    [*(("fast", *row) for row in FAST), *(("slow", *row) for row in SLOW)],
)
def test_a_value_is_read_from_its_source(
    read: Read, group: str, values: dict[str, float | str], quantity: str, part: Part, expected: Any
) -> None:
    """Every cause shows up as its own reading, in the unit that its quantity names."""
    reading = read(group, values)[quantity, part]
    assert (reading.status, reading.value) == (OK, expected), reading.detail


def test_every_quantity_is_declared_for_its_part(read: Read) -> None:
    """What is read has a declared quantity whose kind of part it names, and the healthy board answers nearly all."""
    both = {**read("fast", {}), **read("slow", {})}
    for (quantity, part), reading in both.items():
        assert QUANTITIES[quantity].part is part.kind
        assert reading.status in (OK, UNSUPPORTED), reading
    lacking = {(quantity, part) for (quantity, part), reading in both.items() if reading.status is not OK}
    assert lacking == {
        ("temperature_celsius", EDGE), ("temperature_slowdown_celsius", EDGE), ("temperature_shutdown_celsius", EDGE),
        ("link_active", link(7)),
    }  # fmt: skip


def test_energy_is_ticks_times_their_worth(read: Read) -> None:
    """The accumulator counts some fifteen microjoules at a time."""
    reading = read("fast", {"energy_millijoules.3": 123456789})["energy_joules", BOARD]
    assert reading.value == pytest.approx(123456.789, rel=1e-6)


def test_processes_are_counted_and_named_by_their_ids(read: Read) -> None:
    """Whoever wants to drain the device needs to know them."""
    readings = read("fast", {"processes.3": "4712:1024 4711:0"})
    assert readings["compute_processes", WHOLE].value == 2
    assert readings["compute_process_ids", WHOLE].value == "4711,4712"


def test_errors_of_the_bus_are_those_that_the_kernel_counted(fake_amdsmi: FakeAmdSmi) -> None:
    """AMD SMI has none; the kernel has them in files whose last line is the total."""
    folder = f"sys/bus/pci/devices/{pci(SLOT)}"
    files = {
        f"{folder}/aer_dev_correctable": "RxErr 1\nBadTLP 4\nTOTAL_ERR_COR 5\n",
        f"{folder}/aer_dev_nonfatal": "TLP 2\nTOTAL_ERR_NONFATAL 2\n",
        f"{folder}/aer_dev_fatal": "Undefined 1\n",
    }
    with ReaderProcess(fake_amdsmi.environment, "amd", root=str(tree(fake_amdsmi, **files))) as reader:
        reader.ready()
        readings = reader.readings(SLOT, "slow")
    assert readings["pcie_correctable_errors", PCIE].value == 5
    assert readings["pcie_nonfatal_errors", PCIE].value == 2
    assert readings["pcie_fatal_errors", PCIE].status is ERROR


# ---- What is missing, and how it is told ------------------------------------------------------------------------

STATUSES = [
    (AmdSmiStatus.NOT_SUPPORTED, UNSUPPORTED), (AmdSmiStatus.NOT_YET_IMPLEMENTED, UNSUPPORTED),
    (AmdSmiStatus.NO_PERM, DENIED),
    (AmdSmiStatus.BUSY, UNAVAILABLE), (AmdSmiStatus.TIMEOUT, UNAVAILABLE), (AmdSmiStatus.RETRY, UNAVAILABLE),
    (AmdSmiStatus.NO_DATA, UNAVAILABLE),
    (AmdSmiStatus.API_FAILED, ERROR), (AmdSmiStatus.FILE_ERROR, ERROR), (AmdSmiStatus.IO, ERROR),
]  # fmt: skip


@pytest.mark.parametrize(("code", "status"), STATUSES)
@pytest.mark.parametrize(
    ("group", "function", "quantity", "part"),
    [
        ("fast", "amdsmi_get_energy_count", "energy_joules", BOARD),
        ("fast", "amdsmi_get_gpu_xgmi_link_status", "link_active", link(0)),
        ("slow", "amdsmi_get_gpu_ecc_count", "ecc_uncorrected_errors", DRAM),
        ("slow", "amdsmi_get_gpu_bad_page_info", "bad_pages_retired", WHOLE),
    ],
)
def test_a_call_that_fails_is_told_as_what_it_is(
    machine: FakeAmdSmi, shared_reader: ReaderProcess, group: str, function: str, quantity: str, part: Part,
    code: AmdSmiStatus, status: ReadingStatus,
) -> None:  # fmt: skip
    """No code of the library becomes a value, and the other readings are there all the same."""
    machine.fail(function, code, gpu=SLOT)
    readings = shared_reader.readings(SLOT, group)
    assert (readings[quantity, part].status, readings[quantity, part].value) == (status, None)
    assert any(reading.status is OK for reading in readings.values())
    assert function.removeprefix("amdsmi_") in readings[quantity, part].detail or status is UNSUPPORTED


@pytest.mark.parametrize(
    ("lacking", "group", "quantity", "part", "expected"),
    [
        ("amdsmi_get_temp_metric", "fast", "temperature_celsius", HOTSPOT, 40),
        ("amdsmi_get_power_info", "fast", "power_watts", BOARD, 140),
        ("amdsmi_get_gpu_memory_usage", "fast", "memory_used_bytes", WHOLE, 283 << 20),
        ("amdsmi_get_pcie_info", "slow", "pcie_replays", PCIE, 0),
    ],
)
def test_another_way_is_taken_where_one_is_lacking(
    machine: FakeAmdSmi, read: Read, lacking: str, group: str, quantity: str, part: Part, expected: Any
) -> None:
    """What a release or a board does not have under one name it may have under another."""
    machine.fail(lacking, AmdSmiStatus.NOT_SUPPORTED)
    reading = read(group, {})[quantity, part]
    assert (reading.status, reading.value) == (OK, expected), reading.detail


def test_what_is_unsupported_is_not_asked_for_until_the_next_enumeration(fake_amdsmi: FakeAmdSmi) -> None:
    """A function that a device lacks costs one call per enumeration, not one per round."""
    fake_amdsmi.fail("amdsmi_get_energy_count", AmdSmiStatus.NOT_SUPPORTED, gpu=SLOT)
    with reader_of(fake_amdsmi, logged=True) as reader:
        reader.ready()
        for _ in range(3):
            reader.round("fast")
        assert fake_amdsmi.calls().count("amdsmi_get_energy_count 3") == 1
        assert fake_amdsmi.calls().count("amdsmi_get_energy_count 4") == 3
        fake_amdsmi.clear()
        reader.enumerate_again()
        assert reader.readings(SLOT, "fast")["energy_joules", BOARD].status is OK


def test_a_number_that_cannot_be_is_an_error(read: Read) -> None:
    """An implausible temperature and a rate of no PCIe generation are not measurements."""
    assert read("fast", {"temperature.3": 400})["temperature_celsius", HOTSPOT].status is ERROR
    rate = read("slow", {"pcie_generation.3": 0})["pcie_link_generation", PCIE]
    assert (rate.status, is_implausible(rate)) == (ERROR, True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("N/A", None), (0xFFFFFFFF, None), ((1 << 64) - 1, None), (0, 0), (65535, 65535), ("12", 12)],
)
def test_what_stands_for_no_number_is_none(value: Any, expected: int | None) -> None:
    """The word and the largest numbers of their types; a zero is a number."""
    assert number(value) == expected


def test_a_board_whose_error_counting_is_off_counts_nothing(read: Read) -> None:
    """Without it nothing is counted: not zero errors."""
    readings = read("slow", {"ecc_mode.3": 0})
    counts = {
        key: reading.status for key, reading in readings.items() if key[0].endswith("_errors") and "ecc" in key[0]
    }
    assert set(counts.values()) == {UNSUPPORTED}
    assert {part for _, part in counts} == {DRAM}


@pytest.mark.parametrize("known", [True, False])
def test_blocks_are_asked_although_the_board_does_not_say_now_which_of_them_count(
    fake_amdsmi: FakeAmdSmi, known: bool
) -> None:
    """A mask that cannot be had this time hides no errors: those known before are asked, or else all."""
    with reader_of(fake_amdsmi) as reader:
        if known:
            reader.ready()
            reader.readings(SLOT, "slow")
        fake_amdsmi.fail("amdsmi_get_gpu_ecc_enabled", AmdSmiStatus.BUSY, gpu=SLOT)
        fake_amdsmi.set(f"ecc_uncorrected_volatile_gfx.{SLOT}", 1)
        reader.enumerate_again() if known else reader.ready()
        readings = reader.readings(SLOT, "slow")
    assert readings["ecc_uncorrected_errors", GFX].value == 1
    assert readings["ecc_uncorrected_errors", XGMI].value == 0
    asked = {part for quantity, part in readings if quantity == "ecc_uncorrected_errors"}
    assert (len(asked) == 6) is known


def test_a_board_without_links_says_so(fake_amdsmi: FakeAmdSmi) -> None:
    """No link is up and none is down: the device has none."""
    fake_amdsmi.set("links", 0)
    with reader_of(fake_amdsmi) as reader:
        assert reader.ready().devices[SLOT].links == ()
        readings = reader.readings(SLOT, "fast")
    assert [part for quantity, part in readings if quantity == "link_active"] == [link(None)]
    assert readings["link_active", link(None)].status is UNSUPPORTED


# ---- Throttling ---------------------------------------------------------------------------------------------------


def test_time_held_down_is_its_share_of_the_ticks(fake_amdsmi: FakeAmdSmi) -> None:
    """Two looks ten seconds apart: two seconds of heat are two, at whatever pace the ticks go."""
    with reader_of(fake_amdsmi.advance(100)) as reader:
        reader.ready()
        first = reader.readings(SLOT, "fast")
        fake_amdsmi.advance(10).set(f"violation_thermal_nanoseconds.{SLOT}", 2_000_000_000)
        second = reader.readings(SLOT, "fast")
    assert {first["throttle_seconds", reason(name)].value for name in RESIDENCIES} == {0.0}
    assert second["throttle_seconds", reason("socket_thermal")].value == pytest.approx(2.0)
    assert second["throttle_seconds", reason("processor_hot")].value == 0.0


def metrics(ticks: int | str, hot: int | str = 0) -> dict[str, int | str]:
    """Return the answer of a board at *ticks* that was hot for *hot* of them."""
    return {"accumulation_counter": ticks, **dict.fromkeys(RESIDENCIES.values(), 0), "prochot_residency_acc": hot}


def test_throttle_clock_goes_on_over_ticks_that_stand_still_and_begins_anew_after_a_reset() -> None:
    """Nothing is lost while the firmware has no news, and a reset gives no time back."""
    now = iter(range(0, 1000, 10))
    clock = ThrottleClock(lambda: next(now))
    take = clock.of("processor_hot")
    told = [
        take(answer) for answer in (metrics(1000), metrics(1000), metrics(2000, 500), metrics(10, 5), metrics(20, 10))
    ]
    assert told == [0.0, 0.0, 5.0, 5.0, 10.0]


def test_a_board_without_accumulators_has_no_throttle_time() -> None:
    """Boards before MI300 count nothing: unsupported, not zero."""
    take = ThrottleClock(lambda: 0.0).of("processor_hot")
    assert [take(metrics("N/A")), take(metrics(5, "N/A"))] == [None, None]


# ---- What is never called ----------------------------------------------------------------------------------------


def test_nothing_is_called_that_clears_sleeps_or_sets(fake_amdsmi: FakeAmdSmi) -> None:
    """To watch changes nothing: no status that reading clears, no call that sleeps, none that writes."""
    with reader_of(fake_amdsmi, logged=True) as reader:
        reader.ready()
        for group in ("fast", "slow", "fast"):
            reader.round(group)
        assert reader.stop() == 0
    called = {line.split()[0] for line in fake_amdsmi.calls()}
    assert called >= {"amdsmi_init", "amdsmi_get_temp_metric", "amdsmi_shut_down"}
    never = ("xgmi_error", "reserved_pages", "violation_status", "_set_", "_reset_", "_clean_", "_create_")
    assert [name for name in called if any(word in name for word in never)] == []


def test_a_sleeping_board_is_left_asleep(fake_amdsmi: FakeAmdSmi) -> None:
    """The kernel suspended it: nothing is asked of it, and nothing is made up."""
    status = {f"sys/bus/pci/devices/{pci(SLOT)}/power/runtime_status": "suspended\n"}
    root = tree(fake_amdsmi, **status)
    with ReaderProcess(fake_amdsmi.logged_environment, "amd", root=str(root)) as reader:
        reader.ready()
        before = len(fake_amdsmi.calls())
        samples = [reader.sample(SLOT, group) for group in ("fast", "slow")]
        asked = {line for line in fake_amdsmi.calls()[before:] if line.endswith(f" {SLOT}")}
    assert {line.split()[0] for line in asked} <= {"amdsmi_get_gpu_device_bdf", "amdsmi_get_gpu_device_uuid"}
    for sample in samples:
        assert sample.failure is None
        assert {reading.status for reading in sample.readings} <= {UNAVAILABLE, UNSUPPORTED}
        assert any("suspended" in reading.detail for reading in sample.readings)


def test_a_board_that_falls_asleep_is_not_even_asked_who_it_is(fake_amdsmi: FakeAmdSmi) -> None:
    """Its name was learned while it was awake; to ask for it again with every list would wake it each time."""
    root = tree(fake_amdsmi)
    with ReaderProcess(fake_amdsmi.logged_environment, "amd", root=str(root)) as reader:
        reader.ready()
        status = root / f"sys/bus/pci/devices/{pci(SLOT)}/power/runtime_status"
        status.parent.mkdir()
        status.write_text("suspended\n")
        before = len(fake_amdsmi.calls())
        assert uuid(SLOT) in {device.id for device in reader.enumerate_again()}
        asked = {line.split()[0] for line in fake_amdsmi.calls()[before:] if line.endswith(f" {SLOT}")}
    assert asked <= {"amdsmi_get_gpu_device_bdf"}


# ---- Devices ------------------------------------------------------------------------------------------------------


def test_a_device_is_known_by_what_does_not_change(shared_reader: ReaderProcess) -> None:
    """Identity, and what a scheduler and ROCm call the device."""
    device = shared_reader.devices[SLOT]
    assert (device.id, device.uuid, device.serial) == (uuid(SLOT), "GPU-000000005eed0103", "692400000103")
    assert (device.pci, device.pci_device_id, device.minor) == (pci(SLOT), "1002:74a1", 131)
    assert (device.vendor, device.model, device.architecture) == ("amd", "AMD Instinct MI300X", "gfx942")
    assert (device.compute_units, device.maximum_clock_hertz) == (304, 2_100_000_000)
    assert (device.memory_bytes, device.numa_node, device.driver) == (206141652992, 0, "6.14.14")
    assert device.links[0] == Link(0, pci(0), "xGMI")
    assert [link.peer for link in device.links] == [*(pci(slot) for slot in range(8) if slot != SLOT), None]
    assert "vbios" in {firmware.component for firmware in device.firmware}


def test_the_links_of_a_board_are_read_again_when_other_boards_came(fake_amdsmi: FakeAmdSmi) -> None:
    """A driver that is taking its boards lists three, which have links to one another, and then all eight."""
    fake_amdsmi.update({f"present.{slot}": 0 for slot in range(3, 8)})
    with reader_of(fake_amdsmi) as reader:
        assert [len(device.links) for device in reader.ready().devices] == [3, 3, 3]
        fake_amdsmi.clear()
        assert [len(device.links) for device in reader.enumerate_again()] == [8] * 8


def test_an_identity_that_could_not_be_had_at_first_is_asked_for_again(fake_amdsmi: FakeAmdSmi) -> None:
    """A board that was busy is not for ever one without name and links: what it must be able to report follows."""
    for symbol in ("amdsmi_get_gpu_asic_info", "amdsmi_get_gpu_board_info", "amdsmi_get_gpu_xgmi_link_status"):
        fake_amdsmi.fail(symbol, AmdSmiStatus.BUSY, gpu=SLOT)
    with reader_of(fake_amdsmi, logged=True) as reader:
        assert reader.ready().devices[SLOT].model == "unknown"
        fake_amdsmi.clear()
        device = reader.enumerate_again()[SLOT]
        assert (device.model, len(device.links), device.serial) == ("AMD Instinct MI300X", 8, "692400000103")
        before = len(fake_amdsmi.calls())
        reader.enumerate_again()
        assert not [line for line in fake_amdsmi.calls()[before:] if "asic_info" in line]


@pytest.mark.parametrize(
    ("mode", "model", "virtual"),
    [
        (3, "AMD Instinct MI210", True),
        (None, "AMD Instinct MI300X VF", True),
        *((mode, "AMD Instinct MI300X", False) for mode in (None, 0, 1, 2, 4)),
    ],
)
def test_share_of_a_board_is_known_by_its_mode_or_its_name(mode: int | None, model: str, virtual: bool) -> None:
    """Host, bare metal and passthrough are whole boards; releases before 6.4 have no such function."""
    module = SimpleNamespace(AmdSmiLibraryException=OSError)
    if mode is not None:
        module.amdsmi_get_gpu_virtualization_mode = lambda _handle: {"mode": mode}
    progress: Any = SimpleNamespace(call=lambda _text: None, returned=lambda: None)
    assert is_virtual(Library(module, progress), Target(None, "a board"), model) is virtual


class RefusedError(Exception):
    """What the wrapper raises, with anything for its code."""

    def __init__(self, code: object) -> None:
        """Carry *code*."""
        self._code = code

    def get_error_code(self) -> object:
        """Return it."""
        return self._code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RefusedError(30), 30),
        (RefusedError(None), UNREADABLE),
        (RefusedError("BUSY"), UNREADABLE),
        (OSError(5, "Input/output error"), UNREADABLE),
        (asyncio.CancelledError(), UNREADABLE),
        (AttributeError("'NoneType' object has no attribute 'value'"), UNREADABLE),
        (AttributeError("libamd_smi.so: undefined symbol: amdsmi_get_x"), NO_FUNCTION),
        (AttributeError("module 'amdsmi_wrapper' has no attribute 'amdsmi_get_x'"), NO_FUNCTION),
    ],
    ids=["busy", "none", "word", "file", "cancelled", "bug", "symbol", "function"],
)
def test_whatever_the_wrapper_raises_costs_that_answer_alone(error: BaseException, code: int) -> None:
    """Before, a file or an odd code left the board unread, and a bug of the wrapper was what the board lacks."""

    def raises(_handle: object) -> None:
        raise error

    module = SimpleNamespace(AmdSmiLibraryException=RefusedError, amdsmi_get_x=raises)
    progress: Any = SimpleNamespace(call=lambda _text: None, returned=lambda: None)
    assert Library(module, progress).on(Target(None, "a board"), "amdsmi_get_x") == (code, None)


def test_a_board_that_does_not_tell_its_name_this_time_keeps_it(fake_amdsmi: FakeAmdSmi) -> None:
    """The same place answers: another name for it would make the board missing."""
    with reader_of(fake_amdsmi) as reader:
        before = reader.ready().devices
        fake_amdsmi.fail("amdsmi_get_gpu_device_uuid", AmdSmiStatus.BUSY, gpu=SLOT)
        assert reader.enumerate_again() == before


def test_a_release_without_render_nodes_is_helped_by_the_kernel(fake_amdsmi: FakeAmdSmi) -> None:
    """Before ROCm 6.4 AMD SMI does not tell them; schedulers go by them."""
    fake_amdsmi.fail("amdsmi_get_gpu_enumeration_info", AmdSmiStatus.NOT_SUPPORTED)
    nodes = {f"sys/bus/pci/devices/{pci(SLOT)}/drm/{name}/dev": "226:0\n" for name in ("card4", "renderD131")}
    with ReaderProcess(fake_amdsmi.environment, "amd", root=str(tree(fake_amdsmi, **nodes))) as reader:
        device = reader.ready().devices[SLOT]
    assert (device.minor, device.uuid) == (131, "GPU-000000005eed0103")


def test_a_partition_is_a_part_of_its_board(fake_amdsmi: FakeAmdSmi) -> None:
    """Several handles at one place: the first is the board, the others have only their own load and memory."""
    fake_amdsmi.update({"count": 2, "pci_bus.1": 0x0C, "partition_id.1": 1, "compute_partition": "CPX"})
    with reader_of(fake_amdsmi) as reader:
        board, part = reader.ready().devices
        own = reader.readings(1, "fast")
        slow = reader.sample(1, "slow")
    assert (board.id, part.id, part.parent) == (uuid(0), uuid(1), uuid(0))
    assert (part.minor, part.links) == (129, ())
    assert {quantity for quantity, _ in own} == {
        "utilization_ratio", "memory_total_bytes", "memory_used_bytes", "compute_processes", "compute_process_ids"
    }  # fmt: skip
    assert (slow.readings, slow.failure) == ((), None)


def test_partitions_with_one_uuid_are_told_apart(fake_amdsmi: FakeAmdSmi) -> None:
    """Some releases give all partitions of a board its UUID."""
    fake_amdsmi.update({"count": 2, "pci_bus.1": 0x0C, "uuid.1": uuid(0)})
    with reader_of(fake_amdsmi) as reader:
        assert [device.id for device in reader.ready().devices] == [uuid(0), f"{uuid(0)}/partition-1"]
        assert [device.id for device in reader.enumerate_again()] == [uuid(0), f"{uuid(0)}/partition-1"]


def test_a_lost_device_is_told_and_its_siblings_are_read(fake_amdsmi: FakeAmdSmi) -> None:
    """Every call on it fails: it is lost, is still listed under its name, and comes back when it answers."""
    with reader_of(fake_amdsmi) as reader:
        reader.ready()
        fake_amdsmi.fail_device(SLOT)
        samples = reader.round("fast")
        assert [slot for slot in range(8) if samples[uuid(slot)].failure is not None] == [SLOT]
        failure = samples[uuid(SLOT)].failure
        assert failure is not None
        assert (failure.kind, pci(SLOT) in failure.detail) == (FailureKind.LOST, True)
        assert uuid(SLOT) in {device.id for device in reader.enumerate_again()}
        assert reader.sample(SLOT, "fast").failure is not None
        fake_amdsmi.clear()
        reader.enumerate_again()
        assert reader.sample(SLOT, "fast").failure is None


def test_a_refusal_of_a_board_that_was_read_is_no_missing_permission(fake_amdsmi: FakeAmdSmi) -> None:
    """While amdgpu resets a board, it refuses each reading with EPERM; permissions do not change in one process."""
    with reader_of(fake_amdsmi) as reader:
        reader.ready()
        assert reader.round("fast")[uuid(SLOT)].failure is None
        fake_amdsmi.fail_device(SLOT, AmdSmiStatus.NO_PERM)
        resetting = reader.round("fast")[uuid(SLOT)].failure
    with reader_of(fake_amdsmi) as reader:
        reader.ready()
        refused = reader.round("fast")[pci(SLOT)].failure
    assert resetting is not None
    assert refused is not None
    assert (resetting.kind, refused.kind) == (FailureKind.ERROR, FailureKind.DENIED)
    assert "while it resets a board" in resetting.detail


def test_boards_that_came_or_went_are_found_by_a_library_that_starts_anew(fake_amdsmi: FakeAmdSmi) -> None:
    """The library lists what it found at its start: a board put back, or split, is seen by the next one only."""
    generation = "sys/class/kfd/kfd/topology/generation_id"
    root = tree(fake_amdsmi, **{generation: "2\n"})
    with ReaderProcess(fake_amdsmi.environment, "amd", root=str(root)) as reader:
        reader.ready()
        (root / generation).write_text("3\n")
        reader.request("slow")
        for _ in range(8):
            reader.expect(Sampled)
        failure = reader.failed()
    assert failure.kind is FailureKind.ERROR
    assert "the devices of the AMD driver changed" in failure.detail


@pytest.mark.parametrize("gone", ["unlisted", "all ones"])
def test_a_board_that_left_the_bus_is_lost_whatever_the_library_says(fake_amdsmi: FakeAmdSmi, gone: str) -> None:
    """The library lists what it found when it started; the kernel knows what is there now."""
    root = tree(fake_amdsmi)
    folder = root / f"sys/bus/pci/devices/{pci(SLOT)}"
    with ReaderProcess(fake_amdsmi.environment, "amd", root=str(root)) as reader:
        reader.ready()
        if gone == "unlisted":
            folder.rename(root / "gone")
        else:
            (folder / "config").write_bytes(b"\xff" * 64)
            fake_amdsmi.fail("amdsmi_get_energy_count", AmdSmiStatus.IO, gpu=SLOT)
        failure = reader.sample(SLOT, "fast").failure
    assert failure is not None
    assert failure.kind is FailureKind.LOST
    assert ("no longer lists" if gone == "unlisted" else "all ones") in failure.detail


def test_a_device_that_never_answered_is_named_by_the_bus(fake_amdsmi: FakeAmdSmi) -> None:
    """It is counted, and the kernel shows which board the others are not."""
    with reader_of(fake_amdsmi.fail_device(SLOT)) as reader:
        devices = reader.ready().devices
        silent = next(device for device in devices if device.id == pci(SLOT))
        assert (len(devices), silent.vendor, silent.pci) == (8, "amd", pci(SLOT))


@pytest.mark.parametrize("name", [uuid(SLOT), pci(SLOT)])
def test_a_device_in_quarantine_is_not_touched(fake_amdsmi: FakeAmdSmi, name: str) -> None:
    """It brought its reader down: all that is asked of it is who it is."""
    with reader_of(fake_amdsmi, skip=(name,), logged=True) as reader:
        assert uuid(SLOT) not in {device.id for device in reader.ready().devices}
        assert len(reader.round("fast")) == 7
    asked = {line.split()[0] for line in fake_amdsmi.calls() if line.endswith(f" {SLOT}")}
    assert asked <= {"amdsmi_get_gpu_device_bdf", "amdsmi_get_gpu_device_uuid"}


def test_a_call_that_hangs_is_named(fake_amdsmi: FakeAmdSmi) -> None:
    """Whoever looks sees which call on which board never came back."""
    with reader_of(fake_amdsmi) as reader:
        reader.ready()
        fake_amdsmi.hang("amdsmi_get_energy_count", gpu=SLOT)
        reader.request("fast")
        reader.wait_until(lambda: "amdsmi_get_energy_count" in reader.progress.read())
        assert pci(SLOT) in reader.progress.read()


def test_a_library_that_hangs_at_its_start_is_named(fake_amdsmi: FakeAmdSmi) -> None:
    """To enumerate can block for ever: the line of progress says so before anything else is known."""
    with reader_of(fake_amdsmi.hang("amdsmi_init")) as reader:
        reader.wait_until(lambda: reader.progress.read() == "amdsmi_init")


@pytest.mark.parametrize("during", ["amdsmi_get_socket_handles", "amdsmi_get_gpu_device_bdf"])
@pytest.mark.parametrize("code", [AmdSmiStatus.DRIVER_NOT_LOADED, AmdSmiStatus.NOT_INIT])
def test_a_driver_that_goes_away_ends_the_reader(fake_amdsmi: FakeAmdSmi, during: str, code: AmdSmiStatus) -> None:
    """What no device can be blamed for is a failure of the backend."""
    with reader_of(fake_amdsmi) as reader:
        reader.ready()
        fake_amdsmi.fail(during, code)
        reader.request("slow")
        for _ in range(8):
            reader.expect(Sampled)
        failure = reader.failed()
    is_gone = code is AmdSmiStatus.DRIVER_NOT_LOADED  # the other one only tells of this process
    assert (failure.kind, failure.of_driver) == (FailureKind.NO_DRIVER if is_gone else FailureKind.READER, is_gone)


# ---- What is missing altogether -----------------------------------------------------------------------------------


def refusal(machine: FakeAmdSmi, environment: dict[str, str] | None = None, root: Path | None = None) -> Failure:
    """Return why the backend could not be opened; the child must be gone after it has said so."""
    with ReaderProcess(environment or machine.environment, "amd", root=str(root or tree(machine))) as reader:
        failure = reader.failed()
        assert reader.process.wait(20) == 0
    return failure


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (AmdSmiStatus.DRIVER_NOT_LOADED, FailureKind.NO_DRIVER, "modprobe amdgpu"),
        (AmdSmiStatus.NO_PERM, FailureKind.DENIED, "no permission"),
        (AmdSmiStatus.INIT_ERROR, FailureKind.ERROR, "AMD SMI code 18"),
    ],
)
def test_a_refusal_of_the_library_says_what_to_do(
    fake_amdsmi: FakeAmdSmi, code: AmdSmiStatus, kind: FailureKind, words: str
) -> None:
    """Each way of amdsmi_init to fail has its own kind."""
    failure = refusal(fake_amdsmi.fail("amdsmi_init", code))
    assert (failure.kind, words in failure.detail) == (kind, True), failure.detail


def test_no_device_is_a_failure(fake_amdsmi: FakeAmdSmi) -> None:
    """A driver without devices is never a healthy machine with nothing to check."""
    assert refusal(fake_amdsmi.set("count", 0)).kind is FailureKind.NO_DEVICES


def test_a_missing_library_is_told_by_what_the_wrapper_printed(fake_amdsmi: FakeAmdSmi, tmp_path: Path) -> None:
    """The wrapper prints to standard output and fails with KeyError: neither breaks the protocol."""
    environment = {**fake_amdsmi.environment, "ROCM_HOME": str(tmp_path), "ROCM_PATH": str(tmp_path)}
    failure = refusal(fake_amdsmi, environment)
    assert failure.kind is FailureKind.NO_LIBRARY
    assert "libamd_smi.so cannot be loaded" in failure.detail
    assert "cannot open shared object file" in failure.detail


def test_a_library_of_another_release_is_told_with_both_versions(tmp_path: Path) -> None:
    """All symbols are bound at once: the first that is missing ends the import, and is named."""
    library = build_fake_amdsmi(tmp_path / "rocm", missing=["amdsmi_get_gpu_bad_page_threshold"])
    (tmp_path / "rocm/.info").mkdir()
    (tmp_path / "rocm/.info/version").write_text("6.3.1-48\n")
    machine = FakeAmdSmi(tmp_path / "scenario", library)
    failure = refusal(machine)
    assert failure.kind is FailureKind.VERSION_MISMATCH
    assert not failure.of_driver
    for words in ("amdsmi_get_gpu_bad_page_threshold", "7.0.2", "6.3.1-48", str(tmp_path / "rocm/share/amd_smi")):
        assert words in failure.detail, failure.detail


def shipped(machine: FakeAmdSmi, tmp_path: Path, source: str) -> dict[str, str]:
    """Return the environment of a ROCm that ships a wrapper with *source*."""
    write_tree(tmp_path / "rocm", {"share/amd_smi/amdsmi/__init__.py": source})
    return {**machine.environment, "ROCM_HOME": str(tmp_path / "rocm")}


def test_the_wrapper_that_rocm_ships_comes_first(fake_amdsmi: FakeAmdSmi, tmp_path: Path) -> None:
    """It is of the library's own release; one that cannot be imported is a missing wrapper."""
    failure = refusal(fake_amdsmi, shipped(fake_amdsmi, tmp_path, "raise ImportError('of ROCm itself')\n"))
    assert failure.kind is FailureKind.NO_LIBRARY
    assert "of ROCm itself" in failure.detail
    assert str(tmp_path / "rocm/share/amd_smi") in failure.detail


ODD_WRAPPER = """
import importlib.util, os, sys
path = os.environ["NODEVET_TEST_WRAPPER"]
spec = importlib.util.spec_from_file_location("amdsmi", path, submodule_search_locations=[os.path.dirname(path)])
real = sys.modules["amdsmi"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(real)
told = real.amdsmi_get_link_metrics
def amdsmi_get_link_metrics(handle):
    return {"links": [{"link": 0}]} if str(real.amdsmi_get_gpu_device_bdf(handle)) == "0000:3c:00.0" else told(handle)
real.amdsmi_get_link_metrics = amdsmi_get_link_metrics
"""


def test_a_board_whose_identity_cannot_be_understood_costs_no_other(fake_amdsmi: FakeAmdSmi, tmp_path: Path) -> None:
    """A release that answers in another shape: the board is listed and unread, its siblings are measured."""
    spec = importlib.util.find_spec("amdsmi")
    assert spec is not None and spec.origin is not None
    environment = shipped(fake_amdsmi, tmp_path, ODD_WRAPPER) | {"NODEVET_TEST_WRAPPER": spec.origin}
    with ReaderProcess(environment, "amd", root=str(tree(fake_amdsmi))) as reader:
        assert len(reader.ready().devices) == 8
        samples = reader.round("fast")
    failures = {name: sample.failure for name, sample in samples.items() if sample.failure is not None}
    assert set(failures) == {pci(SLOT)}
    assert "identity cannot be understood: KeyError" in failures[pci(SLOT)].detail


LATE_WRAPPER = """
print("looking for the library")
class AmdSmiLibraryException(Exception): pass
class AmdSmiInitFlags: INIT_AMD_GPUS = 2
def amdsmi_init(flag): raise {error}
"""


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ("OSError('libamd_smi.so.26: cannot open')", FailureKind.NO_LIBRARY, "libamd_smi.so.26: cannot open"),
        ("AttributeError('undefined symbol: amdsmi_init')", FailureKind.ERROR, "no such function"),
    ],
)
def test_a_wrapper_that_looks_for_its_library_late_is_told_alike(
    fake_amdsmi: FakeAmdSmi, tmp_path: Path, error: str, kind: FailureKind, words: str
) -> None:
    """Since ROCm 7.1 the import succeeds without a library, and the first call fails."""
    failure = refusal(fake_amdsmi, shipped(fake_amdsmi, tmp_path, LATE_WRAPPER.format(error=error)))
    assert (failure.kind, words in failure.detail) == (kind, True), failure.detail


@pytest.mark.parametrize("others", [{}, pci_device("0000:10:00.0", "0x10de", "0x2330", "0x030200", driver="nvidia")])
def test_a_machine_without_amd_does_not_even_import_the_wrapper(
    fake_amdsmi: FakeAmdSmi, tmp_path: Path, others: dict[str, str]
) -> None:
    """No vendor's absence costs another anything: two looks into sysfs, and the child is gone."""
    environment = shipped(fake_amdsmi, tmp_path, f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    failure = refusal(fake_amdsmi, environment, write_tree(tmp_path / "root", {"sys/module/ext4/x": "", **others}))
    assert failure.kind is FailureKind.NO_DEVICES
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("missing", ["amdgpu", "board"])
def test_a_board_without_its_driver_and_a_driver_without_board_are_looked_into(
    fake_amdsmi: FakeAmdSmi, tmp_path: Path, missing: str
) -> None:
    """One of the two is enough to ask the library, which says more than sysfs."""
    files = fake_amdsmi.host_files()
    kept = {name: text for name, text in files.items() if ("module" in name) is (missing == "board")}
    fake_amdsmi.fail("amdsmi_init", AmdSmiStatus.DRIVER_NOT_LOADED)
    assert refusal(fake_amdsmi, root=write_tree(tmp_path / "root", kept)).kind is FailureKind.NO_DRIVER


LOADED = """
import importlib, json, sys
importlib.import_module(f"nodevet.checks.backends.{sys.argv[1]}")
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(("vendor", "other"), [("amd", "nv"), ("nvidia", "amd")])
def test_a_reader_loads_nothing_of_another_vendor(vendor: str, other: str) -> None:
    """Neither a wrapper nor our own tables: memory and time are paid for hardware that is there."""
    command = [sys.executable, "-I", "-c", LOADED, vendor]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    names = [name.removeprefix("nodevet.checks.backends.") for name in json.loads(shown.stdout)]
    assert vendor in names
    assert [name for name in names if name.startswith(other) or name in ("pynvml", "torch")] == []


# ---- Topology -----------------------------------------------------------------------------------------------------


def topology(machine: FakeAmdSmi, root: Path | None = None) -> dict[str, Any]:
    """Return the topology that the child writes."""
    command = [sys.executable, "-I", "-m", "nodevet.checks.backends.topology", "amd", str(root or tree(machine))]
    environment = {**os.environ, **machine.environment}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert shown.returncode == 0, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def test_every_board_is_linked_with_every_other(fake_amdsmi: FakeAmdSmi) -> None:
    """Eight boards, seven links each."""
    found = topology(fake_amdsmi)
    assert found["gpus"] == [f"GPU{slot}" for slot in range(8)]
    assert found["matrix"] == [["X" if row == column else "XGMI" for column in range(8)] for row in range(8)]
    assert found["numa_affinity"] == ["0"] * 4 + ["1"] * 4


def test_a_link_is_named_by_what_the_library_says_of_it(fake_amdsmi: FakeAmdSmi) -> None:
    """Type 1 is PCIe and 2 is xGMI in every release, whatever the wrapper's enumeration of that name says."""
    fake_amdsmi.update({"count": 3, "topology_hops.0.1": 2, "topology_link_type.0.2": 1, "topology_link_type.1.2": 9})
    assert topology(fake_amdsmi)["matrix"][0] == ["X", "XGMI2", "NODE"]
    assert topology(fake_amdsmi)["matrix"][1][2] is None


def test_boards_without_links_are_placed_by_the_kernel(fake_amdsmi: FakeAmdSmi, tmp_path: Path) -> None:
    """The path in sysfs names every bridge above a board, and adapters are placed in the same way."""
    files = {"sys/module/amdgpu/version": "6.14.14\n"}
    ports = {0: "pci0000:00/0000:00:01.0", 1: "pci0000:00/0000:00:02.0", 2: "pci0000:80/0000:80:01.0"}
    for slot, above in ports.items():
        place = f"sys/devices/{above}/{pci(slot)}"
        files |= {f"{place}/numa_node": f"{slot // 2}\n", f"{place}/local_cpulist": f"{slot}-{slot + 1}\n"}
        files[f"sys/bus/pci/devices/{pci(slot)}"] = f"{LINK}../../../../{place}"
    root = write_tree(tmp_path / "root", files)
    found = topology(fake_amdsmi.update({"count": 3, "links": 0}), root)
    assert found["matrix"] == [["X", "PHB", "SYS"], ["PHB", "X", "SYS"], ["SYS", "SYS", "X"]]
    assert found["cpu_affinity"] == ["0-1", "1-2", "2-3"]


def test_a_device_that_is_silent_is_missing_from_the_topology_by_name(fake_amdsmi: FakeAmdSmi) -> None:
    """The others keep their numbers."""
    found = topology(fake_amdsmi.fail_device(SLOT))
    assert found["gpus"] == [f"GPU{slot}" for slot in range(8) if slot != SLOT]
    (problem,) = found["problems"]
    assert problem.startswith(f"GPU{SLOT} is left out: ")


@pytest.mark.parametrize("words", [(), ("--vendor", "amd")])
def test_the_command_shows_whose_accelerators_are_here(fake_amdsmi: FakeAmdSmi, words: tuple[str, ...]) -> None:
    """Nobody needs to know the vendor; where none has any, each says why."""
    configuration = fake_amdsmi.path.with_suffix(".toml")
    configuration.write_text(f'[agent]\nroot = "{tree(fake_amdsmi)}"\n')
    command = [sys.executable, "-I", "-m", "nodevet.agent.cli", "topo", *words, "--config", str(configuration)]
    environment = {**os.environ, **fake_amdsmi.environment}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[1].split()[:3] == ["GPU0", "X", "XGMI"]
    fake_amdsmi.set("count", 0)
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert shown.returncode != 0
    assert "AMD SMI lists no device" in shown.stderr
