"""The journal does not grow without end, a start reads none of it, and what is lost meanwhile is recreated."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from fakes import schema_one
from fakes.ended import ended
from fakes.episodes import BOOT_ID, episode, moment
from fakes.showing_child import configuration
from fakes.snapshots import gpu_node
from hypothesis import given, settings
from hypothesis import strategies as st

from nodevet.agent.cli import main
from nodevet.agent.daemon.services import Store as StoreService
from nodevet.agent.store.database import MIGRATIONS, SCHEMA_VERSION, RefusedError
from nodevet.agent.store.journal import Journal
from nodevet.agent.store.mirror import Mirror, ends
from nodevet.agent.store.opening import open_store, read_store
from nodevet.agent.store.rows import UnsavedRound, nature_of
from nodevet.agent.store.store import Store
from nodevet.agent.store.tending import Tender
from nodevet.agent.store.writer import Keeping, StoreWriter
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import BusyError
from nodevet.checks.core.model import Action, Episode, EpisodeState, Outcome
from nodevet.checks.engine.engine import Engine

TESTS = Path(__file__).resolve().parent
OPEN, ACKNOWLEDGED, CLEARED = EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED, EpisodeState.CLEARED
DAY_SECONDS = 86400


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database of the test lies."""
    return tmp_path / "state" / "nodevet.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """An open store."""
    opened = open_store(path).store
    yield opened
    opened.close()


def look_through(store: Store) -> list[str]:
    """Look through all of *store*, and return what is told."""
    tender = Tender(store)
    told = []
    while not tender.done:
        told.append(tender.step())
    return [line for line in told if line]


def kinds(path: Path) -> list[str]:
    """Return the kind of each row of the journal."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT kind FROM journal ORDER BY id")]


# Counts.


def test_a_counter_that_grows_each_minute_writes_a_row_an_hour(store: Store) -> None:
    """A day of it is some thirty rows, not 1,439; the present count is there after a kill, and at the end."""
    for hour in range(24):
        minutes = range(60 * hour, 60 * hour + 60)
        seen = [(episode(count=minute + 1, seen=10 + 60.0 * minute), moment(10 + 60.0 * minute)) for minute in minutes]
        store.save_rounds([UnsavedRound((entry,), {}, now) for entry, now in seen])
    assert len(store.history(limit=9999)) <= 36
    assert [entry.count for entry in store.load_episodes()] == [1440]
    end = episode(count=1440, state=CLEARED, seen=DAY_SECONDS)
    store.save_round([end], {}, time=moment(DAY_SECONDS))
    assert store.history(limit=1)[0].episode == end


CHANGED = {
    "state": episode(state=ACKNOWLEDGED),
    "outcome": msgspec.structs.replace(episode(), outcome=Outcome.WARN),
    "note": episode(note="cable"),
    "actor": msgspec.structs.replace(episode(), actor="uid 0"),
    "serial": episode(serial="S1"),
    "pci": msgspec.structs.replace(episode(), pci="0000:1b:00.0"),
    "opened": msgspec.structs.replace(episode(), opened=moment(11)),
    "action": msgspec.structs.replace(
        episode(), finding=msgspec.structs.replace(episode().finding, action=Action.REPLACE)
    ),
    "gates": msgspec.structs.replace(episode(), finding=msgspec.structs.replace(episode().finding, gates=False)),
}


@pytest.mark.parametrize("field", CHANGED)
def test_whatever_changes_beside_a_count_is_a_row_at_once(store: Store, path: Path, field: str) -> None:
    """And stays: only a count may be dropped."""
    store.save_round([episode()], {}, time=moment(10))
    store.save_round([CHANGED[field]], {}, time=moment(11))
    assert kinds(path) == ["change", "change"]


def test_a_count_that_grows_by_itself_is_no_change() -> None:
    """Nor is what its message says of it, or when it was looked at."""
    grown = msgspec.structs.replace(
        episode(count=9, seen=99.0),
        finding=msgspec.structs.replace(episode().finding, message="lost, 9 times", value=9, occurrence="9"),
        recent=(True, False),
        looked=moment(99),
    )
    assert nature_of(grown) == nature_of(episode())
    flaps, goes_on = (msgspec.structs.replace(episode(), flapping=number) for number in (3, 9))
    assert nature_of(flaps) == nature_of(goes_on) != nature_of(episode())


