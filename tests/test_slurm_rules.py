"""The rules of the writer to SLURM: what is read, what follows, and what is never written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.episodes import episode as made
from fakes.snapshots import at
from hypothesis import given
from hypothesis import strategies as st

from nodevet.checks.core.model import Action, Episode, EpisodeState, FaultClass, Instant, Outcome
from nodevet.checks.engine.acknowledgement import granted
from nodevet.checks.engine.damping import later
from nodevet.exporters.slurm.known import KnownFault, as_known
from nodevet.exporters.slurm.rules import (
    Decision,
    NodeState,
    ScontrolOutputError,
    Sight,
    Step,
    Why,
    WriterMemory,
    decide,
    is_ours,
    parse_node,
    parse_nodes,
    parse_size,
    parse_started,
    reason_text,
    seconds_of,
)

PREFIX = "nodevet"
IDLE = frozenset({"IDLE"})
DRAINED = frozenset({"IDLE", "DRAIN"})

SHOWN = """\
NodeName=n2 Arch=x86_64 CoresPerSocket=1 
   CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=0.17
   Gres=gpu:h100:8
   OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC @0 
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=main 
   CfgTRES=cpu=8,mem=1000M,billing=8
{more}

"""  # noqa: W291 (scontrol ends some lines with a blank)


def shown(state: str = "IDLE", more: str = "") -> str:
    """Return a node as ``scontrol show node`` of 22.05 prints it."""
    return SHOWN.format(state=state, more=more)


def fault(code: str = "nvidia.xid.79", count: int = 1, **finding: Any) -> Episode:
    """Return a hard fault of an accelerator that was found by the kernel log."""
    entry = made(code, count=count)
    changed = {"message": "GPU 3 (0000:1b:00.0): fell off the bus; reseat it", "action": Action.REBOOT, **finding}
    return msgspec.structs.replace(entry, finding=msgspec.structs.replace(entry.finding, **changed))


def known(*faults: Episode) -> tuple[KnownFault, ...]:
    """Return *faults* as they were known."""
    return as_known(faults)


NOW = msgspec.structs.replace(at(600), boot_id="boot-1")
HERE = Sight("boot-1", "2026-11-20T08:00:00", "2026-11-20T07:00:00")


def seen_drained(reason: str, *faults: Episode, sight: Sight | None = HERE) -> WriterMemory:
    """Return the memory of a node that was seen drained with *reason* while it had *faults*."""
    return WriterMemory(drained=reason, known=known(*faults), sight=sight)


def node(states: frozenset[str] = IDLE, reason: str = "", user: str | None = "root") -> NodeState:
    """Return a node in *states*."""
    return NodeState("n2", states, reason, user if reason else None, slurmd_started=HERE.slurmd)


def decided(faults: tuple[Episode, ...], seen: NodeState, memory: WriterMemory | None = None) -> Decision:
    """Return what the rules say."""
    return decide(faults, seen, memory or WriterMemory(), PREFIX, now=NOW, sight=HERE)


FAULT = fault()
OURS = reason_text((FAULT,), PREFIX)


# What is read.


@pytest.mark.parametrize(
    ("text", "states", "reason", "user"),
    [
        (shown(), {"IDLE"}, "", None),
        (shown("MIXED+DRAIN+PLANNED"), {"MIXED", "DRAIN", "PLANNED"}, "", None),
        (shown("DOWN*"), {"DOWN", "NOT_RESPONDING"}, "", None),
        (shown("IDLE+NOT_RESPONDING"), {"IDLE", "NOT_RESPONDING"}, "", None),
        (shown("IDLE~"), {"IDLE", "POWERED_DOWN"}, "", None),
        (shown("mixed-"), {"MIXED", "PLANNED"}, "", None),
        (shown("IDLE+DRAIN", "   Reason=ops: fan [root@2026-11-20T13:25:12]"), DRAINED, "ops: fan", "root"),
        (shown("IDLE+DRAIN", "   Reason= [root@2026-11-20T13:25:12]"), DRAINED, "", "root"),
        (shown("IDLE+DRAIN", "   Reason=[user] busy [bob@2026-01-01T00:00:00]"), DRAINED, "[user] busy", "bob"),
        (shown("IDLE+DRAIN", "   Reason=a [b@c] d [bob@corp@2026-01-01T00:00:00]"), DRAINED, "a [b@c] d", "bob@corp"),
        (shown("IDLE+DRAIN", "   Reason=unsigned"), DRAINED, "unsigned", None),
        (shown("IDLE+DRAIN", "   Reason=one [root@2026-11-20T13:25:12]\n          State=IDLE"), DRAINED, "one", "root"),
        (shown("IDLE+DRAIN", f"   Reason={OURS} : reboot issued [slurm@2026-11-20T13:25:12]"), DRAINED, OURS, None),
        (shown("IDLE+DRAIN", "   Reason=x : reboot issued : reboot complete [s@2026-11-20T13]"), DRAINED, "x", None),
        (shown("IDLE+DRAIN", "   Reason=reboot issued [s@2026-11-20T13:25:12]"), DRAINED, "reboot issued", "s"),
        (shown("IDLE+DRAIN", "   Reason=x : reboot it [bob@2026-11-20T13:25:12]"), DRAINED, "x : reboot it", "bob"),
        (shown("IDLE", "   Comment=State=DOWN Reason=nodevet: x\n   Extra={}"), {"IDLE"}, "", None),
    ],
)  # fmt: skip
def test_a_node_is_read_in_every_form(text: str, states: set[str], reason: str, user: str | None) -> None:
    """Words joined by +, marks behind a state, reasons with brackets, on several lines, with SLURM's words."""
    found = parse_node(text, "n2")
    assert (found.states, found.reason, found.reason_user) == (frozenset(states), reason, user)


