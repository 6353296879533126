"""Boards of the world through the real reader and the engine: healthy ones are ok, and what is odd is never green."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.also_found import with_also_found
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi
from fakes.clocks import SteppedClock
from fakes.host_tree import write_tree
from fakes.machine import FakeMachine
from fakes.nvml.scenario import FakeNvml, NvmlReturn
from fakes.nvsmi import scenario
from fakes.reader import ReaderProcess

from nodevet.agent.once.run import impatient, look_until_settled
from nodevet.checks.backends.nvidia.items import fast_items, slow_items
from nodevet.checks.backends.nvidia.nvml import Call, Field
from nodevet.checks.backends.pci import pci_accelerators
from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.model import AgentInfo, Outcome, ReaderState, ReaderStatus, Snapshot, State
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover

NOT_SUPPORTED = NvmlReturn.NOT_SUPPORTED
Said = tuple[State, set[str]]
Values = dict[str, float | str]
FEW_LINKS: Values = {"links": 6, "link_state": 0, "link_remote_type": 1, "link_version": 2, "fabric_state": 0}


class Node:
    """The engine of a one-shot before a real reader of a fake machine; a second passes between two looks."""

    def __init__(self, machine: FakeMachine, reader: ReaderProcess) -> None:
        """Begin with nothing known."""
        self.machine, self.reader = machine, reader
        self.clock = SteppedClock()
        configured = tuple(impatient(ConfiguredCheck(check, check.policy())) for check in discover())
        self.engine = Engine(configured, node="node", clock=self.clock.instant)

    def settled(self, change: Callable[[int], object] = lambda _look: None) -> Said:
        """Return what a one-shot says; *change* is told the number of each look before it."""
        looks = iter(range(100))

        def take() -> Snapshot:
            change(next(looks))
            return self.look()

        return said(look_until_settled(take, self.clock.advance))

    def look(self, *groups: str) -> Snapshot:
        """Read *groups* (both) once, and judge."""
        for group in groups or ("slow", "fast"):
            samples = self.reader.round(group)
            self.engine.take_devices(self.machine.backend, self.reader.devices)
            for sample in samples.values():
                self.engine.take_sample(msgspec.structs.replace(sample, time=self.clock.instant()))
        now = self.clock.instant()
        self.engine.take_readers(
            [ReaderStatus(backend=self.machine.backend, state=ReaderState.RUNNING, last_round=now)]
        )
        return self.engine.evaluate(AgentInfo(version="0", started=now, interval_seconds=1)).snapshot


def said(snapshot: Snapshot) -> Said:
    """Return the verdict, and the codes of all that counts."""
    bad = {f.code for f in snapshot.findings if f.outcome in (Outcome.WARN, Outcome.FAIL) or f.required}
    return snapshot.verdict.state, bad


@pytest.fixture
def node(fake_nvml: FakeNvml) -> Iterator[Callable[..., Node]]:
    """Return a function that makes the node of a machine with such values and functions that are not supported."""
    readers: list[ReaderProcess] = []

    def make(values: Values, *lacking: str) -> Node:
        fake_nvml.update(values)
        for call in lacking:
            fake_nvml.fail(call, NOT_SUPPORTED)
        readers.append(ReaderProcess(fake_nvml.environment))
        readers[-1].ready()
        return Node(fake_nvml, readers[-1])

    yield make
    for reader in readers:
        reader.__exit__()


KNOWN_FAULTS = {
    "nvsmi_query-002": (State.FAILED, {"throttle.power_brake", "throttle.hardware_slowdown"}),
    "nvsmi_query-003": (State.FAILED, {"throttle.power_brake", "throttle.software_thermal"}),
    "nvsmi_xml-002": (State.DEGRADED, {"pcie.width"}),  # a virtual machine has no more: the site says so as its lanes
    "nvsmi_xml-010": (State.DEGRADED, {"power.limit_lowered"}),  # by its owner
    "nvsmi_xml-012": (State.DEGRADED, {"pcie.width"}),
}
CUT_OFF = {"nvsmi_query-004"}


@pytest.mark.captures
@pytest.mark.parametrize("kind", ["nvsmi_query", "nvsmi_xml"])
def test_boards_of_real_machines_are_what_they_are(
    captures: Path, kind: str, fake_nvml: FakeNvml, node: Callable[..., Node]
) -> None:
    """MIG, pass-through, graphics boards, drivers from 460 to 595: healthy ones are ok, the others say why."""
    rows = [json.loads(line) for line in (captures / f"{kind}.jsonl").read_text().splitlines()]
    for row in rows:
        if row["id"] in CUT_OFF:
            continue
        fake_nvml.clear()
        made = node(scenario(row["text"]))
        assert made.reader.devices
        assert made.settled() == KNOWN_FAULTS.get(row["id"], (State.OK, set())), row["id"]


def test_split_board_owes_no_row_repairs(node: Callable[..., Node]) -> None:
    """While MIG is on NVML does not tell of remapped rows; without MIG their absence is told."""
    lacking = [f"{call}.3" for call in ("field.144", "field.145", "nvmlDeviceGetRemappedRows")]
    made = node({"mig_mode.3": 1, "link_state.3": 0}, *lacking)
    assert made.settled() == (State.OK, set())
    made.machine.set("mig_mode.3", 0).set("link_state.3", 1)
    assert Node(made.machine, made.reader).settled() == (State.UNKNOWN, {"reading.row_remap_failed"})


ANSWERED = {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates"}


@pytest.mark.parametrize("refusal", [NvmlReturn.NOT_SUPPORTED, NvmlReturn.NO_PERMISSION])
@pytest.mark.parametrize("model", ["NVIDIA H100XM-80C", "GRID A100X-40C", "NVIDIA B200X-45C", "NVIDIA L40S-48Q"])
def test_share_of_a_board_in_a_virtual_machine_owes_nothing(
    node: Callable[..., Node], refusal: NvmlReturn, model: str
) -> None:
    """It tells its load and memory, and its host all else; a whole board that tells no more is unknown."""
    asked = [source for item in (*fast_items(18, "13.590"), *slow_items(18)) for source in item.sources]
    names = {f"field.{one.identifier}" if isinstance(one, Field) else one.symbol for one in asked} - ANSWERED
    made = node({"name": model, "virtualization_mode": 2, "links": 0})
    for name in names:
        made.machine.fail(name, refusal)
    assert Node(made.machine, made.reader).settled() == (State.OK, set())
    lacking = [f for f in made.look().findings if "the host of the virtual machine" in f.message]
    assert lacking
    assert {f.outcome for f in lacking} == {Outcome.SKIPPED}
    for name in ANSWERED:
        made.machine.fail(name, refusal)
    assert Node(made.machine, made.reader).settled()[0] is State.UNKNOWN  # it tells nothing at all
    made.machine.clear(*(f"error.{name}" for name in ANSWERED)).set("virtualization_mode", 1)
    with ReaderProcess(made.machine.environment) as reader:
        reader.ready()
        assert Node(made.machine, reader).settled()[0] is State.UNKNOWN


def test_argument_that_a_driver_refuses_is_no_lost_board(node: Callable[..., Node]) -> None:
    """A call may refuse the structure that it is given: a driver that did lost each board, and would close a fleet."""
    asked = [source for item in (*fast_items(18, "13.590"), *slow_items(18)) for source in item.sources]
    calls = {one.symbol for one in asked if isinstance(one, Call) and not one.arguments}
    made = node({})
    for call in calls:
        made.machine.fail(call, NvmlReturn.INVALID_ARGUMENT)
    made.reader.enumerate_again()
    assert made.settled() == (State.OK, set())
    made.reader.enumerate_again()
    made.machine.fail("nvmlDeviceGetIndex", NvmlReturn.INVALID_ARGUMENT, 3)
    assert made.settled() == (State.FAILED, {"device.lost"})


@pytest.mark.parametrize("code", [NvmlReturn.NOT_SUPPORTED, NvmlReturn.DEPRECATED])
def test_what_a_younger_driver_gave_up_has_another_source(node: Callable[..., Node], code: NvmlReturn) -> None:
    """Drivers say so of single queries (570 of whether a reset is required, 595 of the power state)."""
    made = node({})
    for field in (12, 145, 165, 185):
        made.machine.fail(f"field.{field}", code)
    made.reader.enumerate_again()
    assert made.settled() == (State.OK, set())


def test_board_that_is_split_between_two_slow_rounds_is_not_dark(node: Callable[..., Node]) -> None:
    """Its links read as down from one fast round to the next: whether it is split is read with them."""
    made = node({})
    assert made.settled() == (State.OK, set())
    made.machine.update({"mig_mode.3": 1, "link_state.3": 0})
    made.clock.advance(1.0)
    assert said(made.look("fast")) == (State.OK, set())


@pytest.mark.parametrize(
    ("values", "state", "codes"),
    [
        ({"link_state.0.0": 1, "link_state.0.2": 1, "link_state.1.1": 1, "link_state.1.2": 1}, State.OK, set()),
        ({"link_state.0.0": 1, "link_state.0.2": 1, "link_state.1.2": 1}, State.DEGRADED, {"link.fewer"}),
        ({}, State.FAILED, {"link.all_down"}),
    ],
    ids=["wired by two links", "one of two is down", "all down"],
)
def test_boards_that_are_wired_to_each_other_have_as_many_links_as_their_siblings(
    node: Callable[..., Node], values: Values, state: State, codes: set[str]
) -> None:
    """Two V100-SXM2 are wired by two of their six links in nodes that are healthy, and in virtual machines by one."""
    made = node({"name": "Tesla V100-SXM2-16GB", "count": 2, "architecture": 5, **FEW_LINKS, **values})
    assert made.settled() == (state, codes)


@pytest.mark.parametrize("model", ["NVIDIA H800 NVL", "NVIDIA H100 80GB HBM2e", "NVIDIA H100 NVL", "NVIDIA H100 PCIe"])
def test_hopper_boards_in_slots_need_no_bridge(node: Callable[..., Node], model: str) -> None:
    """Their ports answer, and lead nowhere."""
    made = node({"name": model, "links": 12, "link_state": 0, "fabric_state": 0})
    assert made.settled() == (State.OK, set())


@pytest.mark.parametrize("model", ["NVIDIA H100 NVL", "NVIDIA A100-PCIE-40GB"])
def test_third_board_beside_a_bridged_pair_may_stand_alone(node: Callable[..., Node], model: str) -> None:
    """Bridges join pairs, and a node of three has one board without; of the pair each link counts."""
    pair: Values = {f"link_state.{slot}.{port}": 1 for slot in (0, 1) for port in range(12)}
    made = node({"name": model, "count": 3, **FEW_LINKS, "links": 12, **pair})
    assert made.settled() == (State.OK, set())
    made.machine.set("link_state.0.7", 0)
    assert made.settled() == (State.FAILED, {"link.down"})


@pytest.mark.parametrize("bridges", [1, 2])
@pytest.mark.parametrize("model", ["NVIDIA A100 80GB PCIe", "NVIDIA H100 NVL"])
def test_pair_with_fewer_bridges_than_fit_is_ok_until_one_of_their_links_is_down(
    node: Callable[..., Node], model: str, bridges: int
) -> None:
    """Ports without a bridge were never up; a part of a bridge is down by itself, seen up before or not."""
    pair: Values = {f"link_state.{slot}.{port}": 1 for slot in (0, 1) for port in range(4 * bridges)}
    made = node({"name": model, "count": 2, **FEW_LINKS, "links": 12, **pair})
    assert made.settled() == (State.OK, set())
    made.machine.set("link_state.0.2", 0)
    assert made.settled() == (State.FAILED, {"link.down"})
    told = [f for f in made.look().findings if f.code == "link.down" and f.outcome is Outcome.FAIL]
    assert [f.part.index for f in told] == [2]
    assert Node(made.machine, made.reader).settled() == (State.FAILED, {"link.down"})


# (what the driver answers, the verdict, what counts)
UNKNOWN_WORDS: list[tuple[Values, State, set[str]]] = [
    ({"recovery_action.3": 8}, State.DEGRADED, {"memory.recovery_action"}),
    ({"recovery_action.3": 0x7FFFFFF}, State.OK, set()),  # no answer at all: this reading alone
    ({"link_state.3.5": 3}, State.OK, set()),
    ({"link_state.3": 3}, State.UNKNOWN, {"reading.link_active"}),
]


@pytest.mark.parametrize(("values", "state", "codes"), UNKNOWN_WORDS, ids=str)
def test_words_of_a_driver_of_tomorrow_blame_nobody_and_are_never_green(
    node: Callable[..., Node], values: Values, state: State, codes: set[str]
) -> None:
    """A request that no table knows is one; a state that no table knows is no broken link."""
    assert node(values).settled() == (state, codes)


def test_state_of_a_link_is_never_guessed() -> None:
    """Up, down, and what is neither."""
    convert = next(item.convert for item in fast_items(1, "12.580") if item.quantity == "link_active")
    assert [convert(state) for state in (0, 1, 2)] == [False, True, True]
    assert convert(3) not in (True, False)


def test_fabric_state_that_no_table_knows_is_told(node: Callable[..., Node]) -> None:
    """It is not taken for a board outside any fabric."""
    made = node({"fabric_state.3": 7})
    made.settled()
    (told,) = (f for f in made.look().findings if f.code == "fabric.state" and f.outcome is Outcome.UNMEASURED)
    assert "state 7" in told.message


HEAT_APART = [f"field.{number}" for number in (251, 252, 269, 270)]


@pytest.mark.parametrize(
    ("mask", "code", "state"),
    [
        (0x20, "throttle.thermal", State.DEGRADED),
        (0x00, "throttle.thermal", State.DEGRADED),
        (0x40, "throttle.hardware_thermal", State.FAILED),
    ],
)
def test_heat_that_is_counted_in_one_sum_is_told_once(
    node: Callable[..., Node], mask: int, code: str, state: State
) -> None:
    """Older drivers count no reason apart: the sum or the hardware's flag tells, never two for one cause."""
    made = node({"event_reasons.3": mask}, *HEAT_APART)

    def heat(look: int) -> object:
        return made.machine.set("violation_thermal_nanoseconds.3", look * 300_000_000)

    assert made.settled(heat) == (state, {code})


