"""Every quantity once: key with unit, kind, help and plausible range.

Metric names, help texts, the reference page and the command backend's schema are made from this table.
A value outside the plausible range is not a measurement: backends report it as ``error``. The bounds are those of
physics, not of today's boards: what lies beyond is a wrong unit, a torn read or a marker for "no value". Each states
where it comes from.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from .model import PartKind, Reading, ReadingStatus, Scalar


class QuantityKind(StrEnum):
    """How a quantity behaves: a counter only grows within an epoch, a state is one of named words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    FLAG = "flag"
    STATE = "state"
    TEXT = "text"


class Bounds(msgspec.Struct, frozen=True):
    """Between which values a measurement lies, and why no device measures anything else; None is no bound."""

    low: float | None
    high: float | None
    source: str


class Quantity(msgspec.Struct, frozen=True):
    """One quantity. ``judged_by_growth`` counters keep their last value over a restart.

    Those ``judged_by_hour`` also count how far they grew within the last one. Parts ``never_zero`` have no value of
    exactly 0 while they answer: it is what an empty register or a sensor that died reads.
    """

    key: str
    kind: QuantityKind
    part: PartKind
    help: str
    bounds: Bounds | None = None
    states: tuple[str, ...] = ()
    exported: bool = True
    judged_by_growth: bool = False
    judged_by_hour: bool = False
    never_zero: frozenset[str] = frozenset()

    @property
    def low(self) -> float | None:
        """Return the lowest plausible value, or None where there is no bound."""
        return self.bounds.low if self.bounds else None

    @property
    def high(self) -> float | None:
        """Return the highest plausible value, or None where there is no bound."""
        return self.bounds.high if self.bounds else None

    @property
    def unit(self) -> str:
        """Return the unit that the key ends in, or an empty string for counts, flags and words."""
        units = {
            "celsius": "celsius",
            "watts": "watts",
            "joules": "joules",
            "hertz": "hertz",
            "bytes": "bytes",
            "seconds": "seconds",
            "ratio": "ratio",
        }
        if self.key.endswith("bytes_per_second"):
            return "bytes_per_second"
        return units.get(self.key.rsplit("_", 1)[-1], "")


RECOVERY_ACTIONS = (
    "none",
    "reset_device",
    "reboot",
    "drain_peer_to_peer",
    "drain_reset",
    "recover_imex_domain",
    "reset_bus",
    "reboot_system",
)

UNKNOWN_ACTION = "unknown"
"""An action that no table knows: the driver asks for something, and a younger version of nodevet may know what."""

COMPUTE_PARTITIONS = ("spx", "dpx", "tpx", "qpx", "cpx")
MEMORY_PARTITIONS = ("nps1", "nps2", "nps4", "nps8")

FABRIC_STATES = ("not_started", "in_progress", "completed", "failed")

_G, _C, _F, _S, _T = (
    QuantityKind.GAUGE,
    QuantityKind.COUNTER,
    QuantityKind.FLAG,
    QuantityKind.STATE,
    QuantityKind.TEXT,
)
_P = PartKind

LARGEST_COUNT = 2**63 - 1
SHOWN_LETTERS = 100
"""So much of an odd value is told."""
IMPLAUSIBLE = " is implausible: "
"""Stands in the detail of a reading whose value was told and is none."""
NO_VALUE = "no value: "
"""The detail of a reading begins so where what a command printed for it is no value at all, such as NaN."""

