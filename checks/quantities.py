"""Every quantity once: key with unit, kind, help and plausible range.

Metric names, help texts, the reference page and the command backend's schema are made from this table.
A value outside the plausible range is not a measurement: backends report it as ``error``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from nodevet.checks.model import PartKind, Reading, ReadingStatus

__all__ = ["QUANTITIES", "Quantity", "QuantityKind", "measured", "quantity"]


class QuantityKind(StrEnum):
    """How a quantity behaves: a counter only grows within an epoch, a state is one of named words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    FLAG = "flag"
    STATE = "state"
    TEXT = "text"


class Quantity(msgspec.Struct, frozen=True):
    """One quantity. ``judged_by_growth`` counters keep their last value over a restart."""

    key: str
    kind: QuantityKind
    part: PartKind
    help: str
    low: float | None = None
    high: float | None = None
    states: tuple[str, ...] = ()
    exported: bool = True
    judged_by_growth: bool = False

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

_TABLE: tuple[Quantity, ...] = (
    # Heat. The device's own margin comes before any absolute temperature.
    Quantity("temperature_celsius", _G, _P.SENSOR, "Temperature of a sensor.", -40, 150),
    Quantity(
        "temperature_margin_celsius",
        _G,
        _P.SENSOR,
        "Degrees left before the device slows itself down (T.Limit); negative when beyond.",
        -100,
        150,
    ),
    Quantity(
        "temperature_slowdown_celsius", _G, _P.SENSOR, "Temperature at which the device slows itself down.", 20, 150
    ),
    Quantity(
        "temperature_shutdown_celsius", _G, _P.SENSOR, "Temperature at which the device shuts itself off.", 20, 150
    ),
    Quantity(
        "temperature_maximum_celsius", _G, _P.SENSOR, "Highest temperature the vendor allows in operation.", 20, 150
    ),
    Quantity(
        "temperature_margin_slowdown_celsius",
        _G,
        _P.SENSOR,
        "Margin at which the device slows itself down hard (an offset on the scale of the margin).",
        -100,
        150,
    ),
    Quantity(
        "temperature_margin_shutdown_celsius",
        _G,
        _P.SENSOR,
        "Margin at which the device shuts itself off (an offset on the scale of the margin).",
        -100,
        150,
    ),
    Quantity(
        "temperature_margin_maximum_celsius",
        _G,
        _P.SENSOR,
        "Margin at the highest temperature the vendor allows in operation.",
        -100,
        150,
    ),
    # Power.
    Quantity("power_watts", _G, _P.POWER_SCOPE, "Power drawn, averaged by the device (about one second).", 0, 20000),
    Quantity("power_limit_watts", _G, _P.POWER_SCOPE, "Power limit in force.", 0, 20000),
    Quantity("power_limit_default_watts", _G, _P.POWER_SCOPE, "Power limit that the vendor set.", 0, 20000),
    Quantity("energy_joules", _C, _P.POWER_SCOPE, "Energy used since the driver was loaded.", 0),
    # Clocks and throttling.
    Quantity("clock_hertz", _G, _P.CLOCK, "Clock held now.", 0, 1e10),
    Quantity("clock_maximum_hertz", _G, _P.CLOCK, "Highest clock of the device.", 0, 1e10),
    Quantity("throttle_active", _F, _P.REASON, "Whether the clock is held down for this reason now."),
    Quantity(
        "throttle_seconds",
        _C,
        _P.REASON,
        "Time that the clock was held down for this reason.",
        0,
        judged_by_growth=True,
    ),
    Quantity(
        "throttle_events",
        _C,
        _P.REASON,
        "Times that the kernel counted a thermal throttle event.",
        0,
        judged_by_growth=True,
    ),
    # Memory errors.
    Quantity("ecc_enabled", _F, _P.DEVICE, "Whether error correction of the device memory is on."),
    Quantity(
        "ecc_corrected_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Memory errors corrected since the driver was loaded.",
        0,
        judged_by_growth=True,
    ),
    Quantity(
        "ecc_uncorrected_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Memory errors that could not be corrected, since the driver was loaded.",
        0,
        judged_by_growth=True,
    ),
    Quantity(
        "ecc_deferred_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Errors that could not be corrected and were set aside before anything used the data.",
        0,
        judged_by_growth=True,
    ),
    Quantity(
        "ecc_uncorrected_lifetime_errors",
        _C,
        _P.MEMORY_BLOCK,
        "Memory errors that could not be corrected, over the life of the device.",
        0,
    ),
    Quantity(
        "ecc_sram_threshold_exceeded", _F, _P.DEVICE, "Whether the device says that its SRAM errors exceed its limit."
    ),
    Quantity("remapped_rows_correctable", _C, _P.DEVICE, "Memory rows replaced after corrected errors.", 0),
    Quantity("remapped_rows_uncorrectable", _C, _P.DEVICE, "Memory rows replaced after uncorrected errors.", 0),
    Quantity("row_remap_pending", _F, _P.DEVICE, "Whether a row waits for the next reset to be replaced."),
    Quantity("row_remap_failed", _F, _P.DEVICE, "Whether replacing a row failed: no spare rows are left in a bank."),
    Quantity("row_remap_banks_without_spares", _G, _P.DEVICE, "Memory banks that have no spare row left.", 0),
    Quantity("bad_pages_retired", _G, _P.DEVICE, "Memory pages that were found bad and are no longer used.", 0),
    Quantity("bad_pages_pending", _G, _P.DEVICE, "Memory pages found bad that wait to be taken out of use.", 0),
    Quantity("bad_pages_unreservable", _G, _P.DEVICE, "Memory pages found bad that cannot be taken out of use.", 0),
    Quantity("bad_pages_threshold", _G, _P.DEVICE, "Bad memory pages from which the vendor replaces the device.", 1),
    Quantity("recovery_action", _S, _P.DEVICE, "What the driver says must be done.", states=RECOVERY_ACTIONS),
    # PCIe.
    Quantity("pcie_link_generation", _G, _P.PCIE, "PCIe generation in use; lower at idle on many boards.", 1, 8),
    Quantity("pcie_link_generation_maximum", _G, _P.PCIE, "Highest PCIe generation of device and slot.", 1, 8),
    Quantity("pcie_link_width", _G, _P.PCIE, "PCIe lanes in use.", 1, 32),
    Quantity("pcie_link_width_maximum", _G, _P.PCIE, "PCIe lanes of device and slot.", 1, 32),
    Quantity("pcie_replays", _C, _P.PCIE, "PCIe packets sent again.", 0, judged_by_growth=True),
    Quantity("pcie_correctable_errors", _C, _P.PCIE, "Correctable PCIe errors.", 0, judged_by_growth=True),
    Quantity("pcie_nonfatal_errors", _C, _P.PCIE, "Non-fatal PCIe errors.", 0, judged_by_growth=True),
    Quantity("pcie_fatal_errors", _C, _P.PCIE, "Fatal PCIe errors.", 0, judged_by_growth=True),
    # Links between devices.
    Quantity("link_active", _F, _P.LINK, "Whether the link is up."),
    Quantity("link_bandwidth_bytes_per_second", _G, _P.LINK, "Rate of the link, one direction.", 0, exported=False),
    Quantity("link_replay_errors", _C, _P.LINK, "Packets sent again over the link.", 0, judged_by_growth=True),
    Quantity("link_recovery_errors", _C, _P.LINK, "Recoveries of the link.", 0, judged_by_growth=True),
    Quantity("link_crc_errors", _C, _P.LINK, "Checksum errors on the link.", 0, judged_by_growth=True),
    Quantity(
        "link_effective_errors", _C, _P.LINK, "Errors left on the link after correction.", 0, judged_by_growth=True
    ),
    Quantity("fabric_state", _S, _P.DEVICE, "Whether the device has joined its fabric.", states=FABRIC_STATES),
    Quantity(
        "fabric_healthy",
        _F,
        _P.DEVICE,
        "Whether the device names no fault of its fabric: bandwidth, routes, timeouts, configuration.",
    ),
    # Load and memory in use.
    Quantity("utilization_ratio", _G, _P.ENGINE, "Share of time that the engine was busy.", 0, 1),
    Quantity("memory_total_bytes", _G, _P.DEVICE, "Memory of the device.", 0),
    Quantity("memory_used_bytes", _G, _P.DEVICE, "Memory in use.", 0),
    Quantity("compute_processes", _G, _P.DEVICE, "Processes that hold the device.", 0),
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
    Quantity("memory_available_bytes", _G, _P.DEVICE, "Memory that can be given to new processes.", 0),
    Quantity("load_average_ratio", _G, _P.DEVICE, "Load average of one minute over the logical processors.", 0),
    Quantity("logical_processors", _G, _P.DEVICE, "Logical processors that are online.", 1),
    Quantity("physical_cores", _G, _P.DEVICE, "Physical cores that are online.", 1),
    Quantity("uptime_seconds", _G, _P.DEVICE, "Time since boot.", 0, exported=False),
)

QUANTITIES: dict[str, Quantity] = {entry.key: entry for entry in _TABLE}
"""All quantities by key."""


def quantity(key: str) -> Quantity:
    """Return the quantity named *key*; a KeyError names an undeclared one."""
    return QUANTITIES[key]


def measured(reading: Reading) -> Reading:
    """Return *reading*, or the same with status ``error`` where its value lies outside the plausible range."""
    entry = QUANTITIES[reading.quantity]
    value = reading.value
    if value is None:
        return reading
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if entry.states and value not in entry.states:
            return _implausible(reading, f"not one of {', '.join(entry.states)}")
        return reading
    if (
        (entry.low is not None and value < entry.low)
        or (entry.high is not None and value > entry.high)
        or value != value
    ):
        return _implausible(reading, f"outside {entry.low} to {entry.high}")
    return reading


def _implausible(reading: Reading, why: str) -> Reading:
    return Reading(
        reading.quantity, None, reading.part, ReadingStatus.ERROR, f"{reading.value!r} is implausible: {why}"
    )
