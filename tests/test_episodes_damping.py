"""Damping: a condition that comes and goes opens at once, stays open for longer each time, and ends when steady."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

import msgspec
import pytest
from fakes.views import GPU, SIBLING, at, fault, gpu
from hypothesis import given, settings
from hypothesis import strategies as st

from nodevet.checks.core.model import Action, Clearing, EpisodeState, Finding, Outcome, State
from nodevet.checks.engine.damping import damping, hold_seconds
from nodevet.checks.engine.disproof import Evidence, Holders
from nodevet.checks.engine.episodes import Ledger, Settled, fold
from nodevet.checks.engine.standing import node_verdict, verdict

WELL = fault("c.c", Outcome.PASS, evidence_time=at())
WARM = fault(outcome=Outcome.WARN, clearing=Clearing.CONDITION)
MEASURED = fault(clearing=Clearing.CONDITION, needed=3, window=5)
DOWN = fault(clearing=Clearing.CONDITION)
TEXT = fault(clearing=Clearing.CONDITION, gates=False)
CRASH = fault("nvidia.xid.31", outcome=Outcome.WARN, clearing=Clearing.APPLICATION_EVENT, gates=False)
HOUR, DAY = 3600.0, 86_400.0
DEVICES = (gpu(),)

CHANGES_PER_DAY = 8 * 86_400 / (3600 + 600)
"""The most that any input may cause: four openings and ends, a hold, and the quiet hour after which it is forgotten."""


class Node:
    """A device that is looked at every *step* seconds, and the states that its verdict had."""

    def __init__(self, finding: Finding, step: float = 1.0) -> None:
        """Begin with nothing known."""
        self.finding, self.step = finding, step
        self.ledger, self.seconds = Ledger(), 0.0
        self.states: list[State] = []
        self.flapping: list[int] = []

    def look(self, bad: bool, *, restart: bool = False, wall: float = 0.0) -> Node:
        """Look once more."""
        self.seconds += self.step
        now = msgspec.structs.replace(at(self.seconds), wall_seconds=at(self.seconds).wall_seconds + wall)
        seen = msgspec.structs.replace(
            self.finding, outcome=self.finding.outcome if bad else Outcome.PASS, evidence_time=now
        )
        if restart:
            self.ledger = msgspec.msgpack.decode(msgspec.msgpack.encode(self.ledger), type=Ledger)
        self.ledger, _ = fold(self.ledger, [seen], Evidence(now=now, devices=DEVICES))
        self.states.append(verdict(GPU, self.ledger.episodes, [WELL]).state)
        self.flapping.append(self.ledger.episodes[0].flapping if self.ledger.episodes else 0)
        return self

    def run(self, seconds: float, bad: Callable[[float], bool]) -> Node:
        """Look for so long."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.look(bad(self.seconds))
        return self

    @property
    def changes(self) -> int:
        """How often the verdict changed."""
        return sum(1 for _ in groupby(self.states)) - 1

    def spells(self) -> list[tuple[State, float]]:
        """How long the verdict stood each time, in seconds."""
        return [(state, len(list(run)) * self.step) for state, run in groupby(self.states)]


def flap(on: float, off: float) -> Callable[[float], bool]:
    """Return an input that is bad for *on* seconds and good for *off*."""
    return lambda seconds: seconds % (on + off) < on


def test_the_table_has_the_numbers_that_these_tests_hold() -> None:
    """Three in an hour; ten minutes, doubling to six hours."""
    row = damping()
    assert (row.reopenings, row.window_seconds) == (3, HOUR)
    assert [hold_seconds(n) / 60 for n in range(1, 9)] == [10, 20, 40, 80, 160, 320, 360, 360]


def test_three_on_and_three_off_is_told_as_flapping() -> None:
    """It changed the verdict every six seconds; now ten times in an hour, and the words say how often it came back."""
    node = Node(WARM).run(30, flap(3, 3))
    assert [seconds for _, seconds in node.spells()] == [5, 1, 5, 1, 5, 1, 12]
    reason = verdict(GPU, node.ledger.episodes, [WELL]).reason
    assert reason == f"{WARM.message}; flapping, {node.flapping[-1]} times"
    assert node.run(HOUR, flap(3, 3)).changes <= 10