def test_sum_of_heat_that_stands_still_hides_no_flag(node: Callable[..., Node]) -> None:
    """Drivers keep older counters that count no more."""
    assert node({"event_reasons.3": 0x20}, *HEAT_APART).settled() == (State.DEGRADED, {"throttle.software_thermal"})


LIMITS_OF_HEAT = (
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetMarginTemperature",
    *(f"field.{number}" for number in range(193, 197)),
)
"""All by which a board tells how hot it may be."""
HOT_MEMORY: dict[str, tuple[int, State, set[str]]] = {
    "memory at 94 celsius": (94, State.OK, set()),
    "memory at 95 celsius": (95, State.DEGRADED, {"temperature.high"}),
    "memory at 104 celsius": (104, State.DEGRADED, {"temperature.high"}),
    "memory at 105 celsius": (105, State.FAILED, {"temperature.high", "temperature.slowdown"}),
}


@pytest.mark.parametrize("fault", HOT_MEMORY)
def test_memory_of_a_board_without_any_limit_is_judged_by_the_table(node: Callable[..., Node], fault: str) -> None:
    """NVML tells neither a margin nor a threshold: the limits of the table, at each bound and one below."""
    celsius, state, codes = HOT_MEMORY[fault]
    made = node({"memory_temperature.3": celsius}, *LIMITS_OF_HEAT)
    assert made.settled() == with_also_found(fault, state, codes)


