"""Processor sockets with their clocks, temperature and throttling, from /proc and /sys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from nodevet.checks.backends.tree import Tree, number_reading, sum_reading
from nodevet.checks.core.model import Device, DeviceKind, Firmware, Part, PartKind, Reading, ReadingStatus

_CPU = "sys/devices/system/cpu"
_HWMON = "sys/class/hwmon"
_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "hygon"}
_ARM_IMPLEMENTERS = {"0x41": "arm", "0x4e": "nvidia", "0x46": "fujitsu", "0xc0": "ampere", "0x48": "hisilicon"}

CLOCK_SAMPLES = 8
"""Number of cores of a socket whose clock is read: on some kernels the read wakes the core up."""

TEMPERATURE_DRIVERS = ("coretemp", "k10temp", "zenpower")
"""hwmon drivers whose sensors are in the processor."""

SMT_OFF = frozenset({"off", "forceoff"})
"""The kernel's values where it uses one thread of each core: the others stay present and are offline."""

CLOCK = Part(PartKind.CLOCK, "core")
CORE = Part(PartKind.REASON, "core")
PACKAGE = Part(PartKind.REASON, "package")


class Processor(msgspec.Struct, frozen=True):
    """One logical processor that is online."""

    number: int
    package: int
    core: int
    node: int | None


class Socket(msgspec.Struct, frozen=True):
    """One processor package. ``index`` counts sockets from 0; ``package`` is the kernel's own number of it."""

    index: int
    package: int
    processors: tuple[Processor, ...]
    facts: Mapping[str, str]

    @property
    def first_threads(self) -> tuple[Processor, ...]:
        """Return one processor of each core: the other threads of a core repeat its counters."""
        seen: dict[int, Processor] = {}
        for processor in self.processors:
            seen.setdefault(processor.core, processor)
        return tuple(seen.values())

    @property
    def nodes(self) -> frozenset[int]:
        """Return the NUMA nodes that the socket's processors belong to."""
        return frozenset(processor.node for processor in self.processors if processor.node is not None)


def find_sockets(tree: Tree) -> tuple[Socket, ...]:
    """Return the sockets with a processor online. Raises OSError where /proc/cpuinfo cannot be read."""
    facts = _cpuinfo(tree.text("proc/cpuinfo"))
    nodes = _nodes(tree)
    packages: dict[int, list[Processor]] = {}
    for number, entry in facts.items():
        topology = f"{_CPU}/cpu{number}/topology"
        package = tree.integer_or_none(f"{topology}/physical_package_id")
        if package is None or package < 0:
            package = int(entry.get("physical id", 0))
        core = tree.integer_or_none(f"{topology}/core_id")
        if core is None:
            core = int(entry.get("core id", number))
        packages.setdefault(package, []).append(Processor(number, package, core, nodes.get(number)))
    return tuple(
        Socket(index, package, tuple(packages[package]), facts[packages[package][0].number])
        for index, package in enumerate(sorted(packages))
    )


def are_offline(tree: Tree, sockets: Sequence[Socket]) -> bool:
    """Return whether the kernel lists a socket's worth of unused processors, as after ``chcpu -d``.

    The *sockets* of a node are alike, so another one has as many cores as the smallest. With SMT switched off the
    other threads of the used cores are offline and belong to no other socket. Processors that are possible but not
    present (``possible``), as in a virtual machine that can grow, do not count; without lists of the kernel the result
    is False.
    """
    present, online = (tree.text_or_none(f"{_CPU}/{name}") for name in ("present", "online"))
    if present is None or online is None:
        return False
    try:
        used = {*_numbers(online)}
        offline = len({*_numbers(present)} - used)
    except ValueError:
        return False
    if tree.text_or_none(f"{_CPU}/smt/control") in SMT_OFF:
        offline -= len(used)
    return offline >= min((len(socket.first_threads) for socket in sockets), default=1)


