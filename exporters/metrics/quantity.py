"""The quantities on the metrics page: which of them a default page shows, and how parts become labels or sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial

from nodevet.checks.core.model import Part, PartKind, Reading, ReadingStatus, Snapshot
from nodevet.checks.core.quantities import QUANTITIES, Quantity, QuantityKind

from .family import Family, LabelValues, Maker, Value, counter, gauge

STALE_ROUNDS = 3
STALE_MINIMUM_SECONDS = 180.0
"""Readings older than both are history, not the present: their series end."""

_PART_LABEL = {
    PartKind.SENSOR: "sensor",
    PartKind.LINK: "link",
    PartKind.MEMORY_BLOCK: "block",
    PartKind.CLOCK: "clock",
    PartKind.REASON: "reason",
    PartKind.PCIE: "port",
    PartKind.POWER_SCOPE: "scope",
    PartKind.ENGINE: "engine",
}

_DEVICE = ("device",)

_SUMMED_PARTS = frozenset({PartKind.LINK, PartKind.MEMORY_BLOCK})

_ANY = frozenset({"*"})
_HELD_DOWN = frozenset(
    {
        "power_cap",
        "hardware_slowdown",
        "software_thermal",
        "hardware_thermal",
        "power_brake",
        "core",
        "package",
        "processor_hot",
        "socket_thermal",
        "memory_thermal",
        "regulator_thermal",
    }
)

_DEFAULT: Mapping[str, frozenset[str]] = {
    "temperature_celsius": _ANY,
    "temperature_margin_celsius": _ANY,
    "power_watts": frozenset({"device"}),
    "clock_hertz": frozenset({"sm", "core", "graphics"}),
    "throttle_seconds": _HELD_DOWN,
    "throttle_events": _ANY,
    "ecc_corrected_errors": _ANY,
    "ecc_uncorrected_errors": _ANY,
    "ecc_deferred_errors": _ANY,
    "link_crc_errors": _ANY,
    "utilization_ratio": frozenset({"compute"}),
    "memory_total_bytes": _ANY,
    "memory_used_bytes": _ANY,
    "memory_available_bytes": _ANY,
    "load_average_ratio": _ANY,
}
"""Quantities on a page without detail, with the names of their parts."""

_NEVER: Mapping[str, frozenset[str]] = {
    "clock_hertz": frozenset({"video"}),
    "clock_maximum_hertz": frozenset({"video"}),
    "throttle_active": frozenset({"idle", "display_clocks", "applications_clocks", "sync_boost"}),
}
"""Quantities on no page, because they do not concern the health of a node."""

Readings = dict[tuple[str, str, int | None], Reading]
"""The newest readings of one quantity by device, name of the part and its index."""


def quantity_makers(snapshot: Snapshot, *, detail: bool) -> Iterator[Maker]:
    """Yield current readings: counts by status, links by device, and every quantity on the page."""
    statuses = dict.fromkeys(ReadingStatus, 0)
    shown = {key for key, quantity in QUANTITIES.items() if quantity.exported and (detail or key in _DEFAULT)}
    taken: dict[str, Readings] = {key: {} for key in (*shown, "link_active")}
    for sample in sorted(snapshot.samples, key=lambda sample: sample.time.wall_seconds):
        age = snapshot.time.seconds_since(sample.time)
        if age is None or age > max(STALE_MINIMUM_SECONDS, STALE_ROUNDS * snapshot.agent.interval_seconds):
            continue
        device = sample.device
        for reading in sample.readings:
            statuses[reading.status] += 1
            readings = taken.get(reading.quantity)
            if readings is not None:
                part = reading.part
                readings[device, part.name, part.index] = reading
    yield "metrics: readings by status", partial(_statuses, statuses)
    if taken["link_active"]:
        yield "metrics: links", partial(_link_counts, taken["link_active"])
    for key, quantity in QUANTITIES.items():
        if key in shown and taken[key]:
            yield f"metrics: {key}", partial(_quantity, quantity, taken[key], detail=detail)


def shown_by_default(key: str) -> bool:
    """Return whether a page without detail shows the quantity *key*."""
    return key in _DEFAULT


def summed_by_default(quantity: Quantity) -> bool:
    """Return whether a page without detail shows *quantity* as one sum per device."""
    return quantity.part in _SUMMED_PARTS


def part_label(kind: PartKind) -> str | None:
    """Return the label that names a part of *kind*, or None where a device has one such part only."""
    return None if kind in (PartKind.DEVICE, PartKind.PCIE) else _PART_LABEL[kind]


def _statuses(statuses: Mapping[ReadingStatus, int]) -> Iterator[Family]:
    yield gauge(
        "readings",
        "Readings of the last rounds, by status.",
        ("status",),
        {(status.value,): count for status, count in statuses.items()},
    )


def _link_counts(readings: Readings) -> Iterator[Family]:
    up = _sums(readings)
    links = Counter(
        device for (device, _, _), reading in readings.items() if reading.status is not ReadingStatus.UNSUPPORTED
    )
    told = {device: links[device] for device, value in up.items() if value is not None}
    yield gauge("links", "Links of the device.", _DEVICE, _by_device(told))
    yield gauge(
        "links_up",
        "Links of the device that are up; absent where one of them could not be read.",
        _DEVICE,
        _by_device(up),
    )


def _quantity(quantity: Quantity, readings: Readings, *, detail: bool) -> Iterator[Family]:
    if quantity.kind is QuantityKind.TEXT:
        return
    of_kind = counter if quantity.kind is QuantityKind.COUNTER else gauge
    if quantity.kind is QuantityKind.STATE:
        yield of_kind(quantity.key, quantity.help, (*_DEVICE, "state"), _state_samples(quantity, readings))
    elif summed_by_default(quantity) and not detail:
        yield of_kind(quantity.key, quantity.help, _DEVICE, _by_device(_sums(readings)))
    else:
        labels, samples = _part_samples(quantity, readings, detail=detail)
        yield of_kind(quantity.key, quantity.help, labels, samples)


def _part_samples(
    quantity: Quantity, readings: Readings, *, detail: bool
) -> tuple[tuple[str, ...], dict[LabelValues, Value | None]]:
    """Return the names of the labels and the samples; where no part has a name, the device alone is a label."""
    shown = _ANY if detail else _DEFAULT[quantity.key]
    never = _NEVER.get(quantity.key, frozenset())
    values: dict[LabelValues, Value | None] = {
        (device, _part_name(reading.part)): reading.value
        for (device, name, _), reading in readings.items()
        if isinstance(reading.value, (int, float)) and name not in never and (shown is _ANY or name in shown)
    }
    if any(part for _, part in values):
        return (*_DEVICE, _PART_LABEL.get(quantity.part, "part")), values
    return _DEVICE, {(device,): value for (device, _), value in values.items()}


def _state_samples(quantity: Quantity, readings: Readings) -> dict[LabelValues, Value | None]:
    return {
        (device, state): reading.value == state
        for (device, _, _), reading in readings.items()
        if reading.value is not None
        for state in quantity.states
    }


def _sums(readings: Readings) -> dict[str, float | int | None]:
    """Return one sum per device; a device of which a part could not be read has none, for it would be too small."""
    sums: dict[str, float | int | None] = {}
    for (device, _, _), reading in readings.items():
        if reading.status is ReadingStatus.UNSUPPORTED:
            continue
        so_far, value = sums.get(device, 0), reading.value
        if so_far is None or value is None or isinstance(value, str):
            sums[device] = None
        else:
            sums[device] = so_far + value
    return sums


def _by_device(values: Mapping[str, float | int | None]) -> dict[LabelValues, Value | None]:
    return {(device,): value for device, value in values.items()}


@lru_cache(maxsize=4096)  # a part keeps its name from page to page
def _part_name(part: Part) -> str:
    index = "" if part.index is None else str(part.index)
    return "_".join(word for word in (part.name, index) if word)