COUNTS = st.lists(st.tuples(st.sampled_from([OPEN, ACKNOWLEDGED, CLEARED]), st.integers(1, 500)), max_size=30)


@settings(max_examples=12, deadline=None)
@given(COUNTS, st.integers(0, 40))
def test_retention_keeps_every_opening_change_and_end(rounds: list[tuple[EpisodeState, int]], later: int) -> None:
    """Whatever is dropped by age and size, these stay, and so does the present state with its count."""
    with open_memory() as store:
        states: list[EpisodeState] = []
        for number, (state, count) in enumerate(rounds):
            store.save_round([episode(state=state, count=count)], {}, time=moment(number * 4000.0))
            if state is not (states[-1] if states else None):
                states.append(state)
        present = store.load_episodes()
        wall = moment(0).wall_seconds + later * 4000.0
        store.prune(wall, rollup_days=0, count_days=0, size_limit_bytes=1)
        kept = [row.episode.state for row in reversed(store.history(limit=9999))]
        assert [state for n, state in enumerate(kept) if n == 0 or kept[n - 1] is not state] == states
        assert store.load_episodes() == present
        assert look_through(store) == []


@contextlib.contextmanager
def open_memory() -> Iterator[Store]:
    """Open a store in a folder of its own."""
    folder = Path(os.environ.get("PYTEST_TMP", "/tmp")) / f"nodevet-store-{os.getpid()}"  # noqa: S108
    shutil.rmtree(folder, ignore_errors=True)
    store = open_store(folder / "nodevet.db").store
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_old_counts_go_and_their_absence_is_no_damage(store: Store, path: Path) -> None:
    """By age first, and where the database is too large the oldest of them."""
    for hour in range(100):
        store.save_round([episode(count=hour + 1)], {}, time=moment(hour * 3600.0))
    assert kinds(path) == ["change", *["count"] * 99]
    wall = moment(100 * 3600.0).wall_seconds
    for _ in range(60):  # the writer asks each minute, and each time an hour of them goes
        assert store.prune(wall, rollup_days=14, count_days=2, size_limit_bytes=1 << 30)
    assert 45 <= len(kinds(path)) <= 50
    assert not store.prune(wall, rollup_days=14, count_days=2, size_limit_bytes=1)
    assert kinds(path) == ["change"]
    assert look_through(store) == []


# A start.


def test_a_start_reads_no_journal(path: Path) -> None:
    """Its rows may be as many, and as damaged, as they like: the open episodes are there."""
    store = open_store(path).store
    for number in range(50):
        state = ACKNOWLEDGED if number % 2 else OPEN
        store.save_round([episode(state=state, note=str(number))], {"round": b"1"}, time=moment(number))
    present = store.load_episodes()
    store.close()
    statements: list[str] = []
    reader = read_store(path)
    reader._connection.set_trace_callback(statements.append)
    reader.load()
    reader.close()
    assert [line for line in statements if "journal" in line and "WHERE id = " not in line] == []
    again = open_store(path).store
    assert again.load_episodes() == present
    again.close()


STATE = "SELECT code, device, part, payload, number, checksum FROM state"


def test_a_start_that_may_only_read_decodes_no_journal_either(path: Path) -> None:
    """A disk that is read-only or full at the start: 200,000 rows took 12 s and 886 MB."""
    store = open_store(path).store
    for number in range(50):
        store.save_round([episode(note=str(number)), episode("a.b", state=CLEARED)], {}, time=moment(number))
    present = store.load_episodes()
    store.close()
    statements: list[str] = []
    reader = read_store(path)
    reader._connection.set_trace_callback(statements.append)
    assert reader.episodes_at_rest() == present
    reader.close()
    assert statements == [STATE]


def damage_the_state(connection: sqlite3.Connection) -> None:
    """Change a row behind its checksum."""
    connection.execute("UPDATE state SET payload = 'x' WHERE code = 'a.b'")


def damage_the_last_row_too(connection: sqlite3.Connection) -> None:
    """And the last row of an episode in the journal."""
    damage_the_state(connection)
    connection.execute("DROP TRIGGER journal_keeps_rows")
    connection.execute("UPDATE journal SET serial = 'S9' WHERE id = (SELECT max(id) FROM journal WHERE code = 'a.b')")


