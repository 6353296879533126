"""The loss of a switch that all boards share is one finding, and a link that failed by itself is another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import pytest
from fakes.views import GPU_READINGS, LINKS, at, gpu, link, reader, sample

from nodevet.checks.core.model import NODE, AgentInfo, Failure, FailureKind, Finding, Link, Outcome, Snapshot, State
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.view import Cadence

BOARDS = 8
SWITCH, DOWN = "fabric.switch", "link.down"
Ports = Mapping[int, Iterable[int]]
ALIKE: Ports = dict.fromkeys(range(BOARDS), (2, 3, 4, 5))
"""Ports that are down by board where each leads to the switch by the same ones."""
APART: Ports = {board: range(board, board + 4) for board in range(BOARDS)}
"""Where each board has ports of its own for it."""


class Node:
    """Boards behind switches, with a clock that the test moves."""

    def __init__(self, boards: int = BOARDS, peer: str | None = "switch") -> None:
        """Begin with three healthy looks."""
        links = tuple(Link(port, peer) for port in range(LINKS))
        self.boards = [gpu(f"GPU-{number}", f"0000:{number:02x}:00.0", links=links) for number in range(boards)]
        self.seconds = 5000.0
        checks = [ConfiguredCheck(entry, entry.policy()) for entry in discover()]
        cadences = {("nvidia", "fast"): Cadence(10, 5)}
        self.engine = Engine(checks, node="n1", clock=lambda: at(self.seconds), cadences=cadences)
        assert [self.look().verdict.state for _ in range(3)] == [State.OK] * 3

    def look(self, down: Ports | None = None, *, unread: Iterable[int] = ()) -> Snapshot:
        """Judge a round in which ports are *down* by board; boards *unread* do not answer in time."""
        self.seconds += 10
        self.engine.take_devices("nvidia", self.boards)
        self.engine.take_readers((reader("nvidia", last_round=at(self.seconds)), reader("host")))
        for number, entry in enumerate(self.boards):
            states = {("link_active", link(port)): port not in (down or {}).get(number, ()) for port in range(LINKS)}
            failure = Failure(FailureKind.ERROR, "for a test") if number in set(unread) else None
            taken = sample(entry, {} if failure else {**GPU_READINGS, **states}, failure=failure)
            self.engine.take_sample(msgspec.structs.replace(taken, time=at(self.seconds)))
        return self.engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10)).snapshot


def counting(snapshot: Snapshot) -> list[tuple[str, str, int | None]]:
    """Return code, device and port of what counts."""
    found = ((entry.key.code, entry.key.device, entry.key.part.index) for entry in snapshot.episodes)
    return sorted(found, key=str)


def loss(snapshot: Snapshot) -> Finding:
    """Return what is said of a switch."""
    (found,) = (entry for entry in snapshot.findings if entry.code == SWITCH)
    return found


@pytest.mark.parametrize("down", [ALIKE, APART], ids=("alike", "apart"))
def test_the_loss_of_a_switch_is_one_finding(down: Ports) -> None:
    """It was 32. It says how many links of how many boards and names each; over a look that sees half of them too."""
    node = Node()
    half = {board: ports for board, ports in down.items() if board < BOARDS / 2}
    assert len(counting(node.look(half))) == 16
    snapshot = node.look(down)
    assert counting(snapshot) == [(SWITCH, NODE, None)]
    assert (snapshot.verdict.state, snapshot.verdict.hard) == (State.FAILED, True)
    told = loss(snapshot)
    assert (told.outcome, told.hard, told.value) == (Outcome.FAIL, True, 32)
    assert told.message.startswith("4 links of each of 8 boards are down at once")
    assert f"link {' '.join(map(str, down[7]))}" in told.message
    followed = [entry for entry in snapshot.findings if entry.follows]
    assert {(entry.code, entry.outcome) for entry in followed} == {(DOWN, Outcome.SKIPPED)}
    assert len(followed) == 32
    assert [node.look().verdict.state for _ in range(3)][-1] is State.OK


def test_a_link_of_one_board_beside_a_lost_switch_counts_for_itself() -> None:
    """Where the ports say which it is it counts alone; where they do not, all of its board do."""
    also = {**ALIKE, 3: (2, 3, 4, 5, 9)}
    assert counting(Node().look(also)) == [(SWITCH, NODE, None), (DOWN, "GPU-3", 9)]
    also = {**APART, 3: (3, 4, 5, 6, 9)}
    expected = [(SWITCH, NODE, None), *((DOWN, "GPU-3", port) for port in (3, 4, 5, 6, 9))]
    assert counting(Node().look(also)) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("boards", "down"),
    [
        (BOARDS, {3: (2, 3, 4, 5)}),
        (BOARDS, dict.fromkeys(range(BOARDS - 1), (2,))),
        (BOARDS, {board: range(board % 4, 2 * (board % 4) + 1) for board in range(BOARDS)}),
        (2, dict.fromkeys(range(2), (2,))),
    ],
    ids=("one board", "all but one", "unlike", "two boards"),
)
def test_links_that_need_not_share_a_switch_count_each(boards: int, down: Ports) -> None:
    """One board, all boards but one, boards that miss more or less, and two alone: nothing is hidden."""
    snapshot = Node(boards).look(down)
    assert counting(snapshot) == sorted(
        [(DOWN, f"GPU-{board}", port) for board in down for port in down[board]], key=str
    )
    assert loss(snapshot).outcome is Outcome.PASS


def test_boards_that_are_wired_to_each_other_have_no_switch() -> None:
    """Their ports tell another end, or none."""
    node = Node(peer=None)
    assert {code for code, _, _ in counting(node.look(ALIKE))} == {DOWN}


def test_links_that_stay_down_behind_a_switch_that_is_back_count_for_themselves() -> None:
    """The switch is over after its good looks, and not while its boards are not read."""
    node = Node()
    node.look(ALIKE)
    blind = [node.look(unread=range(BOARDS)) for _ in range(5)][-1]
    assert (SWITCH, NODE, None) in counting(blind)
    rest: Ports = {3: (2, 5)}
    few = [node.look(rest) for _ in range(4)][-1]
    assert counting(few) == [(DOWN, "GPU-3", 2), (DOWN, "GPU-3", 5)]
    some = [node.look(ALIKE, unread=range(2, BOARDS)) for _ in range(1)][-1]
    assert loss(some).outcome is Outcome.SKIPPED
    assert {(DOWN, "GPU-0", 2), (DOWN, "GPU-1", 5)} <= {*counting(some)}
