"""When a node may have all nodes read: in its turn, whatever changed, for it changes on a whole cluster at once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from fakes.slurm_in_memory import MemorySlurm
from fakes.snapshots import at, failed_node

from nodevet.agent.config.settings import SlurmSettings
from nodevet.agent.slurm.writer import Writer
from nodevet.checks.core.model import Action, Episode, Mode, Modes, Snapshot
from nodevet.exporters.metrics.scheduler import scheduler_metrics
from nodevet.exporters.slurm.names import how_many, names_in
from nodevet.exporters.slurm.rules import WriterMemory, parse_size

FAILED = failed_node()
FIRST = FAILED.episodes[0]
SECOND = msgspec.structs.replace(FIRST, opened=at(5))
HARDER = msgspec.structs.replace(FIRST, finding=msgspec.structs.replace(FIRST.finding, action=Action.REPLACE))
OF_TWO_THOUSAND = WriterMemory(nodes=2000)
OURS = "nodevet: hw thermal: hot [inspect]"

PARTITION = """\
PartitionName={name}
   AllocNodes=ALL Default=NO QoS=N/A
   MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   Nodes={nodes}
   State=UP TotalCPUs=8000 TotalNodes={total} SelectTypeParameters=NONE

"""


def of(*faults: Episode) -> Snapshot:
    """Return a node with *faults*, which close its gate."""
    verdict = msgspec.structs.replace(FAILED.verdict, episodes=tuple(fault.key for fault in faults))
    return msgspec.structs.replace(FAILED, episodes=faults, verdict=verdict)


def writer(
    slurm: MemorySlurm, clock: Callable[[], float], *, memory: WriterMemory = OF_TWO_THOUSAND, **changes: object
) -> Writer:
    """Return the writer of n1 in a cluster of two thousand, whose turn comes 40 s after a change."""
    settings = msgspec.structs.replace(SlurmSettings(writer="drain", maximum_drained_ratio=0.0), **changes)
    return Writer(
        slurm, settings, "n1", wall_seconds=clock, monotonic=clock, random=lambda: 0.5,
        boot_id="boot-1", memory=memory,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after"),
    [((FIRST, SECOND), (FIRST,)), ((FIRST,), (HARDER,)), ((FIRST,), (SECOND,))],
    ids=["one of two ends", "asks for more", "another one"],
)
def test_whatever_changes_on_all_nodes_at_once_has_them_ask_one_after_the_other(
    before: tuple[Episode, ...], after: tuple[Episode, ...]
) -> None:
    """A node that the limit refused, and two thousand like it: a rule is corrected, or a count reaches a mark."""
    slurm, now = MemorySlurm(2000), [0.0]
    slurm.set("n2", "IDLE", "DRAIN", reason=OURS)
    passes = writer(slurm, lambda: now[0])
    passes.step(of(*before))
    now[0] = 40.0
    assert passes.step(of(*before)).status.limit_reached
    slurm.calls.clear()
    now[0] = 100.0
    done = passes.step(of(*after))
    assert (slurm.calls, done.again_seconds) == ([], 40.0)
    now[0] = 140.0
    assert passes.step(of(*after)).status.limit_reached
    assert slurm.calls == ["read", "read_all"]


def test_a_fault_that_changes_when_its_turn_has_come_does_not_lose_it() -> None:
    """Else one that comes and goes would never be asked about."""
    slurm, now = MemorySlurm(2000), [0.0]
    passes = writer(slurm, lambda: now[0])
    passes.step(of(FIRST))
    now[0] = 41.0
    assert passes.step(of(FIRST, SECOND)).status.writes["drain"] == 1


def test_a_job_at_a_drained_node_has_that_node_read_and_no_other_before_its_turn() -> None:
    """A person resumes a whole cluster after a maintenance that brought a bad rule, and jobs start on all of it."""
    slurm, now = MemorySlurm(2000), [0.0]
    slurm.set("n1", "IDLE", "DRAIN", reason="ops: new driver", user="alice")
    passes = writer(slurm, lambda: now[0])
    passes.step(of())
    now[0] = 40.0
    assert passes.step(of()).status.drained
    slurm.set("n1", "IDLE")
    slurm.calls.clear()
    done = passes.step(FAILED, hurries=True)
    assert ("read_all" in slurm.calls, done.again_seconds, done.status.permit.held) == (False, 40.0, False)
    now[0] = 80.0
    assert passes.step(FAILED).status.writes["drain"] == 1


BOTH = FIRST, msgspec.structs.replace(SECOND, key=msgspec.structs.replace(FIRST.key, code="nvidia.xid.48"))


def closed_at_60(slurm: MemorySlurm, now: list[float], closed: str) -> tuple[Writer, Snapshot, Snapshot]:
    """Return the writer of a node that is *closed* since 41 s and was seen so, with one fault and with two of it."""
    mode = Modes(Mode.GATE if closed == "by its gate" else Mode.DRAIN)
    one, two = (msgspec.structs.replace(of(*faults), modes=mode) for faults in (BOTH[:1], BOTH))
    if closed == "by a person":
        slurm.set("n1", "IDLE", "DRAIN", reason="ops: fan", user="alice")
    passes = writer(slurm, lambda: now[0])
    passes.step(one)
    now[0] = 41.0
    while not passes.step(one).again_seconds:
        assert not passes.status.drained
    if closed == "by its gate":
        slurm.set("n1", "IDLE", "DRAIN", reason="Prolog error")
    now[0] = 60.0
    slurm.calls.clear()
    return passes, one, two


@pytest.mark.parametrize("closed", ["by a drain", "by its gate", "by a person"])
def test_a_second_fault_of_a_closed_node_waits_for_its_next_look_and_no_longer(closed: str) -> None:
    """It is not at one moment on all nodes. Who resumes the node after that knew of both."""
    slurm, now = MemorySlurm(2000), [0.0]
    passes, _, two = closed_at_60(slurm, now, closed)
    assert (passes.step(two).again_seconds, slurm.calls) == (11.0, [])
    now[0] = 71.0
    assert len(passes.step(two).memory.known) == 2
    assert "read_all" not in slurm.calls
    slurm.set("n1", "IDLE")
    assert len(passes.step(two).acknowledged) == 2
    assert not passes.step(two).status.permit.held


@pytest.mark.parametrize("closed", ["by a drain", "by a person"])
def test_a_fault_that_ends_on_closed_nodes_waits_for_the_next_look(closed: str) -> None:
    """A bad rule is corrected: before, each of them was read at that moment."""
    slurm, now = MemorySlurm(2000), [0.0]
    passes, _, _ = closed_at_60(slurm, now, closed)
    assert (passes.step(of()).again_seconds, slurm.calls) == (11.0, [])


def test_a_job_at_a_drained_node_whose_faults_change_has_it_looked_at_at_once() -> None:
    """Somebody resumed it with what was known; for what came at the same moment it asks in its turn."""
    slurm, now = MemorySlurm(2000), [0.0]
    passes, _, two = closed_at_60(slurm, now, "by a drain")
    slurm.set("n1", "IDLE")
    assert len(passes.step(two, hurries=True).acknowledged) == 1
    done = passes.step(two)
    assert (done.status.permit.held, "read_all" in slurm.calls, done.again_seconds) == (False, False, 40.0)


def test_faults_that_change_each_second_at_a_closed_node_have_it_looked_at_as_often_as_it_was() -> None:
    """What flaps makes no calls, and does not keep the node from being looked at."""
    slurm, now = MemorySlurm(2000), [0.0]
    passes, one, two = closed_at_60(slurm, now, "by a drain")
    for second in range(60):
        now[0] = 60.0 + second
        passes.step(one if second % 2 else two)
    assert slurm.calls.count("read") == 2


def test_agents_that_start_on_drained_nodes_look_one_after_the_other() -> None:
    """All of a cluster are started anew, as with a new package: half a minute is as long as they wait anyway."""
    slurm, now = MemorySlurm(2000), [0.0]
    before, one, _ = closed_at_60(slurm, now, "by a drain")
    again = writer(slurm, lambda: now[0], memory=before.step(one).memory)
    slurm.calls.clear()
    assert again.status.drained
    assert (again.step(one).again_seconds, slurm.calls) == (15.0, [])
    assert again.step(one).status.permit.held
    assert slurm.calls == ["read", "started"]


def test_a_job_that_found_the_gate_closed_has_its_node_read_before_its_turn() -> None:
    """SLURM drains that node now, for a fault of which the agent has not spoken to SLURM yet: a resume shall count."""
    slurm, now = MemorySlurm(2000), [0.0]
    passes = writer(slurm, lambda: now[0], permit="local")
    assert passes.step(FAILED).again_seconds == 40.0
    slurm.set("n1", "IDLE", "DRAIN", reason="Prolog error")
    assert not passes.step(FAILED).status.drained
    assert passes.step(FAILED, hurries=True).status.drained
    slurm.set("n1", "IDLE")
    assert passes.step(FAILED).acknowledged
    assert "read_all" not in slurm.calls


@pytest.mark.parametrize(
    ("permit", "nodes", "seconds"),
    [("local", 2000, 15.0), ("local", 500, 10.0), ("local", 50, 0.0), ("local", 0, 1.0), ("cluster", 2000, 0.0)],
)
def test_gates_that_no_limit_keeps_few_are_looked_at_one_after_the_other(
    permit: str, nodes: int, seconds: float
) -> None:
    """One bad rule closes all gates where the permit is each node's own, and one job meets them at one moment."""
    passes = writer(MemorySlurm(), lambda: 0.0, memory=WriterMemory(nodes=nodes), permit=permit)
    assert passes.behind_gate() == seconds


