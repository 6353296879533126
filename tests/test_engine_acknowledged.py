"""The engine and the verb under a person's word: a missing device, another board in a slot, and what is answered."""

from __future__ import annotations

import argparse
import shlex
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fakes.episodes import episode
from fakes.snapshots import gpu_node
from fakes.views import GPU, GPU_READINGS, SIBLING, Quantity, at, gpu, reader, sample
from hypothesis import given
from hypothesis import strategies as st

from nodevet.agent.commands import ack
from nodevet.agent.commands.ack import _sudo_uid
from nodevet.agent.control.client import ask
from nodevet.agent.control.server import Call
from nodevet.agent.daemon.verbs import AckArguments, _find, verbs
from nodevet.agent.slurm.acknowledged import Acknowledged
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import (
    NEVER,
    NODE,
    WHOLE,
    Action,
    AgentInfo,
    Episode,
    EpisodeState,
    Failure,
    FailureKind,
    Instant,
    Key,
    Outcome,
    Part,
    PartKind,
    ReaderState,
    Scalar,
    Snapshot,
    State,
)
from nodevet.checks.engine.acknowledgement import command_words, date_words, is_announced, reopens_after_expiry
from nodevet.checks.engine.damping import later
from nodevet.checks.engine.engine import MOST_NAMES, ConfiguredCheck, Engine, Round
from nodevet.checks.engine.losses import loss_word
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.view import Cadence
from nodevet.exporters.slurm.known import KnownFault

DAY = 86_400.0
PAIR = (gpu(), gpu(SIBLING, "0000:2b:00.0"))


class Node:
    """An engine whose clock the test moves, with what the agent's socket needs of it."""

    def __init__(self, *boards: Any) -> None:
        """Begin with two healthy accelerators, or with *boards*."""
        self.seconds = 0.0
        self.boot_id = at().boot_id
        configured = [ConfiguredCheck(declared, declared.policy()) for declared in discover()]
        cadences = {("nvidia", "fast"): Cadence(10, 5)}
        self.engine = Engine(configured, node="n1", clock=lambda: self.now, cadences=cadences)
        self.kept: list[str] = [""]
        self.late: Snapshot | None = None
        self.told: tuple[Episode, ...] = ()
        self.look(*boards)

    @property
    def now(self) -> Instant:
        """The present moment."""
        return msgspec.structs.replace(at(self.seconds), boot_id=self.boot_id)

    @property
    def snapshot(self) -> Snapshot:
        """What is shown: what was judged last, unless the store is slow."""
        return self.late or self.round.snapshot

    def look(self, *devices: Any, wait: float = 10.0, **changes: Mapping[Quantity, Scalar]) -> Snapshot:
        """Read *devices*, with *changes* to the readings of the first one, and judge."""
        self.seconds += wait
        listed = devices or PAIR
        self.engine.take_devices("nvidia", listed)
        self.engine.take_readers((reader("nvidia", last_round=self.now),))
        for device in listed:
            changed = changes.get("first", {}) if device.id == GPU else {}
            self.engine.take_sample(msgspec.structs.replace(sample(device, {**GPU_READINGS, **changed}), time=self.now))
        return self.judge()

    def judge(self) -> Snapshot:
        """Judge what is known."""
        self.round: Round = self.engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10))
        return self.round.snapshot

    def acknowledge(self, key: Key, **words: Any) -> Episode | None:
        """Do as the daemon does."""
        episode = self.engine.acknowledge(key, **words)
        self.told = () if episode is None else (episode,)
        self.judge()
        return episode

    def when_kept(self, act: Any) -> None:
        """Say at once that it is on the disk."""
        act(self.kept[0])

    def ask(self, uid: int = 0, **arguments: Any) -> tuple[str, Episode]:
        """Ask by the verb, and return what it answers and the episode."""
        answers: list[Mapping[str, Any]] = []
        peer = type("Peer", (), {"uid": uid, "pid": 1, "gid": 0})()
        call = type("Call", (), {"arguments": AckArguments(**arguments), "peer": peer, "answer": answers.append})()
        verbs(cast(Any, self))["ack"].handler(cast(Call, call))
        (episode,) = (e for e in self.told if e.key.code == arguments["code"])
        return answers[0]["message"], episode


