"""The mirror: open and acknowledged episodes in the runtime directory, so that a failed verdict outlives a lost store.

It is written before the store is, on every change, and counts only within the boot that wrote it: after a reboot
the store alone speaks. An episode that cleared while the machine went down may thus be open once more; it never
happens that one which was open is forgotten.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from nodevet.agent.storage.durable import replace_file
from nodevet.checks.documents import decoded
from nodevet.checks.errors import ModelError, StoreError
from nodevet.checks.model import Episode, EpisodeState

__all__ = ["MIRROR_NAME", "Mirror", "read_mirror", "restore", "write_mirror"]


MIRROR_NAME = "episodes.json"

LARGEST_BYTES = 256 << 20
"""A hundred thousand findings; a file without end would take the memory of the node."""


class Mirror(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the mirror holds: the boot it belongs to, and the episodes that count or were acknowledged."""

    boot_id: str
    episodes: tuple[Episode, ...]
    schema: str = "nodevet.mirror/1"


def write_mirror(path: Path, episodes: Iterable[Episode], boot_id: str) -> None:
    """Replace the mirror at *path* atomically and durably. Pending and cleared episodes are left out.

    Raises StoreError when the file cannot be written; the mirror before it is then untouched.
    """
    kept = tuple(episode for episode in episodes if episode.state in (EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED))
    replace_file(path, msgspec.json.encode(Mirror(boot_id, kept)))


def read_mirror(path: Path) -> Mirror | None:
    """Return the mirror at *path*, or None where there is none.

    Raises StoreError when it is malformed, no plain file, or neither ours nor root's.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}): remove it after a look") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            raise StoreError(f"{path}: not a file of uid {os.geteuid()} or root: remove it after a look")
        if status.st_size > LARGEST_BYTES:
            raise StoreError(f"{path}: larger than any mirror: remove it after a look")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            text = file.read()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}): remove it after a look") from error
    finally:
        os.close(descriptor)
    try:
        return decoded(text, Mirror)
    except (msgspec.MsgspecError, ModelError) as error:
        raise StoreError(f"{path}: malformed ({error}): remove it after a look") from error


def restore(stored: Iterable[Episode], mirror: Mirror | None, boot_id: str) -> tuple[Episode, ...]:
    """Return the episodes to go on with: those *stored*, and those of a *mirror* of this same boot.

    Where both know one, that which was seen later counts, and of equals the one that a person acknowledged.
    """
    found = {episode.key: episode for episode in stored}
    for episode in mirror.episodes if mirror is not None and mirror.boot_id == boot_id else ():
        known = found.get(episode.key)
        if known is None or _order(episode, boot_id) > _order(known, boot_id):
            found[episode.key] = episode
    return tuple(found[key] for key in sorted(found))


def _order(episode: Episode, boot_id: str) -> tuple[bool, int, bool]:
    seen = episode.last_seen
    return (seen.boot_id == boot_id, seen.boottime_ns, episode.state is EpisodeState.ACKNOWLEDGED)
