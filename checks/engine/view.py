"""The input of a check. Pure: built by the engine, read by checks, the same in daemon, one-shot and replay.

An old reading is not a measurement: a sample that is older than its cadence allows is shown as ``unavailable``. The
readings of a device that could not be read are shown as ``unavailable`` too, so that no check can pass on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from nodevet.checks.core.model import (
    NODE,
    WHOLE,
    Device,
    DeviceKind,
    Event,
    Failure,
    Instant,
    Part,
    ReaderStatus,
    Reading,
    ReadingStatus,
    Result,
    Sample,
)
from nodevet.checks.core.quantities import QUANTITIES

from .lapses import Told

if TYPE_CHECKING:
    from .reuse import Index, Reuse

OLD_ROUNDS = 3
"""A sample is old after this many rounds and one deadline without another."""


class Growth(msgspec.Struct, frozen=True):
    """Growth of a counter between two samples of one epoch. A counter that fell began a new epoch: no growth.

    ``within_hour`` is its growth in the last 55 to 60 minutes, or since its first sample.
    """

    amount: float
    seconds: float
    until: Instant
    within_hour: float = 0.0

    @property
    def per_second(self) -> float:
        """Return the rate of growth."""
        return self.amount / self.seconds if self.seconds > 0 else 0.0


class Cadence(msgspec.Struct, frozen=True):
    """The interval of a group, and the time limit of a round."""

    interval_seconds: float
    deadline_seconds: float

    @property
    def age_limit_seconds(self) -> float:
        """Return the age in seconds from which a sample of this cadence is old."""
        return OLD_ROUNDS * self.interval_seconds + self.deadline_seconds


class KernelLogState(msgspec.Struct, frozen=True):
    """Whether the kernel log can be read, and how many records, or bytes of a file, were lost unread.

    ``is_evidence``: it is the kernel's own log, not a file or FIFO, which may contain text of users. ``begun``: its
    content at the opening is being read, and the end is not reached yet.
    """

    readable: bool
    path: str = ""
    detail: str = ""
    lost_records: int = 0
    skipped_bytes: int = 0
    read: Instant | None = None
    is_evidence: bool = True
    begun: bool = False


class Seen(msgspec.Struct, frozen=True):
    """A device as this node remembers it: its identity, the links that were ever up, and all slots it was in.

    ``unlisted``: its command no longer lists it; ``instead``: the devices that replaced the whole list, or that are new
    since a boot. ``gone_in``: the boot in which its backend first listed others without it. ``replaces``: it took the
    place of a board that was forgotten.
    """

    device: Device
    first: Instant
    last: Instant
    links_up: tuple[int, ...] = ()
    slots: tuple[str, ...] = ()
    unlisted: bool = False
    instead: tuple[str, ...] = ()
    gone_in: str = ""
    replaces: bool = False


class KnownDevices(msgspec.Struct, frozen=True):
    """The engine's memory of the node's inventory: devices by id."""

    seen: dict[str, Seen] = {}


class Arrived(msgspec.Struct, frozen=True):
    """Boards that their driver may not list yet, because they or the driver arrived while the agent watched.

    ``bound``: when the kernel bound a driver to a board that the backend of its vendor has not listed since, by PCI
    address. ``resumed``: the end of the last release of a backend, or of the first of several that followed closely,
    and the ids of the devices that the backend has listed since the last one.
    """

    bound: Mapping[str, Instant] = {}
    resumed: Mapping[str, tuple[Instant, frozenset[str]]] = {}


class View(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The present state of the node. ``devices`` answered the last enumeration; ``memory`` contains those known before.
    ``duplicates`` are devices that two backends list: the omitted entry, and the one in ``devices``. ``drained`` were
    taken out of service by the driver's own command: nothing reads them. ``on_bus`` are the accelerators on the PCI
    bus, also those in ``devices``.

    ``samples`` is keyed by (device, group), ``growth`` by (device, quantity, part); ``lapses`` are the times of the
    last values of missing readings, ``told`` the last values of readings that excuse others; ``events`` are new since
    the last round; ``results`` the latest of each workload and device. ``reuse`` holds the findings of the last round;
    if it is None, everything is judged again.
    """

    now: Instant
    devices: tuple[Device, ...] = ()
    duplicates: tuple[tuple[Device, Device], ...] = ()
    drained: tuple[Device, ...] = ()
    on_bus: tuple[Device, ...] = ()
    arrived: Arrived = Arrived()
    memory: KnownDevices = KnownDevices()
    samples: Mapping[tuple[str, str], Sample] = {}
    growth: Mapping[tuple[str, str, Part], Growth] = {}
    lapses: Mapping[tuple[str, str, Part], Instant] = {}
    told: Mapping[tuple[str, str, Part], Told] = {}
    readers: tuple[ReaderStatus, ...] = ()
    cadences: Mapping[tuple[str, str], Cadence] = {}
    events: Sequence[Event] = ()
    results: Sequence[Result] = ()
    required: Mapping[str, frozenset[str]] = {}
    kernel_log: KernelLogState | None = None
    reuse: Reuse | None = None

    def device(self, device_id: str) -> Device | None:
        """Return the device of *device_id*, present or remembered."""
        seen = self.memory.seen.get(device_id)
        return self._devices.get(device_id) or (seen.device if seen else None)

    def of_kind(self, *kinds: DeviceKind) -> tuple[Device, ...]:
        """Return the present devices of the given *kinds*."""
        return tuple(device for device in self.devices if device.kind in kinds)

    def reader(self, backend: str) -> ReaderStatus | None:
        """Return the status of the reader of *backend*, or None if there is none."""
        return next((reader for reader in self.readers if reader.backend == backend), None)

    def by_pci(self, pci: str | None) -> Device | None:
        """Return the device at PCI address *pci*; the function after the dot may be omitted.

        With a function, its own device takes precedence: virtual devices may be functions of one another.
        """
        if pci is None:
            return None
        wanted = pci.split(".")[0]
        known = (*self.devices, *(seen.device for seen in self.memory.seen.values()))
        alike = [device for device in known if device.pci and device.pci.split(".")[0] == wanted]
        matches = [device for device in alike if device.pci == pci] or alike
        return next((device for device in matches if device.backend != "host"), matches[0] if matches else None)

    def owner(self, event: Event) -> str:
        """Return the id of the device of *event*, or the node's if it names no known device."""
        for named in (event.device, event.fields.get("gpu_uuid")):
            if named is not None and self.device(named) is not None:
                return named
        device = self.by_pci(event.pci)
        return device.id if device else NODE

    def requires(self, device_id: str, quantity: str) -> bool:
        """Return whether the node must be able to read *quantity* of the device."""
        return quantity in self.required.get(device_id, frozenset())

    def failure(self, device_id: str) -> Failure | None:
        """Return the failure of the last attempt to read the device, or None."""
        return self._failures.get(device_id)

    def age_seconds(self, sample: Sample) -> float | None:
        """Return the age of *sample* in seconds; None if it is of another boot."""
        return self.now.seconds_since(sample.time)

    def is_old(self, sample: Sample) -> bool:
        """Return whether *sample* is too old to describe the present."""
        age = self.age_seconds(sample)
        cadence = self.cadences.get((sample.backend, sample.group))
        return age is None or (cadence is not None and age > cadence.age_limit_seconds)

    def readings(self, device_id: str, quantity: str) -> tuple[tuple[Reading, Sample], ...]:
        """Return every reading of *quantity* of the device with its sample, one per part.

        Readings of an old or failed sample are returned as ``unavailable``. Raises LookupError for an unknown quantity:
        a check that requests it would never find a fault.
        """
        found = self._index.get((device_id, quantity), ())
        if not found and quantity not in QUANTITIES:
            raise LookupError(f"no quantity is called {quantity!r}: docs/reference/command-backend.md lists them")
        return found

    def reading(self, device_id: str, quantity: str, part: Part = WHOLE) -> Reading | None:
        """Return the reading of *quantity* of one *part*, or None if it was never reported.

        Raises LookupError for a part that none of its readings has.
        """
        refuse_other_part(quantity, part)
        return next((entry for entry, _ in self.readings(device_id, quantity) if entry.part == part), None)

    def number(self, device_id: str, quantity: str, part: Part = WHOLE) -> float | None:
        """Return the measured number of *quantity*, or None if there is none."""
        entry = self.reading(device_id, quantity, part)
        if entry is None or isinstance(entry.value, str) or entry.value is None:
            return None
        return float(entry.value)

    def lately(self, device_id: str, quantity: str, part: Part = WHOLE) -> float | None:
        """Return the number of a reading that excuses others, or its last value while that is not old.

        One missing sample does not withdraw an excuse.
        """
        number, told = self.number(device_id, quantity, part), self.told.get((device_id, quantity, part))
        if number is not None or told is None or isinstance(told.value, str):
            return number
        age, cadence = self.now.seconds_since(told.time), self.cadences.get((told.backend, told.group))
        is_old = age is None or (cadence is not None and age > cadence.age_limit_seconds)
        return None if is_old else float(told.value)

    def was_read_lately(self, device_id: str, quantity: str, part: Part) -> bool:
        """Return whether a missing reading was read so recently that it would not be old yet."""
        read = self.lapses.get((device_id, quantity, part))
        age = None if read is None else self.now.seconds_since(read)
        sample = next((sample for entry, sample in self.readings(device_id, quantity) if entry.part == part), None)
        cadence = None if sample is None else self.cadences.get((sample.backend, sample.group))
        return age is not None and cadence is not None and age <= cadence.age_limit_seconds

    def evidence_time(self, device_id: str, *quantities: str) -> Instant | None:
        """Return the time of the oldest sample with one of *quantities*."""
        times = [sample.time for key in quantities for _, sample in self.readings(device_id, key)]
        return min(times, key=attrgetter("boottime_ns"), default=None)

    def siblings(self, device: Device) -> tuple[Device, ...]:
        """Return the other present devices of the same vendor and model."""
        return tuple(
            other
            for other in self.devices
            if other.id != device.id and (other.vendor, other.model) == (device.vendor, device.model)
        )

    @cached_property
    def observed(self) -> dict[tuple[str, str], Any]:
        """Return the cache of this round for values derived from readings, by device and quantity."""
        return {}

    @cached_property
    def _devices(self) -> dict[str, Device]:
        return {device.id: device for device in reversed(self.devices)}

    @cached_property
    def _names(self) -> dict[str, str]:
        return {}

    @cached_property
    def _failures(self) -> dict[str, Failure]:
        by_age = sorted(self.samples.values(), key=lambda sample: sample.time.boottime_ns)
        return {sample.device: sample.failure for sample in by_age if sample.failure}

    @cached_property
    def _index(self) -> dict[tuple[str, str], tuple[tuple[Reading, Sample], ...]]:
        index: dict[tuple[str, str], tuple[tuple[Reading, Sample], ...]] = {}
        for sample in self.samples.values():
            for key, entries in self._index_of(sample).items():
                index[key] = (*index[key], *entries) if key in index else entries
        return index

    def _index_of(self, sample: Sample) -> Index:
        """Return the readings of *sample*; as long as it is not old, the same object in every round."""
        if self.reuse is None or self.is_old(sample):
            return _indexed(sample, self.age_seconds(sample), is_old=self.is_old(sample))
        return self.reuse.index(sample, partial(_indexed, sample, None, is_old=False))


