"""What outlives a restart: an SQLite database with one owner.

The journal is append-only: every change of an episode is a row, an acknowledgement adds one, and triggers refuse UPDATE
and DELETE. Only how often an episode occurred between two changes is written rarely, and dropped in time. The present
state has a table of its own, so that a start reads no journal. Beside it lie named blobs of memory, with which a
restart equals no restart. Rows, state and memory of one round are written in one synchronous transaction.

Rows that matter carry a checksum, because SQLite has none of its own. One that does not match it costs itself and is
told; a file that SQLite cannot read is moved aside. tending.py verifies what a start does not read.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.errors import StoreError
from nodevet.checks.core.model import Device, Episode, EpisodeState, Instant, Key, Result
from nodevet.checks.engine.retest import is_same_run

from .at_rest import newest_rows, open_episodes
from .database import (
    ROW,
    checksum,
    condition_of_files,
    fill_state,
    keep_state,
    keep_sum,
    kept_in,
    known_sum,
    translated,
)
from .open_files import OpenFiles
from .rows import (
    CHANGE,
    COUNT,
    HistoryRow,
    Last,
    Rollup,
    SeenDevice,
    UnsavedRound,
    differs,
    encoded,
    is_due,
    journal_columns,
    nature_of,
    verified_episode,
    whole_result,
    whole_row,
)
from .statements import Statements

_INSERT_JOURNAL = f"INSERT INTO journal ({ROW}, checksum, kind) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608

_MINUTES_PER_DAY = 24 * 60
_AGED_MINUTES = 60
"""So much of the past grows too old at once, each minute: a clock that is years ahead for a moment costs no more."""

_PRUNED_ROWS = 500
_VACUUM_PAGES = 2000
"""At most so many at once: a round must not wait long for the thread that drops them."""


class Store:
    """An open database. It has one owner at a time: only the thread that holds it may call it."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: int | None) -> None:
        """Take over *connection* to *path* and the descriptor *lock* that keeps other writers out."""
        self.path = path
        self._connection = connection
        self.statements = Statements(connection, path)
        self._lock = lock
        self._last: dict[Key, Last] = {}
        self.notices: list[str] = []
        self.left_out: set[int] = set()
        self._files = OpenFiles(path)
        self._remembered: dict[str, bytes] = {}
        self._series: dict[tuple[str, str, str], int] = {}

    def close(self) -> None:
        """Close the database and let go of the lock. May be called twice."""
        with suppress(sqlite3.Error):
            self._connection.close()
        self._files.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def save_round(self, episodes: Sequence[Episode], memory: Mapping[str, bytes], *, time: Instant) -> None:
        """Write one round in one synchronous transaction; see ``save_rounds``."""
        self.save_rounds((UnsavedRound(tuple(episodes), dict(memory), time),))

    def save_rounds(self, rounds: Sequence[UnsavedRound]) -> None:
        """Write *rounds*, oldest first, in one synchronous transaction: all of it is kept, or nothing.

        Each episode is a row of the journal where it changed; one of which only the count grew is a row each hour, or
        when the count has doubled. A pending one is no fact yet and gets none. Names that a memory lacks keep their
        value. Raises StoreError (disk full, read-only, damaged) or BusyError, and then the same rounds may be saved
        again.
        """
        blobs: dict[str, bytes] = {}
        for unsaved in rounds:
            blobs.update(unsaved.memory)
        blobs = {name: value for name, value in blobs.items() if self._remembered.get(name) != value}
        last = dict(self._last)
        episodes = [
            (episode, encoded(episode), unsaved.time)
            for unsaved in rounds
            for episode in unsaved.episodes
            if episode.state is not EpisodeState.PENDING
        ]
        fresh = [entry for entry in episodes if differs(last.get(entry[0].key), entry[1])]
        if not fresh and not blobs:
            return
        with self.statements.transaction() as run:
            added, total = 0, 0
            for episode, payload, moment in fresh:
                mark = self._save_episode(run, last, episode, payload, moment)
                added, total = added + (mark is not None), total + (mark or 0)
            # A sum that is damaged stays so until the tender has told of it: it must cost no episode.
            if added and (known := known_sum(self._connection)) is not None:
                keep_sum(self._connection, known[0] + added, known[1] + total)
            for name, value in blobs.items():
                run("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", (name, value, checksum(name, value)))
        self._last = last
        self._remembered.update(blobs)

    def _save_episode(
        self, run: Callable[..., sqlite3.Cursor], last: dict[Key, Last], episode: Episode, payload: bytes, now: Instant
    ) -> int | None:
        """Write *episode* into ``state``, and where it is due into the journal; return the checksum of that row."""
        before = last.get(episode.key)
        if not differs(before, payload):
            return None
        key = (episode.key.code, episode.key.device, str(episode.key.part))
        nature = nature_of(episode)
        kind = COUNT if before is not None and before.nature == nature else CHANGE
        mark: int | None = None
        number, written, count = (before.number, before.written, before.written_count) if before else (0, None, 0)
        if kind == CHANGE or is_due(written, count, episode, now):
            row = journal_columns(episode, payload, now)
            mark = checksum(*row)
            number = int(run(_INSERT_JOURNAL, (*row, mark, kind)).lastrowid or 0)
            written, count = now, episode.count
        if episode.state is EpisodeState.CLEARED:
            run("DELETE FROM state WHERE code = ? AND device = ? AND part = ?", key)
            last.pop(episode.key, None)
        else:
            keep_state(self._connection, key, payload, number)
            last[episode.key] = Last(episode, zlib.crc32(payload), nature, number, written, count)
        return mark

    def displaced(self) -> str:
        """Return that the database, or its log, is no longer the file that is open, or an empty string."""
        return self._files.displaced()

    def overwritten(self) -> str:
        """Return that somebody else wrote into the file, and what was kept is not in it, or an empty string.

        `cp` of a backup leaves the file its place. A file in which all of it is read anew was only tidied up.
        Raises BusyError while somebody else writes.
        """
        if not self.statements.written or condition_of_files(self.path) in ((), self.statements.written):
            return ""
        kept = sorted((entry.number, entry.mark) for entry in self._last.values())
        with suppress(StoreError):
            if kept_in(self.path) == (self._remembered, kept):
                return ""
        return f"{self.path}: overwritten while the agent runs"

    def load_episodes(self) -> tuple[Episode, ...]:
        """Return every episode that is not cleared."""
        return tuple(entry.episode for _, entry in sorted(self._last.items()))

    def episodes_at_rest(self) -> tuple[Episode, ...]:
        """Return every episode that is not cleared, of any schema version, where the database is only read."""
        with translated(self.path):
            return open_episodes(self._connection)

    def load_memory(self) -> dict[str, bytes]:
        """Return every blob by name."""
        rows = self.statements.rows("SELECT name, value, checksum FROM memory ORDER BY name")
        broken = [name for name, value, mark in rows if checksum(name, value) != mark]
        if broken:
            self.notices.append(f"{self.path}: memory of {', '.join(map(str, broken))} is damaged and is reset")
        return {name: value for name, value, mark in rows if checksum(name, value) == mark}

    def history(
        self, devices: Sequence[str] | None = None, serial: str | None = None, limit: int = 1000
    ) -> tuple[HistoryRow, ...]:
        """Return journal rows, newest first: of some devices, of one serial number.

        A row that does not match its checksum is left out, and its number is in ``left_out``.
        """
        conditions: list[tuple[str, tuple[str, ...]]] = []
        if serial is not None:
            conditions.append(("serial = ?", (serial,)))
        if devices is not None:
            conditions.append((f"device IN ({', '.join('?' * len(devices))})", tuple(devices)))
        where = " AND ".join(clause for clause, _ in conditions)
        tail = (f"WHERE {where} " if where else "") + "ORDER BY id DESC LIMIT ?"
        return self._journal_rows(tail, (*(value for _, values in conditions for value in values), limit))

    def newest_rows(self, keys: Collection[Key], boot_id: str, since_ns: int) -> tuple[HistoryRow, ...]:
        """Return the newest row about each of *keys* in the journal of the boot *boot_id*, from *since_ns* of it on.

        One that is damaged, or not there, is left out.
        """
        with translated(self.path):
            numbers = newest_rows(self._connection, keys, boot_id, since_ns)
        return tuple(row for number in numbers for row in self._journal_rows("WHERE id = ?", (number,)))

    def append_result(self, result: Result) -> None:
        """Keep the *result* of a workload, once however often it is delivered. Raises StoreError or BusyError."""
        known = self._result_rows("WHERE wall = ? AND workload = ?", (result.ended.wall_seconds, result.workload))
        if any(is_same_run(row, result) for row in known):
            return
        payload = msgspec.json.encode(result)
        row = (result.ended.wall_seconds, result.workload, payload, checksum(result.workload, payload))
        with self.statements.transaction() as run:
            run("INSERT INTO results (wall, workload, payload, checksum) VALUES (?, ?, ?, ?)", row)

    def results(self, limit: int = 100) -> tuple[Result, ...]:
        """Return the newest *limit* results, newest first."""
        return self._result_rows("ORDER BY id DESC LIMIT ?", (limit,))

    def see_devices(self, devices: Sequence[Device], wall_seconds: float) -> None:
        """Remember that *devices* were here at *wall_seconds*. Raises StoreError or BusyError."""
        with self.statements.transaction(durable=False) as run:
            for device in devices:
                told = (device.id, device.serial or "", device.vendor, device.kind.value, device.pci, device.model)
                run(
                    """INSERT INTO device_seen VALUES (?, ?, ?, ?, ?, ?, ?, ?)
                    ON CONFLICT (device, serial) DO UPDATE SET
                    pci = excluded.pci, model = excluded.model, last_seen = excluded.last_seen""",
                    (*told, wall_seconds, wall_seconds),
                )

    def devices_seen(self) -> tuple[SeenDevice, ...]:
        """Return every device that was ever in this node, oldest first."""
        rows = self.statements.rows(
            """SELECT device, serial, vendor, kind, pci, model, first_seen, last_seen
            FROM device_seen ORDER BY first_seen, device, serial"""
        )
        return tuple(SeenDevice(row[0], row[1] or None, *row[2:]) for row in rows)

    def append_rollups(self, rollups: Sequence[Rollup]) -> None:
        """Keep minutes of measurements. A minute written twice keeps the later one. Raises StoreError or BusyError."""
        added: dict[tuple[str, str, str], int] = {}
        with self.statements.transaction(durable=False) as run:
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
        rows = self.statements.rows(
            """SELECT minute, device, quantity, part, minimum, mean, maximum, count
            FROM rollup JOIN series ON series.id = rollup.series
            WHERE device = ? AND quantity = ? AND minute >= ? ORDER BY minute, part""",
            (device, quantity, since_minute),
        )
        return tuple(Rollup(*row) for row in rows)

    def size_bytes(self) -> int:
        """Return the bytes in use: pages that hold something, without those that wait for reuse."""
        pages, free, size = (
            self.statements.rows(f"PRAGMA {name}")[0][0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def prune(
        self,
        wall_seconds: float,
        *,
        rollup_days: float,
        size_limit_bytes: int,
        count_days: float = 90.0,
        gives_way: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Drop rollups older than *rollup_days*, counts older than *count_days*, then the oldest until the size fits.

        Rollups go first, then counts of the journal, at last results. What opened, changed or ended an episode is never
        dropped. Returns whether the size fits, or will: the rest waits for the next time where something else is due
        (*gives_way*). Raises StoreError or BusyError.
        """
        cutoff = int(wall_seconds // 60 - rollup_days * _MINUTES_PER_DAY)
        with self.statements.transaction(durable=False) as run:
            oldest = run("SELECT min(minute) FROM rollup").fetchone()[0] or 0
            last = min(cutoff, oldest + _AGED_MINUTES)
            dropped = run("DELETE FROM rollup WHERE minute < ?", (last,)).rowcount
            first = run("SELECT min(wall) FROM journal WHERE kind = 'count'").fetchone()[0] or 0.0
        dropped += self._drop_counts("wall < ?", min(wall_seconds - count_days * 86400.0, first + 60.0 * _AGED_MINUTES))
        while self.size_bytes() > size_limit_bytes:
            step = self._drop_oldest()
            if not step:
                return False
            dropped += step
            if gives_way():
                break
        if dropped:
            self.statements.rows(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
            self.statements.written = condition_of_files(self.path)
        return True

    def _drop_counts(self, which: str, value: float) -> int:
        """Drop some of the oldest counts of the journal *which* the condition names with *value*; return how many."""
        chosen = f"SELECT id, checksum FROM journal WHERE kind = 'count' AND {which} ORDER BY wall LIMIT {_PRUNED_ROWS}"  # noqa: S608
        with self.statements.transaction(durable=False) as run:
            rows = run(chosen, (value,)).fetchall()
            if rows:
                for number, _ in rows:
                    run("DELETE FROM journal WHERE id = ?", (number,))
                if (known := known_sum(self._connection)) is not None:
                    keep_sum(self._connection, known[0] - len(rows), known[1] - sum(mark for _, mark in rows))
        return len(rows)

    def _drop_oldest(self) -> int:
        with self.statements.transaction(durable=False) as run:
            first, last = run("SELECT min(minute), max(minute) FROM rollup").fetchone()
            if first is not None:
                # A twentieth of the time at once: few transactions, and little more than needed is lost.
                return run("DELETE FROM rollup WHERE minute <= ?", (first + (last - first) // 20,)).rowcount
        if counts := self._drop_counts("wall < ?", 1e300):
            return counts
        with self.statements.transaction(durable=False) as run:
            return run(
                """DELETE FROM results WHERE id IN (SELECT id FROM results WHERE id NOT IN
                (SELECT max(id) FROM results GROUP BY workload) ORDER BY id LIMIT 50)"""
            ).rowcount

    def load(self) -> None:
        """Read what a start needs, the open episodes and the memory. Raises StoreError where that cannot be read."""
        before = len(self.notices)
        self._remembered = self.load_memory()
        if len(self.notices) > before and self._lock is not None:
            with self.statements.transaction() as run:
                for name in {row[0] for row in run("SELECT name FROM memory")} - self._remembered.keys():
                    run("DELETE FROM memory WHERE name = ?", (name,))
        rows = self.statements.rows("SELECT code, device, part, payload, number, checksum FROM state")
        found = [self._state_row(row) for row in rows]
        if None in found:
            damaged = count_of(found.count(None), "finding")
            self.notices.append(f"{self.path}: the state of {damaged} is damaged, restored from the journal")
            with self.statements.transaction() as run:
                fill_state(self._connection)
                rows = run("SELECT code, device, part, payload, number, checksum FROM state").fetchall()
            found = [self._state_row(row) for row in rows]
        self._last = {entry.episode.key: entry for entry in found if entry is not None}

    def _state_row(self, row: tuple[Any, ...]) -> Last | None:
        *columns, mark = row
        episode = verified_episode(row[3], mark, *columns)
        if episode is None:
            return None
        found = self.statements.rows(f"SELECT id, {ROW}, checksum FROM journal WHERE id = ?", (row[4],))  # noqa: S608
        last = whole_row(found[0]) if found else None
        when, count = (last.time, last.episode.count) if last else (None, 0)
        return Last(episode, zlib.crc32(row[3]), nature_of(episode), row[4], when, count)

    def _journal_rows(self, tail: str, values: tuple[Any, ...]) -> tuple[HistoryRow, ...]:
        rows = self.statements.rows(f"SELECT id, {ROW}, checksum FROM journal {tail}", values)  # noqa: S608
        found = {row[0]: whole_row(row) for row in rows}
        self.left_out |= {number for number, row in found.items() if row is None}
        return tuple(row for row in found.values() if row is not None)

    def _result_rows(self, tail: str, values: tuple[Any, ...]) -> tuple[Result, ...]:
        rows = self.statements.rows(f"SELECT workload, payload, checksum FROM results {tail}", values)  # noqa: S608
        return tuple(found for row in rows if (found := whole_result(row)) is not None)
