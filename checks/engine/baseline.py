"""The expected state of this node: the readings that its devices must report, and the devices it had before.

A healthy machine that lacks a feature is healthy, so only the readings in the table for its model are required.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

import msgspec

from nodevet.checks.core.device import slot_of
from nodevet.checks.core.model import (
    Device,
    DeviceKind,
    Instant,
    Link,
    ReaderStatus,
    ReadingStatus,
    Sample,
    told_serial,
)
from nodevet.checks.reference.expected_links import MAKES, expected_links
from nodevet.checks.reference.tables import load_table
from nodevet.checks.reference.vendors import vendor_of

from .acknowledgement import are_other_boards
from .exchanged import is_whole, listed_instead
from .renamed import listed_now, told_by_another, under_known_names
from .view import KnownDevices, Seen

UNNAMED = "unknown"
"""The model that backends set for a device that does not report it."""

OR = "|"
"""Separator of quantities of which a device must report any one."""

FABRIC = "fabric"
"""In place of a chip: each board that reports that it has joined a fabric, whatever its name and chip."""

LASTING = ("uuid", "pci_device_id", "memory_bytes", "compute_units", "maximum_clock_hertz", "architecture")
"""Constant properties of a board besides serial and model: None if not reported."""


class Make(msgspec.Struct, frozen=True):
    """All of a device that decides which quantities it must report; ``joined``: it reports that it joined a fabric."""

    vendor: str
    kind: DeviceKind
    model: str
    architecture: str | None
    virtual: bool
    joined: bool


class Requirement(msgspec.Struct, frozen=True):
    """A row of reference/requirements.csv: devices of this make must be able to report the quantity.

    ``model`` may contain ``*``; an empty ``architecture`` matches all, a given one no share of a board, whose
    requirements depend on its name only; ``fabric`` is no chip, and matches boards that joined one. A quantity such as
    ``a|b`` means that at most one of these is required, whatever other rows say.
    """

    vendor: str
    kind: DeviceKind
    model: str
    architecture: str
    quantity: str
    source: str

    def applies_to(self, make: Make) -> bool:
        """Return whether devices of *make* must report the quantity."""
        made_so = {""} if make.virtual else {"", make.architecture, FABRIC if make.joined else ""}
        return (
            self.vendor == make.vendor
            and self.kind is make.kind
            and self.architecture in made_so
            and fnmatchcase(make.model, self.model)
        )


def owed(devices: Iterable[Device], samples: Iterable[Sample]) -> dict[str, frozenset[str]]:
    """Return by id the quantities that each of *devices* must report, by its make and by its *samples*."""
    joined = {
        sample.device
        for sample in samples
        for entry in sample.readings
        if entry.quantity == "fabric_state" and entry.value == "completed"
    }
    return {device.id: requirements(device, joined=device.id in joined) for device in devices}


def requirements(device: Device, *, joined: bool = False) -> frozenset[str]:
    """Return the quantities that *device* must be able to report; of ``a|b`` any one.

    A part of a device has no requirements. A device with links must report their states if its driver can, whatever its
    name, and so must one that has *joined* a fabric.
    """
    if device.backend == "host" or device.parent is not None:
        return frozenset()
    make = Make(device.vendor, device.kind, device.model, device.architecture, device.virtual, joined)
    quantities = _required_of(make)
    links = expected_links(device)
    if links is not None and links.told:
        quantities |= {"link_active"}
    return frozenset(entry for entry in quantities if OR in entry) or quantities


@lru_cache(maxsize=MAKES)
def _required_of(make: Make) -> frozenset[str]:
    return frozenset(row.quantity for row in load_table("requirements.csv", Requirement) if row.applies_to(make))


def remember(
    memory: KnownDevices,
    devices: Iterable[Device],
    links_up: dict[str, set[int]],
    now: Instant,
    duplicates: Iterable[tuple[Device, Device]] = (),
    readers: Iterable[ReaderStatus] = (),
) -> KnownDevices:
    """Return *memory* with *devices* as seen now, and the links of ``links_up`` (ports by device id) as once up.

    A device without a driver is not remembered by its PCI address once its own library names it. The memory of a device
    under another name is moved to its present name.
    """
    devices, duplicates = tuple(devices), tuple(duplicates)
    names = named(memory, devices, duplicates, readers=readers)
    renamed = {name: memory.seen[key] for key, name in names.items()}
    kept = {key: entry for key, entry in memory.seen.items() if key not in names}
    seen = listed_now(kept, devices, duplicates)
    for device in without_numbers(memory, devices):
        known = seen.get(device.id) or renamed.get(device.id)
        up = tuple(sorted({*(known.links_up if known else ()), *links_up.get(device.id, ())}))
        slots = tuple(dict.fromkeys((*(known.slots if known else ()), *((device.pci,) if device.pci else ()))))
        told = (device, up, slots, "")
        is_as_before = known is not None and (known.device, known.links_up, known.slots, known.gone_in) == told
        if known is None or not is_as_before or known.last.boot_id != now.boot_id:
            first = known.first if known is not None and not _may_be_another(known, device, now.boot_id) else now
            seen[device.id] = Seen(device, first, now, up, slots, replaces=known is not None and known.replaces)
    real = {slot_of(entry.device) for entry in seen.values() if entry.device.backend != "host" and entry.device.pci}
    for entry in tuple(seen.values()):
        if entry.device.backend == "host" and entry.device.pci and slot_of(entry.device) in real:
            del seen[entry.device.id]
    _note_gone(seen, devices, now.boot_id)
    return KnownDevices(seen) if seen != memory.seen else memory


def _may_be_another(known: Seen, device: Device, boot_id: str) -> bool:
    """Return whether *device*, under the name of a board that was missing before this boot, may be another one."""
    is_told = device.uuid or told_serial(device.serial)
    is_other = are_other_boards(known.device.serial, device.serial)
    return known.gone_in not in ("", boot_id) and (is_other or not is_told)


def _note_gone(seen: dict[str, Seen], devices: tuple[Device, ...], boot_id: str) -> None:
    """Note in *seen*, for each board that its backend does not list now, since which boot, and the boards instead."""
    present = {device.id for device in devices}
    absent = [key for key, entry in seen.items() if key not in present and is_whole(entry.device)]
    if not absent:
        return
    listing = {device.backend for device in devices if is_whole(device)}
    for key in absent:
        if not seen[key].gone_in and seen[key].device.backend in listing:
            seen[key] = msgspec.structs.replace(seen[key], gone_in=boot_id)
    for key, instead in listed_instead(seen, devices, boot_id).items():
        if seen[key].instead != instead:
            seen[key] = msgspec.structs.replace(seen[key], instead=instead)


def links_noted(
    up_before: Collection[int], sample: Sample, listed: Iterable[Device]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the ports to remember as up by *sample*, and those of *up_before* whose numbers changed.

    Only the drivers of some vendors renumber ports, and the device must be *listed* to be known as theirs: on any other
    device a missing port is a lost link, even if another port came up. amdgpu renumbered them in 2025 (amd-gfx, "use
    the external link number"). No link moves to another port by itself: if as many new ports are up as are missing,
    each is a renumbered one. Some may come up later: until then none is remembered, because those that are up would not
    be new any more.
    """
    states = {entry.part.index: entry for entry in sample.readings if entry.quantity == "link_active"}
    up = {port for port, entry in states.items() if entry.value and port is not None}
    vendor = next((device.vendor for device in listed if device.id == sample.device), "")
    if not vendor_of(vendor).renumbers_ports:
        return frozenset(up), frozenset()
    left_out = {port for port in up_before if port in states and states[port].status is ReadingStatus.UNSUPPORTED}
    if len(left_out) > len(up.difference(up_before)):
        return frozenset(up.intersection(up_before)), frozenset()
    return frozenset(up), frozenset(left_out)


