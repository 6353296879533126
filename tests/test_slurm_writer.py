"""The writer's passes over a SLURM that the test moves, and what it remembers, counts and tells."""

from __future__ import annotations

import argparse
import os
import selectors
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.slurm_in_memory import MemorySlurm
from fakes.snapshots import at, degraded_node, failed_node, gpu_node

from nodevet.agent.commands import ack
from nodevet.agent.config.settings import SlurmSettings
from nodevet.agent.load.claims import Claims
from nodevet.agent.slurm.gate_log import GATE_LOG_NAME, Closings
from nodevet.agent.slurm.memory import Kept, load_memory, pack, save_memory
from nodevet.agent.slurm.reactor import DRAINS_SECONDS, Reactor
from nodevet.agent.slurm.writer import Pass, Writer
from nodevet.agent.terminal.text import status_text
from nodevet.checks.core.errors import StoreError
from nodevet.checks.core.model import Action, EpisodeState, Instant, Key, Mode, Modes, Part, PartKind, Snapshot
from nodevet.checks.core.scheduler import WriterStatus
from nodevet.exporters.documents.schema import status_document
from nodevet.exporters.slurm.known import KnownFault
from nodevet.exporters.slurm.permit import Limits, rooms
from nodevet.exporters.slurm.rules import Sight, Why, WriterMemory
from nodevet.exporters.statefile.writer import state_text

SETTINGS = SlurmSettings(writer="drain", poll_seconds=30, maximum_drained_ratio=1.0, maximum_new_ratio=1.0)
FAILED = failed_node()
KNOWN = tuple(KnownFault(entry.key, entry.opened, entry.count, entry.finding.action) for entry in FAILED.episodes)
BOOT = "boot-1"
HELD = tuple(msgspec.structs.replace(entry, until=Instant(BOOT, 3600 * 10**9, 3600.0)) for entry in KNOWN)


def writer(
    slurm: MemorySlurm,
    memory: WriterMemory | None = None,
    *,
    name: str = "n1",
    boot_id: str = BOOT,
    clock: Callable[[], float] = lambda: 0.0,
    chance: Callable[[], float] = lambda: 0.0,
    host: str = "",
    **changes: object,
) -> Writer:
    """Return a writer for a node that waits for no other by *chance*, unless a test says so."""
    settings = msgspec.structs.replace(SETTINGS, **changes)
    return Writer(
        slurm,
        settings,
        name,
        wall_seconds=clock,
        monotonic=clock,
        random=chance,
        boot_id=boot_id,
        memory=memory or WriterMemory(nodes=3),
        host=host,
    )


def settled(passes: Writer, snapshot: Snapshot = FAILED) -> Pass:
    """Make passes until the writer has nothing to do at once."""
    while not (done := passes.step(snapshot)).again_seconds:
        pass
    return done


OTHER = "nodevet: hw thermal: hot [inspect]"
"""The reason that stands at another node."""


def counted(snapshot: Snapshot, count: int, **finding: object) -> Snapshot:
    """Return *snapshot* with faults that have occurred *count* times."""
    again = tuple(
        msgspec.structs.replace(entry, count=count, finding=msgspec.structs.replace(entry.finding, **finding))
        for entry in snapshot.episodes
    )
    return msgspec.structs.replace(snapshot, episodes=again)


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


def test_a_hard_fault_is_written_with_a_permit_and_read_back() -> None:
    """A look at the fleet, the mark that asks, the fleet again, the drain; then the node shows the permit."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    done = passes.step(FAILED)
    assert slurm.calls == ["read", "read_all", "mark", "read_all", "drain"]
    assert (done.status.permit.held, done.again_seconds, done.status.asking) == (False, 0.0, True)
    done = passes.step(FAILED)
    assert slurm.calls[5:] == ["started", "read"]
    assert slurm.nodes["n1"].drained
    assert slurm.nodes["n1"].reason.endswith("[power_cycle]")
    assert (slurm.nodes["n1"].comment, slurm.nodes["n1"].extra) == ("nodevet: drained, 0 0", "")
    assert (done.status.writes["drain"], done.status.drained_by, done.status.wanted) == (1, "nodevet", "")
    assert (done.status.permit.held, done.status.drained, done.memory.permit) == (True, True, BOOT)
    assert (done.memory.drained, done.memory.known) == (slurm.nodes["n1"].reason, KNOWN)


@pytest.mark.parametrize(
    "snapshot",
    [
        degraded_node(),
        acknowledged(FAILED),
        msgspec.structs.replace(FAILED, simulated=True),
        msgspec.structs.replace(FAILED, modes=Modes(Mode.DRAIN, {"kernel-log": Mode.OBSERVE})),
        msgspec.structs.replace(FAILED, agent=msgspec.structs.replace(FAILED.agent, ready=False)),
        msgspec.structs.replace(FAILED, agent=msgspec.structs.replace(FAILED.agent, stopping=True)),
    ],
    ids=["measured", "acknowledged", "simulated", "check observes", "starting", "stopping"],
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
    assert (done.status.permit.held, done.status.unanswered) == (False, True)


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
        if call == "read_all" and slurm.calls.count("read_all") == 2:
            slurm.set("n1", "IDLE", "DRAIN", reason="ops: fan")

    slurm.before = by_hand
    passes = writer(slurm)
    done = passes.step(FAILED)
    assert (slurm.nodes["n1"].reason, slurm.writes, skips(done)) == ("ops: fan", [], {"changed": 1})
    assert done.again_seconds < SETTINGS.poll_seconds
    assert skips(passes.step(FAILED)) == {"changed": 1, "foreign_reason": 1}
    assert slurm.nodes["n1"].comment == "", "the mark is taken back"


def test_a_job_that_starts_meanwhile_hinders_no_drain() -> None:
    """Other words of the state, such as allocated, are no change that matters; maintenance is."""
    for state, drains in (("MIXED", 1), ("MAINTENANCE", 0)):
        slurm = MemorySlurm()

        def starts(call: str, slurm: MemorySlurm = slurm, state: str = state) -> None:
            if call == "read_all" and slurm.calls.count("read_all") == 2:
                slurm.change("n1", states=frozenset({"IDLE", state}))

        slurm.before = starts
        assert writer(slurm).step(FAILED).status.writes["drain"] == drains


@pytest.mark.parametrize("why", [Why.WRITE_FAILED, Why.WRITE_TIMEOUT, Why.DENIED])
@pytest.mark.parametrize("call", ["mark", "drain"])
def test_a_write_that_fails_is_tried_again_and_never_taken_for_a_resume(call: str, why: Why) -> None:
    """The node is not drained because nothing was written, which is not a person's word."""
    slurm = MemorySlurm()
    slurm.fail = {call: why}
    passes = writer(slurm)
    done = passes.step(FAILED)
    assert (skips(done), done.memory.drained, done.acknowledged) == ({why.value: 1}, None, ())
    assert not done.status.permit.held
    slurm.fail = {}
    assert passes.step(FAILED).status.writes["drain"] == 1


@pytest.mark.parametrize("deaf", [("mark",), ("drain",), ("mark", "drain")], ids=" and ".join)
def test_a_write_that_is_never_seen_to_hold_proves_nothing(deaf: tuple[str, ...]) -> None:
    """`scontrol update` ends with 0 and does nothing: nobody resumed the node, and status says what to type."""
    slurm = MemorySlurm()
    slurm.deaf = frozenset(deaf)
    passes = writer(slurm)
    looks = [passes.step(FAILED) for _ in range(5)]
    for done in looks:
        assert (done.acknowledged, done.memory.resumed, done.status.permit.held) == ((), (), False)
    done = looks[-1]
    assert skips(done)["unverified"] > 0
    if "mark" not in deaf:
        assert "nodevet ack nvidia.xid.79 --device" in done.status.returned
    slurm.deaf = frozenset()
    assert any(settled(passes).status.permit.held for _ in range(2))


def test_a_resume_is_acknowledged_until_it_is_done_and_never_fought() -> None:
    """The acknowledgement is told with every pass until the fault counts no more."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    reason = settled(passes).memory.drained
    slurm.set("n1", "IDLE")
    done = passes.step(FAILED)
    assert [(entry.known, entry.note) for entry in done.acknowledged] == [
        (HELD[0], f"resumed by somebody in SLURM, drained before with: {reason}")
    ]
    assert (done.again_seconds, done.status.acknowledged, done.status.permit.held) == (0.0, 1, False)
    assert len(passes.step(FAILED).acknowledged) == 1
    (word,) = acknowledged(FAILED).episodes
    known = msgspec.structs.replace(FAILED, episodes=(msgspec.structs.replace(word, covers=HELD[0].until),))
    done = passes.step(known)
    assert (done.acknowledged, done.memory.drained, done.memory.resumed) == ((), None, HELD)
    assert len(slurm.writes) == 1


@pytest.mark.parametrize("call", ["size", "started"])
def test_half_an_answer_does_not_show_the_node_in_service(call: str) -> None:
    """It was resumed, and the rest of the look fails: a job that comes still has the agent asked, and finds it open."""
    slurm = MemorySlurm()
    passes = writer(slurm, msgspec.structs.replace(settled(writer(slurm)).memory, nodes=0))
    slurm.set("n1", "IDLE")
    slurm.fail = {call: Why.READ_TIMEOUT}
    for _ in range(2):
        done = passes.step(FAILED)
        assert (done.status.drained, done.status.permit.held, done.acknowledged) == (True, True, ())
    slurm.fail = {}
    done = passes.step(FAILED)
    assert (done.status.drained, done.status.permit.held, len(done.acknowledged)) == (False, False, 1)


def test_a_resume_between_two_reads_of_one_pass_does_not_close_the_gate() -> None:
    """The reason was to follow a graver fault: the node counts as drained until the look that acknowledges."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    settled(passes)
    graver = counted(FAILED, 1, action=Action.REPLACE)
    reads = slurm.calls.count("read")

    def resumes(call: str) -> None:
        if call == "read" and slurm.calls.count("read") == reads + 2:
            slurm.set("n1", "IDLE")

    slurm.before = resumes
    done = passes.step(graver)
    assert (skips(done), done.status.drained) == ({"changed": 1}, True)
    assert len(passes.step(graver).acknowledged) == 1


