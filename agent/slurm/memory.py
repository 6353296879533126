"""What the writer to SLURM must not forget: in the store, and in the runtime directory for the case that it is lost.

Forgetting that a person resumed the node would mean to drain it against them.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from nodevet.agent.storage.durable import replace_file
from nodevet.checks.errors import ModelError
from nodevet.exporters.slurm_rules import Memory

__all__ = ["MEMORY_NAME", "load_memory", "pack", "save_memory"]

MEMORY_NAME = "slurm.json"


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory, and the boot that it was written in."""

    boot_id: str
    memory: Memory
    schema: str = "nodevet.slurm-memory/1"


def pack(memory: Memory) -> bytes:
    """Return *memory* as the store keeps it."""
    return msgspec.msgpack.encode(memory)


def save_memory(path: Path, memory: Memory, boot_id: str) -> None:
    """Replace the file at *path* atomically and durably. Raises StoreError."""
    replace_file(path, msgspec.json.encode(Kept(boot_id, memory)))


def load_memory(path: Path, stored: bytes | None, boot_id: str) -> Memory:
    """Return the memory of the file at *path* where it is of this boot, else that of the store, else an empty one.

    What cannot be understood is absent: then the reason that stands at the node is all that is known.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            trusted = os.fstat(file.fileno()).st_uid in (0, os.geteuid())
            kept = msgspec.json.decode(file.read(), type=Kept) if trusted else None
        if kept is not None and kept.boot_id == boot_id:
            return kept.memory
    except (OSError, msgspec.MsgspecError, ModelError):
        pass
    try:
        return Memory() if stored is None else msgspec.msgpack.decode(stored, type=Memory)
    except (msgspec.MsgspecError, ModelError):
        return Memory()
