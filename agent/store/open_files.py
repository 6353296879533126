"""Whether the files of an open database are still those that lie under their names."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class OpenFiles:
    """Holds the files of the database *path* by descriptors that touch none of SQLite's locks (O_PATH)."""

    def __init__(self, path: Path) -> None:
        """Begin with none; each is held from the first look on at which it is there."""
        self._path = path
        self._held: dict[str, int] = {}
        self._index_bytes = 0

    def close(self) -> None:
        """Let go of all of them."""
        while self._held:
            os.close(self._held.popitem()[1])

    def displaced(self) -> str:
        """Return that the database, or its log, is no longer the file that is open, or an empty string."""
        for suffix in ("", "-wal", "-shm"):
            name = f"{self._path}{suffix}"
            if suffix not in self._held:
                with suppress(OSError):
                    self._held[suffix] = os.open(name, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW * bool(suffix))
                continue
            # Both are asked now: some file systems number a file anew while it is open.
            try:
                present = os.stat(name)  # noqa: PTH116 (one look)
                is_same = os.path.samestat(present, os.fstat(self._held[suffix]))
            except (FileNotFoundError, NotADirectoryError):
                return f"{name}: deleted while the agent runs"
            except OSError:
                continue  # it cannot be told, such as without a descriptor: the write itself succeeded
            if not is_same:
                return f"{name}: replaced while the agent runs"
            if suffix == "-shm" and self._is_cut(name, present.st_size):
                return f"{name}: cut while the agent runs"
        return ""

    def _is_cut(self, name: str, size_bytes: int) -> bool:
        """Return whether the index of the log at *name* was cut, and give it its length back.

        SQLite maps it, and the kernel kills by SIGBUS who reads a mapped page behind the end of its file (mmap(2)).
        Zeros there are no index, which SQLite notices.
        """
        if size_bytes >= self._index_bytes:
            self._index_bytes = size_bytes
            return False
        with suppress(OSError):
            os.truncate(name, self._index_bytes)
        return True
