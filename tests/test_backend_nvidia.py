"""The NVIDIA backend in its real child process, over the real nvidia-ml-py, on machines with every kind of fault."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.host_tree import pci_device, write_tree
from fakes.nvml.build import build_fake_nvml, lacking, plain
from fakes.nvml.scenario import FakeNvml, NvmlReturn, pci, uuid
from fakes.reader import ReaderProcess
from fakes.shared_reader import SLOT, Read, machine, read

from nodevet.checks.backends.nvidia.items import fast_items, slow_items
from nodevet.checks.backends.nvidia.nvml import Call, Item, is_deleted_mount, why_not_loaded
from nodevet.checks.core.model import WHOLE, FailureKind, Link, Part, PartKind, ReadingStatus
from nodevet.checks.core.quantities import QUANTITIES
from nodevet.checks.core.wire import Sampled

CORE, MEMORY = Part(PartKind.SENSOR, "core"), Part(PartKind.SENSOR, "memory")
BOARD, MODULE = Part(PartKind.POWER_SCOPE, "device"), Part(PartKind.POWER_SCOPE, "module")
SM, MEMORY_CLOCK = Part(PartKind.CLOCK, "sm"), Part(PartKind.CLOCK, "memory")
DRAM, SRAM, CBU = (Part(PartKind.MEMORY_BLOCK, name) for name in ("dram", "sram", "cbu"))
PCIE = Part(PartKind.PCIE)
COMPUTE = Part(PartKind.ENGINE, "compute")

__all__ = ["machine", "read"]  # fixtures of these tests, imported above


def link(number: int | None) -> Part:
    """Return the part of one link."""
    return Part(PartKind.LINK, "", number)


def reason(name: str) -> Part:
    """Return the part of one reason to hold the clocks down."""
    return Part(PartKind.REASON, name)


@pytest.fixture(scope="module")
def shared_machine(tmp_path_factory: pytest.TempPathFactory, fake_nvml_library: Path) -> FakeNvml:
    """The machine of the reader that the tests of single values share."""
    return FakeNvml(tmp_path_factory.mktemp("machine") / "nvml.scenario", fake_nvml_library)


@pytest.fixture(scope="module")
def shared_reader(shared_machine: FakeNvml) -> Iterator[ReaderProcess]:
    """A reader that lives through all tests that only change what the devices answer."""
    with ReaderProcess(shared_machine.environment) as reader:
        reader.ready()
        yield reader
        assert reader.stop() == 0


# ---- Every value, by its injected cause ------------------------------------------------------------------------

FAST = [
    ({"temperature.3": 95}, "temperature_celsius", CORE, 95),
    ({"memory_temperature.3": 101}, "temperature_celsius", MEMORY, 101),
    ({"temperature_margin.3": -5}, "temperature_margin_celsius", CORE, -5),
    ({"power_milliwatts.3": 412500}, "power_watts", BOARD, 412.5),
    ({"module_power_milliwatts.3": 900000}, "power_watts", MODULE, 900.0),
    ({"power_limit_milliwatts.3": 500000}, "power_limit_watts", BOARD, 500.0),
    ({"energy_millijoules.3": 123456789}, "energy_joules", BOARD, 123456.789),
    ({"sm_clock_megahertz.3": 345}, "clock_hertz", SM, 345_000_000),
    ({"memory_clock_megahertz.3": 1593}, "clock_hertz", MEMORY_CLOCK, 1_593_000_000),
    ({"violation_power_nanoseconds.3": 5_000_000_000}, "throttle_seconds", reason("power_cap"), 5.0),
    ({"violation_thermal_nanoseconds.3": 250_000_000}, "throttle_seconds", reason("vendor:thermal"), 0.25),
    ({"violation_software_thermal_nanoseconds.3": 40_000}, "throttle_seconds", reason("software_thermal"), 4e-5),
    ({"violation_hardware_thermal_nanoseconds.3": 7_000_000}, "throttle_seconds", reason("hardware_thermal"), 0.007),
    ({"violation_power_brake_nanoseconds.3": 1_000_000_000}, "throttle_seconds", reason("power_brake"), 1.0),
    ({"ecc_corrected_volatile_dram.3": 17}, "ecc_corrected_errors", DRAM, 17),
    ({"ecc_uncorrected_volatile_dram.3": 2}, "ecc_uncorrected_errors", DRAM, 2),
    ({"ecc_corrected_volatile_sram.3": 4}, "ecc_corrected_errors", SRAM, 4),
    ({"ecc_uncorrected_volatile_sram.3": 1}, "ecc_uncorrected_errors", SRAM, 1),
    ({"ecc_locations": "0xff", "ecc_uncorrected_volatile_cbu.3": 3}, "ecc_uncorrected_errors", CBU, 3),
    ({"remap_pending.3": 1}, "row_remap_pending", WHOLE, True),
    ({"remap_failed.3": 1}, "row_remap_failed", WHOLE, True),
    ({"recovery_action.3": 1}, "recovery_action", WHOLE, "reset_device"),
    ({"recovery_action.3": 4}, "recovery_action", WHOLE, "drain_reset"),
    ({"recovery_action.3": 12}, "recovery_action", WHOLE, "unknown"),
    ({"mig_mode.3": 1}, "partitioned", WHOLE, True),
    ({"mig_mode.3": 0}, "partitioned", WHOLE, False),
    ({"link_state.3.5": 0}, "link_active", link(5), False),
    ({"link_state.3.5": 2}, "link_active", link(5), True),
    ({"utilization_percent.3": 98}, "utilization_ratio", COMPUTE, 0.98),
    ({"memory_used_bytes.3": 68719476736}, "memory_used_bytes", WHOLE, 68719476736),
    ({"memory_total_bytes.3": 150754820096}, "memory_total_bytes", WHOLE, 150754820096),
    ({"processes.3": "4711:1024 4712:0"}, "compute_processes", WHOLE, 2),
    ({"processes.3": "4712:0 4711:1024"}, "compute_process_ids", WHOLE, "4711,4712"),
]

SLOW = [
    ({"threshold_shutdown.3": 94}, "temperature_shutdown_celsius", CORE, 94),
    ({"threshold_slowdown.3": 90}, "temperature_slowdown_celsius", CORE, 90),
    ({"threshold_maximum.3": 83}, "temperature_maximum_celsius", CORE, 83),
    ({"threshold_memory_maximum.3": 99}, "temperature_maximum_celsius", MEMORY, 99),
    ({"margin_shutdown.3": -10}, "temperature_margin_shutdown_celsius", CORE, -10),
    ({"margin_slowdown.3": -3}, "temperature_margin_slowdown_celsius", CORE, -3),
    ({"margin_memory_maximum.3": -1}, "temperature_margin_maximum_celsius", MEMORY, -1),
    ({"margin_maximum.3": 5}, "temperature_margin_maximum_celsius", CORE, 5),
    ({"power_limit_default_milliwatts.3": 650000}, "power_limit_default_watts", BOARD, 650.0),
    ({"sm_clock_maximum_megahertz.3": 1755}, "clock_maximum_hertz", SM, 1_755_000_000),
    ({"memory_clock_maximum_megahertz.3": 3201}, "clock_maximum_hertz", MEMORY_CLOCK, 3_201_000_000),
    ({"ecc_uncorrected_aggregate_dram.3": 8}, "ecc_uncorrected_lifetime_errors", DRAM, 8),
    ({"ecc_uncorrected_aggregate_sram.3": 9}, "ecc_uncorrected_lifetime_errors", SRAM, 9),
    ({"sram_threshold_exceeded.3": 1}, "ecc_sram_threshold_exceeded", WHOLE, True),
    ({"remapped_correctable.3": 6}, "remapped_rows_correctable", WHOLE, 6),
    ({"remapped_uncorrectable.3": 7}, "remapped_rows_uncorrectable", WHOLE, 7),
    ({"banks_none.3": 1}, "row_remap_banks_without_spares", WHOLE, 1),
    ({"pcie_generation.3": 3}, "pcie_link_generation", PCIE, 3),
    ({"pcie_generation_maximum.3": 4}, "pcie_link_generation_maximum", PCIE, 4),
    ({"pcie_width.3": 8}, "pcie_link_width", PCIE, 8),
    ({"pcie_width_maximum.3": 8}, "pcie_link_width_maximum", PCIE, 8),
    ({"pcie_replays.3": 31}, "pcie_replays", PCIE, 31),
    ({"pcie_correctable_errors.3": 11}, "pcie_correctable_errors", PCIE, 11),
    ({"pcie_nonfatal_errors.3": 12}, "pcie_nonfatal_errors", PCIE, 12),
    ({"pcie_fatal_errors.3": 13}, "pcie_fatal_errors", PCIE, 13),
    ({"link_megabytes_per_second.3.4": 13281}, "link_bandwidth_bytes_per_second", link(4), 13_281_000_000),
    ({"link_state.3.4": 0}, "link_bandwidth_bytes_per_second", link(4), 0),
    ({"link_replay_errors.3.17": 21}, "link_replay_errors", link(17), 21),
    ({"link_recovery_errors.3.0": 22}, "link_recovery_errors", link(0), 22),
    ({"link_crc_errors.3.9": 23}, "link_crc_errors", link(9), 23),
    ({"ecc_mode.3": 0}, "ecc_enabled", WHOLE, False),
    ({"fabric_state.3": 2}, "fabric_state", WHOLE, "in_progress"),
    ({"fabric_state.3": 1}, "fabric_state", WHOLE, "not_started"),
    ({"fabric_status.3": 999}, "fabric_state", WHOLE, "failed"),
    ({"fabric_health_mask.3": 0x1A9}, "fabric_healthy", WHOLE, False),  # bandwidth degraded
    ({"fabric_health_mask.3": 0x1A9}, "fabric_faults", WHOLE, "bandwidth_degraded"),
    ({"fabric_health_mask.3": 0x69A}, "fabric_faults", WHOLE, "route_unhealthy,incompatible_firmware"),
    ({"fabric_health_mask.3": 0xA1AA}, "fabric_faults", WHOLE, "unassigned,manager_away"),
    ({"fabric_health_mask.3": 0x1AA}, "fabric_faults", WHOLE, ""),
    ({"power_limit_requested_milliwatts.3": 900000}, "power_limit_requested_watts", BOARD, 900.0),
    ({"power_limit_milliwatts.3": 500000}, "power_limit_requested_watts", BOARD, 500.0),
    ({"fabric_health_mask.3": 0x19A}, "fabric_healthy", WHOLE, False),  # route unhealthy
    ({"fabric_health_mask.3": 0x5AA}, "fabric_healthy", WHOLE, False),  # too few links configured
    ({"persistence_mode.3": 0}, "persistence_mode", WHOLE, False),
    ({"link_version": 7, "link_recovery_errors.3.2": 5}, "link_recovery_errors", link(2), 5),
    ({"link_version": 7, "link_effective_errors.3.2": 6}, "link_effective_errors", link(2), 6),
    ({"link_version": 7, "link_replay_errors.3.2": 7}, "link_replay_errors", link(2), 7),
]

ROWS = [("fast", *row) for row in FAST] + [("slow", *row) for row in SLOW]
ITEMS = {"fast": fast_items(18, "12.580.95", 0x1FF), "slow": slow_items(18)}
ALONE = {"throttle_active", "bad_pages_retired", "bad_pages_pending"}
"""Quantities of tests of their own."""

NVML_UNITS = {"ratio": 100, "watts": 1e3, "joules": 1e3, "hertz": 1e-6, "seconds": 1e9}
"""NVML's numbers per base unit: percent, milliwatts, millijoules, megahertz, nanoseconds; others are base units."""