def test_a_resume_holds_for_an_hour_over_restarts_and_a_count_that_grows() -> None:
    """Of agent and controller; only what asks for something harder drains again."""
    slurm = MemorySlurm()
    now = [0.0]
    memory = settled(writer(slurm, clock=lambda: now[0])).memory
    slurm.set("n1", "IDLE")
    for minute in range(60):
        now[0] = 60.0 * minute
        if minute % 7 == 3:
            slurm.slurmctld = f"2026-11-20T09:{minute:02}:00"
        passes = writer(slurm, memory, clock=lambda: now[0])
        again = counted(FAILED, 2 + minute)
        done = passes.step(acknowledged(again) if minute % 2 else again)
        assert (len(slurm.writes), done.status.permit.held) == (1, False), minute
        memory = done.memory
    harder = counted(FAILED, 99, action=Action.REPLACE)
    assert settled(writer(slurm, memory), harder).status.permit.held


def test_a_resume_holds_for_an_hour_over_a_fault_that_comes_and_goes() -> None:
    """Each return is another episode to the engine; it is acknowledged again, and neither closes nor drains."""
    slurm = MemorySlurm()
    now = [0.0]
    memory = settled(writer(slurm, clock=lambda: now[0])).memory
    slurm.set("n1", "IDLE")
    memory = writer(slurm, memory, clock=lambda: now[0]).step(FAILED).memory
    well = msgspec.structs.replace(gpu_node(), episodes=())
    for minute in range(1, 70, 7):
        now[0] = 60.0 * minute
        memory = writer(slurm, memory, clock=lambda: now[0]).step(well).memory
        opened = Instant(BOOT, minute * 60 * 10**9, now[0])
        (entry,) = FAILED.episodes
        back = msgspec.structs.replace(FAILED, episodes=(msgspec.structs.replace(entry, opened=opened),))
        passes = writer(slurm, memory, clock=lambda: now[0])
        done = passes.step(back) if minute < 60 else settled(passes, back)
        assert (len(done.acknowledged), done.status.permit.held) == (minute < 60, minute >= 60), minute
        memory = done.memory
    assert len(slurm.writes) == 2


def told_as(snapshot: Snapshot, name: str, opened: Instant | None = None) -> Snapshot:
    """Return *snapshot* with its faulty device under another *name*; its faults *opened* then."""
    (old,) = {entry.key.device for entry in snapshot.episodes}
    episodes = tuple(
        msgspec.structs.replace(
            entry, key=msgspec.structs.replace(entry.key, device=name), opened=opened or entry.opened
        )
        for entry in snapshot.episodes
    )
    devices = tuple(msgspec.structs.replace(each, id=name) if each.id == old else each for each in snapshot.devices)
    verdict = msgspec.structs.replace(snapshot.verdict, episodes=tuple(entry.key for entry in episodes))
    return msgspec.structs.replace(snapshot, episodes=episodes, devices=devices, verdict=verdict, names={old: name})


@pytest.mark.parametrize("at_the_resume", [True, False])
def test_a_resume_holds_over_a_board_that_tells_another_name(at_the_resume: bool) -> None:
    """What was known under the old name, and what returns within the hour, also for the agent after this one."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    settled(passes)
    slurm.set("n1", "IDLE")
    told = told_as(FAILED, "GPU-told")
    done = passes.step(told if at_the_resume else FAILED)
    assert [entry.known.key for entry in done.acknowledged] == [
        entry.key for entry in (told if at_the_resume else FAILED).episodes
    ]
    quiet = msgspec.structs.replace(gpu_node(), names=told.names, devices=told.devices)
    after = writer(slurm, passes.step(quiet).memory)
    again = told_as(FAILED, "GPU-told", Instant(BOOT, 60 * 10**9, 60.0))
    done = settled(after, msgspec.structs.replace(again, names={}))
    assert [entry.known.key for entry in done.acknowledged] == [entry.key for entry in again.episodes]
    assert not slurm.nodes["n1"].drained


def test_a_name_that_a_device_has_again_is_its_own() -> None:
    """What was learnt of an address does not hold for the device that goes by it now."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    settled(passes)
    slurm.set("n1", "IDLE")
    (old,) = {entry.key.device for entry in FAILED.episodes}
    done = passes.step(msgspec.structs.replace(FAILED, names={old: "GPU-told"}))
    assert [entry.known.key for entry in done.acknowledged] == [entry.key for entry in FAILED.episodes]


@pytest.mark.parametrize("restarted", ["slurmctld", "slurmd", "boot"])
def test_a_return_after_a_restart_is_no_resume(restarted: str) -> None:
    """Nothing is acknowledged, the fault drains again with a permit, and status prints what to type."""
    slurm = MemorySlurm()
    memory = settled(writer(slurm)).memory
    slurm.set("n1", "IDLE")
    if restarted == "slurmctld":
        slurm.slurmctld = "2026-11-21T00:00:00"
    if restarted == "slurmd":
        slurm.change("n1", slurmd_started="2026-11-21T00:00:00")
    passes = writer(slurm, memory, boot_id="boot-2" if restarted == "boot" else BOOT)
    done = passes.step(FAILED)
    assert (done.acknowledged, done.memory.resumed) == ((), ())
    done = settled(passes)
    assert (done.status.permit.held, len(slurm.writes)) == (True, 2)
    (device,) = (episode.key.device for episode in FAILED.episodes)
    assert f"nodevet ack nvidia.xid.79 --device {device} --note" in done.status.returned
    assert passes.step(acknowledged(FAILED)).status.returned == ""


@pytest.mark.parametrize("slurmd", ["2026-11-20T08:00:00", "2026-11-21T00:00:01"], ids=["ran on", "restarted"])
def test_a_resume_waits_until_slurmctld_knows_when_slurmd_was_started(slurmd: str) -> None:
    """A slurmctld started anew learns it at a later ping: what it did not know yet is no restart of slurmd."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    settled(passes)
    slurm.slurmctld = "2026-11-21T00:00:00"
    slurm.change("n1", slurmd_started=None)
    settled(passes)
    slurm.set("n1", "IDLE")
    for _ in range(2):
        waits = passes.step(FAILED)
        assert (waits.status.drained, waits.acknowledged, waits.status.returned) == (True, (), "")
    after = writer(slurm, passes.step(FAILED).memory)  # also over a restart of the agent
    slurm.change("n1", slurmd_started=slurmd)
    done = after.step(FAILED)
    if slurmd == "2026-11-20T08:00:00":
        assert (done.status.drained, len(done.acknowledged), len(slurm.writes)) == (False, 1, 1)
    else:
        assert done.acknowledged == ()
        assert "after a restart of slurmd" in settled(after).status.returned


@pytest.mark.parametrize("known_before", [False, True])
def test_a_controller_that_ends_between_two_questions_makes_nobody_a_person(known_before: bool) -> None:
    """It showed the drain and was gone; the one after it lacks its state, and only says when it was started."""
    slurm = MemorySlurm()
    memory = settled(writer(slurm)).memory if known_before else None
    slurm.set("n1", "IDLE", "DRAIN", reason="nodevet: hw memory-errors: uncorrected [drain_reset]")

    def cold_start(call: str) -> None:
        if call == "started":
            slurm.slurmctld = "2026-11-21T00:00:00"
            slurm.set("n1", "IDLE")

    slurm.before = cold_start
    done = writer(slurm, memory).step(FAILED)
    slurm.before = lambda _call: None
    for _ in range(4):
        assert (done.acknowledged, done.memory.resumed) == ((), ())
        done = writer(slurm, done.memory).step(FAILED)
    assert done.status.permit.held, "it is drained again"


def test_a_controller_that_ends_behind_a_drain_makes_nobody_a_person() -> None:
    """It said when it was started and was gone; the one after it shows the drain, and then the node in service."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    assert passes.step(FAILED).status.writes["drain"] == 1

    def restart(call: str) -> None:
        if call == "read":
            slurm.slurmctld = "2026-11-21T00:00:00"

    slurm.before = restart
    assert passes.step(FAILED).status.permit.held
    slurm.set("n1", "IDLE")
    done = passes.step(FAILED)
    assert (done.acknowledged, done.memory.resumed) == ((), ())
    assert "after a restart of slurmctld" in done.status.returned


