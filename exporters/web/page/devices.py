"""A card for each device: identity, address, verdict and current readings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec

from nodevet.checks.core.model import (
    NODE,
    Device,
    DeviceKind,
    PartKind,
    Reading,
    ReadingStatus,
    Snapshot,
    State,
    Verdict,
)
from nodevet.checks.engine.standing import NOT_EVALUATED
from nodevet.exporters.format import age, bar_length, bytes_of, counted, duration, hertz, number, percent, words

from .current import CurrentReadings, number_of
from .findings import ListedFinding

MAXIMUM_DEVICES = 64
SENSORS_SHOWN = 2

_SENSORS = ("core", "hotspot", "edge", "package", "memory", "inlet", "other")
_LIMITS = ("slowdown", "maximum", "shutdown")
_NO_RESTRAINT = frozenset({"idle"})
_UNREAD = {
    ReadingStatus.DENIED: "not permitted",
    ReadingStatus.UNAVAILABLE: "not available",
    ReadingStatus.ERROR: "could not be read",
}
_UNJUDGED = Verdict(state=State.UNKNOWN, reason=NOT_EVALUATED)


class Row(msgspec.Struct, frozen=True):
    """A reading on a card: the length of its bar, and the outcome that colours it."""

    name: str
    text: str
    remark: str = ""
    bar: str = ""
    tone: str = ""


class FindingLink(msgspec.Struct, frozen=True):
    """The gravest finding of a device, and the number of others."""

    anchor: int
    code: str
    outcome: str
    others: int


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A device; ``unread`` is the reason for missing readings, ``reason`` that of a verdict without a finding."""

    name: str
    state: str
    model: str
    place: str
    rows: tuple[Row, ...]
    unread: str
    finding: FindingLink | None
    reason: str = ""


class DevicesSection(msgspec.Struct, frozen=True):
    """The section of some devices; ``count`` is how many there are, ``hidden`` how many of them have no card."""

    title: str
    anchor: str
    count: int
    cards: tuple[Card, ...]
    hidden: str


def devices_sections(
    snapshot: Snapshot, entries: Sequence[ListedFinding], names: dict[str, str], now: CurrentReadings
) -> tuple[DevicesSection, ...]:
    """Return a section of accelerators and one of the host; the first exists even without any device."""
    accelerators = [device for device in snapshot.devices if device.kind is DeviceKind.ACCELERATOR]
    others = [device for device in snapshot.devices if device.kind not in (DeviceKind.ACCELERATOR, DeviceKind.NODE)]

    def section(title: str, devices: Sequence[Device], first: tuple[Card, ...] = ()) -> DevicesSection:
        cards = [_card(device, snapshot, entries, names, now) for device in devices[:MAXIMUM_DEVICES]]
        hidden = len(devices) - MAXIMUM_DEVICES
        more = counted(hidden, "device") if hidden > 0 else ""
        return DevicesSection(title, f"{title.lower()}-name", len(devices), (*first, *cards), more)

    host = section("Host", others, (_node_card(snapshot, entries, now),))
    return (section("Accelerators", accelerators), host) if accelerators or not others else (host,)


def _card(
    device: Device, snapshot: Snapshot, entries: Sequence[ListedFinding], names: dict[str, str], now: CurrentReadings
) -> Card:
    verdict = snapshot.device_verdicts.get(device.id, _UNJUDGED)
    own = [(place, entry) for place, entry in enumerate(entries) if entry.finding.device == device.id]
    place = [device.pci, None if device.numa_node is None else f"NUMA {device.numa_node}"]
    if device.pci is None and names[device.id] != device.id:
        place.insert(0, device.id)
    rows = _accelerator_rows if device.kind is DeviceKind.ACCELERATOR else _host_rows
    return Card(
        name=names[device.id],
        state=verdict.state.value,
        model=device.model if device.model != "unknown" else f"{device.vendor} {device.kind.value}",
        place=" · ".join(filter(None, place)),
        rows=tuple(rows(device, now, _tones([entry for _, entry in own]))),
        unread=_unread(device.id, snapshot, now),
        finding=_gravest(own),
        reason="" if verdict.state is State.OK else verdict.reason,
    )


