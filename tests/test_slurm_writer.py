"""The writer's passes over a SLURM that the test moves, and what it remembers, counts and tells."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.slurm_in_memory import MemorySlurm
from fakes.snapshots import degraded_node, failed_node, gpu_node

from nodevet.agent.settings import SlurmSettings
from nodevet.agent.slurm.memory import load_memory, pack, save_memory
from nodevet.agent.slurm.reactor import Reactor
from nodevet.agent.slurm.writer import Pass, Writer
from nodevet.agent.text import status_text
from nodevet.checks.errors import StoreError
from nodevet.checks.model import EpisodeState, Mode, Modes, Snapshot
from nodevet.checks.scheduler import WriterStatus
from nodevet.exporters.schema import status_document
from nodevet.exporters.slurm_rules import Known, Memory, Why

SETTINGS = SlurmSettings(writer="drain", poll_seconds=30, maximum_drained_ratio=1.0)
FAILED = failed_node()
KNOWN = tuple(Known(episode.key, episode.opened, episode.count) for episode in FAILED.episodes)


def writer(slurm: MemorySlurm, memory: Memory | None = None, **changes: object) -> Writer:
    """Return a writer for node n1."""
    settings = msgspec.structs.replace(SETTINGS, **changes)
    return Writer(slurm, settings, "n1", wall_seconds=lambda: 0.0, memory=memory or Memory())


def acknowledged(snapshot: Snapshot) -> Snapshot:
    """Return *snapshot* as the engine makes it when its faults were acknowledged."""
    known = tuple(msgspec.structs.replace(entry, state=EpisodeState.ACKNOWLEDGED) for entry in snapshot.episodes)
    return msgspec.structs.replace(snapshot, episodes=known)


def skips(done: Pass) -> dict[str, int]:
    """Return what was counted."""
    return {why: count for why, count in done.status.skipped.items() if count}


def test_a_healthy_node_is_asked_for_once_and_left_alone() -> None:
    """At the start, so that a wrong name is told at once; then nothing gives cause."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    last = [passes.step(gpu_node()) for _ in range(3)][-1]
    assert slurm.calls == ["read"]
    assert (last.status.states, last.status.doing, skips(last)) == (("IDLE",), "", {})


def test_a_hard_fault_is_written_after_a_second_look_and_read_back() -> None:
    """Read, the whole fleet, read again, write, read."""
    slurm = MemorySlurm()
    done = writer(slurm).step(FAILED)
    assert slurm.calls == ["read", "read_all", "read", "drain", "read"]
    assert slurm.nodes["n1"].drained
    assert slurm.nodes["n1"].reason.endswith("[power_cycle]")
    assert (done.status.writes, done.status.drained_by, done.status.wanted) == (
        {"drain": 1, "update": 0},
        "nodevet",
        "",
    )
    assert done.memory == Memory(slurm.nodes["n1"].reason, KNOWN)


@pytest.mark.parametrize(
    "snapshot",
    [
        degraded_node(),
        acknowledged(FAILED),
        msgspec.structs.replace(FAILED, simulated=True),
        msgspec.structs.replace(FAILED, modes=Modes(Mode.GATE)),
        msgspec.structs.replace(FAILED, modes=Modes(Mode.DRAIN, {"kernel-log": Mode.OBSERVE})),
        msgspec.structs.replace(FAILED, agent=msgspec.structs.replace(FAILED.agent, ready=False)),
        msgspec.structs.replace(FAILED, agent=msgspec.structs.replace(FAILED.agent, stopping=True)),
    ],
    ids=["measured", "acknowledged", "simulated", "gate", "check observes", "starting", "stopping"],
)
def test_what_may_not_drain_is_not_written(snapshot: Snapshot) -> None:
    """Whatever the writer may do."""
    slurm = MemorySlurm()
    assert writer(slurm).step(snapshot).status.wanted == ""
    assert slurm.writes == []


