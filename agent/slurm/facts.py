"""What a look at the installation for SLURM reads, and how one of its items stands."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from nodevet.agent.config.settings import Configuration
from nodevet.exporters.statefile.reader import Absent, StateFile

from .loaded import Running

NODE, CLUSTER = "node", "cluster"

EXECUTABLE = 0o100


class Status(StrEnum):
    """How an item stands."""

    OK = "ok"
    WARNING = "warning"
    CANNOT_TELL = "cannot tell"
    WRONG = "wrong"


class Item(msgspec.Struct, frozen=True):
    """One thing that was looked at: on this ``node`` or in the ``cluster``, how it stands, and what to do about it."""

    name: str
    area: str
    status: Status
    says: str
    next_step: str = ""


def ok(name: str, says: str) -> Item:
    """Return an item with which all is well."""
    return Item(name, NODE, Status.OK, says)


def warning(name: str, says: str, next_step: str) -> Item:
    """Return an item that may be meant so."""
    return Item(name, NODE, Status.WARNING, says, next_step)


def cannot_tell(name: str, says: str, next_step: str = "") -> Item:
    """Return an item of which nothing is known."""
    return Item(name, NODE, Status.CANNOT_TELL, says, next_step)


def wrong(name: str, says: str, next_step: str) -> Item:
    """Return an item that keeps the scripts from their work."""
    return Item(name, NODE, Status.WRONG, says, next_step)


class Entry(msgspec.Struct, frozen=True):
    """A file or folder: owner, permission bits, what is wrong with its kind. ``uid`` is None where it is not there.

    ``unstartable`` says why the kernel starts no such program, as far as its beginning tells.
    """

    path: str
    uid: int | None = None
    mode: int = 0
    trouble: str = ""
    unstartable: str = ""

    @property
    def not_run(self) -> str:
        """Return the path with why SLURM cannot execute it, or an empty string."""
        if not self.mode & EXECUTABLE or self.trouble:
            return self.path
        return f"{self.path} ({self.unstartable})" if self.unstartable else ""


class Hook(msgspec.Struct, frozen=True):
    """A script that SLURM runs: what is named, the files on this node that this means, and which of ours they call.

    ``missing`` are the names for which there is no file; ``misread`` says what to write instead of one of these that
    SLURM does not take as it is meant.
    """

    named: str
    files: tuple[Entry, ...] = ()
    calls: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    misread: str = ""

    @property
    def lacks(self) -> str:
        """Return why SLURM cannot run all of it here, or an empty string."""
        not_run = [entry.not_run for entry in self.files if entry.not_run]
        if not_run:
            return f"cannot be executed here: {', '.join(not_run)}"
        if self.missing or not self.files:
            named = "" if self.missing in ((), (self.named,)) else f": {', '.join(self.missing)}"
            return f"names no file on this node{named}"
        return ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read. A text in the place of values says why they could not be had."""

    node: str
    folder: str
    uid: int
    scripts: tuple[Entry, ...]
    parents: tuple[Entry, ...]
    gate_conf: Entry
    gate: Mapping[str, str] | str
    rehearsal: tuple[str, ...] | str
    settings: Configuration
    state_path: str
    state: StateFile | Absent
    state_uid: int | None
    uptime_seconds: float
    claims: Entry
    gres_path: str
    gres: tuple[tuple[str, str], ...] | str
    config: Mapping[str, str] | str
    written: Mapping[str, str]
    unknown_node: str
    gres_of_node: str | None
    hooks: Mapping[str, Hook]
    awaiting: Mapping[str, Hook] = {}
    """What slurm.conf names and SLURM has not loaded."""
    admin_level: str | None
    machine: str = ""
    """What SLURM calls this machine, where that is another node than ``node``."""
    forgotten: str = ""
    """What to type where a mark of nodevet stands at a node in service."""
    remote: tuple[str, ...] = ()
    """What a prolog reads from a network file system."""
    running: Running | str | None = None
    """The modes that the agent has loaded, why it does not tell them, or None where none runs."""