def test_each_hold_is_twice_as_long_as_the_one_before() -> None:
    """Up to six hours, in which nothing is said but that it flaps."""
    node = Node(WARM, step=10).run(2 * DAY, flap(30, 30))
    held = [seconds for state, seconds in node.spells() if state is State.DEGRADED and seconds > 60]
    for number, seconds in enumerate(held[:-1], start=1):
        assert hold_seconds(number) <= seconds <= hold_seconds(number) + 70
    assert len(held) == 13


@pytest.mark.parametrize("finding", [WARM, MEASURED, TEXT], ids=["warning", "measured", "gates nothing"])
@pytest.mark.parametrize(("on", "off"), [(30, 30), (10, 30), (60, 600), (600, 60), (90, 1140), (1800, 30)])
def test_no_steady_flap_changes_the_verdict_more_than_so_often_in_a_day(finding: Finding, on: int, off: int) -> None:
    """Whatever its rhythm."""
    assert Node(finding, step=10).run(DAY, flap(on, off)).changes <= CHANGES_PER_DAY


def test_an_input_made_to_pass_by_the_memory_is_bounded_too() -> None:
    """Four quick ones, then quiet for just as long as it is remembered."""
    node = Node(WARM, step=10).run(DAY, lambda seconds: seconds % 4500 < 240 and seconds % 60 < 20)
    assert CHANGES_PER_DAY * 0.9 < node.changes <= CHANGES_PER_DAY


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=12))
@settings(max_examples=12, deadline=None)
def test_no_input_changes_the_verdict_more_than_so_often_in_a_day(spells: list[tuple[int, int]]) -> None:
    """Any spells of bad and good looks, repeated for a day; when it steadies, it is over after the longest hold."""
    node = Node(WARM, step=30)
    while node.seconds < DAY:
        for bad, well in spells:
            for _ in range(bad):
                node.look(True)
            for _ in range(well):
                node.look(False)
    days = node.seconds / DAY
    assert node.changes <= CHANGES_PER_DAY * days
    node.run(damping().longest_hold_seconds + 120, lambda _: False)
    assert node.states[-1] is State.OK


@pytest.mark.parametrize("returns", range(12))
def test_a_steady_good_input_always_ends_it(returns: int) -> None:
    """Within the hold of that many returns, and never later than the longest."""
    node = Node(WARM, step=10)
    for _ in range(returns + 1):
        node.look(True)
        node.run(40, lambda _: False)
        while node.states[-1] is not State.OK:
            node.look(False)
    assert node.seconds <= 100 * (returns + 1) + sum(hold_seconds(n) for n in range(1, max(1, returns - 1)))
    assert node.run(DAY, lambda _: False).changes == 2 * returns + 1


def test_a_condition_opens_at_once_however_often_it_came() -> None:
    """Damping delays an end, never a beginning."""
    node = Node(WARM, step=10)
    for _ in range(8):
        assert node.look(True).states[-1] is State.DEGRADED
        while node.look(False).states[-1] is not State.OK:
            pass


def test_a_hard_fault_is_not_damped() -> None:
    """A link that is down closes the gate while it is down, and opens it when it is up."""
    node = Node(DOWN, step=10).run(HOUR, flap(30, 30))
    assert set(node.flapping) == {0}
    assert (node.changes, node.ledger.flaps) == (119, ())


def test_a_hard_fault_of_a_flapping_code_closes_and_opens_as_ever() -> None:
    """The same code warned and flapped before: the failure counts at once, and ends by its three good looks."""
    node = Node(WARM, step=10).run(240, flap(30, 30))
    assert node.flapping[-1]
    node.finding = DOWN
    assert node.look(True).states[-1] is State.FAILED
    assert [node.look(False).states[-1] for _ in range(3)] == [State.FAILED, State.FAILED, State.OK]


def test_what_closes_the_gate_is_told_before_a_condition_that_is_held() -> None:
    """On one device and on two, although the condition asks for the harder action: people drain for what is told."""
    held = msgspec.structs.replace(TEXT, action=Action.INSPECT, message="too warm")
    lost = fault("device.lost", clearing=Clearing.HARDWARE_EVENT, action=Action.REBOOT, message="no answer")
    node = Node(held, step=10).run(240, flap(30, 30))
    for device in (GPU, SIBLING):
        seen = msgspec.structs.replace(lost, device=device)
        ledger, _ = fold(node.ledger, [seen], Evidence(now=at(250), devices=DEVICES))
        verdicts = {name: verdict(name, ledger.episodes, [WELL]) for name in (GPU, SIBLING)}
        told = (verdicts[device], node_verdict(verdicts, {GPU: "GPU 0", SIBLING: "GPU 1"}))
        assert [(entry.hard, "no answer" in entry.reason) for entry in told] == [(True, True)] * 2
        assert told[1].action is Action.INSPECT