@pytest.mark.parametrize("why", [why for why in Why if why.value.startswith("read_")] + [Why.STUCK, Why.NO_COMMAND])
@pytest.mark.parametrize("call", ["read", "read_all"])
def test_a_read_that_fails_is_no_write(call: str, why: Why) -> None:
    """Neither of the node nor of the fleet; it is counted and told, and tried again with the next poll."""
    slurm = MemorySlurm()
    slurm.fail = {call: why}
    done = writer(slurm).step(FAILED)
    assert (slurm.writes, skips(done), done.again_seconds) == ([], {why.value: 1}, SETTINGS.poll_seconds)
    assert "made to fail" in done.status.trouble


def test_a_failed_read_without_a_fault_is_told_and_not_counted() -> None:
    """Nothing was due; but somebody must learn that the name or the right is wrong."""
    slurm = MemorySlurm()
    slurm.fail = {"read": Why.READ_FAILED}
    done = writer(slurm).step(gpu_node())
    assert (skips(done), bool(done.status.trouble)) == ({}, True)


def test_nhc_161_a_scontrol_that_times_out_is_no_fault_of_the_node() -> None:
    """There "Script timed out" drained racks and named no step; here the step is named, and a healthy node stays so."""
    slurm = MemorySlurm()
    slurm.fail = {"read": Why.READ_TIMEOUT}
    passes = writer(slurm)
    for snapshot in (gpu_node(), FAILED, gpu_node()):
        done = passes.step(snapshot)
        assert done.status.trouble.startswith("scontrol read: ")
    assert (slurm.writes, skips(done)) == ([], {"read_timeout": 1})


def test_a_person_who_is_faster_wins() -> None:
    """A drain by hand between the decision and the write is seen by the second look."""
    slurm = MemorySlurm()

    def by_hand(call: str) -> None:
        if call == "read_all":
            slurm.set("n1", "IDLE", "DRAIN", reason="ops: fan")

    slurm.before = by_hand
    passes = writer(slurm)
    done = passes.step(FAILED)
    assert (slurm.nodes["n1"].reason, slurm.writes, skips(done)) == ("ops: fan", [], {"changed": 1})
    assert done.again_seconds < SETTINGS.poll_seconds
    assert skips(passes.step(FAILED)) == {"changed": 1, "foreign_reason": 1}


@pytest.mark.parametrize("why", [Why.WRITE_FAILED, Why.WRITE_TIMEOUT, Why.DENIED])
def test_a_write_that_fails_is_tried_again_and_never_taken_for_a_resume(why: Why) -> None:
    """The node is not drained because nothing was written, which is not a person's word."""
    slurm = MemorySlurm()
    slurm.fail = {"drain": why}
    passes = writer(slurm)
    done = passes.step(FAILED)
    assert (skips(done), done.memory.drained, done.acknowledged) == ({why.value: 1}, None, ())
    slurm.fail = {}
    assert passes.step(FAILED).status.writes["drain"] == 1


def test_a_person_who_resumes_at_once_is_not_fought() -> None:
    """SLURM accepted the drain and shows the node in service right after: somebody was there."""
    slurm = MemorySlurm()

    def by_hand(call: str) -> None:
        if call == "read" and slurm.calls[-2:-1] == ["drain"]:
            slurm.set("n1", "IDLE")

    slurm.before = by_hand
    passes = writer(slurm)
    done = passes.step(FAILED)
    assert (skips(done), done.again_seconds < SETTINGS.poll_seconds) == ({"unverified": 1}, True)
    assert len(passes.step(FAILED).acknowledged) == 1
    assert len(slurm.writes) == 1