def test_a_return_is_judged_by_a_start_of_slurmctld_that_was_asked_for_behind_it() -> None:
    """The old one was there until the look, and the new one shows a node that it never knew as drained."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    settled(passes)

    def cold_start(call: str) -> None:
        if call == "read":
            slurm.slurmctld = "2026-11-21T00:00:00"
            slurm.set("n1", "IDLE")

    slurm.before = cold_start
    done = passes.step(FAILED)
    assert (done.acknowledged, done.memory.resumed) == ((), ())


def test_a_gate_that_closes_without_a_drain_asks_for_no_start_of_slurmctld() -> None:
    """No drain is looked for behind it, so it is one call of many."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    gated = msgspec.structs.replace(FAILED, modes=Modes(Mode.GATE))
    while not slurm.nodes["n1"].comment.startswith("nodevet: gate closed"):
        passes.step(gated)
    slurm.calls.clear()
    assert passes.step(gated).status.permit.held
    assert "started" not in slurm.calls


def test_what_status_tells_to_type_names_one_finding_each() -> None:
    """Two links and a device with blanks in its name: each command is understood as it stands."""
    slurm = MemorySlurm()
    (model,) = FAILED.episodes
    link = [Part(PartKind.LINK, index=number) for number in range(5)]
    keys = [Key("link.down", "rack 7's board", part) for part in link] + [model.key]
    faults = tuple(msgspec.structs.replace(model, key=key) for key in keys)
    verdict = msgspec.structs.replace(FAILED.verdict, episodes=tuple(keys))
    snapshot = msgspec.structs.replace(FAILED, episodes=faults, verdict=verdict)
    memory = settled(writer(slurm), snapshot).memory
    slurm.set("n1", "IDLE")
    slurm.slurmctld = "2026-11-21T00:00:00"
    told = writer(slurm, memory).step(snapshot).status.returned
    assert told.endswith("; likewise for 2 more, see nodevet status")
    commands = [text for text in told.split("; ") if "nodevet ack" in text]
    parser = argparse.ArgumentParser()
    ack.configure(parser)
    typed = [parser.parse_args(shlex.split(text.rpartition("nodevet ack ")[2])) for text in commands]
    assert [(entry.code, entry.device, entry.part) for entry in typed] == [
        ("link.down", "rack 7's board", f"link {number}") for number in range(4)
    ]


def test_a_restart_at_any_moment_fights_no_resume() -> None:
    """A new writer with the memory of each pass goes on as the old one would have."""
    slurm = MemorySlurm()
    memory = writer(slurm).step(FAILED).memory
    memory = writer(slurm, memory).step(FAILED).memory
    assert writer(slurm, memory).status.permit.held, "a permit holds over a restart"
    assert not writer(slurm, memory, boot_id="boot-2").status.permit.held, "within its boot"
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
    assert entry.note == "resumed by somebody in SLURM"


def test_observe_decides_and_does_nothing() -> None:
    """It reads, says what it would do, and acknowledges nothing."""
    slurm = MemorySlurm()
    passes = writer(slurm, writer="observe")
    done = passes.step(FAILED)
    assert done.status.doing.startswith("would drain with the reason: nodevet: hw kernel-log: ")
    assert (done.status.wanted != "", slurm.writes) == (True, [])
    slurm.set("n1", "IDLE", "DRAIN", reason="ops: fan")
    passes.step(FAILED)
    slurm.set("n1", "IDLE")
    done = passes.step(FAILED)
    assert (done.acknowledged, "would be acknowledged" in done.status.doing) == ((), True)


def test_the_limit_stops_the_drain_and_is_told() -> None:
    """Too many at once is a bad rollout, not bad nodes."""
    slurm = MemorySlurm()
    slurm.set("n2", "IDLE", "DRAIN", reason=OTHER)
    done = writer(slurm, maximum_drained_ratio=0.25).step(FAILED)
    assert (slurm.writes, skips(done), done.status.limit_reached) == ([], {"limit": 1}, True)
    assert slurm.calls == ["read", "read_all"], "a node that is refused writes nothing"
    assert "nodevet has closed 1 of 3 nodes of the cluster, limit 1" in done.status.doing
    assert (done.status.permit.held, done.status.permit.why in done.status.doing) == (False, True)


def test_a_job_at_a_node_without_a_permit_changes_nothing() -> None:
    """The limit is kept whatever waits at the gate: no route skips it."""
    slurm = MemorySlurm()
    slurm.set("n1", "IDLE", "DRAIN", reason=OTHER)
    passes = writer(slurm, name="n2", maximum_drained_ratio=0.25)
    for _ in range(3):
        done = passes.step(FAILED)
        assert (done.status.limit_reached, done.status.permit.held, slurm.writes) == (True, False, [])
    slurm.set("n2", "IDLE", "DRAIN", reason="Prolog error")
    assert not passes.step(FAILED).status.permit.held


@pytest.mark.parametrize(("looks", "known"), [("drained away", False), ("away", True), ("", True)])
def test_a_fault_that_ends_before_its_resume_is_seen_was_known_to_who_resumed(looks: str, known: bool) -> None:
    """Between two looks somebody resumed the node and the fault ended: its return within the hour is that fault.

    One that had ended while the node was drained is news.
    """
    well = msgspec.structs.replace(gpu_node(), episodes=())
    back = msgspec.structs.replace(FAILED.episodes[0], opened=Instant(BOOT, 60 * 10**9, 60.0))
    slurm = MemorySlurm()
    passes = writer(slurm)
    settled(passes)
    for look in looks.split():
        if look == "away":
            slurm.set("n1", "IDLE")
        assert (passes.step(well).acknowledged, len(slurm.writes)) == ((), 1)
    slurm.set("n1", "IDLE")
    done = passes.step(msgspec.structs.replace(FAILED, episodes=(back,)))
    assert (len(done.acknowledged), done.status.writes["drain"]) == ((1, 1) if known else (0, 2))


def test_a_new_fault_at_a_drained_node_has_it_looked_at_at_once() -> None:
    """However long the wait for a new fault would be: who resumes the node knows it, as every surface shows it."""
    slurm, chance = MemorySlurm(), [0.0]
    passes = writer(slurm, chance=lambda: chance[0])
    settled(passes)
    first = FAILED.episodes[0]
    second = msgspec.structs.replace(first, key=msgspec.structs.replace(first.key, code="nvidia.xid.48"), opened=at(77))
    named = msgspec.structs.replace(FAILED.verdict, episodes=(first.key, second.key))
    both = msgspec.structs.replace(FAILED, episodes=(first, second), verdict=named)
    chance[0] = 1.0
    slurm.calls.clear()
    done = passes.step(both)
    assert (slurm.calls, len(done.memory.known), done.again_seconds) == (["read", "started"], 2, 30.0)
    slurm.set("n1", "IDLE")
    done = passes.step(both)
    assert {entry.known.key for entry in done.acknowledged} == {first.key, second.key}
    assert len(slurm.writes) == 1


def test_a_drain_of_slurm_itself_is_left_and_told_apart() -> None:
    """Its reason is not ours to replace; but nobody else was there, and gate.log knows more."""
    slurm = MemorySlurm()
    slurm.set("n1", "IDLE", "DRAIN", reason="Prolog error")
    done = writer(slurm).step(FAILED)
    assert (slurm.writes, skips(done)) == ([], {"foreign_reason": 1})
    assert "gate.log" in done.status.doing


def test_a_neighbour_that_closed_meanwhile_is_seen_behind_the_mark() -> None:
    """It drained itself between the look and the second reading: then the limit is reached, and the mark goes."""
    slurm = MemorySlurm()

    def neighbour(call: str) -> None:
        if call == "read_all" and slurm.calls.count("read_all") == 2:
            slurm.set("n2", "IDLE", "DRAIN", reason=OTHER)

    slurm.before = neighbour
    done = writer(slurm, maximum_drained_ratio=0.25).step(FAILED)
    assert (slurm.writes, skips(done)) == ([], {"limit": 1})
    assert slurm.nodes["n1"].comment == ""


def test_two_that_ask_together_let_the_first_through() -> None:
    """Each sees the other's mark: the later takes its own back, the earlier waits for that and drains."""
    slurm = MemorySlurm()
    one, two = (writer(slurm, name=name, maximum_drained_ratio=0.25) for name in ("n1", "n2"))
    works = [one.steps(FAILED), two.steps(FAILED)]
    for work in works:
        assert next(work).name == "read"
    for work, name in zip(works, ("n1", "n2"), strict=True):
        assert work.send(slurm.read(name)).name == "read_all"
    fleet = slurm.read_all()
    marks = [work.send(fleet) for work in works]
    for work, mark in zip(works, marks, strict=True):
        slurm.mark(*mark.words)
        assert work.send(None).name == "read_all"
    fleet = slurm.read_all()
    with pytest.raises(StopIteration) as first:
        works[0].send(fleet)
    assert first.value.value.status.asking
    withdrawn = works[1].send(fleet)
    slurm.mark(*withdrawn.words)
    assert withdrawn.words == ("n2", "Comment", "")
    assert settled(one).status.permit.held
    assert [node.drained for node in slurm.nodes.values()] == [True, False, False]