BROKEN = {("row_remap_failed", WHOLE): True}
FAILED = "memory.row_remap_failed"


def test_a_node_that_is_not_judged_tells_what_is_acknowledged() -> None:
    """An agent that starts, until its first round, and one that cannot judge: the headline says so beside that."""
    node = Node()
    (key,) = (entry.key for entry in node.look(PAIR[1]).episodes if entry.key.code == "device.missing")
    node.acknowledge(key, note="in repair", actor="uid 0", until=later(node.now, 7 * DAY))
    info = node.snapshot.agent
    fresh = Engine([], node="n1", clock=lambda: node.now)
    fresh.restore(node.engine.memory())
    starting = fresh.remembered(info).verdict
    assert (starting.state, starting.reason) == (
        State.UNKNOWN,
        "starting: no check has run yet; 1 acknowledged failure",
    )
    broken = node.engine.unjudged(node.snapshot, info, "Planted: x").verdict
    assert broken.reason == "the agent could not judge the node: Planted: x; 1 acknowledged failure"
    node.look()
    node.engine.restore(node.engine.memory())
    assert "; 1 acknowledgement covers cleared faults" in node.engine.unjudged(node.snapshot, info, "x").verdict.reason


def test_a_missing_device_is_looked_for_until_the_word_is_over() -> None:
    """Sent for repair for a week: nothing of it counts meanwhile, and then that it is missing does."""
    node = Node()
    snapshot = node.look(PAIR[1])
    (key,) = (entry.key for entry in snapshot.episodes if entry.key.code == "device.missing")
    node.acknowledge(key, note="in repair", actor="uid 0", until=later(node.now, 7 * DAY))
    assert node.look(PAIR[1]).verdict.state is State.OK
    assert "1 acknowledged failure (" in node.snapshot.verdict.reason
    assert node.look(PAIR[1], wait=8 * DAY).verdict.hard is False
    assert (node.look(PAIR[1]).verdict.state, node.snapshot.verdict.hard) == (State.FAILED, True)


def test_a_device_that_is_back_is_healthy_and_its_word_covers_another_loss() -> None:
    """Until its term is over, and the headline says so meanwhile."""
    node = Node()
    (key,) = (entry.key for entry in node.look(PAIR[1]).episodes if entry.key.code == "device.missing")
    node.acknowledge(key, note="in repair", actor="uid 0", until=later(node.now, 7 * DAY))
    verdict = node.look().verdict
    assert (verdict.state, verdict.reason.split("(")[0]) == (
        State.OK,
        "healthy; 1 acknowledgement covers cleared faults ",
    )
    assert "in repair" in verdict.reason
    assert node.look(PAIR[1]).verdict.state is State.OK


def test_a_device_that_tells_its_name_is_known_by_the_old_one() -> None:
    """Whoever remembers a fault of it by its address learns how it is called now."""
    node = Node()
    bare = msgspec.structs.replace(PAIR[0], id=PAIR[0].pci or "", uuid=None, serial=None)
    node.engine = Engine([], node="n1", clock=lambda: node.now)
    assert node.look(bare, PAIR[1]).names == {}
    assert node.look().names == {bare.id: GPU}
    assert node.look().names == {bare.id: GPU}


def test_the_names_that_devices_had_outlive_the_agent() -> None:
    """Who remembers a fault by its address may not have heard before the agent was killed; only so many are kept."""
    node = Node()
    bare = msgspec.structs.replace(PAIR[0], id=PAIR[0].pci or "", uuid=None, serial=None)
    node.engine = Engine([], node="n1", clock=lambda: node.now)
    node.look(bare, PAIR[1])
    node.look()
    memory = node.engine.memory()
    node.engine = Engine([], node="n1", clock=lambda: node.now)
    node.engine.restore(memory)
    assert node.look().names == {bare.id: GPU}
    before = {f"old-{number}": "new" for number in range(2 * MOST_NAMES)}
    node.engine.restore({**memory, "renamed": msgspec.msgpack.encode({**before, bare.id: GPU})})
    assert (len(node.look().names), node.look().names[bare.id]) == (MOST_NAMES, GPU)


