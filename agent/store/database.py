"""The file behind the store: schema, opening, damage, and SQLite's errors in plain words.

SQLite's WAL needs shared memory between processes of one machine and working locks, so network file systems are
refused (https://sqlite.org/wal.html). A fresh database is renamed into place whole, so that a file which is empty or
does not add up has lost something, and is moved aside.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sqlite3
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec

from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.core.tables import table_text
from nodevet.checks.reference.tables import load_table
from nodevet.checks.system.lock import open_lock_file

APPLICATION_ID = 0x6E6F6476
"""``nodv``: tells our database from another application's."""


class _FileSystem(msgspec.Struct, frozen=True):
    """A row of reference/network_file_systems.csv: a type of file system, as proc(5) calls it."""

    type: str


NETWORK_FILE_SYSTEMS = frozenset(row.type for row in load_table("network_file_systems.csv", _FileSystem))

SQLITE_WAIT_SECONDS = 0.4
"""How long a statement waits for another process's lock; below the second that shutdown allows the store."""

CACHE_KIB = 512
"""What a connection may keep of the file: whoever reads all of it once shall not hold megabytes of it."""

SMALLEST_BYTES = 512
"""A database has at least one page, and no page is smaller (https://sqlite.org/fileformat.html)."""

KEPT_ASIDE = 5
"""Of the databases that were moved aside for one cause so many stay: the first and the last ones."""

_SCHEMAS = (Path(__file__).with_name(f"schema-{version}.sql") for version in (1, 2))
MIGRATIONS = tuple(tuple(table_text(path).rstrip().split("\n\n")) for path in _SCHEMAS)
"""Statements per schema version, with empty lines between; the first file makes version 1 out of nothing.

``state`` holds the open episodes and the number of the last row of each in the journal: a start reads it, and not the
journal. ``journal_sum`` says how many rows the journal has and what their checksums add up to, so that a row that is
missing is noticed although counts are dropped in time. ``set_aside`` numbers rows, of journal and results, that do not
match their checksum.
"""

SCHEMA_VERSION = len(MIGRATIONS)

STATE_VERSION = 2
"""The schema version that brought ``state`` and ``journal_sum``."""

ROW = "wall, boot_id, boottime_ns, code, device, part, serial, state, payload"
"""The columns of the journal that a row's checksum is of."""

_UNREADABLE = (sqlite3.DatabaseError, sqlite3.OperationalError)


class DamagedError(StoreError):
    """The file is no database of ours any more."""


class InterruptedStatementError(StoreError):
    """A statement was given up because something else is due."""


class RefusedError(StoreError):
    """A database must not lie there: a mistake of the configuration, which does not pass by itself."""


class NewerError(RefusedError):
    """The database was written by a newer version of nodevet, as after a rollback."""

    def __init__(self, path: Path, version: int) -> None:
        """Say which *version* of the schema the database at *path* has."""
        self.version = version
        super().__init__(
            f"{path}: written by schema version {version}, this nodevet knows up to {SCHEMA_VERSION}: "
            "install the newer nodevet again, or start the agent of this one, which begins a fresh database"
        )


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the type of the file system that holds *path*, or None where the table *mounts* cannot be read.

    psutil is not asked: where there is an /etc/mtab it reads that, which may be a file that nobody keeps.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    place = Path(os.path.realpath(path))  # also where links lead in a circle
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
        raise _refusal(error)(f"{directory}: cannot be made ({error.strerror}): {_step(error)}") from error


def _refusal(error: OSError) -> type[StoreError]:
    """Return RefusedError where a person must choose another place; a disk that is full or broken may be well again."""
    # ENOENT although all that was missing has been made: a file system that takes no folders, such as proc(5).
    chosen = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)
    return RefusedError if error.errno in chosen else StoreError


def _step(error: OSError) -> str:
    """Return the next step; the unit mounts each folder read-only that its ReadWritePaths and StateDirectory omit."""
    if error.errno == errno.EROFS:
        return "see journalctl -k for errors of its disk, or add state_dir to ReadWritePaths of the agent's unit"
    return "choose another state_dir"


