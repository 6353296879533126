"""The mirror: a failed verdict outlives a lost store within the same boot, and only within it."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from fakes.ended import ended
from fakes.episodes import BOOT_ID, episode, moment
from fakes.privileges import needs_root
from fakes.showing_child import configuration
from hypothesis import given
from hypothesis import strategies as st
from test_store_growth import wait_for

from nodevet.agent.once.run import _recall
from nodevet.agent.store.journal import Journal
from nodevet.agent.store.mirror import MIRROR_NAME, Mirror, ends, read_mirror, restore, write_mirror
from nodevet.agent.store.opening import DATABASE_NAME, open_store
from nodevet.agent.store.writer import Keeping
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import StoreError
from nodevet.checks.core.model import Episode, EpisodeState
from nodevet.checks.engine.acknowledgement import extended, granted
from nodevet.checks.engine.engine import Engine

OPEN, ACKNOWLEDGED, CLEARED = EpisodeState.OPEN, EpisodeState.ACKNOWLEDGED, EpisodeState.CLEARED
TESTS = Path(__file__).resolve().parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the mirror of the test lies."""
    return tmp_path / "episodes.json"


def test_lost_store_is_restored_from_the_mirror(path: Path) -> None:
    """What was open or acknowledged comes back equal; what was pending or cleared does not."""
    kept = (episode(serial="S1"), episode("thermal.hot", state=ACKNOWLEDGED, note="fan"))
    passing = (episode("a.b", state=EpisodeState.PENDING), episode("c.d", state=EpisodeState.CLEARED))
    write_mirror(path, (*kept, *passing), BOOT_ID)

    assert restore((), read_mirror(path), BOOT_ID) == kept


def test_mirror_of_another_boot_says_nothing(path: Path) -> None:
    """After a reboot only the store speaks."""
    write_mirror(path, [episode()], "boot-0")

    assert restore((), read_mirror(path), BOOT_ID) == ()


def test_no_mirror_changes_nothing(path: Path) -> None:
    """The first start of a boot has none."""
    stored = (episode(),)

    assert restore(stored, read_mirror(path), BOOT_ID) == stored


@pytest.mark.parametrize(
    ("stored", "mirrored", "expected"),
    [
        (episode(seen=20, count=2), episode(seen=30, count=3), "mirror"),
        (episode(seen=30, count=3), episode(seen=20, count=2), "store"),
        (episode(seen=20), episode(seen=20, state=ACKNOWLEDGED), "mirror"),
        (episode(seen=20, state=ACKNOWLEDGED), episode(seen=20), "store"),
        (episode(seen=900, boot_id="boot-0"), episode(seen=20), "mirror"),
    ],
)
def test_of_two_the_later_word_counts(stored: Episode, mirrored: Episode, expected: str) -> None:
    """Later sight wins, another boot is earlier, and of equals that which a person acknowledged."""
    found = restore((stored,), Mirror(BOOT_ID, (mirrored,)), BOOT_ID)

    assert found == (mirrored if expected == "mirror" else stored,)


FAULT = episode(seen=20)
WORD = granted(FAULT, note="INC-7", actor="uid 0", time=moment(30), until=moment(3_600))
OVER = msgspec.structs.replace(WORD, state=CLEARED, cleared=moment(40))
LONGER = extended(OVER, note="INC-7", actor="uid 0", time=moment(50), until=moment(7_200))
AGAIN = msgspec.structs.replace(WORD, state=OPEN)
EXPIRED = msgspec.structs.replace(WORD, expired=moment(3_610))


def test_a_word_whose_fault_is_not_there_outlives_a_lost_store(path: Path) -> None:
    """It covers the return until its term is over; what is over without a word is not mirrored."""
    without = msgspec.structs.replace(episode("c.d"), state=CLEARED, cleared=moment(40))
    write_mirror(path, (OVER, without), BOOT_ID)

    assert restore((), read_mirror(path), BOOT_ID) == (OVER,)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (FAULT, WORD),
        (WORD, granted(FAULT, note="INC-7", actor="uid 0", time=moment(35), until=moment(7_200))),
        (WORD, OVER),
        (FAULT, OVER),
        (OVER, LONGER),
        (OVER, episode(seen=60)),
        (OVER, msgspec.structs.replace(WORD, last_seen=moment(60))),
        (WORD, AGAIN),
        (WORD, EXPIRED),
    ],
)
@pytest.mark.parametrize("newer_is", ["store", "mirror"])
def test_what_was_seen_or_said_last_counts(earlier: Episode, later: Episode, newer_is: str) -> None:
    """Neither a store nor a mirror that could not be written makes a word shorter, or forgets a fault beyond it."""
    stored, mirrored = (later, earlier) if newer_is == "store" else (earlier, later)

    assert restore((stored,), Mirror(BOOT_ID, (mirrored,)), BOOT_ID) == (later,)


