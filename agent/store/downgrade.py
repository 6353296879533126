"""A database that a newer nodevet wrote, as after a rollback: what this version understands of it goes on.

A rollback goes to all nodes at once, often while something is wrong. An agent that refused to start would leave them
all without a verdict. So the newer database is set aside whole, and a fresh one holds the memory and the open findings
that can be read here. The newer nodevet can still read the one that was set aside.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.counts import count_of
from nodevet.checks.core.errors import StoreError
from nodevet.checks.core.model import Episode

from .at_rest import rows_if_known
from .database import SQLITE_WAIT_SECONDS, DamagedError, NewerError, checksum, connect, exchange, lock, translated
from .opening import OpenedStore, open_store
from .rows import verified_episode
from .store import Store


def open_of_any_version(path: Path) -> OpenedStore:
    """Open the database at *path* as ``open_store`` does; one of a newer version is set aside first.

    Raises BusyError, RefusedError and StoreError; the newer database is then where it was.
    """
    try:
        return open_store(path)
    except NewerError as error:
        version = error.version
    try:
        told = _begin_anew(path, version)
    except DamagedError as error:
        told = str(error)
        opened = open_store(path, instead=True)
    else:
        opened = open_store(path)
    return OpenedStore(opened.store, "; ".join(filter(None, (told, opened.notice))))


def _begin_anew(path: Path, version: int) -> str:
    """Put a database of this version in the place of *path*, of schema *version*; return what must be told."""
    now = SystemClock().instant()
    held = lock(path)
    try:
        real = path.resolve()
        memory, episodes, lost = _understood(real)
        fresh = real.with_name(f"{real.name}.older")
        with translated(fresh):
            for suffix in ("", "-wal", "-shm"):
                Path(f"{fresh}{suffix}").unlink(missing_ok=True)
        with closing(Store(connect(fresh), fresh, None)) as store:
            store.save_round(episodes, memory, time=now)
        aside = exchange(real, fresh, now.wall_seconds, version)
    finally:
        os.close(held)
    copied = count_of(len(episodes), "open finding")
    return (
        f"{path}: written by a newer nodevet (schema version {version}), kept as {aside}: {copied}"
        f" copied to a new database{lost}; read older history with the newer nodevet"
    )


def _understood(path: Path) -> tuple[dict[str, bytes], tuple[Episode, ...], str]:
    """Return memory and open findings of the newer database at *path*, and in words what of these cannot be read.

    Its log is written into it, so that it is whole by itself. Raises StoreError where that cannot be done.
    """
    with translated(path), closing(sqlite3.connect(path, timeout=SQLITE_WAIT_SECONDS, isolation_level=None)) as newer:
        if newer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            raise StoreError(f"{path}: locked by another process: close what has it open")
        blobs = rows_if_known(newer, "SELECT name, value, checksum FROM memory") or []
        state = rows_if_known(newer, "SELECT code, device, part, payload, number, checksum FROM state")
    memory = {name: value for name, value, mark in blobs if checksum(name, value) == mark}
    read = [verified_episode(row[3], row[5], *row[:5]) for row in state or ()]
    episodes = tuple(episode for episode in read if episode is not None)
    unread = "those" if state is None else str(len(read) - len(episodes))
    return memory, episodes, "" if unread == "0" else f", {unread} of the newer version cannot be read by this one"