def test_the_metrics_name_the_partitions_of_the_node() -> None:
    """The limits are those of each partition, and so is the warning before them."""
    slurm = MemorySlurm()
    slurm.change("n1", partitions=("main", "debug"))
    now = [0.0]
    passes = writer(slurm, lambda: now[0])
    passes.step(of())
    now[0] = 40.0
    status = passes.step(of()).status
    agent = msgspec.structs.replace(FAILED.agent, slurm=status)
    (family,) = [
        entry
        for entry in scheduler_metrics(msgspec.structs.replace(FAILED, agent=agent))
        if entry.name.endswith("slurm_partition_info")
    ]
    assert sorted(family.samples) == [("debug",), ("main",)]


def partitions(*lists: tuple[str, int]) -> str:
    """Return what SLURM shows of partitions with those *lists* of nodes and how many they are."""
    return "".join(PARTITION.format(name=f"p{place}", nodes=nodes, total=n) for place, (nodes, n) in enumerate(lists))


@pytest.mark.parametrize(
    ("shown", "size"),
    [
        (partitions(*[("n[0001-1000]", 1000)] * 40), 1000),
        (partitions(*[(f"n[{first:04d}-1000]", 1001 - first) for first in range(1, 41)]), 1000),
        (partitions(("n[08-11,13],m1", 6), ("n[10-11],m[1-2]", 4)), 7),
        (partitions(("r[1-2]c[0-3]", 8), ("r1c[2-3],r2c0", 3)), 8),
        (partitions(("a", 1), ("(null)", 0)), 1),
        (partitions(("n[a-b]", 2), ("n[0-999999999]", 7)), 9),
    ],
    ids=["all alike", "each of its own", "several ranges", "several brackets", "an empty one", "not understood"],
)
def test_a_node_in_many_partitions_counts_once(shown: str, size: int) -> None:
    """As SLURM 22.05 shows them, also those of a set of nodes; the fewest are never less than the largest partition."""
    assert parse_size(shown) == size


