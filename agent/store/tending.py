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

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.core.model import Episode, Key
from nodevet.checks.system.background import Background

from .database import ROW, DamagedError, checksum, connect_for_reading, keep_sum, known_sum, translated
from .rows import CHANGE, COUNT, nature_of, set_aside, whole_result, whole_row
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
        self._path = store.path
        self._statements = store.statements
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
        after, newest = 0, self._statements.rows("SELECT coalesce(max(id), 0) FROM journal")[0][0]
        while after < newest:
            after = self._look(after)
            yield ""
        if self._damaged:
            yield f"{self._path}: left out of the history: {count_of(self._damaged, 'damaged row')} of the journal"
        if broken := self._broken_results():
            yield f"{self._path}: left out: {count_of(broken, 'damaged result')} of loads"
        missing = None
        while missing is None:
            missing = self._missing_rows()
            yield ""
        if missing:
            yield f"{self._path}: {count_of(missing, 'row')} of the journal missing or changed"
        check = WholeFile(self._path)
        try:
            while check.running:
                yield ""
            check.result()
        finally:
            check.give_up()

    def _look(self, after: int) -> int:
        """Verify the rows behind number *after*, and return the number of the last of them."""
        query = f"SELECT kind, id, {ROW}, checksum FROM journal WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608
        rows = self._statements.rows(query, (after, SLICE_ROWS))
        kinds: dict[int, str] = {}
        damaged: list[int] = []
        for kind, number, *columns, mark in rows:
            if checksum(*columns) != mark:
                damaged.append(number)
            if kind not in (CHANGE, COUNT):
                whole = whole_row((number, *columns, mark))
                kinds[number] = CHANGE if whole is None else self._kind(whole.episode)
        if kinds or damaged:
            with self._statements.transaction(durable=False) as run:
                for number, kind in kinds.items():
                    run("UPDATE journal SET kind = ? WHERE id = ?", (kind, number))
                news = set_aside(run, "journal", damaged)
            self._damaged += news
        return int(rows[-1][1]) if rows else after + SLICE_ROWS

    def _kind(self, episode: Episode) -> str:
        nature = nature_of(episode)
        before, self._natures[episode.key] = self._natures.get(episode.key), nature
        return COUNT if before == nature else CHANGE

    def _broken_results(self) -> int:
        """Return how many results do not match their checksum, once."""
        with translated(self._path):
            rows = self._statements.connection.execute("SELECT workload, payload, checksum, id FROM results")
            damaged = [row[3] for row in rows if whole_result(row[:3]) is None]
        if not damaged:
            return 0
        with self._statements.transaction(durable=False) as run:
            return set_aside(run, "results", damaged)

    def _missing_rows(self) -> int | None:
        """Return how many rows the journal should have and has not, once; None where that was interrupted.

        One that was exchanged counts too. What is there counts from then on.
        """
        query = "SELECT count(*), coalesce(sum(checksum), 0) FROM journal"
        found = self._statements.patiently(query, self._interrupted)
        if found is None:
            return None
        rows, total = found[0]
        with translated(self._path):
            known = known_sum(self._statements.connection)
        if known == (rows, total):
            return 0
        with self._statements.transaction():
            keep_sum(self._statements.connection, rows, total)
        return max(known[0] - rows, 1) if known is not None else 1