def _indexed(sample: Sample, age_seconds: float | None, *, is_old: bool) -> Index:
    index: dict[tuple[str, str], list[tuple[Reading, Sample]]] = {}
    for entry in sample.readings:
        shown = _unavailable(entry, age_seconds) if is_old else entry
        index.setdefault((sample.device, entry.quantity), []).append((shown, sample))
    return {key: tuple(entries) for key, entries in index.items()}


def refuse_other_part(quantity: str, part: Part) -> None:
    """Raise LookupError if *quantity* has no reading of such a *part*: it would be None for ever."""
    known = QUANTITIES.get(quantity)
    if known is not None and part.kind is not known.part:
        raise LookupError(f"{quantity} is of a {known.part}, not of a {part.kind}: name the part")


def _unavailable(entry: Reading, age_seconds: float | None) -> Reading:
    if entry.status is not ReadingStatus.OK:
        return entry
    age = "in another boot" if age_seconds is None else f"{age_seconds:.0f} s ago"
    return Reading(entry.quantity, None, entry.part, ReadingStatus.UNAVAILABLE, f"last read {age}")


FIRST_RENDER_NODE = 128
"""The first number of the kernel's render nodes (Linux, drm-uapi); lower numbers are nodes of drivers."""


def device_node_name(minor: int) -> str:
    """Return the displayed name of the device node *minor*: ``3``, or ``renderD131`` as in ``/dev/dri``."""
    return str(minor) if minor < FIRST_RENDER_NODE else f"renderD{minor}"


def device_name(view: View, device_id: str) -> str:
    """Return the displayed name of the device: ``GPU 3 (0000:1b:00.0)``, or its id."""
    names = view._names  # requested a thousand times per round
    if device_id not in names:
        names[device_id] = _name(view, device_id)
    return names[device_id]


def device_names(view: View, devices: list[Device]) -> str:
    """Return the displayed names of the first two of *devices*, and the number of the others."""
    told = ", ".join(device_name(view, device.id) for device in devices[:2])
    return told + (f" and {len(devices) - 2} more" if len(devices) > 2 else "")


def _name(view: View, device_id: str) -> str:
    if device_id == NODE:
        return "the node"
    device = view.device(device_id)
    if device is None:
        return device_id
    short = {"accelerator": "GPU", "cpu": "CPU"}.get(device.kind.value, device.kind.value)
    number = f" {device_node_name(device.minor)}" if device.minor is not None else ""
    place = device.pci or device.id
    return f"{short}{number} ({place})"