def test_a_word_stands_beside_what_is_not_confirmed_yet() -> None:
    """It covers the return once that is confirmed."""
    pending = episode(seen=60, state=EpisodeState.PENDING)

    assert set(restore((pending,), Mirror(BOOT_ID, (OVER,)), BOOT_ID)) == {pending, OVER}


@pytest.mark.parametrize(
    ("mirrored", "counts"),
    [(msgspec.structs.replace(WORD, until=None), False), (FAULT, False), (episode(seen=60), True), (OVER, False)],
)
def test_what_ended_while_the_mirror_could_not_be_written_is_over(
    tmp_path: Path, mirrored: Episode, counts: bool
) -> None:
    """A word that ended with its fault covered the next return of it; what was seen after the end counts."""
    over = msgspec.structs.replace(FAULT, state=CLEARED, cleared=moment(50))
    opened = open_store(tmp_path / "nodevet.db", wall_seconds=0)
    opened.store.save_round([FAULT, episode("a.b")], {}, time=moment(20))
    opened.store.save_round([over], {}, time=moment(50))
    mirror = Mirror(BOOT_ID, (mirrored, episode("c.d")))

    ended = ends(opened.store, mirror)
    opened.store.close()
    found = restore((), mirror, BOOT_ID, ended)

    assert ended == (over,)
    assert found == (episode("c.d"), *((mirrored,) if counts else ()))


def test_an_end_is_found_however_much_the_journal_has_told_of_the_device_since(tmp_path: Path) -> None:
    """A counter that grows leaves rows behind it."""
    known = episode("a.b", state=ACKNOWLEDGED)
    over = msgspec.structs.replace(known, state=CLEARED, cleared=moment(40))
    opened = open_store(tmp_path / "nodevet.db", wall_seconds=0)
    opened.store.save_round([over], {}, time=moment(40))
    opened.store.save_round([episode(f"c.d{number}") for number in range(1_001)], {}, time=moment(41))
    found = ends(opened.store, Mirror(BOOT_ID, (known,)))
    opened.store.close()
    assert found == (over,)


def test_agent_and_command_ask_the_journal_what_ended(tmp_path: Path) -> None:
    """Both begin with the same findings."""
    clock = SystemClock()
    boot_id, names = clock.instant().boot_id, ("nvidia.xid.79", "a.b")
    word, other = (episode(name, boot_id=boot_id, state=ACKNOWLEDGED) for name in names)
    over = msgspec.structs.replace(word, state=CLEARED, cleared=moment(50, boot_id))
    settings = configuration(tmp_path)
    path = Path(settings.agent.state_dir) / DATABASE_NAME
    for number, entry in enumerate((word, over)):
        opened = open_store(path, wall_seconds=0)
        opened.store.save_round([entry], {}, time=moment(20 + number, boot_id))
        opened.store.close()
    Path(settings.agent.runtime_dir).mkdir(exist_ok=True)
    write_mirror(Path(settings.agent.runtime_dir) / MIRROR_NAME, (word, other), boot_id)
    engines = [Engine((), node="node", clock=clock.instant) for _ in range(2)]
    assert _recall(engines[0], settings, clock)[1] == ()
    with Journal(settings, clock) as journal:
        journal.restore(engines[1])

    assert [engine.episodes for engine in engines] == [(other,)] * 2


@pytest.mark.parametrize(
    ("stored", "counts"),
    [
        (WORD, False),
        (msgspec.structs.replace(WORD, until=None), False),
        (FAULT, False),
        (episode(seen=900, boot_id="boot-0", state=ACKNOWLEDGED), False),
        (episode(seen=60), True),
        (episode("c.d", state=ACKNOWLEDGED), True),
    ],
)
def test_what_ended_while_the_store_could_not_be_written_is_over(path: Path, stored: Episode, counts: bool) -> None:
    """The word of before covered the next return of the fault; what was seen later, and what is another, counts."""
    over = msgspec.structs.replace(FAULT, state=CLEARED, cleared=moment(50))
    write_mirror(path, (), BOOT_ID, (over,))

    assert restore((stored,), read_mirror(path), BOOT_ID) == ((stored,) if counts else ())
    assert restore((stored,), read_mirror(path), "boot-2") == (stored,)