def socket_device(tree: Tree, socket: Socket, backend: str) -> Device:
    """Return *socket* as a device; its compute units are cores, not threads."""
    facts = socket.facts
    implementer = facts.get("CPU implementer", "")
    vendor_id = facts.get("vendor_id", "")
    vendor = _VENDORS.get(vendor_id) or _ARM_IMPLEMENTERS.get(implementer) or vendor_id.lower() or "unknown"
    unnamed = f"implementer {implementer} part {facts.get('CPU part', '?')}" if implementer else "unknown processor"
    kilohertz = tree.integer_or_none(f"{_frequency(socket.processors[0])}/cpuinfo_max_freq")
    microcode = facts.get("microcode")
    nodes = socket.nodes
    return Device(
        id=f"cpu-{socket.index}",
        kind=DeviceKind.CPU,
        vendor=vendor,
        model=facts.get("model name") or unnamed,
        backend=backend,
        numa_node=next(iter(nodes)) if len(nodes) == 1 else None,
        driver=tree.text_or_none(f"{_frequency(socket.processors[0])}/scaling_driver"),
        firmware=(Firmware("microcode", microcode),) if microcode else (),
        compute_units=len(socket.first_threads),
        maximum_clock_hertz=None if kilohertz is None else kilohertz * 1000,
    )