def test_the_host_name_is_slurms_own_line() -> None:
    """Not one in a comment; a release that shows none is believed."""
    line = "   NodeAddr=10.0.0.2 NodeHostName=gpu-2 Version=22.05.8"
    forged = "   Comment=x NodeHostName=other"
    assert parse_node(shown("IDLE", f"{forged}\n{line}"), "n2").host == "gpu-2"
    assert parse_node(shown("IDLE", forged), "n2").host == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no node"),
        ("\n\n", "no node"),
        ("Node n2 not found\n", "expected NodeName="),
        ("slurm_load_node error: Unable to contact slurm controller\n", "expected NodeName="),
        ("NodeName=n2 Arch=x86_64\n", "node n2 has no State="),
        ("NodeName=", "a node has no name"),
        ("NodeName=\n   State=IDLE\n", "node State=IDLE has no State=|expected node n2"),
        (shown().replace("   State=", "   Status="), "node n2 has no State="),
        (shown().replace("n2", "n3"), "expected node n2 alone, found n3"),
        (shown() + shown(), "expected node n2 alone, found n2, n2"),
        ("{}", "expected NodeName="),
    ],
)
def test_what_is_no_answer_is_refused(text: str, says: str) -> None:
    """Empty, cut, of another node, or an error that came on standard output."""
    with pytest.raises(ScontrolOutputError, match=says):
        parse_node(text, "n2")


ODD_TEXTS = ("hello\nNodeName=evil x", "a\n\nNodeName=evil", "\nNodeName=", "NodeName=evil\nNodeName=n3", "x\n\n\n")
"""What SLURM 22.05 takes for a comment and prints as it is."""