def rows_of_plain_functions(items: Iterable[Item], functions: Collection[str]) -> Iterator[tuple[Any, ...]]:
    """Give a row like those above for each item that one of *functions* gives: the example of its quantity."""
    for item in items:
        source, entry = next(iter(item.sources), None), QUANTITIES[item.quantity]
        if isinstance(source, Call) and source.symbol in functions and not isinstance(entry.example, str):
            number = round(entry.example * NVML_UNITS.get(entry.unit, 1))
            yield {f"{source.symbol}.3": number}, item.quantity, item.part, entry.example


@pytest.mark.parametrize(("group", "values", "quantity", "part", "expected"), ROWS)
def test_an_injected_value_is_read_in_base_units(
    read: Read, group: str, values: dict[str, float | str], quantity: str, part: Part, expected: Any
) -> None:
    """What the driver says arrives under its quantity and part, in the quantity's unit."""
    reading = read(group, values)[quantity, part]
    assert reading.status is ReadingStatus.OK, reading.detail
    assert reading.value == pytest.approx(expected)


@pytest.mark.parametrize("group", ["fast", "slow"])
def test_a_plain_number_is_read_in_base_units(read: Read, group: str) -> None:
    """A function that gives one number needs no row: the unit of its quantity says which number gives the example."""
    for values, quantity, part, expected in rows_of_plain_functions(ITEMS[group], plain()):
        reading = read(group, values)[quantity, part]
        assert reading.status is ReadingStatus.OK, reading.detail
        assert reading.value == pytest.approx(expected)


def test_row_of_a_plain_number_follows_from_its_item() -> None:
    """Of the example 0.97 as a percentage; functions that are not plain have none."""
    items = [Item("utilization_ratio", COMPUTE, (Call(name),)) for name in ("nvmlDeviceGetFanSpeed", "nvmlOther")]
    row = ({"nvmlDeviceGetFanSpeed.3": 97}, "utilization_ratio", COMPUTE, 0.97)
    assert list(rows_of_plain_functions(items, {"nvmlDeviceGetFanSpeed"})) == [row]


def test_every_quantity_is_injected() -> None:
    """Whichever is read has a row, a plain function, or a test of its own."""
    injected = {row[2] for row in ROWS} | ALONE
    injected |= {row[1] for items in ITEMS.values() for row in rows_of_plain_functions(items, plain())}
    assert {item.quantity for items in ITEMS.values() for item in items} == injected


@pytest.mark.parametrize("group", ["fast", "slow"])
def test_a_healthy_machine_reads_well(read: Read, group: str) -> None:
    """All is measured but what the board lacks: two reasons, and what only functions outside the fake's source give."""
    readings = read(group, {})
    bad = {key: reading.status for key, reading in readings.items() if reading.status is not ReadingStatus.OK}
    functions = lacking()
    lacks = {
        (item.quantity, item.part)
        for item in ITEMS[group]
        if not item.optional and all(isinstance(source, Call) and source.symbol in functions for source in item.sources)
    }
    unknown = {("throttle_active", reason(name)) for name in ("board_limit", "reliability") if group == "fast"}
    assert bad == dict.fromkeys(lacks | unknown, ReadingStatus.UNSUPPORTED)
    assert {quantity for quantity, _ in readings} <= set(QUANTITIES)
    assert all(QUANTITIES[quantity].part is part.kind for quantity, part in readings)


REASONS = {
    0x001: "idle", 0x002: "applications_clocks", 0x004: "power_cap", 0x008: "hardware_slowdown", 0x010: "sync_boost",
    0x020: "software_thermal", 0x040: "hardware_thermal", 0x080: "power_brake", 0x100: "display_clocks",
    0x200: "board_limit", 0x400: "reliability", 0x800: "vendor:unknown",
}  # fmt: skip


@pytest.mark.parametrize("mask", [0, *REASONS, 0x048, 0x0C8, 0x024, 0x164, 0x1FF, 0xFFF, 0x8000000000000001])
def test_every_bit_of_the_reasons_is_told_apart(read: Read, mask: int) -> None:
    """Each reason is active exactly when its bit is set, whatever else is; a bit nobody knows is still told."""
    readings = read("fast", {"event_reasons.3": hex(mask), "event_reasons_supported": "0xfff"})
    active = {part.name for (key, part), reading in readings.items() if key == "throttle_active" and reading.value}
    expected = {name for bit, name in REASONS.items() if mask & bit}
    assert active == expected | ({"vendor:unknown"} if mask > 0xFFF else set())