@pytest.mark.parametrize("fault", HOT_MEMORY)
def test_memory_of_an_amd_board_without_any_limit_is_judged_by_the_table(fake_amdsmi: FakeAmdSmi, fault: str) -> None:
    """The same where AMD SMI tells temperatures by its metrics alone, and no limit."""
    celsius, state, codes = HOT_MEMORY[fault]
    fake_amdsmi.set("memory_temperature.3", celsius).fail("amdsmi_get_temp_metric", AmdSmiStatus.NOT_SUPPORTED)
    with amd_reader(fake_amdsmi) as reader:
        assert Node(fake_amdsmi, reader).settled() == with_also_found(fault, state, codes)


@pytest.mark.parametrize("answer", [0, 300, 65535])
def test_amd_board_whose_chip_tells_no_heat_is_unknown(fake_amdsmi: FakeAmdSmi, answer: int) -> None:
    """AMD SMI tells no core: a hot spot that is dead for ever was ok beside the memory. The edge stands in for it."""
    fake_amdsmi.set("temperature.3", answer)
    with amd_reader(fake_amdsmi) as reader:
        made = Node(fake_amdsmi, reader)
        assert made.settled() == (State.UNKNOWN, {"reading.temperature_celsius"})
    fake_amdsmi.set("edge_temperature.3", 45)
    with amd_reader(fake_amdsmi) as reader:
        assert Node(fake_amdsmi, reader).settled() == (State.OK, set())
    fake_amdsmi.update({"edge_temperature.3": -1, "temperature.3": 40, "memory_temperature.3": 0})
    with amd_reader(fake_amdsmi) as reader:
        assert Node(fake_amdsmi, reader).settled() == (State.OK, set())