def lose(node: Node) -> Snapshot:
    """Let the first accelerator answer nothing any more."""
    node.seconds += 10
    node.engine.take_devices("nvidia", PAIR)
    node.engine.take_readers((reader("nvidia", last_round=node.now),))
    fallen = sample(PAIR[0], {}, failure=Failure(FailureKind.LOST, "GPU is lost", of_driver=True))
    for taken in (fallen, sample(PAIR[1], GPU_READINGS)):
        node.engine.take_sample(msgspec.structs.replace(taken, time=node.now))
    return node.judge()


def test_a_lost_device_that_a_person_knows_leaves_the_node_ok() -> None:
    """It answers nothing and stays unknown itself; the headline says that it is acknowledged."""
    node = Node()
    snapshot = lose(node)
    assert (snapshot.verdict.state, snapshot.verdict.hard) == (State.FAILED, True)
    for entry in snapshot.episodes:
        node.acknowledge(entry.key, note="board ordered", actor="uid 0", until=later(node.now, DAY))
    snapshot = lose(node)
    assert (snapshot.verdict.state, snapshot.device_verdicts[GPU].state) == (State.OK, State.UNKNOWN)
    assert "1 acknowledged failure (" in snapshot.verdict.reason


def test_another_fault_of_a_lost_device_counts() -> None:
    """Only that it answers nothing is known; what else is open on it is not."""
    node = Node()
    node.look(first=BROKEN)
    (key,) = (entry.key for entry in lose(node).episodes if entry.key.code == "device.lost")
    node.acknowledge(key, note="board ordered", actor="uid 0")
    assert lose(node).verdict.state is State.FAILED


@pytest.mark.parametrize(("first", "days"), [("device.lost", None), ("device.lost", 7), ("device.missing", 7)])
def test_a_loss_that_a_person_knows_is_known_under_its_other_code(first: str, days: int | None) -> None:
    """A board that answers no more is not listed any more after a restart: that is the same loss, and no news."""
    node = Node()
    looks: dict[str, Callable[[], Snapshot]] = {
        "device.lost": lambda: lose(node),
        "device.missing": lambda: node.look(PAIR[1]),
    }
    (key,) = (entry.key for entry in looks.pop(first)().episodes if entry.key.code == first)
    until = None if days is None else later(node.now, days * DAY)
    node.acknowledge(key, note="board ordered", actor="uid 0", until=until)
    ((other, look),) = looks.items()
    snapshot = look()
    assert (snapshot.verdict.state, snapshot.verdict.hard) == (State.OK, False)
    (again,) = (entry for entry in snapshot.episodes if entry.key.code == other)
    assert (again.state, again.note, again.until) == (EpisodeState.ACKNOWLEDGED, "board ordered", until)
    assert node.look(PAIR[1]).verdict.state is State.OK


def test_a_loss_counts_that_no_word_in_force_is_about() -> None:
    """One that was over, one whose word has expired, that of another board, and what is no loss."""
    node = Node()
    (key,) = (entry.key for entry in lose(node).episodes if entry.key.code == "device.lost")
    node.acknowledge(key, note="board ordered", actor="uid 0")
    node.look()
    assert node.look(PAIR[1]).verdict.hard
    node = Node()
    node.acknowledge(lose(node).episodes[0].key, note="board ordered", actor="uid 0", until=later(node.now, DAY))
    node.look(PAIR[1], wait=2 * DAY)
    assert node.look(PAIR[1]).verdict.hard
    node = Node()
    word = node.acknowledge(lose(node).episodes[0].key, note="board ordered", actor="uid 0")
    assert word is not None
    named = {code: msgspec.structs.replace(word.key, code=code) for code in ("device.missing", "device.unread")}
    assert loss_word(named["device.missing"], [word]) is word
    assert loss_word(msgspec.structs.replace(named["device.missing"], device=SIBLING), [word]) is None
    assert loss_word(named["device.unread"], [word]) is None


