"""What SLURM itself puts at a node that nodevet closed, behind its reason or in its place, is no person's word."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import pytest
from fakes.slurm_fleet import Fleet, Trouble
from fakes.slurm_in_memory import MemorySlurm
from fakes.snapshots import failed_node, gpu_node

from nodevet.agent.config.settings import SlurmSettings
from nodevet.agent.slurm.writer import Pass, Writer
from nodevet.checks.core.model import Action, Mode, Modes, Snapshot
from nodevet.exporters.slurm.permit import Limits, closing_text, drained_text, mark_again, mark_of, rooms, shows_permit
from nodevet.exporters.slurm.reasons import is_slurms, without_additions
from nodevet.exporters.slurm.rules import NodeState, Why, WriterMemory, parse_node

FAILED = failed_node()
GATE = msgspec.structs.replace(FAILED, modes=Modes(Mode.GATE))
OURS = "nodevet: hw kernel-log: GPU 0 (0000:10:00.0): GPU lost [reboot]"
NOW = 1_800_000_000.0
SETTINGS = SlurmSettings(writer="drain", maximum_drained_ratio=0.25, maximum_new_ratio=1.0)

FIRST = (
    "Prolog error",
    "Epilog error",
    "Job env setup error",
    "Prolog/Epilog failure",
    "Duplicate jobid",
    "batch job complete failure",
)
"""SLURM puts these only at nodes that are not drained yet."""

ALONE = (
    "Kill task failed",
    "Kill task failed (JobId=4711 StepId=batch)",
    "SlurmdSpoolDir is full",
    "gres/gpu count reported lower than configured (7 < 8)",
    "gres/gpu count reported lower than configured (7 < 8)gres/gpu:h100 count too low (7 < 8)",
    "gres/gpu:h100 count too low (7 < 8)",
    "gres/gpu count changed and jobs are using them (8 != 7)",
    "Invalid GRES Links value (4,4,-1,4) on node n1: i=3 >= link_len=3.",
    "Low socket*core*thread count, Low CPUs",
    "Low socket*core*thread count, Low CPUs, CoreSpec differ",
    "Low RealMemory (reported:515000 < 100.00% of configured:1031000)",
    "Low CPUs, gres/gpu count reported lower than configured (0 < 8)",
    "Not responding",
    "Node unexpectedly rebooted",
)

BEHIND = ("Not responding", "ResumeTimeout reached", "reboot issued", "Not responding : reboot issued")

PERSONS = (
    "ops: fan",
    "Kill task failed, ticket 4711",
    "Kill task failed (JobId=4711 StepId=batch) see ticket",
    "Low priority",
    "Low CPUs, ticket 4711",
    "not responding",
    "gres/gpu count is wrong",
    "Reboot ASAP",
    "",
)


def shown(reason: str, *, mark: str = "", user: str = "slurm") -> NodeState:
    """Return node n1, drained with *reason* and *mark*, as scontrol prints it."""
    comment = f"   Comment={mark}\n" if mark else ""
    text = f"NodeName=n1 Arch=x86_64\n   State=DOWN+DRAIN\n   Partitions=main\n{comment}"
    return parse_node(f"{text}   Reason={reason} [{user}@2027-01-15T08:00:00]\n\n", "n1")


def counts(node: NodeState) -> bool:
    """Return whether *node* counts in the limits of another one."""
    other = NodeState("n2", frozenset({"IDLE"}), partitions=("main",))
    (cluster, _) = rooms((node, other), "n2", Limits(1.0, 1.0, 2), wall_seconds=NOW, user="root")
    return cluster.standing == 1


@pytest.mark.parametrize("words", BEHIND)
def test_what_slurm_adds_to_our_reason_makes_it_nobody_elses(words: str) -> None:
    """Since 23.02 a drained node that is switched off for its repair says so behind the reason, signed by SlurmUser."""
    node = shown(f"{OURS} : {words}")
    assert (node.reason, counts(node), shows_permit(node, "nodevet")) == (OURS, True, True)
    gate = shown(f"Prolog error : {words}", mark=closing_text("nodevet", NOW, 7))
    assert (counts(gate), shows_permit(gate, "nodevet")) == (True, True)
    assert not counts(shown(f"ops: fan : {words}"))
    assert not counts(shown(f"{OURS} : {words} : ticket 4711"))


@pytest.mark.parametrize(
    ("reason", "mark"), [*product(ALONE, (drained_text, closing_text)), *product(FIRST, (closing_text,))]
)
def test_a_closed_node_whose_reason_slurm_replaced_counts_by_its_mark(
    reason: str, mark: Callable[[str, float, int], str]
) -> None:
    """Processes that cannot be killed replace any reason (slurmstepd), and so does a GPU that is missing at a boot."""
    node = shown(reason, mark=mark("nodevet", NOW, 7), user="root")
    assert (counts(node), shows_permit(node, "nodevet")) == (True, True)
    bare = shown(reason, user="root")
    assert (counts(bare), shows_permit(bare, "nodevet")) == (False, False)


@pytest.mark.parametrize("reason", FIRST)
def test_a_prolog_that_fails_on_a_drained_node_says_that_somebody_resumed_it(reason: str) -> None:
    """SLURM leaves the reason of a drain there. That of a closed gate, which is no drain, it never replaced."""
    node = shown(reason, mark=drained_text("nodevet", NOW, 7), user="root")
    assert is_slurms(reason)
    assert (counts(node), shows_permit(node, "nodevet")) == (False, False)
    gate = shown(reason, mark=mark_again(shown(reason), "nodevet", NOW, 7), user="root")
    assert (counts(gate), shows_permit(gate, "nodevet")) == (True, True)


@pytest.mark.parametrize(
    ("reason", "is_closed"),
    [("RMA 4711", False), ("Not responding, ticket 4711", False), ("Not responding", True), (OURS, True), ("", True)],
)
def test_a_closed_gate_that_a_person_set_down_is_theirs(reason: str, is_closed: bool) -> None:
    """Whoever sets a node down gives it a reason; without a drain SLURM shows ``DOWN`` alone."""
    mark = closing_text("nodevet", NOW, 7)
    node = NodeState("n1", frozenset({"DOWN"}), reason, "alice", NOW, comment=mark, partitions=("main",))
    assert (counts(node), shows_permit(node, "nodevet")) == (is_closed, is_closed)
    serves = msgspec.structs.replace(node, states=frozenset({"IDLE", "REBOOT_REQUESTED"}))
    assert (counts(serves), shows_permit(serves, "nodevet")) == (True, True)


@pytest.mark.parametrize("mark", [drained_text, closing_text])
@pytest.mark.parametrize("reason", PERSONS)
def test_a_closed_node_that_a_person_gave_a_reason_counts_no_more(
    reason: str, mark: Callable[[str, float, int], str]
) -> None:
    """Also where it begins like one of SLURM's."""
    assert not is_slurms(reason)
    node = shown(reason, mark=mark("nodevet", NOW, 7), user="alice")
    assert (counts(node), shows_permit(node, "nodevet")) == (False, False)