def amd_reader(machine: FakeAmdSmi) -> ReaderProcess:
    """Return a reader of *machine* below the tree that its kernel shows."""
    root = write_tree(machine.path.parent / "root", machine.host_files())
    reader = ReaderProcess(machine.environment, "amd", root=str(root))
    reader.ready()
    return reader


NAMES = ("device_uuid", "asic_info", "board_info", "enumeration_info")
"""Of what AMD SMI tells, all that says who a board is."""


@pytest.mark.parametrize("is_silent", [True, False])
def test_amd_board_that_answers_by_its_page_alone_after_a_reboot_is_one_device(
    fake_amdsmi: FakeAmdSmi, is_silent: bool
) -> None:
    """It answers nothing, or all but its name: the bus has its address, and memory its name and serial."""
    with amd_reader(fake_amdsmi) as reader:
        before = Node(fake_amdsmi, reader)
        assert before.settled() == (State.OK, set())
        known = {device.id: device for device in before.look().devices}
    if is_silent:
        fake_amdsmi.fail_device(3)
    for call in NAMES:
        fake_amdsmi.fail(f"amdsmi_get_gpu_{call}", AmdSmiStatus.API_FAILED, 3)
    with amd_reader(fake_amdsmi) as reader:
        after = Node(fake_amdsmi, reader)
        after.clock.reboot("boot-2", 60)
        after.engine.restore(before.engine.memory())
        boards = pci_accelerators(Tree(str(fake_amdsmi.path.parent / "root"), reader.progress))
        after.engine.take_devices("host", boards)
        snapshot = after.look()
    name = fake_amdsmi.uuid(3)
    told = {device.id: device for device in snapshot.devices}
    assert told.keys() == known.keys()
    assert (told[name].serial, told[name].pci) == (known[name].serial, fake_amdsmi.pci(3))
    lost = [(name, "device.lost")] if is_silent else []
    assert [(episode.key.device, episode.key.code) for episode in snapshot.episodes] == lost
    assert snapshot.device_verdicts[name].state is (State.FAILED if is_silent else State.OK)