def test_a_lost_device_whose_word_expired_counts_with_the_next_look() -> None:
    """The node is degraded, and failed when it is still lost."""
    node = Node()
    for entry in lose(node).episodes:
        node.acknowledge(entry.key, note="board ordered", actor="uid 0", until=later(node.now, DAY))
    node.seconds += DAY
    states = [lose(node).verdict for _ in range(3)]
    assert states[0].hard is False
    assert states[0].state is not State.OK
    assert (states[-1].state, states[-1].hard) == (State.FAILED, True)


def test_readings_of_a_board_are_not_those_of_its_successor() -> None:
    """Another serial under the same id: what was read of the board before is gone with it."""
    node = Node()
    assert node.look(first=BROKEN).verdict.state is State.FAILED
    node.seconds += 10
    node.engine.take_devices("nvidia", (gpu(serial="another"), PAIR[1]))
    snapshot = node.judge()
    assert [entry.key.code for entry in snapshot.episodes if entry.key.code == FAILED] == []
    assert snapshot.device_verdicts[GPU].state is not State.OK


def test_a_word_with_a_term_covers_the_return_of_a_fault_of_the_hardware() -> None:
    """A reading that comes and goes closes nothing for a week; a worse fault does, and so does the first after it."""
    node = Node()
    node.look(first=BROKEN)
    node.ask(code=FAILED, device=GPU, note="board ordered", until="7d")
    for _ in range(3):
        reason = node.look().verdict.reason
        assert reason.startswith("healthy; 1 acknowledgement covers cleared faults (")
        assert "acknowledged by uid 0 on " in reason
        assert [episode.note for episode in node.snapshot.covered] == ["board ordered"]
        verdict = node.look(first=BROKEN).verdict
        assert (verdict.state, verdict.hard) == (State.OK, False)
        assert "1 acknowledged failure (" in verdict.reason
        assert node.snapshot.covered == ()
    node.look()
    assert node.look(first=BROKEN, wait=8 * DAY).verdict.hard


def test_a_word_whose_fault_is_not_there_outlives_a_store_that_is_lost() -> None:
    """The next agent of this boot has the mirror alone: all of the present state goes through it."""
    node = Node()
    node.look(first=BROKEN)
    node.ask(code=FAILED, device=GPU, note="board ordered", until="7d")
    node.look()
    lasting = node.engine.episodes
    assert lasting == (*node.snapshot.episodes, *node.snapshot.covered)
    after = Node()
    after.engine.adopt(lasting)
    assert after.judge().covered == node.snapshot.covered
    verdict = after.look(first=BROKEN).verdict
    assert (verdict.state, verdict.hard) == (State.OK, False)
    assert "1 acknowledged failure (" in verdict.reason


def test_a_word_whose_fault_is_not_there_can_be_given_another_term() -> None:
    """Announced is its end, so what is typed against that works; a term is what it is about."""
    node = Node()
    node.look(first=BROKEN)
    node.ask(code=FAILED, device=GPU, note="board ordered", until="2d")
    node.look()
    with pytest.raises(UsageError, match=r"not present now, and its return is acknowledged until .*: set --until"):
        node.ask(code=FAILED, device=GPU, note="n")
    message, word = node.ask(code=FAILED, device=GPU, note="board is late", until="7d", uid=7)
    assert message.endswith(f"or if it returns after {date_words(later(node.now, 7 * DAY))}")
    assert "a return is acknowledged too, acknowledged by uid 7 on " in (word.cleared_by or "")
    (covered,) = node.judge().covered
    assert (covered.note, covered.actor, covered.until) == ("board is late", "uid 7", later(node.now, 7 * DAY))
    assert node.look(first=BROKEN, wait=6 * DAY).verdict.state is State.OK
    assert node.look(first=BROKEN, wait=2 * DAY).verdict.state is State.DEGRADED
    assert node.look(first=BROKEN).verdict.hard


def test_a_word_makes_nothing_green_that_is_not_measured() -> None:
    """That a device is unread may be known; what it would tell stays unknown."""
    node = Node()

    def silent() -> Snapshot:
        node.seconds += 60
        node.engine.take_devices("nvidia", PAIR)
        node.engine.take_readers((reader("nvidia", last_round=at(10)),))
        return node.judge()

    assert [silent().verdict.state for _ in range(12)][-1] is State.UNKNOWN
    for entry in node.snapshot.episodes:
        node.acknowledge(entry.key, note="known", actor="uid 0")
    assert (silent().verdict.state, node.snapshot.device_verdicts[GPU].state) == (State.UNKNOWN, State.UNKNOWN)
    assert {entry.state for entry in node.snapshot.episodes} == {EpisodeState.ACKNOWLEDGED}


