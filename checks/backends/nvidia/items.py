"""The values read from an NVIDIA device, with their sources: the tables of the nvidia backend's groups.

Every function call may cost the driver milliseconds on a busy device, so a value that exists as a field is read as a
field. Only SM and memory clocks are read: graphics and SM are one domain since Volta. Thresholds and T.Limit offsets
hardly ever change and are read with the slow group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodevet.checks.core.model import WHOLE, Part, PartKind, Scalar
from nodevet.checks.core.quantities import RECOVERY_ACTIONS, UNKNOWN_ACTION
from nodevet.checks.reference.fabric import known_mask, words_of_mask

from .nvml import Call, Field, Item

MOST_ACTIONS = 64
"""Upper bound of an enumeration of driver requests; a larger number is invalid."""

UNSIGNED_LONG_LONG = 3
"""NVML's value type of its counters."""

CORE, MEMORY_SENSOR = Part(PartKind.SENSOR, "core"), Part(PartKind.SENSOR, "memory")
BOARD, MODULE, MEMORY_POWER = (Part(PartKind.POWER_SCOPE, name) for name in ("device", "module", "memory"))
PCIE = Part(PartKind.PCIE)
COMPUTE = Part(PartKind.ENGINE, "compute")

NVLINK_STATES = {0: False, 1: True, 2: True}
"""Link states and whether the link can carry data: inactive, active, asleep (power saving)."""

FABRIC_NOT_SUPPORTED, FABRIC_COMPLETED = 0, 3
FABRIC_WORDS = {1: "not_started", 2: "in_progress"}
MOST_STATUSES = 999
"""The last of NVML's return codes, NVML_ERROR_UNKNOWN; a larger number is invalid."""
FABRIC_FAULT_SHIFTS = (0, 2, 4, 6)
"""Two bits each (1 yes, 2 no): bandwidth degraded, route recovering, route unhealthy, access timeout recovering."""
FABRIC_CONFIGURATION_SHIFT, FABRIC_CONFIGURATION_FINE = 8, 1