def test_one_that_was_quiet_for_long_begins_anew() -> None:
    """An hour, or as long as its last hold."""
    node = Node(WARM, step=10).run(240, flap(30, 30)).run(2 * HOUR, lambda _: False)
    assert node.ledger.flaps == ()
    node.look(True).run(40, lambda _: False)
    assert node.states[-1] is State.OK


def test_one_that_was_steadily_bad_for_long_begins_anew() -> None:
    """It is told as flapping only while it flaps."""
    node = Node(WARM, step=10).run(240, flap(30, 30)).run(2 * HOUR, lambda _: True)
    assert node.flapping[-1] == 0
    node.run(30, lambda _: False)
    assert node.states[-1] is State.OK
    assert node.ledger.flaps[0].holds == 0


def test_a_reboot_begins_anew() -> None:
    """Its times are those of another boot; the episode stays, and ends by its good looks."""
    node = Node(WARM, step=10).run(240, flap(30, 30))
    assert node.ledger.episodes
    now = at(10, boot="next")
    seen = msgspec.structs.replace(WARM, outcome=Outcome.PASS, evidence_time=now)
    ledger, _ = fold(node.ledger, [seen], Evidence(now=now, devices=DEVICES))
    assert (ledger.episodes, ledger.flaps[0].holds) == ((), 0)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 20), st.booleans(), st.sampled_from([0.0, -4e7, 4e7])), max_size=40
    )
)
@settings(max_examples=60, deadline=None)
def test_a_restart_and_a_wrong_wall_clock_change_nothing(course: list[tuple[bool, int, bool, float]]) -> None:
    """At any point, any number of times."""
    steady, other = Node(WARM, step=7), Node(WARM, step=7)
    for bad, times, restart, wall in course:
        for _ in range(times):
            steady.look(bad)
            other.look(bad, restart=restart, wall=wall)
    assert (other.states, other.flapping) == (steady.states, steady.flapping)


def test_what_could_not_be_measured_is_not_damped() -> None:
    """It may keep jobs away, so it ends as soon as it is measured again."""
    blind = fault(outcome=Outcome.UNMEASURED, required=True)
    node = Node(blind, step=10).run(HOUR, flap(30, 30))
    assert set(node.flapping) == {0}
    assert node.states[-1] in (State.OK, State.UNKNOWN)
    assert kept(node) == []


@pytest.mark.parametrize("well", [3, 5, 20])
def test_a_return_behind_a_look_that_could_not_be_taken_is_a_return(well: int) -> None:
    """A bad plug is first silent, then bad, then good: it changed the verdict in every round."""
    node = Node(WARM, step=10)
    blind = msgspec.structs.replace(WARM, outcome=Outcome.UNMEASURED, required=True)
    while node.seconds < HOUR:
        for finding in (blind, WARM):
            node.finding = finding
            node.look(True)
        node.run(10 * well, lambda _: False)
    assert node.flapping[-1]
    assert sum(1 for state, _ in node.spells() if state is State.OK) <= CHANGES_PER_DAY / 24


def test_a_device_that_tells_its_name_keeps_what_is_remembered() -> None:
    """It flaps on, a person's word with a term covers its return, and what was settled opens nothing."""
    flapping = Node(WARM, step=10).run(240, flap(30, 30))
    name, now = "GPU-told", at(300)
    known = msgspec.structs.replace(flapping.ledger.episodes[0], until=at(DAY), state=EpisodeState.ACKNOWLEDGED)
    ledger = msgspec.structs.replace(
        flapping.ledger, standing=(known,), settled=(Settled(known.key, "boot:1"),), episodes=flapping.ledger.episodes
    )
    ledger, _ = fold(ledger, [], Evidence(now=now, devices=(gpu(id=name),), names={GPU: name}))
    memories = (ledger.episodes, ledger.flaps, ledger.standing, ledger.settled)
    assert [[entry.key.device for entry in memory] for memory in memories] == [[name]] * 4
    assert ledger.standing[0].finding.device == name
    assert ledger.episodes[0].flapping == flapping.flapping[-1] > 0


