"""What the writer to SLURM must not forget: in the store, and in the runtime directory for the case that it is lost.

Forgetting that a person resumed the node would mean to drain it against them.
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
    """The memory, the boot that it was written in, and which of that boot's memories it is: the later counts."""

    boot_id: str
    memory: WriterMemory
    edition: int = 0
    schema: str = "nodevet.slurm-memory/1"

    def followed_by(self, memory: WriterMemory, boot_id: str) -> Kept:
        """Return what is to be kept once *memory* is what is known in the boot *boot_id*."""
        return Kept(boot_id, memory, self.edition + (memory != self.memory))


def clears_until(memory: WriterMemory, boot_id: str) -> float:
    """Return until when in the boot *boot_id* a withdrawal of a mark that was remembered may still take effect."""
    clears = memory.clears
    return clears.boottime_ns / 1e9 if clears is not None and clears.boot_id == boot_id else 0.0


def pack(kept: Kept) -> bytes:
    """Return *kept* as the store has it."""
    return msgspec.msgpack.encode(kept)


def save_memory(path: Path, kept: Kept) -> None:
    """Replace the file at *path* atomically and durably. Raises StoreError."""
    replace_file(path, msgspec.json.encode(kept))


def end_permit(path: Path, stored: bytes | None, boot_id: str) -> None:
    """Forget a permit of the cluster, for an agent that takes none: it does not see when the permit ends.

    The next agent that takes one asks anew. A file that cannot be written stays as it is.
    """
    kept = load_memory(path, stored, boot_id)
    if kept.memory.permit:
        with suppress(StoreError):
            save_memory(path, kept.followed_by(msgspec.structs.replace(kept.memory, permit=""), boot_id))


def load_memory(path: Path, stored: bytes | None, boot_id: str) -> Kept:
    """Return the memory of the file at *path* where it is of this boot, else that of the store, else an empty one.

    Where the store has a later one of this boot it counts: then the file could not be written. What cannot be
    understood is absent: then the reason that stands at the node is all that is known.
    """
    in_store, in_file = _stored(stored), _in_file(path)
    if in_file is None or in_file.boot_id != boot_id:
        if in_store is None or in_store.boot_id == boot_id:
            return in_store or Kept(boot_id, WriterMemory())
        # The store may have come with an image of a node of a smaller cluster: all would ask SLURM at one moment.
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
        return Kept("", recalled(stored, WriterMemory)[0])  # of an agent before there were editions
    return None