def without_ports(memory: KnownDevices, device_id: str, ports: Collection[int]) -> KnownDevices:
    """Return *memory* without *ports* of the device, whose numbers changed."""
    seen = memory.seen.get(device_id)
    if seen is None or not ports:
        return memory
    kept = tuple(port for port in seen.links_up if port not in ports)
    return KnownDevices({**memory.seen, device_id: msgspec.structs.replace(seen, links_up=kept)})


def named(
    memory: KnownDevices,
    devices: Iterable[Device],
    duplicates: Iterable[tuple[Device, Device]] = (),
    spoken_of: Iterable[str] = (),
    readers: Iterable[ReaderStatus] = (),
) -> dict[str, str]:
    """Return the present id of each remembered accelerator that was known by its address alone, or by another UUID.

    A board that fell off the bus cannot report its UUID, and one without a driver is only listed by the kernel. A board
    with the same serial in the same slot is the same one with another UUID, as after a firmware update. A device that
    two backends list (*duplicates*, of ``listed_twice``) has the name from the earlier one, and one that only another
    source lists now, by its *readers*, has the name from that. If a board is listed without a former part, it was
    merged again, and the part's episodes become the board's. Ids that are *spoken_of* in
    this boot count if the memory was lost: an id that is a board's address is that board.
    """
    devices = tuple(devices)
    at_slot = {slot_of(device): device for device in devices if device.uuid and device.pci and device.parent is None}
    present = {device.id for device in devices}
    others = {left_out.id: kept.id for left_out, kept in duplicates if left_out.id not in present}
    names = {key: others[key] for key in memory.seen if key in others}
    for key, entry in memory.seen.items():
        board = at_slot.get(slot_of(entry.device))
        if board is not None and key not in present and _is_same_board(entry.device, board):
            names[key] = board.id
        elif entry.device.parent in present and key not in present:
            names[key] = entry.device.parent
    for key in spoken_of:
        board = at_slot.get(key.removeprefix("pci-").split(".")[0])
        if board is not None and key not in present and key not in memory.seen:
            names[key] = board.id
    names |= _named_at_last(memory, devices)
    names |= told_by_another({key: entry for key, entry in memory.seen.items() if key not in names}, devices, readers)
    parts = {key: entry.device.parent for key, entry in memory.seen.items() if key not in present}
    return names | {part: names[board] for part, board in parts.items() if board in names and part not in names}


