"""A one-shot counts what needs growth: it takes the looks that it needs, and no more on a healthy node."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import CONTROLLER_READINGS, GPU_READINGS, Quantity, controller, gpu, link, reason, sample

from nodevet.agent.clock import SteppedClock
from nodevet.agent.engine import Armed, Engine
from nodevet.agent.oneshot import LOOKS, MOST_LOOKS, impatient, look_until_settled
from nodevet.checks.model import AgentInfo, Device, Part, PartKind, Scalar, Snapshot, State
from nodevet.checks.quantities import QUANTITIES
from nodevet.checks.registry import discover

DRAM = Part(PartKind.MEMORY_BLOCK, "dram")
PCIE = Part(PartKind.PCIE)
BOARD, CONTROLLER = gpu(), controller()

# (device, quantity, part, growth per second, code)
GROWING: list[tuple[Device, str, Part, float, str]] = [
    (BOARD, "throttle_seconds", reason("hardware_thermal"), 0.2, "throttle.hardware_thermal"),
    (CONTROLLER, "throttle_events", reason("package"), 3, "throttle.package"),
    (BOARD, "ecc_corrected_errors", DRAM, 5000, "memory.corrected_rate"),
    (CONTROLLER, "ecc_corrected_errors", Part(PartKind.MEMORY_BLOCK, "controller", 0), 50, "memory.corrected_rate"),
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
        """Look at a healthy node whose counters of *grows* grow so much before each look, the last amount for ever."""
        self.clock = SteppedClock()
        self.looks = 0
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
        return look_until_settled(self._take, lambda: self.clock.advance(1.0))

    def _take(self) -> Snapshot:
        for key, amounts in self.grows.items():
            if self.looks:
                value = self.values[key]
                assert not isinstance(value, str)
                self.values[key] = value + amounts[min(self.looks, len(amounts)) - 1]
        self.looks += 1
        for owner in (BOARD, CONTROLLER):
            read = {key: value for (device, key), value in self.values.items() if device == owner.id}
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
