"""The store: what survives death, damage and a full disk, and what is refused."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.episodes import episode, moment
from fakes.small_disk import NO_SMALL_DISK

from nodevet.agent.store.database import SCHEMA_VERSION, DamagedError, file_system_of
from nodevet.agent.store.opening import open_store, read_store
from nodevet.agent.store.rows import Rollup, UnsavedRound
from nodevet.agent.store.store import Store
from nodevet.agent.store.tending import Tender
from nodevet.agent.store.writer import Keeping, Retention, StoreWriter, merged
from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.core.model import Device, DeviceKind, Episode, EpisodeState, Instant, Metric, Result, ResultState

TESTS = Path(__file__).resolve().parent
PAGE = 4096


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


Found = tuple[dict[str, int], dict[str, bytes], str]


def reopened(path: Path) -> Found:
    """Open *path*, look through it all, and return the count of each device's episode, the memory and what is told."""
    opened = open_store(path, wall_seconds=0)
    try:
        counts = {entry.key.device: entry.count for entry in opened.store.load_episodes()}
        return (
            counts,
            opened.store.load_memory(),
            "; ".join(filter(None, (opened.notice, looked_through(opened.store)))),
        )
    finally:
        opened.store.close()


def looked_through(store: Store) -> str:
    """Return what is found in *store* after its start."""
    tender, told = Tender(store), []
    try:
        while not tender.done:
            told.append(tender.step())
    except DamagedError as error:
        told.append(str(error))
    return "; ".join(filter(None, told))


def tended(path: Path) -> Found:
    """Let the writer look through all of *path*, and return what ``reopened`` returns after that."""
    opened = open_store(path, wall_seconds=0)
    known = UnsavedRound(opened.store.load_episodes(), opened.store.load_memory(), moment(99))
    writer = StoreWriter(opened.store, known=known)
    assert writer.wait_until_tended(10.0)
    learned = writer.learned
    assert writer.close(5.0)
    counts, memory, later = reopened(path)
    assert later == "", "told once"
    return counts, memory, "; ".join(filter(None, (opened.notice, *learned)))


def saved(path: Path, rounds: int = 1) -> None:
    """Make a database that holds *rounds* rounds, all of it in the file itself."""
    store = open_store(path).store
    for number in range(1, rounds + 1):
        store.save_round([episode(count=number)], {"round": str(number).encode()}, time=moment(number))
    store.close()


def gemm(workload: str = "gemm", value: float = 1.0, **changes: object) -> Result:
    """Return a finished result."""
    return Result(
        workload=workload,
        devices=("cpu-0",),
        state=ResultState.FINISHED,
        started=moment(1),
        ended=moment(2),
        metrics=(Metric("tflops", value, "TFLOPS"),),
        conditions=dict(changes),
    )


def beyond_sqlite() -> Instant:
    """Return a time that SQLite cannot store, as no decoder makes it."""
    time = Instant("b", 1, 1.0)
    msgspec.structs.force_setattr(time, "boottime_ns", 2**70)
    return time


def a_minute(minute: int, device: str = "GPU-0") -> Rollup:
    """Return one minute of a temperature."""
    return Rollup(minute, device, "temperature_celsius", "sensor core", 40.0, 41.0, 42.0, 6)


# Restart.


def test_restart_returns_what_the_last_round_saved(store: Store, path: Path) -> None:
    """Episodes and memory come back equal to what went in, field by field."""
    episodes = (episode(count=7, note="cable", serial="S1"), episode("thermal.hot", state=EpisodeState.ACKNOWLEDGED))
    store.save_round(episodes, {"ledger": b"\x00\xff", "cursor": b"12"}, time=moment(20))
    store.close()
    opened = open_store(path)

    assert (opened.store.load_episodes(), opened.store.load_memory(), opened.notice) == (
        episodes,
        {"ledger": b"\x00\xff", "cursor": b"12"},
        "",
    )
    opened.store.close()


def test_folding_keeps_the_latest_state_and_drops_the_cleared(store: Store) -> None:
    """An episode that was cleared is history only; one that opened again counts again."""
    for state in (EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED, EpisodeState.CLEARED):
        store.save_round([episode(state=state)], {}, time=moment(20))
    assert store.load_episodes() == ()
    again = episode(count=2, seen=30)
    store.save_round([again], {}, time=moment(30))

    assert store.load_episodes() == (again,)
    assert [row.episode.state for row in store.history()] == ["open", "cleared", "acknowledged", "open"]


