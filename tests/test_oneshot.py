"""A one-shot counts what needs growth: it takes the looks that it needs, and no more on a healthy node."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import msgspec
import pytest
from fakes.clocks import SteppedClock
from fakes.views import CONTROLLER_READINGS, GPU_READINGS, Quantity, bad, controller, gpu, link, reason, sample

from nodevet.agent.config.load import load_configuration
from nodevet.agent.once.run import (
    APART_SECONDS,
    LONGEST_APART_SECONDS,
    LOOKS,
    MOST_LOOKS,
    impatient,
    look,
    look_until_settled,
)
from nodevet.checks.core.model import AgentInfo, Device, Part, PartKind, Reading, ReadingStatus, Scalar, Snapshot, State
from nodevet.checks.core.quantities import QUANTITIES
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover, installed

DRAM = Part(PartKind.MEMORY_BLOCK, "dram")
CONTROLLER_BLOCK = Part(PartKind.MEMORY_BLOCK, "controller", 0)
PCIE = Part(PartKind.PCIE)
BOARD, CONTROLLER = gpu(), controller()

# (device, quantity, part, growth per second, code)
GROWING: list[tuple[Device, str, Part, float, str]] = [
    (BOARD, "throttle_seconds", reason("hardware_thermal"), 0.2, "throttle.hardware_thermal"),
    (CONTROLLER, "throttle_events", reason("package"), 3, "throttle.package"),
    (BOARD, "ecc_corrected_errors", DRAM, 5000, "memory.corrected_rate"),
    (CONTROLLER, "ecc_corrected_errors", CONTROLLER_BLOCK, 50, "memory.corrected_rate"),
    (BOARD, "ecc_uncorrected_errors", DRAM, 1, "memory.uncorrected"),
    (BOARD, "ecc_deferred_errors", DRAM, 1, "memory.deferred"),
    (BOARD, "pcie_replays", PCIE, 300, "pcie.replay_rate"),
    (BOARD, "pcie_correctable_errors", PCIE, 300, "pcie.correctable_rate"),
    (BOARD, "pcie_nonfatal_errors", PCIE, 1, "pcie.nonfatal"),
    (BOARD, "pcie_fatal_errors", PCIE, 1, "pcie.fatal"),
    (BOARD, "link_replay_errors", link(0), 5, "link.replay"),
    (BOARD, "link_recovery_errors", link(0), 5, "link.recovery"),
    (BOARD, "link_crc_errors", link(0), 300, "link.crc_rate"),
    (BOARD, "link_effective_errors", link(0), 5, "link.effective"),
]


class OneShot:
    """The engine and the looks of a one-shot, on a clock that moves a second between two looks."""

    def __init__(self, grows: dict[tuple[str, Quantity], list[float]]) -> None:
        """Look at a healthy node whose counters of *grows* grow so much a second before each look, the last on."""
        self.clock = SteppedClock()
        self.looks = 0
        self.waited: list[float] = []
        self.refused: dict[int, dict[Quantity, ReadingStatus]] = {}
        self.phase: float | None = None
        self.chance: Random | None = None
        self.values: dict[tuple[str, Quantity], Scalar] = {
            **{(BOARD.id, key): value for key, value in GPU_READINGS.items()},
            **{(CONTROLLER.id, key): value for key, value in CONTROLLER_READINGS.items()},
        }
        self.grows = grows
        configured = tuple(impatient(ConfiguredCheck(check, check.policy())) for check in discover())
        self.engine = Engine(configured, node="node", clock=self.clock.instant)
        self.engine.take_devices("nvidia", [BOARD])
        self.engine.take_devices("host", [CONTROLLER])

    def run(self) -> Snapshot:
        """Return what the one-shot ends with."""
        return look_until_settled(self._take, self._wait)

    def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.waited.append(seconds)

    def _arrived(self, chance: Random, rate: float) -> int:
        """Return how many came since the last look, each at its own moment."""
        number, passed = 0, chance.expovariate(rate)
        while passed <= self.waited[-1]:
            number, passed = number + 1, passed + chance.expovariate(rate)
        return number

    def _take(self) -> Snapshot:
        for key, amounts in self.grows.items():
            if self.looks:
                value = self.values[key]
                assert not isinstance(value, str)
                rate = amounts[min(self.looks, len(amounts)) - 1]
                grown = rate * self.waited[-1] if self.chance is None else self._arrived(self.chance, rate)
                self.values[key] = value + grown
        self.looks += 1
        for owner in (BOARD, CONTROLLER):
            read: dict[Quantity, Scalar | Reading | None] = {
                key: value for (device, key), value in self.values.items() if device == owner.id
            }
            if self.phase is not None:
                whole = (key for key in self.grows if key[0] == owner.id)
                read |= {key[1]: math.floor(float(self.values[key]) + self.phase) for key in whole}
            read |= {key: bad(key[0], key[1], status) for key, status in self.refused.get(self.looks, {}).items()}
            self.engine.take_sample(msgspec.structs.replace(sample(owner, read), time=self.clock.instant()))
        return self.engine.evaluate(AgentInfo(version="0", started=self.clock.instant(), interval_seconds=1)).snapshot


def counting(snapshot: Snapshot) -> set[tuple[str, str]]:
    """Return code and device of what counts against a device."""
    return {
        (episode.key.code, episode.key.device)
        for episode in snapshot.episodes
        if episode.key in {key for verdict in snapshot.device_verdicts.values() for key in verdict.episodes}
    }


@pytest.mark.parametrize(
    ("owner", "quantity", "part", "rate", "code"),
    GROWING,
    ids=[f"{code} {owner.id}" for owner, _, _, _, code in GROWING],
)
def test_what_grows_is_counted(owner: Device, quantity: str, part: Part, rate: float, code: str) -> None:
    """Every counter that is judged by its growth, at a rate that nobody may overlook."""
    shot = OneShot({(owner.id, (quantity, part)): [rate]})
    snapshot = shot.run()
    assert (code, owner.id) in counting(snapshot)
    assert snapshot.device_verdicts[owner.id].state in (State.DEGRADED, State.FAILED)
    assert shot.looks <= MOST_LOOKS


# (device, quantity, part, growth per second, code): beyond its limit, and too few in a second to tell a rate by
SLOW: list[tuple[Device, str, Part, float, str]] = [
    *((BOARD, "ecc_corrected_errors", DRAM, rate, "memory.corrected_rate") for rate in (13, 20, 50, 99)),
    *(
        (
            CONTROLLER,
            "ecc_corrected_errors",
            Part(PartKind.MEMORY_BLOCK, "controller", 0),
            rate,
            "memory.corrected_rate",
        )
        for rate in (1.25, 2, 5, 9)
    ),
    (BOARD, "pcie_replays", PCIE, 1, "pcie.replay_rate"),
]


@pytest.mark.parametrize(
    ("owner", "quantity", "part", "rate", "code"),
    SLOW,
    ids=[f"{code} {owner.id} {rate}" for owner, _, _, rate, code in SLOW],
)
def test_errors_that_are_few_in_a_second_are_counted_for_longer(
    owner: Device, quantity: str, part: Part, rate: float, code: str
) -> None:
    """A hundred errors of an accelerator, or ten of the host, tell a rate: it looks until they may have come."""
    shot = OneShot({(owner.id, (quantity, part)): [rate]})
    assert (code, owner.id) in counting(shot.run())
    assert shot.waited[0] == APART_SECONDS
    assert max(shot.waited) <= LONGEST_APART_SECONDS
    assert shot.looks == MOST_LOOKS


@pytest.mark.parametrize(
    ("quantity", "code"),
    [("pcie_replays", "pcie.replay_rate"), ("pcie_correctable_errors", "pcie.correctable_rate")],
)
@pytest.mark.parametrize(("per_minute", "is_told"), [(10, False), (20, False), (30, False), (60, True), (100, True)])
def test_whole_errors_are_told_from_a_rate_whenever_they_come(
    quantity: str, code: str, per_minute: float, is_told: bool
) -> None:
    """About thirty a minute are allowed: in one second a single error is no rate, and none is no proof of health."""
    told = []
    for phase in range(20):
        shot = OneShot({(BOARD.id, (quantity, PCIE)): [per_minute / 60]})
        shot.phase = phase / 20
        told.append((code, BOARD.id) in counting(shot.run()))
    assert told == [is_told] * 20


@pytest.mark.parametrize(
    ("owner", "quantity", "part", "rate", "code"),
    [
        (BOARD, "link_replay_errors", link(0), 1, "link.replay"),
        (BOARD, "link_recovery_errors", link(0), 1, "link.recovery"),
        (BOARD, "link_effective_errors", link(0), 1, "link.effective"),
        (CONTROLLER, "throttle_events", reason("package"), 1, "throttle.package"),
        (BOARD, "pcie_replays", PCIE, 3, "pcie.replay_rate"),
        (BOARD, "pcie_correctable_errors", PCIE, 3, "pcie.correctable_rate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_that_come_by_chance_are_told_once_one_was_seen(
    owner: Device, quantity: str, part: Part, rate: float, code: str
) -> None:
    """The next second may have none, although many come in a minute: it looks for as long as some must come."""
    told = seen = 0
    for seed in range(30):
        shot = OneShot({(owner.id, (quantity, part)): [rate]})
        shot.chance = Random(seed)  # noqa: S311
        told += (code, owner.id) in counting(shot.run())
        seen += Random(seed).expovariate(rate) <= APART_SECONDS  # noqa: S311
    assert told == seen > 10


def test_a_burst_below_what_tells_a_rate_is_looked_at_once_more() -> None:
    """And not held against the board."""
    shot = OneShot({(BOARD.id, ("ecc_corrected_errors", DRAM)): [50, 0]})
    assert counting(shot.run()) == set()
    assert shot.looks == LOOKS + 1


@pytest.mark.parametrize("first", [70, 85, 101, 110, 140])
def test_what_one_second_tells_by_chance_does_not_decide(first: float) -> None:
    """Ninety a second may be a hundred in one of them: the next look counts for longer, whatever the first one told."""
    shot = OneShot({(BOARD.id, ("ecc_corrected_errors", DRAM)): [first, 90]})
    assert counting(shot.run()) == {("memory.corrected_rate", BOARD.id)}


@pytest.mark.parametrize("refused", [1, 2])
@pytest.mark.parametrize("status", [ReadingStatus.UNAVAILABLE, ReadingStatus.ERROR])
@pytest.mark.parametrize(
    ("owner", "quantity", "part", "rate", "code"),
    [row for row in GROWING if row[1] not in ("ecc_uncorrected_errors", "ecc_deferred_errors", "throttle_seconds")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_counter_that_is_refused_in_one_look_is_counted_in_the_next_two(
    owner: Device, quantity: str, part: Part, rate: float, code: str, status: ReadingStatus, refused: int
) -> None:
    """The looks ended before anything had been seen to grow."""
    shot = OneShot({(owner.id, (quantity, part)): [rate]})
    shot.refused = {refused: {(quantity, part): status}}
    assert (code, owner.id) in counting(shot.run())


@pytest.mark.parametrize("status", [ReadingStatus.UNSUPPORTED, ReadingStatus.DENIED])
def test_a_counter_that_is_never_told_is_not_waited_for(status: ReadingStatus) -> None:
    """Nobody waits for what a device does not have."""
    key = ("link_crc_errors", link(0))
    shot = OneShot({})
    shot.refused = {look: {key: status} for look in range(1, MOST_LOOKS + 1)}
    shot.run()
    assert shot.looks == LOOKS


def test_every_quantity_that_is_judged_by_growth_is_in_the_table() -> None:
    """A new counter brings its row, or the one-shot is blind to it."""
    assert {quantity for _, quantity, _, _, _ in GROWING} == {
        entry.key for entry in QUANTITIES.values() if entry.judged_by_growth
    }


def test_a_healthy_node_is_looked_at_twice() -> None:
    """Nobody waits longer for good news."""
    shot = OneShot({})
    snapshot = shot.run()
    assert snapshot.device_verdicts[BOARD.id].state is State.OK
    assert shot.looks == LOOKS


def test_a_burst_that_ends_is_not_confirmed() -> None:
    """It was seen in one look alone; the looks end although it came and went."""
    shot = OneShot({(BOARD.id, ("link_crc_errors", link(0))): [300, 0]})
    snapshot = shot.run()
    assert counting(snapshot) == set()
    assert shot.looks == MOST_LOOKS


def test_readers_of_a_one_shot_read_when_they_are_asked(tmp_path: Path) -> None:
    """A round of their own between two looks would leave the later one a moment in which nothing grows."""
    (tmp_path / "nodevet.toml").write_text(
        '[agent]\ninterval_seconds = 1\nslow_interval_seconds = 1\n[agent.backends]\nenabled = ["host"]\n'
        "[kernel_log]\nenabled = false\n"
    )
    places = {"agent.state_dir": str(tmp_path / "state"), "agent.runtime_dir": str(tmp_path / "run")}
    configuration = load_configuration(tmp_path / "nodevet.toml", installed(), overrides=places)
    snapshot = look(configuration, names=["memory-errors"])
    assert {(sample.group, sample.sequence) for sample in snapshot.samples} == {("fast", LOOKS), ("slow", LOOKS)}