LOST = Failure(FailureKind.LOST, "GPU is lost", of_driver=True)
BARE = msgspec.structs.replace(PAIR[0], id=PAIR[0].pci or "", uuid=None, serial=None)


def nameless_and_lost(node: Node) -> Snapshot:
    """Let the first board, which never told its name, be lost, and a person acknowledge that for a week."""
    node.engine = Engine(
        [ConfiguredCheck(entry, entry.policy()) for entry in discover()], node="n1", clock=lambda: node.now
    )
    node.look(BARE, PAIR[1])
    node.engine.take_sample(msgspec.structs.replace(sample(BARE, {}, failure=LOST), time=node.now))
    (key,) = (entry.key for entry in node.judge().episodes if entry.key.code == "device.lost")
    node.acknowledge(key, note="board ordered", actor="uid 0", until=later(node.now, 7 * DAY))
    return node.judge()


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("rebooted", [False, True])
def test_a_word_about_a_board_without_a_name_is_not_about_its_successor(rebooted: bool, answers: bool) -> None:
    """A board is exchanged while the power is off: what tells its name in the same boot is the one that was meant."""
    node = Node()
    assert nameless_and_lost(node).verdict.state is State.OK
    if answers:
        assert [entry.key.device for entry in node.look(BARE, PAIR[1]).covered] == [BARE.id]
    if rebooted:
        node.boot_id = "another boot"
    assert [entry.key.device for entry in node.look().covered] == ([] if rebooted else [GPU])
    node.engine.take_sample(msgspec.structs.replace(sample(PAIR[0], {}, failure=LOST), time=node.now))
    assert node.judge().verdict.hard is rebooted
    assert {entry.key.device for entry in node.round.snapshot.episodes} == {GPU}


@pytest.mark.parametrize("rebooted", [False, True])
def test_a_word_goes_on_under_the_name_that_is_told_although_the_store_was_lost(rebooted: bool) -> None:
    """The mirror of this boot alone speaks of the address; the agent that reads it is told the name at once."""
    node, after = Node(), Node()
    nameless_and_lost(node)
    after.seconds, after.boot_id = node.seconds, "another boot" if rebooted else node.boot_id
    after.engine = Engine(
        [ConfiguredCheck(entry, entry.policy()) for entry in discover()], node="n1", clock=lambda: after.now
    )
    after.engine.adopt(node.engine.episodes)
    assert after.look().names == ({} if rebooted else {BARE.id: GPU})
    assert [entry.key.device for entry in after.snapshot.covered] == ([] if rebooted else [GPU])


def test_the_headline_of_a_failed_node_says_that_words_cover_what_is_not_seen() -> None:
    """How many: who, when and why stand on the page, in JSON and in metrics."""
    node = Node()
    node.look(first=BROKEN)
    node.ask(code=FAILED, device=GPU, note="board ordered", until="7d")
    node.look()
    reason = node.look(PAIR[0]).verdict.reason
    assert node.snapshot.verdict.state is State.FAILED
    assert reason.endswith("; 1 acknowledgement covers cleared faults")


