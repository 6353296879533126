"""The quantities on the metrics page: the selection for a default page, and the labels or sums of parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial

from nodevet.checks.core.model import Part, PartKind, Reading, ReadingStatus, Snapshot
from nodevet.checks.core.quantities import QUANTITIES, Quantity, QuantityKind

from .family import Family, LabelValues, Maker, Value, family, measured

STALE_ROUNDS = 3
STALE_MINIMUM_SECONDS = 180.0
"""A reading older than both is stale: its series ends."""

PART_LABELS = {
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

Readings = dict[tuple[str, str, int | None], Reading]
"""The newest readings of one quantity, by device, name of the part and its index."""


def quantity_makers(snapshot: Snapshot, *, detail: bool) -> Iterator[Maker]:
    """Yield current readings: counts by status, links by device, and every quantity on the page."""
    statuses = dict.fromkeys(ReadingStatus, 0)
    shown = {key for key, quantity in QUANTITIES.items() if quantity.exported and (detail or quantity.shown)}
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


def summed_by_default(quantity: Quantity) -> bool:
    """Return whether a page without detail shows *quantity* as one sum per device."""
    return quantity.part in _SUMMED_PARTS


def _statuses(statuses: Mapping[ReadingStatus, int]) -> Iterator[Family]:
    yield family("readings", {(status.value,): count for status, count in statuses.items()})


def _link_counts(readings: Readings) -> Iterator[Family]:
    up = _sums(readings)
    links = Counter(
        device for (device, _, _), reading in readings.items() if reading.status is not ReadingStatus.UNSUPPORTED
    )
    told = {device: links[device] for device, value in up.items() if value is not None}
    yield family("links", _by_device(told))
    yield family("links_up", _by_device(up))


def _quantity(quantity: Quantity, readings: Readings, *, detail: bool) -> Iterator[Family]:
    if quantity.kind is QuantityKind.TEXT:
        return
    labels: tuple[str, ...] = _DEVICE
    if quantity.kind is QuantityKind.STATE:
        labels, samples = (*_DEVICE, "state"), _state_samples(quantity, readings)
    elif summed_by_default(quantity) and not detail:
        samples = _by_device(_sums(readings))
    else:
        labels, samples = _part_samples(quantity, readings, detail=detail)
    kind = "counter" if quantity.kind is QuantityKind.COUNTER else "gauge"
    yield measured(quantity.key, kind, quantity.help, labels, samples)


def _part_samples(
    quantity: Quantity, readings: Readings, *, detail: bool
) -> tuple[tuple[str, ...], dict[LabelValues, Value | None]]:
    """Return the label names and the samples; if no part has a name, the device is the only label."""
    is_whole = detail or "*" in quantity.shown
    values: dict[LabelValues, Value | None] = {
        (device, _part_name(reading.part)): reading.value
        for (device, name, _), reading in readings.items()
        if isinstance(reading.value, (int, float))
        and name not in quantity.hidden
        and (is_whole or name in quantity.shown)
    }
    if any(part for _, part in values):
        return (*_DEVICE, PART_LABELS.get(quantity.part, "part")), values
    return _DEVICE, {(device,): value for (device, _), value in values.items()}


def _state_samples(quantity: Quantity, readings: Readings) -> dict[LabelValues, Value | None]:
    return {
        (device, state): reading.value == state
        for (device, _, _), reading in readings.items()
        if reading.value is not None
        for state in quantity.states
    }


def _sums(readings: Readings) -> dict[str, float | int | None]:
    """Return one sum per device; None if a part could not be read, because the sum would be too small."""
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


@lru_cache(maxsize=4096)  # the name of a part is the same on each page
def _part_name(part: Part) -> str:
    index = "" if part.index is None else str(part.index)
    return "_".join(word for word in (part.name, index) if word)
