"""The facts that `nodevet slurm check` reads, and the items of its result."""

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
    """The status of an item."""

    OK = "ok"
    WARNING = "warning"
    CANNOT_TELL = "cannot tell"
    WRONG = "wrong"


class Item(msgspec.Struct, frozen=True):
    """One item of the check: on this ``node`` or in the ``cluster``, with status, finding and next step."""

    name: str
    area: str
    status: Status
    says: str
    next_step: str = ""


def ok(name: str, says: str) -> Item:
    """Return an item without a problem."""
    return Item(name, NODE, Status.OK, says)


def warning(name: str, says: str, next_step: str) -> Item:
    """Return an item that may be intended."""
    return Item(name, NODE, Status.WARNING, says, next_step)


def cannot_tell(name: str, says: str, next_step: str = "") -> Item:
    """Return an item whose status is unknown."""
    return Item(name, NODE, Status.CANNOT_TELL, says, next_step)


def wrong(name: str, says: str, next_step: str) -> Item:
    """Return an item that stops the scripts from working."""
    return Item(name, NODE, Status.WRONG, says, next_step)


class Entry(msgspec.Struct, frozen=True):
    """A file or folder: owner, permission bits, and a fault in its kind. ``uid`` is None if it does not exist.

    ``unstartable`` is the cause for which the kernel cannot execute it, judged by the start of the file.
    """

    path: str
    uid: int | None = None
    mode: int = 0
    trouble: str = ""
    unstartable: str = ""

    @property
    def not_run(self) -> str:
        """Return the path and why SLURM cannot execute it; empty if it can."""
        if not self.mode & EXECUTABLE or self.trouble:
            return self.path
        return f"{self.path} ({self.unstartable})" if self.unstartable else ""


class Hook(msgspec.Struct, frozen=True):
    """A script that SLURM runs: its name in the configuration, its files on this node, and our scripts that they call.

    ``missing`` are the names without a file; ``misread`` is the correction of a name that SLURM does not read as
    intended.
    """

    named: str
    files: tuple[Entry, ...] = ()
    calls: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    misread: str = ""

    @property
    def lacks(self) -> str:
        """Return why SLURM cannot run all of it here; empty if it can."""
        not_run = [entry.not_run for entry in self.files if entry.not_run]
        if not_run:
            return f"cannot be executed here: {', '.join(not_run)}"
        if self.missing or not self.files:
            named = "" if self.missing in ((), (self.named,)) else f": {', '.join(self.missing)}"
            return f"names no file on this node{named}"
        return ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts that were read. A text in place of values is the cause for which they are missing."""

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
    """The scripts that slurm.conf names and SLURM has not loaded."""
    admin_level: str | None
    machine: str = ""
    """SLURM's node name of this machine, if it differs from ``node``."""
    forgotten: str = ""
    """The command to type if a mark of nodevet is left at a node in service."""
    remote: tuple[str, ...] = ()
    """The folders that a prolog reads from a network file system."""
    running: Running | str | None = None
    """The modes that the agent has loaded; a text is the cause for which they are unknown; None if no agent runs."""