def test_a_comment_of_a_person_is_never_touched() -> None:
    """The mark goes into the extra text; where that is taken as well, nothing is asked for, and it is told."""
    slurm = MemorySlurm()
    slurm.change("n1", comment="rack 7")
    settled(writer(slurm))
    assert (slurm.nodes["n1"].comment, slurm.nodes["n1"].drained) == ("rack 7", True)
    assert slurm.nodes["n1"].extra == "nodevet: drained, 0 0"
    slurm.set("n1", "IDLE")
    slurm.change("n1", extra="{}")
    done = writer(slurm).step(FAILED)
    assert (skips(done), done.status.permit.held) == ({"foreign_comment": 1}, False)
    assert (slurm.nodes["n1"].comment, slurm.nodes["n1"].extra) == ("rack 7", "{}")


def test_a_fault_that_may_only_close_the_gate_leaves_a_mark_that_counts() -> None:
    """Its mode is gate: no drain, a permit all the same, and the next node meets the limit."""
    slurm = MemorySlurm()
    gate = msgspec.structs.replace(FAILED, modes=Modes(Mode.GATE))
    passes = writer(slurm, maximum_drained_ratio=0.25)
    done = settled(passes, gate)
    assert (done.status.permit.held, slurm.nodes["n1"].drained, slurm.writes) == (True, False, [])
    assert slurm.nodes["n1"].comment.startswith("nodevet: gate closed, ")
    assert writer(slurm, name="n2", maximum_drained_ratio=0.25).step(FAILED).status.limit_reached
    slurm.set("n1", "IDLE", "DRAIN", reason="Prolog error")
    assert passes.step(gate).status.permit.held, "a job met the gate, and SLURM drained the node for it"
    assert writer(slurm, name="n2", maximum_drained_ratio=0.25).step(FAILED).status.limit_reached
    slurm.set("n1", "IDLE", "DRAIN", reason="ops: mine")
    assert not passes.step(gate).status.permit.held
    passes.step(acknowledged(gate))
    assert slurm.nodes["n1"].comment == ""


@pytest.mark.parametrize("snapshot", [FAILED, gpu_node()], ids=["failed", "healthy"])
def test_a_mark_that_nobody_may_take_back_is_told_with_what_to_type(snapshot: Snapshot) -> None:
    """Its agent was set to observe: the gate is open, and the others count the node for as long as it stands."""
    slurm = MemorySlurm()
    closed = settled(writer(slurm), msgspec.structs.replace(FAILED, modes=Modes(Mode.GATE)))
    assert closed.status.trouble == ""
    passes = writer(slurm, writer="observe")
    for _ in range(3):
        told = passes.step(snapshot).status
        assert told.trouble.endswith("type: scontrol update nodename=n1 comment= extra=")
    slurm.set("n1", "IDLE", "DRAIN", reason="Prolog error")
    assert passes.step(snapshot).status.trouble == "", "it is out of service, and counts rightly"
    slurm.set("n1", "IDLE")
    assert passes.step(snapshot).status.trouble
    slurm.change("n1", comment="", extra="")
    assert passes.step(snapshot).status.trouble == ""
    assert (passes.step(snapshot).memory.marked, slurm.calls.count("mark")) == (False, 3)


def test_a_closed_gate_counts_until_a_person_brings_the_node_back() -> None:
    """Its fault is over, after a reboot or with a rule that is corrected; SLURM keeps it out of service for us."""
    slurm = MemorySlurm()
    gate = msgspec.structs.replace(FAILED, modes=Modes(Mode.GATE))
    passes = writer(slurm, maximum_drained_ratio=0.25)
    settled(passes, gate)
    slurm.set("n1", "IDLE", "DRAIN", reason="Prolog error")
    for node in (passes, writer(slurm, boot_id="boot-2", maximum_drained_ratio=0.25)):
        done = settled(node, gpu_node())
        assert (done.status.permit.held, done.status.closed, done.again_seconds) == (False, True, 30.0)
    assert writer(slurm, name="n2", maximum_drained_ratio=0.25).step(gate).status.limit_reached
    slurm.set("n1", "IDLE")
    settled(passes, gpu_node())
    assert (slurm.nodes["n1"].comment, slurm.nodes["n1"].extra) == ("", "")
    assert settled(writer(slurm, name="n2", maximum_drained_ratio=0.25), gate).status.permit.held


@pytest.mark.parametrize("mode", [Mode.GATE, Mode.DRAIN])
def test_a_name_of_another_node_gives_no_permit_and_writes_nothing(mode: Mode) -> None:
    """One nodevet.toml with a node_name goes to every node: all would hold the permit of that one."""
    slurm = MemorySlurm()
    for name in slurm.nodes:
        slurm.change(name, host=f"{name.upper()}.cluster.example")
    fault = msgspec.structs.replace(FAILED, modes=Modes(mode))
    assert settled(writer(slurm, host="n1"), fault).status.permit.held
    before = dict(slurm.nodes)
    other = writer(slurm, WriterMemory(nodes=3, permit=BOOT), host="n2.cluster.example")
    done = other.step(fault)
    for _ in range(2):
        done = other.step(fault)
    assert (skips(done), done.status.permit.held, done.memory.permit) == ({"other_node": 3}, False, "")
    assert "this machine is node n2" in done.status.permit.why
    now = [0.0]
    healthy = writer(slurm, host="n2", clock=lambda: now[0])
    for now[0] in (0.0, 400.0, 800.0):
        healthy.step(gpu_node())
    assert slurm.nodes == before
    local = writer(slurm, host="n2", permit="local")
    assert (local.step(fault).status.permit.held, slurm.nodes) == (True, before)


