"""The values read from an AMD device, with their sources: the tables of the amd backend's groups.

Error counts are in the slow group: once a count is not zero, every read makes the driver write a line to the kernel
log, and the log itself reports a new error at once. The status of xGMI errors is never read, because reading clears
it; neither is the list of reserved pages, which wrappers up to 7.0 cannot decode.

Throttle reasons come from the accumulators in ``gpu_metrics``, which cost nothing in addition. The call
for that purpose, ``amdsmi_get_violation_status``, sleeps 100 ms to read the same accumulators twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from nodevet.checks.core.model import WHOLE, Part, PartKind, Scalar
from nodevet.checks.reference.tables import load_table

from .amdsmi import NO_VALUE, NO_VALUE_16, Call, Item, number

MEBI = 1 << 20
MICRO_FROM = 100_000
"""Power caps are in watts up to ROCm 6.0 and in microwatts from 6.1 on: no GPU has a cap of 0.1 megawatt."""
MILLI_FROM = 1_000
"""Temperatures are in degrees; headers promise thousandths, and no sensor reads a thousand degrees."""

DEVICE_POWER = Part(PartKind.POWER_SCOPE, "device")
COMPUTE = Part(PartKind.ENGINE, "compute")
PCIE = Part(PartKind.PCIE)

SENSORS = {
    "HOTSPOT": (Part(PartKind.SENSOR, "hotspot"), "temperature_hotspot"),
    "VRAM": (Part(PartKind.SENSOR, "memory"), "temperature_mem"),
    "EDGE": (Part(PartKind.SENSOR, "edge"), "temperature_edge"),
}
"""AMD SMI's sensor, our part, and its field in ``gpu_metrics``. EDGE does not exist on MI300 and later."""
STACKS = 4
"""Number of memory stacks of which MI200 reports the temperature."""


class Block(msgspec.Struct, frozen=True):
    """A row of reference/amd_blocks.csv: a block that counts errors, and our part. UMC are the memory controllers."""

    block: str
    part: str


BLOCKS = {row.block: row.part for row in load_table("amd_blocks.csv", Block)}
"""Blocks that count errors. Only blocks with a bit in the mask of the device are read."""

COUNTS = {
    "ecc_corrected_errors": "correctable_count",
    "ecc_uncorrected_errors": "uncorrectable_count",
    "ecc_deferred_errors": "deferred_count",
}

RESERVED, PENDING, UNRESERVABLE = 0, 1, 2
"""AMD SMI's states of a bad page."""

RESIDENCIES = {
    "processor_hot": "prochot_residency_acc",
    "power_cap": "ppt_residency_acc",
    "socket_thermal": "socket_thm_residency_acc",
    "regulator_thermal": "vr_thm_residency_acc",
    "memory_thermal": "hbm_thm_residency_acc",
}
"""Throttle reason, and the field of ``gpu_metrics`` that grows while it limits the clocks."""

GENERATIONS = {
    round(gigatransfers * scale): generation
    for generation, gigatransfers in enumerate((2.5, 5, 8, 16, 32, 64), start=1)
    for scale in (1000, 10, 1)
}
"""PCIe generation by rate. Headers say gigatransfers; ``pcie_info`` has thousandths of one, older releases tenths."""

UP, DOWN = "U", "D"
"""A link that carries data, and one that should. Any other text marks an unused port: one of the eight."""