def refuse_network(path: Path, mounts: Path) -> None:
    """Raise StoreError when *path* lies on a network file system, by the table *mounts*."""
    kind = file_system_of(path, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise RefusedError(
            f"{path}: lies on {kind}, where a database can lose what was written: set state_dir to a local disk"
        )


def lock(path: Path) -> int:
    """Keep other writers of *path* out and return the descriptor to close at the end. Raises BusyError, StoreError."""
    name = path.with_name(path.name + ".lock")
    try:
        descriptor = open_lock_file(name)
    except OSError as error:
        raise _refusal(error)(
            f"{name}: cannot be written by uid {os.geteuid()} ({error.strerror}): {_step(error)}"
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
    with translated(path):
        if not path.exists():
            if wal.exists():
                raise DamagedError(f"{path}: gone, with its {wal.name} left behind")
            _create(path)
        if (size := path.stat().st_size) < SMALLEST_BYTES:
            raise DamagedError(f"{path}: cut to {size} bytes")
        connection = sqlite3.connect(path, timeout=SQLITE_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _refuse_foreign(connection, path)
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute(f"PRAGMA journal_size_limit = {4 << 20}").fetchone()
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def connect_for_reading(path: Path, *, or_newer: bool = False) -> sqlite3.Connection:
    """Open the database at *path* beside whoever writes it; with *or_newer* also one of a newer schema.

    Raises StoreError where it is absent or not ours.
    """
    with translated(path):
        if not path.exists():
            raise StoreError(f"{path}: no database yet: it appears when `nodevet agent` first runs")
        address = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' * _is_at_rest(path)}"
        connection = sqlite3.connect(
            address, uri=True, timeout=SQLITE_WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            _refuse_foreign(connection, path, or_newer=or_newer)
        except BaseException:
            connection.close()
            raise
    return connection


def condition_of_files(path: Path) -> tuple[tuple[int, int], ...]:
    """Return size and time of change of the database at *path* and its log; nothing where that cannot be told."""
    try:
        found = [os.stat(f"{path}{suffix}") for suffix in ("", "-wal")]  # noqa: PTH116
    except OSError:
        return ()
    return tuple((entry.st_size, entry.st_mtime_ns) for entry in found)


def kept_in(path: Path) -> tuple[dict[str, bytes], list[tuple[int, int]]]:
    """Return the memory in the file at *path*, and of each open episode its last row and the checksum of its text.

    Raises StoreError and BusyError.
    """
    with closing(connect_for_reading(path)) as fresh, translated(path):
        memory = dict(fresh.execute("SELECT name, value FROM memory").fetchall())
        state = fresh.execute("SELECT number, payload FROM state").fetchall()
    return memory, sorted((number, zlib.crc32(payload)) for number, payload in state)


def _is_at_rest(path: Path) -> bool:
    """Return whether *path* lies on a read-only file system and is whole without its log.

    SQLite makes a log even to read, which cannot be made there (https://sqlite.org/wal.html#readonly).
    """
    with translated(path):
        is_read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        return is_read_only and not os.path.lexists(f"{path}-wal")


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


def _refuse_foreign(connection: sqlite3.Connection, path: Path, *, or_newer: bool = False) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise RefusedError(f"{path}: a database of another application: choose another state_dir")
    if version > SCHEMA_VERSION and not or_newer:
        raise NewerError(path, version)


def _migrate(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        for statement in statements:
            connection.execute(statement)
        if number == STATE_VERSION:
            fill_state(connection)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def fill_state(connection: sqlite3.Connection) -> int:
    """Fill ``state`` and ``journal_sum`` from the journal, within a transaction; return how many rows were no use.

    A row that does not match its checksum counts for nothing: the one before it of the same episode does.
    """
    latest: dict[tuple[str, str, str], int] = {}
    total, rows = 0, 0
    for number, code, device, part, mark in connection.execute(
        "SELECT id, code, device, part, checksum FROM journal ORDER BY id"
    ):
        latest[code, device, part] = number
        total, rows = total + int(mark), rows + 1
    pruned = connection.execute("SELECT count(*) FROM journal WHERE kind <> 'unsorted'").fetchone()[0]
    highest = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
    keep_sum(connection, rows if pruned or not highest else highest[0], total)
    connection.execute("DELETE FROM state")
    skipped = 0
    for (code, device, part), newest in latest.items():
        key = (code, device, part)
        found = connection.execute(
            f"SELECT id, checksum, {ROW} FROM journal WHERE code = ? AND device = ? AND part = ? AND id <= ?"  # noqa: S608
            " ORDER BY id DESC",
            (*key, newest),
        )
        for number, mark, *columns in found:
            if checksum(*columns) == mark:
                if columns[7] != "cleared":
                    keep_state(connection, key, columns[8], number)
                break
            skipped += 1
    return skipped


def keep_state(connection: sqlite3.Connection, key: tuple[str, str, str], payload: bytes, number: int) -> None:
    """Write the present *payload* of the episode *key*, whose last row in the journal has the *number*."""
    mark = checksum(*key, payload, number)
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?, ?, ?)", (*key, payload, number, mark))


def keep_sum(connection: sqlite3.Connection, rows: int, total: int) -> None:
    """Write how many *rows* the journal has, and the *total* of their checksums."""
    connection.execute("INSERT OR REPLACE INTO journal_sum VALUES (1, ?, ?, ?)", (rows, total, checksum(rows, total)))


def known_sum(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """Return how many rows the journal should have and the total of their checksums; None where that is damaged."""
    found = connection.execute("SELECT rows, total, checksum FROM journal_sum").fetchone()
    return (found[0], found[1]) if found is not None and checksum(*found[:2]) == found[2] else None


def clear_the_way(path: Path, wall_seconds: float) -> str:
    """Move aside what lies in the place of a file of the database *path* and is none; return what was moved, in words.

    A folder or a link there keeps SQLite from opening it, at every start. Raises StoreError.
    """
    moved = []
    with translated(path):
        for suffix in ("", "-wal", "-shm", "-journal", ".lock", ".new", ".new-wal", ".new-shm", ".new-journal"):
            name = Path(f"{path}{suffix}")
            follow = suffix == ""  # a site may have put the database elsewhere with a link
            if os.path.lexists(name) and not stat.S_ISREG(_mode(name, follow=follow)):
                aside = _free_name(Path(f"{name}.strange-{_stamp(wall_seconds)}"))
                name.rename(aside)
                moved.append(f"{name}: no plain file, moved aside to {aside}")
                _thin_out(name, "strange", aside.name)
    return "; ".join(moved)


def _mode(name: Path, *, follow: bool) -> int:
    try:
        return os.stat(name, follow_symlinks=follow).st_mode  # noqa: PTH116 (follows or not, as asked)
    except FileNotFoundError:
        return 0  # a link that leads nowhere


def _stamp(wall_seconds: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall_seconds))


def _free_name(wanted: Path) -> Path:
    """Return *wanted*, with a number behind it where something of that name, or its log, lies there."""
    name, number = wanted, 1
    while any(os.path.lexists(f"{name}{suffix}") for suffix in ("", "-wal", "-shm")):
        number += 1
        name = wanted.with_name(f"{wanted.name}-{number}")
    return name


def exchange(path: Path, fresh: Path, wall_seconds: float, version: int) -> Path:
    """Put the database *fresh* in the place of *path*, and return the name that *path*, of schema *version*, has then.

    Both are whole without a log. Where a file can have two names, one of them has the name *path* at every moment.
    """
    aside = _free_name(path.with_name(f"{path.name}.schema-{version}-{_stamp(wall_seconds)}"))
    with translated(path):
        for suffix in ("-wal", "-shm"):  # empty ones, of somebody who still reads
            if os.path.lexists(name := Path(f"{path}{suffix}")):
                name.rename(f"{aside}{suffix}")
        try:
            aside.hardlink_to(path)
        except OSError:  # a file system without a second name for a file
            path.rename(aside)
        fresh.rename(path)
        _sync_directory(path.parent)
    _thin_out(path, f"schema-{version}", aside.name)
    return aside


def move_aside(path: Path, wall_seconds: float, why: str = "corrupt") -> Path:
    """Rename *path*, its -wal and its -shm to ``<name>.<why>-<time>...`` and return the new name of the database."""
    aside = _free_name(path.with_name(f"{path.name}.{why}-{_stamp(wall_seconds)}"))
    with translated(path):
        # The log first: a database without its log would be taken for a whole one.
        for suffix in ("-wal", "-shm", ""):
            if os.path.lexists(name := Path(f"{path}{suffix}")):
                name.rename(f"{aside}{suffix}")
        _sync_directory(path.parent)
    _thin_out(path, why, aside.name)
    return aside


def _thin_out(path: Path, why: str, newest: str) -> None:
    """Remove what of *path* was moved aside for the same cause, but for the first, *newest* and those just before it.

    A disk that damages the file again and again would be filled with copies, of which the first has the history.
    What cannot be removed, such as a folder with something in it, costs space, and nothing else.
    """
    shape = re.compile(rf"({re.escape(f'{path.name}.{why}')}-(\d{{8}}T\d{{6}}Z)(?:-(\d+))?)(?:-wal|-shm)?")
    files: list[re.Match[str]] = []
    with suppress(OSError):
        files += [found for entry in path.parent.iterdir() if (found := shape.fullmatch(entry.name))]
    ages = {found[1]: (found[1] == newest, found[2], int(found[3] or 1)) for found in files}
    kept = sorted(ages, key=lambda name: ages[name])
    dropped = set(kept[1 : 1 - KEPT_ASIDE])
    for found in files:
        if found[1] in dropped:
            _remove(path.with_name(found[0]))


def _remove(name: Path) -> None:
    """Remove the file, link, pipe or empty folder *name*, where that can be."""
    with suppress(OSError):
        if name.is_dir() and not name.is_symlink():
            name.rmdir()
        else:
            name.unlink()


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
    except UnicodeDecodeError as error:  # SQLite tells what of a damaged schema it does not understand, byte by byte
        raise DamagedError(f"{path}: damaged ({error.reason})") from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}: check that {path.parent} can be written") from error


def _store_error(path: Path, error: sqlite3.Error) -> StoreError | BusyError:
    # Extended codes carry the primary code in their low byte (https://sqlite.org/rescode.html).
    # Rows that do not add up, and text that is not UTF-8, come without a code.
    unreadable = sqlite3.SQLITE_CORRUPT if type(error) in _UNREADABLE else sqlite3.SQLITE_ERROR
    match getattr(error, "sqlite_errorcode", unreadable) & 0xFF:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return DamagedError(f"{path}: damaged ({error})")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return BusyError(f"{path}: locked by another process: close what has it open")
        case sqlite3.SQLITE_INTERRUPT:
            return InterruptedStatementError(f"{path}: given up for now")
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
