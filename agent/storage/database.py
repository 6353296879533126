"""The file behind the store: schema, opening, damage, and SQLite's errors in plain words.

SQLite's WAL needs shared memory between processes of one machine and working locks, so network file systems are
refused (https://sqlite.org/wal.html). A fresh database is renamed into place whole, so that a file which is empty or
does not add up has lost something, and is moved aside.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodevet.checks.errors import BusyError, StoreError

__all__ = [
    "SCHEMA_VERSION",
    "DamagedError",
    "checksum",
    "connect",
    "connect_for_reading",
    "file_system_of",
    "lock",
    "make_directory",
    "move_aside",
    "refuse_network",
    "translated",
]

APPLICATION_ID = 0x6E6F6476
"""``nodv``: tells our database from another application's."""

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.sshfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    }
)

SQLITE_WAIT_SECONDS = 0.4
"""How long a statement waits for another process's lock; below the second that shutdown allows the store."""

SMALLEST_BYTES = 512
"""A database has at least one page, and no page is smaller (https://sqlite.org/fileformat.html)."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE journal (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            wall REAL NOT NULL, boot_id TEXT NOT NULL, boottime_ns INTEGER NOT NULL,
            code TEXT NOT NULL, device TEXT NOT NULL, part TEXT NOT NULL, serial TEXT,
            state TEXT NOT NULL, payload BLOB NOT NULL, checksum INTEGER NOT NULL)""",
        "CREATE INDEX journal_by_device ON journal (device, id)",
        "CREATE INDEX journal_by_serial ON journal (serial, id)",
        """CREATE TRIGGER journal_keeps_rows BEFORE UPDATE ON journal
            BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END""",
        """CREATE TRIGGER journal_loses_nothing BEFORE DELETE ON journal
            BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END""",
        "CREATE TABLE memory (name TEXT PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL)",
        """CREATE TABLE results (
            id INTEGER PRIMARY KEY AUTOINCREMENT, wall REAL NOT NULL, workload TEXT NOT NULL,
            payload BLOB NOT NULL, checksum INTEGER NOT NULL)""",
        """CREATE TABLE device_seen (
            device TEXT NOT NULL, serial TEXT NOT NULL, vendor TEXT NOT NULL, kind TEXT NOT NULL, pci TEXT,
            model TEXT NOT NULL, first_seen REAL NOT NULL, last_seen REAL NOT NULL, PRIMARY KEY (device, serial))""",
        """CREATE TABLE series (
            id INTEGER PRIMARY KEY, device TEXT NOT NULL, quantity TEXT NOT NULL, part TEXT NOT NULL,
            UNIQUE (device, quantity, part))""",
        """CREATE TABLE rollup (
            minute INTEGER NOT NULL, series INTEGER NOT NULL,
            minimum REAL NOT NULL, mean REAL NOT NULL, maximum REAL NOT NULL, count INTEGER NOT NULL,
            PRIMARY KEY (minute, series)) WITHOUT ROWID""",
    ),
)
"""Statements per schema version, the first of which makes version 1 out of nothing."""

SCHEMA_VERSION = len(MIGRATIONS)

_UNREADABLE = (sqlite3.DatabaseError, sqlite3.OperationalError)


class DamagedError(StoreError):
    """The file is no database of ours any more."""


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the type of the file system that holds *path*, or None where the table *mounts* cannot be read."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    place = path.resolve()
    found: tuple[int, str] | None = None
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(_unescaped(fields[1]))
        # Of two mounts on one point the later hides the earlier.
        if place.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
            found = (len(point.parts), fields[2])
    return found[1] if found else None


def _unescaped(text: str) -> str:
    # proc(5): space, tab, newline and backslash are written as octal escapes.
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text


def make_directory(path: Path) -> None:
    """Make the directory of the database *path*. Raises StoreError."""
    directory = path.parent
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{directory}: cannot be made ({error.strerror}): choose another state_dir") from error


def refuse_network(path: Path, mounts: Path) -> None:
    """Raise StoreError when *path* lies on a network file system, by the table *mounts*."""
    kind = file_system_of(path, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path}: lies on {kind}, where a database can lose what was written: set state_dir to a local disk"
        )