HEAT = Bounds(
    -55,
    200,
    "silicon is specified from -55 celsius (MIL-STD-883) and beyond 200 no package lives; 255 is an empty byte, and "
    "exactly 0 of a chip an empty register: the air that cools it has 5 celsius or more (ASHRAE TC 9.9, class A4)",
)
CHIPS = frozenset({"core", "memory", "hotspot", "edge", "package"})
"""Sensors in a chip that answers, and so is warmer than the air that cools it."""
HEAT_LIMIT = Bounds(20, 200, "a limit of a device lies above the air that cools it; see temperature_celsius")
HEAT_MARGIN = Bounds(-200, 255, "the difference of two temperatures, each of -55 to 200 celsius")
HEAT_BEYOND = Bounds(-200, 0, "no device slows down or shuts itself off below its highest operating temperature")
POWER = Bounds(
    0,
    50_000,
    "the largest single accelerator, a whole wafer, is sold with 23 kW; 65535 W and 4294967 W are empty registers, and "
    "0 W drawn by a device that answers is one too",
)
BOARD = frozenset({"device"})
"""The scope of power that is the whole board: while it answers it draws some, and no limit of it is 0."""
CLOCK = Bounds(
    0,
    48e9,
    "JEDEC JESD239: GDDR7 moves at most 48 Gbit/s per pin, and drivers tell the memory clock as transfers per second "
    "(12481 MHz on an RTX PRO 6000, 14001 MHz on an RTX 5090); 65535 MHz is an empty register",
)
ONES = frozenset({2**32 - 1, 2**64 - 1})
"""What a field of 32 or 64 bits reads that nobody fills, such as UINT_MAX in the metrics of a driver."""
COUNT = Bounds(
    0,
    LARGEST_COUNT,
    "a count begins at 0, and no driver counts beyond 63 bits; 4294967295, ones alone, is an empty register",
)
AT_LEAST_ONE = Bounds(
    1,
    LARGEST_COUNT,
    "less than one is none, and no driver counts beyond 63 bits; 4294967295, ones alone, is an empty register",
)
REPAIRS = Bounds(
    0,
    65_534,
    "lists of bad pages hold 64 (dynamic page retirement) to 10,921 of them (24 bytes each in 256 KiB of EEPROM), "
    "and a board has a few thousand banks; 65535, ones alone, is an empty register",
)
CENTURY = 3.2e9
"""Seconds in a hundred years."""
HELD = Bounds(0, CENTURY, "no driver runs for a hundred years; 64 bits of ones in nanoseconds are 585")
ENERGY = Bounds(
    0,
    50_000 * CENTURY,
    "what the largest accelerator uses in a hundred years, see power_watts; 64 bits of ones in millijoules, or in "
    "ticks of 15.3 microjoules, are more",
)
GENERATION = Bounds(1, 8, "PCI-SIG: generation 7 is published, 8 announced")
LANES = Bounds(1, 32, "PCI Express base specification: x32 is the widest link")
SHARE = Bounds(0, 1, "a share of the whole")