def test_a_mark_of_a_drain_says_nothing_of_a_node_in_service() -> None:
    """Neither is it closed nor has it a permit, and the mark is no asking."""
    node = NodeState("n1", frozenset({"IDLE"}), comment=drained_text("nodevet", NOW, 7), partitions=("main",))
    mark = mark_of(node)
    assert mark is not None and (mark.closes, mark.holds, mark.stands(NOW)) == (True, False, False)
    assert (counts(node), shows_permit(node, "nodevet")) == (False, False)


def test_only_what_stands_at_the_end_is_taken_off() -> None:
    """A reason may hold the sign itself."""
    assert without_additions("a : b") == "a : b"
    assert without_additions("Not responding") == "Not responding"
    assert without_additions("a : Not responding : b") == "a : Not responding : b"


# In the writer.


def writer(
    slurm: MemorySlurm,
    name: str = "n1",
    memory: WriterMemory | None = None,
    *,
    clock: float = 0.0,
    host: str = "",
    **changes: object,
) -> Writer:
    """Return a writer that waits for no other by chance."""
    return Writer(
        slurm,
        msgspec.structs.replace(SETTINGS, **changes),
        name,
        wall_seconds=lambda: clock,
        monotonic=lambda: 0.0,
        random=lambda: 0.0,
        boot_id="boot-1",
        memory=memory or WriterMemory(nodes=3),
        host=host,
    )


