"""What a start does not wait for: the rest of the database is verified afterwards, a few rows at a time.

A row that does not match its checksum costs itself: it is numbered in ``set_aside``, left out of the history, and told
once. Rows that are missing are told once. A file whose structure is damaged raises DamagedError, and the writer makes
it anew. On the way rows of schema version 1 are sorted into changes, which stay, and counts, which are dropped in time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.core.model import Episode, Key
from nodevet.checks.system.background import Background

from .database import DamagedError, checksum, connect_for_reading, translated
from .rows import CHANGE, COUNT, nature_of, whole_row
from .store import Store

SLICE_ROWS = 100


class WholeFile:
    """Has SQLite verify the whole file, by a connection and a thread of its own: no round waits for it."""

    def __init__(self, path: Path) -> None:
        """Begin. Raises StoreError."""
        self._path = path
        self._connection = connect_for_reading(path)
        self._found: StoreError | BusyError | None = None
        self._thread = Background(self._run)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Return whether it goes on."""
        return self._thread.is_alive()

    def result(self) -> None:
        """Return where the file is sound. Raises DamagedError where it is not, StoreError where that is not known."""
        if self._found is not None:
            raise self._found

    def give_up(self) -> None:
        """End, also before it is done."""
        with suppress(sqlite3.ProgrammingError):  # it has just ended by itself
            self._connection.interrupt()

    def _run(self) -> None:
        try:
            with translated(self._path):
                answers = [str(row[0]) for row in self._connection.execute("PRAGMA integrity_check(1)")]
            if answers != ["ok"]:
                raise DamagedError(f"{self._path}: damaged ({(answers or ['no answer'])[0].splitlines()[-1]})")
        except (StoreError, BusyError) as error:
            self._found = error
        finally:
            self._connection.close()


class Tender:
    """Looks through a store once, in steps that take some milliseconds each."""

    def __init__(self, store: Store, *, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Look through *store*; a step that takes long is given up, and done later, once something else is due."""
        self._store = store
        self._interrupted = interrupted
        self._natures: dict[Key, int] = {}
        self._damaged = 0
        self._steps = self._run()
        self.done = False

    def step(self) -> str:
        """Do one step; return what must be told, or an empty string. Raises StoreError and BusyError."""
        found = next(self._steps, None)
        self.done = found is None
        return found or ""

    def _run(self) -> Iterator[str]:
        after, newest = 0, self._store.newest_row()
        while after < newest:
            after = self._look(after)
            yield ""
        if self._damaged:
            yield f"{self._store.path}: {self._damaged} rows of the journal are damaged, and left out of the history"
        if broken := self._store.broken_results():
            yield f"{self._store.path}: {broken} results of loads are damaged, and left out"
        missing = None
        while missing is None:
            missing = self._store.missing_rows(self._interrupted)
            yield ""
        if missing:
            yield f"{self._store.path}: {missing} rows of the journal are missing or were changed"
        check = WholeFile(self._store.path)
        try:
            while check.running:
                yield ""
            check.result()
        finally:
            check.give_up()

    def _look(self, after: int) -> int:
        """Verify the rows behind number *after*, and return the number of the last of them."""
        rows = self._store.raw_rows(after, SLICE_ROWS)
        kinds: dict[int, str] = {}
        damaged: list[int] = []
        for kind, number, *columns, mark in rows:
            if checksum(*columns) != mark:
                damaged.append(number)
            if kind not in (CHANGE, COUNT):
                whole = whole_row((number, *columns, mark))
                kinds[number] = CHANGE if whole is None else self._kind(whole.episode)
        self._damaged += self._store.note_rows(kinds, damaged)
        return int(rows[-1][1]) if rows else after + SLICE_ROWS

    def _kind(self, episode: Episode) -> str:
        nature = nature_of(episode)
        before, self._natures[episode.key] = self._natures.get(episode.key), nature
        return COUNT if before == nature else CHANGE