def test_a_board_that_is_left_alone_stays_unknown_under_every_word() -> None:
    """Its loss is not measured either: who acknowledges that knows of no lost device."""
    node = Node()
    node.engine = Engine(
        [ConfiguredCheck(declared, declared.policy()) for declared in discover()],
        node="n1",
        clock=lambda: node.now,
        cadences={("nvidia", "fast"): Cadence(10, 5)},
    )
    pci = PAIR[0].pci or ""
    bare = msgspec.structs.replace(PAIR[0], id=pci, uuid=None, serial=None, backend="host", driver="nvidia")

    def look() -> Snapshot:
        node.seconds += 10
        node.engine.take_devices("host", (bare,))
        node.engine.take_devices("nvidia", (PAIR[1],))
        fell = msgspec.structs.replace(reader("nvidia", last_round=node.now), quarantined=(pci,))
        node.engine.take_readers((fell, reader("host", last_round=node.now)))
        node.engine.take_sample(msgspec.structs.replace(sample(PAIR[1], GPU_READINGS), time=node.now))
        return node.judge()

    look()
    assert {(entry.key.code, entry.outcome) for entry in look().episodes} == {
        ("device.lost", Outcome.UNMEASURED),
        ("device.unread", Outcome.UNMEASURED),
    }
    for entry in node.snapshot.episodes:
        node.acknowledge(entry.key, note="known", actor="uid 0")
    assert (look().verdict.state, node.snapshot.verdict.reason.split("; ")[-1]) == (
        State.UNKNOWN,
        "2 acknowledged findings",
    )


def test_the_end_of_a_word_about_a_board_that_is_left_alone_waits_until_it_is_tried_again() -> None:
    """It hung its reader twice, and each round tells that anew for up to ten minutes without a look of its own."""
    node = Node()

    def hung(fell: Instant) -> Snapshot:
        node.seconds += 10
        node.engine.take_readers((reader("nvidia", last_round=node.now, quarantined=(GPU,), blamed={GPU: 2}),))
        failure = Failure(FailureKind.HUNG, "a call has not returned", of_driver=True, as_of=fell)
        for taken in (sample(PAIR[0], {}, failure=failure), sample(PAIR[1], GPU_READINGS)):
            node.engine.take_sample(msgspec.structs.replace(taken, time=node.now))
        return node.judge()

    assert hung(at()).verdict.hard
    node.ask(code="reader.hung", device=GPU, note="known", until="1h")
    node.seconds += 3600
    assert [hung(at()).verdict.hard for _ in range(3)] == [False] * 3
    assert hung(node.now).verdict.hard


@pytest.mark.parametrize("looked", ["before", "never"], ids="looked {}".format)
def test_the_end_of_a_word_about_what_is_not_read_waits_until_its_driver_is_asked(looked: str) -> None:
    """No process can be forked for its reader: that is told in each round, and is no look at the board."""
    node = Node()

    def blind(asked: Instant | None) -> dict[str, EpisodeState]:
        node.seconds += 10
        failure = Failure(FailureKind.READER, "cannot be started: no process may be started", as_of=asked or NEVER)
        crashed = reader("nvidia", ReaderState.CRASHED, last_round=None, failure=failure, looked=asked)
        node.engine.take_readers((crashed,))
        for board in PAIR:
            node.engine.take_sample(msgspec.structs.replace(sample(board, {}, failure=failure), time=node.now))
        node.judge()
        return {entry.key.code: entry.state for entry in node.snapshot.episodes if entry.key.device in (GPU, NODE)}

    asked = node.now if looked == "before" else None
    assert set(blind(asked)) == {"device.unread", "reader.down"}
    for code, device in (("device.unread", GPU), ("reader.down", NODE)):
        node.ask(code=code, device=device, note="more memory comes", until="1h")
    node.seconds += 3600
    assert [set(blind(asked).values()) for _ in range(3)] == [{EpisodeState.ACKNOWLEDGED}] * 3
    assert all(entry.expired for entry in node.snapshot.episodes if entry.key.device in (GPU, NODE))
    assert set(blind(node.now).values()) == {EpisodeState.OPEN}


def test_a_look_of_another_boot_is_behind_no_end() -> None:
    """An end that was noticed in this boot is later than all of those before; a look of now is later than it."""
    (word,) = (entry for entry in Node().look(first=BROKEN).episodes if entry.key.code == FAILED)
    now, earlier = at(60.0), msgspec.structs.replace(at(90.0), boot_id="an earlier boot")
    for expired, taken, counts in ((now, earlier, False), (earlier, now, True), (earlier, NEVER, False)):
        over = msgspec.structs.replace(word, state=EpisodeState.ACKNOWLEDGED, expired=expired)
        finding = msgspec.structs.replace(word.finding, evidence_time=now, as_of=taken)
        assert reopens_after_expiry(over, finding, now) is counts


