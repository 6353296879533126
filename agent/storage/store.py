"""What outlives a restart: an SQLite database with one owner.

The journal is append-only: every change of an episode's state is a row, an acknowledgement adds one, and triggers
refuse UPDATE and DELETE. Beside it lie named blobs of memory, with which a restart equals no restart. Rows and memory
of one round are written in one synchronous transaction, so they are always of the same round.

Rows that matter carry a checksum, because SQLite has none of its own: a database that does not add up is moved aside
and the caller is told, never recreated in silence.
"""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nodevet.agent.storage.database import (
    DamagedError,
    checksum,
    connect,
    connect_for_reading,
    lock,
    make_directory,
    move_aside,
    refuse_network,
    translated,
)
from nodevet.checks.errors import ModelError, StoreError
from nodevet.checks.model import Device, Episode, EpisodeState, Instant, Key, Result

__all__ = [
    "DATABASE_NAME",
    "HistoryRow",
    "OpenedStore",
    "Rollup",
    "SeenDevice",
    "Store",
    "UnsavedRound",
    "open_store",
    "read_store",
    "unkeepable",
]

DATABASE_NAME = "nodevet.db"
_INSERT_JOURNAL = """INSERT INTO journal
    (wall, boot_id, boottime_ns, code, device, part, serial, state, payload, checksum)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_EPISODE = msgspec.json.Decoder(Episode)
_RESULT = msgspec.json.Decoder(Result)
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
                run(_INSERT_JOURNAL, (*row, checksum(*row)))
            for name, value in blobs.items():
                run("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", (name, value, checksum(name, value)))
        self._journaled.update(journaled)
        self._remembered.update(blobs)

    def load_episodes(self) -> tuple[Episode, ...]:
        """Return every episode that is not cleared: the journal folded to its last row per key."""
        latest = {row.episode.key: row.episode for row in self._journal_rows("ORDER BY id", ())}
        return tuple(episode for _, episode in sorted(latest.items()) if episode.state is not EpisodeState.CLEARED)

    def load_memory(self) -> dict[str, bytes]:
        """Return every blob by name."""
        with translated(self.path):
            rows = self._connection.execute("SELECT name, value, checksum FROM memory ORDER BY name").fetchall()
            return {name: _verified(value, mark, name, value) for name, value, mark in rows}

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
        row = (result.ended.wall_seconds, result.workload, payload, checksum(result.workload, payload))
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
        with translated(self.path):
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
        with translated(self.path):
            rows = self._connection.execute(
                """SELECT minute, device, quantity, part, minimum, mean, maximum, count
                FROM rollup JOIN series ON series.id = rollup.series
                WHERE device = ? AND quantity = ? AND minute >= ? ORDER BY minute, part""",
                (device, quantity, since_minute),
            ).fetchall()
        return tuple(Rollup(*row) for row in rows)

    def size_bytes(self) -> int:
        """Return the bytes in use: pages that hold something, without those that wait for reuse."""
        with translated(self.path):
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
            with translated(self.path):
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
        with translated(self.path):
            highest = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
        numbers = [row.number for row in rows]
        if numbers != list(range(1, (highest[0] if highest else 0) + 1)):
            raise DamagedError(f"{self.path}: rows of the journal are missing")

    def _journal_rows(self, tail: str, values: tuple[Any, ...]) -> tuple[HistoryRow, ...]:
        columns = "id, wall, boot_id, boottime_ns, code, device, part, serial, state, payload, checksum"
        with translated(self.path):
            # The text of the statement is ours; every value is bound.
            rows = self._connection.execute(f"SELECT {columns} FROM journal {tail}", values).fetchall()  # noqa: S608
            return tuple(_history_row(row) for row in rows)

    def _result_rows(self, tail: str, values: tuple[Any, ...]) -> tuple[Result, ...]:
        with translated(self.path):
            query = f"SELECT workload, payload, checksum FROM results {tail}"  # noqa: S608
            rows = self._connection.execute(query, values).fetchall()
            return tuple(_decoded(_RESULT, row[1], row[2], *row[:2]) for row in rows)

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[Callable[..., sqlite3.Cursor]]:
        with translated(self.path):
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
    make_directory(path)
    refuse_network(path, mounts)
    held = lock(path)
    try:
        notice = ""
        try:
            store = _open(path, held)
        except DamagedError as error:
            aside = move_aside(path, time.time() if wall_seconds is None else wall_seconds)
            notice = f"{error}; moved aside to {aside}, a fresh one begins: look there for older history"
            store = _open(path, held)
    except BaseException:
        os.close(held)
        raise
    return OpenedStore(store, notice)


def _open(path: Path, held: int) -> Store:
    connection = connect(path)
    store = Store(connection, path, held)
    try:
        store.load()
    except BaseException:
        connection.close()
        raise
    return store


def read_store(path: Path) -> Store:
    """Open the database at *path* for reading beside whoever writes it. Raises StoreError where it is absent."""
    return Store(connect_for_reading(path), path, None)


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


def _history_row(row: tuple[Any, ...]) -> HistoryRow:
    number, wall, boot_id, boottime_ns = row[:4]
    episode = _decoded(_EPISODE, row[9], row[10], *row[1:10])
    return HistoryRow(number, Instant(boot_id, boottime_ns, wall), episode)


def _verified(value: bytes, mark: int, *columns: Any) -> bytes:
    if checksum(*columns) != mark:
        raise sqlite3.DatabaseError("a row does not match its checksum")
    return value


def _decoded(decoder: msgspec.json.Decoder[_Decoded], payload: bytes, mark: int, *columns: Any) -> _Decoded:
    try:
        return decoder.decode(_verified(payload, mark, *columns))
    except (msgspec.DecodeError, ModelError) as error:
        raise sqlite3.DatabaseError(f"a row cannot be read: {error}") from error