def test_what_a_round_does_not_name_stays(store: Store) -> None:
    """Neither an episode nor a blob of memory is forgotten because a later round says nothing of it."""
    store.save_round([episode()], {"a": b"1"}, time=moment(10))
    store.save_round([episode(device="GPU-1")], {"b": b"2"}, time=moment(20))

    assert [entry.key.device for entry in store.load_episodes()] == ["GPU-0", "GPU-1"]
    assert store.load_memory() == {"a": b"1", "b": b"2"}


def test_pending_and_unchanged_episodes_add_no_row(store: Store, path: Path) -> None:
    """Only a change is a row, also across a restart, and what was never confirmed is no fact."""
    store.save_round([episode(), episode("thermal.hot", state=EpisodeState.PENDING)], {}, time=moment(10))
    store.save_round([episode()], {}, time=moment(20))
    store.close()
    after = open_store(path).store
    after.save_round([episode()], {}, time=moment(30))

    assert [row.episode.key.code for row in after.history()] == ["nvidia.xid.79"]
    after.close()


def test_history_is_filtered_by_device_serial_and_limit(store: Store) -> None:
    """A serial's past follows it to another slot; rows come newest first."""
    store.save_round([episode(device="GPU-0", serial="S1")], {}, time=moment(10))
    store.save_round([episode(device="GPU-1", serial="S2")], {}, time=moment(20))
    store.save_round([episode(device="GPU-1", serial="S1", count=2)], {}, time=moment(30))

    def numbers(**filters: object) -> list[int]:
        return [row.number for row in store.history(**filters)]  # type: ignore[arg-type]

    assert numbers() == [3, 2, 1]
    assert numbers(devices=["GPU-1"]) == [3, 2]
    assert numbers(serial="S1") == [3, 1]
    assert numbers(limit=1) == [3]
    assert store.history(limit=1)[0].time == moment(30)


def test_a_reader_sees_what_the_writer_saved(store: Store, path: Path) -> None:
    """`history` works beside a running agent, and cannot write."""
    store.save_round([episode()], {}, time=moment(10))
    reader = read_store(path)

    assert len(reader.history()) == 1
    with pytest.raises(StoreError, match="read-only"):
        reader.append_result(gemm())
    reader.close()
    with pytest.raises(StoreError, match="no database yet"):
        read_store(path.with_name("absent.db"))


# The journal.


@pytest.mark.parametrize("statement", ["UPDATE journal SET state = 'cleared'", "DELETE FROM journal"])
def test_journal_refuses_to_be_rewritten(store: Store, path: Path, statement: str) -> None:
    """Even a person with a SQL shell is stopped by the database itself."""
    store.save_round([episode()], {}, time=moment(10))
    foreign = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        foreign.execute(statement)
    foreign.close()


def test_an_acknowledgement_adds_a_row(store: Store) -> None:
    """The row before it keeps its number and its text."""
    store.save_round([episode()], {}, time=moment(10))
    before = store.history()
    store.save_round([episode(state=EpisodeState.ACKNOWLEDGED, note="known")], {}, time=moment(20))

    assert store.history()[1:] == before
    assert [row.number for row in store.history()] == [2, 1]


# Death.


def child(*arguments: str) -> subprocess.Popen[bytes]:
    """Start the process that saves rounds until it is killed."""
    return subprocess.Popen([sys.executable, "-m", "fakes.store_child", *arguments], cwd=TESTS, stdout=subprocess.PIPE)


def assert_whole(path: Path, told: int) -> None:
    """Episodes and memory are of one round, which is not before the last that was told."""
    counts, memory, notice = reopened(path)
    number = int(memory.get("round", b"0"))
    assert notice == ""
    assert counts == ({f"GPU-{index}": number for index in range(3)} if number else {})
    assert number >= told


def test_death_in_the_middle_of_any_write_leaves_whole_rounds(path: Path) -> None:
    """A process that dies at any write, in whole or torn, leaves a database of the last whole round."""
    path.parent.mkdir()
    limits = [*range(0, 64 * 1024, 2777), *range(64 * 1024, 360 * 1024, 4 * PAGE + 101)]
    with child(str(path), "5", *map(str, limits)) as process:
        assert process.wait(60) == 0
    for limit in limits:
        place = path.with_name(f"{path.name}.{limit}")
        lines = Path(f"{place}.told").read_text().split()
        assert_whole(place, int(lines[-1]) if lines else 0)
    finished = [limit for limit in limits if "5" in Path(f"{path}.{limit}.told").read_text().split()]
    assert 0 < len(limits) - len(finished) < len(limits), "some must die and some live, or nothing was tested"


