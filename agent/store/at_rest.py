"""What a database tells that is read and not written: its open episodes, and what ended lately.

As at every start, the journal is not decoded: of each episode one row is, however many there are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from typing import Any

from nodevet.checks.core.model import Episode, EpisodeState, Key

from .database import ROW
from .rows import verified_episode, whole_row

_Name = tuple[str, str, str]
"""Code, device and part of an episode, as they stand in a row."""


def open_episodes(connection: sqlite3.Connection) -> tuple[Episode, ...]:
    """Return every episode that is not cleared, in a database of any schema version.

    By the table ``state``; where that is damaged, or not of this version, by the newest whole row of each in the
    journal.
    """
    rows = rows_if_known(connection, "SELECT code, device, part, payload, number, checksum FROM state")
    found = [None] if rows is None else [verified_episode(row[3], row[5], *row[:5]) for row in rows]
    whole = [episode for episode in found if episode is not None]
    if len(whole) < len(found):
        numbers = connection.execute("SELECT code, device, part, id FROM journal ORDER BY id")
        latest = {(code, device, part): number for code, device, part, number in numbers}
        newest = (_newest_whole(connection, name, number) for name, number in latest.items())
        whole = [episode for episode in newest if episode is not None and episode.state is not EpisodeState.CLEARED]
    return tuple(sorted(whole, key=lambda episode: episode.key))


def _newest_whole(connection: sqlite3.Connection, name: _Name, newest: int) -> Episode | None:
    """Return the episode *name* by its row of the number *newest*, or by the last one before it that is whole."""
    query = f"SELECT id, {ROW}, checksum FROM journal WHERE code = ? AND device = ? AND part = ? AND id <= ?"  # noqa: S608
    rows = map(whole_row, connection.execute(f"{query} ORDER BY id DESC", (*name, newest)))
    return next((row.episode for row in rows if row is not None), None)


def newest_rows(connection: sqlite3.Connection, keys: Collection[Key], boot_id: str, since_ns: int) -> tuple[int, ...]:
    """Return the number of the newest row about each of *keys* that was written in the boot *boot_id*.

    Read backwards, and no further than to what was written before *since_ns* (CLOCK_BOOTTIME) of that boot: a key that
    the journal does not have must not cost a look at all of it.
    """
    wanted: Mapping[_Name, Key] = {(key.code, key.device, str(key.part)): key for key in keys}
    found: dict[_Name, int] = {}
    rows = connection.execute("SELECT id, boot_id, boottime_ns, code, device, part FROM journal ORDER BY id DESC")
    for number, boot, written_ns, *name in rows:
        if boot != boot_id or written_ns < since_ns or len(found) == len(wanted):
            break
        if (own := (name[0], name[1], name[2])) in wanted:
            found.setdefault(own, number)
    return tuple(found.values())


def rows_if_known(connection: sqlite3.Connection, query: str) -> list[tuple[Any, ...]] | None:
    """Return the rows of *query*, or None where this version of the database has no such table or column."""
    try:
        return connection.execute(query).fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_ERROR:
            raise
        return None