GUEST, PASSTHROUGH = 3, 4
HOSTS_ALONE = (
    "temp_metric", "clock_info", "gpu_xgmi_link_status", "gpu_ecc_count", "gpu_ecc_enabled", "power_cap_info",
    "power_info", "gpu_metrics_info", "gpu_bad_page_info", "energy_count",
)  # fmt: skip
"""What AMD SMI does not tell a virtual machine (amdsmi.h: "not supported on virtual machine guest"), or not always."""


@pytest.mark.parametrize("refusal", [AmdSmiStatus.NOT_SUPPORTED, AmdSmiStatus.NO_PERM])
@pytest.mark.parametrize(
    ("model", "mode"),
    [("AMD Instinct MI300X VF", GUEST), ("AMD Instinct MI210", GUEST), ("AMD Instinct MI300X VF", None)],
)
def test_amd_board_that_its_host_shares_owes_nothing(
    fake_amdsmi: FakeAmdSmi, refusal: AmdSmiStatus, model: str, mode: int | None
) -> None:
    """It tells its load and memory, and its host all else; one that is handed on whole owes what any board does."""
    zero = dict.fromkeys(("threshold_slowdown", "threshold_shutdown", "threshold_memory_slowdown"), 0)
    fake_amdsmi.update({"name": model, **zero})
    for call in HOSTS_ALONE:
        fake_amdsmi.fail(f"amdsmi_get_{call}", refusal)
    if mode is None:  # releases before 6.4 do not tell
        fake_amdsmi.fail("amdsmi_get_gpu_virtualization_mode", AmdSmiStatus.NOT_SUPPORTED)
    else:
        fake_amdsmi.set("virtualization_mode", mode)
    with amd_reader(fake_amdsmi) as reader:
        made = Node(fake_amdsmi, reader)
        assert made.settled() == (State.OK, set())
        lacking = [f for f in made.look().findings if "the host of the virtual machine" in f.message]
        assert {f.outcome for f in lacking} == {Outcome.SKIPPED}
    fake_amdsmi.update({"name": "AMD Instinct MI300X", "virtualization_mode": PASSTHROUGH})
    with amd_reader(fake_amdsmi) as reader:
        assert Node(fake_amdsmi, reader).settled()[0] is State.UNKNOWN


