"""A simulated node at one moment: its devices, readings, kernel log and probe results. Pure.

Everything is a function of profile, node name, seed and time: two processes see the same node at the same moment, and
a restarted one continues where it was. Noise is a sum of slow waves, so that readings drift as real ones do; its bounds
keep it clear of every limit. Counters are integrals in closed form: they only grow.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from nodevet.checks.core.documents import copied
from nodevet.checks.core.model import (
    NODE,
    Device,
    DeviceKind,
    Firmware,
    Instant,
    Link,
    Part,
    Reading,
    ReadingStatus,
    Scalar,
)
from nodevet.checks.core.quantities import QUANTITIES, QuantityKind
from nodevet.checks.reference.profiles import AcceleratorProfile, Row, load_profile, part_of

from .faults import KINDS, Effect, effects_of, lines_of
from .scenario import Fault, Scenario

MEMORY = "memory"
BUSY_LEVEL = 0.3
"""Load from which a device counts as used by a job."""

FIRST_PID = 5_000_000
"""Process ids of simulated jobs: above the largest of Linux (4194304), so that no real process has them."""

WAVE_SECONDS = (97.0, 41.0, 13.7)
"""Periods of the noise in seconds. None divides another, so that the sum does not repeat within hours."""

UNEVENNESS = 0.08
"""Largest difference in load between two devices, as a share of 1."""

DAY_SECONDS, JOB_SECONDS = 86_400.0, 2_700.0
HEAT_SECONDS = 10.0
"""Time in which a device becomes too hot."""


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated node, and its scenario with the start time (CLOCK_BOOTTIME)."""

    profile: str
    node: str
    scenario: Scenario = Scenario()
    since_ns: int = 0


class Trouble(StrEnum):
    """The failure of a device when it is read."""

    MISSING = "missing"
    LOST = "lost"
    HANG = "hang"
    CRASH = "crash"


class ProbeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a probe on one device."""

    device: str
    tflops: float
    mismatches: int


class _Wave(msgspec.Struct, frozen=True):
    amplitude: float
    per_second: float
    phase: float


class World:
    """The node of one simulation: the data that a backend, a kernel and a load return at a moment."""

    def __init__(self, simulation: Simulation) -> None:
        """Prepare the node of *simulation*. Raises UsageError where its profile does not exist."""
        self._simulation = simulation
        self._scenario = simulation.scenario
        self._profile = load_profile(simulation.profile)
        self._phase = functools.cache(self._uncached_phase)
        self._devices = dict(self._everything())
        self._targets = {device.id: target for target, device in self._devices.items()}
        self._natural = self._waves()

    @property
    def profile(self) -> str:
        """Return the name of the profile."""
        return self._simulation.profile

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions that the host and its driver report."""
        board = self._profile.accelerators
        driver = {"driver": board.driver} if board else {}
        return {"kernel": self._profile.node.kernel, **driver}

    def devices(self, backend: str, now: Instant) -> tuple[Device, ...]:
        """Return the devices that *backend* enumerates now."""
        return tuple(
            device
            for device in self._devices.values()
            if device.backend == backend and self.trouble(device.id, now) is not Trouble.MISSING
        )

    def trouble(self, device: str, now: Instant) -> Trouble | None:
        """Return the trouble that prevents reading *device* now, or None."""
        seconds = self._seconds(now)
        kinds = {fault.kind for fault in self._faults(device) if fault.is_active(seconds)}
        return next((trouble for trouble in Trouble if trouble.value in kinds), None)

    def readings(self, device: str, group: str, now: Instant) -> tuple[Reading, ...]:
        """Return the readings of *group* of *device* now."""
        level = self._level(device, now)
        values: dict[tuple[str, Part], Reading] = {}
        for row in self._rows(device, group):
            for part in row.parts:
                values[row.quantity, part] = self._reading(device, row, part, level, now)
        for fault in self._faults(device):
            self._apply(fault, device, values, self._seconds(now))
        return tuple(values.values())

    def kernel_lines(self, after_seconds: float, until_seconds: float) -> tuple[tuple[float, str], ...]:
        """Return the kernel log lines in the span, each with its seconds into the scenario."""
        lines = [
            (fault.at, line)
            for fault in self._scenario.faults
            if after_seconds < fault.at <= until_seconds
            for target in fault.devices
            for line in self._lines(fault, target)
        ]
        return tuple(sorted(lines, key=lambda entry: entry[0]))

    def probe(self, now: Instant) -> tuple[ProbeFigures, ...]:
        """Return the results of a probe that ends now, for each device that a load runs on.

        A device with any other active fault is left out, and every device while memory or node have one: a probe proves
        the repair.
        """
        boards = [device for device in self._devices.values() if device.kind is DeviceKind.ACCELERATOR]
        loaded = boards or [device for device in self._devices.values() if device.kind is DeviceKind.CPU]
        seconds = self._seconds(now)
        faulty = {
            target
            for fault in self._scenario.faults
            if fault.is_active(seconds) and not KINDS[fault.kind].probed
            for target in fault.devices
        }
        if faulty & {"memory", "node"}:
            return ()
        return tuple(self._figures(device.id, now) for device in loaded if self._targets[device.id] not in faulty)

    # The devices.

    def _everything(self) -> Iterator[tuple[str, Device]]:
        node = self._profile.node
        yield (
            "node",
            Device(
                id=NODE,
                kind=DeviceKind.NODE,
                vendor=node.vendor,
                model=node.model,
                backend="host",
                serial=self._serial("node"),
                firmware=(Firmware("bios", node.bios),),
            ),
        )
        yield (
            "memory",
            Device(
                id=MEMORY,
                kind=DeviceKind.MEMORY,
                vendor="unknown",
                model="main memory",
                backend="host",
                memory_bytes=node.memory_bytes,
            ),
        )
        sockets = self._profile.sockets
        for index in range(sockets.count):
            yield (
                f"cpu-{index}",
                Device(
                    id=f"cpu-{index}",
                    kind=DeviceKind.CPU,
                    vendor=sockets.vendor,
                    model=sockets.model,
                    backend="host",
                    numa_node=index,
                    compute_units=sockets.cores,
                    maximum_clock_hertz=sockets.maximum_clock_hertz,
                ),
            )
        board = self._profile.accelerators
        for slot in range(len(board.slots) if board else 0):
            assert board is not None
            yield str(slot), self._accelerator(board, slot)

    def _accelerator(self, board: AcceleratorProfile, slot: int) -> Device:
        digits = self._digest(f"uuid {slot}")
        uuid = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-9{digits[17:20]}-{digits[20:32]}"
        peer = board.peer if board.peer == "switch" else None
        return copied(
            Device,
            board,
            id=board.id.format(uuid=uuid, chip=digits[:16]),
            kind=DeviceKind.ACCELERATOR,
            backend=board.vendor,
            uuid=board.uuid.format(uuid=uuid, chip=digits[:16]),
            serial=self._serial(f"slot {slot}"),
            pci=board.slots[slot].pci,
            minor=board.first_minor + slot,
            numa_node=board.slots[slot].numa,
            firmware=tuple(Firmware(name, version) for name, version in board.firmware.items()),
            links=tuple(Link(port, peer, board.link_generation) for port in range(board.links)),
        )

    def _digest(self, words: str) -> str:
        return hashlib.sha256(f"{self._simulation.profile} {self._simulation.node} {words}".encode()).hexdigest()

    def _serial(self, words: str) -> str:
        return f"SIM{self._digest(f'serial {words}')[:9].upper()}"

    # The load.

    def _waves(self) -> tuple[_Wave, ...]:
        """Return the waves of a busy node's load: the day, and jobs that begin and end."""
        day, job = (2 * math.pi / seconds for seconds in (DAY_SECONDS, JOB_SECONDS))
        offset = self._phase("job")
        waves = [_Wave(0.10, day, self._phase("day"))]
        # The first terms of a square wave: jobs end as sharply as they begin.
        waves += [_Wave(0.36 / odd, odd * job, odd * offset) for odd in (1, 3, 5)]
        return tuple(waves)

    def _level(self, device: str, now: Instant) -> float:
        """Return the load of *device* now, from 0 to 1."""
        forced = self._forced(device, self._seconds(now))
        if forced is not None:
            return forced
        seconds = now.boottime_ns / 1e9
        level = 0.5 + sum(wave.amplitude * math.sin(wave.per_second * seconds + wave.phase) for wave in self._natural)
        return min(max(level, 0.0), 1.0) * self._share(device)

    def _share(self, device: str) -> float:
        """Return the share of *device* in the node's load: no two devices have the same load and temperature."""
        return 1 - UNEVENNESS * self._phase(f"{device} share") / (2 * math.pi)

    def _forced(self, device: str, seconds: float) -> float | None:
        """Return the load that the scenario gives *device*, the last of several; None without one."""
        target = self._targets[device]
        for load in reversed(self._scenario.loads):
            everywhere = not target.isdigit() and any(name.isdigit() for name in load.devices)
            active = load.at <= seconds and (load.until is None or seconds < load.until)
            if active and (target in load.devices or everywhere):
                return load.level
        return self._scenario.level

    def _integral(self, device: str, now: Instant) -> float:
        """Return the load of *device* integrated from boot until now, in seconds of full load."""
        end = now.boottime_ns / 1e9
        begin = self._simulation.since_ns / 1e9
        edges = {begin, end}
        for load in self._scenario.loads:
            edges |= {begin + moment for moment in (load.at, load.until) if moment is not None}
        cuts = sorted(edge for edge in edges if begin <= edge <= end)
        share = self._share(device)
        total = share * self._natural_integral(0.0, min(begin, end))
        for first, last in itertools.pairwise(cuts):
            forced = self._forced(device, (first + last) / 2 - begin)
            total += share * self._natural_integral(first, last) if forced is None else forced * (last - first)
        return total

    def _natural_integral(self, first: float, last: float) -> float:
        total = 0.5 * (last - first)
        for wave in self._natural:
            ends = [math.cos(wave.per_second * seconds + wave.phase) for seconds in (first, last)]
            total += wave.amplitude / wave.per_second * (ends[0] - ends[1])
        return total

    # The readings.

    def _rows(self, device: str, group: str) -> tuple[Row, ...]:
        readings = self._profile.readings(self._targets[device])
        return {"fast": readings.fast, "slow": readings.slow}.get(group, ())

    def _reading(self, device: str, row: Row, part: Part, level: float, now: Instant) -> Reading:
        if row.unsupported:
            return Reading(row.quantity, None, part, ReadingStatus.UNSUPPORTED, row.unsupported)
        if row.start is not None:
            full = self._integral(device, now)
            rest = now.boottime_ns / 1e9 - full
            return _number(row, part, row.start + row.rate_idle * rest + row.rate_load * full)
        if row.idle is not None and row.load is not None:
            noise = row.noise * self._noise(f"{device} {row.quantity} {part}", now)
            return _number(row, part, row.idle + (row.load - row.idle) * level + noise)
        value = row.busy if row.busy is not None and level >= BUSY_LEVEL else row.value
        if isinstance(value, str):
            slot = self._targets[device]
            value = value.replace("{pid}", str(FIRST_PID + int(slot) if slot.isdigit() else FIRST_PID))
        return Reading(row.quantity, value, part)

    def _noise(self, words: str, now: Instant) -> float:
        """Return a slowly varying number from -1 to 1."""
        seconds = now.boottime_ns / 1e9
        waves = (math.sin(2 * math.pi * seconds / period + self._phase(f"{words} {period}")) for period in WAVE_SECONDS)
        return sum(waves) / len(WAVE_SECONDS)

    def _uncached_phase(self, words: str) -> float:
        digest = hashlib.sha256(f"{self._simulation.node} {self._scenario.seed} {words}".encode()).digest()
        return int.from_bytes(digest[:8]) / 2**64 * 2 * math.pi

    # The faults.

    def _seconds(self, now: Instant) -> float:
        """Return the seconds into the scenario at *now*."""
        return (now.boottime_ns - self._simulation.since_ns) / 1e9

    def _faults(self, device: str) -> Iterable[Fault]:
        return (fault for fault in self._scenario.faults if self._targets[device] in fault.devices)

    def _apply(self, fault: Fault, device: str, values: dict[tuple[str, Part], Reading], seconds: float) -> None:
        if seconds < fault.at:
            return
        if fault.kind == "set":
            if fault.is_active(seconds):
                _set(fault, values)
            return
        for effect in effects_of(fault.kind, self._profile.subject(self._targets[device])):
            for key in _matching(effect, fault, values):
                values[key] = self._changed(effect, fault, values[key], device, seconds)

    def _changed(self, effect: Effect, fault: Fault, reading: Reading, device: str, seconds: float) -> Reading:
        value = reading.value
        if value is None or isinstance(value, str):
            return reading
        given = getattr(fault, effect.setting) if effect.setting else None
        amount = effect.amount if given is None else float(given)
        if effect.change == "add":
            return _replaced(reading, value + amount)
        if effect.change == "grow":
            return _replaced(reading, value + amount * fault.elapsed(seconds))
        if not fault.is_active(seconds):
            return reading
        if effect.change == "scale":
            return _replaced(reading, value * amount)
        target = amount
        if effect.change == "above":
            limit = self._profile.slowdown_celsius(self._targets[device], reading.part)
            if limit is None:
                return reading
            target = limit + amount
        share = min(1.0, (seconds - fault.at) / HEAT_SECONDS) if "temperature" in reading.quantity else 1.0
        return _replaced(reading, value + (target - value) * share)

    def _lines(self, fault: Fault, target: str) -> Iterator[str]:
        pci = self._devices[target].pci or ""
        for text in lines_of(fault.kind, self._profile.subject(target)):
            yield text.format(
                pci=pci,
                slot=pci.split(".")[0],
                link=fault.link,
                code=fault.code,
                count=fault.count or 1,
                pid=FIRST_PID if fault.pid is None else fault.pid,
                process=fault.process or "simulated",
                text=(fault.text or "simulated").replace("{pci}", pci),
            )

    def _figures(self, device: str, now: Instant) -> ProbeFigures:
        seconds = self._seconds(now)
        rate = self._profile.probe.tflops * (1 + 0.004 * self._noise(f"{device} tflops", now))
        wrong = 0
        for fault in self._faults(device):
            if fault.kind == "slow" and fault.is_active(seconds):
                rate *= 0.85 if fault.ratio is None else fault.ratio
            if fault.kind == "wrong_result" and fault.is_active(seconds):
                wrong += fault.count or 1
        return ProbeFigures(device=device, tflops=rate, mismatches=wrong)


