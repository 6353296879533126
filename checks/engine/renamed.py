"""Devices of a command whose names changed: the same boards, or it is unknown which. Pure.

A site's program chooses the names of devices, and its next update may change them: ``hl0`` becomes ``accel0``, or every
index shifts by one. A missing name is no evidence that a board is lost: serial, UUID and address identify the board.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

import msgspec

from nodevet.checks.core.device import compared_serial, told_serial
from nodevet.checks.core.model import Device, DeviceKind, ReaderState, ReaderStatus

from .acknowledgement import are_other_boards
from .view import Seen

COMMANDS = "command."
"""Prefix of backends that run a command of the site: ``command.gaudi`` runs the command ``gaudi``."""

WITNESSES: tuple[Callable[[Device], Hashable], ...] = (
    lambda device: compared_serial(device.serial),
    lambda device: device.uuid,
    lambda device: device.pci,
)
"""Identifiers of a board independent of its name; None if not reported."""


def same_boards(known: Iterable[Device], told: Iterable[Device]) -> dict[str, str]:
    """Return, by the name of each of *told*, which of *known* it is: by its identifiers, else by its last name.

    Two devices with one serial are ambiguous. A device whose serial differs from that of its name is not that board. If
    one known and one listed board remain unmatched, they are the same.
    """
    before = {device.id: device for device in known if device.parent is None}
    left = {device.id: device for device in told if device.parent is None}
    names: dict[str, str] = {}
    for witness in WITNESSES:
        boards = _by(witness, (board for name, board in before.items() if name not in names.values()))
        for value, device in _by(witness, left.values()).items():
            if value in boards and _may_be_one(boards[value], device):
                names[device.id] = boards[value].id
                del left[device.id]
    is_renamed = any(told != name for told, name in names.items())
    rest = {board.called or name: board for name, board in before.items() if name not in names.values()}
    names |= {
        name: rest[name].id
        for name, device in left.items()
        if name in rest and not are_other_boards(rest[name].serial, device.serial)
    }
    unknown = [board for board in rest.values() if board.id not in names.values()]
    new = [device for name, device in left.items() if name not in names]
    if is_renamed and len(unknown) == len(new) == 1 and _may_be_one(unknown[0], new[0]):
        names[new[0].id] = unknown[0].id
    return names


def told_by_another(
    seen: Mapping[str, Seen], devices: Iterable[Device], readers: Iterable[ReaderStatus]
) -> dict[str, str]:
    """Return the present name of each board of *seen* that another source lists now, by its serial or UUID.

    The source of a board was renamed or removed from the configuration, or another one reads it instead. No identifier
    is shared by two boards of one source, as the serial of a board with two processors is. A source that has not listed
    its devices yet may still list the board.
    """
    devices = tuple(devices)
    present = {device.id for device in devices}
    absent = [entry.device for key, entry in seen.items() if key not in present and _is_told_board(entry.device)]
    may_list = {
        reader.backend for reader in readers if reader.state is not ReaderState.ABSENT and not has_listed(reader)
    }
    absent = [board for board in absent if board.backend not in may_list]
    if not absent:
        return {}
    known = {entry.device.id: entry.device for entry in seen.values()} | {device.id: device for device in devices}
    by_source: dict[str, list[Device]] = {}
    for device in filter(_is_told_board, known.values()):
        by_source.setdefault(device.backend, []).append(device)
    names: dict[str, str] = {}
    for witness in WITNESSES[:2]:
        alone = {source: _by(witness, boards) for source, boards in by_source.items()}
        for board in absent:
            found = [
                other
                for source, others in alone.items()
                if source != board.backend
                and (other := others.get(witness(board))) is not None
                and other.id in present
                and not other.shares_uuid
                and _may_be_one(board, other)
            ]
            is_alone = alone[board.backend].get(witness(board)) is board
            if is_alone and len(found) == 1 and board.id not in names:
                names[board.id] = found[0].id
    return names | _of_renamed_commands(seen, devices, {reader.backend for reader in readers})


def has_listed(reader: ReaderStatus) -> bool:
    """Return whether *reader* runs, and has listed its devices since its start."""
    return reader.state is ReaderState.RUNNING and reader.last_round is not None


def _of_renamed_commands(
    seen: Mapping[str, Seen], devices: Iterable[Device], sources: Collection[str]
) -> dict[str, str]:
    """Return the present names of the boards of each command that has another name now: all under their own ids.

    *sources* are configured. The command that lists them is new, and no other new one lists the same ids.
    """
    told = [device for device in devices if device.backend.startswith(COMMANDS) and device.id not in seen]
    by_name: dict[str, dict[str, Device]] = {}
    for each in filter(_is_told_board, told):
        by_name.setdefault(each.backend, {})[_own_name(each)] = each
    listed = [entry.device for entry in seen.values() if not entry.gone_in]
    known = [device for device in listed if device.backend.startswith(COMMANDS)]
    names: dict[str, str] = {}
    for source in {board.backend for board in known} - {*sources} if sources else ():
        boards = [board for board in known if board.backend == source and _is_told_board(board)]
        fitting = [
            now
            for now in by_name.values()
            if all(
                (device := now.get(_own_name(board))) is not None
                and device.model == board.model
                and _may_be_one(board, device)
                for board in boards
            )
        ]
        if len(fitting) == 1:
            names |= {board.id: fitting[0][_own_name(board)].id for board in boards}
    return names


def _own_name(device: Device) -> str:
    """Return the id of *device* as its command prints it."""
    return (device.called or device.id).removeprefix(f"{device.backend.removeprefix(COMMANDS)}:")


def _is_told_board(device: Device) -> bool:
    """Return whether *device* is a whole accelerator that another backend than the host's lists."""
    return device.kind is DeviceKind.ACCELERATOR and device.parent is None and device.backend != "host"