def test_a_permit_of_the_cluster_is_that_of_one_node_and_says_so() -> None:
    """The prologs of a machine's other nodes read it in the state file, also before an agent's first look."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    done = settled(passes)
    agent = msgspec.structs.replace(FAILED.agent, permit=done.status.permit)
    assert " none node:n1 " in state_text(msgspec.structs.replace(FAILED, agent=agent), ttl_seconds=35)
    assert " none node:n1 " not in state_text(FAILED, ttl_seconds=35)
    assert done.status.permit.node == writer(slurm, done.memory).status.permit.node == "n1"
    assert writer(slurm, done.memory, permit="local").status.permit.node == ""


@pytest.mark.parametrize("host", ["n1", "N1.cluster.example", "login", ""])
def test_a_name_that_no_other_node_has_is_believed(host: str) -> None:
    """SLURM may call a machine as it likes: `slurmd -N`, several nodes on one machine."""
    slurm = MemorySlurm()
    for name in slurm.nodes:
        slurm.change(name, host="localhost" if host == "login" else name)
    assert settled(writer(slurm, host=host)).status.permit.held


def test_a_backup_that_took_over_lets_an_agent_wait_that_asks_for_the_first_time() -> None:
    """It was started days ago, may lack the last marks, and this agent has seen no other one before."""
    gate = msgspec.structs.replace(FAILED, modes=Modes(Mode.GATE))
    slurm, now = MemorySlurm(), [1_900_000_000.0]
    first, second, late = nodes = [
        writer(slurm, name=name, clock=lambda: now[0], maximum_drained_ratio=0.7) for name in ("n1", "n2", "n3")
    ]
    assert all(settled(node, gate).status.permit.held for node in (first, second))
    slurm.slurmctld += " (a backup)"
    for name in slurm.nodes:
        slurm.change(name, comment="", extra="")
    for _ in range(200):
        now[0] += 2.0
        for node in nodes if now[0] >= 1_900_000_030.0 else (late,):
            node.step(gate)
        assert sum(node.status.permit.held for node in nodes) <= 2
    assert sum(node.status.permit.held for node in nodes) == 2


@pytest.mark.parametrize("stood_by_seconds", [0.0, 200_000.0], ids=["started anew", "stood by and took over"])
@pytest.mark.parametrize("when", ["before it asks", "started", "read", "read_all"])
def test_a_cold_start_that_forgets_closed_gates_lets_nobody_past_the_limit(when: str, stood_by_seconds: float) -> None:
    """Two of three may close; their marks are lost, at any moment of a pass, and their agents look 30 s later."""
    gate = msgspec.structs.replace(FAILED, modes=Modes(Mode.GATE))
    slurm, now = MemorySlurm(), [1_900_000_000.0]
    first, second, third = (
        writer(slurm, name=name, clock=lambda: now[0], maximum_drained_ratio=0.7) for name in ("n1", "n2", "n3")
    )
    for node in (first, second):
        assert settled(node, gate).status.permit.held
    assert third.step(gate).status.limit_reached
    restarted = [False]

    def forget(call: str) -> None:
        if not restarted[0] and call == when:
            restarted[0] = True
            started = datetime.fromtimestamp(now[0] - stood_by_seconds, UTC)
            slurm.slurmctld = started.strftime("%Y-%m-%dT%H:%M:%S")
            for name in slurm.nodes:
                slurm.change(name, comment="", extra="")

    if when == "before it asks":
        forget(when)
        restarted[0] = True
    slurm.before = forget
    held = 2
    for _ in range(40):
        now[0] += 2.0
        third.step(gate)
        if now[0] >= 1_900_000_030.0:
            # Each sees at its next look that its gate is closed no more by what SLURM shows, and asks like others.
            first.step(gate)
            second.step(gate)
        held = sum(node.status.permit.held for node in (first, second, third))
        assert held <= 2
    assert restarted[0], "nothing was forgotten"
    for _ in range(200):
        now[0] += 2.0
        for node in (first, second, third):
            node.step(gate)
        assert sum(node.status.permit.held for node in (first, second, third)) <= 2
    assert sum(node.status.permit.held for node in (first, second, third)) == 2


def test_a_resume_while_the_writer_observed_acknowledges_nothing_later() -> None:
    """Nobody was asked anything by it; one that was given while it acted goes on."""
    slurm = MemorySlurm()
    slurm.set("n1", "IDLE", "DRAIN")
    observes = writer(slurm, writer="observe")
    observes.step(FAILED)
    slurm.set("n1", "IDLE")
    done = observes.step(FAILED)
    assert "would be acknowledged" in done.status.doing
    assert observes.step(FAILED).status.doing == "", "it goes on as if it was"
    done = settled(writer(slurm, unpacked(done.memory)))
    assert (done.acknowledged, slurm.nodes["n1"].drained) == ((), True)
    slurm.set("n1", "IDLE")
    acts = writer(slurm, unpacked(done.memory))
    assert settled(acts).acknowledged
    kept = writer(slurm, unpacked(acts.step(FAILED).memory), writer="observe").step(FAILED).memory
    assert settled(writer(slurm, unpacked(kept))).acknowledged
    assert not slurm.nodes["n1"].drained


def test_a_node_that_is_closed_looks_as_often_while_slurm_does_not_answer() -> None:
    """However large the cluster: what asks after a cold start waits no longer than that."""
    slurm = MemorySlurm()
    slurm.fail = {"read": Why.READ_TIMEOUT}
    done = writer(slurm, WriterMemory(nodes=2000, permit=BOOT)).step(FAILED)
    assert (done.status.permit.held, done.again_seconds) == (True, SETTINGS.poll_seconds)


def test_a_mark_of_an_agent_before_waits_until_its_writes_have_settled() -> None:
    """A drain or a withdrawal of it may still be under way; then the mark is used, or taken back."""
    slurm = MemorySlurm()
    slurm.change("n1", comment="nodevet: asks for a permit, 0 a")
    now = [0.0]
    passes = writer(slurm, clock=lambda: now[0])
    done = passes.step(FAILED)
    assert (skips(done), done.again_seconds) == ({"unsettled": 1}, 300.0)
    now[0] = 300.0
    assert settled(passes).status.permit.held


def test_a_withdrawal_without_an_answer_is_waited_for_by_the_next_agent_too() -> None:
    """It may take effect minutes later: it would empty a mark that others must count."""
    slurm, now = MemorySlurm(), [0.0]
    slurm.change("n1", comment="nodevet: asks for a permit, 0 a")
    passes = writer(slurm, clock=lambda: now[0])
    passes.step(gpu_node())
    now[0], slurm.fail = 310.0, {"mark": Why.WRITE_TIMEOUT}
    passes.step(gpu_node())
    now[0], slurm.fail = 320.0, {}
    done = passes.step(gpu_node())
    assert slurm.nodes["n1"].comment == "", "a second one was answered; the agent is killed now"
    now[0] = 330.0
    gate = msgspec.structs.replace(FAILED, modes=Modes(Mode.GATE))
    following = writer(slurm, unpacked(done.memory), clock=lambda: now[0])
    done = following.step(gate)
    assert (skips(done), slurm.nodes["n1"].comment) == ({"unsettled": 1}, "")
    now[0] = 610.0
    assert settled(following, gate).status.permit.held


def unpacked(memory: WriterMemory) -> WriterMemory:
    """Return *memory* as an agent finds it that was started anew."""
    return load_memory(Path("/nonexistent"), pack(Kept(BOOT, memory)), BOOT).memory


def test_a_node_whose_mark_cannot_be_taken_back_yet_is_looked_at_as_often_as_any() -> None:
    """For five minutes after the agent's start: a person may resume it meanwhile."""
    slurm = MemorySlurm()
    slurm.change("n1", comment="nodevet: gate closed, 0 a")
    slurm.set("n1", "IDLE", "DRAIN", reason="a person wrote this")
    passes = writer(slurm)
    assert passes.step(gpu_node()).again_seconds == 30.0
    slurm.set("n1", "IDLE")
    assert not passes.step(gpu_node()).status.drained
    assert slurm.nodes["n1"].comment, "a drain of the agent before may still be under way"


def test_a_mark_that_others_pass_over_is_written_anew_before_it_is_used() -> None:
    """Its agent, or the controller, was away for hours: nobody would see this node beside them."""
    slurm = MemorySlurm()
    slurm.change("n1", comment="nodevet: asks for a permit, 0 a")
    now = [0.0]
    passes = writer(slurm, clock=lambda: now[0])
    passes.step(FAILED)
    now[0] = 3 * 3600.0
    slurm.deaf = frozenset({"mark"})
    assert skips(passes.step(FAILED))["unverified"] == 1, "what stands there is still the old one"
    slurm.deaf = frozenset()
    slurm.calls.clear()
    assert settled(passes).status.permit.held
    assert slurm.calls[:5] == ["read", "read_all", "mark", "read_all", "drain"]


def test_a_mark_that_others_pass_over_is_taken_back_where_a_limit_is_reached() -> None:
    """Nothing of an old wish stays behind."""
    slurm = MemorySlurm()
    slurm.change("n1", comment="nodevet: asks for a permit, 0 a")
    slurm.set("n2", "IDLE", "DRAIN", reason=OTHER)
    now = [0.0]
    passes = writer(slurm, clock=lambda: now[0], maximum_drained_ratio=0.25)
    passes.step(FAILED)
    now[0] = 3 * 3600.0
    assert passes.step(FAILED).status.limit_reached
    assert slurm.nodes["n1"].comment == ""


@pytest.mark.parametrize("reason", ["ops: RMA 4711", ""])
def test_a_closed_gate_that_a_person_took_over_asks_anew_after_a_reboot(reason: str) -> None:
    """Another node took its place meanwhile: the mark of before the repair is no permit."""
    slurm = MemorySlurm()
    gate = msgspec.structs.replace(FAILED, modes=Modes(Mode.GATE))
    one = writer(slurm, maximum_drained_ratio=0.25)
    settled(one, gate)
    slurm.set("n1", "IDLE", "DRAIN", reason=reason)
    memory = one.step(gate).memory
    assert settled(writer(slurm, name="n2", maximum_drained_ratio=0.25), gate).status.permit.held
    slurm.set("n1", "IDLE")
    done = settled(writer(slurm, memory, boot_id="boot-2", maximum_drained_ratio=0.25), gate)
    assert (done.status.permit.held, done.status.limit_reached) == (False, True)
    assert sum("gate closed" in node.comment for node in slurm.nodes.values()) == 1


def test_a_closed_gate_counts_in_the_warning_before_the_limit() -> None:
    """SLURM shows no reason of ours where only the gate is closed, and the place is taken all the same."""
    slurm = MemorySlurm()
    gate = msgspec.structs.replace(FAILED, modes=Modes(Mode.GATE))
    passes = writer(slurm)
    assert settled(passes, gate).status.closed
    slurm.set("n1", "IDLE", "DRAIN", reason="Prolog error")
    assert passes.step(gate).status.closed
    slurm.set("n1", "IDLE", "DRAIN", reason="ops: mine")
    assert not passes.step(gate).status.closed


def test_before_the_first_look_a_node_is_drained_as_it_was_seen_last() -> None:
    """So a job that comes first, because a person resumed the node while the agent was away, has it looked at."""
    slurm = MemorySlurm()
    done = settled(writer(slurm))
    assert done.status.drained
    slurm.set("n1", "IDLE")
    again = writer(slurm, done.memory)
    assert again.status.drained
    looked = again.step(FAILED)
    assert (len(looked.acknowledged), looked.status.drained) == (1, False)
    assert not writer(slurm, done.memory, boot_id="boot-2").status.drained, "that was another boot"


@pytest.mark.parametrize(("call", "settles"), [("drain", "clear"), ("mark", "ask")])
def test_what_contradicts_a_write_without_an_answer_waits_until_that_has_settled(call: str, settles: str) -> None:
    """No mark is taken back while a drain may still come, and none is used while its withdrawal may still come."""
    slurm = MemorySlurm()
    now = [0.0]
    passes = writer(slurm, clock=lambda: now[0])
    if call == "drain":
        slurm.fail = {"drain": Why.WRITE_TIMEOUT}
        passes.step(FAILED)
    else:
        slurm.change("n1", comment="nodevet: asks for a permit, 0 a")
        passes.step(gpu_node())
        now[0] = 300.0
        slurm.fail = {"mark": Why.WRITE_TIMEOUT}
        passes.step(gpu_node())
    slurm.fail = {}
    slurm.calls.clear()
    now[0] += 299.0
    passes.step(gpu_node() if settles == "clear" else FAILED)
    assert "mark" not in slurm.calls and "drain" not in slurm.calls
    now[0] += 1.0
    passes.step(gpu_node() if settles == "clear" else FAILED)
    assert ("mark" if settles == "clear" else "drain") in slurm.calls