def without_numbers(memory: KnownDevices, devices: Iterable[Device]) -> tuple[Device, ...]:
    """Return *devices* without those that only have a number, where as many remembered boards are not listed.

    A driver that refuses every question about its boards still counts them. They are the remembered ones, without
    their names until it answers: under their numbers each would be missing after that.
    """
    devices = tuple(devices)
    present = {device.id for device in devices}
    left_out: set[str] = set()
    for backend in {device.backend for device in devices if is_a_number(device)}:
        numbers = {device.id for device in devices if device.backend == backend and is_a_number(device)}
        absent = [board for board in _named_boards(memory, backend) if board.id not in present]
        left_out |= numbers if len(absent) >= len(numbers) else set()
    return tuple(device for device in devices if device.id not in left_out)


def _named_boards(memory: KnownDevices, backend: str) -> Iterator[Device]:
    """Yield the remembered boards of *backend* that have told who they are."""
    boards = (entry.device for entry in memory.seen.values())
    return (board for board in boards if board.backend == backend and board.uuid and _is_board(board))


def _named_at_last(memory: KnownDevices, devices: Iterable[Device]) -> dict[str, str]:
    """Return the names of boards that were known only by number, if as many new ones answer now."""
    devices = tuple(devices)
    present = {device.id for device in devices}
    names: dict[str, str] = {}
    unknown = [entry.device for key, entry in memory.seen.items() if key not in present and is_a_number(entry.device)]
    for backend in {board.backend for board in unknown}:
        before = sorted(board.id for board in unknown if board.backend == backend)
        mine = (device for device in devices if device.backend == backend and device.uuid and _is_board(device))
        new = [device.id for device in mine if device.id not in memory.seen]
        names |= dict(zip(before, new, strict=True)) if len(before) == len(new) else {}
    return names


