"""The supervisor with the real readers of host and vendors, on fake drivers that hang, abort and go away."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from fakes.amdsmi.scenario import FakeAmdSmi
from fakes.clocks import SteppedClock
from fakes.heard import Heard
from fakes.host_tree import virtual_machine, write_tree
from fakes.machine import FakeMachine
from fakes.nvml.scenario import FakeNvml
from fakes.pass_time import pass_time
from fakes.stopping import stop_readers

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.agent.readers.calls_of_users import LEFT_OUT_SECONDS
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import ReaderState, ReaderStatus, Sample
from nodevet.checks.engine.view import Cadence

INTERVAL, DEADLINE = 10.0, 5.0
REAL_SECONDS = 20.0
SLOT = 3


class Calls(NamedTuple):
    """What the reader of a vendor calls: to start, for the heat of a device, for its name, and for its power."""

    fixture: str
    start: tuple[str, ...]
    heat: tuple[str, ...]
    name: str
    power: tuple[str, ...]


VENDORS = {
    FakeNvml: Calls(
        fixture="fake_nvml",
        start=("nvmlInit", "nvmlInitWithFlags"),
        heat=("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"),
        name="nvmlDeviceGetName",
        power=("nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"),
    ),
    FakeAmdSmi: Calls(
        fixture="fake_amdsmi",
        start=("amdsmi_init",),
        heat=("amdsmi_get_temp_metric",),
        name="amdsmi_get_gpu_asic_info",
        power=("amdsmi_get_power_info",),
    ),
}


class Node(Heard):
    """A machine with eight GPUs and its readers, on a clock that the test moves."""

    def __init__(self, folder: Path, machine: FakeMachine) -> None:
        """Prepare the readers; nothing starts before the first step."""
        super().__init__()
        root = str(write_tree(folder / "root", virtual_machine() | machine.host_files()))
        self.machine = machine
        self.calls = VENDORS[type(machine)]
        self.gpus = {machine.uuid(slot) for slot in range(8)}
        self.wedged = machine.uuid(SLOT)
        rates = {"fast": Cadence(INTERVAL, DEADLINE), "slow": Cadence(6 * INTERVAL, DEADLINE)}
        self.clock = SteppedClock(boot_id=SystemClock().instant().boot_id)
        self.selector = selectors.DefaultSelector()
        plans = (
            # The clock jumps while the host is read, too: that must not look like a hang of the host.
            ReaderPlan(backend="host", cadences={"fast": Cadence(INTERVAL, 1e6)}, root=root, holds_devices=False),
            ReaderPlan(
                backend=machine.backend,
                cadences=rates,
                root=root,
                environment={**os.environ, **machine.environment},
            ),
        )
        self.supervisor = Supervisor(plans, self.clock, self.selector, self.take)

    def status(self, backend: str = "") -> ReaderStatus:
        """How a reader does: that of *backend*, or that of the GPUs."""
        wanted = backend or self.machine.backend
        return next(status for status in self.supervisor.statuses if status.backend == wanted)

    def until(self, done: Callable[[], bool]) -> None:
        """Run the loop, without moving the clock, until *done*."""
        end = time.monotonic() + REAL_SECONDS
        while True:
            self.supervisor.tick()
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
        return self.outcome(self.samples[before:])

    def fall(self, call: str, seconds: float = DEADLINE) -> dict[str, str]:
        """Wait until the reader hangs in *call*, let *seconds* pass, and return what was told until it is gone."""
        before = len(self.samples)
        self.until(lambda: self.sits_in(call) and not self.selector.select(0))
        pass_time(self.clock, self.supervisor, self.until, seconds)
        assert self.status().state is ReaderState.HUNG
        self.until(lambda: self.status().pid is None)
        return self.outcome(self.samples[before:])

    def sits_in(self, call: str) -> bool:
        """Whether the reader is in *call* on the wedged GPU."""
        calls = [record.detail for record in self.supervisor.records if record.name == self.machine.backend]
        return any(call in text and self.machine.pci(SLOT) in text for text in calls)

    def outcome(self, samples: list[Sample]) -> dict[str, str]:
        """What each GPU's last sample says: ``ok`` or the kind of failure."""
        return {
            sample.device: sample.failure.kind.value if sample.failure else "ok"
            for sample in samples
            if sample.backend == self.machine.backend
        }

    def all_ok(self) -> dict[str, str]:
        """The outcome of a round in which nothing is wrong."""
        return dict.fromkeys(self.gpus, "ok")

    def close(self) -> None:
        """Stop the readers, in real time."""
        stop_readers(self.supervisor, self.selector, self.clock)