_TABLE: tuple[Quantity, ...] = (
    # Heat. The device's own margin comes before any absolute temperature.
    Quantity("temperature_celsius", _G, _P.SENSOR, "Temperature of a sensor.", HEAT, never_zero=CHIPS),
    Quantity(
        "temperature_margin_celsius",
        _G,
        _P.SENSOR,
        "Thermal margin (T.Limit): degrees below the temperature limit of the device, negative above it.",
        HEAT_MARGIN,
    ),
    Quantity(
        "temperature_slowdown_celsius",
        _G,
        _P.SENSOR,
        "Slowdown threshold: temperature at which the device reduces its clocks.",
        HEAT_LIMIT,
    ),
    Quantity(
        "temperature_shutdown_celsius",
        _G,
        _P.SENSOR,
        "Shutdown threshold: temperature at which the device shuts down.",
        HEAT_LIMIT,
    ),
    Quantity("temperature_maximum_celsius", _G, _P.SENSOR, "Maximum operating temperature of the device.", HEAT_LIMIT),
    Quantity(
        "temperature_margin_slowdown_celsius",
        _G,
        _P.SENSOR,
        "Thermal margin at which the device reduces its clocks (slowdown threshold on the T.Limit scale).",
        HEAT_BEYOND,
    ),
    Quantity(
        "temperature_margin_shutdown_celsius",
        _G,
        _P.SENSOR,
        "Thermal margin at which the device shuts down (shutdown threshold on the T.Limit scale).",
        HEAT_BEYOND,
    ),
    Quantity(
        "temperature_margin_maximum_celsius",
        _G,
        _P.SENSOR,
        "Thermal margin at the maximum operating temperature.",
        HEAT_MARGIN,
    ),
    # Power.
    Quantity(
        "power_watts",
        _G,
        _P.POWER_SCOPE,
        "Power draw, averaged by the device (about one second).",
        POWER,
        never_zero=BOARD,
    ),
    Quantity("power_limit_watts", _G, _P.POWER_SCOPE, "Power limit in force.", POWER, never_zero=BOARD),
    Quantity(
        "power_limit_requested_watts",
        _G,
        _P.POWER_SCOPE,
        "Requested power limit.",
        POWER,
        exported=False,
        never_zero=BOARD,
    ),
    Quantity(
        "power_limit_default_watts", _G, _P.POWER_SCOPE, "Default power limit of the vendor.", POWER, never_zero=BOARD
    ),
    Quantity("energy_joules", _C, _P.POWER_SCOPE, "Energy consumed since the driver was loaded.", ENERGY),
    # Clocks and throttling.
    Quantity("clock_hertz", _G, _P.CLOCK, "Current clock.", CLOCK),
    Quantity("clock_maximum_hertz", _G, _P.CLOCK, "Maximum clock of the device.", CLOCK),
    Quantity("throttle_active", _F, _P.REASON, "Whether this reason throttles the clock now."),
    Quantity(
        "throttle_seconds",
        _C,
        _P.REASON,
        "Time for which this reason throttled the clock.",
        HELD,
        judged_by_growth=True,
    ),
    Quantity(
        "throttle_events",
        _C,
        _P.REASON,
        "Thermal throttle events counted by the kernel.",
        COUNT,
        judged_by_growth=True,
    ),
    # Memory errors.
    Quantity("ecc_enabled", _F, _P.DEVICE, "Whether ECC of the device memory is on."),
    Quantity(
        "ecc_corrected_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Corrected memory errors since the driver was loaded.",
        COUNT,
        judged_by_growth=True,
        judged_by_hour=True,
    ),
    Quantity(
        "ecc_uncorrected_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Uncorrected memory errors since the driver was loaded.",
        COUNT,
        judged_by_growth=True,
    ),
    Quantity(
        "ecc_deferred_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Deferred memory errors: uncorrected, and the data was not used yet.",
        COUNT,
        judged_by_growth=True,
    ),
    Quantity(
        "ecc_uncorrected_lifetime_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Uncorrected memory errors over the lifetime of the device.",
        COUNT,
    ),
    Quantity(
        "ecc_sram_threshold_exceeded", _F, _P.DEVICE, "Whether the SRAM errors exceed the threshold of the device."
    ),
    Quantity("remapped_rows_correctable", _C, _P.DEVICE, "Memory rows remapped after corrected errors.", REPAIRS),
    Quantity("remapped_rows_uncorrectable", _C, _P.DEVICE, "Memory rows remapped after uncorrected errors.", REPAIRS),
    Quantity("row_remap_pending", _F, _P.DEVICE, "Whether row remapping is pending until the next reset."),
    Quantity("row_remap_failed", _F, _P.DEVICE, "Whether row remapping failed: a memory bank has no spare row left."),
    Quantity("row_remap_banks_without_spares", _G, _P.DEVICE, "Memory banks without a spare row.", REPAIRS),
    Quantity("bad_pages_retired", _G, _P.DEVICE, "Retired memory pages.", REPAIRS),
    Quantity(
        "bad_pages_pending",
        _G,
        _P.DEVICE,
        "Bad memory pages pending retirement; 1 where the driver does not count them.",
        REPAIRS,
    ),
    Quantity("bad_pages_unreservable", _G, _P.DEVICE, "Bad memory pages that cannot be retired.", REPAIRS),
    Quantity(
        "bad_pages_threshold",
        _G,
        _P.DEVICE,
        "Retired memory pages that qualify the device for replacement.",
        AT_LEAST_ONE,
    ),
    Quantity(
        "recovery_action",
        _S,
        _P.DEVICE,
        "Recovery action requested by the driver.",
        states=(*RECOVERY_ACTIONS, UNKNOWN_ACTION),
    ),
    # PCIe.
    Quantity("pcie_link_generation", _G, _P.PCIE, "PCIe generation in use; lower at idle on many boards.", GENERATION),
    Quantity(
        "pcie_link_generation_maximum",
        _G,
        _P.PCIE,
        "Maximum PCIe generation of the device; with some drivers that of device and slot.",
        GENERATION,
    ),
    Quantity("pcie_link_width", _G, _P.PCIE, "PCIe lanes in use.", LANES),
    Quantity(
        "pcie_link_width_maximum",
        _G,
        _P.PCIE,
        "Maximum PCIe lanes of the device; with some drivers those of device and slot.",
        LANES,
    ),
    Quantity("pcie_replays", _C, _P.PCIE, "PCIe replays.", COUNT, judged_by_growth=True),
    Quantity("pcie_correctable_errors", _C, _P.PCIE, "Correctable PCIe errors.", COUNT, judged_by_growth=True),
    Quantity("pcie_nonfatal_errors", _C, _P.PCIE, "Non-fatal PCIe errors.", COUNT, judged_by_growth=True),
    Quantity("pcie_fatal_errors", _C, _P.PCIE, "Fatal PCIe errors.", COUNT, judged_by_growth=True),
    # Links between devices.
    Quantity("link_active", _F, _P.LINK, "Whether the link is up."),
    Quantity("link_bandwidth_bytes_per_second", _G, _P.LINK, "Rate of the link, one direction.", COUNT, exported=False),
    Quantity("link_replay_errors", _C, _P.LINK, "Replays on the link.", COUNT, judged_by_growth=True),
    Quantity("link_recovery_errors", _C, _P.LINK, "Recoveries of the link.", COUNT, judged_by_growth=True),
    Quantity("link_crc_errors", _C, _P.LINK, "CRC errors on the link.", COUNT, judged_by_growth=True),
    Quantity(
        "link_effective_errors",
        _C,
        _P.LINK,
        "Errors on the link that remain after correction.",
        COUNT,
        judged_by_growth=True,
    ),
    Quantity("fabric_state", _S, _P.DEVICE, "Whether the device has joined its fabric.", states=FABRIC_STATES),
    Quantity(
        "fabric_healthy",
        _F,
        _P.DEVICE,
        "Whether the device reports no fabric fault: bandwidth, routes, timeouts, configuration.",
    ),
    Quantity(
        "fabric_faults",
        _T,
        _P.DEVICE,
        "Fabric faults that the device reports, separated by commas; empty without any.",
        exported=False,
    ),
    # Load and memory in use.
    Quantity("utilization_ratio", _G, _P.ENGINE, "Utilization of the engine.", SHARE),
    Quantity("memory_total_bytes", _G, _P.DEVICE, "Total memory.", COUNT),
    Quantity("memory_used_bytes", _G, _P.DEVICE, "Memory in use.", COUNT),
    Quantity("compute_processes", _G, _P.DEVICE, "Processes that use the device.", COUNT),
    Quantity(
        "compute_process_ids",
        _T,
        _P.DEVICE,
        "Ids of the processes that use the device, separated by commas.",
        exported=False,
    ),
    Quantity("partitioned", _F, _P.DEVICE, "Whether the device is partitioned (MIG); its links then read as down."),
    Quantity(
        "compute_partition",
        _S,
        _P.DEVICE,
        "Compute partition mode: one device (spx), two, three, four, or one per die (cpx).",
        states=COMPUTE_PARTITIONS,
    ),
    Quantity(
        "memory_partition",
        _S,
        _P.DEVICE,
        "Memory partition mode: number of NUMA domains of the device memory.",
        states=MEMORY_PARTITIONS,
    ),
    Quantity(
        "persistence_mode", _F, _P.DEVICE, "Whether persistence mode is on: the driver stays loaded without a client."
    ),
    # Host.
    Quantity("memory_available_bytes", _G, _P.DEVICE, "Memory available to new processes.", COUNT),
    Quantity("load_average_ratio", _G, _P.DEVICE, "One-minute load average per logical processor.", COUNT),
    Quantity("logical_processors", _G, _P.DEVICE, "Online logical processors.", AT_LEAST_ONE),
    Quantity("physical_cores", _G, _P.DEVICE, "Online physical cores.", AT_LEAST_ONE),
    Quantity("uptime_seconds", _G, _P.DEVICE, "Uptime: time since boot.", COUNT, exported=False),
)

