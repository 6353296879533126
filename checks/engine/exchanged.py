"""Boards of an earlier boot in whose place others are listed, whatever source lists them. Pure.

A virtual machine that is started on other hardware, or a server with a new tray, has other boards at other PCI
addresses. A boot may also number the buses anew. Neither is a loss if as many boards are listed as before. Within a
boot no board is exchanged unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.device import slot_of, told_serial
from nodevet.checks.core.model import Device, DeviceKind, Instant, ReaderState
from nodevet.checks.reference.vendors import LENT_DRIVERS

from .acknowledgement import are_other_boards
from .arriving import page_of
from .bare import bare_boards
from .unlisted import excluded, not_given, withheld
from .view import Seen, View

HOST = "host"
"""The backend that lists the PCI bus."""


def listed_instead(seen: Mapping[str, Seen], devices: Iterable[Device], boot_id: str) -> dict[str, tuple[str, ...]]:
    """Return by id the boards, first listed after it, that may stand for each board of an earlier boot.

    Only if at least as many are new as are missing: else a board is lost. A board at whose address the bus shows one
    that its driver does not list is lost and counts as neither. Boards that were missing before the boot come last. For
    those that only the bus ever listed, new entries of the bus count too.
    """
    devices = tuple(devices)
    found: dict[str, tuple[str, ...]] = {}
    gone = _gone(seen, devices, boot_id)
    for vendor in sorted({entry.device.vendor for entry in gone}):
        mine = [entry for entry in gone if entry.device.vendor == vendor and not _is_settled(seen, entry, boot_id)]
        taken, is_fewer, of_lost = 0, False, 0
        for group in _by_boot(mine, boot_id):
            new = _new(seen, devices, boot_id, group)
            is_page = group[0].device.backend == HOST
            left = len(new) - taken + (of_lost if is_page else 0)  # the page may be that of such a board
            if (is_fewer and not is_page) or left < len(group):
                is_fewer = True
                continue
            taken += len(group)
            of_lost += 0 if group[0].gone_in in ("", boot_id) else len(group)
            found |= {entry.device.id: tuple(sorted(board.id for board in new)) for entry in group}
    return found


def _is_settled(seen: Mapping[str, Seen], entry: Seen, boot_id: str) -> bool:
    """Return whether other boards came in place of that of *entry* in an earlier boot: these count now."""
    others = [seen[name] for name in entry.instead if name in seen]
    return bool(entry.instead) and not any(other.first.boot_id == boot_id for other in others)


def _gone(seen: Mapping[str, Seen], devices: tuple[Device, ...], boot_id: str) -> list[Seen]:
    """Return the boards of earlier boots that are neither listed nor on the bus at their address."""
    present = {device.id for device in devices}
    bare = {(device.vendor, slot) for device in devices if device.backend == HOST and (slot := slot_of(device))}
    return [
        entry
        for key, entry in seen.items()
        if key not in present
        and entry.last.boot_id != boot_id
        and is_whole(entry.device)
        and (entry.device.vendor, slot_of(entry.device)) not in bare
    ]


def _new(seen: Mapping[str, Seen], devices: Iterable[Device], boot_id: str, gone: Sequence[Seen]) -> list[Device]:
    """Return the boards that were never listed beside *gone* ones, of one vendor: first in this boot, or since then.

    One that its backend knows only by a number or an address may be a former one. A command chooses names, and each new
    one counts. An entry of the bus stands for another one only. One that took the place of a forgotten board counts no
    more.
    """
    newest = max((entry.last for entry in gone), key=lambda last: last.wall_seconds)
    by_bus = gone[0].device.backend == HOST
    found = []
    for device in devices:
        entry = seen.get(device.id)
        is_new = entry is None or entry.first.boot_id == boot_id or _is_after(entry.first, newest)
        is_named = device.uuid or told_serial(device.serial) or device.backend != device.vendor
        counts = device.vendor == gone[0].device.vendor and (by_bus or device.backend != HOST)
        is_free = entry is None or not entry.replaces
        if is_new and is_named and is_free and counts and is_whole(device):
            found.append(device)
    return found


def _is_after(first: Instant, last: Instant) -> bool:
    """Return whether *first* is of a later boot than *last*, by the wall clock."""
    return first.boot_id != last.boot_id and first.wall_seconds > last.wall_seconds


def _by_boot(gone: Iterable[Seen], boot_id: str) -> list[list[Seen]]:
    """Return *gone* boards by the boot in which they were last listed, the newest first; then those lost before.

    Those that only the bus listed come after all others.
    """
    groups: dict[tuple[bool, bool, str], list[Seen]] = {}
    for entry in gone:
        kind = (entry.device.backend == HOST, entry.gone_in not in ("", boot_id))
        groups.setdefault((*kind, entry.last.boot_id), []).append(entry)
    order = sorted(groups, key=lambda name: (name[:2], -max(entry.last.wall_seconds for entry in groups[name])))
    return [groups[name] for name in order]


def exchanged(view: View) -> dict[str, str]:
    """Return, by the id of each remembered device that was replaced, the proof that it was.

    Another serial at its address is one. So is, after a boot, an address without a board, or with another one, while
    at least as many boards with other names are listed: the bus must list these, and both must have a name of the same
    kind, or the former one was only an entry of the bus. The parts of a replaced board are replaced with it.
    """
    present = {device.id for device in view.devices}
    absent = {key: entry for key, entry in view.memory.seen.items() if key not in present}
    proofs = {key: proof for key, entry in absent.items() if is_whole(entry.device) and (proof := _proof(view, entry))}
    for key, entry in absent.items():
        if entry.device.parent in proofs:
            proofs[key] = proofs[entry.device.parent]
    return proofs


def _proof(view: View, entry: Seen) -> str:
    """Return the proof that the board of *entry*, which is not listed, was replaced, or an empty text."""
    board = entry.device
    for other in view.devices:
        sits_there = other.pci == board.pci is not None and is_whole(other) and other.backend != HOST
        known = view.memory.seen.get(other.id)
        if sits_there and (known is None or len(known.slots) <= 1) and are_other_boards(board.serial, other.serial):
            return f"replaced: serial {other.serial} where {board.serial} was"
    others = [other for other in view.devices if other.id in entry.instead]
    places = {page.pci for page in view.on_bus}
    is_read = bool(others) and all(other.pci in places for other in others)
    if entry.last.boot_id == view.now.boot_id or board.pci is None or not is_read:
        return ""
    if board.backend != HOST and not _are_told(board, others):
        return ""
    if page_of(board, bare_boards(view, board.vendor)) is not None:
        return ""
    return f"replaced: since a boot {count_of(len(others), 'other board')} listed, and not that of {board.pci}"


def _are_told(board: Device, others: Iterable[Device]) -> bool:
    """Return whether *board* and all *others* report a UUID, or all a serial: else one may be the other."""
    boards = (board, *others)
    return all(entry.uuid for entry in boards) or all(told_serial(entry.serial) for entry in boards)


def unread_instead(view: View, entry: Seen) -> list[Device]:
    """Return the boards on the bus that no driver lists and that may be the one of *entry*, of an earlier boot.

    They are at addresses that no board had before, and each has a finding of its own; those withheld from the agent do
    not count. If they and the new boards are fewer than those that are missing, one is lost.
    """
    now = view.now.boot_id
    seen, vendor = view.memory.seen, entry.device.vendor
    gone = [
        each
        for each in _gone(seen, view.devices, now)
        if each.device.vendor == vendor and not _is_settled(seen, each, now)
    ]
    if entry not in gone:
        return []
    away = {*not_given(view), *excluded(view), *withheld(view)}
    slots = {slot_of(each.device) for each in seen.values() if each.device.backend != HOST}
    pages = [
        page
        for page in bare_boards(view, vendor)
        if page.driver not in LENT_DRIVERS
        and page.pci not in away
        and slot_of(page) not in slots
        and (page.id not in seen or seen[page.id].first.boot_id == now or _is_after(seen[page.id].first, entry.last))
    ]
    taken = 0
    for group in _by_boot(gone, now):
        taken += len(group)
        if entry in group:
            new = [board for board in _new(seen, view.devices, now, group) if board.backend != HOST]
            return pages if len(new) + len(pages) >= taken else []
    return []


def awaits_bus(view: View, entry: Seen) -> bool:
    """Return whether the bus is not read yet, which shows what became of the board of *entry*, of an earlier boot."""
    reader = view.reader(HOST)
    if reader is None or entry.last.boot_id == view.now.boot_id or any(each.backend == HOST for each in view.devices):
        return False
    return reader.state is ReaderState.STARTING or (reader.state is ReaderState.RUNNING and reader.last_round is None)


def is_whole(device: Device) -> bool:
    """Return whether *device* is an accelerator, and no part of one."""
    return device.kind is DeviceKind.ACCELERATOR and device.parent is None
