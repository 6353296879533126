"""The heat map of links: a square per link, or per pair of devices where every link tells its peer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from nodevet.checks.core.model import Device, PartKind, Snapshot
from nodevet.checks.reference.vendors import vendor_of
from nodevet.exporters.format import counted

from .current import Present, number_of
from .findings import Told
from .markup import Html, element

__all__ = ["links_section"]

MAXIMUM_ROWS = 64
MAXIMUM_PORTS = 64

_ERRORS = ("link_replay_errors", "link_recovery_errors", "link_crc_errors", "link_effective_errors")
_SIGNS = {"up": "", "down": "✕", "unknown": "?", "none": ""}


class _Square(msgspec.Struct, frozen=True):
    """One link, or all links between two devices: the worst state among them, and the errors that were counted."""

    state: str
    up: int
    links: int
    errors: int
    found: bool = False


def links_section(snapshot: Snapshot, entries: Sequence[Told], names: dict[str, str], now: Present) -> Html | None:
    """Return the section of links, a map per vendor; None where no device has any."""
    found = {(entry.finding.device, entry.finding.part.index) for entry in entries if _on_link(entry)}
    linked: dict[str, list[Device]] = {}
    for device in snapshot.devices:
        if _ports(device, now):
            linked.setdefault(device.vendor, []).append(device)
    if not linked:
        return None
    maps = [_map(vendor, devices[:MAXIMUM_ROWS], names, now, found) for vendor, devices in linked.items()]
    return element(
        "section",
        element("h2", "Links", id="links-name"),
        element("div", element("div", *maps), _legend(), class_="links"),
        aria_labelledby="links-name",
    )


def _on_link(entry: Told) -> bool:
    return entry.finding.part.kind is PartKind.LINK


def _map(
    vendor: str, devices: Sequence[Device], names: dict[str, str], now: Present, found: set[tuple[str, int | None]]
) -> Html:
    squares = {device.id: _squares(device, now, found) for device in devices}
    peers = {device.id: _peers(device, devices) for device in devices}
    technology = vendor_of(vendor).links or vendor
    up = sum(square.up for row in squares.values() for square in row.values())
    total = sum(square.links for row in squares.values() for square in row.values())
    unknown = sum(square.state == "unknown" for row in squares.values() for square in row.values())
    said = f"{technology}: {up} of {counted(total, 'link')} up" + (f", {unknown} unknown" if unknown else "")
    if all(None not in peers[device.id].values() for device in devices):
        head, rows = _by_pair(devices, names, squares, peers)
    else:
        head, rows = _by_port(devices, names, squares)
    table = element("table", element("caption", said), element("thead", head), element("tbody", *rows), class_="map")
    return element("div", table, class_="wide")


def _by_port(
    devices: Sequence[Device], names: dict[str, str], squares: Mapping[str, Mapping[int, _Square]]
) -> tuple[Html, list[Html]]:
    ports = sorted({port for row in squares.values() for port in row})[:MAXIMUM_PORTS]
    head = _head([str(port) for port in ports], "device, link")
    rows = []
    for device in devices:
        row = squares[device.id]
        cells = [_cell(row.get(port), f"link {port}") for port in ports]
        rows.append(element("tr", element("th", names[device.id], scope="row"), *cells, _sum(list(row.values()))))
    return head, rows


def _by_pair(
    devices: Sequence[Device],
    names: dict[str, str],
    squares: Mapping[str, Mapping[int, _Square]],
    peers: Mapping[str, Mapping[int, str | None]],
) -> tuple[Html, list[Html]]:
    head = _head([names[device.id] for device in devices], "from, to")
    rows = []
    for device in devices:
        row = squares[device.id]
        cells = []
        for other in devices:
            shared = [row[port] for port, peer in peers[device.id].items() if peer == other.id]
            cells.append(_cell(_merged(shared), f"to {names[other.id]}", itself=other is device))
        rows.append(element("tr", element("th", names[device.id], scope="row"), *cells, _sum(list(row.values()))))
    return head, rows


def _head(columns: Sequence[str], corner: str) -> Html:
    cells = [element("th", column, scope="col") for column in columns]
    first = element("th", element("span", corner, class_="unseen"), scope="col")
    return element("tr", first, *cells, element("th", "up", scope="col", class_="sum"))


def _cell(square: _Square | None, name: str, *, itself: bool = False) -> Html:
    if square is None:
        return element("td", element("span", "itself" if itself else "no link", class_="unseen"), class_="none")
    classes = f"{square.state}{' counted' if square.errors else ''}{' found' if square.found else ''}"
    told = [square.state if square.links == 1 else f"{square.up} of {square.links} up"]
    if square.errors:
        told.append(counted(square.errors, "error"))
    sign = _SIGNS[square.state] or (_short(square.errors) if square.errors else "")
    return element(
        "td",
        element("span", sign, aria_hidden="true") if sign else None,
        element("span", ", ".join(told), class_="unseen"),
        class_=classes,
        title=f"{name}: {', '.join(told)}",
    )


def _sum(row: Sequence[_Square]) -> Html:
    up, links, errors = sum(s.up for s in row), sum(s.links for s in row), sum(s.errors for s in row)
    beside = element("small", f" {counted(errors, 'error')}") if errors else None
    unread = all(square.state == "unknown" for square in row)
    return element("td", "unknown" if unread else f"{up} of {links}", beside, class_="sum")


def _short(count: int) -> str:
    """Return *count* in at most three signs."""
    if count < 1000:
        return str(count)
    return f"{count // 1000}k" if count < 100_000 else "≫"


def _legend() -> Html:
    samples = (
        ("up", "", "up"),
        ("up counted", "7", "up, errors counted since the driver was loaded"),
        ("down", "✕", "down"),
        ("unknown", "?", "could not be read"),
        ("up found", "", "there is a finding about it"),
    )
    items = [
        element("li", element("span", sign, class_=f"sample {classes}", aria_hidden="true"), text)
        for classes, sign, text in samples
    ]
    return element("ul", *items, class_="legend")


def _ports(device: Device, now: Present) -> tuple[int, ...]:
    """Return the ports of *device*: those of the inventory, and those that were read."""
    read = {reading.part.index for reading in now.readings(device.id, "link_active")}
    return tuple(sorted({link.port for link in device.links} | {port for port in read if port is not None}))


def _squares(device: Device, now: Present, found: set[tuple[str, int | None]]) -> dict[int, _Square]:
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