def settled(passes: Writer, snapshot: Snapshot = FAILED) -> Pass:
    """Make passes until the writer has nothing to do at once."""
    while not (done := passes.step(snapshot)).again_seconds:
        pass
    return done


@pytest.mark.parametrize("snapshot", [FAILED, GATE], ids=["drained", "gate closed"])
@pytest.mark.parametrize("reason", ["Kill task failed", "gres/gpu count reported lower than configured (7 < 8)"])
def test_a_reason_that_slurm_replaced_makes_no_room(snapshot: Snapshot, reason: str) -> None:
    """The next broken node meets the limit, also once the fault is over; somebody's resume makes the room."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    settled(passes, snapshot)
    slurm.set("n1", "IDLE", "DRAIN", reason=reason)
    for now in (snapshot, gpu_node()):
        settled(passes, now)
        assert writer(slurm, "n2").step(FAILED).status.limit_reached
    slurm.set("n1", "IDLE")
    settled(passes, gpu_node())
    assert slurm.nodes["n1"].comment == ""
    assert settled(writer(slurm, "n2")).status.permit.held


def test_a_failed_prolog_of_the_site_behind_a_resume_makes_no_closure_of_it() -> None:
    """Its file system is not there yet, say: the first job drained the node again before the agent's next look."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    settled(passes)
    settled(passes, gpu_node())  # the board was replaced
    slurm.set("n1", "IDLE", "DRAIN", reason="Prolog error")
    assert not writer(slurm, "n2").step(FAILED).status.limit_reached
    assert not settled(passes, gpu_node()).status.closed
    assert slurm.nodes["n1"].comment == ""


def test_a_closed_gate_that_a_person_set_down_makes_room_and_asks_anew() -> None:
    """As where they give it a reason behind a drain of SLURM's."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    assert settled(passes, GATE).status.permit.held
    slurm.set("n1", "DOWN", reason="RMA 4711, the vendor comes on Tuesday", user="alice")
    assert settled(writer(slurm, "n2"), GATE).status.permit.held
    assert not settled(passes, GATE).status.permit.held
    assert (slurm.nodes["n1"].comment, slurm.nodes["n1"].extra) == ("", "")
    slurm.set("n1", "IDLE")
    assert passes.step(GATE).status.limit_reached


def test_a_node_that_slurm_gave_its_own_reason_and_somebody_resumed_is_acknowledged() -> None:
    """As with our reason: what was known is, and the mark goes."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    settled(passes)
    slurm.set("n1", "IDLE", "DRAIN", reason="Kill task failed")
    settled(passes)
    slurm.set("n1", "IDLE")
    done = passes.step(FAILED)
    assert (len(done.acknowledged), done.status.permit.held) == (1, False)
    settled(passes)
    assert (slurm.nodes["n1"].comment, slurm.nodes["n1"].drained) == ("", False)