def _node_card(snapshot: Snapshot, entries: Sequence[ListedFinding], now: CurrentReadings) -> Card:
    own = [(place, entry) for place, entry in enumerate(entries) if entry.finding.device == NODE]
    worst = next((entry.outcome.value for _, entry in own if entry.counts), "")
    board = next((device for device in snapshot.devices if device.kind is DeviceKind.NODE), None)
    judged = snapshot.device_verdicts.get(board.id) if board else None
    system = next((reader.versions.get("kernel") for reader in snapshot.readers if reader.versions.get("kernel")), None)
    told = [word for word in (board.vendor, board.model) if word != "unknown"] if board else []
    return Card(
        name="Node",
        state=judged.state.value if judged else worst,
        model=" ".join(told) or snapshot.node,
        place=f"Linux {system}" if system else "",
        rows=tuple(_node_rows(now)),
        unread=_unread(NODE, snapshot, now),
        finding=_gravest(own),
    )


def _node_rows(now: CurrentReadings) -> Iterator[Row]:
    total, free = now.value(NODE, "memory_total_bytes"), now.value(NODE, "memory_available_bytes")
    if total and free is not None:
        yield _row("Memory", bytes_of(total - free), f"of {bytes_of(total)}", (total - free) / total)
    load, processors = now.value(NODE, "load_average_ratio"), now.value(NODE, "logical_processors")
    if load is not None:
        yield _row("Load", percent(load), f"of {number(processors, 6)} processors" if processors else "", load)
    uptime = now.value(NODE, "uptime_seconds")
    if uptime is not None:
        yield _row("Uptime", _days(uptime), "")


def _accelerator_rows(device: Device, now: CurrentReadings, tones: dict[str, str]) -> Iterator[Row]:
    yield from _temperature(device.id, now, tones)
    yield from _power(device.id, now, tones)
    busy = now.reading(device.id, "utilization_ratio", "compute")
    if busy is not None:
        yield _row("Utilization", _said(busy, percent), "", _share(number_of(busy), 1.0))
    used, total = now.reading(device.id, "memory_used_bytes"), now.value(device.id, "memory_total_bytes")
    if used is not None:
        yield _row(
            "Memory", _said(used, bytes_of), f"of {bytes_of(total)}" if total else "", _share(number_of(used), total)
        )
    yield from _clock(device, now)
    yield from _throttle(device.id, now, tones)


def _host_rows(device: Device, now: CurrentReadings, tones: dict[str, str]) -> Iterator[Row]:
    yield from _temperature(device.id, now, tones)
    yield from _power(device.id, now, tones)
    yield from _clock(device, now)
    events = _sum(device.id, "throttle_events", now)
    if events is not None:
        yield _row("Throttled", counted(int(events), "event"), "since boot", tone=tones.get("throttle", ""))
    corrected, uncorrected = (_sum(device.id, f"ecc_{name}_errors", now) for name in ("corrected", "uncorrected"))
    if corrected is not None and uncorrected is not None:
        yield _row("Errors", f"{corrected:,.0f} corrected", f"{uncorrected:,.0f} uncorrected")


def _sum(device: str, quantity: str, now: CurrentReadings) -> float | None:
    """Return the sum of *quantity* over the parts of *device*; None if one was not read: it would be too small."""
    values = [number_of(reading) for reading in now.readings(device, quantity)]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _temperature(device: str, now: CurrentReadings, tones: dict[str, str]) -> Iterator[Row]:
    """Yield the sensors nearest to their limits."""
    found = {reading.part.name: reading for reading in now.readings(device, "temperature_celsius")}
    limits = {name: _limit_of(device, name, number_of(reading), now) for name, reading in found.items()}

    def order(name: str) -> int:
        return _SENSORS.index(name) if name in _SENSORS else len(_SENSORS)

    def headroom(name: str) -> tuple[float, int]:
        value, limit = number_of(found[name]), limits[name]
        return (math.inf if value is None or limit is None else limit - value, order(name))

    shown = sorted(sorted(found, key=headroom)[:SENSORS_SHOWN], key=order)
    for name in shown:
        limit = limits[name]
        yield _row(
            "Temperature" if len(shown) == 1 else f"Temperature, {name}",
            _said(found[name], lambda value: f"{value:.0f} °C"),
            "" if limit is None else f"limit {limit:.0f} °C",
            _share(number_of(found[name]), limit),
            tones.get(f"temperature {name}", ""),
        )


