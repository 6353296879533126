"""Findings are judged again exactly where an answer that they rest on is another: no verdict depends on the reuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from fakes.twins import Twins
from fakes.views import (
    CONTROLLER_READINGS,
    GPU,
    GPU_READINGS,
    PCIE,
    SIBLING,
    Quantity,
    at,
    bad,
    burn_in,
    controller,
    event,
    gpu,
    healthy,
    link,
    reader,
    sample,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodevet.checks.core.model import (
    AgentInfo,
    Device,
    Failure,
    FailureKind,
    Finding,
    Instant,
    Modes,
    Outcome,
    ReaderState,
    Reading,
    ReadingStatus,
    Scalar,
)
from nodevet.checks.core.sample import held_once
from nodevet.checks.engine.check_run import ConfiguredCheck, run_check
from nodevet.checks.engine.registry import Check, discover
from nodevet.checks.engine.reuse import Asked, Reuse, dated, looked
from nodevet.checks.engine.view import Cadence, KernelLogState, View
from nodevet.checks.health.links import Links

REPLAYS: Quantity = ("link_replay_errors", link(0))
GROUP_OF: Mapping[str, str] = {
    quantity: "slow" if quantity.startswith(("link_", "pcie_", "fabric_", "bad_pages", "ecc_enabled")) else "fast"
    for quantity, _ in GPU_READINGS
}


class Policy(msgspec.Struct, frozen=True):
    """Nothing that matters but that it is another one."""

    limit: int = 1


class Eye:
    """A look that counts how often it is asked for."""

    def __init__(self, *quantities: str) -> None:
        """Ask for *quantities*."""
        self.quantities = quantities
        self.looks = 0

    def __call__(self, asked: Asked, policy: Policy) -> Iterator[Finding]:
        """Yield what was answered, in words."""
        self.looks += 1
        for quantity in self.quantities:
            for observation in asked.observations(quantity):
                yield Finding(
                    check="eye",
                    code=quantity,
                    outcome=Outcome.PASS,
                    message=f"{observation} {policy} {asked.device}",
                    evidence_time=observation.time,
                )


def judged_twice(first: View, second: View, look: Eye, *policies: Policy) -> list[Finding]:
    """Return what *look* finds in *second*, after it has looked at *first*, by the first and last of *policies*."""
    reuse = Reuse()
    before, then = policies or (Policy(), Policy())
    for view, policy in ((first, before), (second, then)):
        reuse.turn()
        found = looked(msgspec.structs.replace(view, reuse=reuse), look, view.devices[0], policy)
        assert found == looked(view, Eye(*look.quantities), view.devices[0], policy)
    return list(found)


def test_what_was_answered_as_before_stands_with_its_evidence_time() -> None:
    """The same objects, so that the fold sees the look that it has counted."""
    view, eye, reuse = healthy(), Eye(REPLAYS[0]), Reuse()
    found = []
    for seconds in (1, 2):
        reuse.turn()
        found.append(
            looked(msgspec.structs.replace(view, now=at(seconds), reuse=reuse), eye, view.devices[0], Policy())
        )
    assert eye.looks == 1
    assert found[0] is found[1]
    assert found[0][0].evidence_time == at()


def later_sample(view: View, **changes: Any) -> View:
    """Return *view* with the same readings taken a second later, and *changes*."""
    taken = msgspec.structs.replace(view.samples[GPU, "fast"], time=at(1))
    return msgspec.structs.replace(view, samples={**view.samples, (GPU, "fast"): taken}, **changes)


VIEW = healthy()
CHANGED: Mapping[str, View] = {
    "another value": healthy({REPLAYS: 4}),
    "a reading that could not be had": healthy({REPLAYS: bad(*REPLAYS)}),
    "a reading that is gone": healthy({REPLAYS: None}),
    "the same in another sample": later_sample(VIEW),
    "another growth": healthy(growth={REPLAYS: 4.0}),
    "growth that is over": msgspec.structs.replace(VIEW, growth={}),
    "a sample that grew old": msgspec.structs.replace(VIEW, now=at(100)),
    "a sample of another boot": msgspec.structs.replace(VIEW, now=at(1, boot="another")),
    "a shorter cadence": msgspec.structs.replace(VIEW, cadences={("nvidia", "fast"): Cadence(0.1, 0.1)}),
    "another place": msgspec.structs.replace(VIEW, devices=(gpu(slot="0000:99:00.0"), *VIEW.devices[1:])),
    "another model": msgspec.structs.replace(VIEW, devices=(gpu(model="another"), *VIEW.devices[1:])),
    "a device that does not answer": msgspec.structs.replace(
        healthy({REPLAYS: None}),
        samples={(GPU, "fast"): sample(gpu(), {}, failure=Failure(FailureKind.LOST, "for a test", of_driver=True))},
    ),
}
"""Whatever a look may see of a device, changed by itself."""


class DatedEye(Eye):
    """A look that tells no time but as that of its evidence."""

    def __call__(self, asked: Asked, policy: Policy) -> Iterator[Finding]:
        """Yield what was answered, in words, apart from the time of its sample."""
        self.looks += 1
        for quantity in self.quantities:
            for observation in asked.observations(quantity):
                words = (observation.reading, observation.name, observation.growth, observation.occurrence)
                yield Finding(
                    check="eye",
                    code=quantity,
                    outcome=Outcome.PASS,
                    message=f"{words} {policy} {asked.device}",
                    evidence_time=observation.time,
                )


def dated_twice(first: View, second: View, *quantities: str) -> tuple[list[Finding], int]:
    """Return what a dated look finds in *second*, after it looked at *first*, and how often it was taken."""
    reuse, eye = Reuse(), DatedEye(*quantities)
    for view in (first, second):
        reuse.turn()
        found = dated(msgspec.structs.replace(view, reuse=reuse), eye, view.devices[0], Policy())
        assert found == dated(view, DatedEye(*quantities), view.devices[0], Policy())
    return list(found), eye.looks


IN_ANOTHER_BOOT = msgspec.structs.replace(
    VIEW,
    now=at(1, boot="another"),
    samples={key: msgspec.structs.replace(entry, time=at(1, boot="another")) for key, entry in VIEW.samples.items()},
)


@pytest.mark.parametrize("name", [*CHANGED, "the same in another boot"])
def test_a_dated_look_finds_what_it_would_find_again(name: str) -> None:
    """Whatever changed; a later sample that reads the same, or another growth, needs no second look."""
    then = CHANGED.get(name, IN_ANOTHER_BOOT)
    found, looks = dated_twice(VIEW, then, REPLAYS[0])
    is_same = name in ("the same in another sample", "another growth", "growth that is over")
    assert looks == (1 if is_same else 2)
    assert all(finding.evidence_time in (None, then.samples[GPU, "fast"].time) for finding in found)


def test_a_dated_look_at_two_samples_is_taken_again() -> None:
    """The evidence of each of its findings has the time of its own sample."""
    part = {key: value for key, value in GPU_READINGS.items() if key == ("pcie_replays", PCIE)}
    slow = sample(gpu(), part, group="slow")
    first, second = (
        msgspec.structs.replace(view, samples={**view.samples, (GPU, "slow"): slow})
        for view in (healthy({("pcie_replays", PCIE): None}), later_sample(healthy({("pcie_replays", PCIE): None})))
    )
    found, looks = dated_twice(first, second, REPLAYS[0], "pcie_replays")
    assert looks == 2
    assert {finding.evidence_time for finding in found} == {at(), at(1)}


def unanswered(detail: str) -> View:
    """Return a view of a device without readings, whose last call failed with *detail*."""
    failure = Failure(FailureKind.LOST, detail, of_driver=True)
    return msgspec.structs.replace(healthy(), samples={(GPU, "fast"): sample(gpu(), {}, failure=failure)})


def test_another_failure_of_a_device_without_readings_is_told() -> None:
    """Its detail is part of the observation, though no reading changed."""
    eye = Eye(REPLAYS[0])
    assert "then" in judged_twice(unanswered("first"), unanswered("then"), eye)[0].message
    assert eye.looks == 2


def test_growth_that_is_over_in_the_same_sample_is_looked_at_again() -> None:
    """Whichever of the quantities of a look it is of."""
    eye = Eye("pcie_replays", REPLAYS[0])
    over = {key: growth for key, growth in VIEW.growth.items() if key != (GPU, *REPLAYS)}
    assert len(over) == len(VIEW.growth) - 1
    judged_twice(VIEW, msgspec.structs.replace(VIEW, growth=over), eye)
    assert eye.looks == 2


@pytest.mark.parametrize("name", CHANGED)
def test_another_answer_is_looked_at_again(name: str) -> None:
    """What is found is what the first look at it would find."""
    eye = Eye(REPLAYS[0])
    judged_twice(VIEW, CHANGED[name], eye)
    assert eye.looks == 2


def test_a_sample_that_stays_old_is_told_by_its_age() -> None:
    """Its age is part of what is found, and grows."""
    eye = Eye(REPLAYS[0])
    old, older = (msgspec.structs.replace(VIEW, now=at(seconds)) for seconds in (100, 101))
    assert "101 s ago" in judged_twice(old, older, eye)[0].message
    assert eye.looks == 2


def test_another_policy_is_looked_at_again() -> None:
    """A limit that the site has changed holds from the next round on."""
    eye = Eye(REPLAYS[0])
    judged_twice(VIEW, VIEW, eye, Policy(1), Policy(2))
    assert eye.looks == 2


def test_every_question_counts_and_not_the_first_alone() -> None:
    """A look that asked for two quantities rests on both."""
    eye = Eye(REPLAYS[0], "pcie_replays")
    judged_twice(VIEW, healthy({("pcie_replays", PCIE): 9}), eye)
    assert eye.looks == 2


def test_each_device_has_findings_of_its_own() -> None:
    """Two boards that read alike are two."""
    eye, reuse = Eye(REPLAYS[0]), Reuse()
    for _ in range(2):
        reuse.turn()
        view = msgspec.structs.replace(VIEW, reuse=reuse)
        one, other = (looked(view, eye, device, Policy()) for device in view.devices[:2])
        assert one != other
    assert eye.looks == 2


def test_what_was_not_looked_at_in_a_round_is_forgotten() -> None:
    """Nothing is kept of a device that is gone, or of a check that is switched off."""
    eye, reuse = Eye(REPLAYS[0]), Reuse()
    for is_there in (True, False, True):
        reuse.turn()
        if is_there:
            looked(msgspec.structs.replace(VIEW, reuse=reuse), eye, VIEW.devices[0], Policy())
    assert eye.looks == 2


def test_a_check_of_a_site_is_asked_in_every_round() -> None:
    """It may look at whatever it likes, the time too: nothing of it is reused."""
    eye, reuse = Eye(REPLAYS[0]), Reuse()

    def judge(view: View, policy: Policy) -> Iterator[Finding]:
        yield from looked(view, eye, view.devices[0], policy)

    for module, looks in (("nodevet.checks.health.own", 1), ("of.a.site", 3)):
        check = ConfiguredCheck(Check(name="c", summary="x", judge=judge, policy=Policy, module=module), Policy())
        for _ in range(2):
            reuse.turn()
            run_check(check, msgspec.structs.replace(VIEW, reuse=reuse))
        assert eye.looks == looks


def test_a_reused_finding_is_no_new_sample() -> None:
    """Three bad samples of five confirm a measured fault: one that is judged in ten rounds is one."""
    now = [at()]
    engine = Twins(
        [ConfiguredCheck(check, check.policy()) for check in discover()],
        node="n",
        clock=lambda: now[0],
        cadences={("nvidia", "slow"): Cadence(600, 5)},
    )
    engine.take_devices("nvidia", [gpu()])
    part = {("link_crc_errors", link(0)): 0}
    engine.take_sample(sample(gpu(), part, group="slow"))
    looks = []
    for turn in range(1, 4):
        engine.take_sample(sample(gpu(), {("link_crc_errors", link(0)): 100_000 * turn}, 60 * turn, group="slow"))
        for second in range(10):
            now[0] = at(60 * turn + second)
            snapshot = engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10))
            looks.append([episode.recent for episode in snapshot.snapshot.episodes if "crc" in episode.key.code])
    assert looks == [[(True,)]] * 10 + [[(True, True)]] * 10 + [[(True, True, True)]] * 10


# ---- Any timeline ------------------------------------------------------------------------------------------------

QUANTITIES = sorted(GPU_READINGS, key=str)
ODD: Sequence[Scalar | None] = (0, 1, 2, 70, 100, 1e9, -3.0, True, False, "reboot", "in_progress", None)
STATUSES = [status for status in ReadingStatus if status is not ReadingStatus.OK]
BOARDS = (gpu(), gpu(SIBLING, "0000:2b:00.0", minor=1))


class Course:
    """One node over time, by steps that are drawn; what a step does depends on its numbers alone."""

    def __init__(self) -> None:
        """Begin with two boards that were read once."""
        self.now = at()
        self.boards: list[Device] = list(BOARDS)
        self.readings: dict[str, dict[Quantity, Scalar | Reading | None]] = {
            board.id: dict(GPU_READINGS) for board in BOARDS
        }
        self.checks = [ConfiguredCheck(check, check.policy()) for check in discover()]
        self.cadences = {(name, group): Cadence(10, 5) for name in ("nvidia", "host") for group in ("fast", "slow")}
        self.engine = self._engine()

    def _engine(self) -> Twins:
        return Twins(self.checks, node="n", clock=lambda: self.now, cadences=self.cadences)

    def listed(self) -> None:
        """List what is there."""
        self.engine.take_devices("nvidia", self.boards)
        self.engine.take_devices("host", [controller()])

    def read(self, number: int, group: str) -> None:
        """Read one group of one board, or of the host."""
        if number % 5 == 4:
            self.engine.take_sample(sample(controller(), CONTROLLER_READINGS, time=self.now))
        elif self.boards:
            board = self.boards[number % len(self.boards)]
            taken = {key: value for key, value in self.readings[board.id].items() if GROUP_OF[key[0]] == group}
            failure = Failure(FailureKind.LOST, "for a test", of_driver=True) if number % 7 == 6 else None
            self.engine.take_sample(
                sample(board, {} if failure else taken, time=self.now, group=group, failure=failure, sequence=number)
            )

    def change(self, number: int, which: int) -> None:
        """Have a board read something else from now on: another number, nothing, or a counter that goes on."""
        readings = self.readings[BOARDS[number % 2].id]
        key = QUANTITIES[which % len(QUANTITIES)]
        value, before = ODD[number % len(ODD)], GPU_READINGS[key]
        if number % 4 == 0 and not isinstance(before, str):
            readings[key] = before + number
        elif number % 4 == 1:
            readings[key] = bad(*key, STATUSES[number % len(STATUSES)])
        else:
            readings[key] = value

    def pass_time(self, seconds: float) -> None:
        """Let *seconds* go by."""
        moved = self.now.boottime_ns + int(seconds * 1e9)
        self.now = Instant(self.now.boot_id, moved, self.now.wall_seconds + seconds)

    def reboot(self) -> None:
        """Boot anew, with an agent that goes on from what was kept."""
        self.now = Instant(f"{self.now.boot_id}+", 10**11, self.now.wall_seconds + 60)
        self.restart()

    def restart(self) -> None:
        """Start another agent from what was kept."""
        memory = self.engine.memory()
        self.engine = self._engine()
        self.engine.restore(memory)
        self.listed()

    def move(self, number: int) -> None:
        """Take a board away, bring it back, or put it into another slot."""
        one, other = BOARDS
        self.boards = [
            [one, other],
            [one],
            [],
            [msgspec.structs.replace(one, pci="0000:77:00.0"), other],
            [msgspec.structs.replace(one, serial="another"), msgspec.structs.replace(other, model="another")],
        ][number % 5]
        self.listed()

    def configure(self, number: int) -> None:
        """Change a policy, or how often a group is read."""
        wanted = (Links(), Links(expected=number % 20), Links(crc_per_second=1.0), Links(needed=1, window=1))
        policies: dict[str, msgspec.Struct] = {"links": wanted[number % 4]}
        self.checks = [
            msgspec.structs.replace(entry, policy=policies.get(entry.check.name, entry.policy)) for entry in self.checks
        ]
        self.cadences = {key: Cadence(5 + number % 60, 5) for key in self.cadences}
        self.engine.reconfigure(self.checks, self.cadences, Modes())

    def tell(self, number: int) -> None:
        """Have readers, the kernel or a load tell something."""
        states = list(ReaderState)
        told = reader("nvidia", states[number % len(states)], last_round=self.now, blamed={GPU: number % 3})
        self.engine.take_readers([told, reader("host", last_round=self.now)])
        self.engine.take_kernel_log(KernelLogState(number % 3 > 0, "/dev/kmsg", read=self.now))
        if number % 3 == 0:
            codes = ("nvidia.xid.79", "nvidia.xid.13", "pcie.aer_fatal")
            self.engine.take_event(event(codes[number % 2], time=self.now, sequence=number))
        if number % 3 == 1:
            done = burn_in(GPU, mismatches=number % 2)
            self.engine.take_result(msgspec.structs.replace(done, started=self.now, ended=self.now))

    def judge(self) -> None:
        """Judge; both must say the same."""
        self.engine.evaluate(AgentInfo(version="0", started=at(), interval_seconds=10))


def test_equal_readings_of_two_samples_are_held_once() -> None:
    """Each other one is that of the later sample: another value, another type of it, and one that came or went."""
    heat, flag, more = Reading("temperature_celsius", 40.0), Reading("link_active", True, link(0)), bad(*REPLAYS)
    before = sample(gpu(), {("first", link(0)): heat, ("second", link(1)): flag, ("third", link(2)): more})
    told = [msgspec.structs.replace(entry) for entry in before.readings]
    told[1] = Reading("link_active", 1, link(0))
    later = msgspec.structs.replace(before, sequence=2, time=at(10), readings=(*told, Reading("fan_ratio", 0.5)))
    held = held_once(later, before)
    assert held == later
    assert [entry is old for entry, old in zip(held.readings, before.readings, strict=False)] == [True, False, True]
    assert held.readings[1].value is not True
    fewer = msgspec.structs.replace(later, readings=(msgspec.structs.replace(heat, value=41.0),))
    assert held_once(fewer, before) == fewer
    assert held_once(later, None) is later


NUMBERS = st.integers(0, 120)
STEPS = st.one_of(
    st.tuples(st.just("read"), NUMBERS, st.sampled_from(("fast", "slow"))),
    st.tuples(st.just("change"), NUMBERS, st.integers(0, 500)),
    st.tuples(st.just("pass_time"), st.sampled_from((0.0, 0.25, 10.0, 31.0, 70.0, 4000.0))),
    st.tuples(st.sampled_from(("move", "configure", "tell")), NUMBERS),
    st.tuples(st.sampled_from(("reboot", "restart", "listed"))),
)


@given(st.lists(st.tuples(STEPS, st.booleans()), max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_timeline_gives_the_same_snapshots_as_one_that_is_judged_anew(steps: list[tuple[Any, bool]]) -> None:
    """Whatever is read, told, moved, configured or forgotten, and whenever it is judged."""
    course = Course()
    course.listed()
    for group in ("fast", "slow"):
        for number in (0, 1):
            course.read(number, group)
    course.judge()
    for (name, *arguments), is_judged in steps:
        getattr(course, name)(*arguments)
        if is_judged:
            course.judge()
    course.judge()