def lock(path: Path) -> int:
    """Keep other writers of *path* out and return the descriptor to close at the end. Raises BusyError, StoreError."""
    name = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    except OSError as error:
        raise StoreError(
            f"{name}: cannot be written by uid {os.geteuid()} ({error.strerror}): choose another state_dir"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise BusyError(f"{path}: another nodevet has it open: ask that one with `nodevet status`") from error
    return descriptor


def connect(path: Path) -> sqlite3.Connection:
    """Open the database at *path* for writing, creating it where absent, and check and migrate it.

    Raises DamagedError when it has lost something, StoreError when it is not ours or newer than we are, or when it
    cannot be opened.
    """
    wal = path.with_name(path.name + "-wal")
    if not path.exists():
        if wal.exists():
            raise DamagedError(f"{path}: gone, with its {wal.name} left behind")
        _create(path)
    if (size := path.stat().st_size) < SMALLEST_BYTES:
        raise DamagedError(f"{path}: cut to {size} bytes")
    with translated(path):
        connection = sqlite3.connect(path, timeout=SQLITE_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _refuse_foreign(connection, path)
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute(f"PRAGMA journal_size_limit = {4 << 20}").fetchone()
            _check(connection, path)
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def connect_for_reading(path: Path) -> sqlite3.Connection:
    """Open the database at *path* beside whoever writes it. Raises StoreError where it is absent or not ours."""
    if not path.exists():
        raise StoreError(f"{path}: no database yet: it appears when `nodevet agent` first runs")
    address = f"{path.resolve().as_uri()}?mode=ro"
    with translated(path):
        connection = sqlite3.connect(
            address, uri=True, timeout=SQLITE_WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _refuse_foreign(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _create(path: Path) -> None:
    fresh = path.with_name(path.name + ".new")
    with translated(path):
        for name in (fresh, Path(f"{fresh}-wal"), Path(f"{fresh}-shm"), Path(f"{fresh}-journal")):
            name.unlink(missing_ok=True)
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
        connection = sqlite3.connect(fresh, isolation_level=None)
        try:
            # Must come before the first table, or the file never shrinks.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            _migrate(connection)
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        finally:
            connection.close()
        fresh.rename(path)
        _sync_directory(path.parent)


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise StoreError(f"{path}: a database of another application: choose another state_dir")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: written by schema version {version}, this nodevet knows up to {SCHEMA_VERSION}: "
            "install the newer nodevet again, or move the file away"
        )


def _check(connection: sqlite3.Connection, path: Path) -> None:
    answers = [row[0] for row in connection.execute("PRAGMA integrity_check(1)").fetchall()]
    if answers != ["ok"]:
        first = str(answers[0]).splitlines()[-1] if answers else "no answer"
        raise DamagedError(f"{path}: damaged ({first})")


def _migrate(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def move_aside(path: Path, wall_seconds: float) -> Path:
    """Rename *path*, its -wal and its -shm to ``<name>.corrupt-<time>...`` and return the new name of the database."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall_seconds))
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while any(Path(f"{aside}{suffix}").exists() for suffix in ("", "-wal", "-shm")):
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    with translated(path):
        # The log first: a database without its log would be taken for a whole one.
        for suffix in ("-wal", "-shm", ""):
            if (name := Path(f"{path}{suffix}")).exists():
                name.rename(f"{aside}{suffix}")
        _sync_directory(path.parent)
    return aside


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say into one line that names the file and the next step."""
    try:
        yield
    except sqlite3.Error as error:
        raise _store_error(path, error) from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}: check that {path.parent} can be written") from error


def _store_error(path: Path, error: sqlite3.Error) -> StoreError | BusyError:
    # Extended codes carry the primary code in their low byte (https://sqlite.org/rescode.html).
    # Rows that do not add up, and text that is no UTF-8, come without a code.
    unreadable = sqlite3.SQLITE_CORRUPT if type(error) in _UNREADABLE else sqlite3.SQLITE_ERROR
    match getattr(error, "sqlite_errorcode", unreadable) & 0xFF:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return DamagedError(f"{path}: damaged ({error})")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return BusyError(f"{path}: locked by another process: close what has it open")
        case sqlite3.SQLITE_FULL:
            return StoreError(f"{path}: disk full: free space in {path.parent}")
        case sqlite3.SQLITE_READONLY:
            return StoreError(f"{path}: read-only: make {path.parent} writable for uid {os.geteuid()}")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreError(f"{path}: cannot be opened by uid {os.geteuid()}: check {path.parent} and its space")
        case sqlite3.SQLITE_IOERR:
            return StoreError(f"{path}: the disk reports an error ({error}): check {path.parent}, its space and dmesg")
    return StoreError(f"{path}: {error}")


def checksum(*columns: str | bytes | float | None) -> int:
    """Return the checksum that a row of these *columns* carries."""
    return zlib.crc32(repr(columns).encode("utf-8", "surrogatepass"))