def test_a_turn_is_one_of_nodes_and_not_of_partitions() -> None:
    """A thousand nodes in forty partitions each: before, a node waited half an hour, and after a lost answer hours."""

    class Shared(MemorySlurm):
        def size(self) -> int:
            return parse_size(partitions(*[("n[1-1000]", 1000)] * 40))

    now = [0.0]
    passes = Writer(
        Shared(), SlurmSettings(writer="drain"), "n1", wall_seconds=lambda: now[0], monotonic=lambda: now[0],
        random=lambda: 0.5, boot_id="boot-1", memory=WriterMemory(),
    )  # fmt: skip
    now[0] = passes.step(FAILED).again_seconds
    assert now[0] == 1.0
    assert passes.step(FAILED).again_seconds == 20.0


def test_the_longest_range_of_a_list_has_an_end() -> None:
    """SLURM knows none of more than 65,536 nodes, and what is no list of SLURM's costs no memory."""
    assert len(list(names_in("n[0-999999999]"))) == 65537


def test_of_a_range_only_its_ends_are_looked_at() -> None:
    """Forty partitions of tens of thousands of nodes: before, each name was made in each of them, by the agent."""
    shown = partitions(*[(f"n[{first:05d}-60000]", 60001 - first) for first in range(1, 41)])
    tracemalloc.start()
    try:
        assert parse_size(shown) == 60000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_nodes_are_counted_as_if_each_were_written_out() -> None:
    """Lists by chance, with numbers in the middle and at the end, zeros before them, and several brackets."""
    chance = Random(1)  # noqa: S311 (a test that can be repeated)

    def numbers() -> str:
        first = chance.randrange(130)
        width = chance.choice([1, 1, 2, 3])
        last = f"-{first + chance.randrange(30):0{width}d}" if chance.random() < 0.7 else ""
        return f"{first:0{width}d}{last}"

    def term() -> str:
        head, ranges = chance.choice(["n", "m", "r1-"]), ",".join(numbers() for _ in range(chance.randrange(1, 4)))
        several = [f"{head}[{ranges}]c[{numbers()}]", f"{head}[{ranges}]-ib", f"{head}1[{ranges}]", f"x[{ranges}]y2"]
        plain = [f"{head}{chance.randrange(130):0{chance.choice([1, 2, 3])}d}", "login", "gw[a-b]", "n12345678901"]
        return chance.choice([f"{head}[{ranges}]", f"{head}[{ranges}]", *plain, *several])

    for _ in range(400):
        texts = {",".join(term() for _ in range(chance.randrange(1, 4))) for _ in range(4)}
        named = {text: list(names_in(text)) for text in texts}
        lists = {text: names for text, names in named.items() if len(set(names)) == len(names)}
        every = {name for names in lists.values() for name in names}
        assert how_many((text, len(names)) for text, names in lists.items()) == len(every)