def recognised(memory: KnownDevices, devices: Iterable[Device]) -> tuple[Device, ...]:
    """Return *devices*, each accelerator without a reported identity as the remembered one of its slot.

    After a reboot a board may answer only by its PCI page, without UUID and serial. It is one board, not a new one
    beside a missing one, unless a value that it reports (serial, model, PCI device) is another board's, or the
    remembered one is listed elsewhere. Values that a named device does not report are taken from memory: the page of a
    board that fell off the bus may still have its name, and its serial is needed for its return.
    """
    devices = tuple(_completed(memory, device) for device in under_known_names(memory.seen, tuple(devices)))
    present = {device.id for device in devices}
    known = [entry for entry in memory.seen.values() if entry.device.uuid and entry.device.id not in present]
    found = _by_elimination(tuple(_recognised(device, known) for device in devices), known)
    names = {told.id: board.id for told, board in zip(devices, found, strict=True) if told.id != board.id}
    return tuple(_part_under(device, names) for device in found)


def _part_under(device: Device, names: Mapping[str, str]) -> Device:
    """Return *device*, if it is a part of a recognised board, as a part of that board by its name."""
    board, name = device.parent, names.get(device.parent or "")
    if board is None or name is None:
        return device
    return msgspec.structs.replace(device, id=device.id.replace(f"{board}/", f"{name}/", 1), parent=name)


def _by_elimination(devices: tuple[Device, ...], known: Iterable[Seen]) -> tuple[Device, ...]:
    """Return *devices*, the one that is known only by number as the only known one that is not listed."""
    present = {device.id for device in devices}
    for number in [device for device in devices if is_a_number(device)]:
        like = [device for device in devices if is_a_number(device) and device.backend == number.backend]
        boards = (entry.device for entry in known if entry.device.id not in present)
        left = [board for board in boards if _is_board(board) and board.backend == number.backend]
        if len(like) == len(left) == 1:
            devices = tuple(left[0] if device is number else device for device in devices)
    return devices


def is_a_number(device: Device) -> bool:
    """Return whether a library counted *device* but neither its name, its model nor its slot is known."""
    return _is_board(device) and not device.uuid and not device.pci and device.model == UNNAMED


def _completed(memory: KnownDevices, told: Device) -> Device:
    """Return *told* with the remembered values of the board of its name that it did not report this time."""
    entry = memory.seen.get(told.id)
    board = entry.device if entry is not None else None
    if board is None or not board.uuid or not _is_board(told) or not _agree(told, board):
        return told
    lacking = {name: getattr(board, name) for name in LASTING if getattr(told, name) is None}
    if _serial(told) is None or (_serial(board) is not None and told.is_chip_number(told.serial)):
        lacking["serial"] = board.serial
    if _model(told) is None:
        lacking["model"] = board.model
    return msgspec.structs.replace(told, **lacking, links=_with_ends(told, board))


def _with_ends(told: Device, board: Device) -> tuple[Link, ...]:
    """Return the ports of *told*, those without a reported peer with the peer that *board* reported earlier.

    A port reports its peer only while it is up: for a port that went down with the board at its other end, a reader
    that starts later would know no peer. In another slot it has another peer, and under another driver it may be
    another port.
    """
    renumbered = told.driver != board.driver and vendor_of(told.vendor).renumbers_ports
    ends = {} if renumbered or slot_of(told) != slot_of(board) else {link.port: link.peer for link in board.links}
    return tuple(
        msgspec.structs.replace(link, peer=ends.get(link.port)) if link.peer is None else link for link in told.links
    )


def _is_board(device: Device) -> bool:
    """Return whether *device* is a whole accelerator that its own backend lists."""
    return device.kind is DeviceKind.ACCELERATOR and device.backend != "host" and device.parent is None


def _recognised(device: Device, known: Iterable[Seen]) -> Device:
    if not _is_board(device) or device.uuid or not device.pci:
        return device
    fitting = [entry for entry in known if _may_be(device, entry.device)]
    if not fitting:
        return device
    board = max(fitting, key=lambda entry: entry.last.wall_seconds).device
    return msgspec.structs.replace(
        board,
        pci=device.pci,
        minor=board.minor if device.minor is None else device.minor,
        driver=device.driver,
        shares_uuid=device.shares_uuid,
    )


