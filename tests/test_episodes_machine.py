"""Any course of looks, missing inputs, restarts, reboots and clock changes, through the real engine.

The state machine feeds one engine that never stops and a second one that is restarted at random points, and a third
whose wall clock is wrong. It knows nothing of how the fold works, only what may never happen.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from fakes.views import CORE, DRAM, GPU, GPU_READINGS, Quantity, bad, burn_in, event, gpu, reader, sample
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodevet.checks.core.model import (
    WHOLE,
    AgentInfo,
    Clearing,
    Device,
    Episode,
    EpisodeState,
    Event,
    Failure,
    FailureKind,
    FaultClass,
    Instant,
    Key,
    Outcome,
    Reading,
    ReadingStatus,
    Result,
    Sample,
    Scalar,
    State,
)
from nodevet.checks.engine.acknowledgement import is_harder
from nodevet.checks.engine.damping import later
from nodevet.checks.engine.engine import ConfiguredCheck, Engine, Round
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.retest import is_passed_retest
from nodevet.checks.engine.view import Cadence

CADENCES = {("nvidia", "fast"): Cadence(10, 5)}
CHECKS = tuple(ConfiguredCheck(declared, declared.policy()) for declared in discover())

FAULTS: dict[Quantity, Scalar] = {
    ("temperature_margin_celsius", CORE): -2,
    ("ecc_uncorrected_errors", DRAM): 4,
    ("row_remap_failed", WHOLE): True,
    ("recovery_action", WHOLE): "reboot",
}
QUANTITIES = sorted(GPU_READINGS, key=str)
START_ERROR = -40_000_000.0
"""Seconds by which the wall clock of one node is wrong from the start."""

Readings = dict[Quantity, Scalar | Reading | None]


class Node:
    """An engine with its clock, whose wall time may be wrong by *error* seconds."""

    def __init__(self, error: float = 0.0) -> None:
        """Start the agent."""
        self.error = error
        self.now = Instant("boot 0", 10**12, 0.0)
        self.engine = self._engine()
        self.engine.take_devices("nvidia", (gpu(),))

    def _engine(self) -> Engine:
        return Engine(CHECKS, node="n1", clock=lambda: self.now, cadences=CADENCES)

    def set(self, now: Instant) -> None:
        """Move the clock."""
        self.now = msgspec.structs.replace(now, wall_seconds=now.wall_seconds + self.error)

    def acknowledge(self, key: Key, days: float | None) -> None:
        """Let a person acknowledge the episode of *key*, for so many days by this node's own clock."""
        until = None if days is None else later(self.now, 86_400 * days)
        assert self.engine.acknowledge(key, note="seen", actor="uid 0", until=until) is not None

    def restart(self, devices: tuple[Device, ...]) -> None:
        """Stop the agent and start another one with what it wrote down."""
        kept = self.engine.memory()
        self.engine = self._engine()
        self.engine.restore(kept)
        self.engine.take_devices("nvidia", devices)

    def take(self, taken: Sample | Event | Result) -> None:
        """Hand over what was read, told or measured, at this node's own time."""
        if isinstance(taken, Sample):
            self.engine.take_sample(msgspec.structs.replace(taken, time=self.now))
        elif isinstance(taken, Event):
            self.engine.take_event(msgspec.structs.replace(taken, time=self.now))
        else:
            self.engine.take_result(msgspec.structs.replace(taken, started=self.now, ended=self.now))

    def evaluate(self) -> Round:
        """Judge what is known."""
        self.engine.take_readers([reader("nvidia", last_round=self.now)])
        return self.engine.evaluate(AgentInfo(version="0", started=self.now, interval_seconds=10))


def shown(episodes: tuple[Episode, ...]) -> list[tuple[object, ...]]:
    """Return what does not depend on any clock."""
    return sorted(
        (
            *(str(e.key), e.state.value, e.outcome.value, e.count, e.good, e.recent, e.finding.message),
            *(e.note, e.expired is not None, e.flapping),
        )
        for e in episodes
    )