@pytest.mark.parametrize("answer", ["failed", "none"])
def test_amd_board_whose_serial_is_not_told_for_once_was_not_replaced(fake_amdsmi: FakeAmdSmi, answer: str) -> None:
    """Its chip has a number too: by that an uncorrected error was cleared, as if another board sat there."""
    with amd_reader(fake_amdsmi) as reader:
        before = Node(fake_amdsmi, reader)
        assert before.settled() == (State.OK, set())
        fake_amdsmi.set("ecc_uncorrected_volatile_dram.3", 5)
        before.clock.advance(1.0)
        (fault,) = before.look().episodes
    fake_amdsmi.clear("ecc_uncorrected_volatile_dram.3")
    if answer == "failed":
        fake_amdsmi.fail("amdsmi_get_gpu_board_info", AmdSmiStatus.API_FAILED, 3)
    else:
        fake_amdsmi.set("serial.3", "N/A")
    with amd_reader(fake_amdsmi) as reader:
        after = Node(fake_amdsmi, reader)
        after.clock.reboot("boot-2", 60)
        after.engine.restore(before.engine.memory())
        snapshot = after.look()
    assert [(episode.key, episode.serial) for episode in snapshot.episodes] == [(fault.key, fault.serial)]
    told = next(device for device in snapshot.devices if device.id == fault.key.device)
    assert answer == "none" or told.serial == fault.serial
