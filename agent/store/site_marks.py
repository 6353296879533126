"""Which code of a site ended an agent: its name stands in a file while it runs, and the next agent finds it there.

``os._exit``, ``os.abort`` or a signal in a library ends the agent without a word, and would end it again after each
start. So the name of the code is written before it runs, and struck out behind it: one system call each, on a file that
is open, without fsync. The process ends and not the machine, so the kernel keeps what was written.

An agent that ends meanwhile may as well have been killed: by the memory killer, by hand, by systemd after a time-out.
Nothing tells the next agent which it was. So one end in the middle of a piece of code is told in the log, and only
``ENDS`` agents in a row, all ended in the middle of the same version of the same code, make it refused. A chance kill
would have to meet the same code twice; code that always ends its process ends two agents. An end elsewhere begins the
count anew, and so does another boot: a machine that lost its power says nothing.

What was refused is refused until one of its files changes, or until the next boot. The agent alone writes, under a lock
of fcntl(2): a child that code of a site leaves behind does not inherit it. Every command reads and refuses the same,
but writes no name: its own end says nothing about an agent.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import msgspec

from nodevet.checks.core.clock import read_boot_id
from nodevet.checks.core.errors import StoreError
from nodevet.checks.core.guard import one_line
from nodevet.checks.engine.site_code import SiteCode, Watch, Work
from nodevet.checks.system.files import read_trusted, replace
from nodevet.checks.system.lock import open_lock_file

RUNNING_NAME = "site_checks.running"
"""In the runtime directory: slots of SLOT_BYTES, each with the mark of code that runs, or a zero byte."""

ENDED_NAME = "site_checks.ended"
"""In the runtime directory: which code ended agents, for every command to read."""

ENDS = 2
SLOT_BYTES = 4096
SLOTS = 4
"""The main thread runs one piece of code at a time; a thread that reads the configuration again may import another."""

MOST_BYTES = 1 << 20
EMPTY = b"\0"


class Mark(msgspec.Struct, frozen=True):
    """A piece of code that ran in the boot *boot_id*."""

    work: Work
    name: str
    module: str
    file: str
    version: str
    boot_id: str

    @property
    def key(self) -> tuple[Work, str, str]:
        """Return what tells it from other code."""
        return self.work, self.name, self.module


class Ended(msgspec.Struct, frozen=True):
    """How many agents in a row ended in the middle of the code of *mark*."""

    mark: Mark
    count: int


class KnownMarks(Watch):
    """Refuses what an agent recorded, and records nothing."""

    def __init__(self, ended: Iterable[Ended]) -> None:
        """Refuse by *ended*."""
        self._ended = {entry.mark.key: entry for entry in ended}

    def refusal(self, code: SiteCode) -> str:
        """Return why *code* must not run, or an empty string."""
        ended = self._ended.get(code.key)
        if ended is None or ended.count < ENDS or ended.mark.version != code.version:
            return ""
        return f"it ended the agent {ENDS} times in a row while it {code.work.value} ({_place(ended.mark)})"


class SiteMarks(KnownMarks):
    """The watch of an agent. Where it cannot write, code of a site runs without marks: that costs no judgement."""

    def __init__(self, runtime: Path, log: Callable[[str], None], boot_id: str | None = None) -> None:
        """Take what an agent before left in *runtime*; *log* takes a line on code that ended one."""
        self._runtime, self._log = runtime, log
        self._boot_id = read_boot_id() if boot_id is None else boot_id
        self._descriptor: int | None = None
        self._may_open = True
        self._free = list(range(SLOTS))
        self._closer = ""
        self._slots: dict[tuple[Work, str, str], bytes] = {}
        self._refused: dict[tuple[Work, str, str], str] = {}
        super().__init__(_recorded(runtime, self._boot_id))
        if os.path.exists(runtime / RUNNING_NAME) and self._open():  # noqa: PTH110 (it never raises)
            self._take_over()

    def refusal(self, code: SiteCode) -> str:
        """Return why *code* must not run, or an empty string; the former is logged once.

        It stands as long as this agent: files that were changed meanwhile may not be those that it has imported.
        """
        why = self._refused.get(code.key, "") or super().refusal(code)
        if why and code.key not in self._refused:
            self._refused[code.key] = why
            self._log(f"{_title(code.work, one_line(code.name))} does not run any more: {why}")
        return why

    def over(self, code: SiteCode) -> AbstractContextManager[None]:
        """Return a context in which *code* runs, under its mark."""
        return self._marked(code)

    @property
    def closer(self) -> str:
        """Return which code closed descriptors that are not its own; empty where none is known."""
        return self._closer

    def restore(self) -> None:
        """Make the file of marks anew where it was removed. Raises StoreError."""
        path = self._runtime / RUNNING_NAME
        if self._descriptor is None or _is_same(path, self._descriptor):
            return  # to close another descriptor of a file gives up its lock
        if not self._open():
            raise StoreError(f"{path}: cannot be written: a check of a site that ends the agent leaves no trace")

    def close(self) -> None:
        """Strike out every name: this agent ends by itself, whatever a thread of it still runs."""
        for slot in range(SLOTS):
            self._write(slot, EMPTY)
        self._may_open = False
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @contextmanager
    def _marked(self, code: SiteCode) -> Iterator[None]:
        slot = self._taken() if self._is_open() else None
        if slot is None:
            yield
            return
        self._write(slot, self._content(code))
        try:
            yield
        finally:
            if self._write(slot, EMPTY) == errno.EBADF:
                self._closer = _title(code.work, one_line(code.name))
            self._free.append(slot)

    def _taken(self) -> int | None:
        try:
            return self._free.pop()
        except IndexError:  # taken by another thread
            return None

    def _content(self, code: SiteCode) -> bytes:
        """Return the slot of *code*: of a check, with the version of its files before it first judged."""
        content = self._slots.get(code.key)
        if content is None or code.work is Work.IMPORT:
            content = packed(Mark(*code.key, one_line(code.file), code.version, self._boot_id))
            self._slots[code.key] = content
        return content

    def _is_open(self) -> bool:
        return self._descriptor is not None or (self._may_open and self._open())

    def _open(self) -> bool:
        """Open the file of marks; False where that cannot be done, or where another agent has it."""
        self._may_open = False
        try:
            self._runtime.mkdir(mode=0o750, parents=True, exist_ok=True)
            descriptor = open_lock_file(self._runtime / RUNNING_NAME)
        except (OSError, ValueError):
            return False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        before, self._descriptor = self._descriptor, descriptor
        if before is not None:
            os.close(before)
        return True

    def _take_over(self) -> None:
        """Count the ends that the marks of an agent before tell, keep the count, and strike them out."""
        assert self._descriptor is not None
        content = b""
        with suppress(OSError):
            content = os.pread(self._descriptor, SLOTS * SLOT_BYTES, 0)
        marks = [mark for mark in _unpacked(content) if mark.boot_id == self._boot_id]
        before, self._ended = self._ended, {key: each for key, each in self._ended.items() if each.count >= ENDS}
        for mark in marks:
            known = before.get(mark.key)
            count = known.count + 1 if known is not None and known.mark.version == mark.version else 1
            self._ended[mark.key] = Ended(mark, count)
            if count < ENDS:
                self._log(
                    f"the agent before this one ended while {_title(mark.work, mark.name)} {mark.work.value}"
                    f" ({_place(mark)}): if it ends this one too, it does not run any more"
                )
        if self._ended != before:
            try:
                self._record()
            except StoreError as error:
                self._log(str(error))
        for slot in range(SLOTS):
            self._write(slot, EMPTY)

    def _record(self) -> None:
        path = self._runtime / ENDED_NAME
        try:
            replace(path, msgspec.json.encode(list(self._ended.values())), mode=0o644)
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be written ({error.strerror}): a check of a site that ends the agent goes on to do so"
            ) from error

    def _write(self, slot: int, content: bytes) -> int:
        """Write *content* into *slot* where that is possible; return the error number of the system, or 0."""
        if self._descriptor is not None and len(content) <= SLOT_BYTES:
            try:
                os.pwrite(self._descriptor, content, slot * SLOT_BYTES)
            except OSError as error:
                return error.errno or 0
        return 0


def known_marks(runtime: Path) -> KnownMarks:
    """Return what agents recorded in *runtime*, for a command that reads it only."""
    return KnownMarks(_recorded(runtime, read_boot_id()))


def packed(mark: Mark) -> bytes:
    """Return *mark* as a slot holds it."""
    return msgspec.json.encode(mark) + EMPTY


def _unpacked(content: bytes) -> Iterator[Mark]:
    for start in range(0, len(content), SLOT_BYTES):
        with suppress(msgspec.MsgspecError):
            yield msgspec.json.decode(content[start : start + SLOT_BYTES].partition(EMPTY)[0], type=Mark)


def _recorded(runtime: Path, boot_id: str) -> tuple[Ended, ...]:
    """Return what was recorded in this boot; nothing where it cannot be read: then all code runs as it does anew."""
    try:
        found = msgspec.json.decode(read_trusted(runtime / ENDED_NAME, MOST_BYTES), type=tuple[Ended, ...])
    except (OSError, ValueError, msgspec.MsgspecError):
        return ()
    return tuple(entry for entry in found if entry.mark.boot_id == boot_id)


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def _title(work: Work, name: str) -> str:
    return f"check {name} of the site" if work is Work.JUDGE else f"package {name} of the site"


def _place(mark: Mark) -> str:
    return mark.file or "its file is not known"