def test_a_reason_the_device_does_not_know_is_unsupported_until_it_is_seen(read: Read) -> None:
    """Where the device denies to know a reason, its clear bit says nothing, but its set bit does."""
    quiet = read("fast", {"event_reasons_supported": "0x1ff"})
    assert quiet["throttle_active", reason("board_limit")].status is ReadingStatus.UNSUPPORTED
    seen = read("fast", {"event_reasons_supported": "0x1ff", "event_reasons.3": "0x200"})
    assert seen["throttle_active", reason("board_limit")].value is True


# ---- How a single value fails ----------------------------------------------------------------------------------

STATUSES = [
    (NvmlReturn.NOT_SUPPORTED, ReadingStatus.UNSUPPORTED),
    (NvmlReturn.FUNCTION_NOT_FOUND, ReadingStatus.UNSUPPORTED),
    (NvmlReturn.ARGUMENT_VERSION_MISMATCH, ReadingStatus.UNSUPPORTED),
    (NvmlReturn.NO_PERMISSION, ReadingStatus.DENIED),
    (NvmlReturn.NO_DATA, ReadingStatus.UNAVAILABLE),
    (NvmlReturn.NOT_READY, ReadingStatus.UNAVAILABLE),
    (NvmlReturn.UNKNOWN, ReadingStatus.ERROR),
]

WITHOUT_ALTERNATIVE = [
    ("fast", "nvmlDeviceGetMarginTemperature", "temperature_margin_celsius", CORE),
    ("fast", "field.82", "temperature_celsius", MEMORY),
    ("fast", "field.230", "recovery_action", WHOLE),
    ("fast", "nvmlDeviceGetEnforcedPowerLimit", "power_limit_watts", BOARD),
    ("slow", "nvmlDeviceGetTemperatureThreshold", "temperature_slowdown_celsius", CORE),
    ("slow", "nvmlDeviceGetSramEccErrorStatus", "ecc_sram_threshold_exceeded", WHOLE),
    ("slow", "nvmlDeviceGetGpuFabricInfoV", "fabric_state", WHOLE),
    ("slow", "nvmlDeviceGetRowRemapperHistogram", "row_remap_banks_without_spares", WHOLE),
    ("slow", "field.180", "pcie_fatal_errors", PCIE),
]


@pytest.mark.parametrize(("code", "status"), STATUSES)
@pytest.mark.parametrize(("group", "what", "quantity", "part"), WITHOUT_ALTERNATIVE)
def test_a_value_that_cannot_be_read_says_why(
    machine: FakeNvml, read: Read, group: str, what: str, quantity: str, part: Part,
    code: NvmlReturn, status: ReadingStatus,
) -> None:  # fmt: skip
    """A code of NVML becomes the status of that one reading and leaves all others measured."""
    machine.fail(what, code, gpu=SLOT)
    readings = read(group, {})
    assert (readings[quantity, part].status, readings[quantity, part].value) == (status, None)
    assert readings[quantity, part].detail
    assert sum(reading.status is ReadingStatus.OK for reading in readings.values()) > 30


def test_a_value_that_failed_once_is_asked_for_again(
    machine: FakeNvml, shared_reader: ReaderProcess, read: Read
) -> None:
    """Denied, unavailable and error are of the moment: the next round measures again without a new enumeration."""
    machine.fail("nvmlDeviceGetEnforcedPowerLimit", NvmlReturn.UNKNOWN).fail("field.82", NvmlReturn.NO_DATA)
    read("fast", {})
    machine.clear()
    readings = shared_reader.readings(SLOT, "fast")
    assert readings["power_limit_watts", BOARD].value == 700.0
    assert readings["temperature_celsius", MEMORY].value == 48


ALTERNATIVES = [
    ("fast", ["nvmlDeviceGetTemperatureV"], "temperature_celsius", CORE, 40),
    ("fast", ["field.185"], "power_watts", BOARD, 120.0),
    ("fast", ["field.83"], "energy_joules", BOARD, 7_200_000.0),
    ("fast", ["field.74"], "throttle_seconds", reason("power_cap"), 0.0),
    ("fast", ["field.11"], "ecc_corrected_errors", DRAM, 0),
    ("fast", ["field.144"], "row_remap_pending", WHOLE, False),
    ("fast", ["field.145"], "row_remap_failed", WHOLE, False),
    ("fast", ["field.165"], "link_active", link(17), True),
    ("fast", ["field.91"], "link_active", link(17), True),
    ("fast", ["nvmlDeviceGetCurrentClocksEventReasons"], "throttle_active", reason("power_cap"), False),
    ("fast", ["nvmlDeviceGetComputeRunningProcesses_v3"], "compute_processes", WHOLE, 0),
    ("fast", ["nvmlDeviceGetMemoryInfo_v2"], "memory_used_bytes", WHOLE, (4 << 20) + (577 << 20)),
    ("slow", ["field.161"], "link_replay_errors", link(3), 0),
    ("slow", ["field.162"], "link_recovery_errors", link(3), 0),
    ("slow", ["field.163"], "link_crc_errors", link(3), 0),
    ("slow", ["field.164"], "link_bandwidth_bytes_per_second", link(3), 26_562_000_000),
    ("slow", ["field.94"], "pcie_replays", PCIE, 0),
    ("slow", ["field.142"], "remapped_rows_correctable", WHOLE, 0),
    ("slow", ["field.1"], "ecc_enabled", WHOLE, True),
    ("slow", ["field.189"], "power_limit_default_watts", BOARD, 700.0),
]


@pytest.mark.parametrize("code", [NvmlReturn.NOT_SUPPORTED, NvmlReturn.INVALID_ARGUMENT])
@pytest.mark.parametrize(("group", "lacking", "quantity", "part", "expected"), ALTERNATIVES)
def test_an_older_way_is_taken_where_the_newer_is_lacking(
    machine: FakeNvml, read: Read, group: str, lacking: list[str], quantity: str, part: Part,
    expected: Any, code: NvmlReturn,
) -> None:  # fmt: skip
    """A driver without the newer field or function is still measured by the older one."""
    for what in lacking:
        machine.fail(what, code)
    reading = read(group, {})[quantity, part]
    assert (reading.status, reading.value) == (ReadingStatus.OK, expected), reading.detail


@pytest.mark.parametrize("broken", ["pending", "failed"])
def test_repairs_are_told_apart_without_their_fields(machine: FakeNvml, read: Read, broken: str) -> None:
    """The older function tells four numbers at once; a pending repair is not a failed one."""
    for field in (142, 143, 144, 145):
        machine.fail(f"field.{field}", NvmlReturn.NOT_SUPPORTED)
    fast = read("fast", {f"remap_{broken}.3": 1, "remapped_correctable.3": 4, "remapped_uncorrectable.3": 5})
    told = {name: fast[f"row_remap_{name}", WHOLE].value for name in ("pending", "failed")}
    assert told == {"pending": broken == "pending", "failed": broken == "failed"}
    slow = read("slow", {})
    assert slow["remapped_rows_correctable", WHOLE].value == 4
    assert slow["remapped_rows_uncorrectable", WHOLE].value == 5


def test_the_placeholder_of_a_missing_number_is_no_value(read: Read) -> None:
    """All bits set is NVML's way to say that it does not know; it is never exported as a number."""
    readings = read("slow", {"pcie_replays.3": 0xFFFFFFFF, "link_replay_errors.3.1": -1})
    for key in (("pcie_replays", PCIE), ("link_replay_errors", link(1))):
        assert (readings[key].status, readings[key].value) == (ReadingStatus.UNAVAILABLE, None)


