"""Counts the decisions of the prologs from gate.log, to which they append.

Each line is counted once, also across restarts: the position in the log is remembered with the counts. A long log is
renamed, read to its end, and replaced at the next renaming.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from nodevet.agent.services.protocol import Service
from nodevet.checks.core.model import AgentInfo
from nodevet.checks.system.files import opened

GATE_LOG_NAME = "gate.log"
ASIDE_NAME = "gate.log.1"

DECISIONS = (
    "open",
    "closed",
    "observed",
    "unpermitted",
    "resumed",
    "refused_open",
    "refused_closed",
    "no_verdict_open",
    "no_verdict_closed",
    "no_claim_open",
    "no_claim_closed",
    "probing_open",
    "probing_closed",
)
"""The possible decisions of a prolog; docs/reference/slurm-gate.md describes each."""

UNREADABLE = "unreadable"
"""Counts lines with none of these decisions: from another version, or truncated by a full disk."""

ASIDE_BYTES = 1 << 20
READ_BYTES = 1 << 18


_Look = tuple[int, int, int] | None
"""Inode, size and modification time (ns) of a file that was not opened; None if it does not exist."""


class _Place(msgspec.Struct, frozen=True):
    """The inode of the log, the offset (bytes) up to which it was read, and the counts up to there."""

    inode: int = 0
    offset: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)


class GateLog(Service):
    """Reads the new lines of the log before each judgement."""

    name = "gate_log"

    def __init__(
        self,
        runtime_directory: Path,
        *,
        memory: bytes | None = None,
        log: Callable[[str], None] = lambda _line: None,
        moves: bool = True,
    ) -> None:
        """Continue from *memory*, the ``memory`` of an earlier process; *log* takes each decision other than ``open``.

        Of several readers of a log, only one *moves* it aside.
        """
        self._moves = moves
        self._path = runtime_directory / GATE_LOG_NAME
        self._aside = runtime_directory / ASIDE_NAME
        self._log = log
        try:
            self._place = msgspec.msgpack.decode(memory, type=_Place) if memory else _Place()
        except msgspec.MsgspecError:
            self._place = _Place()
        self._counts = dict(self._place.counts)
        self._seen: tuple[_Look, _Look] | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Return the count of each decision; every decision is present from the start."""
        return {name: self._counts.get(name, 0) for name in (*DECISIONS, UNREADABLE)}

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Add the count of each decision to *info*."""
        return msgspec.structs.replace(info, gate_decisions=self.counts)

    @property
    def memory(self) -> bytes:
        """Return the state with which the next process continues."""
        return msgspec.msgpack.encode(_Place(self._place.inode, self._place.offset, self._counts))

    def before_judging(self) -> None:
        """Count the new lines, and rename a long log. An unchanged log is not opened."""
        # Taken before the reading: a line appended meanwhile is then a new change.
        looks = _look(self._aside), _look(self._path)
        if looks == self._seen:
            return
        self._seen = None
        # A prolog that had the log open may have appended a line after the renaming.
        inode, offset = self._place.inode, self._place.offset
        aside = self._read(self._aside, inode, offset)
        present = self._read(self._path, inode, offset)
        self._place = _Place(*(present or aside or (inode, offset)))
        if (present is None) == (looks[1] is None):  # otherwise it could not be opened this time
            self._seen = looks
        if self._moves and present is not None and self._place.offset >= ASIDE_BYTES:
            with suppress(OSError):  # a log that cannot be renamed is read on in place
                self._path.rename(self._aside)

    def _read(self, path: Path, inode: int, offset: int) -> tuple[int, int] | None:
        """Count the lines of *path*; return its inode and the end of the reading, or None if it cannot be read."""
        try:
            with opened(path) as (descriptor, status):
                known = status.st_ino == inode
                if not stat.S_ISREG(status.st_mode) or (path == self._aside and not known):
                    return None  # the renamed log was read to its end before
                # A log that became shorter was truncated: it is read from the start.
                start = offset if known and offset <= status.st_size else 0
                return status.st_ino, self._count(descriptor, start)
        except OSError:
            return None

    def _count(self, descriptor: int, offset: int) -> int:
        """Count whole lines from *offset* on; return the offset of the next line."""
        while block := os.pread(descriptor, READ_BYTES, offset):
            end = block.rfind(b"\n") + 1
            if not end:
                # No line of nodevet is that long: it is skipped.
                return offset + len(block) if len(block) == READ_BYTES else offset
            for line in block[: end - 1].split(b"\n"):
                self._take(line.decode("utf-8", "replace"))
            offset += end
        return offset

    def _take(self, line: str) -> None:
        decision = line.split(" ", 1)[0]
        if decision not in DECISIONS:
            decision = UNREADABLE
        self._counts[decision] = self._counts.get(decision, 0) + 1
        if decision != "open":
            self._log(f"a prolog decided: {line[:300]}")


def _look(path: Path) -> _Look:
    """Return a state that changes with every line appended to *path*, without opening it."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class Closings:
    """Detects that a prolog has closed the gate since the last call: SLURM drains the node each time."""

    def __init__(self, runtime_directory: Path) -> None:
        """Start with the present counts of the log."""
        self._log = GateLog(runtime_directory, moves=False)
        self._known = self._count()

    def take(self) -> bool:
        """Return whether a prolog has closed the gate since the last call."""
        before, self._known = self._known, self._count()
        return self._known > before

    def _count(self) -> int:
        self._log.before_judging()
        return sum(count for name, count in self._log.counts.items() if name.endswith("closed"))