def take_the_state_away(connection: sqlite3.Connection) -> None:
    """As another version may have it."""
    connection.execute("DROP TABLE state")


@pytest.mark.parametrize(
    ("damage", "note"), [(damage_the_state, "2"), (damage_the_last_row_too, "1"), (take_the_state_away, "2")]
)
def test_where_the_state_cannot_be_read_the_journal_tells_what_is_open(
    path: Path, damage: Callable[[sqlite3.Connection], None], note: str
) -> None:
    """Of each episode its newest row that is whole; what has ended is over."""
    store = open_store(path).store
    for number in range(3):
        ended = episode("c.d", state=OPEN if number < 2 else CLEARED)
        store.save_round([episode("a.b", note=str(number)), ended], {}, time=moment(number))
    store.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        damage(connection)
    reader = read_store(path)
    assert reader.episodes_at_rest() == (episode("a.b", note=note),)
    reader.close()


def test_a_start_looks_no_further_back_for_ends_than_the_mirror_needs(path: Path) -> None:
    """What only the mirror has, as after a full disk, is in no row: to look through all of them for each took 7 s."""
    store = open_store(path).store
    before = [UnsavedRound((episode("a.b", note=str(number)),), {}, moment(number)) for number in range(2000)]
    store.save_rounds([*before, UnsavedRound((episode("c.d", state=CLEARED, seen=2500),), {}, moment(2500))])
    steps: list[None] = []
    store._connection.set_progress_handler(lambda: steps.append(None), 100)
    told = tuple(episode(f"e.f{number}", seen=2400) for number in range(20))
    found = ends(store, Mirror(BOOT_ID, (*told, episode("c.d", seen=2400))))
    store._connection.set_progress_handler(None, 0)
    assert [entry.key.code for entry in found] == ["c.d"]
    assert len(steps) < 20
    store.close()


# Databases of the first schema.


def history_of_version_one() -> list[tuple[Episode, float]]:
    """Return what happened in an old database: counts that grew each minute, and what else there is."""
    grown = [(episode(count=number), 60.0 * number) for number in range(1, 40)]
    return [
        *grown,
        (episode(state=ACKNOWLEDGED, count=39, note="known"), 2400.0),
        (episode("thermal.hot", "GPU-1"), 2500.0),
        (episode("thermal.hot", "GPU-1", state=CLEARED), 2600.0),
        (episode("memory.uncorrected", "GPU-2", count=3), 2700.0),
    ]


def write_version_one(path: Path) -> None:
    """Write that database."""
    rows = ((entry, moment(seconds)) for entry, seconds in history_of_version_one())
    schema_one.write(path, rows, {"round": b"41"})


def test_a_database_of_the_first_schema_is_taken_over_whole(path: Path) -> None:
    """Its open episodes, memory and every row; its counts are told apart afterwards and dropped in time."""
    write_version_one(path)
    opened = open_store(path)
    store = opened.store
    assert opened.notice == ""
    assert [(entry.key.code, entry.state, entry.count) for entry in store.load_episodes()] == [
        ("memory.uncorrected", OPEN, 3),
        ("nvidia.xid.79", ACKNOWLEDGED, 39),
    ]
    assert store.load_memory() == {"round": b"41"}
    assert [row.episode for row in reversed(store.history(limit=99))] == [row[0] for row in history_of_version_one()]
    assert set(kinds(path)) == {"unsorted"}
    assert look_through(store) == []
    assert kinds(path) == ["change", *["count"] * 38, *["change"] * 4]
    store.save_round([episode("memory.uncorrected", "GPU-2", count=4)], {}, time=moment(2701.0))
    assert len(kinds(path)) == 43, "its last row is minutes old"
    store.prune(moment(0).wall_seconds + 1e9, rollup_days=14, count_days=1, size_limit_bytes=1 << 30)
    assert len(kinds(path)) == 5
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_history_reads_a_database_of_the_first_schema(path: Path) -> None:
    """Beside an agent of then."""
    write_version_one(path)
    reader = read_store(path)
    assert len(reader.history()) == 43
    assert reader.load_memory() == {"round": b"41"}
    reader.close()


