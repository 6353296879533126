"""A database as schema version 1 had it: written with the statements of then, for tests of the step to a later one."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from nodevet.agent.store.database import APPLICATION_ID, MIGRATIONS, checksum
from nodevet.checks.core.model import Episode, Instant

INSERT = """INSERT INTO journal (wall, boot_id, boottime_ns, code, device, part, serial, state, payload, checksum)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def write(path: Path, rows: Iterable[tuple[Episode, Instant]], memory: Mapping[str, bytes] | None = None) -> None:
    """Write a database at *path* whose journal has *rows*, oldest first, as the first version wrote them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 1")
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute("BEGIN")
        connection.executemany(INSERT, (_columns(episode, now) for episode, now in rows))
        for name, value in (memory or {}).items():
            connection.execute("INSERT INTO memory VALUES (?, ?, ?)", (name, value, checksum(name, value)))
        connection.execute("COMMIT")


def _columns(episode: Episode, now: Instant) -> tuple[object, ...]:
    key = episode.key
    payload = msgspec.json.encode(episode)
    own = (key.code, key.device, str(key.part), episode.serial, episode.state.value, payload)
    row = (now.wall_seconds, now.boot_id, now.boottime_ns, *own)
    return (*row, checksum(*row))