QUANTITIES: dict[str, Quantity] = {entry.key: entry for entry in _TABLE}
"""All quantities by key."""


def quantity(key: str) -> Quantity:
    """Return the quantity named *key*; a KeyError names an undeclared one."""
    return QUANTITIES[key]


def measured(reading: Reading) -> Reading:
    """Return *reading*, or the same with status ``error`` where no device can have measured its value."""
    if reading.value is None:
        return reading
    entry = QUANTITIES[reading.quantity]
    why = _doubt(reading.value, entry)
    if why is None and reading.value == 0 and reading.part.name in entry.never_zero:
        why = "exactly 0 is an empty register or a dead sensor"
    if why is None and reading.value in ONES and entry.bounds in (COUNT, AT_LEAST_ONE):
        why = "ones alone are an empty register"
    return _implausible(reading, why) if why else reading


def _doubt(value: Scalar, entry: Quantity) -> str | None:
    """Return why *value* is no measurement of the quantity, or None where it may be one."""
    match entry.kind:
        case QuantityKind.STATE:
            return None if value in entry.states else f"not one of {', '.join(entry.states)}"
        case QuantityKind.TEXT:
            return None if isinstance(value, str) else "no text"
        case QuantityKind.FLAG:
            return None if isinstance(value, bool) else "neither true nor false"
    if isinstance(value, (bool, str)) or (isinstance(value, float) and not math.isfinite(value)):
        return "no number"
    if (entry.low is not None and value < entry.low) or (entry.high is not None and value > entry.high):
        return f"outside {entry.low} to {entry.high}"
    return None


def is_implausible(reading: Reading) -> bool:
    """Return whether *reading* had a value that was none; one that could not be read at all is another matter."""
    is_odd = IMPLAUSIBLE in reading.detail or reading.detail.startswith(NO_VALUE)
    return reading.status is ReadingStatus.ERROR and is_odd


def _implausible(reading: Reading, why: str) -> Reading:
    value = reading.value
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:  # its digits are of no use, and Python may refuse them
        shown = f"a number of {value.bit_length()} bits"
    else:
        shown = repr(value)[:SHOWN_LETTERS]
    return Reading(reading.quantity, None, reading.part, ReadingStatus.ERROR, f"{shown}{IMPLAUSIBLE}{why}")