def test_the_answer_names_the_end_of_the_term() -> None:
    """With the actor that the kernel names, and who became root by sudo."""
    node = Node()
    node.look(first=BROKEN)
    message, episode = node.ask(code=FAILED, device=GPU, note=" INC-1 ", until="7d", sudo_uid=1000)
    assert message.endswith(f"or if it is still present after {date_words(later(node.now, 7 * DAY))}")
    assert (episode.actor, episode.note) == ("uid 0 (sudo by uid 1000)", "INC-1")
    assert episode.until == later(node.now, 7 * DAY)
    assert not is_announced(episode, node.now)


@pytest.mark.parametrize(
    "name", ["GPU 5", "gpu5", "5", "1b:00.0", f"GPU 5 ({PAIR[0].pci})", PAIR[0].serial, GPU.upper()]
)
@pytest.mark.parametrize("gone", [False, True])
def test_a_finding_is_acknowledged_under_every_name_of_its_device(name: str, gone: bool) -> None:
    """Also where the device is gone: then it is told by what it was."""
    node = Node()
    boards = (msgspec.structs.replace(PAIR[0], minor=5), msgspec.structs.replace(PAIR[1], minor=6))
    node.look(*boards)
    if gone:
        node.look(boards[1])
    else:
        node.look(*boards, first=BROKEN)
    node.ask(code="device.missing" if gone else FAILED, device=name, note="n")
    assert node.snapshot.verdict.reason.startswith("1 acknowledged failure (")


_DEVICES = ("node", "GPU-Aa", "gpu5", "5", 'rack 7\'s "board"', "0000:1B:00.0", "-x", "$(id)")
_PARTS = (
    WHOLE,
    Part(PartKind.LINK, index=1),
    Part(PartKind.LINK, index=17),
    Part(PartKind.MEMORY_BLOCK, "vendor:GFX"),
    Part(PartKind.SENSOR, "vendor:It's hot", 2),
)


@given(
    keys=st.lists(
        st.builds(Key, st.sampled_from(["a.b", "nvidia.xid.79"]), st.sampled_from(_DEVICES), st.sampled_from(_PARTS)),
        min_size=1,
        max_size=12,
        unique=True,
    )
)
def test_what_is_printed_to_type_acknowledges_just_that(keys: list[Key]) -> None:
    """Through a shell, whatever else is open."""
    parser = argparse.ArgumentParser()
    ack.configure(parser)
    opened = tuple(msgspec.structs.replace(episode(key.code), key=key) for key in keys)
    snapshot = msgspec.structs.replace(gpu_node(), episodes=opened)
    for key in keys:
        typed = parser.parse_args(shlex.split(f"{command_words(key)} --note n"))
        wanted = AckArguments(code=typed.code, note=typed.note, device=typed.device, part=typed.part)
        assert _find(snapshot, wanted).key == key


def test_a_number_that_two_boards_have_is_refused_with_what_to_type() -> None:
    """Nothing is acknowledged by accident."""
    node = Node()
    node.look(PAIR[0])
    node.look(first=BROKEN)
    node.engine.take_sample(msgspec.structs.replace(sample(PAIR[1], {**GPU_READINGS, **BROKEN}), time=node.now))
    node.judge()
    with pytest.raises(UsageError, match=f"several findings: choose one of {FAILED} --device {GPU}, {FAILED} --device"):
        node.ask(code=FAILED, device="gpu0", note="n")


def test_a_code_without_its_device_is_refused_with_the_findings_of_that_code() -> None:
    """Among many findings, those that can be meant are named; a code that none has is answered with all."""
    node = Node()
    node.look(first=BROKEN)
    with pytest.raises(UsageError, match=f"no finding {FAILED} on node; choose one of {FAILED} --device {GPU}"):
        node.ask(code=FAILED, device="node", note="n")
    with pytest.raises(UsageError, match=f"no finding nothing on node; findings now: .*{FAILED} --device {GPU}"):
        node.ask(code="nothing", device="node", note="n")