def kept(node: Node) -> list[EpisodeState]:
    """Return the states of what the node still remembers besides its present episode."""
    return [entry.state for entry in node.ledger.standing]


def test_a_table_of_many_conditions_is_forgotten_in_time() -> None:
    """What came once leaves no memory after an hour: the ledger does not grow."""
    ledger = Ledger()
    for number, well in ((n, w) for n in range(50) for w in (False, True, True, True)):
        now = at(number * 60 + 1 + well)
        ledger, _ = fold(ledger, looks(number, well, now.boottime_ns), Evidence(now=now, devices=DEVICES))
    assert len(ledger.flaps) <= 61
    ledger, _ = fold(ledger, [], Evidence(now=at(50 * 60 + 2 * HOUR), devices=DEVICES))
    assert (ledger.flaps, ledger.episodes) == ((), ())


def looks(number: int, well: bool, _moment: int) -> Iterable[Finding]:
    """Yield the look at condition *number*; without a time each look is a new one."""
    yield msgspec.structs.replace(WARM, code=f"code.{number}", outcome=Outcome.PASS if well else Outcome.WARN)


class Users:
    """A device on which one process after the other fails, and what a journal keeps of that."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.ledger, self.seconds = Ledger(), 0.0
        self.rows: list[EpisodeState] = []

    def round(self, pid: int | None, *, wall: float = 0.0) -> None:
        """Judge ten seconds later, *pid* having failed, or with no process on the device."""
        self.seconds += 10
        now = msgspec.structs.replace(at(self.seconds), wall_seconds=at(self.seconds).wall_seconds + wall)
        failed = msgspec.structs.replace(CRASH, pid=pid, occurrence=f"boot:{self.seconds}", evidence_time=now)
        held = Holders(frozenset({pid} if pid else ()), now)
        evidence = Evidence(now=now, devices=DEVICES, processes={GPU: held})
        self.ledger, changes = fold(self.ledger, [failed] if pid else [], evidence)
        self.rows += [
            episode.state for episode in changes if episode.state is EpisodeState.CLEARED or episode.count == 1
        ]

    def crash(self, seconds: float) -> None:
        """Let a process fail in every other round."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.round(1000 + round(self.seconds))
            self.round(None)


def test_a_program_that_fails_in_a_loop_opens_and_ends_a_few_times_a_day() -> None:
    """Each opening and each end is kept for ever: any user could have filled the disk with them."""
    users = Users()
    users.crash(DAY)
    assert 4 < len(users.rows) <= 24
    assert [episode.flapping > 0 for episode in users.ledger.episodes] == [True]
    assert users.ledger.episodes[0].count > 100, "each is counted"


def test_an_error_of_a_user_opens_at_once_and_ends_with_its_process() -> None:
    """Also behind a loop of them, once the last hold is over: nothing is delayed for the next user but that end."""
    users = Users()
    for number in range(1, 4):
        users.round(number)
        assert users.ledger.episodes[0].finding.pid == number
        users.round(None)
        assert users.ledger.episodes == ()
    users.crash(60)
    users.seconds += hold_seconds(1)
    users.round(None)
    assert users.ledger.episodes == ()


def test_an_error_of_a_user_is_held_open_only_while_the_loop_goes_on() -> None:
    """However long the last hold is, it ends with the first ten minutes without another: with the job, as ever."""
    users = Users()
    users.crash(DAY)
    last = users.seconds
    while users.ledger.episodes:
        users.seconds += 10.0
        users.round(None)
        assert users.seconds - last <= hold_seconds(1) + 20.0
    assert users.seconds - last >= hold_seconds(1) - 20.0
    users.round(1)
    assert users.ledger.episodes[0].flapping > 0


def test_a_user_who_waits_out_each_hold_fills_no_disk() -> None:
    """A program that fails as rarely as that is let go of each time, and each failure but the held ones is kept."""
    for pause in (60.0, 300.0, 610.0, 900.0, 1500.0):
        users = Users()
        while users.seconds < DAY:
            users.round(1000 + round(users.seconds))
            users.round(None)
            users.seconds += pause
        assert len(users.rows) <= 2 * DAY / hold_seconds(1)
