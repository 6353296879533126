"""The map of links: a square for each link, or for each pair of devices where every link reports its peer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from nodevet.checks.core.model import Device, PartKind, Snapshot
from nodevet.checks.reference.vendors import vendor_of
from nodevet.exporters.format import counted

from .current import CurrentReadings, number_of
from .findings import ListedFinding

MAXIMUM_ROWS = 64
MAXIMUM_PORTS = 64

_ERRORS = ("link_replay_errors", "link_recovery_errors", "link_crc_errors", "link_effective_errors")
_SIGNS = {"up": "", "down": "✕", "unknown": "?"}


class _Square(msgspec.Struct, frozen=True):
    """One link, or all links between two devices: the worst state among them, and their error count."""

    state: str
    up: int
    links: int
    errors: int
    found: bool = False


class Cell(msgspec.Struct, frozen=True):
    """A cell of the map: CSS classes, text, sign and tooltip."""

    classes: str
    words: str
    sign: str = ""
    title: str = ""


class LinkRow(msgspec.Struct, frozen=True):
    """The links of one device: a cell each, how many are up, and their errors."""

    device: str
    cells: tuple[Cell, ...]
    up: str
    errors: str


class LinkMap(msgspec.Struct, frozen=True):
    """The links of one vendor's devices; ``corner`` names the rows and columns."""

    caption: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[LinkRow, ...]


def link_maps(
    snapshot: Snapshot, entries: Sequence[ListedFinding], names: dict[str, str], now: CurrentReadings
) -> tuple[LinkMap, ...]:
    """Return a map for each vendor whose devices have links."""
    found = {(entry.finding.device, entry.finding.part.index) for entry in entries if _on_link(entry)}
    linked: dict[str, list[Device]] = {}
    for device in snapshot.devices:
        if _ports(device, now):
            linked.setdefault(device.vendor, []).append(device)
    return tuple(_map(vendor, devices[:MAXIMUM_ROWS], names, now, found) for vendor, devices in linked.items())


def _on_link(entry: ListedFinding) -> bool:
    return entry.finding.part.kind is PartKind.LINK


def _map(
    vendor: str,
    devices: Sequence[Device],
    names: dict[str, str],
    now: CurrentReadings,
    found: set[tuple[str, int | None]],
) -> LinkMap:
    squares = {device.id: _squares(device, now, found) for device in devices}
    peers = {device.id: _peers(device, devices) for device in devices}
    technology = vendor_of(vendor).links or vendor
    links = [square for row in squares.values() for square in row.values()]
    up, total = sum(square.up for square in links), sum(square.links for square in links)
    unknown = sum(square.state == "unknown" for square in links)
    said = f"{technology}: {up} of {counted(total, 'link')} up" + (f", {unknown} unknown" if unknown else "")
    if any(None in peers[device.id].values() for device in devices):
        ports = sorted({port for row in squares.values() for port in row})[:MAXIMUM_PORTS]
        rows = [
            _row(names[device.id], squares[device.id], _port_cells(squares[device.id], ports)) for device in devices
        ]
        return LinkMap(said, "device, link", tuple(map(str, ports)), tuple(rows))
    rows = [
        _row(names[each.id], squares[each.id], _pair_cells(each, devices, names, squares[each.id], peers[each.id]))
        for each in devices
    ]
    return LinkMap(said, "from, to", tuple(names[device.id] for device in devices), tuple(rows))


def _port_cells(squares: Mapping[int, _Square], ports: Sequence[int]) -> Iterator[Cell]:
    for port in ports:
        yield _cell(squares.get(port), f"link {port}", "no link")


def _pair_cells(
    device: Device,
    devices: Sequence[Device],
    names: dict[str, str],
    squares: Mapping[int, _Square],
    peers: Mapping[int, str | None],
) -> Iterator[Cell]:
    for other in devices:
        shared = [squares[port] for port, peer in peers.items() if peer == other.id]
        yield _cell(_merged(shared), f"to {names[other.id]}", "itself" if other is device else "no link")


def _row(device: str, squares: Mapping[int, _Square], cells: Iterable[Cell]) -> LinkRow:
    row = squares.values()
    up, links, errors = sum(s.up for s in row), sum(s.links for s in row), sum(s.errors for s in row)
    unread = all(square.state == "unknown" for square in row)
    said = "unknown" if unread else f"{up} of {links}"
    return LinkRow(device, tuple(cells), said, counted(errors, "error") if errors else "")


def _cell(square: _Square | None, name: str, without: str) -> Cell:
    if square is None:
        return Cell("none", without)
    classes = f"{square.state}{' counted' if square.errors else ''}{' found' if square.found else ''}"
    said = square.state if square.links == 1 else f"{square.up} of {square.links} up"
    if square.errors:
        said += f", {counted(square.errors, 'error')}"
    sign = _SIGNS[square.state] or (_short(square.errors) if square.errors else "")
    return Cell(classes, said, sign, f"{name}: {said}")


def _short(count: int) -> str:
    """Return *count* in at most three characters."""
    if count < 1000:
        return str(count)
    return f"{count // 1000}k" if count < 100_000 else "≫"


def _ports(device: Device, now: CurrentReadings) -> tuple[int, ...]:
    """Return the ports of *device*: those in the inventory, and those with readings."""
    read = {reading.part.index for reading in now.readings(device.id, "link_active")}
    return tuple(sorted({link.port for link in device.links} | {port for port in read if port is not None}))


def _squares(device: Device, now: CurrentReadings, found: set[tuple[str, int | None]]) -> dict[int, _Square]:
    states = {reading.part.index: reading.value for reading in now.readings(device.id, "link_active")}
    errors: dict[int | None, int] = {}
    for quantity in _ERRORS:
        for reading in now.readings(device.id, quantity):
            errors[reading.part.index] = errors.get(reading.part.index, 0) + int(number_of(reading) or 0)
    split = now.value(device.id, "partitioned") == 1.0  # links of a device split into instances read as down
    squares = {}
    for port in _ports(device, now):
        value = None if split else states.get(port)
        state = "unknown" if value is None else "up" if value else "down"
        squares[port] = _Square(state, int(state == "up"), 1, errors.get(port, 0), (device.id, port) in found)
    return squares


def _merged(squares: Sequence[_Square]) -> _Square | None:
    if not squares:
        return None
    states = {square.state for square in squares}
    worst = next(state for state in ("down", "unknown", "up") if state in states)
    return _Square(
        worst,
        sum(square.up for square in squares),
        len(squares),
        sum(square.errors for square in squares),
        any(square.found for square in squares),
    )


def _peers(device: Device, devices: Sequence[Device]) -> dict[int, str | None]:
    """Return the device at the other end of each port, or None for a switch, an unknown one, or a foreign one."""
    by_name = dict(_identities(devices))
    peers = {link.port: by_name.get(link.peer) if link.peer else None for link in device.links}
    return peers or {0: None}


def _identities(devices: Sequence[Device]) -> Iterator[tuple[str, str]]:
    for device in devices:
        for name in (device.id, device.uuid, device.pci):
            if name:
                yield name, device.id