def test_an_end_waits_in_the_mirror_until_the_store_has_it(tmp_path: Path) -> None:
    """And over a restart of the agent: a word that had ended came back from a store that could not be written."""
    clock, settings = SystemClock(), configuration(tmp_path)
    now = clock.instant()
    fault = episode(boot_id=now.boot_id, state=ACKNOWLEDGED)
    over = msgspec.structs.replace(fault, state=CLEARED, cleared=now)
    database = Path(settings.agent.state_dir) / DATABASE_NAME
    mirror = Path(settings.agent.runtime_dir) / MIRROR_NAME
    opened = open_store(database, wall_seconds=0)
    opened.store.save_round([fault], {}, time=now)
    opened.store.close()
    old = database.read_bytes()
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Journal(settings, clock) as journal:
        journal.restore(Engine((), node="node", clock=clock.instant))
        assert becomes(Keeping.FAILED, journal, journal.keep_round((over,), {"round": b"1"}))
        assert list(journal.ended) == [over]
        write_mirror(mirror, (), now.boot_id, journal.ended)
        other.close()
        kept(journal)
        assert list(journal.ended) == []
    database.write_bytes(old)
    with Journal(settings, clock) as journal:
        engine = Engine((), node="node", clock=clock.instant)
        journal.restore(engine)
        assert (engine.episodes, list(journal.ended)) == ((), [over])
        kept(journal)
    opened = open_store(database, wall_seconds=0)
    assert opened.store.load_episodes() == ()
    opened.store.close()


def test_an_end_that_the_store_has_is_written_once(tmp_path: Path) -> None:
    """An agent that stops before its next round leaves it in the mirror: history told of a second end."""
    clock, settings = SystemClock(), configuration(tmp_path)
    now = clock.instant()
    fault = episode(boot_id=now.boot_id)
    over = msgspec.structs.replace(fault, state=CLEARED, cleared=now)
    Path(settings.agent.runtime_dir).mkdir(exist_ok=True)
    write_mirror(Path(settings.agent.runtime_dir) / MIRROR_NAME, (), now.boot_id, (over,))
    database = Path(settings.agent.state_dir) / DATABASE_NAME
    opened = open_store(database, wall_seconds=0)
    opened.store.save_round([fault], {}, time=now)
    opened.store.save_round([over], {}, time=now)
    opened.store.close()
    with Journal(settings, clock) as journal:
        journal.restore(Engine((), node="node", clock=clock.instant))
        kept(journal)
    opened = open_store(database, wall_seconds=0)
    rows = [row.episode.state for row in opened.store.history(limit=9)]
    opened.store.close()
    assert rows.count(CLEARED) == 1


def kept(journal: Journal) -> None:
    """Keep two rounds, so that the second knows that the first is on the disk."""
    for number in (b"2", b"3"):
        assert becomes(Keeping.KEPT, journal, journal.keep_round((), {"release": number}))


def becomes(keeping: Keeping, journal: Journal, ticket: int | None) -> bool:
    """Wait until the round of *ticket* is as far as *keeping*, and return whether it is."""
    return ticket is not None and wait_for(lambda: journal.keeping(ticket) is keeping)


def test_a_word_that_covers_a_return_is_no_end(tmp_path: Path) -> None:
    """Nor is a journal that knows nothing of what the mirror has."""
    opened = open_store(tmp_path / "nodevet.db", wall_seconds=0)
    opened.store.save_round([OVER], {}, time=moment(40))
    found = [ends(opened.store, mirror) for mirror in (None, Mirror(BOOT_ID, (WORD, episode("c.d"))))]
    opened.store.close()

    assert found == [(), ()]


EPISODES = st.lists(
    st.builds(
        episode,
        device=st.sampled_from(["GPU-0", "GPU-1", "GPU-2"]),
        state=st.sampled_from([OPEN, ACKNOWLEDGED]),
        seen=st.integers(10, 99).map(float),
    ),
    unique_by=lambda entry: entry.key,
)


@given(EPISODES, EPISODES)
def test_restoring_forgets_nothing_and_repeats_nothing(stored: list[Episode], mirrored: list[Episode]) -> None:
    """The result is one episode per key of either side, and restoring again changes nothing."""
    mirror = Mirror(BOOT_ID, tuple(mirrored))
    found = restore(stored, mirror, BOOT_ID)

    assert [entry.key for entry in found] == sorted({entry.key for entry in (*stored, *mirrored)})
    assert set(found) <= {*stored, *mirrored}
    assert restore(found, mirror, BOOT_ID) == found