REASON_BITS = {
    0x001: "idle",
    0x002: "applications_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "software_thermal",
    0x040: "hardware_thermal",
    0x080: "power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""The bits of NVML's mask of clock event reasons (nvml.h; 0x200 and 0x400 come from its older throttle reasons)."""

VIOLATIONS = {
    0: "power_cap",
    1: "vendor:thermal",  # software and hardware slowdown together; newer drivers count them separately
    2: "sync_boost",
}
"""NVML's performance policies: time for which each limited the clocks. The field of policy p is 74 + p.

Policies 3 to 5 (board limit, low utilization, reliability) are omitted: no newer event reason has their name, and no
check uses them.
"""

ECC_VOLATILE = {"dram": (11, 12), "l1": (7, 8), "l2": (9, 10), "register": (13, 14), "texture": (15, 16)}
"""Fields of corrected and uncorrected errors per block. SRAM has none; the small blocks exist only before Ampere."""

ECC_LIFETIME = {"dram": 23, "l1": 19, "l2": 21, "register": 25, "texture": 27, "cbu": 28}
ECC_LOCATIONS = {"dram": 2, "sram": 7}
CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1


def fast_items(links: int, nvml_version: str, known_reasons: int | None = None) -> tuple[Item, ...]:
    """Return the items of every round for a device with *links* link ports.

    *known_reasons* is the mask of event reasons that the device can report; None if unknown.
    """
    clocks = (*_clocks(known_reasons), *_throttle_times(nvml_version))
    # The MIG mode is read with the links: after a partitioning since the last slow round, healthy links read as down.
    split = Item("partitioned", WHOLE, (Call("nvmlDeviceGetMigMode"),), _element(0, _yes_or_no))
    return (*_heat(), *_power(), *clocks, *_errors(), *_load(), split, *_link_states(links))


def slow_items(links: int) -> tuple[Item, ...]:
    """Return the slowly changing items: thresholds, counters of links and PCIe, repairs, settings."""
    return (*_thresholds(), *_limits(), *_lifetime_errors(), *_pcie(), *_link_counters(links), *_settings())


def throttle_fields(nvml_version: str) -> tuple[int, ...]:
    """Return candidates for the first of the three fields of thermal and power-brake time, most likely first.

    The numbers 251 to 253 of release 575 collided with power smoothing, which had them in 570. So 580 moved them to
    269, after its first releases had kept 251. Both return the type of a counter, power smoothing does not.
    """
    words = nvml_version.split(".")
    branch = int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0
    if branch > 580:
        return (269,)
    if branch == 580:
        return (269, 251)
    return (251,) if branch >= 575 else ()


# ---- Conversions ----------------------------------------------------------------------------------------------


def _milli(value: float) -> float:
    return value / 1e3


def _mega(value: int) -> int:
    return int(value) * 1_000_000


def _nanoseconds(value: int) -> float:
    return value / 1e9


def _bit(bit: int, known: int | None) -> Callable[[int], bool | None]:
    """Return a test of *bit*. A clear bit means False only if the device knows the reason."""
    return lambda mask: True if mask & bit else False if known is None or known & bit else None


def _attribute(name: str, convert: Callable[[Any], Scalar] = int) -> Callable[[Any], Scalar]:
    return lambda result: convert(getattr(result, name))


def _element(index: int, convert: Callable[[Any], Scalar] = int) -> Callable[[Any], Scalar]:
    """Return a function that takes one of several results; a field of the same meaning is a plain number."""
    return lambda result: convert(result if isinstance(result, int) else result[index])


def _yes_or_no(number: int) -> bool:
    """Convert the driver's 0 or 1. Any other number is invalid: a False yes would mean a lost board."""
    if number not in (0, 1):
        raise ValueError(f"{number} is neither 0 nor 1")
    return bool(number)


def _flag(number: int) -> int:
    """Return 1 if the driver reports that there are some, without a count."""
    return int(_yes_or_no(number))


def _recovery_action(number: int) -> str:
    """Return the requested recovery action; an unknown one of a newer driver is kept, because it is not "none"."""
    if 0 <= number < len(RECOVERY_ACTIONS):
        return RECOVERY_ACTIONS[number]
    return UNKNOWN_ACTION if 0 <= number < MOST_ACTIONS else f"action {number}"


def _fabric_state(info: Any) -> str | None:
    """Return the state of the registration with the fabric; None if the device is not part of one.

    Raises ValueError for a status that is no return code, such as an empty register: a failed registration has a code.
    """
    if info.state == FABRIC_COMPLETED:
        if not 0 <= info.status <= MOST_STATUSES:
            raise ValueError(f"status {info.status} is no answer of the library")
        return "failed" if info.status else "completed"
    return None if info.state == FABRIC_NOT_SUPPORTED else FABRIC_WORDS.get(info.state, f"state {info.state}")


def _fabric_healthy(info: Any) -> bool | None:
    """Return whether the mask contains no fault; None if it reports nothing."""
    mask = known_mask(info.healthMask)
    configuration = mask >> FABRIC_CONFIGURATION_SHIFT & 0xF
    groups = [mask >> shift & 3 for shift in FABRIC_FAULT_SHIFTS]
    if not configuration and not any(groups):
        return None
    return configuration <= FABRIC_CONFIGURATION_FINE and not {1, 3} & {*groups}


def _fabric_faults(info: Any) -> str | None:
    """Return the faults in the mask; None if it reports nothing."""
    return words_of_mask(info.healthMask) if info.healthMask else None


def _process_ids(processes: list[Any]) -> str:
    return ",".join(str(pid) for pid in sorted({process.pid for process in processes}))


# ---- The tables -----------------------------------------------------------------------------------------------


def _heat() -> list[Item]:
    core = (Call("nvmlDeviceGetTemperatureV", (0,)), Call("nvmlDeviceGetTemperature", (0,)))
    return [
        Item("temperature_celsius", CORE, core),
        Item("temperature_celsius", MEMORY_SENSOR, (Field(82),)),
        Item("temperature_margin_celsius", CORE, (Call("nvmlDeviceGetMarginTemperature"),)),
    ]


def _thresholds() -> list[Item]:
    def threshold(number: int) -> tuple[Call]:
        return (Call("nvmlDeviceGetTemperatureThreshold", (number,)),)

    return [
        Item("temperature_shutdown_celsius", CORE, threshold(0)),
        Item("temperature_slowdown_celsius", CORE, threshold(1)),
        Item("temperature_maximum_celsius", MEMORY_SENSOR, threshold(2)),
        Item("temperature_maximum_celsius", CORE, threshold(3)),
        Item("temperature_margin_shutdown_celsius", CORE, (Field(193),)),
        Item("temperature_margin_slowdown_celsius", CORE, (Field(194),)),
        Item("temperature_margin_maximum_celsius", MEMORY_SENSOR, (Field(195),)),
        Item("temperature_margin_maximum_celsius", CORE, (Field(196),)),
    ]


def _power() -> list[Item]:
    return [
        Item("power_watts", BOARD, (Field(185, 0), Call("nvmlDeviceGetPowerUsage")), _milli),
        Item("power_watts", MODULE, (Field(185, 1),), _milli, optional=True),
        Item("power_watts", MEMORY_POWER, (Field(185, 2),), _milli, optional=True),
        Item("power_limit_watts", BOARD, (Call("nvmlDeviceGetEnforcedPowerLimit"),), _milli),
        Item("energy_joules", BOARD, (Field(83), Call("nvmlDeviceGetTotalEnergyConsumption")), _milli),
    ]


def _limits() -> list[Item]:
    default = (Field(189), Call("nvmlDeviceGetPowerManagementDefaultLimit"))
    requested = (Field(192), Call("nvmlDeviceGetPowerManagementLimit"))
    return [
        Item("power_limit_requested_watts", BOARD, requested, _milli),
        Item("power_limit_default_watts", BOARD, default, _milli),
        Item("clock_maximum_hertz", Part(PartKind.CLOCK, "sm"), (Call("nvmlDeviceGetMaxClockInfo", (1,)),), _mega),
        Item("clock_maximum_hertz", Part(PartKind.CLOCK, "memory"), (Call("nvmlDeviceGetMaxClockInfo", (2,)),), _mega),
    ]


def _clocks(known: int | None) -> list[Item]:
    mask = (Call("nvmlDeviceGetCurrentClocksEventReasons"), Call("nvmlDeviceGetCurrentClocksThrottleReasons"))
    return [
        Item("clock_hertz", Part(PartKind.CLOCK, "sm"), (Call("nvmlDeviceGetClockInfo", (1,)),), _mega),
        Item("clock_hertz", Part(PartKind.CLOCK, "memory"), (Call("nvmlDeviceGetClockInfo", (2,)),), _mega),
        *(Item("throttle_active", _reason(name), mask, _bit(bit, known)) for bit, name in REASON_BITS.items()),
        Item("throttle_active", _reason("vendor:unknown"), mask, _bit(~sum(REASON_BITS), None)),
    ]


def _throttle_times(nvml_version: str) -> list[Item]:
    items = []
    for policy, name in VIOLATIONS.items():
        sources = (Field(74 + policy), Call("nvmlDeviceGetViolationStatus", (policy,)))
        items.append(Item("throttle_seconds", _reason(name), sources, _violation))
    for offset, name in enumerate(("software_thermal", "hardware_thermal", "power_brake")):
        fields = tuple(Field(first + offset, 0, UNSIGNED_LONG_LONG) for first in throttle_fields(nvml_version))
        items.append(Item("throttle_seconds", _reason(name), fields, _nanoseconds))
    return items


def _violation(value: Any) -> float:
    return _nanoseconds(value if isinstance(value, int) else value.violationTime)


def _reason(name: str) -> Part:
    return Part(PartKind.REASON, name)


def _block(name: str) -> Part:
    return Part(PartKind.MEMORY_BLOCK, name)


def _counter(kind: int, period: int, name: str) -> Call:
    return Call("nvmlDeviceGetMemoryErrorCounter", (kind, period, ECC_LOCATIONS[name]))


def _errors() -> list[Item]:
    items = []
    for kind, quantity in ((CORRECTED, "ecc_corrected_errors"), (UNCORRECTED, "ecc_uncorrected_errors")):
        for name, fields in ECC_VOLATILE.items():
            fallback = (_counter(kind, VOLATILE, name),) if name in ECC_LOCATIONS else ()
            items.append(Item(quantity, _block(name), (Field(fields[kind]), *fallback), optional=not fallback))
        items.append(Item(quantity, _block("sram"), (_counter(kind, VOLATILE, "sram"),)))
    rows = Call("nvmlDeviceGetRemappedRows")
    return [
        *items,
        Item("ecc_uncorrected_errors", _block("cbu"), (Field(17),), optional=True),
        Item("row_remap_pending", WHOLE, (Field(144), rows), _element(2, _yes_or_no)),
        Item("row_remap_failed", WHOLE, (Field(145), rows), _element(3, _yes_or_no)),
        Item("recovery_action", WHOLE, (Field(230),), _recovery_action),
    ]


def _lifetime_errors() -> list[Item]:
    quantity, rows = "ecc_uncorrected_lifetime_errors", Call("nvmlDeviceGetRemappedRows")
    items = []
    for name, field in ECC_LIFETIME.items():
        fallback = (_counter(UNCORRECTED, AGGREGATE, name),) if name in ECC_LOCATIONS else ()
        items.append(Item(quantity, _block(name), (Field(field), *fallback), optional=not fallback))
    return [
        *items,
        Item(quantity, _block("sram"), (_counter(UNCORRECTED, AGGREGATE, "sram"),)),
        Item(
            "ecc_sram_threshold_exceeded",
            WHOLE,
            (Call("nvmlDeviceGetSramEccErrorStatus"),),
            _attribute("bThresholdExceeded", _yes_or_no),
        ),
        Item("remapped_rows_correctable", WHOLE, (Field(142), rows), _element(0)),
        Item("remapped_rows_uncorrectable", WHOLE, (Field(143), rows), _element(1)),
        Item("row_remap_banks_without_spares", WHOLE, (Call("nvmlDeviceGetRowRemapperHistogram"),), _attribute("none")),
        # Boards before Ampere retire whole pages; later ones do not support this call.
        Item("bad_pages_retired", WHOLE, (Call("nvmlDeviceGetRetiredPages"),), optional=True),
        Item("bad_pages_pending", WHOLE, (Call("nvmlDeviceGetRetiredPagesPendingStatus"),), _flag, optional=True),
    ]


def _load() -> list[Item]:
    rates = (Call("nvmlDeviceGetUtilizationRates"),)
    memory = (Call("nvmlDeviceGetMemoryInfo_v2"), Call("nvmlDeviceGetMemoryInfo"))
    processes = (Call("nvmlDeviceGetComputeRunningProcesses_v3"), Call("nvmlDeviceGetComputeRunningProcesses_v2"))
    return [
        Item("utilization_ratio", COMPUTE, rates, _attribute("gpu", lambda percent: percent / 100)),
        Item("memory_total_bytes", WHOLE, memory, _attribute("total")),
        Item("memory_used_bytes", WHOLE, memory, _attribute("used")),
        Item("compute_processes", WHOLE, processes, len),
        Item("compute_process_ids", WHOLE, processes, _process_ids),
    ]


def _pcie() -> list[Item]:
    return [
        Item("pcie_link_generation", PCIE, (Call("nvmlDeviceGetCurrPcieLinkGeneration"),)),
        Item("pcie_link_generation_maximum", PCIE, (Call("nvmlDeviceGetMaxPcieLinkGeneration"),)),
        Item("pcie_link_width", PCIE, (Call("nvmlDeviceGetCurrPcieLinkWidth"),)),
        Item("pcie_link_width_maximum", PCIE, (Call("nvmlDeviceGetMaxPcieLinkWidth"),)),
        Item("pcie_replays", PCIE, (Field(94), Call("nvmlDeviceGetPcieReplayCounter"))),
        Item("pcie_correctable_errors", PCIE, (Field(173),)),
        Item("pcie_nonfatal_errors", PCIE, (Field(179),)),
        Item("pcie_fatal_errors", PCIE, (Field(180),)),
    ]


def _link(number: int | None) -> Part:
    return Part(PartKind.LINK, "", number)


def _link_states(links: int) -> list[Item]:
    if not links:
        return [Item("link_active", _link(None), ())]
    return [
        Item(
            "link_active",
            _link(link),
            (Field(165, link), Call("nvmlDeviceGetNvLinkState", (link,))),
            lambda state: NVLINK_STATES.get(state, f"state {state}"),  # no other one is known to be down
        )
        for link in range(links)
    ]


def _link_counters(links: int) -> list[Item]:
    """Return the counters per link: fields of NVLink 4 and before, then those of NVLink 5, then the older function."""
    items = []
    for link in range(links):

        def counter(number: int, link: int = link) -> Call:
            return Call("nvmlDeviceGetNvLinkErrorCounter", (link, number))

        part = _link(link)
        items += [
            Item("link_bandwidth_bytes_per_second", part, (Field(164, link), Field(90)), _mega),
            Item("link_replay_errors", part, (Field(161, link), counter(0))),
            Item("link_recovery_errors", part, (Field(162, link), Field(215, link), counter(1))),
            Item("link_crc_errors", part, (Field(163, link), counter(2))),
            Item("link_effective_errors", part, (Field(219, link),), optional=True),
        ]
    return items


def _settings() -> list[Item]:
    return [
        Item("ecc_enabled", WHOLE, (Field(1), Call("nvmlDeviceGetEccMode")), _element(0, _yes_or_no)),
        Item("fabric_state", WHOLE, (Call("nvmlDeviceGetGpuFabricInfoV"),), _fabric_state),
        Item("fabric_healthy", WHOLE, (Call("nvmlDeviceGetGpuFabricInfoV"),), _fabric_healthy),
        Item("fabric_faults", WHOLE, (Call("nvmlDeviceGetGpuFabricInfoV"),), _fabric_faults),
        Item("persistence_mode", WHOLE, (Call("nvmlDeviceGetPersistenceMode"),), bool),
    ]