@pytest.fixture(params=VENDORS, ids=lambda vendor: vendor.backend)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    """A healthy node of each vendor until the test says otherwise."""
    node = Node(tmp_path, request.getfixturevalue(VENDORS[request.param].fixture))
    yield node
    node.close()


def test_a_wedged_gpu_is_named_left_alone_and_its_siblings_are_measured(node: Node) -> None:
    """One GPU whose calls never return costs the other seven two deadlines, then nothing."""
    assert node.round() == node.all_ok()
    for call in node.calls.heat:
        node.machine.hang(call, gpu=SLOT)
    heat = node.calls.heat[0]
    node.clock.advance(INTERVAL)
    assert node.fall(heat)[node.wedged] == "hung"
    assert heat in node.status().detail
    assert f"(PCI {node.machine.pci(SLOT)}) has not returned for 5.0 s" in node.status().detail
    node.clock.advance(1.0)
    assert node.fall(heat) == node.all_ok() | {node.wedged: "hung"}
    assert node.round(2.0) == node.all_ok() | {node.wedged: "hung"}
    assert node.status().quarantined == (node.wedged,)
    listed = {device.id for device in node.supervisor.devices if device.backend == node.machine.backend}
    assert listed == node.gpus
    assert node.status("host").state is ReaderState.RUNNING
    assert node.status("host").starts == 1


def test_a_gpu_that_hangs_while_it_is_listed_is_left_alone_too(node: Node) -> None:
    """A call that names its device is charged to it even before a round: the next start works without it."""
    node.machine.hang(node.calls.name, gpu=SLOT)
    for wait in (0.0, 1.0):
        node.clock.advance(wait)
        node.fall(node.calls.name, seconds=60.0)
    assert node.round(2.0) == dict.fromkeys(node.gpus - {node.wedged}, "ok")
    assert node.status().state is ReaderState.RUNNING
    assert node.status().quarantined == (node.machine.pci(SLOT),)


def test_a_library_that_never_starts_leaves_the_host_measured(node: Node) -> None:
    """A hang before any device is known is told with its call; the reader is tried again, and then answers."""
    for call in node.calls.start:
        node.machine.hang(call)
    node.until(lambda: any(node.calls.start[0] in record.detail for record in node.supervisor.records))
    pass_time(node.clock, node.supervisor, node.until, 60.0)
    node.until(lambda: node.status().state is ReaderState.HUNG and node.status().pid is None)
    assert node.calls.start[0] in node.status().detail
    assert node.status("host").state is ReaderState.RUNNING
    node.machine.clear()
    assert node.round(1.0) == node.all_ok()


def test_an_abort_in_the_library_leaves_the_host_measured(node: Node) -> None:
    """A crash of the driver's library is told with signal and call, and the reader comes back."""
    node.round()
    for call in node.calls.power:
        node.machine.crash(call, gpu=0)
    node.clock.advance(INTERVAL)
    node.until(lambda: node.status().state is ReaderState.CRASHED and node.status().pid is None)
    assert any(f"was killed by SIGABRT in: {call}" in node.status().detail for call in node.calls.power)
    node.machine.clear()
    assert node.round(1.0) == node.all_ok()
    assert node.status("host").starts == 1