def test_a_number_that_cannot_be_is_an_error(read: Read) -> None:
    """An implausible temperature and an action beyond any enumeration are not measurements."""
    readings = read("fast", {"temperature.3": 400, "recovery_action.3": 1200})
    assert readings["temperature_celsius", CORE].status is ReadingStatus.ERROR
    assert readings["recovery_action", WHOLE].status is ReadingStatus.ERROR
    assert "1200" in readings["recovery_action", WHOLE].detail


@pytest.mark.parametrize("counted", [0, 7, 18])
def test_ports_that_answer_outweigh_what_the_driver_counts(fake_nvml: FakeNvml, counted: int) -> None:
    """A driver that counts no link before its fabric is up still has eighteen ports that tell their state."""
    fake_nvml.update({"link_count": counted, "link_state": 0})
    with ReaderProcess(fake_nvml.environment) as reader:
        assert len(reader.ready().devices[SLOT].links) == 18
        states = [reading for (key, _), reading in reader.readings(SLOT, "fast").items() if key == "link_active"]
        assert [reading.value for reading in states] == [False] * 18


def test_links_that_nothing_told_of_are_asked_for_again(fake_nvml: FakeNvml) -> None:
    """A board whose model has links and that shows none is not done: they appear once its fabric is up."""
    fake_nvml.update({"links": 0})
    with ReaderProcess(fake_nvml.environment) as reader:
        assert reader.ready().devices[SLOT].links == ()
        fake_nvml.clear("links")
        assert len(reader.enumerate_again()[SLOT].links) == 18


def test_a_board_without_nvlink_says_so(fake_nvml: FakeNvml) -> None:
    """No link is up and none is down: the device has none."""
    fake_nvml.set("links", 0)
    with ReaderProcess(fake_nvml.environment) as reader:
        assert reader.ready().devices[SLOT].links == ()
        readings = reader.readings(SLOT, "fast")
    assert [part for quantity, part in readings if quantity == "link_active"] == [link(None)]
    assert readings["link_active", link(None)].status is ReadingStatus.UNSUPPORTED


def test_memory_errors_are_unsupported_while_error_correction_is_off(read: Read) -> None:
    """Without ECC nothing is counted: not zero errors."""
    readings = read("fast", {"ecc_mode": 0})
    counts = [reading for (quantity, _), reading in readings.items() if quantity.startswith("ecc_")]
    assert {reading.status for reading in counts} == {ReadingStatus.UNSUPPORTED}
    assert len(counts) == 4


@pytest.mark.parametrize(
    ("version", "base", "smoothing", "supported"),
    [
        ("13.590.48.01", 269, 1, True),
        ("13.590.48.01", 269, 0, True),
        ("13.580.126.01", 269, 1, True),
        ("13.580.65.06", 251, 0, True),
        ("13.580.65.06", 251, 1, True),  # 269 is power smoothing there, which must not be taken for nanoseconds
        ("12.575.51.03", 251, 1, True),
        ("12.570.86.15", 0, 1, False),
        ("12.535.183.01", 0, 0, False),
    ],
)
def test_thermal_throttle_time_is_found_under_every_numbering(
    fake_nvml: FakeNvml, version: str, base: int, smoothing: int, supported: bool
) -> None:
    """The three counters changed their field numbers twice; a number of power smoothing is never read as time."""
    fake_nvml.update({"nvml_version": version, "throttle_field_base": base, "power_smoothing": smoothing})
    fake_nvml.set("violation_hardware_thermal_nanoseconds", 3_000_000_000)
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        reading = reader.readings(SLOT, "fast")["throttle_seconds", reason("hardware_thermal")]
    expected = (ReadingStatus.OK, 3.0) if supported else (ReadingStatus.UNSUPPORTED, None)
    assert (reading.status, reading.value) == expected


# ---- Older drivers ----------------------------------------------------------------------------------------------

YOUNG_SYMBOLS = (
    "nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSupportedClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetFieldValues",
)  # fmt: skip


@pytest.mark.parametrize("reasons", ["0x0", "0x40"])
def test_a_driver_without_the_young_functions_is_read(tmp_path: Path, reasons: str) -> None:
    """Where the library lacks symbols, older ones serve or the value is unsupported; nothing fails and nothing is 0."""
    library = build_fake_nvml(tmp_path / "old", missing=YOUNG_SYMBOLS)
    machine = FakeNvml(tmp_path / "scenario", library).update({"temperature.3": 71, "event_reasons": reasons})
    with ReaderProcess(machine.environment) as reader:
        reader.ready()
        fast, slow = reader.readings(SLOT, "fast"), reader.readings(SLOT, "slow")
    assert fast["temperature_celsius", CORE].value == 71
    assert fast["throttle_active", reason("hardware_thermal")].value is (reasons == "0x40")
    assert fast["compute_processes", WHOLE].value == 0
    assert fast["link_active", link(17)].value is True
    assert fast["ecc_uncorrected_errors", DRAM].value == 0
    lacking = [fast["temperature_margin_celsius", CORE], fast["recovery_action", WHOLE], slow["fabric_state", WHOLE]]
    assert {reading.status for reading in lacking} == {ReadingStatus.UNSUPPORTED}
    statuses = {reading.status for reading in (*fast.values(), *slow.values())}
    assert statuses == {ReadingStatus.OK, ReadingStatus.UNSUPPORTED}


def test_what_is_unsupported_is_not_asked_for_until_the_next_enumeration(fake_nvml: FakeNvml) -> None:
    """A function that a device lacks costs one call per enumeration, not one per round."""
    fake_nvml.fail("nvmlDeviceGetMarginTemperature", NvmlReturn.NOT_SUPPORTED, gpu=SLOT)
    with ReaderProcess(fake_nvml.logged_environment) as reader:
        reader.ready()
        for _ in range(3):
            reader.round("fast")
        assert fake_nvml.calls().count("nvmlDeviceGetMarginTemperature 3") == 1
        assert fake_nvml.calls().count("nvmlDeviceGetMarginTemperature 4") == 3
        fake_nvml.clear()
        reader.enumerate_again()
        assert reader.readings(SLOT, "fast")["temperature_margin_celsius", CORE].value == 47


def test_a_fast_round_costs_few_calls(fake_nvml: FakeNvml) -> None:
    """Fields are fetched together: a round that has settled makes 13 calls per device, and reads no limit."""
    with ReaderProcess(fake_nvml.logged_environment) as reader:
        reader.ready()
        reader.round("fast")
        before = len([line for line in fake_nvml.calls() if line.endswith(f" {SLOT}")])
        reader.round("fast")
        after = [line for line in fake_nvml.calls() if line.endswith(f" {SLOT}")][before:]
    assert len(after) == 13, after
    assert not [line for line in after if "Threshold" in line or "Max" in line]
    assert len(set(after)) >= len(after) - 3  # two clocks and two counters of SRAM are separate calls


# ---- How a whole device fails ------------------------------------------------------------------------------------

GONE = [NvmlReturn.GPU_IS_LOST, NvmlReturn.RESET_REQUIRED, NvmlReturn.IRQ_ISSUE, NvmlReturn.INVALID_ARGUMENT]


@pytest.mark.parametrize("code", GONE)
def test_a_device_lost_between_enumerations_fails_alone(fake_nvml: FakeNvml, code: NvmlReturn) -> None:
    """The lost device has a failure that names it; its siblings are read; it is still listed as what it was."""
    with ReaderProcess(fake_nvml.environment) as reader:
        healthy = reader.ready().devices
        fake_nvml.fail_device(SLOT, code)
        for group in ("fast", "slow", "fast", "slow"):
            samples = reader.round(group)
            failure = samples[uuid(SLOT)].failure
            assert failure is not None
            asks = code is NvmlReturn.RESET_REQUIRED
            kind = FailureKind.RESET_REQUIRED if asks else FailureKind.LOST
            assert (failure.kind, samples[uuid(SLOT)].readings) == (kind, ())
            assert uuid(SLOT) in failure.detail
            assert [device for device, sample in samples.items() if sample.failure] == [uuid(SLOT)]
        assert set(reader.devices) == set(healthy)