def test_a_row_that_is_missing_or_damaged_in_an_old_database_is_told(path: Path) -> None:
    """The episode goes on from the row before."""
    write_version_one(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER journal_loses_nothing")
        connection.execute("DROP TRIGGER journal_keeps_rows")
        connection.execute("DELETE FROM journal WHERE id = 5")
        connection.execute("UPDATE journal SET serial = 'S9' WHERE id = 40")
        for trigger in MIGRATIONS[0]:
            if trigger.startswith("CREATE TRIGGER"):
                connection.execute(trigger)
    store = open_store(path).store
    assert {entry.key.code: entry.state for entry in store.load_episodes()}["nvidia.xid.79"] is OPEN
    told = "; ".join(look_through(store))
    assert "1 damaged row of the journal" in told and "1 row of the journal missing or changed" in told
    assert look_through(store) == []
    store.close()


def test_history_says_how_many_rows_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged one costs itself."""
    write_version_one(tmp_path / "nodevet.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "nodevet.db", isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER journal_keeps_rows")
        connection.execute("UPDATE journal SET serial = 'S9' WHERE id = 40")
    places = ("--state-dir", str(tmp_path))
    assert main(["history", *places]) == 0
    said = capsys.readouterr().out
    assert said.endswith(f"\n1 damaged row left out: check the disk of {tmp_path}\n")
    assert main(["history", "--json", *places]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["damaged_rows"], len(document["changes"])) == (1, 42)


# kill -9 while it is taken over and while it is pruned.


def killed(words: tuple[str, ...], path: Path, limits: range) -> Iterator[Path]:
    """Let a child that does *words* die at its first write beyond each of *limits* bytes; yield its databases."""
    command = [sys.executable, "-m", "fakes.store_child", *words, str(path), "1", *map(str, limits)]
    subprocess.run(command, cwd=TESTS, check=True, timeout=120)
    for limit in limits:
        yield path.with_name(f"{path.name}.{limit}")


def test_death_at_any_write_of_the_step_from_the_first_schema_loses_nothing(path: Path) -> None:
    """Nor while its rows are sorted and its counts dropped: what opened, changed and ended is there."""
    write_version_one(path)
    expected = [row[0] for row in history_of_version_one()]
    lasting = [expected[0], *expected[39:]]
    sizes = set()
    for place in killed(("--tend",), path, range(0, 320 * 1024, 4 * 4096 + 777)):
        store = open_store(place).store
        found = [row.episode for row in reversed(store.history(limit=999))]
        sizes.add(len(found))
        assert [entry for entry in found if entry in lasting] == lasting, place
        assert {entry.key.code for entry in store.load_episodes()} == {"memory.uncorrected", "nvidia.xid.79"}
        assert store.load_memory() == {"round": b"41"}
        assert look_through(store) == [], place
        store.close()
    assert {43, 5} <= sizes, "some must die before it is pruned and some live, or nothing was tested"


@pytest.mark.parametrize("lines", [0, 3, 40, 200])
def test_kill_9_while_it_is_written_and_pruned_leaves_whole_rounds(path: Path, lines: int) -> None:
    """At any moment: the counts of the last round that was told are there, and every change."""
    command = [sys.executable, "-m", "fakes.store_child", "--prune", str(path), "100000"]
    with ended(subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE)) as process:
        assert process.stdout is not None
        for _ in range(lines + 1):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait(10)
    told = int(rest[-1]) if rest else lines
    store = open_store(path).store
    number = int(store.load_memory().get("round", b"0"))
    notes = {int(row.episode.note) for row in store.history(devices=("GPU-9",), limit=99999) if row.episode.note}
    assert number >= told
    assert notes == set(range(1, number + 1))
    assert {entry.count for entry in store.load_episodes()} == ({number} if number else set())
    assert look_through(store) == []
    store.close()


# Lost while the agent runs.


def delete_all(path: Path) -> None:
    """Remove the database with all that belongs to it, as `rm nodevet.db*` does."""
    for name in path.parent.glob("nodevet.db*"):
        name.unlink()


def delete_folder(path: Path) -> None:
    """Remove the whole directory."""
    shutil.rmtree(path.parent)


def delete_log(path: Path) -> None:
    """Remove the write-ahead log alone: what is written from then on would go nowhere."""
    Path(f"{path}-wal").unlink()


def delete_file(path: Path) -> None:
    """Remove the database and leave its log."""
    path.unlink()


def replace_file(path: Path) -> None:
    """Put another database of ours in its place."""
    other = path.with_name("other.db")
    foreign = open_store(other).store
    foreign.save_round([episode(device="GPU-99")], {}, time=moment(1))
    foreign.close()
    other.replace(path)


def replace_with_garbage(path: Path) -> None:
    """Put something else in its place."""
    other = path.with_name("other")
    other.write_text("not a database")
    other.replace(path)


def copy_a_backup_over_it(path: Path) -> None:
    """Restore an older state with `cp`: database and log keep their places, and not what is in them."""
    other = path.with_name("other.db")
    foreign = open_store(other).store
    foreign.save_round([episode(device="GPU-99")], {}, time=moment(1))
    foreign.close()
    shutil.copyfile(other, path)
    Path(f"{path}-wal").write_bytes(b"")
    other.unlink()


def cut(path: Path) -> None:
    """Cut both files to nothing, as `: > nodevet.db` does."""
    path.write_bytes(b"")
    Path(f"{path}-wal").write_bytes(b"")


def delete_rows(path: Path) -> None:
    """Delete what is open with `sqlite3`."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM state")