def test_only_root_says_on_whose_behalf_it_acts() -> None:
    """Another caller is who the kernel says it is."""
    node = Node()
    node.look(first=BROKEN)
    message, episode = node.ask(uid=77, code=FAILED, device=GPU, note="n", sudo_uid=0)
    assert episode.actor == "uid 77"
    assert message.endswith("it counts again if it needs a more severe action, or if it clears and occurs again")


CHANGES = {
    "the same": (Action.REPLACE, PAIR[0].serial, True),
    "a harder action": (Action.RESET_DEVICE, PAIR[0].serial, False),
    "another board": (Action.REPLACE, "another", False),
}
"""What was shown of a board that is to be replaced by now, and whether who saw that knows of it."""


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_shown_yet_is_not_acknowledged_with_what_is(change: str) -> None:
    """It waits for a slow disk: who types, or resumes the node, has seen neither. The next look shows it."""
    action, serial, knew = CHANGES[change]
    node = Node()
    node.look(first=BROKEN)
    (fault,) = (entry for entry in node.snapshot.episodes if entry.key.code == FAILED)
    finding = msgspec.structs.replace(fault.finding, action=action)
    shown = msgspec.structs.replace(fault, finding=finding, serial=serial, opened=later(fault.opened, -5.0))
    known = KnownFault(shown.key, shown.opened, shown.count, action, until=later(node.now, 60.0), serial=serial)
    resumed = Acknowledged(known, note="n")
    node.late = msgspec.structs.replace(node.snapshot, episodes=(shown,))
    if not knew:
        with pytest.raises(UsageError, match="has changed since it was shown: run nodevet status"):
            node.ask(code=FAILED, device=GPU, note="n")
        assert node.acknowledge(fault.key, note="n", actor="somebody in SLURM", knew=resumed.meant) is None
        assert node.judge().verdict.state is State.FAILED
    else:
        node.ask(code=FAILED, device=GPU, note="n")
        assert node.judge().verdict.state is State.OK
        word = node.acknowledge(fault.key, note="r", actor="r", knew=resumed.meant, until=resumed.returns)
        assert word is not None
        assert (word.note, word.actor, word.covers) == ("n", "uid 0", known.until)
        assert node.acknowledge(fault.key, note="r", actor="r", knew=resumed.meant, until=resumed.returns) is None
    node.late = None
    node.ask(code=FAILED, device=GPU, note="n")
    assert node.judge().verdict.state is State.OK


def test_a_word_that_could_not_be_kept_says_so() -> None:
    """The disk is full: it counts, and a crash would lose it."""
    node = Node()
    node.look(first=BROKEN)
    node.kept = ["disk full"]
    assert "not stored (disk full): a crash would lose it" in node.ask(code=FAILED, device=GPU, note="n")[0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"until": "soon"}, "write a duration"), ({"until": "400d"}, "at most"), ({"note": " "}, "empty")],
)
def test_what_is_refused_changes_nothing(wrong: dict[str, str], said: str) -> None:
    """A wrong term or note leaves the fault open."""
    node = Node()
    node.look(first=BROKEN)
    with pytest.raises(UsageError, match=said):
        node.ask(0, **{"code": FAILED, "device": GPU, "note": "n", **wrong})
    assert {entry.state for entry in node.judge().episodes if entry.key.code == FAILED} == {EpisodeState.OPEN}


@pytest.mark.parametrize(
    ("text", "uid"), [("1000", 1000), ("", None), ("-1", None), ("root", None), ("99999999999", None)]
)
def test_sudo_is_read_from_its_variable(text: str, uid: int | None) -> None:
    """What is no number is left out."""
    assert _sudo_uid(text) == uid


@pytest.mark.parametrize("word", ["note", "code", "device", "part", "until"])
def test_bytes_that_are_no_text_are_refused_with_the_word_that_holds_them(tmp_path: Path, word: str) -> None:
    """What a terminal of another encoding sends; nothing of it reaches the agent, and one line says what to do."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        arguments: dict[str, Any] = {
            "code": FAILED,
            "note": "board ordered",
            word: b"caf\xe9".decode("utf-8", "surrogateescape"),
        }
        with pytest.raises(UsageError, match=f"ack: the {word} is not UTF-8 text: type it again"):
            ask(path, "ack", **arguments)