def test_writing_replaces_the_whole_or_nothing(path: Path) -> None:
    """The file is another inode each time, readable at every moment; what a dead writer left is overwritten."""
    write_mirror(path, [episode()], BOOT_ID)
    path.with_name(".episodes.json.new").write_text("half")
    with path.open() as before:
        write_mirror(path, [episode(count=2)], BOOT_ID)
        assert '"count":1' in before.read()
    mirror = read_mirror(path)

    assert mirror is not None
    assert mirror.episodes[0].count == 2
    assert list(path.parent.iterdir()) == [path]


def test_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    """One line with the path and the next step."""
    with pytest.raises(StoreError, match=r"gone.*cannot be written"):
        write_mirror(tmp_path / "gone" / "episodes.json", [], BOOT_ID)


@pytest.mark.parametrize("text", ["", "{", '{"boot_id": "b"}', "[]", '{"boot_id": "b", "episodes": {}}'])
def test_malformed_mirror_is_told_never_ignored(path: Path, text: str) -> None:
    """It may hold the only word of a fault, so it is not passed over in silence."""
    path.write_text(text)
    with pytest.raises(StoreError, match="malformed"):
        read_mirror(path)


def test_a_finding_that_only_a_newer_nodevet_understands_costs_itself(path: Path) -> None:
    """After a rollback within the boot; before, one such finding cost all that were open."""
    write_mirror(path, [episode(), episode(device="GPU-1")], BOOT_ID)
    document = json.loads(path.read_text())
    document["incidents"] = []
    document["episodes"][1]["outcome"] = "doubtful"
    path.write_text(json.dumps(document))
    mirror = read_mirror(path)
    assert mirror is not None
    assert mirror.episodes == (episode(),)
    assert "cannot read 1 finding, not counted (Invalid enum value 'doubtful'" in mirror.notice


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_mirror_with_any_wrong_byte_is_read_or_told(position: int, byte: int) -> None:
    """Text that is not UTF-8 too: before, it ended the agent with a traceback, at each start of that boot."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "episodes.json")
        write_mirror(place, [episode(note="fän")], BOOT_ID)
        content = bytearray(place.read_bytes())
        content[position % len(content)] = byte
        place.write_bytes(content)
        with contextlib.suppress(StoreError):
            read_mirror(place)


def test_a_folder_and_a_file_without_end_are_no_mirror(path: Path) -> None:
    """Each is told; neither ends the agent nor takes its memory."""
    path.mkdir()
    with pytest.raises(StoreError, match="not a file"):
        read_mirror(path)
    path.rmdir()
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(StoreError, match="larger than 256 MiB"):
        read_mirror(path)


def test_planted_mirror_is_refused(path: Path, tmp_path: Path) -> None:
    """Neither a link nor a pipe counts, and reading them does not hang."""
    write_mirror(tmp_path / "elsewhere", [], BOOT_ID)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot be read"):
        read_mirror(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="not a file"):
        read_mirror(path)


@needs_root
def test_mirror_of_another_user_is_refused(path: Path) -> None:
    """Only root and the agent's own user can say that the node failed."""
    write_mirror(path, [], BOOT_ID)
    os.chown(path, 65534, 65534)
    with pytest.raises(StoreError, match="not a file of uid"):
        read_mirror(path)


def test_killed_writer_leaves_a_whole_mirror(path: Path) -> None:
    """After SIGKILL at any moment the file is one of those that were written."""
    script = (
        "import sys; from pathlib import Path; from fakes.episodes import episode\n"
        "from nodevet.agent.store.mirror import write_mirror\n"
        "for number in range(1, 100000):\n"
        "    write_mirror(Path(sys.argv[1]), [episode(count=number)], 'boot-1')\n"
        "    print(number, flush=True)\n"
    )
    with ended(
        subprocess.Popen([sys.executable, "-c", script, str(path)], cwd=TESTS, stdout=subprocess.PIPE)
    ) as writer:
        assert writer.stdout is not None
        told = 0
        for _ in range(20):
            told = int(writer.stdout.readline())
        writer.kill()
        rest = writer.stdout.read().split()
        told = int(rest[-1]) if rest else told
    mirror = read_mirror(path)

    assert mirror is not None
    assert mirror.episodes[0].count in (told, told + 1)