def drop_a_table(path: Path) -> None:
    """Drop a table with `sqlite3`."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE memory")


def cut_the_index(path: Path) -> None:
    """Cut the index of the log alone."""
    path.with_name(f"{path.name}-shm").write_bytes(b"")


def cut_all(path: Path) -> None:
    """`: >` of each file of the database."""
    for name in path.parent.glob(f"{path.name}*"):
        name.write_bytes(b"")


LOSSES = (
    cut_the_index,
    cut_all,
    delete_all,
    delete_folder,
    delete_log,
    delete_file,
    replace_file,
    replace_with_garbage,
    copy_a_backup_over_it,
    cut,
    delete_rows,
    drop_a_table,
)


@pytest.mark.parametrize("lose", LOSSES)
def test_a_database_that_is_lost_while_the_agent_runs_is_told_and_made_anew(
    path: Path, lose: Callable[[Path], None]
) -> None:
    """From memory: open episodes and all that a restart needs, also of the round that met it."""
    opened = open_store(path).store
    known = UnsavedRound((episode(device="GPU-1", count=4),), {"kept": b"from before"}, moment(1))
    opened.save_rounds((known,))
    writer = StoreWriter(opened, known=known)
    writer.submit_round([episode()], {"round": b"1"}, time=moment(2))
    assert writer.flush(5.0) and writer.wait_until_tended(5.0)
    lose(path)
    ticket = writer.submit_round([episode(count=2)], {"round": b"2"}, time=moment(3))
    assert writer.flush(5.0)
    assert writer.keeping(ticket) is Keeping.KEPT
    status = writer.status
    assert "while the agent runs: recreated from memory" in status
    writer.shown("something else")
    assert writer.status == status, "not told yet"
    writer.shown(status)
    assert (writer.status, writer.learned) == ("", (status,))
    with pytest.raises(BusyError):
        open_store(path)
    assert writer.close(5.0)
    after = open_store(path)
    assert after.notice == ""
    assert {entry.key.device: entry.count for entry in after.store.load_episodes()} == {"GPU-0": 2, "GPU-1": 4}
    assert after.store.load_memory() == {"kept": b"from before", "round": b"2"}
    assert look_through(after.store) == []
    after.store.close()
    aside = [name.read_bytes() for name in path.parent.glob("*.corrupt-*")]
    if lose in (replace_file, replace_with_garbage):
        assert any(b"GPU-99" in data or data == b"not a database" for data in aside), "what lay there is kept"


def test_of_databases_that_were_moved_aside_the_first_and_the_last_ones_stay(path: Path) -> None:
    """A disk that damages the file again and again is not filled with it; the first has the history of years."""
    path.parent.mkdir()
    others = {
        "corrupt-by-hand",
        "strange-19700101T000000Z",
        "other-machine-19700101T000000Z",
        "schema-3-19700101T000000Z",
    }
    for name in others:
        path.with_name(f"{path.name}.{name}").touch()
    for day in (*range(2, 10), 9, 9, 1):  # at last the clock goes back
        path.write_bytes(b"damaged" * 99)
        path.with_name(f"{path.name}-wal").touch()
        open_store(path, wall_seconds=(day - 1) * 86400.0).store.close()
    found = {entry.name.removeprefix(f"{path.name}.") for entry in path.parent.glob(f"{path.name}.*-*")}
    first, *last = (f"corrupt-197001{day}T000000Z" for day in ("02", "09", "01"))
    aside = (first, *last, f"{last[0]}-2", f"{last[0]}-3")
    assert found == others | {f"{name}{suffix}" for name in aside for suffix in ("", "-wal")}


@pytest.mark.parametrize("suffix", ["", "-wal", ".lock"])
def test_of_what_lay_in_the_place_of_a_file_the_first_and_the_last_ones_stay(path: Path, suffix: str) -> None:
    """A link, a folder or a pipe that something makes anew before each start; what is in a folder is not ours."""
    path.parent.mkdir()
    name = path.with_name(f"{path.name}{suffix}")
    make: tuple[Callable[[], object], ...] = (name.mkdir, lambda: name.symlink_to("nowhere"), lambda: os.mkfifo(name))
    for day in range(1, 10):
        name.unlink(missing_ok=True)
        make[day % 3]()
        if day == 3:
            (name / "of-a-site").touch()
        open_store(path, wall_seconds=(day - 1) * 86400.0).store.close()
    found = {entry.name.removeprefix(f"{name.name}.strange-1970010") for entry in path.parent.glob("*.strange-*")}
    assert found == {f"{day}T000000Z" for day in (1, 3, 6, 7, 8, 9)}


def test_an_index_of_the_log_that_is_cut_gets_its_length_back(path: Path) -> None:
    """SQLite maps it: before, the kernel killed the agent at its next write."""
    opened = open_store(path).store
    opened.save_rounds((UnsavedRound((episode(),), {}, moment(1)),))
    index = path.with_name(f"{path.name}-shm")
    assert (opened.displaced(), opened.displaced(), index.stat().st_size) == ("", "", 32768)
    os.truncate(index, 0)
    assert opened.displaced() == f"{index}: cut while the agent runs"
    assert index.stat().st_size == 32768
    opened.close()


@pytest.mark.parametrize("lose", [delete_all, delete_log, replace_file])
def test_what_is_written_while_the_database_is_lost_is_not_kept_before_it_is_made_anew(
    path: Path, lose: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write itself succeeds, into a file that has no name any more."""
    opened = open_store(path).store
    writer = StoreWriter(opened)
    writer.submit_round([episode()], {}, time=moment(1))
    assert writer.flush(5.0) and writer.wait_until_tended(5.0)
    save, seen = opened.save_rounds, []

    def save_and_lose(rounds: Sequence[UnsavedRound]) -> None:
        save(rounds)
        seen.append(len(rounds))
        lose(path)

    monkeypatch.setattr(opened, "save_rounds", save_and_lose)
    ticket = writer.submit_round([episode(count=2)], {}, time=moment(2))
    writer.flush(1.0)
    assert seen
    assert writer.keeping(ticket) is not Keeping.KEPT or "recreated" in writer.status
    writer.submit_round([episode(count=3)], {}, time=moment(3))
    assert writer.flush(5.0)
    assert writer.close(5.0)
    after = open_store(path)
    assert [entry.count for entry in after.store.load_episodes()] == [3]
    after.store.close()


