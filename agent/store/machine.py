"""Which machine a database belongs to: an image that was taken of one node starts others with its database.

What it remembers there was never seen here: boards that are missing, faults of memory, and words of a person on them.
Whatever is repaired leaves something of a machine: a new mainboard brings another number, and the system on the disk
stays; a system that is installed anew keeps the mainboard. Only where both are others it is another machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import BusyError, StoreError

from .database import move_aside
from .downgrade import open_of_any_version
from .opening import OpenedStore
from .store import Store

MACHINE = "machine"
"""The name of what is remembered of it."""

_NO_HOST_NAMES = ("localhost", "localhost.localdomain", "(none)")
"""What a machine is called until DHCP or cloud-init names it."""


class Machine(msgspec.Struct, frozen=True):
    """What tells one machine from another; empty where it is not known.

    ``board`` is the number that the firmware has for it (SMBIOS 3.7, 7.2.1: System UUID), ``system`` that of the
    installed system (machine-id(5)), which many an image hands on, and ``host`` its name.
    """

    board: str = ""
    system: str = ""
    host: str = ""

    def is_other(self, kept: Machine) -> bool:
        """Return whether *kept* is another machine than this one: its board, and the system on it."""
        system = _differ(self.system, kept.system) or _differ(self.host, kept.host)
        return _differ(self.board, kept.board) and system

    def after(self, kept: Machine) -> Machine:
        """Return this machine, and of *kept*, which is the same, what is not known now."""
        return Machine(self.board or kept.board, self.system or kept.system, self.host or kept.host)


def this_machine(root: Path, host: str | None = None) -> Machine:
    """Return the machine whose files lie below *root*. Only root may read its number.

    A container that reads its host below a folder has a name of its own, which is none of the machine.
    """
    name = host if host is not None else os.uname().nodename if root == Path("/") else ""
    board = _line(root / "sys/class/dmi/id/product_uuid").lower()
    return Machine(
        board="" if set(board) - {"-"} in ({"0"}, {"f"}) else board,  # SMBIOS: all of one kind, not set
        system=_line(root / "etc/machine-id"),
        host="" if name in _NO_HOST_NAMES else name,
    )


def is_of(memory: Mapping[str, bytes], machine: Machine) -> bool:
    """Return whether *memory* may be of *machine*."""
    return not machine.is_other(_kept(memory))


def open_of_machine(
    path: Path, machine: Machine, opened: Callable[[Path], OpenedStore] = open_of_any_version
) -> OpenedStore:
    """Open the database at *path* as *opened* does; one of another than *machine* is set aside first.

    Raises BusyError, RefusedError and StoreError.
    """
    found = opened(path)
    try:
        kept = _kept(found.store.load_memory())
        if not machine.is_other(kept):
            _keep(found.store, machine.after(kept), kept)
            return found
    except BaseException:
        found.store.close()  # else its lock keeps the next try of this very agent out
        raise
    found.store.close()
    aside = move_aside(path, SystemClock().instant().wall_seconds, "other-machine")
    fresh = opened(path)
    _keep(fresh.store, machine, Machine())
    told = (
        f"{path}: from another machine{f', {kept.host}' if kept.host else ''}, for example by a disk image: moved "
        f"aside to {aside} and not used; leave state_dir out of images"
    )
    return OpenedStore(fresh.store, "; ".join(filter(None, (told, fresh.notice))))


def _keep(store: Store, machine: Machine, kept: Machine) -> None:
    """Write whose *store* is; a disk that takes nothing now is told of by the first round."""
    if machine.board and machine != kept:
        with suppress(StoreError, BusyError):
            store.save_round((), {MACHINE: msgspec.msgpack.encode(machine)}, time=SystemClock().instant())


def _kept(memory: Mapping[str, bytes]) -> Machine:
    """Return the machine that *memory* is of, as far as it says so."""
    try:
        return msgspec.msgpack.decode(memory[MACHINE], type=Machine) if MACHINE in memory else Machine()
    except msgspec.MsgspecError:
        return Machine()


def _differ(one: str, other: str) -> bool:
    return bool(one and other) and one != other


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