def test_a_mark_of_a_drain_keeps_no_node_from_asking_anew() -> None:
    """After a reboot that returned the node it asks under the limits, at once, and over the old mark."""
    slurm = MemorySlurm()
    memory = settled(writer(slurm)).memory
    slurm.slurmctld = "2026-11-21T00:00:00"
    slurm.set("n1", "IDLE")
    slurm.set("n2", "IDLE", "DRAIN", reason=OURS)
    again = writer(slurm, memory=memory)
    assert again.step(FAILED).status.limit_reached
    slurm.set("n2", "IDLE")
    assert settled(writer(slurm, memory=memory)).status.permit.held


def test_a_withdrawal_of_a_drains_mark_is_remembered_before_it_is_tried() -> None:
    """An agent that is killed meanwhile leaves a write under way, which would empty the mark of the next one."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    settled(passes)
    slurm.set("n1", "IDLE")
    passes.step(FAILED)
    slurm.calls.clear()
    done = passes.step(gpu_node())
    assert ("mark" in slurm.calls, done.again_seconds) == (False, 0.0)
    (entry,) = FAILED.episodes
    harder = msgspec.structs.replace(entry.finding, action=Action.REPLACE)
    worse = msgspec.structs.replace(FAILED, episodes=(msgspec.structs.replace(entry, finding=harder),))
    assert settled(writer(slurm, memory=done.memory), worse).status.skipped[Why.UNSETTLED] == 1
    assert (settled(passes, gpu_node()).memory.clears, slurm.nodes["n1"].comment) == (None, "")
    assert settled(passes, worse).status.permit.held, "its answer came, so nothing is under way"


def test_a_cluster_whose_drained_nodes_get_reasons_of_slurm_keeps_the_limits() -> None:
    """A bad driver on all of them: what hangs in it cannot be killed, so every drain of ours is overwritten."""
    model = Fleet(100, Trouble(), seed=1, replaced_within_seconds=120.0)
    model.run(seconds=3000.0)
    assert (model.passed, len(model.closed)) == ([], 2)


@pytest.mark.parametrize("reason", [OURS, "Kill task failed"])
@pytest.mark.parametrize("note", ["RMA 4711 ordered", ""])
@pytest.mark.parametrize("snapshot", [FAILED, GATE], ids=["drained", "gate closed"])
def test_a_note_of_a_person_over_the_mark_makes_no_room(snapshot: Snapshot, note: str, reason: str) -> None:
    """It is no resume and no reason: the mark goes into the other field, once, and SLURM's reason is still at ours."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    settled(passes, snapshot)
    slurm.set("n1", "IDLE", "DRAIN", reason=OURS if snapshot is FAILED else "Prolog error")
    settled(passes, snapshot)
    slurm.change("n1", comment=note)
    slurm.set("n1", "IDLE", "DRAIN", reason=reason if snapshot is FAILED else "Prolog error")
    done = settled(passes, snapshot)
    slurm.set("n1", "IDLE", "DRAIN", reason="Kill task failed")
    assert (done.status.permit.held, counts(slurm.nodes["n1"])) == (True, True)
    assert writer(slurm, "n2").step(FAILED).status.limit_reached
    assert slurm.nodes["n1"].comment in (note, drained_text("nodevet", 0.0, 0))
    slurm.change("n1", comment=note, extra="")
    slurm.calls.clear()
    settled(passes, snapshot)
    assert "mark" not in slurm.calls, "who takes it away twice means it"


def test_a_drain_of_an_agent_before_the_marks_gets_one() -> None:
    """After an update, also where the fault is over; it is as old as the drain."""
    slurm = MemorySlurm()
    slurm.now = NOW
    slurm.set("n1", "IDLE", "DRAIN", reason=OURS)
    slurm.change("n1", comment="rack 7")
    settled(writer(slurm, clock=NOW + 9000), gpu_node())
    assert slurm.nodes["n1"].extra == drained_text("nodevet", NOW, 0)


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("ops: fan", {}),
        ("Kill task failed", {}),
        (OURS, {"writer": "observe"}),
        (OURS, {"permit": "local"}),
        (OURS, {"reason_prefix": "other"}),
    ],
)
def test_a_drain_that_is_not_ours_to_mark_gets_none(reason: str, changes: dict[str, Any]) -> None:
    """Nor does one where this agent may not write, or keeps no limit."""
    slurm = MemorySlurm()
    slurm.set("n1", "IDLE", "DRAIN", reason=reason)
    for snapshot in (FAILED, gpu_node()):
        settled(writer(slurm, **changes), snapshot)
    assert (slurm.nodes["n1"].comment, slurm.nodes["n1"].extra) == ("", "")