def _number(row: Row, part: Part, value: float) -> Reading:
    """Return *value* as a reading of *row*: clamped to the bounds of the quantity, in whole units where set."""
    entry = QUANTITIES[row.quantity]
    low = -math.inf if entry.low is None else entry.low
    high = math.inf if entry.high is None else entry.high
    value = min(max(value, low), high)
    return Reading(row.quantity, round(value) if row.whole else round(value, 6), part)


def _replaced(reading: Reading, value: float) -> Reading:
    """Return *reading* with another number of the same type."""
    number: Scalar = round(value, 6)
    if QUANTITIES[reading.quantity].kind is QuantityKind.FLAG:
        number = bool(value)
    elif isinstance(reading.value, int):
        number = round(value)
    return Reading(reading.quantity, number, reading.part)


def _matching(effect: Effect, fault: Fault, values: dict[tuple[str, Part], Reading]) -> Iterable[tuple[str, Part]]:
    wanted = effect.part.format(link=fault.link)
    return [key for key in values if key[0] == effect.quantity and wanted in ("*", str(key[1]))]


def _set(fault: Fault, values: dict[tuple[str, Part], Reading]) -> None:
    """Set the reading of every part of the quantity, or of the named part, to the scenario's value."""
    part = part_of(fault.part) if fault.part else None
    for key in [key for key in values if key[0] == fault.quantity and part in (None, key[1])]:
        values[key] = Reading(key[0], fault.value, key[1], fault.status, fault.detail)
