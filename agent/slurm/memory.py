"""The memory of the SLURM writer: in the store, and in the runtime directory in case the store is lost.

If a person's resume were forgotten, the agent would drain the node against that person.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from nodevet.checks.core.documents import decoded
from nodevet.checks.core.errors import ModelError, StoreError
from nodevet.checks.core.recall import recalled
from nodevet.checks.system.files import read_trusted, replace_file
from nodevet.exporters.slurm.rules import WriterMemory

MEMORY_NAME = "slurm.json"
LARGEST_BYTES = 16 << 20


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory, the boot in which it was written, and its edition within that boot: the later one counts."""

    boot_id: str
    memory: WriterMemory
    edition: int = 0
    schema: str = "nodevet.slurm-memory/1"

    def followed_by(self, memory: WriterMemory, boot_id: str) -> Kept:
        """Return *memory* of boot *boot_id* to be kept, as a new edition if it differs."""
        return Kept(boot_id, memory, self.edition + (memory != self.memory))


def clears_until(memory: WriterMemory, boot_id: str) -> float:
    """Return the CLOCK_BOOTTIME (s) until which a remembered removal of a mark may take effect in *boot_id*, or 0."""
    clears = memory.clears
    return clears.boottime_ns / 1e9 if clears is not None and clears.boot_id == boot_id else 0.0


def pack(kept: Kept) -> bytes:
    """Return *kept* encoded for the store."""
    return msgspec.msgpack.encode(kept)


def save_memory(path: Path, kept: Kept) -> None:
    """Replace the file at *path* atomically and durably. Raises StoreError."""
    replace_file(path, msgspec.json.encode(kept))


def end_permit(path: Path, stored: bytes | None, boot_id: str) -> None:
    """Forget a permit of the cluster, for an agent that requests none: it does not see the end of the permit.

    The next agent that requests permits requests a new one. A file that cannot be written stays unchanged.
    """
    kept = load_memory(path, stored, boot_id)
    if kept.memory.permit:
        with suppress(StoreError):
            save_memory(path, kept.followed_by(msgspec.structs.replace(kept.memory, permit=""), boot_id))


def load_memory(path: Path, stored: bytes | None, boot_id: str) -> Kept:
    """Return the memory of the file at *path* if it is of this boot, else that of the store, else an empty one.

    The store counts if it has a later edition of this boot: the file could not be written then. Memory that cannot be
    decoded is absent; only the reason at the node is known then.
    """
    in_store, in_file = _stored(stored), _in_file(path)
    if in_file is None or in_file.boot_id != boot_id:
        if in_store is None or in_store.boot_id == boot_id:
            return in_store or Kept(boot_id, WriterMemory())
        # The store may be from an image of a node of a smaller cluster: all nodes would query SLURM at once.
        return msgspec.structs.replace(in_store, memory=msgspec.structs.replace(in_store.memory, nodes=0))
    is_later = in_store is not None and in_store.boot_id == boot_id and in_store.edition > in_file.edition
    return in_store if in_store is not None and is_later else in_file


def _in_file(path: Path) -> Kept | None:
    try:
        return recalled(msgspec.msgpack.encode(decoded(read_trusted(path, LARGEST_BYTES), dict)), Kept)[0]
    except (OSError, msgspec.MsgspecError, ModelError):
        return None


def _stored(stored: bytes | None) -> Kept | None:
    if stored is None:
        return None
    with suppress(msgspec.MsgspecError):
        return recalled(stored, Kept)[0]
    with suppress(msgspec.MsgspecError):
        return Kept("", recalled(stored, WriterMemory)[0])  # from an agent before there were editions
    return None