def test_a_device_that_comes_back_is_read_again(fake_nvml: FakeNvml) -> None:
    """After a reset the same device answers; the next enumeration finds it."""
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        fake_nvml.fail_device(SLOT)
        reader.enumerate_again()
        fake_nvml.clear().set("temperature.3", 44)
        reader.enumerate_again()
        assert reader.readings(SLOT, "fast")["temperature_celsius", CORE].value == 44


def test_a_single_field_that_says_lost_is_a_lost_device(machine: FakeNvml, shared_reader: ReaderProcess) -> None:
    """The device may be gone between the batch of fields and its answer."""
    machine.fail("field.230", NvmlReturn.GPU_IS_LOST, gpu=SLOT)
    failure = shared_reader.sample(SLOT, "fast").failure
    assert failure is not None
    assert (failure.kind, "field 230" in failure.detail) == (FailureKind.LOST, True)


@pytest.mark.parametrize(
    ("code", "kind", "of_driver"),
    [
        (NvmlReturn.UNKNOWN, FailureKind.ERROR, True),
        (NvmlReturn.NO_PERMISSION, FailureKind.DENIED, False),
        (NvmlReturn.NOT_FOUND, FailureKind.ERROR, False),
    ],
)
def test_a_device_that_answers_nothing_has_failed(
    machine: FakeNvml, shared_reader: ReaderProcess, code: NvmlReturn, kind: FailureKind, of_driver: bool
) -> None:
    """Not one value is worse than single ones missing; only a listed code is evidence against board and driver."""
    machine.fail_device(SLOT, code)
    sample = shared_reader.sample(SLOT, "fast")
    assert sample.failure is not None
    assert (sample.failure.kind, sample.failure.of_driver, sample.readings) == (kind, of_driver, ())
    assert f"NVML code {code.value}" in sample.failure.detail


@pytest.mark.parametrize(
    ("proc", "device_id"),
    [
        (
            "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-5eed0003-known\nDevice Minor: \t 3\n",
            "GPU-5eed0003-known",
        ),
        ("Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-????????-????\nDevice Minor: \t 3\n", "0000:40:00.0"),
        (None, "nvidia-3"),
    ],
)
def test_a_device_lost_before_the_start_is_listed(
    fake_nvml: FakeNvml, tmp_path: Path, proc: str | None, device_id: str
) -> None:
    """NVML counts it and will not show it: the kernel driver's list says who it is, else it has its index only."""
    if proc is not None:
        for slot in range(8):
            page = tmp_path / f"proc/driver/nvidia/gpus/0000:{slot + 1}0:00.0/information"
            page.parent.mkdir(parents=True)
            page.write_text(proc if slot == SLOT else "Model: other\n")
    fake_nvml.fail_device(SLOT)
    with ReaderProcess(fake_nvml.environment, root=str(tmp_path)) as reader:
        lost = reader.ready().devices[SLOT]
        samples = reader.round("fast")
    assert (lost.id, lost.model) == (device_id, "NVIDIA H100 80GB HBM3" if proc else "unknown")
    failure = samples[device_id].failure
    assert failure is not None
    assert failure.kind is FailureKind.LOST
    assert len(samples) == 8


@pytest.mark.parametrize(
    ("driver", "device_id", "address"), [("nvidia", "0000:40:00.0", "0000:40:00.0"), ("vfio-pci", "nvidia-3", None)]
)
def test_a_device_lost_before_the_start_has_the_address_of_its_function(
    fake_nvml: FakeNvml, tmp_path: Path, driver: str, device_id: str, address: str | None
) -> None:
    """Where the kernel driver lists nothing the PCI bus does, and nobody takes the board for one without driver."""
    files: dict[str, str] = {}
    for slot in range(8):
        bound = driver if slot == SLOT else "nvidia"
        files |= pci_device(f"0000:{slot + 1}0:00.0", "0x10de", "0x2330", "0x030200", driver=bound)
    fake_nvml.fail_device(SLOT)
    with ReaderProcess(fake_nvml.environment, root=str(write_tree(tmp_path, files))) as reader:
        lost = reader.ready().devices[SLOT]
    assert (lost.id, lost.pci) == (device_id, address)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (NvmlReturn.GPU_IS_LOST, FailureKind.LOST),
        (NvmlReturn.RESET_REQUIRED, FailureKind.RESET_REQUIRED),
        (NvmlReturn.INSUFFICIENT_POWER, FailureKind.FAULTY),
        (NvmlReturn.CORRUPTED_INFOROM, FailureKind.FAULTY),
        (NvmlReturn.NO_PERMISSION, FailureKind.DENIED),  # a cgroup hides the device node
        (NvmlReturn.UNKNOWN, FailureKind.ERROR),
    ],
)
def test_a_device_that_cannot_be_opened_says_why(fake_nvml: FakeNvml, code: NvmlReturn, kind: FailureKind) -> None:
    """Lost, hidden and broken are told apart; the device stays listed and its siblings are read."""
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        fake_nvml.fail("nvmlDeviceGetHandleByIndex_v2", code, gpu=SLOT)
        reader.enumerate_again()
        samples = reader.round("fast")
        failure = samples[uuid(SLOT)].failure
        assert failure is not None
        assert (failure.kind, uuid(SLOT) in failure.detail) == (kind, True)
        assert sum(sample.failure is None for sample in samples.values()) == 7


@pytest.mark.parametrize(
    ("codes", "kind", "of_driver"),
    [
        ((NvmlReturn.UNKNOWN, NvmlReturn.UNKNOWN), FailureKind.ERROR, True),
        ((NvmlReturn.NO_DATA, NvmlReturn.UNKNOWN), FailureKind.ERROR, True),
        ((NvmlReturn.CORRUPTED_INFOROM, NvmlReturn.UNKNOWN), FailureKind.FAULTY, True),
        ((NvmlReturn.GPU_IS_LOST, NvmlReturn.UNKNOWN), FailureKind.LOST, True),
        ((NvmlReturn.RESET_REQUIRED, NvmlReturn.UNKNOWN), FailureKind.RESET_REQUIRED, True),
        ((NvmlReturn.NO_DATA, NvmlReturn.NO_DATA), FailureKind.ERROR, False),
    ],
)
def test_a_device_that_tells_no_name_fails_as_its_codes_say(
    fake_nvml: FakeNvml, codes: tuple[NvmlReturn, NvmlReturn], kind: FailureKind, of_driver: bool
) -> None:
    """An error in both calls that tell who it is says less than one in every call, and is no loss either."""
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        for symbol, code in zip(("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3"), codes, strict=True):
            fake_nvml.fail(symbol, code, gpu=SLOT)
        reader.enumerate_again()
        samples = reader.round("fast")
        failure = samples[uuid(SLOT)].failure
        assert failure is not None
        assert (failure.kind, failure.of_driver) == (kind, of_driver), failure.detail
        assert sum(sample.failure is None for sample in samples.values()) == 7


def test_a_vanished_device_does_not_give_its_place_to_another(fake_nvml: FakeNvml) -> None:
    """Where the count drops the index of later devices shifts, and each is still read as itself."""
    fake_nvml.update({f"temperature.{slot}": 30 + slot for slot in range(8)})
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        fake_nvml.vanish(SLOT)
        failure = reader.sample(SLOT, "fast").failure
        assert failure is not None
        assert failure.kind is FailureKind.LOST
        left = reader.enumerate_again()
        assert [device.id for device in left] == [uuid(slot) for slot in range(8) if slot != SLOT]
        assert reader.readings(6, "fast")["temperature_celsius", CORE].value == 36


def list_in_kernel(root: Path) -> None:
    """Write the kernel driver's own list of the eight devices under *root*."""
    for slot in range(8):
        page = root / f"proc/driver/nvidia/gpus/0000:{slot + 1}0:00.0/information"
        page.parent.mkdir(parents=True)
        page.write_text("Model: \t NVIDIA H100 80GB HBM3\n")