@pytest.mark.parametrize("told", [0, 1, 2, 5, 40])
def test_kill_9_leaves_whole_rounds(path: Path, told: int) -> None:
    """After SIGKILL at any moment the store opens, with every round that was reported as saved."""
    with child(str(path), "100000") as process:
        assert process.stdout is not None
        for _ in range(told + 1):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait(10)
    assert_whole(path, int(rest[-1]) if rest else told)


def test_death_while_creating_leaves_nothing_to_be_told(path: Path) -> None:
    """What a dead process left half made is not taken for a lost database."""
    path.parent.mkdir()
    path.with_name("nodevet.db.new").write_bytes(b"half")

    assert reopened(path) == ({}, {}, "")
    assert {file.name for file in path.parent.iterdir()} == {"nodevet.db", "nodevet.db.lock"}


# Damage.


def cut_short(path: Path) -> None:
    """Lose the second half."""
    os.truncate(path, path.stat().st_size // 2 // PAGE * PAGE)


def cut_inside_header(path: Path) -> None:
    """Lose all but a few bytes."""
    os.truncate(path, 50)


def overwrite(path: Path) -> None:
    """Put noise in its place."""
    path.write_bytes(random.Random(7).randbytes(3 * PAGE))  # noqa: S311 (noise, not a secret)


def empty(path: Path) -> None:
    """Lose everything but the name."""
    os.truncate(path, 0)


def lose_but_log(path: Path) -> None:
    """Lose the database and keep its write-ahead log."""
    path.rename(path.with_name("nodevet.db-wal"))


def zero_page(path: Path) -> None:
    """Lose one page in the middle."""
    with path.open("r+b") as file:
        file.seek(PAGE * (path.stat().st_size // PAGE // 2))
        file.write(bytes(PAGE))


def zero_index(path: Path) -> None:
    """Lose the page of an index that no query of a start would touch."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'journal_by_serial'"
        (page,) = connection.execute(query).fetchone()
    with path.open("r+b") as file:
        file.seek(PAGE * (page - 1))
        file.write(bytes(PAGE))


def change(path: Path, statement: str) -> None:
    """Run *statement* behind the back of the triggers."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        triggers = connection.execute(query).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
        for _, sql in triggers:
            connection.execute(sql)


def delete_row(path: Path) -> None:
    """Take a row out of the journal."""
    change(path, "DELETE FROM journal WHERE id = 1")


FLIPPED = "CAST(replace(CAST(payload AS TEXT), 'GPU-0', 'GPU-1') AS BLOB)"
"""One letter of one episode turned into another: still a valid database, still valid JSON."""


def flip_payload(path: Path) -> None:
    """Change a row of the journal."""
    change(path, f"UPDATE journal SET payload = {FLIPPED} WHERE id = 1")  # noqa: S608


def flip_state(path: Path) -> None:
    """Change the present state of an episode."""
    change(path, f"UPDATE state SET payload = {FLIPPED}")  # noqa: S608


def flip_memory(path: Path) -> None:
    """Change what is remembered."""
    change(path, "UPDATE memory SET value = x'34'")


def flip_result(path: Path) -> None:
    """Change what a load measured."""
    change(path, "UPDATE results SET payload = replace(payload, '1.0', '2.0') WHERE workload = 'gemm'")


@pytest.mark.parametrize("damage", [cut_inside_header, overwrite, empty, lose_but_log])
def test_database_that_cannot_be_opened_is_moved_aside_and_told(path: Path, damage: Callable[[Path], None]) -> None:
    """The damaged files stay for a look under a name that the notice gives, and a fresh database works."""
    saved(path, rounds=3)
    damage(path)
    held = {file.read_bytes() for file in path.parent.iterdir() if file.name in {"nodevet.db", "nodevet.db-wal"}}
    counts, memory, notice = reopened(path)
    aside = path.with_name("nodevet.db.corrupt-19700101T000000Z")

    assert (counts, memory) == ({}, {})
    assert str(path) in notice
    assert str(aside) in notice
    assert {file.read_bytes() for file in path.parent.glob(f"{aside.name}*")} >= held
    assert reopened(path) == ({}, {}, ""), "told once"


@pytest.mark.parametrize("damage", [cut_short, zero_page, zero_index])
def test_damage_that_a_start_does_not_meet_is_found_after_it(path: Path, damage: Callable[[Path], None]) -> None:
    """The file is moved aside, what was known is in a fresh one, and it is told."""
    saved(path, rounds=3)
    damage(path)
    counts, memory, told = tended(path)

    assert (counts, memory) in (({"GPU-0": 3}, {"round": b"3"}), ({}, {}))
    assert "moved aside to" in told and "older history is there" in told
    assert len(list(path.parent.glob("nodevet.db.corrupt-*"))) >= 1


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (delete_row, "1 row of the journal missing or changed"),
        (flip_payload, "1 damaged row of the journal"),
        (flip_state, "the state of 1 finding is damaged, restored from the journal"),
        (flip_memory, "memory of round is damaged and is reset"),
        (flip_result, "1 damaged result of loads"),
    ],
)
def test_a_damaged_row_costs_itself(path: Path, damage: Callable[[Path], None], words: str) -> None:
    """It is told once and left out; everything else stays, and nothing is moved aside."""
    saved(path, rounds=3)
    opened = open_store(path).store
    opened.append_result(gemm())
    opened.append_result(gemm("stream"))
    opened.close()
    damage(path)
    counts, memory, told = tended(path)

    assert words in told
    assert counts == {"GPU-0": 3 if damage is not flip_state else 2}
    assert memory == ({} if damage is flip_memory else {"round": b"3"})
    reader = read_store(path)
    rows, results = reader.history(), reader.results()
    assert (len(rows) + len(reader.left_out), len(results)) == (
        1 if damage is delete_row else 2,
        1 if damage is flip_result else 2,
    )
    reader.close()
    assert not list(path.parent.glob("*.corrupt-*"))


def test_second_damage_in_the_same_second_keeps_the_first(path: Path) -> None:
    """Nothing that was moved aside is overwritten."""
    for _ in range(2):
        saved(path)
        overwrite(path)
        reopened(path)
    assert len(list(path.parent.glob("*.corrupt-*"))) == 2


def test_a_flipped_bit_is_never_believed(path: Path, tmp_path: Path) -> None:
    """Wherever one bit flips, the store returns what was saved, or says that it cannot."""
    saved(path, rounds=4)
    whole = path.read_bytes()
    truth, memory, _ = reopened(path)
    used = random.Random(3).sample(range(len(whole) * 8), 150)  # noqa: S311
    caught = 0
    for number, bit in enumerate(used):
        place = tmp_path / str(number) / "nodevet.db"
        place.parent.mkdir()
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        place.write_bytes(data)
        try:
            found = reopened(place)
        except StoreError:
            caught += 1
            continue
        caught += bool(found[2])
        assert found[2] or found[:2] == (truth, memory), f"bit {bit}"
        shutil.rmtree(place.parent)
    assert caught > 0


def test_a_schema_that_is_no_text_any_more_is_damaged(path: Path) -> None:
    """SQLite names in its message what it does not understand, and Python takes no such message for text."""
    saved(path)
    whole = path.read_bytes()
    assert b"CREATE INDEX journal_by_device" in whole
    path.write_bytes(whole.replace(b"CREATE INDEX journal_by_device", b"CREATE IND\xd9X journal_by_device"))
    assert "damaged" in reopened(path)[2]
    assert list(path.parent.glob("*.corrupt-*"))


# Refusal.


@pytest.mark.parametrize("opens", [open_store, read_store])
def test_a_disk_that_fails_is_told_and_nothing_is_moved_aside(
    path: Path, monkeypatch: pytest.MonkeyPatch, opens: Callable[[Path], object]
) -> None:
    """It may be well again; before, a traceback called it a bug, and no agent started."""
    saved(path)

    def fail(path: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "exists", fail)
        with pytest.raises(StoreError, match="Input/output error"):
            opens(path)
    assert not list(path.parent.glob("*.corrupt-*"))
    opens(path)


def test_newer_schema_is_refused_with_both_versions(path: Path) -> None:
    """A downgrade does not touch what a newer version wrote."""
    saved(path)
    foreign = sqlite3.connect(path)
    foreign.execute("PRAGMA user_version = 99")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=rf"version 99.*up to {SCHEMA_VERSION}.*newer nodevet"):
        open_store(path)
    assert path.read_bytes() == before