class ThrottleClock:
    """Converts the accumulators of one device to the seconds for which each reason limited its clocks.

    The accumulators count ticks of the device. The share of a reason in the ticks between two samples is its share
    of the time between them. The driver reports the time of the answer (``system_clock_counter``, nanoseconds since
    boot), which is closer to the ticks than our own clock. The first sample only sets the start; a device that was
    reset starts again.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Start before the first sample; *monotonic* returns seconds where the driver reports no time."""
        self._monotonic = monotonic
        self._answer: Any = None
        self._ticks: int | float | None = None
        self._held: dict[str, int | float] = {}
        self._at = 0.0
        self._seconds: dict[str, float] = {}

    def of(self, reason: str) -> Callable[[Any], float | None]:
        """Return a function that takes the seconds of *reason* from an answer; None where the device counts none."""

        def take(answer: Any) -> float | None:
            if answer is not self._answer:
                self._advance(answer)
            return self._seconds.get(reason)

        return take

    def _advance(self, answer: Any) -> None:
        """Count the ticks since the last sample. Unchanged ticks decide nothing yet, and are counted later."""
        self._answer = answer
        ticks = number(answer.get("accumulation_counter"))
        held = {name: number(answer.get(field)) for name, field in RESIDENCIES.items()}
        present = {name: count for name, count in held.items() if count is not None and ticks is not None}
        passed = 0 if ticks is None or self._ticks is None else ticks - self._ticks
        if passed == 0 and present.keys() == self._held.keys():
            return
        taken = number(answer.get("system_clock_counter"))
        now = self._monotonic() if taken is None else taken / 1e9
        for name, count in present.items():
            grown = count - self._held.get(name, count)
            share = min(grown / passed, 1.0) if passed > 0 and grown > 0 else 0.0
            self._seconds[name] = self._seconds.get(name, 0.0) + share * (now - self._at)
        self._seconds = {name: self._seconds[name] for name in present}
        self._ticks, self._held, self._at = ticks, present, now


def fast_items(links: int, throttle: ThrottleClock) -> tuple[Item, ...]:
    """Return the items of every round for a whole device with *links* ports."""
    return (*_heat(), *_power(), *_clocks(), *_throttle(throttle), *_load(), *_link_states(links))


def slow_items(links: int, blocks: Iterable[str]) -> tuple[Item, ...]:
    """Return the slowly changing items: limits, errors of *blocks*, bad pages, PCIe, link rates, partitions."""
    return (*_limits(), *_errors(blocks), *_pages(), *_pcie(), *_link_rates(links), *_modes())


def partition_items() -> tuple[Item, ...]:
    """Return the items of a partition; all others belong to the whole device and are read there."""
    return tuple(_load())


# ---- Conversions ----------------------------------------------------------------------------------------------


def _key(name: str, scale: float = 1, none: frozenset[int] = NO_VALUE) -> Callable[[Any], Scalar | None]:
    """Return a function that takes a number from a dictionary, times *scale*. It raises KeyError without the key."""

    def take(answer: Any) -> Scalar | None:
        value = number(answer[name], none)
        return None if value is None else value * scale if scale != 1 else value

    return take


def _inner(outer: str, name: str, none: frozenset[int] = NO_VALUE) -> Callable[[Any], Scalar | None]:
    return lambda answer: number(answer[outer][name], none)


def _celsius(value: Any) -> float | int | None:
    degrees = number(value, NO_VALUE_16)
    return degrees / 1000 if degrees is not None and abs(degrees) >= MILLI_FROM else degrees


def _cap(name: str) -> Callable[[Any], Scalar | None]:
    def take(answer: Any) -> Scalar | None:
        value = number(answer[name])
        if not value:
            return None  # a cap of nothing is none
        return value / 1e6 if value >= MICRO_FROM else value

    return take


def _socket_power(answer: Any) -> Scalar | None:
    """Take the first non-empty field: the device decides which is filled, and a running device draws power."""
    keys = ("socket_power", "current_socket_power", "average_socket_power")
    return next((watts for key in keys if (watts := number(answer.get(key), NO_VALUE_16))), None)


def _energy(answer: Any) -> float | None:
    """Take the energy in joules. The accumulator is called ``power`` up to ROCm 6.2; its unit is in microjoules."""
    ticks = number(answer["energy_accumulator"] if "energy_accumulator" in answer else answer["power"])
    return None if ticks is None else ticks * float(answer["counter_resolution"]) / 1e6


def _ratio(answer: Any) -> float | None:
    percent = number(answer["gfx_activity"], NO_VALUE_16)
    return None if percent is None else percent / 100