def clock_readings(tree: Tree, socket: Socket) -> Iterator[Reading]:
    """Yield the mean clock of up to CLOCK_SAMPLES cores spread over the socket, and its highest clock."""
    cores = socket.first_threads
    step = max(1, len(cores) // CLOCK_SAMPLES)
    chosen = cores[::step][:CLOCK_SAMPLES]
    files = [f"{_frequency(processor)}/scaling_cur_freq" for processor in chosen]
    # Files hold kilohertz: the sum divided by (cores / 1000) is the mean in hertz.
    yield sum_reading(tree, "clock_hertz", files, part=CLOCK, scale=len(files) / 1000)
    highest = f"{_frequency(chosen[0])}/cpuinfo_max_freq"
    yield number_reading(tree, "clock_maximum_hertz", highest, part=CLOCK, scale=1 / 1000)


def throttle_readings(tree: Tree, socket: Socket) -> Iterator[Reading]:
    """Yield the kernel's counters of thermal throttling.

    Cores are summed over one thread each; the package is read from one processor, because the kernel updates all
    processors of a package at the same time. Only Intel processors have these counters.
    """
    cores = [f"{_throttle(processor)}/core_throttle" for processor in socket.first_threads]
    package = f"{_throttle(socket.processors[0])}/package_throttle"
    for part, files in ((CORE, cores), (PACKAGE, [package])):
        yield sum_reading(tree, "throttle_events", [f"{file}_count" for file in files], part=part)
        times = [f"{file}_total_time_ms" for file in files]
        yield sum_reading(tree, "throttle_seconds", times, part=part, scale=1000)


def heat_readings(tree: Tree, sensors: Sequence[str]) -> Iterator[Reading]:
    """Yield the temperature of each of a socket's *sensors*, and the limit from which the processor throttles.

    The limit is hwmon's ``crit``: the junction temperature at which the processor throttles. hwmon's ``max`` is left
    out: it is the temperature for full fan speed, which is no fault.
    """
    for index, sensor in enumerate(sensors):
        part = Part(PartKind.SENSOR, "package", index if len(sensors) > 1 else None)
        yield _temperature(tree, sensor, part)
        yield number_reading(tree, "temperature_slowdown_celsius", f"{sensor}_crit", part=part, scale=1000)
        yield number_reading(tree, "temperature_shutdown_celsius", f"{sensor}_emergency", part=part, scale=1000)
    if not sensors:
        detail = f"no {', '.join(TEMPERATURE_DRIVERS)} sensor of this socket in /{_HWMON}"
        part = Part(PartKind.SENSOR, "package")
        yield Reading("temperature_celsius", None, part, ReadingStatus.UNSUPPORTED, detail)


def _temperature(tree: Tree, sensor: str, part: Part) -> Reading:
    if tree.integer_or_none(f"{sensor}_fault"):
        detail = f"/{sensor}_fault: the sensor reports a fault of its own"
        return Reading("temperature_celsius", None, part, ReadingStatus.UNAVAILABLE, detail)
    return number_reading(tree, "temperature_celsius", f"{sensor}_input", part=part, scale=1000)


def package_sensors(tree: Tree, socket: Socket, sockets: Sequence[Socket]) -> tuple[str, ...]:
    """Return the path of each package sensor of *socket*, without ``_input``; *sockets* are all of the node."""
    chips: dict[str, list[str]] = {}
    for chip in tree.names(_HWMON, r"hwmon\d+"):
        driver = tree.text_or_none(f"{_HWMON}/{chip}/name")
        if driver in TEMPERATURE_DRIVERS:
            chips.setdefault(driver, []).append(f"{_HWMON}/{chip}")
    found = []
    for driver, folders in chips.items():
        for position, folder in enumerate(folders):
            sensor = _package_sensor(tree, folder, driver, socket)
            if sensor and (
                driver == "coretemp" or _owner(tree, folder, position, len(folders), sockets) == socket.index
            ):
                found.append(sensor)
    return tuple(found)


def _package_sensor(tree: Tree, folder: str, driver: str, socket: Socket) -> str | None:
    """Return the sensor of the whole package: coretemp numbers it by socket, AMD calls it Tdie or Tctl."""
    labels = {
        tree.text_or_none(f"{folder}/{name}"): f"{folder}/{name.removesuffix('_label')}"
        for name in tree.names(folder, r"temp\d+_label")
    }
    if driver == "coretemp":
        return labels.get(f"Package id {socket.package}")
    # Tctl may include an offset for fan control; Tdie is the temperature itself, where present.
    unlabelled = f"{folder}/temp1" if tree.exists(f"{folder}/temp1_input") else None
    return labels.get("Tdie") or labels.get("Tctl") or unlabelled


def _owner(tree: Tree, folder: str, position: int, chips: int, sockets: Sequence[Socket]) -> int:
    """Return the index of the socket of an AMD sensor chip: by NUMA node, else by order."""
    node = tree.integer_or_none(f"{folder}/device/numa_node")
    for socket in sockets:
        if node is not None and node in socket.nodes:
            return socket.index
    return position * len(sockets) // chips


def _frequency(processor: Processor) -> str:
    return f"{_CPU}/cpu{processor.number}/cpufreq"


def _throttle(processor: Processor) -> str:
    return f"{_CPU}/cpu{processor.number}/thermal_throttle"


def _cpuinfo(text: str) -> dict[int, dict[str, str]]:
    """Return the entries of /proc/cpuinfo by number of the logical processor."""
    entries: dict[int, dict[str, str]] = {}
    for block in text.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        entry = {key.strip(): value.strip() for key, separator, value in pairs if separator}
        if entry.get("processor", "").isdigit():
            entries[int(entry["processor"])] = entry
    return entries


def _nodes(tree: Tree) -> dict[int, int]:
    """Return the NUMA node of each logical processor; empty where the kernel lists no nodes."""
    result: dict[int, int] = {}
    for node in tree.names("sys/devices/system/node", r"node\d+"):
        listing = tree.text_or_none(f"sys/devices/system/node/{node}/cpulist") or ""
        result.update(dict.fromkeys(_numbers(listing), int(node.removeprefix("node"))))
    return result


def _numbers(listing: str) -> Iterator[int]:
    """Yield the numbers of a kernel list such as ``0-3,8``."""
    for piece in filter(None, listing.split(",")):
        first, _, last = piece.partition("-")
        yield from range(int(first), int(last or first) + 1)
