"""How the database is opened: for writing by its one owner, which creates or replaces it, or for reading beside it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from nodevet.checks.core.errors import BusyError, StoreError

from .database import (
    DamagedError,
    clear_the_way,
    connect,
    connect_for_reading,
    lock,
    make_directory,
    move_aside,
    refuse_network,
)
from .store import Store

DATABASE_NAME = "nodevet.db"


class OpenedStore(msgspec.Struct, frozen=True):
    """A store that is ready, and what must be told to people about how it was opened (empty: nothing)."""

    store: Store
    notice: str = ""


def open_store(
    path: Path, *, wall_seconds: float | None = None, mounts: Path = Path("/proc/self/mounts"), instead: bool = False
) -> OpenedStore:
    """Open the database at *path* for writing, creating it and its directory where absent.

    A damaged database is moved aside to ``<name>.corrupt-<time>`` with its -wal and -shm, a fresh one takes its place
    and the notice says so; *instead* has that done with whatever lies there. What is no plain file in the place of one
    of its files is moved aside as well. *wall_seconds* names the time (default: now); *mounts* is the table of mounts
    to look up the file system in. Raises BusyError when another process has it open for writing, RefusedError when it
    lies on a network file system or belongs to another application, NewerError when a newer version wrote it, and
    StoreError when it cannot be written.
    """
    now = time.time() if wall_seconds is None else wall_seconds
    make_directory(path)
    refuse_network(path, mounts)
    notices = [clear_the_way(path, now)]
    held = lock(path)
    try:
        try:
            if instead and os.path.lexists(path):
                raise DamagedError(f"{path}: not the database of this agent any more")
            store = _open(path, held)
        except DamagedError as error:
            aside = move_aside(path, now)
            notices.append(f"{error}; moved aside to {aside} and replaced by a new one; older history is there")
            store = _open(path, held)
    except BaseException:
        os.close(held)
        raise
    notices += store.notices
    return OpenedStore(store, "; ".join(filter(None, notices)))


def _open(path: Path, held: int) -> Store:
    try:
        connection = connect(path)
    except BusyError as error:
        raise StoreError(str(error)) from error  # not another agent's: that one would hold the lock
    store = Store(connection, path, held)
    try:
        store.displaced()
        store.load()
    except BusyError as error:
        connection.close()
        raise StoreError(str(error)) from error
    except BaseException:
        connection.close()
        raise
    return store


def read_store(path: Path, *, or_newer: bool = False) -> Store:
    """Open the database at *path* for reading beside whoever writes it; with *or_newer* also one of a newer version.

    Raises StoreError where it is absent.
    """
    return Store(connect_for_reading(path, or_newer=or_newer), path, None)