def test_a_device_that_hangs_while_it_is_opened_is_named(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """A reader that never got to know the device still says which one it is: the kernel lists its address."""
    list_in_kernel(tmp_path)
    fake_nvml.hang("", gpu=SLOT)
    with ReaderProcess(fake_nvml.environment, root=str(tmp_path)) as reader:
        wanted = "nvmlDeviceGetHandleByPciBusId of PCI 0000:40:00.0"
        reader.wait_until(lambda: reader.progress.read() == wanted)


def test_devices_are_the_same_by_address_and_by_index(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """With and without the kernel's list the inventory is one and the same."""
    with ReaderProcess(fake_nvml.environment, root=str(tmp_path)) as by_index:
        expected = by_index.ready().devices
    list_in_kernel(tmp_path)
    with ReaderProcess(fake_nvml.environment, root=str(tmp_path)) as by_address:
        assert by_address.ready().devices == expected
        fake_nvml.fail_device(SLOT)
        samples = by_address.round("slow"), by_address.round("fast")
        assert [group[uuid(SLOT)].failure is not None for group in samples] == [True, True]
        assert set(by_address.devices) == set(expected)


def test_a_quarantined_device_is_not_touched(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """A device that may hang in any call is left alone altogether: the others are opened by their PCI addresses."""
    list_in_kernel(tmp_path)
    fake_nvml.hang("", gpu=SLOT)
    left_alone = [uuid(SLOT), "0000:40:00.0"]
    with ReaderProcess(fake_nvml.logged_environment, root=str(tmp_path), skip=left_alone) as reader:
        assert [device.id for device in reader.ready().devices] == [uuid(slot) for slot in range(8) if slot != SLOT]
        assert len(reader.round("fast")) == 7
        assert len(reader.enumerate_again()) == 7
    assert [line for line in fake_nvml.calls() if line.endswith(f" {SLOT}")] == []


def test_a_quarantined_device_is_hardly_touched_where_the_kernel_lists_none(
    fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    """Without the kernel driver's list a device tells no more than who it is, and is then left alone."""
    fake_nvml.hang("nvmlDeviceGetName", gpu=SLOT)
    with ReaderProcess(fake_nvml.logged_environment, root=str(tmp_path), skip=[uuid(SLOT)]) as reader:
        assert uuid(SLOT) not in {device.id for device in reader.ready().devices}
        assert len(reader.round("fast")) == 7
    touched = {line.split()[0] for line in fake_nvml.calls() if line.endswith(f" {SLOT}")}
    assert touched == {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID"}


def test_the_line_of_progress_names_the_call_that_hangs(fake_nvml: FakeNvml) -> None:
    """While a call does not return, anybody can read which call on which device it is."""
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        fake_nvml.hang("nvmlDeviceGetUtilizationRates", gpu=SLOT)
        reader.request("fast")
        wanted = f"nvmlDeviceGetUtilizationRates on {uuid(SLOT)} (PCI 0000:40:00.0)"
        reader.wait_until(lambda: reader.progress.read() == wanted)


def test_the_line_of_progress_names_the_call_that_crashed(fake_nvml: FakeNvml) -> None:
    """An abort inside the library ends the child, and the line outlives it."""
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        fake_nvml.crash("nvmlDeviceGetFieldValues", gpu=SLOT)
        reader.request("fast")
        assert reader.process.wait(20) == -signal.SIGABRT
        assert reader.progress.read() == f"nvmlDeviceGetFieldValues on {uuid(SLOT)} (PCI 0000:40:00.0)"


# ---- How the library fails ----------------------------------------------------------------------------------------


def refusal(machine: FakeNvml, root: Path | None = None) -> tuple[FailureKind, str]:
    """Start a reader that must be refused, and return how."""
    with ReaderProcess(machine.environment, root=str(root or "/")) as reader:
        failure = reader.failed()
        return failure.kind, failure.detail


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (NvmlReturn.DRIVER_NOT_LOADED, FailureKind.NO_DRIVER, "modprobe nvidia"),
        (NvmlReturn.LIB_RM_VERSION_MISMATCH, FailureKind.VERSION_MISMATCH, "reboot or reload"),
        (NvmlReturn.NO_PERMISSION, FailureKind.DENIED, "NVML code 4"),
        (NvmlReturn.UNKNOWN, FailureKind.ERROR, "NVML code 999"),
    ],
)
def test_a_library_that_cannot_start_says_what_to_do(
    fake_nvml: FakeNvml, code: NvmlReturn, kind: FailureKind, words: str
) -> None:
    """Each way of nvmlInit to fail has its own kind and a next step."""
    refused, detail = refusal(fake_nvml.fail("nvmlInitWithFlags", code))
    assert (refused, words in detail) == (kind, True), detail


def test_a_version_mismatch_names_both_versions(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """After an upgrade under a running system people need to see which driver is loaded and which library is not."""
    version = tmp_path / "sys/module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("580.126.09\n")
    _, detail = refusal(fake_nvml.fail("nvmlInitWithFlags", NvmlReturn.LIB_RM_VERSION_MISMATCH), tmp_path)
    assert "13.590.48.01" in detail
    assert "580.126.09" in detail


GIVEN = "812 790 8:1 {root} /usr/lib/x86_64-linux-gnu/{name} ro,nosuid - ext4 /dev/sda1 rw\n"
REPLACED = "/usr/lib/libnvidia-ml.so.590.48.01//deleted"


MOUNTED = (
    (REPLACED, "libnvidia-ml.so.590.48.01", True),
    (REPLACED, "libnvidia-ml.so.1", True),
    ("/usr/lib/libnvidia-ml.so.590.48.01", "libnvidia-ml.so.590.48.01", False),
    ("/usr/lib/libcuda.so.590.48.01//deleted", "libcuda.so.590.48.01", False),
)


@pytest.mark.parametrize(("root", "name", "is_replaced"), MOUNTED)
def test_a_mount_tells_whether_the_library_that_it_is_of_was_deleted(root: str, name: str, is_replaced: bool) -> None:
    """The kernel writes it behind the root of the mount, not behind its place."""
    assert is_deleted_mount("24 27 0:6\n" + GIVEN.format(root=root, name=name)) is is_replaced
    assert not is_deleted_mount("")


@pytest.mark.parametrize(("root", "name", "is_replaced"), MOUNTED)
def test_a_library_that_the_host_replaced_under_its_container_is_no_fault_of_the_driver(
    fake_nvml: FakeNvml, tmp_path: Path, root: str, name: str, is_replaced: bool
) -> None:
    """The host is well and its jobs run: the container alone has the file that an update deleted."""
    mounts = tmp_path / "proc/self/mountinfo"
    mounts.parent.mkdir(parents=True)
    mounts.write_bytes(b"24 27 0:6 / /mnt/\xff rw - ext4 a rw\n\n" + GIVEN.format(root=root, name=name).encode())
    with ReaderProcess(
        fake_nvml.fail("nvmlInitWithFlags", NvmlReturn.LIB_RM_VERSION_MISMATCH).environment, root=str(tmp_path)
    ) as reader:
        failure = reader.failed()
    assert failure.of_driver is not is_replaced
    assert failure.kind is (FailureKind.ERROR if is_replaced else FailureKind.VERSION_MISMATCH)
    assert ("restart the container of nodevet" in failure.detail) is is_replaced


def test_no_device_is_a_failure(fake_nvml: FakeNvml) -> None:
    """A driver without devices is never a healthy machine with nothing to check."""
    assert refusal(fake_nvml.set("count", 0))[0] is FailureKind.NO_DEVICES


def test_a_missing_library_is_a_failure(tmp_path: Path) -> None:
    """A machine whose driver is not installed."""
    kind, detail = refusal(FakeNvml(tmp_path / "scenario", tmp_path / "libnvidia-ml.so.1"))
    assert (kind, "libnvidia-ml.so.1 was not found" in detail) == (FailureKind.NO_LIBRARY, True)


def test_a_library_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    """One of another architecture, of another C library, or cut off: to install a driver that is there ends nothing."""
    library = tmp_path / "libnvidia-ml.so.1"
    assert why_not_loaded(str(library)).startswith(f"{library} was not found: install")
    library.write_text("")
    kind, detail = refusal(FakeNvml(tmp_path / "scenario", library))
    assert kind is FailureKind.NO_LIBRARY
    for words in (detail, why_not_loaded(str(library))):
        assert "libnvidia-ml.so.1 is there and cannot be loaded (" in words
        assert "file too short" in words


@pytest.mark.parametrize("symbol", ["driver_version", "nvml_version"])
@pytest.mark.parametrize("printed", [b"\xff\xfe", b"5" * 200, b"13.\xc2\xb2"], ids=ascii)
def test_a_version_that_cannot_be_had_costs_no_device(fake_nvml: FakeNvml, symbol: str, printed: bytes) -> None:
    """An update that prints bytes that are no text, or more than fits: every device is read as before."""
    fake_nvml.path.write_bytes(f"{symbol} ".encode() + printed + b"\n")
    with ReaderProcess(fake_nvml.environment) as reader:
        assert len(reader.ready().devices) == 8
        reader.request("fast")
        assert [reader.expect(Sampled).sample.failure for _ in range(8)] == [None] * 8


@pytest.mark.parametrize(
    ("during", "code", "kind"),
    [
        ("nvmlDeviceGetCount_v2", NvmlReturn.DRIVER_NOT_LOADED, FailureKind.NO_DRIVER),
        ("nvmlDeviceGetCount_v2", NvmlReturn.UNINITIALIZED, FailureKind.READER),
        ("nvmlDeviceGetCount_v2", NvmlReturn.LIB_RM_VERSION_MISMATCH, FailureKind.VERSION_MISMATCH),
    ],
)
def test_a_driver_that_goes_away_ends_the_reader(
    fake_nvml: FakeNvml, during: str, code: NvmlReturn, kind: FailureKind
) -> None:
    """What no device can be blamed for is a failure of the backend."""
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        fake_nvml.fail(during, code)
        reader.request("slow")
        for _ in range(8):
            reader.expect(Sampled)
        failure = reader.failed()
        assert (failure.kind, failure.of_driver) == (kind, kind is not FailureKind.READER)


LOAD_WITH = """
import json, sys
sys.path.insert(0, sys.argv[1])
from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.nvidia.nvml import load
from nodevet.checks.core.wire import Progress
try:
    load(Progress.create()[0], "/")
except BackendError as error:
    print(json.dumps([error.failure.kind, error.failure.detail]))
"""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("class NVMLError(Exception): pass\ndef nvmlInit(): pass\n", "pip uninstall pynvml"),
        ("raise ImportError('no such module')\n", "pip install nvidia-ml-py"),
    ],
)
def test_a_wrong_or_missing_wrapper_is_named(tmp_path: Path, source: str, words: str) -> None:
    """The retired distribution of the same module name is recognised before anything is called."""
    (tmp_path / "pynvml.py").write_text(source)
    command = [sys.executable, "-c", LOAD_WITH, str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    kind, detail = json.loads(shown.stdout)
    assert (kind, words in detail) == ("no_library", True)


# ---- Inventory, events, topology, end -----------------------------------------------------------------------------


def test_two_boards_of_one_name_hide_each_other_never(fake_nvml: FakeNvml) -> None:
    """A driver that gives one name twice has eight boards; the second goes by its address, round after round."""
    fake_nvml.set("uuid.3", uuid(2))
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        for _ in range(2):
            names = {device.id: device.pci for device in reader.enumerate_again()}
            assert len(names) == 8
            assert (names[uuid(2)], names[pci(3)]) == (pci(2), pci(3))
            assert reader.round("fast")[pci(3)].failure is None


def test_boards_whose_driver_gave_them_one_name_say_so_until_it_does_not(fake_nvml: FakeNvml) -> None:
    """No load can choose either of them by that name; both say so, whichever was listed first, or known before."""
    with ReaderProcess(fake_nvml.environment) as reader:
        assert not any(device.shares_uuid for device in reader.ready().devices)
        fake_nvml.set("uuid.3", uuid(2))
        told = {device.pci for device in reader.enumerate_again() if device.shares_uuid}
        assert told == {pci(2), pci(3)}
        fake_nvml.set("uuid.3", uuid(3))
        assert not any(device.shares_uuid for device in reader.enumerate_again())


def test_a_device_is_known_by_what_no_reboot_changes(shared_reader: ReaderProcess, machine: FakeNvml) -> None:
    """UUID, serial, PCI address, minor, firmware, links and size are all told, in one spelling everywhere."""
    device = next(device for device in shared_reader.devices if device.id == uuid(SLOT))
    assert (device.vendor, device.model, device.architecture) == ("nvidia", "NVIDIA H100 80GB HBM3", "hopper")
    assert (device.pci, device.pci_device_id, device.minor) == ("0000:40:00.0", "10de:2330", SLOT)
    assert (device.serial, device.driver, device.numa_node) == ("1765423000103", "590.48.01", 0)
    assert (device.compute_units, device.maximum_clock_hertz) == (132, 1_980_000_000)
    assert device.memory_bytes == 85520809984
    assert {part.component: part.version for part in device.firmware}["vbios"] == "96.00.AF.00.01"
    assert device.links == tuple(Link(port, "switch", "NVLink 4.0") for port in range(18))


def test_a_peer_is_learnt_once_its_link_is_up(fake_nvml: FakeNvml) -> None:
    """Links train after the driver was loaded: what a port could not tell at first is asked for again."""
    fake_nvml.fail("nvmlDeviceGetNvLinkRemoteDeviceType", NvmlReturn.NOT_SUPPORTED).set("link_state", 0)
    with ReaderProcess(fake_nvml.environment) as reader:
        assert {link.peer for link in reader.ready().devices[SLOT].links} == {None}
        fake_nvml.clear()
        assert {link.peer for link in reader.enumerate_again()[SLOT].links} == {"switch"}


def test_a_pci_domain_is_never_cut(fake_nvml: FakeNvml) -> None:
    """Virtual machines number PCI domains beyond four digits."""
    fake_nvml.update({"pci_domain.0": 0x10001, "pci_bus.1": 0xAB})
    with ReaderProcess(fake_nvml.environment) as reader:
        assert [device.pci for device in reader.ready().devices[:2]] == ["10001:10:00.0", "0000:ab:00.0"]


@pytest.mark.parametrize("lost", [False, True])
def test_an_xid_is_told_with_its_device(fake_nvml: FakeNvml, lost: bool) -> None:
    """The event of a device that fell off the bus still names it, though the device cannot."""
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        if lost:
            fake_nvml.fail_device(SLOT)
        fake_nvml.xid(SLOT, 79).xid(5, 31)
        first, second = reader.wait_for_event(), reader.wait_for_event()
    assert (first.code, first.source, first.device, first.pci) == ("nvidia.xid.79", "nvml", uuid(SLOT), "0000:40:00.0")
    assert (second.code, second.device) == ("nvidia.xid.31", uuid(5))


@pytest.mark.parametrize("what", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
def test_a_driver_without_events_is_still_read(fake_nvml: FakeNvml, what: str) -> None:
    """Where NVML tells no events it is noted once, and everything else goes on."""
    fake_nvml.fail(what, NvmlReturn.NOT_SUPPORTED)
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        for _ in range(3):
            assert reader.sample(SLOT, "fast").failure is None
        assert [note.event for note in reader.notes] == ["NVML events cannot be read"]


def test_the_library_is_closed_at_the_end(fake_nvml: FakeNvml) -> None:
    """A reader that is asked to stop lets go of the event set and of the driver."""
    with ReaderProcess(fake_nvml.logged_environment) as reader:
        reader.ready()
        assert reader.stop() == 0
    assert fake_nvml.calls()[-2:] == ["nvmlEventSetFree -1", "nvmlShutdown -1"]


def ask_topology(machine: FakeNvml, root: Path | None) -> subprocess.CompletedProcess[str]:
    """Run the child that is asked for the topology to its end."""
    return subprocess.run(
        [sys.executable, "-I", "-m", "nodevet.checks.backends.topology", "nvidia", str(root or "/")],
        env={**os.environ, **machine.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def topology(machine: FakeNvml, root: Path | None = None) -> dict[str, Any]:
    """Return the topology that the child writes."""
    shown = ask_topology(machine, root)
    assert shown.returncode == 0, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def test_devices_behind_switches_see_each_other_over_all_their_links(fake_nvml: FakeNvml) -> None:
    """Every pair has all links that are up at both ends, and each device its processors and its NUMA node."""
    fake_nvml.set("link_state.3.5", 0)
    found = topology(fake_nvml)
    assert found["gpus"] == [f"GPU{index}" for index in range(8)]
    assert found["matrix"][0] == ["X", "NV18", "NV18", "NV17", "NV18", "NV18", "NV18", "NV18"]
    assert found["matrix"][3][3:5] == ["X", "NV17"]
    assert found["cpu_affinity"][4] == "56-111"
    assert found["numa_affinity"] == ["0", "0", "0", "0", "1", "1", "1", "1"]


def test_devices_without_links_are_told_apart_by_what_lies_between(fake_nvml: FakeNvml) -> None:
    """Without NVLink the cell names the bridge or the link between processors."""
    levels = {"topology.0.1": 10, "topology.0.2": 20, "topology.0.3": 30}
    found = topology(fake_nvml.update({"links": 0, "count": 6, **levels}))
    assert found["matrix"][0] == ["X", "PIX", "PXB", "PHB", "SYS", "SYS"]
    assert found["matrix"][1][:4] == ["PIX", "X", "NODE", "NODE"]


def test_straight_links_count_for_the_peer_they_lead_to(fake_nvml: FakeNvml) -> None:
    """Without switches a pair has as many links as lead from one to the other, and none means the way over PCIe."""
    fake_nvml.update({"count": 3, "links": 4, "link_remote_type": 0})
    for slot, peer in ((0, "00000000:20:00.0"), (1, "00000000:10:00.0"), (2, "00000000:10:00.0")):
        fake_nvml.set(f"link_remote_pci.{slot}", peer)
    fake_nvml.set("link_remote_pci.0.3", "00000000:30:00.0")
    found = topology(fake_nvml)
    assert found["matrix"][0] == ["X", "NV3", "NV1"]
    assert found["matrix"][1][2] == "NODE"


def test_links_that_carry_no_peer_traffic_are_no_connection(fake_nvml: FakeNvml) -> None:
    """Links into the switches count only where the driver lets two devices talk over them."""
    found = topology(fake_nvml.update({"peer_nvlink_status.0.1": 3, "peer_nvlink_status.1.0": 3}))
    assert found["matrix"][0][1:3] == ["NODE", "NV18"]


def test_an_adapter_is_placed_by_the_bridges_above_it(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """One switch is PIX, cascaded switches PXB, one host bridge PHB; else the NUMA node decides."""
    near_first = "pci0000:0f/0000:0f:01.0/0000:10:00.0"
    places = {
        "0000:10:00.0": (f"{near_first}/0000:11:00.0/0000:10:00.0", 0),
        "0000:20:00.0": ("pci0000:1f/0000:1f:01.0/0000:20:00.0", 0),
        "0000:30:00.0": ("pci0000:2f/0000:2f:01.0/0000:30:00.0", 1),
    }
    adapters = {
        "mlx5_0": (f"{near_first}/0000:12:00.0/0000:13:00.0", 0),
        "mlx5_2": (f"{near_first}/0000:12:01.0/0000:14:00.0/0000:15:00.0/0000:16:00.0", 0),
        "mlx5_10": ("pci0000:1f/0000:1f:02.0/0000:21:00.0", 0),
    }
    for name, (place, node) in {**places, **adapters}.items():
        device = tmp_path / "sys/devices" / place
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        link = tmp_path / ("sys/bus/pci/devices" if ":" in name else f"sys/class/infiniband/{name}")
        link.mkdir(parents=True, exist_ok=True)
        (link / (name if ":" in name else "device")).symlink_to(device)
    found = topology(fake_nvml.update({"count": 3, "numa_node.0": 0, "numa_node.1": 0, "numa_node.2": 1}), tmp_path)
    assert found["nic_legend"] == {"NIC0": "mlx5_0", "NIC1": "mlx5_2", "NIC2": "mlx5_10"}
    assert found["nic_to_gpu"] == [["PIX", "NODE", "SYS"], ["PXB", "NODE", "SYS"], ["NODE", "PHB", "SYS"]]


def test_a_device_that_is_silent_is_missing_from_the_topology_by_name(fake_nvml: FakeNvml) -> None:
    """The others keep their numbers, and what is left out is said."""
    found = topology(fake_nvml.fail_device(SLOT))
    assert found["gpus"] == [f"GPU{slot}" for slot in range(8) if slot != SLOT]
    (problem,) = found["problems"]
    assert problem.startswith(f"GPU{SLOT} is left out: ")
    assert "the device is lost" in problem


def test_a_topology_that_cannot_be_read_is_a_failure(fake_nvml: FakeNvml) -> None:
    """There is a reason and no empty matrix; that there is no driver is told apart, another vendor may have one."""
    shown = ask_topology(fake_nvml.fail("nvmlInitWithFlags", NvmlReturn.DRIVER_NOT_LOADED), None)
    assert (shown.returncode, shown.stdout) == (4, "")
    assert "modprobe nvidia" in shown.stderr.splitlines()[-1]
    shown = ask_topology(fake_nvml.clear().fail("nvmlDeviceGetCount_v2", NvmlReturn.UNKNOWN), None)
    assert (shown.returncode, shown.stdout) == (3, "")


@pytest.mark.gpu
def test_a_real_driver_is_read_as_nvidia_smi_reads_it() -> None:
    """On a machine with NVIDIA devices: the same devices, no reading in error, values that agree with nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no accelerator on this machine")
    query = "--query-gpu=uuid,pci.bus_id,temperature.gpu,pcie.link.width.max,clocks.max.sm"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    with ReaderProcess({}) as reader:
        devices = {device.id: device for device in reader.ready().devices}
        fast, slow = reader.round("fast"), reader.round("slow")
    assert len(devices) == len(listed.splitlines())
    for name, bus, celsius, width, megahertz in (line.split(", ") for line in listed.splitlines()):
        readings = (*fast[name].readings, *slow[name].readings)
        values = {(reading.quantity, reading.part): reading.value for reading in readings}
        assert [reading for reading in readings if reading.status is ReadingStatus.ERROR] == []
        assert (devices[name].pci or "")[-10:] == bus.lower()[-10:]
        assert values["temperature_celsius", CORE] == pytest.approx(int(celsius), abs=5)
        assert values["pcie_link_width_maximum", PCIE] == int(width)
        assert values["clock_maximum_hertz", SM] == int(megahertz) * 1_000_000


def test_an_identity_that_could_not_be_had_this_time_is_kept_or_asked_for_again(fake_nvml: FakeNvml) -> None:
    """A board that is busy at the first list is not for ever one without a model, nor missing when it is so later."""
    fake_nvml.fail("nvmlDeviceGetName", NvmlReturn.UNKNOWN, gpu=SLOT)
    with ReaderProcess(fake_nvml.environment) as reader:
        assert reader.ready().devices[SLOT].model == "unknown"
        fake_nvml.clear()
        whole = reader.enumerate_again()
        assert whole[SLOT].model == "NVIDIA H100 80GB HBM3"
        fake_nvml.fail("nvmlDeviceGetUUID", NvmlReturn.UNKNOWN, gpu=SLOT)
        assert reader.enumerate_again() == whole
