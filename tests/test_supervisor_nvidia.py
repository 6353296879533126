"""The supervisor with the real host and NVIDIA readers, on a fake driver that hangs, aborts and goes away."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.host_tree import virtual_machine, write_tree
from fakes.nvml.scenario import FakeNvml, NvmlReturn, uuid

from nodevet.agent.clock import SteppedClock, SystemClock
from nodevet.agent.supervisor import ReaderPlan, Supervisor
from nodevet.checks.model import Event, ReaderState, ReaderStatus, Sample
from nodevet.checks.view import Cadence

INTERVAL, DEADLINE = 10.0, 5.0
REAL_SECONDS = 20.0
GPUS = {uuid(slot) for slot in range(8)}
WEDGED = uuid(3)


class Node:
    """A machine with eight GPUs and its readers, on a clock that the test moves."""

    def __init__(self, folder: Path, fake_nvml: FakeNvml) -> None:
        """Prepare the readers; nothing starts before the first step."""
        root = str(write_tree(folder / "root", virtual_machine()))
        rates = {"fast": Cadence(INTERVAL, DEADLINE), "slow": Cadence(6 * INTERVAL, DEADLINE)}
        self.clock = SteppedClock(boot_id=SystemClock().instant().boot_id)
        self.selector = selectors.DefaultSelector()
        self.samples: list[Sample] = []
        self.events: list[Event] = []
        plans = (
            # The clock jumps while the host is read, too: that must not look like a hang of the host.
            ReaderPlan(backend="host", cadences={"fast": Cadence(INTERVAL, 1e6)}, root=root, holds_devices=False),
            ReaderPlan(
                backend="nvidia",
                cadences=rates,
                root=root,
                environment={**os.environ, **fake_nvml.environment},
            ),
        )
        self.supervisor = Supervisor(plans, self.clock, self.selector)

    def status(self, backend: str = "nvidia") -> ReaderStatus:
        """How a reader does."""
        return next(status for status in self.supervisor.statuses if status.backend == backend)

    def until(self, done: Callable[[], bool]) -> None:
        """Run the loop, without moving the clock, until *done*."""
        end = time.monotonic() + REAL_SECONDS
        while True:
            self.supervisor.tick()
            collected = self.supervisor.collect()
            self.samples += collected.samples
            self.events += collected.events
            if done():
                return
            assert time.monotonic() < end, f"not reached: {self.supervisor.statuses} {self.supervisor.records}"
            for key, mask in self.selector.select(0.05):
                self.supervisor.handle(key, mask)

    def round(self, seconds: float = 0.0) -> dict[str, str]:
        """Move the clock, run until all is answered; return what the last sample of each device says."""
        self.clock.advance(seconds)
        before = len(self.samples)
        self.until(lambda: self.supervisor.settled)
        return outcome(self.samples[before:])

    def fall(self, call: str, seconds: float = DEADLINE) -> dict[str, str]:
        """Wait until the reader hangs in *call*, let *seconds* pass, and return what was told until it is gone."""
        before = len(self.samples)
        self.until(lambda: self.sits_in(call) and not self.selector.select(0))
        self.clock.advance(seconds)
        self.until(lambda: self.status().state is ReaderState.HUNG and self.status().pid is None)
        return outcome(self.samples[before:])

    def sits_in(self, call: str) -> bool:
        """Whether the NVIDIA reader is in *call* on the wedged GPU."""
        calls = [record.detail for record in self.supervisor.records if record.name == "nvidia"]
        return any(call in text and WEDGED in text for text in calls)

    def close(self) -> None:
        """Stop the readers, in real time."""
        self.supervisor.stop()
        end = time.monotonic() + REAL_SECONDS
        while not self.supervisor.at_rest and time.monotonic() < end:
            self.supervisor.tick()
            for key, mask in self.selector.select(0.02):
                self.supervisor.handle(key, mask)
            self.clock.advance(0.02)
        self.selector.close()


def outcome(samples: list[Sample]) -> dict[str, str]:
    """What each GPU's last sample says: ``ok`` or the kind of failure."""
    return {
        sample.device: sample.failure.kind.value if sample.failure else "ok"
        for sample in samples
        if sample.backend == "nvidia"
    }


