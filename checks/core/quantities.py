"""The table of quantities: key with unit, kind, help and plausible range.

Metric names, help texts, the reference page and the command backend's schema are generated from this table.
A value outside the plausible range is not a measurement: backends report it as ``error``. The bounds are those of
physics, not of today's devices: a value beyond them is a wrong unit, a torn read or a marker for "no value". Each
states its source.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from .model import PartKind, Reading, ReadingStatus, Scalar


class QuantityKind(StrEnum):
    """The behaviour of a quantity: a counter only grows within an epoch, a state is one of named words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    FLAG = "flag"
    STATE = "state"
    TEXT = "text"


class Bounds(msgspec.Struct, frozen=True):
    """The range of plausible values, and why no device measures others; None is no bound."""

    low: float | None
    high: float | None
    source: str


class Quantity(msgspec.Struct, frozen=True):
    """One quantity. Counters ``judged_by_growth`` keep their last value over a restart.

    Counters ``judged_by_hour`` also count their growth within the last hour. Parts ``never_zero`` never read exactly 0
    while they work: an empty register or a dead sensor does.
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
        """Return the unit that the key ends in, or an empty string for counts, flags and texts."""
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
"""An action in no table: the driver recommends an action that a later version of nodevet may know."""

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
"""Largest number of characters of an implausible value in a message."""
IMPLAUSIBLE = " is implausible: "
"""Marks the detail of a reading whose value was read and is implausible."""
NO_VALUE = "no value: "
"""Starts the detail of a reading for which a command printed no value, such as NaN."""

HEAT = Bounds(
    -55,
    200,
    "silicon is specified from -55 celsius (MIL-STD-883) and beyond 200 no package lives; 255 is an empty byte, and "
    "exactly 0 of a chip an empty register: the air that cools it has 5 celsius or more (ASHRAE TC 9.9, class A4)",
)
CHIPS = frozenset({"core", "memory", "hotspot", "edge", "package"})
"""Sensors in a running chip, which is warmer than the air that cools it."""
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
"""The power scope of the whole device: a running device draws power, and its limits are never 0."""
CLOCK = Bounds(
    0,
    48e9,
    "JEDEC JESD239: GDDR7 moves at most 48 Gbit/s per pin, and drivers tell the memory clock as transfers per second "
    "(12481 MHz on an RTX PRO 6000, 14001 MHz on an RTX 5090); 65535 MHz is an empty register",
)
ONES = frozenset({2**32 - 1, 2**64 - 1})
"""Values of a field of 32 or 64 bits that is not filled, such as UINT_MAX in the metrics of a driver."""
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
        "Degrees left before the device slows itself down (T.Limit); negative when beyond.",
        HEAT_MARGIN,
    ),
    Quantity(
        "temperature_slowdown_celsius", _G, _P.SENSOR, "Temperature at which the device slows itself down.", HEAT_LIMIT
    ),
    Quantity(
        "temperature_shutdown_celsius", _G, _P.SENSOR, "Temperature at which the device shuts itself off.", HEAT_LIMIT
    ),
    Quantity(
        "temperature_maximum_celsius", _G, _P.SENSOR, "Highest temperature the vendor allows in operation.", HEAT_LIMIT
    ),
    Quantity(
        "temperature_margin_slowdown_celsius",
        _G,
        _P.SENSOR,
        "Margin at which the device slows itself down hard (an offset on the scale of the margin).",
        HEAT_BEYOND,
    ),
    Quantity(
        "temperature_margin_shutdown_celsius",
        _G,
        _P.SENSOR,
        "Margin at which the device shuts itself off (an offset on the scale of the margin).",
        HEAT_BEYOND,
    ),
    Quantity(
        "temperature_margin_maximum_celsius",
        _G,
        _P.SENSOR,
        "Margin at the highest temperature the vendor allows in operation.",
        HEAT_MARGIN,
    ),
    # Power.
    Quantity(
        "power_watts",
        _G,
        _P.POWER_SCOPE,
        "Power drawn, averaged by the device (about one second).",
        POWER,
        never_zero=BOARD,
    ),
    Quantity("power_limit_watts", _G, _P.POWER_SCOPE, "Power limit in force.", POWER, never_zero=BOARD),
    Quantity(
        "power_limit_requested_watts",
        _G,
        _P.POWER_SCOPE,
        "Power limit that was asked for.",
        POWER,
        exported=False,
        never_zero=BOARD,
    ),
    Quantity(
        "power_limit_default_watts", _G, _P.POWER_SCOPE, "Power limit that the vendor set.", POWER, never_zero=BOARD
    ),
    Quantity("energy_joules", _C, _P.POWER_SCOPE, "Energy used since the driver was loaded.", ENERGY),
    # Clocks and throttling.
    Quantity("clock_hertz", _G, _P.CLOCK, "Clock held now.", CLOCK),
    Quantity("clock_maximum_hertz", _G, _P.CLOCK, "Highest clock of the device.", CLOCK),
    Quantity("throttle_active", _F, _P.REASON, "Whether the clock is held down for this reason now."),
    Quantity(
        "throttle_seconds",
        _C,
        _P.REASON,
        "Time that the clock was held down for this reason.",
        HELD,
        judged_by_growth=True,
    ),
    Quantity(
        "throttle_events",
        _C,
        _P.REASON,
        "Times that the kernel counted a thermal throttle event.",
        COUNT,
        judged_by_growth=True,
    ),
    # Memory errors.
    Quantity("ecc_enabled", _F, _P.DEVICE, "Whether error correction of the device memory is on."),
    Quantity(
        "ecc_corrected_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Memory errors corrected since the driver was loaded.",
        COUNT,
        judged_by_growth=True,
        judged_by_hour=True,
    ),
    Quantity(
        "ecc_uncorrected_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Memory errors that could not be corrected, since the driver was loaded.",
        COUNT,
        judged_by_growth=True,
    ),
    Quantity(
        "ecc_deferred_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Errors that could not be corrected and were set aside before anything used the data.",
        COUNT,
        judged_by_growth=True,
    ),
    Quantity(
        "ecc_uncorrected_lifetime_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Memory errors that could not be corrected, over the life of the device.",
        COUNT,
    ),
    Quantity(
        "ecc_sram_threshold_exceeded", _F, _P.DEVICE, "Whether the device says that its SRAM errors exceed its limit."
    ),
    Quantity("remapped_rows_correctable", _C, _P.DEVICE, "Memory rows replaced after corrected errors.", REPAIRS),
    Quantity("remapped_rows_uncorrectable", _C, _P.DEVICE, "Memory rows replaced after uncorrected errors.", REPAIRS),
    Quantity("row_remap_pending", _F, _P.DEVICE, "Whether a row waits for the next reset to be replaced."),
    Quantity("row_remap_failed", _F, _P.DEVICE, "Whether replacing a row failed: no spare rows are left in a bank."),
    Quantity("row_remap_banks_without_spares", _G, _P.DEVICE, "Memory banks that have no spare row left.", REPAIRS),
    Quantity("bad_pages_retired", _G, _P.DEVICE, "Memory pages that were found bad and are no longer used.", REPAIRS),
    Quantity(
        "bad_pages_pending",
        _G,
        _P.DEVICE,
        "Memory pages found bad that wait to be taken out of use; 1 where the driver only says that there are some.",
        REPAIRS,
    ),
    Quantity(
        "bad_pages_unreservable", _G, _P.DEVICE, "Memory pages found bad that cannot be taken out of use.", REPAIRS
    ),
    Quantity(
        "bad_pages_threshold",
        _G,
        _P.DEVICE,
        "Bad memory pages from which the vendor replaces the device.",
        AT_LEAST_ONE,
    ),
    Quantity(
        "recovery_action",
        _S,
        _P.DEVICE,
        "What the driver says must be done.",
        states=(*RECOVERY_ACTIONS, UNKNOWN_ACTION),
    ),
    # PCIe.
    Quantity("pcie_link_generation", _G, _P.PCIE, "PCIe generation in use; lower at idle on many boards.", GENERATION),
    Quantity(
        "pcie_link_generation_maximum",
        _G,
        _P.PCIE,
        "Highest PCIe generation of the device; some drivers count its slot in.",
        GENERATION,
    ),
    Quantity("pcie_link_width", _G, _P.PCIE, "PCIe lanes in use.", LANES),
    Quantity(
        "pcie_link_width_maximum", _G, _P.PCIE, "PCIe lanes of the device; some drivers count its slot in.", LANES
    ),
    Quantity("pcie_replays", _C, _P.PCIE, "PCIe packets sent again.", COUNT, judged_by_growth=True),
    Quantity("pcie_correctable_errors", _C, _P.PCIE, "Correctable PCIe errors.", COUNT, judged_by_growth=True),
    Quantity("pcie_nonfatal_errors", _C, _P.PCIE, "Non-fatal PCIe errors.", COUNT, judged_by_growth=True),
    Quantity("pcie_fatal_errors", _C, _P.PCIE, "Fatal PCIe errors.", COUNT, judged_by_growth=True),
    # Links between devices.
    Quantity("link_active", _F, _P.LINK, "Whether the link is up."),
    Quantity("link_bandwidth_bytes_per_second", _G, _P.LINK, "Rate of the link, one direction.", COUNT, exported=False),
    Quantity("link_replay_errors", _C, _P.LINK, "Packets sent again over the link.", COUNT, judged_by_growth=True),
    Quantity("link_recovery_errors", _C, _P.LINK, "Recoveries of the link.", COUNT, judged_by_growth=True),
    Quantity("link_crc_errors", _C, _P.LINK, "Checksum errors on the link.", COUNT, judged_by_growth=True),
    Quantity(
        "link_effective_errors", _C, _P.LINK, "Errors left on the link after correction.", COUNT, judged_by_growth=True
    ),
    Quantity("fabric_state", _S, _P.DEVICE, "Whether the device has joined its fabric.", states=FABRIC_STATES),
    Quantity(
        "fabric_healthy",
        _F,
        _P.DEVICE,
        "Whether the device names no fault of its fabric: bandwidth, routes, timeouts, configuration.",
    ),
    Quantity(
        "fabric_faults",
        _T,
        _P.DEVICE,
        "Faults of its fabric that the device names, separated by commas; empty where it names none.",
        exported=False,
    ),
    # Load and memory in use.
    Quantity("utilization_ratio", _G, _P.ENGINE, "Share of time that the engine was busy.", SHARE),
    Quantity("memory_total_bytes", _G, _P.DEVICE, "Memory of the device.", COUNT),
    Quantity("memory_used_bytes", _G, _P.DEVICE, "Memory in use.", COUNT),
    Quantity("compute_processes", _G, _P.DEVICE, "Processes that hold the device.", COUNT),
    Quantity(
        "compute_process_ids",
        _T,
        _P.DEVICE,
        "Process ids that hold the device, separated by commas.",
        exported=False,
    ),
    Quantity("partitioned", _F, _P.DEVICE, "Whether the device is split into instances; its links read as down then."),
    Quantity(
        "compute_partition",
        _S,
        _P.DEVICE,
        "Into how many devices the compute units are split: one (spx), two, three, four, or one per die (cpx).",
        states=COMPUTE_PARTITIONS,
    ),
    Quantity(
        "memory_partition",
        _S,
        _P.DEVICE,
        "Into how many NUMA domains the device memory is split.",
        states=MEMORY_PARTITIONS,
    ),
    Quantity("persistence_mode", _F, _P.DEVICE, "Whether the driver stays loaded without a client."),
    # Host.
    Quantity("memory_available_bytes", _G, _P.DEVICE, "Memory that can be given to new processes.", COUNT),
    Quantity("load_average_ratio", _G, _P.DEVICE, "Load average of one minute over the logical processors.", COUNT),
    Quantity("logical_processors", _G, _P.DEVICE, "Logical processors that are online.", AT_LEAST_ONE),
    Quantity("physical_cores", _G, _P.DEVICE, "Physical cores that are online.", AT_LEAST_ONE),
    Quantity("uptime_seconds", _G, _P.DEVICE, "Time since boot.", COUNT, exported=False),
)

QUANTITIES: dict[str, Quantity] = {entry.key: entry for entry in _TABLE}
"""All quantities by key."""


def quantity(key: str) -> Quantity:
    """Return the quantity named *key*. Raises KeyError for an undeclared one."""
    return QUANTITIES[key]


def measured(reading: Reading) -> Reading:
    """Return *reading*, or a copy with status ``error`` where no device can have measured its value."""
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
    """Return why *value* is no measurement of the quantity, or None where it is plausible."""
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
    """Return whether *reading* is an error because of its value; a failed read is not."""
    is_odd = IMPLAUSIBLE in reading.detail or reading.detail.startswith(NO_VALUE)
    return reading.status is ReadingStatus.ERROR and is_odd


def _implausible(reading: Reading, why: str) -> Reading:
    value = reading.value
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:  # too many digits, which Python may refuse to print
        shown = f"a number of {value.bit_length()} bits"
    else:
        shown = repr(value)[:SHOWN_LETTERS]
    return Reading(reading.quantity, None, reading.part, ReadingStatus.ERROR, f"{shown}{IMPLAUSIBLE}{why}")