def test_a_resume_is_acknowledged_until_it_is_done_and_never_fought() -> None:
    """The acknowledgement is told with every pass until the fault counts no more."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    reason = passes.step(FAILED).memory.drained
    slurm.set("n1", "IDLE")
    done = passes.step(FAILED)
    assert [(entry.known, entry.note) for entry in done.acknowledged] == [
        (KNOWN[0], f"resumed in SLURM by a person, drained before with: {reason}")
    ]
    assert (done.again_seconds, done.status.acknowledged) == (0.0, 1)
    assert len(passes.step(FAILED).acknowledged) == 1
    done = passes.step(acknowledged(FAILED))
    assert (done.acknowledged, done.memory) == ((), Memory())
    assert len(slurm.writes) == 1


def test_a_restart_at_any_moment_fights_no_resume() -> None:
    """A new writer with the memory of each pass goes on as the old one would have."""
    slurm = MemorySlurm()
    memory = writer(slurm).step(FAILED).memory
    memory = writer(slurm, memory).step(FAILED).memory
    slurm.set("n1", "IDLE")
    memory = writer(slurm, memory).step(FAILED).memory
    done = writer(slurm, memory).step(FAILED)
    assert len(done.acknowledged) == 1
    assert len(slurm.writes) == 1


def test_the_reason_of_a_person_goes_into_no_note() -> None:
    """Notes leave over plain HTTP; what a person wrote into SLURM stays there."""
    slurm = MemorySlurm()
    slurm.set("n1", "IDLE", "DRAIN", reason="ops: ask bob")
    passes = writer(slurm)
    passes.step(FAILED)
    slurm.set("n1", "IDLE")
    (entry,) = passes.step(FAILED).acknowledged
    assert entry.note == "resumed in SLURM by a person"


def test_observe_decides_and_does_nothing() -> None:
    """It reads, says what it would do, and acknowledges nothing."""
    slurm = MemorySlurm()
    passes = writer(slurm, writer="observe")
    done = passes.step(FAILED)
    assert done.status.doing.startswith("would drain with: nodevet: hw kernel-log: ")
    assert (done.status.wanted != "", slurm.writes) == (True, [])
    slurm.set("n1", "IDLE", "DRAIN", reason="ops: fan")
    passes.step(FAILED)
    slurm.set("n1", "IDLE")
    done = passes.step(FAILED)
    assert (done.acknowledged, "would be acknowledged" in done.status.doing) == ((), True)


def test_the_limit_stops_the_drain_and_is_told() -> None:
    """Too many at once is a bad rollout, not bad nodes."""
    slurm = MemorySlurm()
    slurm.set("n2", "IDLE", "DRAIN", reason="nodevet: hw thermal: hot [inspect]")
    done = writer(slurm, maximum_drained_ratio=0.25).step(FAILED)
    assert (slurm.writes, skips(done), done.status.limit_reached) == ([], {"limit": 1}, True)
    assert "1 of 3 nodes are drained by nodevet, which is the limit" in done.status.doing


def test_a_node_waits_for_its_turn_and_then_looks_again() -> None:
    """n2 of three: its turn comes two seconds later."""
    slurm = MemorySlurm()
    now = [0.0]
    settings = msgspec.structs.replace(SETTINGS, maximum_drained_ratio=0.25)
    passes = Writer(slurm, settings, "n2", wall_seconds=lambda: now[0], memory=Memory())
    done = passes.step(FAILED)
    assert (slurm.writes, done.again_seconds, skips(done)) == ([], 2.0, {})
    now[0] += done.again_seconds
    assert passes.step(FAILED).status.writes["drain"] == 1


def test_a_node_whose_gate_closed_waits_for_no_turn_and_no_limit() -> None:
    """SLURM drains it in any case; all that is to be gained is the reason."""
    slurm = MemorySlurm()
    slurm.set("n1", "IDLE", "DRAIN", reason="nodevet: hw thermal: hot [inspect]")
    settings = msgspec.structs.replace(SETTINGS, maximum_drained_ratio=0.25)
    passes = Writer(slurm, settings, "n2", wall_seconds=lambda: 0.0, memory=Memory())
    assert (passes.step(FAILED).status.limit_reached, slurm.writes) == (True, [])
    assert passes.step(FAILED, gate_closed=True).status.writes["drain"] == 1
    slurm.set("n2", "IDLE", "DRAIN", reason="Prolog error")
    assert len(slurm.writes) == 1
    assert passes.step(FAILED, gate_closed=True).status.writes["drain"] == 1


def test_a_drain_of_slurm_itself_is_left_and_told_apart() -> None:
    """Its reason is not ours to replace; but nobody else was there, and gate.log knows more."""
    slurm = MemorySlurm()
    slurm.set("n1", "IDLE", "DRAIN", reason="Prolog error")
    done = writer(slurm).step(FAILED, gate_closed=True)
    assert (slurm.writes, skips(done)) == ([], {"foreign_reason": 1})
    assert "gate.log" in done.status.doing


def test_the_fleet_is_counted_again_in_our_turn() -> None:
    """A node whose turn came before has drained itself meanwhile: then the limit is reached."""
    slurm = MemorySlurm()

    def neighbour(call: str) -> None:
        if call == "read_all" and slurm.calls.count("read_all") == 2:
            slurm.set("n2", "IDLE", "DRAIN", reason="nodevet: hw thermal: hot [inspect]")

    slurm.before = neighbour
    done = writer(slurm, maximum_drained_ratio=0.25).step(FAILED)
    assert (slurm.writes, skips(done)) == ([], {"limit": 1})


@pytest.mark.parametrize(("seconds", "drains", "why"), [(0.5, 1, {}), (0.75, 0, {"changed": 1})])
def test_a_turn_is_begun_early_and_not_used_when_it_went_by(seconds: float, drains: int, why: dict[str, int]) -> None:
    """SLURM takes so long for a call: the first turn is missed, the second met; too late, and the next node looks."""
    slurm = MemorySlurm()
    now = [0.0]

    def slow(_call: str) -> None:
        now[0] += seconds

    slurm.before = slow
    settings = msgspec.structs.replace(SETTINGS, maximum_drained_ratio=0.25)
    passes = Writer(slurm, settings, "n1", wall_seconds=lambda: now[0], memory=Memory())
    done = passes.step(FAILED)
    assert slurm.writes == []
    assert now[0] + done.again_seconds == 6.0 - 2 * seconds
    now[0] += done.again_seconds
    done = passes.step(FAILED)
    assert (done.status.writes["drain"], skips(done)) == (drains, why)


def test_our_reason_follows_a_graver_fault() -> None:
    """Only the reason is written, so that a node which was resumed meanwhile stays in service."""
    slurm = MemorySlurm()
    slurm.set("n1", "IDLE", "DRAIN", reason="nodevet: hw memory-errors: uncorrected [drain_reset]")
    done = writer(slurm).step(FAILED)
    assert done.status.writes == {"drain": 0, "update": 1}
    assert slurm.calls == ["read", "read", "update", "read"]
    assert slurm.nodes["n1"].reason.endswith("[power_cycle]")


def test_every_reason_is_in_the_reference_page(repository: Path) -> None:
    """Whoever sees a label finds its meaning."""
    page = (repository / "docs" / "reference" / "slurm-writer.md").read_text()
    assert [why.value for why in Why if f"`{why.value}`" not in page] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drained_by": "nodevet"}, "slurm: drained by nodevet\n"),
        ({"drained_by": "other"}, "slurm: drained by somebody else\n"),
        ({"drained_by": "other", "doing": "does not drain: x"}, "slurm: does not drain: x\n"),
        ({"doing": "would drain with: y"}, "slurm: would drain with: y\n"),
    ],
)
def test_the_status_says_what_slurm_shows_or_why_not(changes: dict[str, Any], said: str) -> None:
    """One line, below what the verdict does to the gate."""
    status = WriterStatus(writer="drain", node="n1", **changes)
    agent = msgspec.structs.replace(FAILED.agent, slurm=status)
    text = status_text(status_document(msgspec.structs.replace(FAILED, agent=agent)))
    assert f"where the prolog is installed\n{said}" in text


def test_the_status_says_nothing_where_there_is_nothing_to_say() -> None:
    """Neither without a writer nor with one that has nothing to do."""
    quiet = msgspec.structs.replace(FAILED.agent, slurm=WriterStatus(writer="drain", node="n1"))
    for agent in (FAILED.agent, quiet):
        assert "slurm:" not in status_text(status_document(msgspec.structs.replace(FAILED, agent=agent)))


# What outlives the agent.


def test_the_memory_survives_in_file_and_store(tmp_path: Path) -> None:
    """The file of this boot counts before the store, the store before nothing."""
    path, memory, older = tmp_path / "slurm.json", Memory("r", KNOWN, KNOWN), Memory("older")
    save_memory(path, memory, "boot-1")
    assert load_memory(path, pack(older), "boot-1") == memory
    assert load_memory(path, pack(older), "boot-2") == older
    assert load_memory(tmp_path / "absent", pack(older), "boot-1") == older
    assert load_memory(tmp_path / "absent", None, "boot-1") == Memory()
    assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["slurm.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"boot_id": "boot-1"}', b"\xff" * 9])
def test_a_memory_that_cannot_be_understood_is_absent(tmp_path: Path, content: bytes) -> None:
    """The agent starts; what it knows then is the reason at the node."""
    path = tmp_path / "slurm.json"
    path.write_bytes(content)
    assert load_memory(path, content, "boot-1") == Memory()


def test_a_planted_memory_is_not_followed(tmp_path: Path) -> None:
    """Neither a link to read nor one to write through."""
    precious = tmp_path / "precious"
    save_memory(precious, Memory("forged"), "boot-1")
    before = precious.read_bytes()
    (tmp_path / "slurm.json").symlink_to(precious)
    assert load_memory(tmp_path / "slurm.json", None, "boot-1") == Memory()
    (tmp_path / "slurm.json.new").symlink_to(precious)
    with pytest.raises(StoreError, match="cannot be written"):
        save_memory(tmp_path / "slurm.json", Memory("ours"), "boot-1")
    assert precious.read_bytes() == before


# The thread.


@pytest.fixture
def told() -> list[str]:
    """What the loop was told of."""
    return []


@pytest.fixture
def reactor(tmp_path: Path, told: list[str]) -> Iterator[tuple[Reactor, selectors.BaseSelector]]:
    """A reactor whose scontrol ignores SIGTERM and never answers, and the selector of its loop."""
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ntrap '' TERM\necho >>{tmp_path}/called\nwhile :; do sleep 0.05; done\n")
    program.chmod(0o755)
    settings = msgspec.structs.replace(SETTINGS, scontrol=str(program), timeout_seconds=0.3)
    with selectors.DefaultSelector() as selector:
        running = Reactor(
            settings, "n1", selector, runtime=tmp_path, memory=None, boot_id="boot-1", told=lambda: told.append("told")
        )
        yield running, selector
        assert running.close(3.0)


def test_the_loop_is_told_of_what_changed(reactor: tuple[Reactor, selectors.BaseSelector], told: list[str]) -> None:
    """Through its selector, while scontrol hung; the loop itself never waited."""
    running, selector = reactor
    began = time.monotonic()
    running.submit(FAILED)
    assert time.monotonic() - began < 0.1
    for key, mask in selector.select(5.0):
        key.data(mask)
    assert told == ["told"]
    assert running.status.skipped["read_timeout"] == 1
    assert running.trouble.startswith("slurm: scontrol show node n1: no answer within 0.3 s")


def test_nobody_is_asked_about_a_simulated_node(
    reactor: tuple[Reactor, selectors.BaseSelector], tmp_path: Path
) -> None:
    """Not even its state is read."""
    running, _ = reactor
    running.submit(msgspec.structs.replace(FAILED, simulated=True))
    assert running.close(3.0)
    assert not (tmp_path / "called").exists()


def test_it_ends_at_once_while_scontrol_hangs(tmp_path: Path) -> None:
    """The call is given up, its process killed, its pipes closed."""
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ntrap '' TERM\necho >>{tmp_path}/called\nwhile :; do sleep 0.05; done\n")
    program.chmod(0o755)
    settings = msgspec.structs.replace(SETTINGS, scontrol=str(program))
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with selectors.DefaultSelector() as selector:
        running = Reactor(settings, "n1", selector, runtime=tmp_path, memory=None, boot_id="boot-1", told=lambda: None)
        running.submit(FAILED)
        deadline = time.monotonic() + 5
        while not (tmp_path / "called").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
        assert running.close(2.0)
        assert time.monotonic() - began < 1.5
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