def _may_be(told: Device, board: Device) -> bool:
    """Return whether no value that *told* reports contradicts *board*."""
    return (slot_of(told), None) == (slot_of(board), board.parent) and _agree(told, board)


def _agree(told: Device, board: Device) -> bool:
    """Return whether both are of one backend and make, and no reported value differs."""
    if (told.backend, told.vendor) != (board.backend, board.vendor):
        return False
    if are_other_boards(_serial(told), _serial(board)):
        return False
    pairs = ((told.pci_device_id, board.pci_device_id), (_model(told), _model(board)))
    return all(one is None or other is None or one == other for one, other in pairs)


def _serial(device: Device) -> str | None:
    return told_serial(device.serial)


def _model(device: Device) -> str | None:
    return None if device.model == UNNAMED else device.model


def by_name(status: ReaderStatus, names: Mapping[tuple[str, str], str]) -> ReaderStatus:
    """Return *status* with its devices under their remembered *names*."""
    here = {told: names.get((status.backend, told), told) for told in (*status.quarantined, *status.blamed)}
    return msgspec.structs.replace(
        status,
        quarantined=tuple(here[told] for told in status.quarantined),
        blamed={here[told]: falls for told, falls in status.blamed.items()},
        left_alone={here.get(told, told): words for told, words in status.left_alone.items()},
    )


def without_pages(known: Mapping[str, Device]) -> dict[str, Device]:
    """Return *known* without PCI-only entries of boards that are remembered by name: one board, once."""
    boards = {
        (device.vendor, slot_of(device))
        for device in known.values()
        if device.kind is DeviceKind.ACCELERATOR and device.backend != "host" and device.pci
    }
    return {
        identity: device
        for identity, device in known.items()
        if device.backend != "host"
        or device.kind is not DeviceKind.ACCELERATOR
        or (device.vendor, slot_of(device)) not in boards
    }


def listed_twice(listed: Mapping[str, Iterable[Device]]) -> tuple[tuple[Device, Device], ...]:
    """Return each device that two backends list: the later backend's entry, and the earlier one's.

    *listed* holds the devices by backend. The same name, address or serial is one device, whichever backend reports it.
    """
    taken: dict[tuple[str, str], Device] = {}
    duplicates: list[tuple[Device, Device]] = []
    for devices in listed.values():
        own: dict[tuple[str, str], Device] = {}
        for device in devices:
            names = tuple(_identities(device))
            first = next((taken[name] for name in names if name in taken), None)
            if first is None:
                own |= dict.fromkeys(names, device)
            else:
                duplicates.append((device, first))
        taken = {**own, **taken}
    return tuple(duplicates)


def forget(memory: KnownDevices, device_id: str) -> KnownDevices:
    """Return *memory* without the device and its parts: it was removed, or another one is in its place."""
    kept = {key: entry for key, entry in memory.seen.items() if device_id not in (key, entry.device.parent)}
    gone = memory.seen.get(device_id)
    if gone is not None and is_whole(gone.device):
        here = [key for key, entry in kept.items() if slot_of(entry.device) == slot_of(gone.device) != ""]
        others = (key for key in (*here, *gone.instead) if key in kept and is_whole(kept[key].device))
        free = next((key for key in others if not kept[key].replaces), None)
        if free is not None:
            kept[free] = msgspec.structs.replace(kept[free], replaces=True)
    return KnownDevices(kept)


def _identities(device: Device) -> Iterator[tuple[str, str]]:
    """Yield the identifiers that no other device of the node may have; a bare board on the bus may have two names."""
    yield "name", device.id
    if device.backend == "host":
        return
    if device.uuid:
        yield "name", device.uuid
    if device.parent is None and device.pci:
        yield "address", device.pci
    if device.parent is None and device.serial and re.search("[1-9]", device.serial):  # N/A and 0000 are no serials
        yield f"serial of {device.vendor}", device.serial


def _is_same_board(before: Device, now: Device) -> bool:
    """Return whether two devices of one slot are one board: it had no name before, or kept its serial."""
    if before.kind is not DeviceKind.ACCELERATOR or before.parent is not None:
        return False
    return not before.uuid or (_serial(before) is not None and before.serial == now.serial)