def test_what_has_no_end_is_counted_as_far_as_slurm_says() -> None:
    """A list that is not understood, and more several brackets than are written out, cost neither time nor memory."""
    assert how_many([("n[0-999999999]", 7), ("n[1-3]", 3)]) == 7
    many = [(f"r[1-1000]c[1-1000]p{place}", 1_000_000) for place in range(40)]
    assert how_many(many) == 40_000_000


def test_names_keep_their_zeros() -> None:
    """``n01`` and ``n1`` are two nodes."""
    assert list(names_in("n[08-10],n8")) == ["n08", "n09", "n10", "n8"]


def asking_beside_another(slurm: MemorySlurm, clock: Callable[[], float]) -> Writer:
    """Return the writer of n1 that asks for the only place and waits for n2, which asked behind it."""

    def another(call: str) -> None:
        if call == "mark" and not slurm.nodes["n2"].comment:
            slurm.change("n2", comment="nodevet: asks for a permit, 41 b")

    slurm.before = another
    return writer(slurm, clock)


def test_a_fault_that_changes_while_a_permit_is_asked_for_does_not_leave_the_gate_open_for_longer() -> None:
    """One of two ends: before, the node waited for another turn with its mark, up to 80 s, and so did all others."""
    slurm, now = MemorySlurm(2000), [0.0]
    passes = asking_beside_another(slurm, lambda: now[0])
    passes.step(of(FIRST, SECOND))
    now[0] = 40.0
    assert passes.step(of(FIRST, SECOND)).status.skipped["contended"] == 1
    slurm.change("n2", comment="")
    now[0] = 42.0
    assert passes.step(of(FIRST)).status.writes["drain"] == 1


def test_a_fault_that_changes_behind_a_drain_does_not_have_it_seen_later() -> None:
    """The gate is closed as soon as SLURM shows the drain."""
    slurm, now = MemorySlurm(2000), [0.0]
    passes = writer(slurm, lambda: now[0])
    passes.step(of(FIRST, SECOND))
    now[0] = 40.0
    assert passes.step(of(FIRST, SECOND)).status.writes["drain"] == 1
    assert passes.step(of(FIRST)).status.permit.held


def test_a_node_whose_permit_was_refused_behind_its_mark_waits_for_its_turn() -> None:
    """It gave way to others, and what ends on all of them ends at one moment."""
    slurm, now = MemorySlurm(2000), [0.0]
    passes = asking_beside_another(slurm, lambda: now[0])
    passes.step(of(FIRST, SECOND))
    now[0] = 40.0
    passes.step(of(FIRST, SECOND))
    slurm.change("n2", comment="nodevet: gate closed, 41 b")
    now[0] = 42.0
    assert passes.step(of(FIRST, SECOND)).status.limit_reached
    slurm.calls.clear()
    assert (passes.step(of(FIRST)).again_seconds, slurm.calls) == (40.0, [])
