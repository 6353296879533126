"""A one-shot counts what needs growth: it takes the looks that it needs, and no more on a healthy node."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from fakes.views import CONTROLLER_READINGS, GPU_READINGS, Quantity, bad, controller, gpu, link, reason, sample

from nodevet.agent.clock import SteppedClock
from nodevet.agent.config import load_configuration
from nodevet.agent.engine import Armed, Engine
from nodevet.agent.oneshot import (
    APART_SECONDS,
    LONGEST_APART_SECONDS,
    LOOKS,
    MOST_LOOKS,
    impatient,
    look,
    look_until_settled,
)
from nodevet.checks.model import AgentInfo, Device, Part, PartKind, Reading, ReadingStatus, Scalar, Snapshot, State
from nodevet.checks.quantities import QUANTITIES
from nodevet.checks.registry import discover, installed

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
        self.values: dict[tuple[str, Quantity], Scalar] = {
            **{(BOARD.id, key): value for key, value in GPU_READINGS.items()},
            **{(CONTROLLER.id, key): value for key, value in CONTROLLER_READINGS.items()},
        }
        self.grows = grows
        armed = tuple(impatient(Armed(check, check.policy())) for check in discover())
        self.engine = Engine(armed, node="node", clock=self.clock.instant)
        self.engine.take_devices("nvidia", [BOARD])
        self.engine.take_devices("host", [CONTROLLER])

    def run(self) -> Snapshot:
        """Return what the one-shot ends with."""
        return look_until_settled(self._take, self._wait)

    def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.waited.append(seconds)

    def _take(self) -> Snapshot:
        for key, amounts in self.grows.items():
            if self.looks:
                value = self.values[key]
                assert not isinstance(value, str)
                self.values[key] = value + amounts[min(self.looks, len(amounts)) - 1] * self.waited[-1]
        self.looks += 1
        for owner in (BOARD, CONTROLLER):
            read: dict[Quantity, Scalar | Reading | None] = {
                key: value for (device, key), value in self.values.items() if device == owner.id
            }
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