@pytest.mark.parametrize("text", ODD_TEXTS)
@pytest.mark.parametrize("field", ["Comment", "Extra"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_of_a_comment_that_begins_like_a_node_costs_no_other(text: str, field: str, place: int) -> None:
    """The whole cluster is read as without it, wherever the node stands in the list."""
    names = ["n1", "n2", "n3"]
    drained = [shown("IDLE+DRAIN", f"   {field}={text}" if at == place else "").rstrip("\n") for at in range(3)]
    answer = "".join(entry.replace("n2", name, 1) + "\n\n" for entry, name in zip(drained, names, strict=True))
    assert [(node.name, node.drained) for node in parse_nodes(answer)] == [(name, True) for name in names]


def test_a_list_that_is_cut_off_is_no_list() -> None:
    """Else its last node, closed perhaps, would not count."""
    with pytest.raises(ScontrolOutputError, match="node n3 has no State="):
        parse_nodes(shown() + "\nNodeName=n3 Arch=x86_64\n   CPUAlloc=0\n")


def test_a_further_line_of_a_reason_is_no_field() -> None:
    """SLURM prints it ten spaces in."""
    forged = "   Reason=ops [root@2026-11-22T05:34:13]\n          Comment=nodevet: gate closed, 1800000000 7\n"
    found = parse_node(shown("IDLE+DRAIN", forged), "n2")
    assert (found.reason, found.comment) == ("ops", "")


@given(text=st.text(max_size=200))
def test_no_text_is_taken_for_a_node_that_does_not_say_so(text: str) -> None:
    """Whatever comes, it is refused or names the node and a state."""
    try:
        found = parse_node(text, "n2")
    except ScontrolOutputError:
        return
    assert text.startswith("NodeName=n2")
    assert found.states


def test_what_a_permit_and_a_resume_need_is_read() -> None:
    """Partitions, comment and extra text, the start of slurmd, and the time of a reason in UTC."""
    text = shown("IDLE+DRAIN").replace("Partitions=main ", "Partitions=main,gpu ")
    text = text.replace("   CfgTRES", "   BootTime=2026-11-20T09:00:00 SlurmdStartTime=2026-11-20T09:01:00\n   CfgTRES")
    found = parse_node(text + "   Reason=x [root@1970-01-01T01:00:00]\n   Comment=a b\n   Extra=c\n", "n2")
    assert (found.partitions, found.comment, found.extra) == (("main", "gpu"), "a b", "c")
    assert (found.slurmd_started, found.reason_seconds) == ("2026-11-20T09:01:00", 3600.0)
    odd = parse_node(shown("IDLE") + "   BootTime=None SlurmdStartTime=None\n   Reason=x [root@yesterday]\n", "n2")
    assert (odd.slurmd_started, odd.reason, odd.reason_seconds) == (None, "x", None)


def test_size_and_start_of_a_cluster_are_read() -> None:
    """What is not understood is no answer."""
    assert (
        parse_size("PartitionName=a\n   State=UP TotalCPUs=8 TotalNodes=2\n\nPartitionName=b\n   TotalNodes=3\n") == 5
    )
    assert parse_started("BatchStartTimeout = 10 sec\nBOOT_TIME               = 2026-11-22T02:15:59\n") == (
        "2026-11-22T02:15:59"
    )
    ping = "BOOT_TIME = 2026-11-22T02:15:59\n\nSlurmctld(primary) at a is {}\nSlurmctld(backup) at b is UP\n"
    assert parse_started(ping.format("UP")) == "2026-11-22T02:15:59"
    assert seconds_of(parse_started(ping.format("DOWN"))) is None, "it may have taken over just now"
    for parse in (parse_size, parse_started):
        with pytest.raises(ScontrolOutputError):
            parse("slurmctld is down\n")


def test_captured_nodes_are_read_as_they_were(captures: Path) -> None:
    """scontrol of other releases: one line per node is brought into the usual form first, the rest is as it was."""
    read = 0
    for line in (captures / "slurm.jsonl").read_text().splitlines():
        entry = json.loads(line)
        expected = entry["expect"]
        if not str(expected.get("format", "")).startswith("scontrol show node") or not expected.get("node"):
            continue
        text = entry["text"]
        if "\n   " not in text:
            text = text.replace(" State=", "\n   State=").replace(" Reason=", "\n   Reason=")
            text = text.replace(" ReservationName=", "\n   ReservationName=")
        found = parse_node(text, expected["node"])
        assert {expected["base"], *expected["flags"]} == set(found.states)
        assert (found.reason, found.reason_user) == (expected.get("reason", ""), expected.get("reason_user"))
        read += 1
    assert read >= 4


# What follows.

TABLE = [
    ("no fault, idle", (), node(), None, Step.NOTHING, None),
    ("no fault, drained by a person", (), node(DRAINED, "ops: fan"), None, Step.NOTHING, None),
    ("no fault, drained by us", (), node(DRAINED, OURS), None, Step.NOTHING, None),
    ("fault, idle", (FAULT,), node(), None, Step.DRAIN, None),
    ("fault, jobs run", (FAULT,), node(frozenset({"MIXED", "COMPLETING"})), None, Step.DRAIN, None),
    ("fault, planned", (FAULT,), node(frozenset({"IDLE", "PLANNED"})), None, Step.DRAIN, None),
    ("fault, reserved", (FAULT,), node(frozenset({"IDLE", "RESERVED"})), None, Step.DRAIN, None),
    ("fault, slurmd late", (FAULT,), node(frozenset({"IDLE", "NOT_RESPONDING"})), None, Step.DRAIN, None),
    ("fault, foreign reason", (FAULT,), node(DRAINED, "ops: fan"), None, Step.NOTHING, Why.FOREIGN_REASON),
    ("fault, prolog error", (FAULT,), node(DRAINED, "Prolog error"), None, Step.NOTHING, Why.FOREIGN_REASON),
    ("fault, reason of a person with our prefix", (FAULT,), node(DRAINED, "nodevet: look at this"), None,
     Step.NOTHING, Why.FOREIGN_REASON),
    ("fault, a person added to our reason", (FAULT,), node(DRAINED, OURS + " ticket 4711"), None,
     Step.NOTHING, Why.FOREIGN_REASON),
    ("fault, empty reason", (FAULT,), node(DRAINED), None, Step.NOTHING, Why.EMPTY_REASON),
    ("fault, drained by us", (FAULT,), node(DRAINED, OURS), None, Step.NOTHING, None),
    ("fault, drained by us for less", (FAULT,),
     node(DRAINED, OURS.replace("[reboot]", "[watch]")), None, Step.UPDATE, None),
    ("fault, drained by us, only figures differ", (FAULT,),
     node(DRAINED, "nodevet: hw kernel-log: GPU 4 did [reboot]"), None, Step.NOTHING, None),
    ("fault, maintenance", (FAULT,), node(frozenset({"IDLE", "MAINTENANCE", "RESERVED"})), None,
     Step.NOTHING, Why.MAINTENANCE),
    ("fault, powering down", (FAULT,), node(frozenset({"IDLE", "POWERING_DOWN"})), None, Step.NOTHING, Why.POWER),
    ("fault, reboot issued", (FAULT,), node(frozenset({"IDLE", "REBOOT_ISSUED"})), None, Step.NOTHING, Why.REBOOT),
    ("fault, down", (FAULT,), node(frozenset({"DOWN", "NOT_RESPONDING"})), None, Step.NOTHING, Why.DOWN),
    ("fault, failing", (FAULT,), node(frozenset({"IDLE", "FAIL"})), None, Step.NOTHING, Why.UNKNOWN_STATE),
    ("fault, unheard of", (FAULT,), node(frozenset({"IDLE", "QUANTUM"})), None, Step.NOTHING, Why.UNKNOWN_STATE),
    ("fault, no state at all", (FAULT,), node(frozenset()), None, Step.NOTHING, Why.UNKNOWN_STATE),
    ("resumed after our drain", (FAULT,), node(), seen_drained(OURS, FAULT), Step.ACKNOWLEDGE, None),
    ("resumed after a person's drain", (FAULT,), node(), seen_drained("ops", FAULT), Step.ACKNOWLEDGE, None),
    ("resumed, and the fault is gone", (), node(), seen_drained(OURS, FAULT), Step.NOTHING, None),
    ("resumed, and it occurred again", (fault(count=2),), node(), seen_drained(OURS, FAULT), Step.ACKNOWLEDGE, None),
    ("resumed, and it occurs ever again", (fault(count=99),), node(), WriterMemory(resumed=known(FAULT)),
     Step.NOTHING, None),
    ("resumed, and it asks for something harder", (fault(action=Action.REPLACE),), node(),
     seen_drained(OURS, FAULT), Step.DRAIN, None),
    ("resumed, and another came", (fault("other"),), node(), seen_drained(OURS, FAULT), Step.DRAIN, None),
    ("resumed into maintenance", (FAULT,), node(frozenset({"IDLE", "MAINTENANCE"})), seen_drained(OURS, FAULT),
     Step.ACKNOWLEDGE, None),
    ("down after our drain", (FAULT,), node(frozenset({"DOWN"})), seen_drained(OURS, FAULT), Step.NOTHING, Why.DOWN),
    ("still counts after the resume", (FAULT,), node(), WriterMemory(resumed=known(FAULT)), Step.NOTHING, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("faults", "seen", "memory", "step", "why"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_what_follows(
    faults: tuple[Episode, ...], seen: NodeState, memory: WriterMemory | None, step: Step, why: Why | None
) -> None:
    """The table of rules, row by row."""
    found = decided(faults, seen, memory)
    assert (found.step, found.why) == (step, why)
    assert bool(found.reason) is (step in (Step.DRAIN, Step.UPDATE))


RESTARTS = {
    "a reboot": Sight("boot-2", HERE.slurmd, HERE.slurmctld),
    "a restart of slurmctld": Sight(HERE.boot_id, HERE.slurmd, "2026-11-20T12:00:00"),
    "a restart of slurmd": Sight(HERE.boot_id, "2026-11-20T12:00:00", HERE.slurmctld),
}


@pytest.mark.parametrize("after", RESTARTS)
def test_a_node_that_returns_after_a_restart_was_resumed_by_nobody(after: str) -> None:
    """A reboot with nextstate, slurmd -b, a cold start, an older saved state: nothing is acknowledged; it is told."""
    found = decide((FAULT,), node(), seen_drained(OURS, FAULT), PREFIX, now=NOW, sight=RESTARTS[after])
    assert (found.step, found.memory.resumed, found.memory.returned) == (Step.DRAIN, (), after)
    again = decide((FAULT,), node(DRAINED, OURS), found.memory, PREFIX, now=NOW, sight=RESTARTS[after])
    assert again.memory.returned == after, "it is told until somebody says a word"
    resumed = decide((FAULT,), node(), again.memory, PREFIX, now=NOW, sight=RESTARTS[after])
    assert (resumed.step, resumed.memory.returned) == (Step.ACKNOWLEDGE, "")


@pytest.mark.parametrize(
    "sight", [None, Sight("boot-1", None, HERE.slurmctld), Sight("boot-1", HERE.slurmd, None)], ids=str
)
def test_a_sight_that_is_not_whole_proves_no_person(sight: Sight | None) -> None:
    """What SLURM does not know is not the same as before."""
    now = sight or HERE
    assert (
        decide((FAULT,), node(), seen_drained(OURS, FAULT, sight=sight), PREFIX, now=NOW, sight=now).step is Step.DRAIN
    )


def test_a_resume_covers_what_comes_and_goes_for_an_hour() -> None:
    """Of the same board in the same boot, and nothing harder: afterwards, and for another board, it drains again."""
    board = msgspec.structs.replace(FAULT, serial="one")
    resumed = decided((board,), node(), seen_drained(OURS, board)).memory
    quiet = decided((), node(), resumed).memory
    assert quiet.resumed == resumed.resumed, "remembered while nothing is there"

    def returned(seconds: float, **changes: Any) -> Step:
        opened = msgspec.structs.replace(NOW, boottime_ns=NOW.boottime_ns + round(seconds * 1e9))
        entry = msgspec.structs.replace(fault(count=1), **{"opened": opened, **changes})
        return decided((entry,), node(), quiet).step

    assert (returned(1), returned(3599), returned(3600)) == (Step.NOTHING, Step.NOTHING, Step.DRAIN)
    assert returned(1, serial="another") is Step.DRAIN
    assert returned(1, opened=msgspec.structs.replace(NOW, boot_id="boot-2")) is Step.DRAIN
    assert returned(1, finding=fault(action=Action.REPLACE).finding) is Step.DRAIN
    late = msgspec.structs.replace(NOW, boottime_ns=NOW.boottime_ns + 3600 * 10**9)
    assert decide((), node(), quiet, PREFIX, now=late, sight=HERE).memory.resumed == ()
    opened = msgspec.structs.replace(NOW, boottime_ns=NOW.boottime_ns + 10**9)
    stays = (msgspec.structs.replace(fault(), opened=opened),)
    kept = decide((), node(), quiet, PREFIX, now=late, sight=HERE, episodes=stays).memory
    assert kept.resumed == quiet.resumed, "a return that stays is the known one for good"


@pytest.mark.parametrize("also_due", [False, True])
def test_a_resume_covers_for_an_hour_what_was_acknowledged_before_it(also_due: bool) -> None:
    """Who types an acknowledgement and then resumes says no less than who only resumes; a reboot says nothing."""
    due = (fault("memory.uncorrected"),) if also_due else ()
    word = granted(FAULT, note="reseated", actor="uid 0", time=NOW, until=None)
    seen = decide(due, node(DRAINED, OURS), WriterMemory(), PREFIX, now=NOW, sight=HERE, episodes=(*due, word)).memory
    assert seen.known == known(*due, FAULT)
    resumed = decide(due, node(), seen, PREFIX, now=NOW, sight=HERE, episodes=(*due, word))
    assert resumed.step is (Step.ACKNOWLEDGE if also_due else Step.NOTHING)
    opened = msgspec.structs.replace(NOW, boottime_ns=NOW.boottime_ns + 60 * 10**9)
    returned = msgspec.structs.replace(FAULT, opened=opened)
    assert decided((returned,), node(), resumed.memory).step is Step.NOTHING
    harder = msgspec.structs.replace(returned, finding=fault(action=Action.REPLACE).finding)
    assert decided((harder,), node(), resumed.memory).step is Step.DRAIN
    booted = msgspec.structs.replace(HERE, boot_id="boot-2")
    after = decide(due, node(), seen, PREFIX, now=NOW, sight=booted, episodes=(*due, word)).memory
    assert after.resumed == ()
    twice = decide((), node(DRAINED, OURS), resumed.memory, PREFIX, now=NOW, sight=HERE, episodes=(word,)).memory
    again = decide((), node(), twice, PREFIX, now=NOW, sight=HERE, episodes=(word,)).memory
    assert [entry.key for entry in again.resumed].count(FAULT.key) == 1


def test_a_second_resume_takes_nothing_back_that_the_first_knew() -> None:
    """A fault returned and asked for less when somebody drained and resumed once more; then it is as before."""
    first = decided((FAULT,), node(), seen_drained(OURS, FAULT)).memory
    opened = msgspec.structs.replace(NOW, boottime_ns=NOW.boottime_ns + 60 * 10**9)
    mild = msgspec.structs.replace(fault(action=Action.DRAIN_RESET), opened=opened)
    word = granted(mild, note="n", actor="somebody in SLURM", time=opened, until=None)
    memory = first
    for states in (DRAINED, IDLE, DRAINED, IDLE):
        memory = decide((), node(states, "ops: fan"), memory, PREFIX, now=opened, sight=HERE, episodes=(word,)).memory
    returned = msgspec.structs.replace(FAULT, opened=later(opened, 60.0))
    assert decide((returned,), node(), memory, PREFIX, now=opened, sight=HERE).step is Step.NOTHING
    late = msgspec.structs.replace(FAULT, opened=later(opened, 3600.0))
    assert decide((late,), node(), memory, PREFIX, now=late.opened, sight=HERE).step is Step.DRAIN
    assert [entry.action for entry in memory.resumed] == [FAULT.finding.action, Action.DRAIN_RESET]


def test_a_serial_that_is_learnt_within_the_hour_makes_no_other_board() -> None:
    """One that was never told cannot differ; two that were told and differ are two boards."""

    def returned(before: str | None, after: str | None) -> Step:
        known = msgspec.structs.replace(FAULT, serial=before)
        resumed = decided((known,), node(), seen_drained(OURS, known)).memory
        opened = msgspec.structs.replace(NOW, boottime_ns=NOW.boottime_ns + 10**9)
        return decided((msgspec.structs.replace(FAULT, serial=after, opened=opened),), node(), resumed).step

    assert [returned(*pair) for pair in ((None, "1"), ("1", None), ("1", "1"), ("0x5EED", "1"), ("1", "2"))] == [
        *[Step.NOTHING] * 4,
        Step.DRAIN,
    ]


def test_a_resume_of_what_was_not_measured_covers_no_fault() -> None:
    """Nobody knew of one, although it has the same name and asks for no more."""
    blind = msgspec.structs.replace(FAULT, outcome=Outcome.UNMEASURED)
    resumed = decided((blind,), node(), seen_drained(OURS, blind)).memory
    assert decided((blind,), node(), resumed).step is Step.NOTHING
    assert decided((FAULT,), node(), resumed).step is Step.DRAIN
    assert decided((blind,), node(), decided((FAULT,), node(), seen_drained(OURS, FAULT)).memory).step is Step.NOTHING


@pytest.mark.parametrize(
    ("said", "term", "covers"),
    [(5, True, False), (5, False, True), (-5, True, True)],
    ids=["later", "for good", "earlier"],
)
@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"])
def test_a_term_that_a_person_gives_after_the_resume_counts(boot_id: str, said: int, term: bool, covers: bool) -> None:
    """The later word: once the term is over, the fault that is still there drains; a term before the resume is old."""
    resumed = decided((FAULT,), node(), seen_drained(OURS, FAULT)).memory

    def moment(seconds: int) -> Instant:
        return Instant(boot_id, NOW.boottime_ns + seconds * 10**9, NOW.wall_seconds + seconds)

    over = msgspec.structs.replace(
        FAULT, acknowledged=moment(said), until=moment(said + 60) if term else None, expired=moment(said + 60)
    )
    assert (decided((over,), node(), resumed).step is Step.NOTHING) is covers
    meanwhile = msgspec.structs.replace(over, state=EpisodeState.ACKNOWLEDGED, expired=None)
    kept = decide((), node(), resumed, PREFIX, now=NOW, sight=HERE, episodes=(meanwhile,)).memory
    assert bool(kept.resumed) is covers


ENDING: dict[str, dict[str, Any]] = {
    "a requested reboot": {"states": frozenset({"MIXED", "DRAIN", "REBOOT_REQUESTED"})},
    "a change of its power": {"states": frozenset({"MIXED", "DRAIN", "POWER_DOWN"})},
    "a state that nodevet does not know": {"states": frozenset({"IDLE", "DRAIN", "NEW_IN_SLURM_30"})},
    "the scheduled resume (ResumeAfter)": {"states": DRAINED, "resumes": "2026-11-20T15:00:00"},
}


@pytest.mark.parametrize("reason", ["Reboot ASAP", "ops: fan", OURS])
@pytest.mark.parametrize("ends", ENDING)
def test_a_drain_that_slurm_ends_itself_was_resumed_by_nobody(ends: str, reason: str) -> None:
    """``scontrol reboot ASAP`` drains, ``cancel_reboot`` takes that back: nobody spoke of the faults of the node."""
    drained = msgspec.structs.replace(node(DRAINED, reason), **ENDING[ends])
    seen = decided((FAULT,), drained).memory
    assert (seen.drained, seen.known) == (reason, known(FAULT))
    found = decided((FAULT,), node(), seen)
    assert (found.step, found.memory.resumed, found.memory.returned) == (Step.DRAIN, (), ends)
    # Where the drain was seen to stand for itself since, whoever ended it was somebody.
    again = decided((FAULT,), node(DRAINED, reason), seen).memory
    assert decided((FAULT,), node(), again).step is Step.ACKNOWLEDGE


def test_a_resume_behind_an_invalid_registration_is_a_persons_word() -> None:
    """A GPU is lost, and slurmd registers without it: SLURM keeps the drain, also when the GPU is there again."""
    seen = decided((FAULT,), node(frozenset({"IDLE", "DRAIN", "INVALID_REG"}), OURS)).memory
    assert decided((FAULT,), node(), seen).step is Step.ACKNOWLEDGE
    assert decided((FAULT,), node(frozenset({"IDLE", "INVALID_REG"}))).why is Why.DOWN


def test_what_was_resumed_is_remembered_as_long_as_its_episode_lives() -> None:
    """An acknowledged episode closes no gate, and a count that grows may open it again: it is still the person's."""
    memory = WriterMemory(resumed=known(FAULT))
    quiet = decide((), node(), memory, PREFIX, now=NOW, sight=HERE, episodes=(FAULT,)).memory
    assert decide((fault(count=5),), node(), quiet, PREFIX, now=NOW, sight=HERE).step is Step.NOTHING
    assert decide((), node(), memory, PREFIX, now=NOW, sight=HERE).memory.resumed == ()


def test_faults_that_may_not_drain_close_the_gate_alone() -> None:
    """Their mode is gate: the node gets a mark, and no drain."""
    assert decide((FAULT,), node(), WriterMemory(), PREFIX, now=NOW, sight=HERE, drains=False).step is Step.CLOSE


def test_a_state_that_is_left_alone_keeps_the_memory_of_the_drain() -> None:
    """A node that goes down while it is drained and comes back drained was resumed by nobody."""
    before = decided((FAULT,), node(DRAINED, OURS)).memory
    down = decided((FAULT,), node(frozenset({"DOWN"})), before).memory
    assert (down.drained, down.known) == (OURS, known(FAULT))
    assert decided((FAULT,), node(DRAINED, OURS), down).step is Step.NOTHING


def test_a_resume_acknowledges_what_was_known_and_the_rest_drains_again() -> None:
    """Two faults; the second came after the node was seen drained last."""
    new = fault("memory.uncorrected")
    resumed = decided((FAULT, new), node(), seen_drained(OURS, FAULT))
    (held,) = resumed.memory.resumed
    assert (resumed.step, msgspec.structs.replace(held, until=None)) == (Step.ACKNOWLEDGE, *known(FAULT))
    again = decided((FAULT, new), node(), resumed.memory)
    assert again.step is Step.DRAIN
    assert again.reason == reason_text((new,), PREFIX)


def test_a_forgotten_drain_is_known_again_from_the_reason_at_the_node() -> None:
    """The memory is lost and our reason stands there: a resume is understood all the same."""
    derived = decided((FAULT,), node(DRAINED, OURS), WriterMemory()).memory
    assert decided((FAULT,), node(), derived).step is Step.ACKNOWLEDGE


# Defects of others, by the numbers of their threads.


def test_nhc_134_an_answer_that_is_empty_or_broken_is_no_state() -> None:
    """LBNL NHC took an empty answer for a node without a reason, wrote its own, and resumed the node later."""
    for text in ("", "\n", "slurm_load_node error: Zero Bytes were transmitted or received\n"):
        with pytest.raises(ScontrolOutputError):
            parse_node(text, "n2")


def test_nhc_82_a_state_that_is_not_known_is_left_alone() -> None:
    """There "resv" was unheard of and ended in an error; here it is a word like any other, and unknown ones stop."""
    assert decided((FAULT,), parse_node(shown("IDLE+RESV"), "n2")).why is Why.UNKNOWN_STATE


def test_cyclecloud_healthagent_a_foreign_reason_is_not_overwritten() -> None:
    """Its drain example wrote over a person's reason where sinfo failed; here no reading means no decision at all."""
    for reason in ("ops: fan", "NHC: check_fs", "nodevet-old: hw x: y [reboot]"):
        assert decided((FAULT,), node(DRAINED, reason)).why is Why.FOREIGN_REASON


# What is written.


@pytest.mark.parametrize(
    ("finding", "reason"),
    [
        ({}, "nodevet: hw kernel-log: GPU 3 (0000:1b:00.0): fell off the bus [reboot]"),
        ({"fault_class": FaultClass.NODE}, "nodevet: node kernel-log: GPU 3 (0000:1b:00.0): fell off the bus [reboot]"),
        ({"message": "", "action": Action.NONE}, "nodevet: hw kernel-log: nvidia.xid.79 [none]"),
        ({"message": "a \"b\" 'c'\nd`e`\x1b[31m ü = x"}, "nodevet: hw kernel-log: a b c d e 31m x [reboot]"),
        ({"message": "lost [NVRM: Xid 79, name=secret]; do"}, "nodevet: hw kernel-log: lost [reboot]"),
    ],
)
def test_the_reason_is_one_plain_line(finding: dict[str, Any], reason: str) -> None:
    """Class, check, detail and action; no quotes, line ends, letters beyond ASCII, or processes of users."""
    assert reason_text((fault(**finding),), PREFIX) == reason


def test_the_gravest_fault_gives_the_reason_and_the_others_are_counted() -> None:
    """The hardest action counts."""
    mild, grave = fault("a", action=Action.DRAIN_RESET), fault("b", action=Action.REPLACE, message="row remap failed")
    assert reason_text((mild, grave), PREFIX) == "nodevet: hw kernel-log: row remap failed (and 1 more) [replace]"


@given(
    message=st.text(max_size=400),
    action=st.sampled_from(Action),
    kind=st.sampled_from(FaultClass),
    more=st.integers(0, 3),
)
def test_every_reason_is_short_plain_and_known_as_ours(
    message: str, action: Action, kind: FaultClass, more: int
) -> None:
    """And comes back from scontrol's output as it was."""
    faults = (fault(message=message, action=action, fault_class=kind), *(fault(f"c{n}") for n in range(more)))
    reason = reason_text(faults, PREFIX)
    assert len(reason) <= 200
    assert reason.isascii() and reason.isprintable()
    assert not set(reason) & set("\"'`;\\|=@\n")
    assert is_ours(reason, PREFIX)
    assert not is_ours(reason, "other")
    text = shown("IDLE+DRAIN", f"   Reason={reason} [root@2026-11-20T13:25:12]")
    assert parse_node(text, "n2").reason == reason


@pytest.mark.parametrize(
    "reason",
    [
        "nodevet: look at this",
        "nodevet: hw thermal: hot",
        f"{OURS} ticket 4711",
        "nodevet: hw thermal: hot [scrap]",
        "nodevet",
    ],
)
def test_what_a_person_wrote_behind_our_prefix_is_theirs(reason: str) -> None:
    """Only the whole form is ours: what was added to it is somebody's work."""
    assert not is_ours(reason, PREFIX)


REASONS = st.one_of(
    st.just(""), st.just(OURS), st.text(max_size=60), st.sampled_from(["Prolog error", "nodevet: mine"])
)
WORDS = st.frozensets(
    st.sampled_from(["IDLE", "MIXED", "DRAIN", "PLANNED", "RESERVED", "MAINT", "DOWN", "POWERED_DOWN", "REBOOT", "X"]),
    max_size=4,
)
FAULTS = st.lists(
    st.builds(fault, st.sampled_from(["a", "b", "c"]), st.integers(1, 2)), max_size=3, unique_by=lambda f: f.key
).map(tuple)


@given(history=st.lists(st.tuples(FAULTS, WORDS, REASONS), max_size=8))
def test_over_any_history_a_person_outranks_the_machine(
    history: list[tuple[tuple[Episode, ...], frozenset[str], str]],
) -> None:
    """Only a node in service is drained, only our own reason is replaced, and what a person resumed the node with is
    not drained for again while it did not occur anew: whatever is seen, in whatever order."""
    memory = WriterMemory()
    for faults, states, reason in history:
        seen = NodeState("n2", states, reason if "DRAIN" in states else "")
        resumed = memory.resumed
        found = decide(faults, seen, memory, PREFIX, now=NOW, sight=HERE)
        if found.step is Step.DRAIN:
            assert not seen.drained
            assert states <= {"IDLE", "MIXED", "PLANNED", "RESERVED"}
            assert not all(any(entry.covers(one) for entry in resumed) for one in faults)
        if found.step is Step.UPDATE:
            assert is_ours(seen.reason, PREFIX)
        if found.step is Step.ACKNOWLEDGE:
            assert memory.drained is not None and not seen.drained
        if found.step in (Step.DRAIN, Step.UPDATE):
            assert faults
            memory = msgspec.structs.replace(found.memory, drained=found.reason)
        else:
            memory = found.memory


def test_every_node_of_the_list_is_read() -> None:
    """Nodes stand in paragraphs, and a reason of several lines cannot forge one."""
    text = shown("IDLE+DRAIN", "   Reason=x [root@2026-11-20T13:25:12]\n          NodeName=n9 State=IDLE")
    assert [entry.name for entry in parse_nodes(text + shown().replace("n2", "n3"))] == ["n2", "n3"]