def test_database_of_another_application_is_refused_untouched(path: Path) -> None:
    """A state_dir that points at someone else's database harms nothing."""
    path.parent.mkdir()
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another application"):
        open_store(path)
    assert path.read_bytes() == before


def test_second_writer_is_refused_and_the_first_goes_on(store: Store, path: Path) -> None:
    """Two agents on one state directory: the second is told to ask the first."""
    with pytest.raises(BusyError, match="another nodevet"):
        open_store(path)
    store.save_round([episode()], {}, time=moment(10))


def test_a_foreign_lock_is_busy_not_damage(store: Store, path: Path) -> None:
    """A SQL shell in a transaction makes the round wait; it is saved when the shell lets go."""
    shell = sqlite3.connect(path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(BusyError, match="locked by another process"):
        store.save_round([episode()], {"a": b"1"}, time=moment(10))
    shell.close()
    store.save_round([episode()], {"a": b"1"}, time=moment(10))

    assert (len(store.history()), store.load_memory()) == (1, {"a": b"1"})


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "lustre"])
def test_network_file_system_is_refused(path: Path, tmp_path: Path, kind: str) -> None:
    """The longest mount point decides, with its escapes undone; later mounts hide earlier ones."""
    place = tmp_path / "with space"
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {str(place).replace(' ', chr(92) + '040')} {kind} rw 0 0\n")
    with pytest.raises(StoreError, match=f"lies on {kind}.*local disk"):
        open_store(place / "nodevet.db", mounts=mounts)
    assert not (place / "nodevet.db").exists()
    assert file_system_of(path, mounts) == "ext4"
    assert file_system_of(path, tmp_path / "absent") is None


