"""What outlives a restart: an SQLite database with one owner.

The journal is append-only: every change of an episode's state is a row, an acknowledgement adds one, and triggers
refuse UPDATE and DELETE. Beside it lie named blobs of memory, with which a restart equals no restart. Rows and memory
of one round are written in one synchronous transaction, so they are always of the same round.

Rows that matter carry a checksum, because SQLite has none of its own: a database that does not add up is moved aside
and the caller is told, never recreated in silence. SQLite's WAL needs shared memory between processes of one machine
and working locks, so network file systems are refused (https://sqlite.org/wal.html).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nodevet.checks.errors import BusyError, ModelError, StoreError
from nodevet.checks.model import Device, Episode, EpisodeState, Instant, Key, Result

__all__ = [
    "SCHEMA_VERSION",
    "DamagedError",
    "HistoryRow",
    "OpenedStore",
    "Rollup",
    "SeenDevice",
    "Store",
    "UnsavedRound",
    "file_system_of",
    "open_store",
    "read_store",
    "unkeepable",
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

_INSERT_JOURNAL = """INSERT INTO journal
    (wall, boot_id, boottime_ns, code, device, part, serial, state, payload, checksum)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_EPISODE = msgspec.json.Decoder(Episode)
_RESULT = msgspec.json.Decoder(Result)
_UNREADABLE = (sqlite3.DatabaseError, sqlite3.OperationalError)
_MINUTES_PER_DAY = 24 * 60
_Decoded = TypeVar("_Decoded")


class HistoryRow(msgspec.Struct, frozen=True):
    """One row of the journal: its number, when it was written, and the episode as it stood then."""

    number: int
    time: Instant
    episode: Episode


class SeenDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that was in this node at some time. Another serial under the same id is another row."""

    device: str
    serial: str | None
    vendor: str
    kind: str
    pci: str | None
    model: str
    first_seen_wall_seconds: float
    last_seen_wall_seconds: float


class Rollup(msgspec.Struct, frozen=True):
    """What one quantity of one part did within one minute (``minute`` = Unix time divided by 60)."""

    minute: int
    device: str
    quantity: str
    part: str
    minimum: float
    mean: float
    maximum: float
    count: int


class UnsavedRound(msgspec.Struct, frozen=True):
    """One round that waits to be written: episodes that changed, blobs of memory, and when."""

    episodes: tuple[Episode, ...]
    memory: dict[str, bytes]
    time: Instant


class OpenedStore(msgspec.Struct, frozen=True):
    """A store that is ready, and what must be told to people about how it was opened (empty: nothing)."""

    store: Store
    notice: str = ""


class DamagedError(StoreError):
    """The file is no database of ours any more."""


class Store:
    """An open database. It has one owner at a time: only the thread that holds it may call it."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: int | None) -> None:
        """Take over *connection* to *path* and the descriptor *lock* that keeps other writers out."""
        self.path = path
        self._connection = connection
        self._lock = lock
        self._journaled: dict[Key, int] = {}
        self._remembered: dict[str, bytes] = {}
        self._series: dict[tuple[str, str, str], int] = {}

    def close(self) -> None:
        """Close the database and let go of the lock. May be called twice."""
        with suppress(sqlite3.Error):
            self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def save_round(self, episodes: Sequence[Episode], memory: Mapping[str, bytes], *, time: Instant) -> None:
        """Write one round in one synchronous transaction; see ``save_rounds``."""
        self.save_rounds((UnsavedRound(tuple(episodes), dict(memory), time),))

    def save_rounds(self, rounds: Sequence[UnsavedRound]) -> None:
        """Write *rounds*, oldest first, in one synchronous transaction: all of it is kept, or nothing.

        Each episode becomes a row of the journal unless it equals the last row of its key; a pending one is no fact
        yet and gets none. Names that a memory lacks keep their value. Raises StoreError (disk full, read-only,
        damaged) or BusyError, and then the same rounds may be saved again.
        """
        rows: list[tuple[Any, ...]] = []
        journaled: dict[Key, int] = {}
        blobs: dict[str, bytes] = {}
        for unsaved in rounds:
            blobs.update(unsaved.memory)
            for episode in unsaved.episodes:
                payload = _encoded(episode)
                mark = zlib.crc32(payload)
                last = journaled.get(episode.key, self._journaled.get(episode.key))
                if episode.state is not EpisodeState.PENDING and last != mark:
                    journaled[episode.key] = mark
                    rows.append(_journal_columns(episode, payload, unsaved.time))
        blobs = {name: value for name, value in blobs.items() if self._remembered.get(name) != value}
        if not rows and not blobs:
            return
        with self._transaction() as run:
            for row in rows:
                run(_INSERT_JOURNAL, (*row, _checksum(*row)))
            for name, value in blobs.items():
                run("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", (name, value, _checksum(name, value)))
        self._journaled.update(journaled)
        self._remembered.update(blobs)

    def load_episodes(self) -> tuple[Episode, ...]:
        """Return every episode that is not cleared: the journal folded to its last row per key."""
        latest = {row.episode.key: row.episode for row in self._journal_rows("ORDER BY id", ())}
        return tuple(episode for _, episode in sorted(latest.items()) if episode.state is not EpisodeState.CLEARED)

    def load_memory(self) -> dict[str, bytes]:
        """Return every blob by name."""
        with _translated(self.path):
            rows = self._connection.execute("SELECT name, value, checksum FROM memory ORDER BY name").fetchall()
            return {name: _verified(value, checksum, name, value) for name, value, checksum in rows}

    def history(
        self,
        device: str | None = None,
        serial: str | None = None,
        since: float | None = None,
        limit: int = 1000,
    ) -> tuple[HistoryRow, ...]:
        """Return journal rows, newest first: of one device, of one serial number, since a wall time in seconds."""
        conditions = [
            (clause, value)
            for clause, value in (("device = ?", device), ("serial = ?", serial), ("wall >= ?", since))
            if value is not None
        ]
        where = " AND ".join(clause for clause, _ in conditions)
        tail = (f"WHERE {where} " if where else "") + "ORDER BY id DESC LIMIT ?"
        return self._journal_rows(tail, (*(value for _, value in conditions), limit))

    def append_result(self, result: Result) -> None:
        """Keep the *result* of a workload. Raises StoreError or BusyError."""
        payload = msgspec.json.encode(result)
        row = (result.ended.wall_seconds, result.workload, payload, _checksum(result.workload, payload))
        with self._transaction() as run:
            run("INSERT INTO results (wall, workload, payload, checksum) VALUES (?, ?, ?, ?)", row)

    def results(self, workload: str | None = None, limit: int = 100) -> tuple[Result, ...]:
        """Return the newest *limit* results, newest first, of all workloads or of one."""
        tail, values = ("WHERE workload = ? ", (workload,)) if workload is not None else ("", ())
        return self._result_rows(tail + "ORDER BY id DESC LIMIT ?", (*values, limit))

    def latest_results(self) -> tuple[Result, ...]:
        """Return the last result of each workload on each set of devices."""
        newest: dict[tuple[str, tuple[str, ...]], Result] = {}
        for result in self._result_rows("ORDER BY id", ()):
            newest[result.workload, result.devices] = result
        return tuple(newest.values())

    def see_devices(self, devices: Sequence[Device], wall_seconds: float) -> None:
        """Remember that *devices* were here at *wall_seconds*. Raises StoreError or BusyError."""
        with self._transaction(durable=False) as run:
            for device in devices:
                run(
                    """INSERT INTO device_seen VALUES (?, ?, ?, ?, ?, ?, ?, ?)
                    ON CONFLICT (device, serial) DO UPDATE SET
                    pci = excluded.pci, model = excluded.model, last_seen = excluded.last_seen""",
                    (
                        device.id,
                        device.serial or "",
                        device.vendor,
                        device.kind.value,
                        device.pci,
                        device.model,
                        wall_seconds,
                        wall_seconds,
                    ),
                )

    def devices_seen(self) -> tuple[SeenDevice, ...]:
        """Return every device that was ever in this node, oldest first."""
        with _translated(self.path):
            rows = self._connection.execute(
                """SELECT device, serial, vendor, kind, pci, model, first_seen, last_seen
                FROM device_seen ORDER BY first_seen, device, serial"""
            ).fetchall()
        return tuple(
            SeenDevice(
                device=row[0],
                serial=row[1] or None,
                vendor=row[2],
                kind=row[3],
                pci=row[4],
                model=row[5],
                first_seen_wall_seconds=row[6],
                last_seen_wall_seconds=row[7],
            )
            for row in rows
        )

    def append_rollups(self, rollups: Sequence[Rollup]) -> None:
        """Keep minutes of measurements. A minute written twice keeps the later one. Raises StoreError or BusyError."""
        added: dict[tuple[str, str, str], int] = {}
        with self._transaction(durable=False) as run:
            for rollup in rollups:
                name = (rollup.device, rollup.quantity, rollup.part)
                series = self._series.get(name) or added.get(name)
                if series is None:
                    run("INSERT OR IGNORE INTO series (device, quantity, part) VALUES (?, ?, ?)", name)
                    query = "SELECT id FROM series WHERE device = ? AND quantity = ? AND part = ?"
                    series = added[name] = int(run(query, name).fetchone()[0])
                figures = (rollup.minimum, rollup.mean, rollup.maximum, rollup.count)
                run("INSERT OR REPLACE INTO rollup VALUES (?, ?, ?, ?, ?, ?)", (rollup.minute, series, *figures))
        self._series.update(added)

    def rollups(self, device: str, quantity: str, since_minute: int = 0) -> tuple[Rollup, ...]:
        """Return the minutes of one quantity of *device*, all parts, oldest first."""
        with _translated(self.path):
            rows = self._connection.execute(
                """SELECT minute, device, quantity, part, minimum, mean, maximum, count
                FROM rollup JOIN series ON series.id = rollup.series
                WHERE device = ? AND quantity = ? AND minute >= ? ORDER BY minute, part""",
                (device, quantity, since_minute),
            ).fetchall()
        return tuple(Rollup(*row) for row in rows)

    def size_bytes(self) -> int:
        """Return the bytes in use: pages that hold something, without those that wait for reuse."""
        with _translated(self.path):
            pages, free, size = (
                self._connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return int((pages - free) * size)

    def prune(self, wall_seconds: float, *, rollup_days: float, size_limit_bytes: int) -> bool:
        """Drop rollups older than *rollup_days*, then the oldest rollups and at last results, until the size fits.

        Episodes are never dropped. Returns whether the size fits. Raises StoreError or BusyError.
        """
        cutoff = int(wall_seconds // 60 - rollup_days * _MINUTES_PER_DAY)
        with self._transaction(durable=False) as run:
            dropped = run("DELETE FROM rollup WHERE minute < ?", (cutoff,)).rowcount
        while self.size_bytes() > size_limit_bytes:
            step = self._drop_oldest()
            if not step:
                return False
            dropped += step
        if dropped:
            with _translated(self.path):
                self._connection.execute("PRAGMA incremental_vacuum").fetchall()
        return True

    def _drop_oldest(self) -> int:
        with self._transaction(durable=False) as run:
            first, last = run("SELECT min(minute), max(minute) FROM rollup").fetchone()
            if first is not None:
                # A twentieth of the time at once: few transactions, and little more than needed is lost.
                return run("DELETE FROM rollup WHERE minute <= ?", (first + (last - first) // 20,)).rowcount
            return run(
                """DELETE FROM results WHERE id IN (SELECT id FROM results WHERE id NOT IN
                (SELECT max(id) FROM results GROUP BY workload) ORDER BY id LIMIT 50)"""
            ).rowcount

    def load(self) -> None:
        """Read and verify everything that carries a checksum. Raises StoreError where a row does not add up."""
        rows = self._journal_rows("ORDER BY id", ())
        self._journaled = {row.episode.key: zlib.crc32(_encoded(row.episode)) for row in rows}
        self._remembered = self.load_memory()
        self._result_rows("ORDER BY id", ())
        self._verify_numbers(rows)

    def _verify_numbers(self, rows: Sequence[HistoryRow]) -> None:
        # Nothing is ever deleted from the journal, so its numbers run from 1 without a gap.
        with _translated(self.path):
            highest = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
        numbers = [row.number for row in rows]
        if numbers != list(range(1, (highest[0] if highest else 0) + 1)):
            raise DamagedError(f"{self.path}: rows of the journal are missing")

    def _journal_rows(self, tail: str, values: tuple[Any, ...]) -> tuple[HistoryRow, ...]:
        columns = "id, wall, boot_id, boottime_ns, code, device, part, serial, state, payload, checksum"
        with _translated(self.path):
            # The text of the statement is ours; every value is bound.
            rows = self._connection.execute(f"SELECT {columns} FROM journal {tail}", values).fetchall()  # noqa: S608
            return tuple(_history_row(row) for row in rows)

    def _result_rows(self, tail: str, values: tuple[Any, ...]) -> tuple[Result, ...]:
        with _translated(self.path):
            query = f"SELECT workload, payload, checksum FROM results {tail}"  # noqa: S608
            rows = self._connection.execute(query, values).fetchall()
            return tuple(_decoded(_RESULT, row[1], row[2], *row[:2]) for row in rows)

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[Callable[..., sqlite3.Cursor]]:
        with _translated(self.path):
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    with suppress(sqlite3.Error):
                        self._connection.execute("ROLLBACK")
                raise


def open_store(
    path: Path, *, wall_seconds: float | None = None, mounts: Path = Path("/proc/self/mounts")
) -> OpenedStore:
    """Open the database at *path* for writing, creating it and its directory where absent.

    A damaged database is moved aside to ``<name>.corrupt-<time>`` with its -wal and -shm, a fresh one takes its place
    and the notice says so. *wall_seconds* names the time (default: now); *mounts* is the table of mounts to look up
    the file system in. Raises BusyError when another process has it open for writing, and StoreError when it lies on
    a network file system, cannot be written, belongs to another application or to a newer version.
    """
    _make_directory(path)
    _refuse_network(path, mounts)
    lock = _lock(path)
    try:
        notice = ""
        try:
            store = _open_existing(path, lock)
        except DamagedError as error:
            aside = _move_aside(path, time.time() if wall_seconds is None else wall_seconds)
            notice = f"{error}; moved aside to {aside}, a fresh one begins: look there for older history"
            store = _open_existing(path, lock)
    except BaseException:
        os.close(lock)
        raise
    return OpenedStore(store, notice)


def read_store(path: Path) -> Store:
    """Open the database at *path* for reading beside whoever writes it. Raises StoreError where it is absent."""
    if not path.exists():
        raise StoreError(f"{path}: no database yet: it appears when `nodevet agent` first runs")
    with _translated(path):
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro",
            uri=True,
            timeout=SQLITE_WAIT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
    store = Store(connection, path, None)
    try:
        _refuse_foreign(connection, path)
    except BaseException:
        store.close()
        raise
    return store


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


def _make_directory(path: Path) -> None:
    directory = path.parent
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{directory}: cannot be made ({error.strerror}): choose another state_dir") from error


def _refuse_network(path: Path, mounts: Path) -> None:
    kind = file_system_of(path, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path}: lies on {kind}, where a database can lose what was written: set state_dir to a local disk"
        )


def _lock(path: Path) -> int:
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


def _open_existing(path: Path, lock: int) -> Store:
    wal = path.with_name(path.name + "-wal")
    if not path.exists():
        if wal.exists():
            raise DamagedError(f"{path}: gone, with its {wal.name} left behind")
        _create(path)
    if path.stat().st_size == 0:
        # A fresh database is renamed into place whole, so an empty file has lost what it held.
        raise DamagedError(f"{path}: empty")
    with _translated(path):
        connection = _connect(path)
    store = Store(connection, path, lock)
    try:
        _check(connection, path)
        _migrate(connection, path)
        store.load()
    except BaseException:
        connection.close()
        raise
    return store


def _create(path: Path) -> None:
    fresh = path.with_name(path.name + ".new")
    for name in (fresh, Path(f"{fresh}-wal"), Path(f"{fresh}-shm"), Path(f"{fresh}-journal")):
        name.unlink(missing_ok=True)
    with _translated(path):
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
        connection = sqlite3.connect(fresh, isolation_level=None)
        try:
            # Must come before the first table, or the file never shrinks.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            _migrate(connection, path)
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        finally:
            connection.close()
        fresh.rename(path)
        _sync_directory(path.parent)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=SQLITE_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _refuse_foreign(connection, path)
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute(f"PRAGMA journal_size_limit = {4 << 20}").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    with _translated(path):
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
    with _translated(path):
        answers = [row[0] for row in connection.execute("PRAGMA integrity_check(1)").fetchall()]
    if answers != ["ok"]:
        first = str(answers[0]).splitlines()[-1] if answers else "no answer"
        raise DamagedError(f"{path}: damaged ({first})")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == SCHEMA_VERSION:
        return
    with _translated(path):
        connection.execute("BEGIN IMMEDIATE")
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")


def _move_aside(path: Path, wall_seconds: float) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall_seconds))
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while any(Path(f"{aside}{suffix}").exists() for suffix in ("", "-wal", "-shm")):
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    with _translated(path):
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
def _translated(path: Path) -> Iterator[None]:
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


def _journal_columns(episode: Episode, payload: bytes, now: Instant) -> tuple[Any, ...]:
    return (
        now.wall_seconds,
        now.boot_id,
        now.boottime_ns,
        episode.key.code,
        episode.key.device,
        str(episode.key.part),
        episode.serial,
        episode.state.value,
        payload,
    )


def unkeepable(value: Episode | Result | Rollup) -> str:
    """Return why *value* cannot be kept (not a number, no JSON), or an empty string where it can."""
    try:
        msgspec.json.decode(msgspec.json.encode(value), type=type(value))
    except (msgspec.MsgspecError, ModelError, TypeError) as error:
        return f"{type(value).__name__.lower()} dropped, it cannot be kept: {error}"
    return ""


def _encoded(episode: Episode) -> bytes:
    """Return *episode* as it is kept; refuse what could not be read back (JSON has no NaN)."""
    try:
        payload = msgspec.json.encode(episode)
        _EPISODE.decode(payload)
    except (msgspec.MsgspecError, ModelError, TypeError) as error:
        raise StoreError(f"episode {episode.key} cannot be kept: {error}") from error
    return payload


def _checksum(*columns: str | bytes | float | None) -> int:
    return zlib.crc32(repr(columns).encode("utf-8", "surrogatepass"))


def _history_row(row: tuple[Any, ...]) -> HistoryRow:
    number, wall, boot_id, boottime_ns = row[:4]
    episode = _decoded(_EPISODE, row[9], row[10], *row[1:10])
    return HistoryRow(number, Instant(boot_id, boottime_ns, wall), episode)


def _verified(value: bytes, checksum: int, *columns: Any) -> bytes:
    if _checksum(*columns) != checksum:
        raise sqlite3.DatabaseError("a row does not match its checksum")
    return value


def _decoded(decoder: msgspec.json.Decoder[_Decoded], payload: bytes, checksum: int, *columns: Any) -> _Decoded:
    try:
        return decoder.decode(_verified(payload, checksum, *columns))
    except (msgspec.DecodeError, ModelError) as error:
        raise sqlite3.DatabaseError(f"a row cannot be read: {error}") from error