def _by(witness: Callable[[Device], Hashable], devices: Iterable[Device]) -> dict[Hashable, Device]:
    """Return the devices that alone have a value of *witness*, by that value."""
    told = [(value, device) for device in devices if (value := witness(device)) is not None]
    counts = Counter(value for value, _ in told)
    return {value: device for value, device in told if counts[value] == 1}


def _may_be_one(board: Device, device: Device) -> bool:
    """Return whether no identifier that both report differs.

    With equal serials the UUID may have another format, and the address another bus: a boot may number them anew.
    """
    serial = compared_serial(device.serial)
    is_same_chip = serial is not None and serial == compared_serial(board.serial)
    is_named = None in (board.uuid, device.uuid) or board.uuid == device.uuid or is_same_chip
    is_there = None in (board.pci, device.pci) or board.pci == device.pci or is_same_chip
    is_like = (board.kind, board.vendor) == (device.kind, device.vendor)
    return is_like and is_there and is_named and not are_other_boards(board.serial, device.serial)


def under_known_names(seen: Mapping[str, Seen], devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return *devices*, each renamed device of a command in *seen* under its first name.

    If a board's new name belonged to another one before, that one keeps the name and the new board uses its serial; if
    it reports no serial, nothing is certain, and all keep the names that the command reports.
    """
    names: dict[str, str] = {}
    for backend in {device.backend for device in devices if device.backend.startswith(COMMANDS)}:
        told = [device for device in devices if device.backend == backend]
        known = [entry.device for entry in seen.values() if entry.device.backend == backend]
        names |= _unique(same_boards(known, told), told, backend.removeprefix(COMMANDS))
    boards = {device.id: seen[names[device.id]].device for device in devices if names.get(device.id) in seen}
    # A board that reports a UUID later continues under that, by its address (baseline.named).
    names |= {device.id: device.id for device in devices if _tells_uuid_at_last(device, boards.get(device.id))}
    if all(old == new for old, new in names.items()):
        return devices
    return tuple(_under(names, device, boards.get(device.id)) for device in devices)


def _tells_uuid_at_last(device: Device, board: Device | None) -> bool:
    return board is not None and bool(device.uuid and not board.uuid and device.pci and device.pci == board.pci)


def _unique(names: Mapping[str, str], told: Iterable[Device], command: str) -> dict[str, str]:
    """Return *names* with one unique name for each of *told*; empty if that is impossible."""
    taken = set(names.values())
    found = dict(names)
    for device in told:
        if device.id not in found:
            serial = compared_serial(device.serial)
            found[device.id] = f"{command}:{serial}" if device.id in taken and serial else device.id
    return found if len(set(found.values())) == len(found) else {}


def _under(names: Mapping[str, str], device: Device, board: Device | None) -> Device:
    """Return *device* under its name in *names*, completed with the earlier identity of *board*, the known one."""
    links = tuple(msgspec.structs.replace(link, peer=names.get(link.peer or "", link.peer)) for link in device.links)
    parent = names.get(device.parent or "", device.parent)
    if board is None or names[device.id] != board.id or (board.id == device.id and board.called is None):
        return msgspec.structs.replace(device, id=names.get(device.id, device.id), parent=parent, links=links)
    return msgspec.structs.replace(
        device,
        id=board.id,
        uuid=device.uuid or board.uuid,
        serial=device.serial if told_serial(device.serial) else board.serial,
        pci=device.pci or board.pci,
        called=device.id if device.id != board.id else None,
        parent=parent,
        links=links,
    )


def are_all_renamed(before: Iterable[str], now: Iterable[str]) -> bool:
    """Return whether all names *before* are gone *now* and as many others appeared: that proves no loss.

    A board does not disappear with all its siblings in the moment in which as many others appear.
    """
    old, new = set(before), set(now)
    return bool(old) and not old & new and len(new) >= len(old)


def listed_now(
    seen: Mapping[str, Seen],
    devices: Iterable[Device],
    duplicates: Iterable[tuple[Device, Device]] = (),
) -> dict[str, Seen]:
    """Return *seen* updated by the present lists of commands: unlisted devices, and new ones that replaced all of them.

    Only devices that were never listed together with them can replace them. A device of a command that another backend
    lists too (*duplicates*) has its name there.
    """
    present: dict[str, set[str]] = {}
    named = [(device, device.id) for device in devices] + [(left_out, kept.id) for left_out, kept in duplicates]
    for device, name in named:
        if device.parent is None and device.backend.startswith(COMMANDS):
            present.setdefault(device.backend, set()).add(name)
    found = dict(seen)
    for backend, now in present.items():
        known = {key: entry for key, entry in seen.items() if _is_board_of(entry.device, backend)}
        before = {key for key, entry in known.items() if not entry.unlisted}
        are_new = all(key not in known or before <= set(known[key].instead) for key in now)
        are_other = are_new and are_all_renamed(before, now)
        for key, entry in known.items():
            instead = tuple(sorted(now)) if are_other and (key in before or entry.instead) else entry.instead
            fresh = (False, ()) if key in now else (True, instead)
            if (entry.unlisted, entry.instead) != fresh:
                found[key] = msgspec.structs.replace(entry, unlisted=fresh[0], instead=fresh[1])
    return found


def _is_board_of(device: Device, backend: str) -> bool:
    return device.backend == backend and device.parent is None
