"""Statements to the open database: rows, transactions, and what may take long; errors name the file and the next step.

The text of each statement is ours; every value is bound.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .database import InterruptedStatementError, condition_of_files, translated

_INSTRUCTIONS = 20_000
"""So many steps of SQLite's machine, some milliseconds, pass before a statement that takes long can be given up."""


class Statements:
    """Runs the statements of a store and of its tender."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        """Run them on *connection* to *path*."""
        self.connection = connection
        self.path = path
        self.written: tuple[tuple[int, int], ...] = ()
        """Size and time of change of database and log as the last transaction left them."""

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of *query*."""
        with translated(self.path):
            return self.connection.execute(query, values).fetchall()

    def patiently(self, query: str, interrupted: Callable[[], bool]) -> list[tuple[Any, ...]] | None:
        """Return the rows of a *query* that may take long, or None where it was *interrupted*."""
        self.connection.set_progress_handler(interrupted, _INSTRUCTIONS)
        try:
            return self.rows(query)
        except InterruptedStatementError:
            return None
        finally:
            self.connection.set_progress_handler(None, 0)

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Keep all that is run, or nothing; *durable* once it is on the disk."""
        with translated(self.path):
            self.connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection.execute
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    with suppress(sqlite3.Error):
                        self.connection.execute("ROLLBACK")
                raise
            finally:
                self.written = condition_of_files(self.path)