@pytest.mark.parametrize("snapshot", [FAILED, gpu_node()], ids=["failed", "healthy"])
def test_a_mark_of_a_drain_is_told_where_nobody_takes_it_back(snapshot: Snapshot) -> None:
    """Its agent only observes since: a drain by SLURM itself would fill a place in the limits of the others."""
    slurm = MemorySlurm()
    settled(writer(slurm))
    passes = writer(slurm, writer="observe")
    assert passes.step(snapshot).status.trouble == ""
    slurm.set("n1", "IDLE")
    assert passes.step(snapshot).status.trouble.endswith("type: scontrol update nodename=n1 comment=")


def test_a_drain_of_another_machine_gets_no_mark_of_this_one() -> None:
    """One nodevet.toml with a node_name goes to every node: all of them would write at that one."""
    slurm = MemorySlurm()
    for name in slurm.nodes:
        slurm.change(name, host=name)
    slurm.set("n1", "IDLE", "DRAIN", reason=OURS)
    for snapshot in (FAILED, gpu_node()):
        settled(writer(slurm, host="n2"), snapshot)
    assert "mark" not in slurm.calls
    settled(writer(slurm, host="n1"), gpu_node())
    assert "mark" in slurm.calls


@pytest.mark.parametrize("reason", ["ops: maintenance", "Kill task failed", ""])
def test_a_healthy_agent_reads_no_fleet_for_a_drain_of_others(reason: str) -> None:
    """SLURM has another host name for each machine (``slurmd -N``), and 2,000 agents start in a maintenance."""
    slurm = MemorySlurm()
    for name in slurm.nodes:
        slurm.change(name, host="localhost")
    slurm.set("n1", "IDLE", "DRAIN", reason=reason, user="alice")
    passes = writer(slurm, host="pod-1")
    for _ in range(3):
        passes.step(gpu_node())
    assert "read_all" not in slurm.calls
    slurm.set("n1", "IDLE")
    assert settled(passes).status.permit.held


def test_a_drain_and_its_mark_are_one_call() -> None:
    """Between two SLURM may put its own reason there, and an agent may be killed."""
    slurm = MemorySlurm()
    slurm.before = lambda call: seen.append(slurm.nodes["n1"]) if call != "drain" else None
    seen: list[NodeState] = []
    settled(writer(slurm))
    marks = [mark_of(node) for node in seen if node.drained]
    assert marks and all(mark is not None and mark.drained for mark in marks)
    assert slurm.calls.count("mark") == 1, "that which asks"


@pytest.mark.parametrize("note", [{"comment": "rack A1"}, {"extra": '{"rack": 1}'}, {"comment": ""}, {}])
def test_a_note_of_the_site_at_every_node_opens_no_second_gate(note: dict[str, str]) -> None:
    """Before, a closed gate without a drain was lost to the others until its agent's next look, and one more closed."""
    slurm = MemorySlurm()
    passes = writer(slurm)
    assert settled(passes, GATE).status.permit.held
    for name in slurm.nodes:
        slurm.change(name, **note)
    assert writer(slurm, "n2").step(GATE).status.limit_reached
    assert settled(passes, GATE).status.permit.held
    settled(passes, gpu_node())
    node = slurm.nodes["n1"]
    assert (node.comment, node.extra) == (note.get("comment", ""), note.get("extra", ""))


