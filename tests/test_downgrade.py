"""A database of a newer nodevet, as after a rollback: the agent of this version goes on with what it understands."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.episodes import episode, moment

from nodevet.agent.store.database import SCHEMA_VERSION, RefusedError
from nodevet.agent.store.downgrade import open_of_any_version
from nodevet.agent.store.opening import open_store

MEMORY = {"round": b"1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a newer nodevet has left a database with one open finding."""
    path = tmp_path / "state" / "nodevet.db"
    store = open_store(path).store
    store.save_round([episode()], MEMORY, time=moment(1))
    store.close()
    change(path, "PRAGMA user_version = 99", "CREATE TABLE incidents (x)")
    return path


def change(path: Path, *statements: str) -> None:
    """Run *statements* on the database at *path*, as a newer version might have."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def aside(path: Path) -> list[Path]:
    """Return the databases that were set aside."""
    return sorted(path.parent.glob(f"{path.name}.schema-99-*"))


def test_an_older_agent_goes_on_with_what_a_newer_one_left(path: Path) -> None:
    """Before, each agent of a fleet that was rolled back refused to start. Nothing of the newer file is changed."""
    before = path.read_bytes()
    opened = open_of_any_version(path)
    with closing(opened.store):
        assert opened.store.load_episodes() == (episode(),)
        assert opened.store.load_memory() == MEMORY
        assert [row.episode for row in opened.store.history()] == [episode()]
    (kept,) = aside(path)
    assert kept.read_bytes() == before
    assert f"schema version 99), kept as {kept}: 1 open finding copied" in opened.notice
    with closing(open_of_any_version(path).store) as again:
        assert again.load_episodes() == (episode(),)
    assert aside(path) == [kept]


def test_what_is_in_the_log_of_the_newer_database_goes_on_too(path: Path) -> None:
    """The newer agent was killed: its last rounds are in the log alone."""
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("CREATE TABLE only_in_the_log (x)")
    opened = open_of_any_version(path)
    opened.store.close()
    writer.close()
    with closing(sqlite3.connect(aside(path)[0])) as kept:
        assert kept.execute("SELECT * FROM only_in_the_log").fetchall() == []


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DROP TABLE state", "0 open findings copied to a new database, those of the newer version cannot be read"),
        ("UPDATE state SET payload = x'7b7d'", "0 open findings copied to a new database, 1 of the newer version"),
        ("DROP TABLE memory", "1 open finding copied to a new database; read"),
    ],
)
def test_what_only_the_newer_version_understands_is_told(path: Path, statement: str, told: str) -> None:
    """The rest goes on."""
    change(path, statement)
    opened = open_of_any_version(path)
    opened.store.close()
    assert told in opened.notice


def test_of_newer_databases_that_were_set_aside_the_first_and_the_last_ones_stay(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout that goes back and forth: before, each turn left a database, until the disk was full."""
    found: list[Path] = []
    for day in range(1, 9):
        clock = SimpleNamespace(instant=partial(moment, day * 86400))
        monkeypatch.setattr("nodevet.agent.store.downgrade.SystemClock", lambda clock=clock: clock)
        open_of_any_version(path).store.close()
        found += [name for name in aside(path) if name not in found]
        change(path, "PRAGMA user_version = 99")
    assert len(found) == 8
    assert set(aside(path)) == {found[0], *found[-4:]}


def test_a_transaction_that_is_open_in_the_newer_database_leaves_it_where_it_is(path: Path) -> None:
    """It may hold what is in no file yet: the agent goes on without a store, and tries again."""
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Exception, match="locked by another process"):
            open_of_any_version(path)
    assert not aside(path)
    open_of_any_version(path).store.close()


def test_a_newer_database_that_is_damaged_is_moved_aside(path: Path) -> None:
    """As one of this version is: before, the agent would have had no store as long as the file lay there."""
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    opened = open_of_any_version(path)
    opened.store.close()
    assert "damaged" in opened.notice
    assert list(path.parent.glob("*.corrupt-*"))


def test_who_is_no_agent_leaves_a_newer_database_alone(path: Path) -> None:
    """An older `nodevet burn-in` typed beside it: only an agent was rolled back for good."""
    with pytest.raises(RefusedError, match=rf"version 99.*up to {SCHEMA_VERSION}.*newer nodevet"):
        open_store(path)
    assert not aside(path)
