"""Counts what the prologs decided, from the log that they append to.

A line is counted once, over restarts too: how far the log was read is remembered together with the counts. A log that
has grown long is moved aside, read to its end there, and replaced by the next that is moved.
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
"""What a prolog may decide; docs/reference/slurm-gate.md says what each means."""

UNREADABLE = "unreadable"
"""Counts lines that are none of the above: of another version, or cut by a full disk."""

ASIDE_BYTES = 1 << 20
READ_BYTES = 1 << 18


_Look = tuple[int, int, int] | None
"""Inode, size and time of the last change of a file that was not opened; None where it is not there."""


class _Place(msgspec.Struct, frozen=True):
    """How far which file was read, and what was counted up to there."""

    inode: int = 0
    offset: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)


class GateLog(Service):
    """Reads what was appended before each judgement."""

    name = "gate_log"

    def __init__(
        self,
        runtime_directory: Path,
        *,
        memory: bytes | None = None,
        log: Callable[[str], None] = lambda _line: None,
        moves: bool = True,
    ) -> None:
        """Go on from *memory*, the ``memory`` of an earlier one; *log* takes each decision that did not just open.

        One alone of those who read a log *moves* it aside.
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
        """Return how often each was decided; every decision is there from the start."""
        return {name: self._counts.get(name, 0) for name in (*DECISIONS, UNREADABLE)}

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Tell how often each was decided."""
        return msgspec.structs.replace(info, gate_decisions=self.counts)

    @property
    def memory(self) -> bytes:
        """Return what the next process needs to count on."""
        return msgspec.msgpack.encode(_Place(self._place.inode, self._place.offset, self._counts))

    def before_judging(self) -> None:
        """Count what was appended, and move a long log aside. A log that did not change is not opened."""
        # Looked at before it is read: what is appended meanwhile is another change.
        looks = _look(self._aside), _look(self._path)
        if looks == self._seen:
            return
        self._seen = None
        # One that was moved aside may have got a last line from a prolog that had it open.
        inode, offset = self._place.inode, self._place.offset
        aside = self._read(self._aside, inode, offset)
        present = self._read(self._path, inode, offset)
        self._place = _Place(*(present or aside or (inode, offset)))
        if (present is None) == (looks[1] is None):  # else it could not be opened this time
            self._seen = looks
        if self._moves and present is not None and self._place.offset >= ASIDE_BYTES:
            with suppress(OSError):  # where that cannot be it is read on where it lies
                self._path.rename(self._aside)

    def _read(self, path: Path, inode: int, offset: int) -> tuple[int, int] | None:
        """Count the lines of *path*; return inode and end of what was read, None where it is not there to be read."""
        try:
            with opened(path) as (descriptor, status):
                known = status.st_ino == inode
                if not stat.S_ISREG(status.st_mode) or (path == self._aside and not known):
                    return None  # what lies aside was read to its end before
                # A shorter one was emptied by somebody: it begins anew.
                start = offset if known and offset <= status.st_size else 0
                return status.st_ino, self._count(descriptor, start)
        except OSError:
            return None

    def _count(self, descriptor: int, offset: int) -> int:
        """Count whole lines from *offset* on and return where the next one begins."""
        while block := os.pread(descriptor, READ_BYTES, offset):
            end = block.rfind(b"\n") + 1
            if not end:
                # Longer than any line of ours: noise, which is passed over.
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
    """Return what changes with every line that is appended to *path*: no file is opened for it."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class Closings:
    """Tells whether a prolog has closed the gate since the last question: SLURM drains the node for each."""

    def __init__(self, runtime_directory: Path) -> None:
        """Begin with what the log has now."""
        self._log = GateLog(runtime_directory, moves=False)
        self._known = self._count()

    def take(self) -> bool:
        """Return whether there is another one, once."""
        before, self._known = self._known, self._count()
        return self._known > before

    def _count(self) -> int:
        self._log.before_judging()
        return sum(count for name, count in self._log.counts.items() if name.endswith("closed"))