def test_a_call_whose_length_users_decide_is_no_hang_of_the_driver(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """AMD SMI reads every descriptor of every process on a board: a job with 500,000 of them is no broken driver."""
    node = Node(tmp_path, request.getfixturevalue("fake_amdsmi"))
    call = "amdsmi_get_gpu_process_list"
    node.round()
    node.machine.hang(call, gpu=SLOT)
    node.clock.advance(INTERVAL)
    node.fall(call)
    assert "which files it has open, and a user may open hundreds of thousands" in node.status().detail
    assert (node.status().hangs, node.status().witnessed) == (1, 0)
    assert node.round(2.0) == node.all_ok()
    assert node.status().quarantined == ()
    node.close()


def test_a_call_that_users_brought_down_is_left_out_and_its_boards_are_read(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """AMD SMI ends over the name of a user's control group: what lists processes is unread, the rest of all is read."""
    node = Node(tmp_path, request.getfixturevalue("fake_amdsmi"))
    call = "amdsmi_get_gpu_process_list"
    assert node.round() == node.all_ok()
    node.machine.crash(call, gpu=SLOT)
    node.clock.advance(INTERVAL)
    node.until(lambda: node.status().state is ReaderState.CRASHED and node.status().pid is None)
    assert node.round(1.0) == node.all_ok()
    for _ in range(4):
        assert node.round(INTERVAL) == node.all_ok()
    assert (node.status().starts, node.status().crashes, node.status().quarantined) == (2, 1, ())
    last = next(sample for sample in reversed(node.samples) if (sample.device, sample.group) == (node.wedged, "fast"))
    unread = {reading.quantity for reading in last.readings if "ended the collector in this call" in reading.detail}
    assert unread == {"compute_processes", "compute_process_ids"}
    node.machine.clear(f"abort.{call}.{SLOT}")
    node.clock.advance(LEFT_OUT_SECONDS)
    node.until(lambda: node.status().starts == 3 and node.supervisor.settled)
    assert node.round(INTERVAL) == node.all_ok()
    last = next(sample for sample in reversed(node.samples) if (sample.device, sample.group) == (node.wedged, "fast"))
    assert {reading.value for reading in last.readings if reading.quantity == "compute_processes"} == {0}
    node.close()


def test_a_reader_that_leaves_its_only_board_alone_answers_and_tries_it_again(node: Node) -> None:
    """It lists no board because it was told not to touch the one: that is no word of the driver, and ends."""
    for slot in set(range(8)) - {SLOT}:
        node.machine.vanish(slot)
    node.round()
    for call in node.calls.heat:
        node.machine.hang(call, gpu=SLOT)
    node.clock.advance(INTERVAL)
    for _ in range(2):
        node.fall("emp")
        node.clock.advance(1.0)
    node.until(lambda: node.status().state is ReaderState.FAILED or node.supervisor.settled)
    assert node.status().state is ReaderState.RUNNING
    for _ in range(2):
        assert node.round(INTERVAL) == {node.wedged: "hung"}
        assert (node.status().state, node.status().quarantined) == (ReaderState.RUNNING, (node.wedged,))
        assert (node.status().failure, node.status().refusals) == (None, 0)
    for call in node.calls.heat:
        node.machine.clear(f"hang.{call}.{SLOT}")
    node.clock.advance(2 * INTERVAL)
    node.until(lambda: not node.status().quarantined and node.supervisor.settled)
    assert node.round(INTERVAL) == {node.wedged: "ok"}


def test_a_lost_gpu_fails_alone_and_the_reader_goes_on(node: Node) -> None:
    """A GPU that fell off the bus is lost; nothing is restarted for it."""
    node.round()
    node.machine.fail_device(5)
    assert node.round(INTERVAL) == node.all_ok() | {node.machine.uuid(5): "lost"}
    assert (node.status().state, node.status().starts) == (ReaderState.RUNNING, 1)


def test_an_xid_arrives_between_rounds(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    """An event is told without waiting for the next round."""
    node = Node(tmp_path, fake_nvml)
    node.round()
    fake_nvml.xid(2, 79)
    node.until(lambda: bool(node.events))
    assert (node.events[0].code, node.events[0].device) == ("nvidia.xid.79", fake_nvml.uuid(2))
    assert node.events[0].stamp_us is not None  # the log may tell it again
    node.close()


def test_a_crash_in_a_call_that_names_no_device_is_charged_to_none(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    """Events are asked for between two devices: the one that is read next has nothing to do with it."""
    node = Node(tmp_path, fake_nvml)
    node.round()
    fake_nvml.crash("nvmlEventSetWait_v2")
    for crashes in (1, 2):
        node.clock.advance(INTERVAL)
        node.until(lambda: node.status().crashes == crashes and node.status().pid is None)  # noqa: B023
        assert "was killed by SIGABRT in: nvmlEventSetWait_v2" in node.status().detail
        assert (node.status().witnessed, node.status().blamed, node.status().quarantined) == (crashes, {}, ())
    node.close()


@pytest.mark.parametrize(
    ("vendor", "library"), [(FakeNvml, "libnvidia-ml.so.1"), (FakeAmdSmi, "lib/libamd_smi.so")], ids=("nvidia", "amd")
)
def test_a_node_without_the_library_is_absent(tmp_path: Path, vendor: type[FakeMachine], library: str) -> None:
    """Where a vendor's library cannot be loaded its reader is absent with its reason, and the host is read."""
    broken = tmp_path / "libraries" / library
    broken.parent.mkdir(parents=True)
    broken.write_text("no library at all")
    node = Node(tmp_path, vendor(tmp_path / "scenario", broken))
    node.round()
    assert node.status().state is ReaderState.ABSENT
    assert node.status().failure is not None
    assert node.status().looked == node.clock.instant()
    assert node.status("host").state is ReaderState.RUNNING
    node.close()