def test_a_mark_that_can_stand_in_one_field_alone_stands_there() -> None:
    """A release before 22.05 has no other, and a site may use it; nothing of theirs is touched."""
    for changes, fail in (({"extra": "the site's"}, {}), ({}, {"mark": Why.WRITE_FAILED})):
        slurm = MemorySlurm()
        slurm.change("n1", **changes)
        passes = writer(slurm)
        calls = len(slurm.calls)

        def fails(call: str, slurm: MemorySlurm = slurm, fail: dict[str, Why] = fail, begun: int = calls) -> None:
            slurm.fail = fail if call == "mark" and slurm.calls[begun:].count("mark") > 2 else {}

        slurm.before = fails
        assert settled(passes, GATE).status.permit.held
        assert (slurm.nodes["n1"].extra, passes.status.trouble) == (changes.get("extra", ""), "")
        assert slurm.nodes["n1"].comment.startswith("nodevet: gate closed")
        slurm.calls.clear()
        passes.step(GATE)
        assert "mark" not in slurm.calls, "it is tried once"


@pytest.mark.parametrize("note", ["", "rack A1"], ids=["beside the other", "behind a note"])
def test_a_copy_of_a_mark_that_comes_late_is_taken_back(note: str) -> None:
    """Its call got no answer, the fault is over meanwhile: else the node fills a place in the limits for ever."""
    slurm, now = MemorySlurm(), [0.0]
    passes = Writer(
        slurm, SETTINGS, "n1", wall_seconds=lambda: NOW + now[0], monotonic=lambda: now[0], random=lambda: 0.0,
        boot_id="boot-1", memory=WriterMemory(nodes=3),
    )  # fmt: skip

    def late(call: str) -> None:
        slurm.fail = {"mark": Why.WRITE_TIMEOUT} if call == "mark" and slurm.calls.count("mark") == 3 else {}

    slurm.before = late
    assert settled(passes, GATE).status.permit.held
    mark = slurm.nodes["n1"].comment
    slurm.change("n1", comment=note or mark)
    for seconds in range(30, 400, 30):
        now[0] = float(seconds)
        slurm.change("n1", extra=mark) if seconds == 210 else None
        settled(passes, gpu_node())
    assert (slurm.nodes["n1"].comment, slurm.nodes["n1"].extra) == (note, "")
    assert settled(passes, gpu_node()).memory.rests


@pytest.mark.parametrize(("user", "is_theirs"), [("alice", True), ("root", False)])
def test_a_reason_of_ours_that_a_person_wrote_into_is_theirs(user: str, is_theirs: bool) -> None:
    """The ticket before the action, as the form is: a graver fault overwrote it, and the node counted again."""
    slurm = MemorySlurm()
    passes = Writer(
        slurm, SETTINGS, "n1", wall_seconds=lambda: NOW, monotonic=lambda: 0.0, random=lambda: 0.0,
        boot_id="boot-1", memory=WriterMemory(nodes=3), user="root",
    )  # fmt: skip
    settled(passes)
    ours = slurm.nodes["n1"].reason
    theirs = ours.replace(" [", ", RMA 4711 [")
    slurm.change("n1", reason=theirs, reason_user=user)
    harder = msgspec.structs.replace(FAILED.episodes[0].finding, action=Action.REPLACE)
    graver = msgspec.structs.replace(FAILED.episodes[0], finding=harder)
    node = msgspec.structs.replace(FAILED, episodes=(graver,))
    settled(passes, node)
    done = settled(passes, node)
    assert (slurm.nodes["n1"].reason == theirs, done.status.permit.held) == (is_theirs, not is_theirs)
    assert counts(slurm.nodes["n1"]) is not is_theirs
    assert (done.status.drained_by, slurm.nodes["n1"].comment == "") == (
        ("other", True) if is_theirs else ("nodevet", False)
    )
    slurm.set("n1", "IDLE")
    assert len(settled(passes, node).memory.resumed) == 1
