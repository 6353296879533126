"""State file and mirror: what happens to one does not keep the other back."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from fakes.snapshots import at, failed_node, gpu_id, gpu_node, open_episode, starting_node, unknown_node

from nodevet.agent.store.mirror import MIRROR_NAME, Mirror, read_mirror
from nodevet.agent.store.publisher import STATE_NAME, Publisher
from nodevet.checks.core.model import Episode, EpisodeState, Finding, Outcome, Snapshot
from nodevet.checks.engine.acknowledgement import granted


def mirrored(publisher: Publisher, snapshot: Snapshot, directory: Path) -> Mirror:
    """Publish *snapshot* and return the mirror in *directory* once it is there."""
    publisher.judged(snapshot)
    deadline = time.monotonic() + 60
    while publisher.written is not snapshot:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    mirror = read_mirror(directory / MIRROR_NAME)
    assert mirror is not None
    return mirror


def test_a_mirror_that_cannot_be_written_keeps_no_fault_out_of_the_state_file(tmp_path: Path) -> None:
    """An `ok` of before must not stand in the state file because something is wrong with another file."""
    (tmp_path / f".{MIRROR_NAME}.new").mkdir()
    publisher = Publisher(tmp_path, ttl_seconds=35.0)
    publisher.judged(failed_node())
    assert publisher.close(5.0)
    assert (tmp_path / STATE_NAME).read_text().startswith("failed ")
    assert MIRROR_NAME in publisher.trouble


def ended(snapshot: Snapshot) -> Snapshot:
    """Return *snapshot* as an agent leaves it that ends in order."""
    return msgspec.structs.replace(snapshot, agent=msgspec.structs.replace(snapshot.agent, stopping=True))


def later(snapshot: Snapshot, seconds: float) -> Snapshot:
    """Return *snapshot* as it is *seconds* after it was made."""
    time = msgspec.structs.replace(snapshot.time, boottime_ns=snapshot.time.boottime_ns + round(seconds * 1e9))
    return msgspec.structs.replace(snapshot, time=time)


def state_after(directory: Path, *snapshots: Snapshot) -> list[str]:
    """Have an agent of its own publish each of *snapshots*; return the words of the first two lines that stand then."""
    for snapshot in snapshots:
        publisher = Publisher(directory, ttl_seconds=35.0)
        publisher.judged(snapshot)
        assert publisher.close(5.0)
        assert publisher.trouble == ""
    return " ".join((directory / STATE_NAME).read_text().splitlines()[:2]).split()


def test_an_agent_that_is_started_anew_in_order_leaves_no_time_without_a_verdict(tmp_path: Path) -> None:
    """With `on_stale=fail` a new package on all nodes closed every gate, without a permit, until the first round."""
    old, new = ended(gpu_node()), starting_node()
    for passed, verdict in ((5.0, "ok"), (100.0, "ok"), (121.0, "unknown")):
        words = state_after(tmp_path, old, later(new, passed))
        assert words[0] == verdict, passed
        assert ("stopped" in words) is (verdict == "ok")
    assert state_after(tmp_path, old, later(gpu_node(), 5.0))[0] == "ok"
    assert "running" in state_after(tmp_path, old, later(gpu_node(), 5.0)), "the first round is told at once"


@pytest.mark.parametrize(
    "before",
    [
        gpu_node(),
        ended(failed_node()),
        ended(unknown_node()),
        ended(msgspec.structs.replace(gpu_node(), simulated=True)),
        ended(msgspec.structs.replace(gpu_node(), time=msgspec.structs.replace(gpu_node().time, boot_id="another"))),
    ],
    ids=["killed", "failed", "unknown", "simulated", "another boot"],
)
def test_no_other_state_of_before_stands_for_an_agent_that_starts(tmp_path: Path, before: Snapshot) -> None:
    """Only one that is good and was left in order; and a fault that is remembered is told at once."""
    assert "starting" in state_after(tmp_path, before, later(starting_node(), 5.0))
    fault = msgspec.structs.replace(failed_node(), agent=starting_node().agent)
    assert state_after(tmp_path, ended(gpu_node()), later(fault, 5.0))[0] == "failed"


def test_an_agent_that_is_killed_leaves_a_state_that_is_good_no_longer_than_ever(tmp_path: Path) -> None:
    """Only an end in order says that a new agent is about to come."""
    of_killed, of_ended = (int(state_after(tmp_path, one)[1]) for one in (gpu_node(), ended(gpu_node())))
    assert of_ended - of_killed == 85


def test_the_state_and_what_stands_of_it_are_of_the_clock_of_their_readers(tmp_path: Path) -> None:
    """In a container whose /proc/uptime is its own, the state of an agent that ended in order expires by that."""
    behind, words = gpu_node().time.boottime_ns / 1e9 - 30.0, list[str]()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_text(f"{time.clock_gettime(time.CLOCK_BOOTTIME) - behind:.2f} 1.00\n")
    for snapshot in (ended(gpu_node()), later(starting_node(), 5.0), later(starting_node(), 140.0)):
        publisher = Publisher(tmp_path, ttl_seconds=35.0, root=str(tmp_path))
        publisher.judged(snapshot)
        assert publisher.close(5.0)
        words.append((tmp_path / STATE_NAME).read_text())
    assert words[0].split()[0] == "ok"
    assert 145 < int(words[0].split()[1]) <= 150  # it is of 30 s, and good for two minutes; this uptime stands still
    assert words[1] == words[0]
    assert "starting" in words[2]


def test_another_term_under_the_same_note_is_mirrored(tmp_path: Path) -> None:
    """A word that a lost store leaves to the mirror ends when the person said last."""
    finding = Finding(check="links", code="link.down", outcome=Outcome.FAIL, message="GPU 0: down", device=gpu_id(0))
    publisher = Publisher(tmp_path, ttl_seconds=35.0)
    for until in (None, at(-86_400), at(-3_600)):
        word = granted(open_episode(finding), note="known", actor="uid 0", time=at(600), until=until)
        snapshot = gpu_node(episodes=(word,))
        assert mirrored(publisher, snapshot, tmp_path).episodes[0].until == until
    assert publisher.close(5.0)


def test_what_opens_anew_is_mirrored_although_nobody_saw_its_end(tmp_path: Path) -> None:
    """By its last sight the next agent knows that it is there after the end that the store has of it."""
    finding = Finding(check="links", code="link.down", outcome=Outcome.FAIL, message="GPU 0: down", device=gpu_id(0))
    publisher = Publisher(tmp_path, ttl_seconds=35.0)
    for moment in (at(600), at(300)):
        fault = msgspec.structs.replace(open_episode(finding), opened=moment, last_seen=moment)
        snapshot = gpu_node(episodes=(fault,))
        assert mirrored(publisher, snapshot, tmp_path).episodes[0].last_seen == moment
    assert publisher.close(5.0)


def test_a_word_whose_fault_is_not_there_is_mirrored(tmp_path: Path) -> None:
    """A store that is lost before the fault returns loses no word of a person."""
    finding = Finding(check="links", code="link.down", outcome=Outcome.FAIL, message="GPU 0: down", device=gpu_id(0))
    word = granted(open_episode(finding), note="known", actor="uid 0", time=at(600), until=at(-86_400))
    over = msgspec.structs.replace(word, state=EpisodeState.CLEARED, cleared=at(500))
    publisher = Publisher(tmp_path, ttl_seconds=35.0)
    publisher.judged(msgspec.structs.replace(gpu_node(), covered=(over,)))
    assert publisher.close(5.0)
    mirror = read_mirror(tmp_path / MIRROR_NAME)
    assert mirror is not None
    assert mirror.episodes == (over,)


def test_a_state_file_that_cannot_be_written_keeps_nothing_out_of_the_mirror(tmp_path: Path) -> None:
    """Both are told of in one line."""
    (tmp_path / STATE_NAME).symlink_to(tmp_path / "elsewhere")
    publisher = Publisher(tmp_path, ttl_seconds=35.0)
    publisher.judged(failed_node())
    assert publisher.close(5.0)
    assert (tmp_path / MIRROR_NAME).exists()
    assert "symbolic link" in publisher.trouble


def wait_until_mirrored(publisher: Publisher, snapshot: Snapshot) -> None:
    """Wait until *publisher* says so."""
    deadline = time.monotonic() + 5
    while not publisher.has_mirrored(snapshot):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_finding_is_in_the_mirror_before_it_is_shown(tmp_path: Path) -> None:
    """And stays there when the round before it is shown meanwhile: a crash would lose it else."""
    failed = msgspec.structs.replace(failed_node(), generation=5)
    calm = msgspec.structs.replace(failed, generation=4, episodes=())
    publisher = Publisher(tmp_path, ttl_seconds=35.0)
    assert not publisher.has_mirrored(failed)
    publisher.mirror(failed)
    wait_until_mirrored(publisher, failed)
    assert not (tmp_path / STATE_NAME).exists()
    publisher.judged(calm)
    assert publisher.close(5.0)
    mirror = read_mirror(tmp_path / MIRROR_NAME)
    assert mirror is not None
    assert {entry.key for entry in mirror.episodes} == {entry.key for entry in failed.episodes}
    assert (tmp_path / STATE_NAME).exists()


def test_a_mirror_that_cannot_be_written_is_waited_for_no_longer(tmp_path: Path) -> None:
    """What it fails with is told."""
    (tmp_path / f".{MIRROR_NAME}.new").mkdir()
    publisher = Publisher(tmp_path, ttl_seconds=35.0)
    publisher.mirror(failed_node())
    wait_until_mirrored(publisher, failed_node())
    assert publisher.close(5.0)
    assert MIRROR_NAME in publisher.trouble


def test_a_mirror_that_was_removed_is_written_again(tmp_path: Path) -> None:
    """With the next state file, although nothing changed."""
    publisher = Publisher(tmp_path, ttl_seconds=35.0)
    publisher.mirror(failed_node())
    wait_until_mirrored(publisher, failed_node())
    (tmp_path / MIRROR_NAME).unlink()
    publisher.judged(failed_node())
    assert publisher.close(5.0)
    assert read_mirror(tmp_path / MIRROR_NAME) is not None


def test_what_ended_and_the_store_has_not_is_mirrored_and_then_left_out(tmp_path: Path) -> None:
    """Although nothing else of the mirror changes."""
    finding = Finding(check="links", code="link.down", outcome=Outcome.FAIL, message="GPU 0: down", device=gpu_id(0))
    over = msgspec.structs.replace(open_episode(finding), state=EpisodeState.CLEARED, cleared=at(0))
    ended: list[Episode] = []
    publisher = Publisher(tmp_path, ttl_seconds=35.0, ended=lambda: tuple(ended))
    for ended[:] in ([], [over], []):
        assert mirrored(publisher, gpu_node(), tmp_path).ended == tuple(ended)
    assert publisher.close(5.0)