class Course(RuleBasedStateMachine):
    """One node over time."""

    def __init__(self) -> None:
        """Begin with a healthy node."""
        super().__init__()
        self.boots = 0
        self.seconds = 1000.0
        self.sequence = 0
        self.nodes = {"steady": Node(), "restarted": Node(), "wrong clock": Node(error=START_ERROR)}
        self.readings: Readings = dict(GPU_READINGS)
        self.round: Round | None = None
        self.passed: set[str] = set()
        self.last_retest: float | None = None
        self.blinded = False

    @property
    def now(self) -> Instant:
        """Return the present moment."""
        return Instant(f"boot {self.boots}", int(self.seconds * 1e9), 1.7e9 + self.seconds)

    def step(self, taken: Sample | Event | Result | None = None, seconds: float = 10.0) -> None:
        """Let time pass, hand over what came, and judge."""
        self.seconds += seconds
        before = self.round
        rounds = {}
        for name, node in self.nodes.items():
            node.set(self.now)
            if taken is not None:
                node.take(taken)
            rounds[name] = node.evaluate()
        steady = self.round = rounds["steady"]
        for name in ("restarted", "wrong clock"):
            other = rounds[name].snapshot
            assert shown(other.episodes) == shown(steady.snapshot.episodes), name
            assert other.verdict.state is steady.snapshot.verdict.state, name
            assert other.verdict.action is steady.snapshot.verdict.action, name
        if before is not None:
            self.hold(before, steady, taken)

    def hold(self, before: Round, after: Round, taken: Sample | Event | Result | None) -> None:
        """Hold what may never happen between two rounds."""
        good = {f.key for f in after.snapshot.findings if f.outcome is Outcome.PASS}
        left = {episode.key for episode in after.snapshot.episodes}
        retest = isinstance(taken, Result) and is_passed_retest(taken)
        for episode in before.snapshot.episodes:
            if episode.key in left:
                continue
            clearing = episode.finding.clearing
            is_reading = episode.state is EpisodeState.PENDING or episode.outcome is Outcome.UNMEASURED
            is_known = episode.state is EpisodeState.ACKNOWLEDGED and episode.expired is None
            if is_reading or clearing is Clearing.CONDITION or (is_known and episode.key in good):
                assert episode.key in good
            elif clearing is Clearing.HARDWARE_EVENT:
                assert retest
            else:
                assert clearing is Clearing.APPLICATION_EVENT, f"{episode.key} ended without evidence"
                assert before.snapshot.time.boot_id != after.snapshot.time.boot_id
        self.hold_words(before, after, taken)
        is_blind = taken is None or (isinstance(taken, Sample) and self.blinded)
        if is_blind and before.snapshot.findings:
            assert after.snapshot.verdict.state.rank >= before.snapshot.verdict.state.rank, (
                "blindness improved a verdict"
            )

    def hold_words(self, before: Round, after: Round, taken: Sample | Event | Result | None) -> None:
        """Hold that a person's word ends by a look alone, and that its expiry makes no verdict that closes anything."""
        states = {episode.key: episode for episode in after.snapshot.episodes}
        for episode in before.snapshot.episodes:
            now = states.get(episode.key)
            if episode.state is EpisodeState.ACKNOWLEDGED and now is not None and now.state is EpisodeState.OPEN:
                if episode.expired is not None and now.outcome is Outcome.UNMEASURED:
                    continue  # each round sees that nothing can be read; it was unknown all the while
                assert taken is not None, f"{episode.key} opened again although nothing was looked at"
                if isinstance(taken, Result):
                    found = episode.key.code == "burnin.mismatch" and taken.metric("mismatches")
                    assert found, "a load opened what it did not find"
                assert episode.expired is not None or is_harder(episode, now.finding)
        standing = [e for e in after.snapshot.episodes if e.state is EpisodeState.ACKNOWLEDGED]
        if standing and not any(e.state is EpisodeState.OPEN for e in after.snapshot.episodes):
            assert not after.snapshot.verdict.hard
        known = [e for e in standing if e.expired is None and e.finding.fault_class is not FaultClass.APPLICATION]
        if known:
            assert f"{len(known)} acknowledged " in after.snapshot.verdict.reason

    @precondition(lambda self: self.confirmed)
    @rule(place=st.integers(0, 50), days=st.sampled_from([None, 0.001, 3.0, 300.0]))
    def acknowledge(self, place: int, days: float | None) -> None:
        """A person acknowledges one of what is known, for good or for a time."""
        key = self.confirmed[place % len(self.confirmed)]
        if self.nodes["wrong clock"].error != START_ERROR:
            days = None  # a term that is typed while the clock is off is off after the next boot
        for node in self.nodes.values():
            node.acknowledge(key, days)
        self.blinded = False
        self.round = None
        self.look_again()

    @rule(hours=st.integers(-50_000, 50_000))
    def step_the_wall_clock(self, hours: int) -> None:
        """Somebody sets the clock of one node; it is set right again by the next boot."""
        self.nodes["wrong clock"].error = 3600.0 * hours

    @property
    def confirmed(self) -> list[Key]:
        """Return the faults that a person may acknowledge now."""
        episodes = () if self.round is None else self.round.snapshot.episodes
        return [e.key for e in episodes if e.state is not EpisodeState.PENDING]

    @rule(changes=st.dictionaries(st.sampled_from(sorted(FAULTS, key=str)), st.booleans(), max_size=4))
    def look(self, changes: dict[Quantity, bool]) -> None:
        """A sample of a node in which some faults are present."""
        self.readings = {**GPU_READINGS, **{key: FAULTS[key] for key, present in changes.items() if present}}
        self.blinded = False
        self.step(sample(gpu(), self.readings))

    @rule(
        missing=st.dictionaries(
            st.sampled_from(QUANTITIES), st.sampled_from([s for s in ReadingStatus if s is not ReadingStatus.OK])
        )
    )
    def look_half_blind(self, missing: dict[Quantity, ReadingStatus]) -> None:
        """The same sample again, in which some readings are missing: nothing new was seen of them."""
        spoiled = {key: bad(*key, status) for key, status in missing.items()}
        self.blinded = len(spoiled) == len(QUANTITIES)
        self.step(sample(gpu(), {**self.readings, **spoiled}))

    @rule(kind=st.sampled_from(list(FailureKind)))
    def look_blind(self, kind: FailureKind) -> None:
        """The device could not be read."""
        self.blinded = True
        self.step(sample(gpu(), {}, failure=Failure(kind, "for a test", of_driver=True)))

    @rule(seconds=st.sampled_from([1.0, 40.0, 400_000.0]))
    def wait(self, seconds: float) -> None:
        """Nothing comes for a while."""
        self.step(None, seconds)

    @rule(
        code=st.sampled_from(["nvidia.xid.79", "nvidia.xid.48", "nvidia.xid.13", "nvidia.xid.31"]),
        pid=st.sampled_from([None, 4242]),
    )
    def kernel_tells(self, code: str, pid: int | None) -> None:
        """An event."""
        self.sequence += 1
        self.blinded = False
        self.step(event(code, sequence=self.sequence, pid=pid))

    @rule(mismatches=st.sampled_from([0, 0, 1]), verified=st.sampled_from([0, 5000, 5000]))
    def burn(self, mismatches: int, verified: int) -> None:
        """A workload ran, now."""
        self.blinded = False
        self.step(burn_in(mismatches=mismatches, gemms_verified=verified))

    @rule()
    def restart(self) -> None:
        """The agent is restarted on one of the nodes; the next sample comes soon."""
        self.nodes["restarted"].restart((gpu(),))
        self.look_again()

    @rule()
    def look_again(self) -> None:
        """The same sample again."""
        self.blinded = False
        self.step(sample(gpu(), self.readings))

    @precondition(lambda self: self.boots < 3)
    @rule()
    def reboot(self) -> None:
        """The node reboots, and with it the agent everywhere."""
        self.boots += 1
        self.nodes["wrong clock"].error = START_ERROR
        for node in self.nodes.values():
            node.set(self.now)
            node.restart((gpu(),))
        self.look_again()

    @invariant()
    def never_green_by_absence(self) -> None:
        """A verdict is ok only where something passed."""
        if self.round is not None and self.round.snapshot.verdict.state is State.OK:
            assert any(f.outcome is Outcome.PASS for f in self.round.snapshot.findings)


CourseTest = Course.TestCase
CourseTest.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.fixture
def steady() -> Iterator[Course]:
    """A course for the fixed stories below."""
    yield Course()


def test_open_fault_survives_a_restart_without_a_sample(steady: Course) -> None:
    """Before the first sample of the new agent the node is as failed as it was."""
    steady.look({("row_remap_failed", WHOLE): True})
    node = steady.nodes["restarted"]
    node.restart((gpu(),))
    snapshot = node.evaluate().snapshot
    assert snapshot.verdict.state is State.FAILED
    kept = [e for e in snapshot.episodes if e.key.code == "memory.row_remap_failed"]
    assert [(e.key.device, e.state) for e in kept] == [(GPU, EpisodeState.OPEN)]