def test_a_site_that_gives_the_permit_itself_asks_nobody() -> None:
    """A single node, or no rights in SLURM: the permit is there from the start, and the fleet is never read."""
    slurm = MemorySlurm()
    passes = writer(slurm, permit="local")
    assert passes.status.permit.held
    assert settled(passes).status.permit.held
    assert "read_all" not in slurm.calls and slurm.nodes["n1"].drained
    slurm.set("n1", "IDLE")
    done = passes.step(FAILED)
    assert (len(done.acknowledged), done.status.permit.held) == (1, False)


def test_without_an_answer_a_permit_stays_and_no_new_one_is_given() -> None:
    """SLURM is gone after the drain: the gate stays closed over restarts, and a new fault elsewhere stays open."""
    slurm = MemorySlurm()
    memory = settled(writer(slurm)).memory
    slurm.fail = dict.fromkeys(("read", "read_all", "size", "started"), Why.READ_TIMEOUT)
    done = writer(slurm, memory).step(FAILED)
    assert (done.status.permit.held, done.status.unanswered) == (True, False)
    done = writer(slurm, name="n2").step(FAILED)
    assert (done.status.permit.held, done.status.unanswered, slurm.writes) == (False, True, slurm.writes[:1])


@pytest.mark.parametrize(
    ("call", "mark", "why", "again_seconds"),
    [
        ("read_all", "stands", Why.READ_TIMEOUT, SETTINGS.poll_seconds),
        ("mark", "", Why.WRITE_TIMEOUT, 300.0 + 0.5 * SETTINGS.poll_seconds),
        ("mark", "", Why.DENIED, 300.0 + 0.5 * SETTINGS.poll_seconds),
        ("read", "", Why.READ_TIMEOUT, 1000.0),
    ],
    ids=["behind its mark", "with its mark", "without the right to write", "before its mark"],
)
def test_a_node_whose_mark_may_hold_up_others_does_not_wait_long_for_an_answer(
    call: str, mark: str, why: Why, again_seconds: float
) -> None:
    """A mark that stands counts as a closure for all others; a node that has none asks again in its turn."""
    slurm, now = MemorySlurm(2000), [0.0]

    def lost(name: str) -> None:
        if name == call and bool(mark) == bool(slurm.nodes["n1"].comment):
            slurm.fail = {call: why}

    slurm.before = lost
    passes = writer(slurm, WriterMemory(nodes=2000), clock=lambda: now[0], chance=lambda: 0.5)
    passes.step(FAILED)
    now[0] = 40.0
    assert passes.step(FAILED).again_seconds == again_seconds


def test_a_mark_that_could_not_be_taken_back_is_looked_at_soon() -> None:
    """There is no room for the node, and SLURM does not take the mark away: others find less room until it does."""
    slurm, now = MemorySlurm(2000), [0.0]
    passes = writer(
        slurm, WriterMemory(nodes=2000), clock=lambda: now[0], chance=lambda: 0.5, maximum_drained_ratio=0.0005,
        maximum_new_ratio=0.0005, minimum_new=1,
    )  # fmt: skip
    passes.step(FAILED)
    now[0] = 40.0

    def others(name: str) -> None:
        if name == "read_all" and slurm.nodes["n1"].comment:
            slurm.set("n2", "IDLE", "DRAIN", reason=OTHER)
            slurm.fail = {"mark": Why.WRITE_TIMEOUT}

    slurm.before = others
    assert passes.step(FAILED).again_seconds == SETTINGS.poll_seconds
    assert slurm.nodes["n1"].comment
    slurm.before, slurm.fail = (lambda _: None), {}
    now[0] = 400.0
    assert passes.step(FAILED).again_seconds == 1000.0
    assert not slurm.nodes["n1"].comment


def test_not_all_nodes_ask_at_once() -> None:
    """A new fault waits for its share of the time that so many nodes need; a second one does not begin anew."""
    slurm = MemorySlurm()
    now = [0.0]
    passes = writer(slurm, WriterMemory(nodes=2000), clock=lambda: now[0], chance=lambda: 0.5)
    done = passes.step(FAILED)
    assert (done.again_seconds, slurm.calls, done.status.asking) == (40.0, [], False)
    now[0] = 39.0
    more = msgspec.structs.replace(FAILED.episodes[0], opened=at(5))
    done = passes.step(msgspec.structs.replace(FAILED, episodes=(*FAILED.episodes, more)))
    assert (done.again_seconds, slurm.calls, done.status.asking) == (1.0, [], True)
    now[0] = 40.0
    assert passes.step(FAILED).status.writes["drain"] == 1


def test_our_reason_follows_a_graver_fault() -> None:
    """Only the reason is written, so that a node which was resumed meanwhile stays in service."""
    slurm = MemorySlurm()
    slurm.set("n1", "IDLE", "DRAIN", reason="nodevet: hw memory-errors: uncorrected [drain_reset]")
    slurm.change("n1", comment="nodevet: drained, 0 0")
    done = writer(slurm).step(FAILED)
    assert (done.status.writes["drain"], done.status.writes["update"]) == (0, 1)
    assert slurm.calls == ["read", "started", "read", "read", "update"]
    assert slurm.nodes["n1"].reason.endswith("[power_cycle]")


def test_a_reason_that_is_replaced_makes_no_new_closure() -> None:
    """Of two faults one is repaired: SLURM dates the other reason anew, and the next broken node stayed in service."""
    slurm, hour = MemorySlurm(), 3600.0
    slurm.now = 1_900_000_000.0
    slurm.set("n1", "IDLE", "DRAIN", reason=f"nodevet: hw memory-errors: {'uncorrected ' * 14}[drain_reset]")
    closed_at = slurm.now
    for fault in (FAILED, counted(FAILED, 1, action=Action.INSPECT), FAILED):
        slurm.now += 24 * hour
        done = writer(slurm, clock=lambda: slurm.now).step(fault)
        assert done.status.writes["update"] == 1
        node = slurm.nodes["n1"]
        assert (len(node.reason) <= 200, node.reason_seconds) == (True, slurm.now)
        assert " (closed 2030-03-17T17:46:40) [" in node.reason
        assert writer(slurm, clock=lambda: slurm.now).step(fault).status.writes["update"] == 0
        limits = Limits(standing_ratio=1.0, new_ratio=0.01, new_least=1)
        (cluster, *_) = rooms(slurm.nodes.values(), "n2", limits, wall_seconds=slurm.now, user="root")
        assert (cluster.standing, cluster.new) == (1, 0)
    (cluster, *_) = rooms(slurm.nodes.values(), "n2", limits, wall_seconds=closed_at + 60, user="root")
    assert cluster.new == 1


def test_every_reason_is_in_the_reference_page(repository: Path) -> None:
    """Whoever sees a label finds its meaning."""
    page = (repository / "docs" / "reference" / "slurm-writer.md").read_text()
    assert [why.value for why in Why if f"`{why.value}`" not in page] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drained_by": "nodevet"}, "slurm: drained by nodevet\n"),
        ({"drained_by": "other"}, "slurm: drained by another user or program\n"),
        ({"drained_by": "other", "doing": "does not drain: x"}, "slurm: does not drain: x\n"),
        ({"doing": "would drain with the reason: y"}, "slurm: would drain with the reason: y\n"),
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
    """The file of this boot counts before the store, the store before nothing; also what an older agent stored."""
    path, older = tmp_path / "slurm.json", Kept("boot-0", WriterMemory("older"), 9)
    kept = Kept("boot-1", WriterMemory("r", KNOWN, KNOWN, Sight("b", "s", None)))
    save_memory(path, kept)
    assert load_memory(path, pack(older), "boot-1") == kept
    assert load_memory(path, pack(older), "boot-2") == older
    assert load_memory(tmp_path / "absent", pack(older), "boot-1") == older
    assert load_memory(tmp_path / "absent", None, "boot-1").memory == WriterMemory()
    assert load_memory(tmp_path / "absent", msgspec.msgpack.encode(older.memory), "boot-1").memory == older.memory
    assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["slurm.json"]


def test_the_size_of_a_cluster_is_that_of_this_boot() -> None:
    """A store that came with the image of a node has another cluster's, and thousands of nodes asked in one second."""
    stored = pack(Kept("boot-0", WriterMemory("older", nodes=4)))
    (here, elsewhere) = (load_memory(Path("/nonexistent"), stored, boot).memory for boot in ("boot-0", "boot-1"))
    assert (here.nodes, elsewhere.nodes, elsewhere.drained) == (4, 0, "older")


def test_of_file_and_store_the_later_one_counts(tmp_path: Path) -> None:
    """A file that could not be written is older than the store, and would have a resume fought."""
    path = tmp_path / "slurm.json"
    first = Kept("", WriterMemory(), 4).followed_by(WriterMemory("drained", KNOWN), "boot-1")
    then = first.followed_by(WriterMemory(resumed=KNOWN), "boot-1")
    assert then.followed_by(then.memory, "boot-1") == then
    for in_file, in_store in ((first, then), (then, first), (then, then)):
        save_memory(path, in_file)
        assert load_memory(path, pack(in_store), "boot-1") == then


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"boot_id": "boot-1"}', b"\xff" * 9])
def test_a_memory_that_cannot_be_understood_is_absent(tmp_path: Path, content: bytes) -> None:
    """The agent starts; what it knows then is the reason at the node."""
    path = tmp_path / "slurm.json"
    path.write_bytes(content)
    assert load_memory(path, content, "boot-1").memory == WriterMemory()