def _generation(outer: str, name: str) -> Callable[[Any], int | None]:
    def take(answer: Any) -> int | None:
        rate = number(answer[outer][name], NO_VALUE_16)
        if rate is None:
            return None
        if rate not in GENERATIONS:
            raise ValueError(f"{rate} is the rate of no PCIe generation")
        return GENERATIONS[int(rate)]

    return take


def _pages_in(state: int) -> Callable[[Any], int]:
    return lambda pages: sum(int(page["status"]) == state for page in pages)


def _link_state(port: int) -> Callable[[Any], bool | None]:
    def take(answer: Any) -> bool | None:
        states = answer["status"]
        word = states[port] if port < len(states) else ""
        return True if word == UP else False if word == DOWN else None

    return take


def _link_rate(port: int) -> Callable[[Any], float | None]:
    """Take the rate of a link, reported in gigabits per second; an unused port reports 0."""

    def take(answer: Any) -> float | None:
        links = answer["links"]
        gigabits = number(links[port]["max_bandwidth"]) if port < len(links) else None
        return gigabits * 1e9 / 8 if gigabits else None

    return take


def _word(value: Any) -> str | None:
    return None if value in ("", "N/A", "UNKNOWN") else str(value).lower()


def _process_ids(processes: Any) -> str:
    return ",".join(str(pid) for pid in sorted({int(process["pid"]) for process in processes}))


# ---- The tables -----------------------------------------------------------------------------------------------


def _metrics(take: Callable[[Any], Scalar | None]) -> Call:
    return Call("amdsmi_get_gpu_metrics_info", (), take)


def _temperature(sensor: str, metric: str) -> Call:
    arguments = (f"AmdSmiTemperatureType.{sensor}", f"AmdSmiTemperatureMetric.{metric}")
    return Call("amdsmi_get_temp_metric", arguments, _celsius)


def _heat() -> list[Item]:
    own = [
        Item("temperature_celsius", part, (_temperature(sensor, "CURRENT"), _metrics(_key(field, 1, NO_VALUE_16))))
        for sensor, (part, field) in SENSORS.items()
    ]
    return [*own, *_stacks("temperature_celsius", "CURRENT")]


def _stacks(quantity: str, metric: str) -> list[Item]:
    return [
        Item(quantity, Part(PartKind.SENSOR, "memory", stack), (_temperature(f"HBM_{stack}", metric),), optional=True)
        for stack in range(STACKS)
    ]


def _limits() -> list[Item]:
    named = {"temperature_slowdown_celsius": "CRITICAL", "temperature_shutdown_celsius": "EMERGENCY"}
    heat = [
        Item(quantity, part, (_temperature(sensor, metric),))
        for quantity, metric in named.items()
        for sensor, (part, _) in SENSORS.items()
    ]
    stacks = [item for quantity, metric in named.items() for item in _stacks(quantity, metric)]
    default = Call("amdsmi_get_power_cap_info", (), _cap("default_power_cap"))
    clocks = [
        Item("clock_maximum_hertz", Part(PartKind.CLOCK, name), (_clock(kind, "max_clk"),))
        for name, kind in (("graphics", "GFX"), ("memory", "MEM"))
    ]
    return [*heat, *stacks, Item("power_limit_default_watts", DEVICE_POWER, (default,)), *clocks]


def _power() -> list[Item]:
    drawn = (Call("amdsmi_get_power_info", (), _socket_power), _metrics(_socket_power))
    return [
        Item("power_watts", DEVICE_POWER, drawn),
        Item("power_limit_watts", DEVICE_POWER, (Call("amdsmi_get_power_cap_info", (), _cap("power_cap")),)),
        Item("energy_joules", DEVICE_POWER, (Call("amdsmi_get_energy_count", (), _energy),)),
    ]


def _clock(kind: str, key: str) -> Call:
    return Call("amdsmi_get_clock_info", (f"AmdSmiClkType.{kind}",), _key(key, 1_000_000))


def _clocks() -> list[Item]:
    return [
        Item("clock_hertz", Part(PartKind.CLOCK, "graphics"), (_clock("GFX", "clk"),)),
        Item("clock_hertz", Part(PartKind.CLOCK, "memory"), (_clock("MEM", "clk"),)),
    ]