@pytest.fixture
def node(tmp_path: Path, fake_nvml: FakeNvml) -> Iterator[Node]:
    """A healthy node until the test says otherwise."""
    node = Node(tmp_path, fake_nvml)
    yield node
    node.close()


def test_a_wedged_gpu_is_named_left_alone_and_its_siblings_are_measured(node: Node, fake_nvml: FakeNvml) -> None:
    """One GPU whose calls never return costs the other seven two deadlines, then nothing."""
    assert node.round() == dict.fromkeys(GPUS, "ok")
    fake_nvml.hang("nvmlDeviceGetTemperature", gpu=3).hang("nvmlDeviceGetTemperatureV", gpu=3)
    node.clock.advance(INTERVAL)
    assert node.fall("nvmlDeviceGetTemperature")[WEDGED] == "hung"
    assert "nvmlDeviceGetTemperature" in node.status().detail
    assert f"{WEDGED} (PCI 0000:40:00.0) has not returned for 5.0 s" in node.status().detail
    node.clock.advance(1.0)
    assert node.fall("nvmlDeviceGetTemperature") == dict.fromkeys(GPUS, "ok") | {WEDGED: "hung"}
    assert node.round(2.0) == dict.fromkeys(GPUS, "ok") | {WEDGED: "hung"}
    assert node.status().quarantined == (WEDGED,)
    assert {device.uuid for device in node.supervisor.devices if device.backend == "nvidia"} == GPUS
    assert node.status("host").state is ReaderState.RUNNING
    assert node.status("host").starts == 1


def test_a_gpu_that_hangs_while_it_is_listed_is_left_alone_too(node: Node, fake_nvml: FakeNvml) -> None:
    """A call that names its device is charged to it even before a round: the next start works without it."""
    fake_nvml.hang("nvmlDeviceGetName", gpu=3)
    for wait in (0.0, 1.0):
        node.clock.advance(wait)
        node.fall("nvmlDeviceGetName", seconds=60.0)
    assert node.round(2.0) == dict.fromkeys(GPUS - {WEDGED}, "ok")
    assert node.status().state is ReaderState.RUNNING
    assert node.status().quarantined == ("0000:40:00.0",)


def test_an_abort_in_the_library_leaves_the_host_measured(node: Node, fake_nvml: FakeNvml) -> None:
    """A crash of the driver's library is told with signal and call, and the reader comes back."""
    node.round()
    fake_nvml.crash("nvmlDeviceGetPowerUsage", gpu=0).crash("nvmlDeviceGetFieldValues", gpu=0)
    node.clock.advance(INTERVAL)
    node.until(lambda: node.status().state is ReaderState.CRASHED and node.status().pid is None)
    assert "was killed by SIGABRT in: nvmlDeviceGet" in node.status().detail
    fake_nvml.clear()
    assert node.round(1.0) == dict.fromkeys(GPUS, "ok")
    assert node.status("host").starts == 1


def test_a_lost_gpu_fails_alone_and_the_reader_goes_on(node: Node, fake_nvml: FakeNvml) -> None:
    """A GPU that fell off the bus is lost; nothing is restarted for it."""
    node.round()
    fake_nvml.fail_device(5, NvmlReturn.GPU_IS_LOST)
    assert node.round(INTERVAL) == dict.fromkeys(GPUS, "ok") | {uuid(5): "lost"}
    assert (node.status().state, node.status().starts) == (ReaderState.RUNNING, 1)


def test_an_xid_arrives_between_rounds(node: Node, fake_nvml: FakeNvml) -> None:
    """An event is told without waiting for the next round."""
    node.round()
    fake_nvml.xid(2, 79)
    node.until(lambda: bool(node.events))
    assert (node.events[0].code, node.events[0].device) == ("nvidia.xid.79", uuid(2))


def test_a_node_without_the_library_is_absent(tmp_path: Path) -> None:
    """Where no NVIDIA library can be loaded the reader is absent with its reason, and the host is read."""
    empty = tmp_path / "libraries"
    empty.mkdir()
    (empty / "libnvidia-ml.so.1").write_text("no library at all")
    node = Node(tmp_path, FakeNvml(tmp_path / "scenario", empty / "libnvidia-ml.so.1"))
    node.round()
    assert node.status().state is ReaderState.ABSENT
    assert node.status().failure is not None
    assert node.status("host").state is ReaderState.RUNNING
    node.close()