def test_a_memory_with_a_spoiled_byte_anywhere_is_no_end_of_the_agent(tmp_path: Path) -> None:
    """It is absent or another one; of another boot it says nothing, whatever is spoiled."""
    path = tmp_path / "slurm.json"
    save_memory(path, Kept("boot-1", WriterMemory("r", KNOWN, KNOWN, Sight("b", "s", None), permit="boot-1")))
    whole = path.read_bytes()
    for place in range(len(whole)):
        for byte in (b"\xff", b"\x00", b"["):
            path.write_bytes(whole[:place] + byte + whole[place + 1 :])
            assert isinstance(load_memory(path, None, "boot-1"), Kept)
            assert load_memory(path, None, "boot-2").memory == WriterMemory()


def test_a_planted_memory_is_not_followed(tmp_path: Path) -> None:
    """Neither a link to read nor one to write through."""
    precious = tmp_path / "precious"
    save_memory(precious, Kept("boot-1", WriterMemory("forged")))
    before = precious.read_bytes()
    (tmp_path / "slurm.json").symlink_to(precious)
    assert load_memory(tmp_path / "slurm.json", None, "boot-1").memory == WriterMemory()
    (tmp_path / "slurm.json.new").symlink_to(precious)
    with pytest.raises(StoreError, match="cannot be written"):
        save_memory(tmp_path / "slurm.json", Kept("boot-1", WriterMemory("ours")))
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
    settings = msgspec.structs.replace(SETTINGS, scontrol=str(program), timeout_seconds=1.5)
    with selectors.DefaultSelector() as selector:
        running = Reactor(
            settings, "n1", selector, runtime=tmp_path, memory=None, boot_id="boot-1", told=lambda: told.append("told")
        )
        yield running, selector
        assert running.close(3.0)


def test_the_loop_is_told_of_what_changed(reactor: tuple[Reactor, selectors.BaseSelector], told: list[str]) -> None:
    """Through its selector, while scontrol hung; the loop itself never waited."""
    running, selector = reactor
    running.judged(FAILED)
    assert running.status.skipped["read_timeout"] == 0, "the call was waited for"
    deadline = time.monotonic() + 10.0
    while not running.status.skipped["read_timeout"] and time.monotonic() < deadline:
        for key, mask in selector.select(1.0):
            key.data(mask)
    assert told[0] == "told"
    assert running.status.skipped["read_timeout"] == 1
    assert running.trouble.startswith("slurm: scontrol show partitions: no answer within 1.5 s")


def test_nobody_is_asked_about_a_simulated_node(
    reactor: tuple[Reactor, selectors.BaseSelector], tmp_path: Path
) -> None:
    """Not even its state is read."""
    running, _ = reactor
    running.judged(msgspec.structs.replace(FAILED, simulated=True))
    assert running.close(3.0)
    assert not (tmp_path / "called").exists()


def test_a_snapshot_that_raises_does_not_end_the_thread(
    reactor: tuple[Reactor, selectors.BaseSelector], told: list[str]
) -> None:
    """It is told as our own bug, and the next snapshot is looked at."""
    running, selector = reactor
    poison: Any = (object(),)
    running.judged(msgspec.structs.replace(FAILED, episodes=poison))
    _until(lambda: selector.select(0.01) or "ended" in running.status.doing)
    for key, mask in selector.select(0):
        key.data(mask)
    assert told == ["told"]
    assert running.trouble.startswith("slurm: nodevet's own error, please report it: AttributeError")
    running.judged(FAILED)
    assert "ended" not in running.status.doing


def test_it_ends_at_once_while_scontrol_hangs(tmp_path: Path) -> None:
    """The call is given up, its process killed, its pipes closed."""
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ntrap '' TERM\necho >>{tmp_path}/called\nwhile :; do sleep 0.05; done\n")
    program.chmod(0o755)
    settings = msgspec.structs.replace(SETTINGS, scontrol=str(program))
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with selectors.DefaultSelector() as selector:
        running = Reactor(settings, "n1", selector, runtime=tmp_path, memory=None, boot_id="boot-1", told=lambda: None)
        running.judged(FAILED)
        deadline = time.monotonic() + 5
        while not (tmp_path / "called").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
        assert running.close(2.0)
        assert time.monotonic() - began < 1.5
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_a_memory_that_could_not_be_written_is_told_and_written_later(tmp_path: Path) -> None:
    """The file of before would be what the next agent believes."""
    (tmp_path / "node").write_text(SHOWN.format(state="IDLE+DRAIN"))
    blocked = tmp_path / "slurm.json"
    blocked.mkdir()
    settings = msgspec.structs.replace(SETTINGS, scontrol=str(_answers(tmp_path)), poll_seconds=0.1)
    with selectors.DefaultSelector() as selector:
        running = Reactor(settings, "n1", selector, runtime=tmp_path, memory=None, boot_id=BOOT, told=lambda: None)
        running.judged(FAILED)
        _until(lambda: running.status.drained)
        for _ in range(3):
            read = running.status.last_read_seconds
            _until(lambda read=read: running.status.last_read_seconds != read)  # type: ignore[misc]
            assert "slurm.json: cannot be written" in running.trouble
            assert not running.status.permit.held
        stored = running.memory
        blocked.rmdir()
        _until(lambda: not running.trouble and running.status.permit.held)
        assert load_memory(tmp_path / "slurm.json", None, BOOT).memory.known == KNOWN
        assert load_memory(tmp_path / "absent", stored, BOOT).memory.known == KNOWN
        assert running.close(3.0)


SHOWN = """\
NodeName=n1 Arch=x86_64
   State={state} ThreadsPerCore=1
   Partitions=main
   BootTime=2026-11-20T08:00:00 SlurmdStartTime=2026-11-20T08:01:00
   Reason=nodevet: hw kernel-log: GPU has fallen off the bus [power_cycle] [root@2026-11-20T13:25:12]

"""


IN_SERVICE = SHOWN.format(state="IDLE").replace("   Reason", "   Comment")


def test_a_directory_service_that_does_not_answer_holds_up_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent of another user waits for its own name in the thread, and says so; root's is asked of nobody."""
    (tmp_path / "node").write_text(SHOWN.format(state="IDLE"))
    settings = msgspec.structs.replace(SETTINGS, scontrol=str(_answers(tmp_path)))
    for uid in (0, 4242):
        answered = threading.Event()

        def ask(_uid: int, answered: threading.Event = answered) -> Any:
            answered.wait(10.0)
            raise KeyError

        monkeypatch.setattr("nodevet.agent.slurm.reactor.pwd.getpwuid", ask)
        monkeypatch.setattr("nodevet.agent.slurm.reactor.os.geteuid", lambda uid=uid: uid)
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            running = Reactor(settings, "n1", selector, runtime=tmp_path, memory=None, boot_id=BOOT, told=lambda: None)
            running.judged(FAILED)
            assert time.monotonic() - began < 5.0
            if uid:
                _until(lambda running=running: "getpwuid" in running.trouble)  # type: ignore[misc]
                assert running.status.last_read_seconds is None
                answered.set()
            _until(lambda running=running: running.status.last_read_seconds is not None)  # type: ignore[misc]
            assert "getpwuid" not in running.trouble
            assert running.close(3.0)


def test_a_prolog_at_a_node_that_is_still_drained_gets_its_answer(tmp_path: Path) -> None:
    """Its job was allocated before the drain: the claim that waits says so, one without a word is left alone."""
    (tmp_path / "node").write_text(SHOWN.format(state="IDLE+DRAIN"))
    settings = msgspec.structs.replace(SETTINGS, scontrol=str(_answers(tmp_path)), poll_seconds=3600.0)
    claims = Claims(tmp_path)
    claims.prepare()
    with selectors.DefaultSelector() as selector:
        running = Reactor(settings, "n1", selector, runtime=tmp_path, memory=None, boot_id=BOOT, told=lambda: None)
        running.judged(FAILED)
        _until(lambda: running.status.permit.held and running.status.drained)
        (claims.directory / "7").write_text("closed\n")
        (claims.directory / "8").touch()
        _until(lambda: (claims.directory / "7").read_text() == "drained\n")
        assert (claims.directory / "8").read_text() == ""
        claims.answer(["9"], "drained")
        assert not (claims.directory / "9").exists(), "the claim of a job that is gone is not recreated"
        (tmp_path / "node").write_text(IN_SERVICE)
        (claims.directory / "10").write_text("closed\n")
        _until(lambda: not running.status.permit.held)
        assert [msgspec.structs.replace(entry.known, until=None) for entry in running.take()] == list(KNOWN)
        assert (claims.directory / "10").read_text() == "closed\n"
        assert running.close(3.0)