def _throttle(throttle: ThrottleClock) -> list[Item]:
    return [
        Item("throttle_seconds", Part(PartKind.REASON, reason), (_metrics(throttle.of(reason)),))
        for reason in RESIDENCIES
    ]


def _load() -> list[Item]:
    def memory(what: str) -> tuple[Call, Call]:
        usage = Call("amdsmi_get_gpu_vram_usage", (), _key(f"vram_{'used' if what == 'usage' else what}", MEBI))
        return Call(f"amdsmi_get_gpu_memory_{what}", ("AmdSmiMemoryType.VRAM",), number), usage

    def processes(take: Callable[[Any], Scalar]) -> tuple[Call]:
        return (Call("amdsmi_get_gpu_process_list", (), take),)

    return [
        Item("utilization_ratio", COMPUTE, (Call("amdsmi_get_gpu_activity", (), _ratio),)),
        Item("memory_total_bytes", WHOLE, memory("total")),
        Item("memory_used_bytes", WHOLE, memory("usage")),
        Item("compute_processes", WHOLE, processes(lambda found: len({process["pid"] for process in found}))),
        Item("compute_process_ids", WHOLE, processes(_process_ids)),
    ]


def _errors(blocks: Iterable[str]) -> list[Item]:
    return [
        Item("ecc_enabled", WHOLE, (Call("amdsmi_get_gpu_ecc_enabled", (), bool),)),
        *(
            Item(
                quantity,
                Part(PartKind.MEMORY_BLOCK, BLOCKS[block]),
                (Call("amdsmi_get_gpu_ecc_count", (f"AmdSmiGpuBlock.{block}",), _key(key)),),
            )
            for block in blocks
            for quantity, key in COUNTS.items()
        ),
    ]


def _pages() -> list[Item]:
    pages = {"retired": RESERVED, "pending": PENDING, "unreservable": UNRESERVABLE}
    return [
        *(
            Item(f"bad_pages_{name}", WHOLE, (Call("amdsmi_get_gpu_bad_page_info", (), _pages_in(state)),))
            for name, state in pages.items()
        ),
        Item("bad_pages_threshold", WHOLE, (Call("amdsmi_get_gpu_bad_page_threshold", (), number),)),
    ]


def _pcie() -> list[Item]:
    static, metric = "pcie_static", "pcie_metric"

    def info(take: Callable[[Any], Scalar | None]) -> tuple[Call]:
        return (Call("amdsmi_get_pcie_info", (), take),)

    return [
        Item("pcie_link_generation", PCIE, info(_generation(metric, "pcie_speed"))),
        Item("pcie_link_generation_maximum", PCIE, info(_generation(static, "max_pcie_speed"))),
        Item("pcie_link_width", PCIE, info(_inner(metric, "pcie_width", NO_VALUE_16))),
        Item("pcie_link_width_maximum", PCIE, info(_inner(static, "max_pcie_width", NO_VALUE_16))),
        Item(
            "pcie_replays",
            PCIE,
            (*info(_inner(metric, "pcie_replay_count")), Call("amdsmi_get_gpu_pci_replay_counter", (), number)),
        ),
    ]


def _link(port: int | None) -> Part:
    return Part(PartKind.LINK, "", port)


def _link_states(links: int) -> list[Item]:
    if not links:
        return [Item("link_active", _link(None), ())]
    return [
        Item("link_active", _link(port), (Call("amdsmi_get_gpu_xgmi_link_status", (), _link_state(port)),))
        for port in range(links)
    ]


def _link_rates(links: int) -> list[Item]:
    return [
        Item(
            "link_bandwidth_bytes_per_second",
            _link(port),
            (Call("amdsmi_get_link_metrics", (), _link_rate(port)),),
            optional=True,
        )
        for port in range(links)
    ]


def _modes() -> list[Item]:
    return [
        Item("compute_partition", WHOLE, (Call("amdsmi_get_gpu_compute_partition", (), _word),)),
        Item("memory_partition", WHOLE, (Call("amdsmi_get_gpu_memory_partition", (), _word),)),
    ]