def _limit_of(device: str, sensor: str, value: float | None, now: CurrentReadings) -> float | None:
    """Return the temperature limit: temperature plus thermal margin, else the limit that the device reports."""
    margin = now.value(device, "temperature_margin_celsius", sensor)
    if margin is not None and value is not None:
        return value + margin
    reported = (now.value(device, f"temperature_{name}_celsius", sensor) for name in _LIMITS)
    return next((limit for limit in reported if limit is not None), None)


def _power(device: str, now: CurrentReadings, tones: dict[str, str]) -> Iterator[Row]:
    drawn = next(iter(now.readings(device, "power_watts")), None)
    if drawn is not None:
        cap = now.value(device, "power_limit_watts", drawn.part.name)
        said = _said(drawn, lambda value: f"{value:,.0f} W")
        share = _share(number_of(drawn), cap)
        yield _row("Power", said, f"limit {cap:,.0f} W" if cap else "", share, tones.get("power", ""))


def _clock(device: Device, now: CurrentReadings) -> Iterator[Row]:
    clocks = (now.reading(device.id, "clock_hertz", name) for name in ("sm", "core", "graphics"))
    held = next((clock for clock in clocks if clock is not None), None)
    if held is not None:
        highest = now.value(device.id, "clock_maximum_hertz", held.part.name) or device.maximum_clock_hertz
        yield _row(
            "Clock", _said(held, hertz), f"of {hertz(highest)}" if highest else "", _share(number_of(held), highest)
        )


def _throttle(device: str, now: CurrentReadings, tones: dict[str, str]) -> Iterator[Row]:
    """Yield the active throttle reasons, or the throttle time if only that is counted."""
    tone = tones.get("throttle", "")
    reasons = [reading for reading in now.readings(device, "throttle_active") if reading.part.name not in _NO_RESTRAINT]
    if reasons:
        held = [words(reading.part.name) for reading in reasons if reading.value is True]
        unread = [_UNREAD[reading.status] for reading in reasons if reading.status in _UNREAD]
        yield _row("Throttled", ", ".join(held) or next(iter(unread), "no"), "", tone=tone)
        return
    seconds = _sum(device, "throttle_seconds", now)
    if seconds is not None:
        yield _row("Throttled", duration(seconds), "in total", tone=tone)


def _row(name: str, said: str, remark: str, ratio: float | None = None, tone: str = "") -> Row:
    return Row(name, said, "" if said in _UNREAD.values() else remark, "" if ratio is None else bar_length(ratio), tone)


def _said(reading: Reading, say: Callable[[float], str]) -> str:
    """Return the measured number as text by *say*, or the cause for its absence."""
    value = number_of(reading)
    return _UNREAD.get(reading.status, "unknown") if value is None else say(value)


def _share(value: float | None, whole: float | None) -> float | None:
    """Return *value* over *whole*, or None if either is unknown."""
    return None if value is None or not whole else value / whole


def _tones(entries: Sequence[ListedFinding]) -> dict[str, str]:
    """Return the outcome that colours each row: the worst finding on the reading of the row."""
    kinds = {PartKind.SENSOR: "temperature", PartKind.POWER_SCOPE: "power", PartKind.REASON: "throttle"}
    found: dict[str, str] = {}
    for entry in entries:
        rows = {quantity.partition("_")[0] for quantity in entry.finding.evidence}
        rows.add(kinds.get(entry.finding.part.kind, ""))
        for row in rows & {"temperature", "power", "throttle"}:
            found.setdefault(f"{row} {entry.finding.part.name}" if row == "temperature" else row, entry.outcome.value)
    return found


def _unread(device: str, snapshot: Snapshot, now: CurrentReadings) -> str:
    """Return why *device* has no readings; empty if it has some."""
    failure, last = now.failure(device), now.last_read(device)
    if failure is not None:
        return f"{words(failure.kind.value)}: {failure.detail}"
    if last is None:
        return "not read yet"
    return "" if now.is_read(device) else f"stale: last read {age(snapshot.time, last)}"


def _gravest(own: Sequence[tuple[int, ListedFinding]]) -> FindingLink | None:
    if not own:
        return None
    place, entry = own[0]
    others = sum(other.counts for _, other in own) - 1 if entry.counts else len(own) - 1
    return FindingLink(place, entry.finding.code, entry.outcome.value, others)


def _days(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    return f"{days} d {hours} h" if days else f"{hours} h {rest // 60} min"
