"""What counts in the two limits, and that they hold in a cluster of two thousand agents that fail together."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from fakes.slurm_fleet import Fleet, Trouble

from nodevet.checks.core.model import Mode
from nodevet.exporters.slurm.permit import (
    Limits,
    asking_text,
    closing_text,
    free_field,
    mark_of,
    permits,
    rooms,
    shows_permit,
)
from nodevet.exporters.slurm.rules import NodeState, ScontrolOutputError, parse_node

PREFIX = "nodevet"
OURS = "nodevet: hw thermal: hot [inspect]"
NOW = 1_800_000_000.0
DRAINED = frozenset({"IDLE", "DRAIN"})
IDLE = frozenset({"IDLE"})
LIMITS = Limits(standing_ratio=0.10, new_ratio=0.01, new_least=2)
NO_NEW = Limits(standing_ratio=0.10, new_ratio=1.0, new_least=1)


def drained(reason: str = OURS, *, user: str | None = "root", age: float | None = 0.0) -> NodeState:
    """Return a node that was drained with *reason* so many seconds ago."""
    return NodeState("", DRAINED, reason, user, None if age is None else NOW - age, partitions=("main",))


def marked(text: str, *states: str, reason: str = "") -> NodeState:
    """Return a node with a mark."""
    return NodeState("", frozenset(states) or IDLE, reason, "root" if reason else None, NOW, text, partitions=("main",))


def fleet(size: int, *others: NodeState) -> list[NodeState]:
    """Return n0, which asks, and *others* behind it, filled up with idle nodes."""
    idle = NodeState("", IDLE, partitions=("main",))
    nodes = [idle, *others, *[idle] * (size - 1 - len(others))]
    return [msgspec.structs.replace(node, name=f"n{place}") for place, node in enumerate(nodes)]


def counted(nodes: list[NodeState], limits: Limits = LIMITS, user: str | None = "root") -> tuple[int, int]:
    """Return how many stand and how many are new in the whole cluster."""
    cluster = rooms(nodes, "n0", limits, wall_seconds=NOW, user=user)[0]
    return cluster.standing, cluster.new


@pytest.mark.parametrize(
    ("node", "standing", "new"),
    [
        (drained(), 1, 1),
        (drained(age=3599.0), 1, 1),
        (drained(age=4100.0), 1, 1),
        (drained(age=4300.0), 1, 0),
        (drained(age=-900.0), 1, 1),
        (drained(age=None), 1, 1),
        (drained(user=None), 1, 1),
        (drained(user="alice"), 0, 0),
        (drained(OURS + " ticket 4711"), 0, 0),
        (drained("ops: fan"), 0, 0),
        (drained("Prolog error"), 0, 0),
        (NodeState("", IDLE, OURS, "root", NOW), 0, 0),
        (marked(asking_text(PREFIX, NOW, 7)), 1, 1),
        (marked(asking_text(PREFIX, NOW - 7100, 7)), 1, 0),
        (marked(asking_text(PREFIX, NOW - 7300, 7)), 0, 0),
        (marked(asking_text(PREFIX, NOW + 500, 7)), 1, 1),
        (marked(asking_text(PREFIX, NOW, 7), "IDLE", "DRAIN", reason="Prolog error"), 1, 1),
        (marked(closing_text(PREFIX, NOW - 90000, 7)), 1, 0),
        (marked(closing_text(PREFIX, NOW, 7), "IDLE", "DRAIN", reason="Prolog error"), 1, 1),
        (marked(closing_text(PREFIX, NOW, 7), "IDLE", "DRAIN", reason="ops: fan"), 0, 0),
        (marked(closing_text(PREFIX, NOW, 7), "IDLE", "FAIL", reason="RMA 12"), 0, 0),
        (marked("nodevet: asks for a permit"), 0, 0),
        (marked("rack 7"), 0, 0),
        (msgspec.structs.replace(marked("rack 7"), extra=asking_text(PREFIX, NOW, 7)), 1, 1),
        (marked(asking_text("other", NOW, 7)), 1, 1),
        (marked(closing_text("n17-vet", NOW, 7)), 1, 1),
        (drained("n17-vet: hw thermal: hot [inspect]"), 1, 1),
        (drained("ops nodevet: hw thermal: hot [inspect]"), 0, 0),
    ],
    ids=[
        "ours", "within the hour", "within the hour by another clock", "older", "of a clock ahead", "time not known",
        "user not known", "a person's user", "a person added to it", "a person's reason", "another prolog failed",
        "in service", "asks", "asks long since", "its agent died", "asks by a clock ahead", "asks, and is drained",
        "gate closed", "gate closed on a job", "gate closed, taken over",
        "gate closed, taken over as failing", "no mark", "a comment", "in the extra text",
        "asks with another prefix", "gate closed with another prefix", "drained with another prefix",
        "a person before it",
    ],
)  # fmt: skip
def test_who_counts(node: NodeState, standing: int, new: int) -> None:
    """The closures of nodevet that nobody took over; what cannot be told counts."""
    assert counted(fleet(3, node)) == (standing, new)


@pytest.mark.parametrize("reason", [OURS, "Prolog error"], ids=["a drain of ours", "a gate that closed on a job"])
@pytest.mark.parametrize("words", ["reboot issued", "reboot issued : reboot complete"])
def test_a_closed_node_that_slurm_rebooted_counts_until_somebody_resumes_it(reason: str, words: str) -> None:
    """SLURM adds its words to the reason, signs as SlurmUser, and keeps the node drained: no person took it over."""
    mark = f"   Comment={closing_text(PREFIX, NOW, 7)}\n" if reason == "Prolog error" else ""
    text = f"NodeName=n1 Arch=x86_64\n   State=IDLE+DRAIN\n   Partitions=main\n{mark}"
    node = parse_node(f"{text}   Reason={reason} : {words} [slurm@2027-01-15T08:00:00]\n\n", "n1")
    assert counted(fleet(3, node)) == (1, 1)
    assert shows_permit(node, PREFIX)


def test_everybody_counts_where_our_own_name_is_not_known() -> None:
    """Too many is safe."""
    assert counted(fleet(3, drained(user="alice")), user=None) == (1, 1)


@pytest.mark.parametrize(
    ("size", "others", "limits", "permitted"),
    [
        (1, 0, LIMITS, True),
        (3, 0, LIMITS, True),
        (3, 1, LIMITS, False),
        (40, 1, LIMITS, True),
        (40, 2, LIMITS, False),
        (40, 3, NO_NEW, True),
        (40, 4, NO_NEW, False),
        (2000, 19, LIMITS, True),
        (2000, 20, LIMITS, False),
        (2000, 199, NO_NEW, True),
        (2000, 200, NO_NEW, False),
    ],
)
def test_no_more_than_the_limits_is_closed(size: int, others: int, limits: Limits, permitted: bool) -> None:
    """Two or one in a hundred within an hour, one in ten at a time, one always."""
    assert permits(rooms(fleet(size, *[drained()] * others), "n0", limits, wall_seconds=NOW, user="root")) is (
        permitted
    )


def test_what_is_older_than_an_hour_counts_as_standing_only() -> None:
    """A backlog of returns leaves room for new faults, up to the standing limit."""
    assert counted(fleet(40, *[drained(age=90000.0)] * 3)) == (3, 0)
    assert permits(rooms(fleet(40, *[drained(age=90000.0)] * 3), "n0", LIMITS, wall_seconds=NOW, user="root"))


def test_each_partition_of_the_node_has_the_limits_of_its_own_size() -> None:
    """A partition of three loses one, however large the cluster is; a partition of others does not count."""
    nodes = fleet(100, drained(age=90000.0), drained(age=90000.0))
    nodes[0] = msgspec.structs.replace(nodes[0], partitions=("main", "small"))
    nodes[3:5] = [msgspec.structs.replace(node, partitions=("main", "small")) for node in nodes[3:5]]
    assert permits(rooms(nodes, "n0", LIMITS, wall_seconds=NOW, user="root"))
    nodes[1] = msgspec.structs.replace(nodes[1], partitions=("main", "small"))
    found = rooms(nodes, "n0", LIMITS, wall_seconds=NOW, user="root")
    assert [(room.partition, room.nodes, room.standing) for room in found] == [
        ("", 100, 2), ("main", 100, 2), ("small", 4, 1),
    ]  # fmt: skip
    assert not permits(found)
    assert "nodevet has closed 1 of 4 nodes of partition small, limit 1" in found[2].words


@pytest.mark.parametrize("state", ["DOWN", "POWERED_DOWN", "POWERING_DOWN"])
def test_a_share_is_of_nodes_that_are_up(state: str) -> None:
    """A cloud of 400 of which twenty run loses two, not forty; what is closed counts wherever it stands."""
    away = NodeState("", frozenset({"IDLE", "CLOUD", state}), partitions=("main",))
    nodes = fleet(400, *[drained(age=90000.0)] * 2, *[away] * 380)
    found = rooms(nodes, "n0", NO_NEW, wall_seconds=NOW, user="root")
    assert [(room.nodes, room.standing, room.allowed_standing) for room in found] == [(20, 2, 2)] * 2
    assert not permits(found)


def test_of_nodes_that_ask_only_those_before_count_for_the_rank() -> None:
    """By the time in their marks, then by name."""
    nodes = fleet(9, marked(asking_text(PREFIX, NOW - 5, 7)), marked(asking_text(PREFIX, NOW + 5, 7)), drained())
    found = rooms(nodes, "n0", LIMITS, wall_seconds=NOW, user="root", before=(NOW, "n0"))
    assert found[0].standing == 2


def test_a_list_without_this_node_is_no_answer() -> None:
    """Then nothing is known of how many are closed."""
    with pytest.raises(ScontrolOutputError, match="node other is not among the 3"):
        rooms(fleet(3), "other", LIMITS, wall_seconds=NOW, user=None)


@pytest.mark.parametrize(
    ("node", "shows"),
    [
        (drained(), True),
        (drained("ops: fan"), False),
        (drained("Prolog error"), False),
        (marked(closing_text(PREFIX, NOW, 7)), True),
        (marked(closing_text(PREFIX, NOW, 7), "IDLE", "DRAIN", reason="Prolog error"), True),
        (marked(closing_text(PREFIX, NOW, 7), "IDLE", "DRAIN", reason="ops: fan"), False),
        (marked(closing_text(PREFIX, NOW, 7), "IDLE", "FAIL", reason="RMA 12"), False),
        (marked(asking_text(PREFIX, NOW, 7)), False),
        (marked(asking_text(PREFIX, NOW, 7), "IDLE", "DRAIN", reason="Prolog error"), False),
        (NodeState("n0", IDLE, OURS, "root", NOW), False),
    ],
)
def test_a_permit_is_what_slurm_shows(node: NodeState, shows: bool) -> None:
    """A drain of ours, or a mark that holds; asking is none."""
    assert shows_permit(node, PREFIX) is shows


def test_a_mark_goes_where_nobody_wrote() -> None:
    """Comment first, extra text then, else nowhere."""
    assert free_field(marked("")) == "Comment"
    assert free_field(marked("rack 7")) == "Extra"
    assert free_field(msgspec.structs.replace(marked("rack 7"), extra="{}")) is None
    mark = mark_of(marked(asking_text(PREFIX, NOW, 7)))
    assert mark is not None and (mark.holds, mark.seconds, mark.field) == (False, NOW, "Comment")


# The model.

TROUBLES = {
    "quiet": Trouble(),
    "slow": Trouble(delay_seconds=4.0, skew_seconds=290.0),
    "lossy": Trouble(delay_seconds=6.0, skew_seconds=290.0, lost_ratio=0.2, late_seconds=280.0),
}


@pytest.mark.soak
@pytest.mark.parametrize("trouble", TROUBLES)
def test_two_thousand_agents_that_fail_together_keep_the_limits(trouble: str, campaign: Callable[[int], int]) -> None:
    """One bad rule on all at the same moment: at no moment is a limit passed, and the controller is not flooded.

    Calls are delayed, answers lost, writes applied minutes after their time-out, clocks skewed as far as munge allows.
    """
    for seed in range(campaign(10)):
        model = Fleet(2000, TROUBLES[trouble], seed=seed)
        model.run(seconds=900.0)
        assert model.passed == [], (seed, model.passed[:3])
        assert model.most_calls_per_second <= 160, seed
        assert len(model.closed) == 20 or trouble == "lossy", seed
        assert 0 < len(model.closed) <= 20, seed


def test_agents_that_know_nothing_of_the_cluster_ask_one_after_the_other() -> None:
    """A bad rule in the first release, or diskless nodes after a power cut: each asks first how many they are."""
    model = Fleet(500, Trouble(), seed=1, fresh=True)
    model.run(seconds=60.0)
    assert sum(model.sizes.values()) == 500
    assert model.passed == [] and model.closed
    assert model.most_calls_per_second <= 160


def test_a_bad_rule_on_a_cluster_that_is_drained_as_a_whole_makes_no_flood() -> None:
    """Two thousand closed nodes have their next look within half a minute anyway, each at another moment."""
    model = Fleet(2000, Trouble(), seed=1, drained_until=90.0)
    model.run(seconds=89.0)
    assert model.seen_drained_with_a_fault == 0
    model.run(seconds=122.0)
    assert model.most_calls_per_second <= 240
    assert model.seen_drained_with_a_fault == 2000
    assert not model.closed


def test_a_small_cluster_loses_no_time_to_its_size() -> None:
    """Where fifty or fewer nodes fail they have asked by then as slowly as they would."""
    model = Fleet(50, Trouble(), seed=1, fresh=True)
    model.run(seconds=6.0)
    assert len(model.closed) == 2


@pytest.mark.soak
def test_hours_of_failing_nodes_keep_both_limits(campaign: Callable[[int], int]) -> None:
    """A cluster of forty in two partitions whose nodes fail one after another, with restarts of agents in between."""
    for seed in range(campaign(20)):
        model = Fleet(40, TROUBLES["lossy"], seed=seed, partitions=2, over_seconds=6 * 3600.0, restarts=0.2)
        model.run(seconds=8 * 3600.0)
        assert model.passed == [], (seed, model.passed[:3])
        assert 0 < len(model.closed) <= 4, seed


@pytest.mark.soak
@pytest.mark.parametrize("mode", [Mode.DRAIN, Mode.GATE])
def test_marks_that_outlived_their_two_hours_let_nobody_through(mode: Mode, campaign: Callable[[int], int]) -> None:
    """The controller is away for hours while nodes ask; when it is back, marks that count no more are written anew."""
    away = Trouble(delay_seconds=4.0, skew_seconds=290.0, away_from=8.0, away_until=3 * 3600.0)
    for seed in range(5, 5 + campaign(20)):
        model = Fleet(60, away, seed=seed, mode=mode)
        model.run(seconds=3 * 3600.0 + 600.0)
        assert model.passed == [], (seed, model.passed[:3])
        closed_since = [name for name, seconds in model.closed.items() if seconds > away.away_until]
        assert 0 < len(closed_since) <= 2, seed  # one that closed before the controller went is new no more


def test_the_model_would_see_a_limit_that_is_passed() -> None:
    """A controller that shows other nodes as they were half a minute ago lets too many through."""
    model = Fleet(100, TROUBLES["quiet"], seed=1, stale_seconds=30.0)
    model.run(seconds=300.0)
    assert model.passed