def test_unwritable_directory_is_named(tmp_path: Path) -> None:
    """A directory that is a file, or that refuses us, is one line with the next step."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file.*state_dir"):
        open_store(tmp_path / "file" / "nodevet.db")


# Everything else that is kept.


def test_results_come_back_newest_first(store: Store, path: Path) -> None:
    """A result survives the restart."""
    kept = [gemm(value=float(number), clocks=[1, 2]) for number in range(3)]
    for result in (*kept, gemm("stream")):
        store.append_result(result)
    store.close()
    after = open_store(path).store

    assert after.results()[1:] == tuple(reversed(kept))
    assert after.results(limit=1)[0].workload == "stream"
    after.close()


def test_devices_are_remembered_with_their_first_and_last_day(store: Store) -> None:
    """Another serial in the same place is another device."""

    def gpu(serial: str | None) -> Device:
        return Device(
            id="GPU-0", kind=DeviceKind.ACCELERATOR, vendor="nvidia", model="H100", backend="nvidia", serial=serial
        )

    store.see_devices([gpu("S1")], 100.0)
    store.see_devices([gpu("S1")], 200.0)
    store.see_devices([gpu(None)], 300.0)

    assert [
        (seen.serial, seen.first_seen_wall_seconds, seen.last_seen_wall_seconds) for seen in store.devices_seen()
    ] == [
        ("S1", 100.0, 200.0),
        (None, 300.0, 300.0),
    ]


def test_old_rollups_go_first_and_episodes_never(store: Store) -> None:
    """Age takes rollups; size takes rollups and then old results; what cannot fit is said."""
    now = 30_000_000
    store.save_round([episode()], {"a": b"1"}, time=moment(10))
    for number in range(5):
        store.append_result(gemm(value=float(number)))
    store.append_rollups([a_minute(now - 15 * 1440), *(a_minute(now - ago) for ago in range(2000))])
    assert store.prune(now * 60.0, rollup_days=14, size_limit_bytes=1 << 30)
    assert len(store.rollups("GPU-0", "temperature_celsius")) == 2000
    size = store.size_bytes()
    assert store.prune(now * 60.0, rollup_days=14, size_limit_bytes=size - 2 * PAGE)
    left = store.rollups("GPU-0", "temperature_celsius")
    assert 0 < len(left) < 2000
    assert left[-1].minute == now, "the newest minute stays"
    assert not store.prune(now * 60.0, rollup_days=14, size_limit_bytes=1)

    assert store.rollups("GPU-0", "temperature_celsius") == ()
    assert [result.metric("tflops") for result in store.results()] == [4.0]
    assert (len(store.load_episodes()), store.load_memory()) == (1, {"a": b"1"})


def test_what_has_to_go_for_its_size_waits_for_a_round(tmp_path: Path) -> None:
    """A limit that is lowered below results of years took a minute of the only thread that keeps anything."""
    store = open_store(tmp_path / "nodevet.db").store
    for number in range(60):
        store.append_result(gemm(value=float(number)))

    def met_by_a_round() -> None:
        if not begun:
            begun.append(writer.submit_round([episode()], {}, time=moment(10)))

    begun: list[int] = []
    writer = StoreWriter(store, Retention(size_limit_bytes=1), attempted=met_by_a_round)
    writer.submit_rollups([a_minute(30_000_000)])
    assert writer.flush(5.0) and writer.flush(5.0)  # the figures, then the round that came meanwhile
    assert writer.keeping(begun[0]) is Keeping.KEPT
    assert writer.status == ""
    assert writer.close(5.0)
    with contextlib.closing(read_store(tmp_path / "nodevet.db")) as left:
        assert (left.rollups("GPU-0", "temperature_celsius"), len(left.results())) == ((), 60), "one step was done"


def test_rollup_of_a_minute_comes_back_as_it_went_in(store: Store) -> None:
    """A minute written twice keeps the later figures; devices and times are told apart."""
    store.append_rollups([a_minute(5), a_minute(6), a_minute(5, "GPU-1")])
    better = Rollup(6, "GPU-0", "temperature_celsius", "sensor core", 1.0, 2.0, 3.0, 4)
    store.append_rollups([better])

    assert store.rollups("GPU-0", "temperature_celsius", since_minute=5) == (a_minute(5), better)


# The writer thread.


def noted(number: int) -> Episode:
    """Return an episode that was acknowledged with a note of the *number*: each is a change of its own."""
    return episode(state=EpisodeState.ACKNOWLEDGED, note=str(number))


@pytest.mark.parametrize("value", ["x'ff00'", "'word'", "9e999", str(2**63 - 1), str(-(2**63)), "total + 1"])
@pytest.mark.parametrize("column", ["rows", "total", "checksum"])
def test_a_damaged_sum_of_the_journal_costs_no_episode(path: Path, column: str, value: str) -> None:
    """It only says whether rows are missing: what happens next is kept, and the damage is told once."""
    saved(path)
    with contextlib.closing(sqlite3.connect(path)) as shell, shell:
        shell.execute(f"UPDATE journal_sum SET {column} = {value}")  # noqa: S608 (ours)
    store = open_store(path).store
    store.save_round([noted(8)], {}, time=moment(8))
    assert "missing or changed" in looked_through(store)
    store.save_round([noted(9)], {}, time=moment(9))
    store.close()
    again = open_store(path).store
    assert [entry.note for entry in again.load_episodes()] == ["9"]
    assert looked_through(again) == ""
    again.close()


def test_a_clock_that_is_years_ahead_for_a_minute_costs_an_hour_of_the_past(store: Store) -> None:
    """As at a boot before the time is set: figures and counts of days are there when the clock is right again."""
    first = int(moment(0).wall_seconds // 60)
    store.append_rollups([a_minute(first + minute) for minute in range(300)])
    for hour in range(1, 5):
        store.save_round([episode(count=2**hour)], {}, time=moment(3600.0 * hour))
    assert store.prune(moment(1e9).wall_seconds, rollup_days=14, size_limit_bytes=1 << 30)
    kept = a_minute(first)
    assert len(store.rollups(kept.device, kept.quantity)) == 240
    assert len(store.history()) == 3


def test_a_writer_that_gets_no_thread_to_look_through_the_file_goes_on(path: Path) -> None:
    """Such as at a limit of processes: rounds are kept, and the rest of the file is for the next start."""
    writer = StoreWriter(open_store(path).store)
    before = threading.stack_size(1 << 46)  # more than a processor can address: no thread can be had
    try:
        assert not writer.wait_until_tended(0.3) or writer.status == ""
        assert writer.flush(5.0)
    finally:
        threading.stack_size(before)
    writer.submit_round((episode(),), {}, time=moment(1))
    assert writer.flush(5.0)
    assert writer.wait_until_tended(10.0)
    assert writer.close(5.0)
    assert writer.status == ""


def test_writer_writes_in_order_and_closes_in_time(path: Path) -> None:
    """Everything that was submitted is in the file after close."""
    writer = StoreWriter(open_store(path).store)
    for number in range(1, 30):
        writer.submit_round([noted(number)], {"round": str(number).encode()}, time=moment(number))
    writer.submit_result(gemm())
    writer.submit_rollups([a_minute(1)])
    writer.submit_devices([], 1.0)
    assert writer.flush(5.0)
    assert writer.status == ""
    writer.submit_round([noted(30)], {"round": b"30"}, time=moment(30))
    assert writer.close(5.0)
    after = open_store(path).store

    assert [row.episode.note for row in after.history()] == [str(number) for number in range(30, 0, -1)]
    assert (after.load_memory(), len(after.results())) == ({"round": b"30"}, 1)
    after.close()


def test_writer_waits_for_a_lock_and_loses_nothing(path: Path) -> None:
    """While another process holds the database the status says so; afterwards every change is there."""
    writer = StoreWriter(open_store(path).store, Retention(waiting_rounds=3))
    shell = sqlite3.connect(path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    writer.submit_round([episode(device="GPU-1")], {"once": b"kept"}, time=moment(0))
    for number in range(1, 11):
        writer.submit_round([episode(count=number)], {"round": str(number).encode()}, time=moment(number))
    assert not writer.flush(5.0)
    assert "locked by another process" in writer.status
    shell.close()
    assert writer.flush(5.0)
    assert writer.status == ""
    assert writer.close(5.0)
    counts, memory, _ = reopened(path)

    assert (counts, memory) == ({"GPU-0": 10, "GPU-1": 1}, {"once": b"kept", "round": b"10"})


def test_writer_tells_of_what_no_file_can_hold(path: Path) -> None:
    """A value that JSON cannot carry costs itself, not the store."""
    writer = StoreWriter(open_store(path).store)
    writer.submit_result(gemm(mystery=object()))
    writer.submit_result(gemm())
    assert writer.flush(5.0)
    assert "result dropped" in writer.status
    assert writer.close(5.0)
    after = read_store(path)
    assert len(after.results()) == 1
    after.close()


HALF_A_LETTER = "a\udc80"
"""Text that no UTF-8 can carry, as names of files and processes give it."""

POISON: dict[str, Callable[[StoreWriter], object]] = {
    "episode": lambda writer: writer.submit_round((episode("bad", note=HALF_A_LETTER),), {}, time=moment(1)),
    "key": lambda writer: writer.submit_round((episode("bad", HALF_A_LETTER),), {}, time=moment(1)),
    "memory": lambda writer: writer.submit_round((episode("old"),), {HALF_A_LETTER: b"", "old": b""}, time=moment(1)),
    "moment": lambda writer: writer.submit_round((episode("bad"),), {}, time=beyond_sqlite()),
    "result": lambda writer: writer.submit_result(gemm(HALF_A_LETTER)),
    "device": lambda writer: writer.submit_devices((a_device(HALF_A_LETTER), a_device("old")), 1.0),
    "minute": lambda writer: writer.submit_rollups((a_minute(2**70), a_minute(6))),
    "minute's device": lambda writer: writer.submit_rollups((a_minute(6, HALF_A_LETTER),)),
}
"""Records that no row can hold, each with one that can."""


def test_a_result_that_is_delivered_twice_is_one_row(store: Store) -> None:
    """What the agent stamps on it differs from one delivery to the other; what was measured does not."""
    store.append_result(gemm())
    store.append_result(gemm(conditions={"temperature_celsius": None}))
    store.append_result(gemm("stream"))
    assert [result.workload for result in store.results()] == ["stream", "gemm"]


@pytest.mark.parametrize("poison", POISON)
def test_a_poison_record_in_the_queue_costs_itself(path: Path, poison: str) -> None:
    """It is set aside, counted and told once; what stands beside and behind it is written, and so is what follows."""
    writer = StoreWriter(open_store(path).store)
    for _ in range(2):
        POISON[poison](writer)
    ticket = writer.submit_round((episode("good"),), {"good": b"1"}, time=moment(2))
    writer.submit_result(gemm())
    writer.submit_rollups((a_minute(7),))
    writer.flush(5.0)
    assert writer.keeping(ticket) is Keeping.KEPT
    assert writer.status.count("cannot be") == 1
    assert writer.status.isprintable()
    writer.shown(writer.status)
    writer.submit_rollups((a_minute(8),))
    assert writer.flush(5.0)
    assert writer.close(5.0)
    after = read_store(path)
    kept = {entry.episode.key.code for entry in after.history(limit=10)}
    assert kept == ({"good", "old"} if poison == "memory" else {"good"})
    assert after.load_memory().keys() == ({"good", "old"} if poison == "memory" else {"good"})
    assert len(after.results()) == 1
    assert {entry.minute for entry in after.rollups("GPU-0", a_minute(7).quantity)} == (
        {6, 7, 8} if poison == "minute" else {7, 8}
    )
    assert {device.device for device in after.devices_seen()} == ({"old"} if poison == "device" else set())
    after.close()


def a_device(name: str) -> Device:
    """Return a board."""
    return Device(id=name, kind=DeviceKind.ACCELERATOR, vendor="x", backend="x", model="m")


def test_a_bug_in_telling_or_tending_does_not_end_the_writer(path: Path) -> None:
    """The thread is all that keeps anything: what it calls may raise, and is told."""

    def planted() -> None:
        raise ZeroDivisionError("planted")

    writer = StoreWriter(open_store(path).store, attempted=planted)
    tickets: list[int] = []
    for number in range(3):
        tickets.append(writer.submit_round((episode(count=number + 1),), {}, time=moment(number)))
        writer.flush(5.0)
    assert writer.keeping(tickets[-1]) is Keeping.KEPT
    assert sum("planted" in line for line in writer.learned) == 1
    assert writer.close(5.0)


def test_merged_rounds_keep_every_change_while_there_is_room() -> None:
    """Above the limit the newest state of each episode is what remains."""
    two_rounds = (
        merged_round(1, [episode(count=1), episode(device="GPU-1")]),
        merged_round(2, [episode(count=2), episode(device="GPU-2")]),
    )
    all_of_it = merged(*two_rounds, 4)
    newest = merged(*two_rounds, 3)

    assert [entry.count for entry in all_of_it.episodes] == [1, 1, 2, 1]
    assert [(entry.key.device, entry.count) for entry in newest.episodes] == [("GPU-0", 2), ("GPU-1", 1), ("GPU-2", 1)]
    assert all_of_it.memory == {"1": b"", "2": b""}


def merged_round(number: int, episodes: list[Episode]) -> UnsavedRound:
    """Return a round that names itself in its memory."""
    return UnsavedRound(tuple(episodes), {str(number): b""}, moment(number))


# A full disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(NO_SMALL_DISK)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_full_disk_is_told_and_survived(small_disk: Path) -> None:
    """While the disk is full the status says what to do; when space returns every change is written."""
    path = small_disk / "nodevet.db"
    writer = StoreWriter(open_store(path).store)
    writer.submit_round([episode(count=1)], {"round": b"1"}, time=moment(1))
    assert writer.flush(5.0)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(PAGE))
    for number in range(2, 60):
        writer.submit_round([episode(count=number)], {"round": str(number).encode() * PAGE}, time=moment(number))
    assert not writer.flush(5.0)
    assert re.search("full|space", writer.status), writer.status
    assert str(path) in writer.status
    ballast.unlink()
    assert writer.flush(5.0)
    assert writer.status == ""
    assert writer.close(5.0)
    counts, memory, notice = reopened(path)
    assert (counts, memory["round"], notice) == ({"GPU-0": 59}, b"59" * PAGE, "")


def test_full_disk_at_start_is_one_clear_line(small_disk: Path) -> None:
    """Where not even a fresh database fits, the error names the directory."""
    with (small_disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(PAGE))
    with pytest.raises(StoreError, match=str(small_disk)) as caught:
        open_store(small_disk / "nodevet.db")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_what_lies_on_a_read_only_disk_is_read(small_disk: Path, ended: str) -> None:
    """A disk that was remounted after an error still tells what was open and acknowledged, with a log beside or not."""
    path = small_disk / "nodevet.db"
    store = open_store(path).store
    store.save_round([noted(7)], {"round": b"7"}, time=moment(1))
    copies = [(file, file.read_bytes()) for file in sorted(small_disk.iterdir())]
    store.close()
    for file, content in copies if ended == "killed" else ():
        file.write_bytes(content)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StoreError):
        open_store(path)
    found = read_store(path)
    assert [entry.note for entry in found.episodes_at_rest()] == ["7"]
    assert found.load_memory() == {"round": b"7"}
    found.close()


def test_read_only_disk_is_refused_and_loses_nothing(small_disk: Path) -> None:
    """A disk that the kernel turned read-only after an error is named in one line; what it holds stays."""

    def remount(option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", small_disk], check=True)

    path = small_disk / "nodevet.db"
    writer = StoreWriter(open_store(path).store)
    writer.submit_round([episode(count=1)], {}, time=moment(1))
    assert writer.flush(5.0)
    assert writer.close(5.0)
    remount("ro")
    with pytest.raises(StoreError, match=rf"{small_disk}.*cannot be written.*Read-only.*journalctl.*state_dir") as told:
        open_store(path)
    assert "\n" not in str(told.value)
    remount("rw")

    assert reopened(path) == ({"GPU-0": 1}, {}, "")