@pytest.mark.parametrize("statement", ["VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)", "ANALYZE"])
def test_a_database_that_somebody_tidies_up_is_kept(path: Path, statement: str) -> None:
    """All that was kept is still in it: nothing is told, and its history stays."""
    known = UnsavedRound((episode(device="GPU-1", count=4),), {"kept": b"from before"}, moment(1))
    opened = open_store(path).store
    opened.save_rounds((known,))
    writer = StoreWriter(opened, known=known)
    assert writer.flush(5.0) and writer.wait_until_tended(5.0)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement).fetchall()
    writer.submit_round([episode()], {"round": b"2"}, time=moment(3))
    assert writer.flush(5.0)
    assert (writer.status, writer.learned) == ("", ())
    assert writer.close(5.0)
    assert not list(path.parent.glob("*.corrupt-*"))


def test_a_folder_that_the_service_may_not_make_anew_is_told_with_a_restart(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rm -rf` of state_dir from outside ends its mount, and ProtectSystem=strict leaves all else read-only."""
    writer = StoreWriter(open_store(path).store)
    writer.submit_round([episode()], {}, time=moment(1))
    assert writer.flush(5.0) and writer.wait_until_tended(5.0)
    delete_folder(path)

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(os, "mkdir", refuse)
        for number in range(2):  # as it is met, and each time after
            ticket = writer.submit_round([episode(count=2 + number)], {}, time=moment(2))
            assert not writer.flush(5.0)
            assert writer.keeping(ticket) is Keeping.FAILED
            assert writer.status == (
                f"{path}: deleted while the agent runs, and cannot be recreated from within (Read-only file system): "
                "restart the agent"
            )
    writer.submit_round([episode(count=4)], {}, time=moment(3))
    assert writer.flush(5.0)
    assert f"{path}: deleted while the agent runs: recreated from memory" in writer.status
    assert writer.close(5.0)


def test_a_lost_database_that_cannot_be_made_at_once_is_made_later(path: Path) -> None:
    """Each round says why not; when it can be, everything is written, told once, and nothing is moved aside again."""
    known = UnsavedRound((episode(device="GPU-1", count=4),), {"kept": b"from before"}, moment(1))
    opened = open_store(path).store
    opened.save_rounds((known,))
    writer = StoreWriter(opened, known=known)
    delete_folder(path)
    path.parent.write_text("in the way")
    for number in range(3):
        ticket = writer.submit_round([episode(count=2**number)], {}, time=moment(2 + number))
        assert not writer.flush(5.0)
        assert writer.keeping(ticket) is Keeping.FAILED and "cannot be made" in writer.status
    path.parent.unlink()
    assert writer.flush(5.0)
    assert "deleted while the agent runs: recreated from memory" in writer.status
    assert len(writer.learned) == 1
    assert writer.close(5.0)
    assert {name.name for name in path.parent.iterdir()} == {"nodevet.db", "nodevet.db.lock"}
    after = open_store(path).store
    assert {entry.key.device: entry.count for entry in after.load_episodes()} == {"GPU-0": 4, "GPU-1": 4}
    after.close()


def test_nothing_is_made_anew_while_nothing_is_lost(path: Path) -> None:
    """Checkpoints, pruning and a reader beside it move no file."""
    writer = StoreWriter(open_store(path).store)
    for number in range(200):
        writer.submit_round([episode(count=2**number)], {"round": b"x" * 50_000}, time=moment(number))
        if number == 100:
            reader = read_store(path)
            reader.history()
            reader.close()
    assert writer.flush(10.0)
    assert (writer.status, writer.learned) == ("", ())
    assert writer.close(5.0)


# What is no file.


def a_folder(name: Path) -> None:
    """Make a folder with something in it."""
    name.mkdir()
    (name / "precious").write_text("keep")


def a_link(name: Path) -> None:
    """Make a link to something precious."""
    precious = name.with_name("precious")
    precious.write_text("keep")
    name.symlink_to(precious)


def a_link_to_nowhere(name: Path) -> None:
    """Make a link that leads nowhere."""
    name.symlink_to("/nonexistent/nodevet")


def a_pipe(name: Path) -> None:
    """Make a pipe, at which an open would hang."""
    os.mkfifo(name)


NO_FILES = (a_folder, a_link, a_link_to_nowhere, a_pipe)
SUFFIXES = ("-wal", "-shm", "-journal", ".lock", ".new")


@pytest.mark.parametrize(
    ("suffix", "make"),
    # A link to a file in the place of the database itself is followed: a site may have put it elsewhere.
    [("", make) for make in NO_FILES if make is not a_link] + [(name, make) for name in SUFFIXES for make in NO_FILES],
)
def test_what_is_no_file_in_the_place_of_one_is_moved_aside(
    path: Path, suffix: str, make: Callable[[Path], None]
) -> None:
    """It is told, nothing in it is touched, and the history that is there stays."""
    store = open_store(path).store
    store.save_round([episode()], {}, time=moment(1))
    store.close()
    name = Path(f"{path}{suffix}")
    name.unlink(missing_ok=True)
    make(name)
    opened = open_store(path, wall_seconds=0)
    assert f"{name}: no plain file, moved aside to {name}.strange-19700101T000000Z" in opened.notice
    assert len(opened.store.load_episodes()) == (0 if suffix == "" else 1)
    opened.store.save_round([episode(count=2)], {}, time=moment(2))
    opened.store.close()
    precious = [entry.read_text() for entry in path.parent.rglob("precious")]
    assert precious == (["keep"] if make in (a_folder, a_link) else [])


def test_an_agent_goes_on_without_a_store_until_there_is_one(tmp_path: Path) -> None:
    """A database that cannot be written at the start is told, and read; what was judged meanwhile is written later."""
    path = tmp_path / "state" / "nodevet.db"
    write_version_one(path)
    shell = sqlite3.connect(path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with Journal(configuration(tmp_path), SystemClock()) as journal:
        engine = plain_engine()
        assert journal.restore(engine) == {"round": b"41"}
        assert {entry.key.code for entry in engine.episodes} == {"nvidia.xid.79", "memory.uncorrected"}
        began_with = journal.trouble
        assert "locked by another process" in began_with
        ticket = journal.keep_round((episode("thermal.hot"),), {"round": b"42"})
        assert ticket is not None and wait_for(lambda: journal.keeping(ticket) is Keeping.FAILED)
        assert journal.trouble == began_with, "what goes on is told once, not as over and as new"
        shell.close()
        later = journal.keep_round((), {"release": b"1"})
        assert later is not None and wait_for(lambda: journal.keeping(later) is Keeping.KEPT)
        assert journal.trouble == ""
    after = open_store(path).store
    assert {entry.key.code for entry in after.load_episodes()} == {"nvidia.xid.79", "memory.uncorrected", "thermal.hot"}
    assert after.load_memory() == {"round": b"42", "release": b"1"}
    after.close()


def test_the_bell_rings_only_for_a_round_that_is_awaited(tmp_path: Path) -> None:
    """Each ring is a turn of the main loop, with cold caches; readings alone change the store in every round."""
    with Journal(configuration(tmp_path), SystemClock()) as journal:
        journal.restore(plain_engine())
        for number, changed, rings in ((1, (), False), (2, (episode(),), True), (3, (), False), (4, (), False)):
            journal.keep_round(changed, {"times": b"%d" % number})
            assert journal._writer.flush(5)
            assert wait_for(lambda: is_rung(journal)) if rings else not is_rung(journal)
            journal.answer()
        assert not is_rung(journal)


def is_rung(journal: Journal) -> bool:
    """Return whether the main loop would wake for *journal*."""
    return bool(select.select([journal.bell], [], [], 0)[0])


def test_a_lost_database_fails_the_store_for_one_round_on_every_surface(tmp_path: Path) -> None:
    """And stays among the notices, for whoever looks later."""
    with Journal(configuration(tmp_path), SystemClock()) as journal:
        journal.restore(plain_engine())
        service, info = StoreService(journal), gpu_node().agent
        keep(journal, 1)
        assert (service.describe(info).store, service.trouble) == ("", "")
        delete_all(tmp_path / "state" / "nodevet.db")
        keep(journal, 2)
        told = service.describe(info).store
        assert "deleted while the agent runs" in told and service.trouble == told
        keep(journal, 3)
        assert (service.describe(info).store, service.trouble) == ("", told)


def keep(journal: Journal, number: int) -> None:
    """Keep a round of *number*, and wait until it is on the disk."""
    ticket = journal.keep_round((episode(count=number),), {"round": str(number).encode()})
    assert ticket is not None and wait_for(lambda: journal.keeping(ticket) is Keeping.KEPT)


def plain_engine() -> Engine:
    """Return an engine that judges nothing."""
    return Engine((), node="node", clock=SystemClock().instant)


def wait_for(happens: Callable[[], bool]) -> bool:
    """Wait until *happens*, for seconds at most, and return whether it did."""
    end = time.monotonic() + 10.0
    while not happens() and time.monotonic() < end:
        time.sleep(0.005)
    return happens()


def test_a_place_that_a_person_must_change_is_still_refused(path: Path) -> None:
    """Another application's database, a newer one, a network file system, a directory without permission."""
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as foreign:
        foreign.execute("CREATE TABLE theirs (x)")
    with pytest.raises(RefusedError, match="another application"):
        open_store(path)