@pytest.mark.parametrize(("node", "due"), [(gpu_node(), False), (FAILED, True)], ids=["healthy", "failed"])
def test_a_job_has_a_drained_node_looked_at_only_where_a_resume_says_something(
    tmp_path: Path, node: Snapshot, due: bool
) -> None:
    """After a maintenance one job starts on thousands of nodes: before, all of their agents asked at that moment."""
    (tmp_path / "node").write_text(SHOWN.format(state="IDLE+DRAIN"))
    settings = msgspec.structs.replace(SETTINGS, scontrol=str(_answers(tmp_path)), poll_seconds=3600.0)
    with selectors.DefaultSelector() as selector:
        running = Reactor(settings, "n1", selector, runtime=tmp_path, memory=None, boot_id=BOOT, told=lambda: None)
        running.judged(node)
        _until(lambda: running.status.drained)
        assert running.close(3.0)
    claims = Claims(tmp_path)
    claims.prepare()
    assert not running._is_due()
    (claims.directory / "7").touch()
    assert running._is_due() is due


def test_a_job_that_comes_back_under_its_number_has_the_node_looked_at(
    tmp_path: Path, reactor: tuple[Reactor, selectors.BaseSelector]
) -> None:
    """Its claim was met while the node was drained, and is gone: that it claims again means something new."""
    running, _ = reactor
    claims = Claims(tmp_path)
    claims.prepare()
    (claims.directory / "7").write_text("closed\n")
    assert running._has_new_job()
    running._met = running._jobs()
    assert not running._has_new_job()
    (claims.directory / "7").unlink()
    assert not running._has_new_job()
    (claims.directory / "7").write_text("closed\n")
    assert running._has_new_job()


def test_a_gate_that_closes_has_the_drain_by_slurm_seen_at_once(tmp_path: Path) -> None:
    """Else a resume before the next look counts for nothing, and the job that comes next drains the node again."""
    (tmp_path / "node").write_text(IN_SERVICE)
    settings = msgspec.structs.replace(
        SETTINGS, scontrol=str(_answers(tmp_path)), poll_seconds=3600.0, writer="observe", permit="local"
    )
    gate_log = tmp_path / GATE_LOG_NAME
    gate_log.write_text("closed 1.00 6 of an agent before\n")
    with selectors.DefaultSelector() as selector:
        running = Reactor(settings, "n1", selector, runtime=tmp_path, memory=None, boot_id=BOOT, told=lambda: None)
        running.judged(FAILED)
        _until(lambda: running.status.permit.held and running.status.last_read_seconds)
        with gate_log.open("a") as file:
            file.write("open 2.00 7 generation 3\nclosed 3.00 8 GPU 0 is lost\n")
        read = running.status.last_read_seconds
        _until(lambda: running.status.last_read_seconds != read)
        assert not running.status.drained
        (tmp_path / "node").write_text(SHOWN.format(state="IDLE+DRAIN").replace("nodevet: hw", "Prolog error"))
        _until(lambda: running.status.drained)
        (tmp_path / "node").write_text(IN_SERVICE)
        Claims(tmp_path).prepare()
        (Claims(tmp_path).directory / "9").write_text("closed\n")
        _until(lambda: not running.status.permit.held)
        assert [msgspec.structs.replace(entry.known, until=None) for entry in running.take()] == list(KNOWN)
        assert running.close(3.0)


@contextmanager
def standing_fault(tmp_path: Path) -> Iterator[Reactor]:
    """Yield the reactor of a node with a permit of its own, a fault that stands, and a look at SLURM that is over."""
    (tmp_path / "node").write_text(IN_SERVICE)
    settings = msgspec.structs.replace(
        SETTINGS, scontrol=str(_answers(tmp_path)), poll_seconds=3600.0, writer="observe", permit="local"
    )
    with selectors.DefaultSelector() as selector:
        running = Reactor(settings, "n1", selector, runtime=tmp_path, memory=None, boot_id=BOOT, told=lambda: None)
        running.judged(FAILED)
        _until(lambda: running.status.permit.held and running.status.last_read_seconds)
        yield running


def test_a_gate_that_closes_is_reason_to_look_until_the_drain_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of a thread that has ended: the answer is there at once."""
    with standing_fault(tmp_path) as running:
        assert running.close(3.0)
    (tmp_path / GATE_LOG_NAME).write_text("open 1.00 7 generation 3\n")
    assert not running._is_due()
    with (tmp_path / GATE_LOG_NAME).open("a") as file:
        file.write("closed 2.00 8 GPU 0 is lost\n")
    assert running._is_due()
    seen = Pass(running.status, WriterMemory(), (), 3600.0)
    assert running._again_seconds(seen) <= 1.0
    drained = msgspec.structs.replace(running.status, states=("IDLE", "DRAIN"))
    assert running._again_seconds(msgspec.structs.replace(seen, status=drained)) == 3600.0
    asked: list[bool] = []

    def step(_snapshot: Snapshot, *, hurries: bool) -> Pass:
        asked.append(hurries)
        return seen

    monkeypatch.setattr(running._writer, "step", step)
    running._pass(FAILED)
    assert asked == [True], "the turn of this node, which may be a minute away, is not waited for"


def test_a_gate_that_closes_among_two_thousand_of_no_limit_is_looked_at_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each was read at that moment, and each second for ten seconds."""
    with standing_fault(tmp_path) as running:
        assert running.close(3.0)
    monkeypatch.setattr(running._writer, "behind_gate", lambda: 900.0)
    (tmp_path / GATE_LOG_NAME).write_text("closed 2.00 8 GPU 0 is lost\n")
    before = time.monotonic()
    assert not running._is_due()
    assert before + 900.0 <= running._due_at <= time.monotonic() + 900.0
    assert running._drains_until == running._due_at + DRAINS_SECONDS
    assert running._again_seconds(Pass(running.status, WriterMemory(), (), 3600.0)) == 901.0


def test_a_job_that_comes_as_the_faults_of_a_drained_node_change_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then SLURM is asked before its prolog has an answer; a job that was there before the agent hurries nobody."""
    claims = tmp_path / "claims"
    claims.mkdir()
    (claims / "7").touch()
    with selectors.DefaultSelector() as selector:
        running = Reactor(SETTINGS, "n1", selector, runtime=tmp_path, memory=None, boot_id=BOOT, told=lambda: None)
        assert running.close(3.0)
    drained = msgspec.structs.replace(running.status, states=("IDLE", "DRAIN"), trouble="made up: no answer is given")
    running._status = drained
    asked: list[bool] = []

    def step(_snapshot: Snapshot, *, hurries: bool) -> Pass:
        asked.append(hurries)
        return Pass(drained, WriterMemory(), (), 3600.0)

    monkeypatch.setattr(running._writer, "step", step)
    for job, words in (("7", ""), ("8", ""), ("8", ""), ("8", "closed\n"), ("8", "closed\n")):
        (claims / job).write_text(words)
        running._pass(FAILED)
    assert asked == [False, True, False, True, True]


def test_a_fault_that_stands_has_the_log_looked_at_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a permit of its own a node may stay so for days, and no prolog waits for what the log says."""
    with standing_fault(tmp_path) as running:
        looks: list[float] = []
        plain = Path.lstat

        def counting(path: Path) -> os.stat_result:
            looks.extend([time.monotonic()] if path.name == GATE_LOG_NAME else [])
            return plain(path)

        monkeypatch.setattr(Path, "lstat", counting)
        _until(lambda: len(looks) > 1)
        assert looks[1] - looks[0] >= 0.9
        assert running.close(3.0)


def test_a_gate_that_stays_open_has_nothing_looked_at(tmp_path: Path) -> None:
    """A busy node logs a line for each job: SLURM is asked for none of them."""
    (tmp_path / "node").write_text(IN_SERVICE)
    settings = msgspec.structs.replace(
        SETTINGS, scontrol=str(_answers(tmp_path)), poll_seconds=3600.0, writer="observe", permit="local"
    )
    closings = Closings(tmp_path)
    (tmp_path / GATE_LOG_NAME).write_text("open 2.00 7 generation 3\nobserved 3.00 8 GPU 0\nresumed 3.00 8 GPU 0\n")
    assert not closings.take()
    with (tmp_path / GATE_LOG_NAME).open("a") as file:
        file.write("refused_closed 4.00 9 the driver refuses\n")
    assert [closings.take(), closings.take()] == [True, False]
    with selectors.DefaultSelector() as selector:
        running = Reactor(settings, "n1", selector, runtime=tmp_path, memory=None, boot_id=BOOT, told=lambda: None)
        running.judged(FAILED)
        _until(lambda: running.status.last_read_seconds)
        read = running.status.last_read_seconds
        with (tmp_path / GATE_LOG_NAME).open("a") as file:
            file.write("open 5.00 10 generation 3\n" * 50)
        with pytest.raises(AssertionError):
            _until(lambda: running.status.last_read_seconds != read, 1.0)
        assert running.close(3.0)


def _until(happens: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _answers(folder: Path) -> Path:
    """Return a scontrol that shows what lies in *folder* as the node."""
    program = folder / "scontrol"
    program.write_text(
        "#!/bin/sh\ncase $2 in\n"
        f"node) cat {folder}/node ;;\npartitions) echo TotalNodes=1 ;;\nconfig) echo 'BOOT_TIME = x' ;;\nesac\n"
    )
    program.chmod(0o755)
    return program
