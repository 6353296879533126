"""Scenario to timeline of verdicts: real wrappers on fake drivers, real engine, and a clock that the test moves.

One set of faults stands for every vendor that can have it; what only one vendor can have stands in its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from fakes.also_found import also_found, with_also_found
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi
from fakes.machine import FakeMachine
from fakes.nvml.scenario import FakeNvml, NvmlReturn
from fakes.rig import Rig
from fakes.twins import Restarted

from nodevet.checks.core.model import (
    WHOLE,
    Action,
    Clearing,
    DeviceKind,
    Episode,
    EpisodeState,
    FaultClass,
    Key,
    Metric,
    Outcome,
    Part,
    PartKind,
    Result,
    ResultState,
    Snapshot,
    State,
)

SLOT = 3
HEALTHY_LOOKS = 2
"""Before a fault begins, so that counters have a rate."""
LONG_ENOUGH = 5
"""Intervals in which a finding that needs 3 of 5 looks must have been confirmed."""

Plant = Callable[[Rig, int], object]


class Fault(NamedTuple):
    """A fault of the machine in slot 3, and what must be said of it."""

    name: str
    plant: Plant
    code: str
    verdict: State
    action: Action
    looks: int
    part: Part
    fault_class: FaultClass
    heal: Callable[[FakeMachine], object]


class Case(NamedTuple):
    """A fault of the machine of one vendor."""

    vendor: type[FakeMachine]
    fault: Fault

    @property
    def key(self) -> Key:
        """The key of the episode that the fault must open."""
        return Key(self.fault.code, self.vendor.uuid(SLOT), self.fault.part)

    @property
    def name(self) -> str:
        """The name of the fault among those of all vendors."""
        return f"{self.vendor.backend}: {self.fault.name}"


def everything_again(machine: FakeMachine) -> object:
    """Make the machine what it was."""
    return machine.clear()


def failed(
    name: str,
    plant: Plant,
    code: str,
    action: Action,
    *,
    looks: int = 1,
    part: Part = WHOLE,
    fault_class: FaultClass = FaultClass.HARDWARE,
    verdict: State = State.FAILED,
    heal: Callable[[FakeMachine], object] = everything_again,
) -> Fault:
    """Return a fault that must fail its device after *looks* intervals."""
    return Fault(name, plant, code, verdict, action, looks, part, fault_class, heal)


degraded = functools.partial(failed, verdict=State.DEGRADED)
measured = functools.partial(failed, looks=3)
measured_degraded = functools.partial(failed, looks=3, verdict=State.DEGRADED)


def everywhere(key: str, value: float) -> Plant:
    """Return a change of *key* of every slot, so that no slot differs from its siblings."""
    return lambda rig, _turn: rig.machine.set(key, value)


def steady(key: str, value: float) -> Plant:
    """Return a fault that sets *key* of slot 3, or of a part of it (``link_state/5``)."""
    return lambda rig, _turn: rig.machine.set(_of_slot(key), value)


def growing(key: str, step: int) -> Plant:
    """Return a fault that lets the counter *key* grow by *step* each interval."""
    return lambda rig, turn: rig.machine.set(_of_slot(key), turn * step)


def xid(code: int) -> Plant:
    """Return an XID that the driver reports once."""

    def plant(rig: Rig, turn: int) -> None:
        if turn == 1:
            machine = rig.machine
            assert isinstance(machine, FakeNvml)
            machine.xid(SLOT, code)
            rig.event()

    return plant


def kernel(line: str) -> Plant:
    """Return a line of the kernel log that comes once, with the address of slot 3 for ``PCI``."""

    def plant(rig: Rig, turn: int) -> None:
        if turn == 1:
            rig.kernel(line.replace("PCI", rig.machine.pci(SLOT)))

    return plant


def kernel_counts(name: str, total: str) -> Plant:
    """Return errors that the kernel counts on the PCIe link of slot 3, one more in each interval."""
    return lambda rig, turn: rig.show(SLOT, name, f"{total} {turn}\n")


def slow_under_load(rig: Rig, _turn: int) -> None:
    """Let the bus run slower than it could while the device works; at idle that is how boards save power."""
    rig.machine.set(f"pcie_generation.{SLOT}", 3).set(f"utilization_percent.{SLOT}", 95)


def _of_slot(key: str) -> str:
    name, _, part = key.partition("/")
    return f"{name}.{SLOT}.{part}" if part else f"{name}.{SLOT}"


A_FIFTH = 2_000_000_000
"""Nanoseconds of an interval of ten seconds."""

CORE, HOTSPOT, MEMORY = (Part(PartKind.SENSOR, name) for name in ("core", "hotspot", "memory"))
DRAM, PCIE, LINK = Part(PartKind.MEMORY_BLOCK, "dram"), Part(PartKind.PCIE), Part(PartKind.LINK, "", 5)
GRAPHICS = Part(PartKind.MEMORY_BLOCK, "vendor:gfx")
POWER = Part(PartKind.POWER_SCOPE, "device")
SITE, UNKNOWN = FaultClass.CONFIGURATION, FaultClass.UNKNOWN
INSPECT, REBOOT, RESET, WATCH = Action.INSPECT, Action.REBOOT, Action.RESET_DEVICE, Action.WATCH
DRAIN, REPLACE, RESTART = Action.DRAIN_RESET, Action.REPLACE, Action.RESTART_APP


def held(reason: str) -> Part:
    """Return the part that stands for a throttle reason."""
    return Part(PartKind.REASON, reason)


def violation(reason: str) -> Plant:
    """Return a fault that holds the clock down for a fifth of the time."""
    return growing(f"violation_{reason}_nanoseconds", A_FIFTH)


# fmt: off
EVERY_VENDOR = (
    measured("hot memory", steady("memory_temperature", 105), "temperature.slowdown", INSPECT, part=MEMORY),
    failed("uncorrected memory error", steady("ecc_uncorrected_volatile_dram", 1), "memory.uncorrected", DRAIN,
           part=DRAM),
    measured_degraded("many corrected memory errors", growing("ecc_corrected_volatile_dram", 100),
                      "memory.corrected_rate", WATCH, part=DRAM),
    degraded("error correction off", steady("ecc_mode", 0), "memory.ecc_disabled", INSPECT, fault_class=SITE),
    degraded("power limit lowered", steady("power_limit_milliwatts", 400000), "power.limit_lowered", WATCH, part=POWER,
             fault_class=SITE),
    measured_degraded("power beyond its limit", steady("power_milliwatts", 900000), "power.over_limit", INSPECT,
                      part=POWER),
    measured_degraded("narrow PCIe", steady("pcie_width", 8), "pcie.width", INSPECT, part=PCIE),
    measured_degraded("slow PCIe under load", slow_under_load, "pcie.generation", INSPECT, part=PCIE,
                      heal=lambda machine: machine.clear(f"pcie_generation.{SLOT}")),
    measured_degraded("PCIe replays", growing("pcie_replays", 500), "pcie.replay_rate", INSPECT, part=PCIE),
    failed("one link down", steady("link_state/5", 0), "link.down", DRAIN, part=LINK),
    failed("fell off the bus", lambda rig, _turn: rig.machine.fail_device(SLOT), "device.lost", REBOOT),
    failed("vanished", lambda rig, _turn: rig.machine.vanish(SLOT), "device.missing", REBOOT),
)

NVIDIA_ONLY = (
    measured("beyond its margin", steady("temperature_margin", -2), "temperature.slowdown", INSPECT, part=CORE),
    measured_degraded("near its margin", steady("temperature_margin", 3), "temperature.high", INSPECT, part=CORE),
    measured("hardware thermal slowdown", violation("hardware_thermal"), "throttle.hardware_thermal", INSPECT,
             part=held("hardware_thermal")),
    measured("power brake", violation("power_brake"), "throttle.power_brake", INSPECT, part=held("power_brake")),
    measured("hardware slowdown flag", steady("event_reasons", 0x8), "throttle.hardware_slowdown", INSPECT,
             part=held("hardware_slowdown")),
    measured_degraded("software thermal slowdown", violation("software_thermal"), "throttle.software_thermal", INSPECT,
                      part=held("software_thermal")),
    failed("driver refuses it until it is reset",
           lambda rig, _turn: rig.machine.fail_device(SLOT, NvmlReturn.RESET_REQUIRED), "device.reset_required", DRAIN),
    failed("row remap failed", steady("remap_failed", 1), "memory.row_remap_failed", REPLACE),
    degraded("row remap pending", steady("remap_pending", 1), "memory.row_remap_pending", RESET),
    failed("SRAM over its threshold", steady("sram_threshold_exceeded", 1), "memory.sram_threshold", REPLACE),
    failed("driver asks for a reset", steady("recovery_action", 1), "memory.recovery_action", RESET),
    failed("driver asks for a reboot", steady("recovery_action", 2), "memory.recovery_action", REBOOT),
    failed("fatal PCIe errors", growing("pcie_fatal_errors", 1), "pcie.fatal", REBOOT, part=PCIE),
    measured_degraded("link replays", growing("link_replay_errors/5", 7), "link.replay", INSPECT, part=LINK),
    measured_degraded("link recoveries", growing("link_recovery_errors/5", 2), "link.recovery", INSPECT, part=LINK),
    failed("fabric not joined", steady("fabric_state", 1), "fabric.state", INSPECT, fault_class=SITE),
    failed("XID 79", xid(79), "nvidia.xid.79", REBOOT),
    failed("XID 48", xid(48), "nvidia.xid.48", DRAIN),
    degraded("an XID that no table knows", xid(999), "nvidia.xid.999", INSPECT, fault_class=UNKNOWN),
)

AMD_ONLY = (
    measured("hotspot at its limit", steady("temperature", 100), "temperature.slowdown", INSPECT, part=HOTSPOT),
    measured_degraded("hotspot near its limit", steady("temperature", 96), "temperature.high", INSPECT, part=HOTSPOT),
    measured("PROCHOT", violation("processor_hot"), "throttle.processor_hot", INSPECT, part=held("processor_hot")),
    measured_degraded("socket held down by heat", violation("thermal"), "throttle.socket_thermal", INSPECT,
                      part=held("socket_thermal")),
    measured_degraded("held down by hot memory", violation("memory_thermal"), "throttle.memory_thermal", INSPECT,
                      part=held("memory_thermal")),
    measured_degraded("held down by hot regulators", violation("regulator_thermal"), "throttle.regulator_thermal",
                      INSPECT, part=held("regulator_thermal")),
    failed("uncorrected error of a block", steady("ecc_uncorrected_volatile_gfx", 1), "memory.uncorrected", DRAIN,
           part=GRAPHICS),
    degraded("deferred memory error", steady("ecc_deferred_volatile_dram", 1), "memory.deferred", RESET, part=DRAM),
    degraded("bad pages pending", steady("bad_pages_pending", 1), "memory.bad_pages_pending", RESET),
    failed("bad pages that stay in use", steady("bad_pages_unreservable", 1), "memory.bad_pages_unreservable", REPLACE),
    failed("as many bad pages as allowed", steady("bad_pages_reserved", 128), "memory.bad_pages_threshold", REPLACE),
    failed("fatal PCIe errors", kernel_counts("aer_dev_fatal", "TOTAL_ERR_FATAL"), "pcie.fatal", REBOOT, part=PCIE),
    failed("kernel: uncorrectable errors", kernel(
        "amdgpu PCI: amdgpu: 2 uncorrectable hardware errors detected in umc block"), "amd.ras_ue", DRAIN),
    degraded("kernel: deferred errors", kernel(
        "amdgpu PCI: amdgpu: 1 deferred hardware errors detected in umc block"), "amd.ras_de", DRAIN),
    failed("kernel: poison consumed", kernel(
        "amdgpu PCI: amdgpu: RAS poison consumption handling"), "amd.poison_consumed", DRAIN),
    failed("kernel: bad pages at the threshold", kernel(
        "amdgpu PCI: amdgpu: Saved bad pages 128 reaches threshold value 128"), "amd.bad_page_threshold", REPLACE),
    failed("kernel: reset failed", kernel(
        "amdgpu PCI: amdgpu: GPU reset(2) failed"), "amd.gpu_reset_failed", REBOOT),
    failed("kernel: lost from its bus", kernel("amdgpu PCI: amdgpu: device lost from bus!"), "amd.gpu_lost", REBOOT),
    degraded("kernel: ring timeout", kernel(
        "amdgpu PCI: amdgpu: ring sdma0 timeout, signaled seq=41, emitted seq=43"), "amd.ring_timeout", RESTART,
        fault_class=UNKNOWN),
)
# fmt: on

CASES = (
    *(Case(vendor, fault) for vendor in (FakeNvml, FakeAmdSmi) for fault in EVERY_VENDOR),
    *(Case(FakeNvml, fault) for fault in NVIDIA_ONLY),
    *(Case(FakeAmdSmi, fault) for fault in AMD_ONLY),
)


VENDORS = (FakeNvml, FakeAmdSmi)
FIXTURES = {FakeNvml: "fake_nvml", FakeAmdSmi: "fake_amdsmi"}

every_vendor = pytest.mark.parametrize("rig", VENDORS, ids=lambda vendor: vendor.backend, indirect=True)


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A healthy machine of the vendor that is asked for, looked at twice, so that counters have a rate."""
    with Rig(request.getfixturevalue(FIXTURES[request.param])) as running:
        running.look(HEALTHY_LOOKS)
        yield running


class Timeline(NamedTuple):
    """A case from a healthy machine to a healed one, as told by an agent and by one restarted after every look."""

    case: Case
    ill: tuple[Snapshot, ...]
    """After each look with the fault; the last but one is that in which it must be confirmed."""
    healed: tuple[Snapshot, ...]
    changes: tuple[Episode, ...]
    told: tuple[Snapshot, ...]
    restarted: tuple[Snapshot, ...]

    @property
    def opened(self) -> Snapshot:
        """The snapshot in which the fault must be open."""
        return self.ill[self.case.fault.looks - 1]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def timeline(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    fake_nvml_library: Path,
    fake_amdsmi_library: Path,
) -> Timeline:
    """Run a case once: two healthy looks, the fault in all looks that it needs and one more, and looks without it."""
    case: Case = request.param
    library = {FakeNvml: fake_nvml_library, FakeAmdSmi: fake_amdsmi_library}[case.vendor]
    machine = case.vendor(tmp_path_factory.mktemp("timeline") / "machine.scenario", library)
    told: list[tuple[Snapshot, Snapshot]] = []

    def kept(rig: Rig, snapshot: Snapshot) -> Snapshot:
        assert isinstance(rig.engine, Restarted)
        assert rig.engine.told is not None
        told.append(rig.engine.told)
        return snapshot

    with Rig(machine, engine=Restarted) as rig:
        for _ in range(HEALTHY_LOOKS):
            kept(rig, rig.look())
        ill = tuple(kept(rig, live(rig, case, turn, turn)) for turn in range(1, case.fault.looks + 2))
        case.fault.heal(machine)
        healed = tuple(kept(rig, rig.look()) for _ in range(LONG_ENOUGH + 1))
    never, always = zip(*told, strict=True)
    return Timeline(case, ill, healed, tuple(rig.changes), never, always)


def case_of(rig: Rig, code: str) -> Case:
    """Return the case of the rig's vendor that must open *code*."""
    return next(case for case in CASES if isinstance(rig.machine, case.vendor) and case.fault.code == code)


def episode(snapshot: Snapshot, case: Case) -> Episode | None:
    """Return the episode of *case*, or None."""
    return next((entry for entry in snapshot.episodes if entry.key == case.key), None)


def live(rig: Rig, case: Case, first: int, last: int) -> Snapshot:
    """Let the fault be there in its intervals *first* to *last*, and return the last snapshot."""
    assert rig.snapshot is not None
    for turn in range(first, last + 1):
        case.fault.plant(rig, turn)
        rig.look()
    return rig.snapshot


def device_of(rig: Rig) -> str:
    """Return the id of the device in slot 3."""
    return rig.machine.uuid(SLOT)


@every_vendor
def test_healthy_machine_is_ok(rig: Rig) -> None:
    """Eight healthy devices give ok, no episode, and nothing that was not measured."""
    snapshot = rig.look(LONG_ENOUGH)

    assert snapshot.verdict.state is State.OK
    assert snapshot.episodes == ()
    assert [finding.code for finding in snapshot.findings if finding.outcome is Outcome.UNMEASURED] == []
    assert {verdict.state for verdict in snapshot.device_verdicts.values()} == {State.OK}
    assert len(snapshot.device_verdicts) == 8


# fmt: off
HEALTHY = (
    ("held down at the power cap", violation("power")),
    ("slow PCIe at idle", steady("pcie_generation", 1)),
    ("a few PCIe replays", growing("pcie_replays", 3)),
    ("a few corrected memory errors", growing("ecc_corrected_volatile_dram", 5)),
    ("warm", everywhere("temperature", 83)),
    ("warm memory", everywhere("memory_temperature", 89)),
    ("at full load", steady("utilization_percent", 100)),
    ("at its power limit", steady("power_milliwatts", 720000)),
    ("rows that were replaced", steady("remapped_correctable", 2)),
    ("pages that were taken out of use", steady("bad_pages_reserved", 20)),
    ("kernel: corrected errors", kernel("amdgpu PCI: amdgpu: 4 correctable hardware errors detected in umc block")),
    ("kernel: a reset that helped", kernel("amdgpu PCI: amdgpu: GPU reset(3) succeeded!")),
)
"""What a machine of either vendor may do in health; a key that a vendor lacks changes nothing there."""
# fmt: on


@pytest.mark.parametrize("plant", [plant for _, plant in HEALTHY], ids=[name for name, _ in HEALTHY])
@every_vendor
def test_healthy_twin_of_a_fault_is_quiet(rig: Rig, plant: Plant) -> None:
    """What looks like a fault and is none opens nothing, however long it lasts."""
    for turn in range(1, LONG_ENOUGH + 2):
        plant(rig, turn)
        snapshot = rig.look()

        assert snapshot.episodes == ()
        assert snapshot.verdict.state is State.OK


def test_fault_gives_state_device_code_class_and_action(timeline: Timeline) -> None:
    """Every fault is confirmed after exactly its looks, on its device alone, with class and action."""
    case, after = timeline.case, timeline.opened
    fault, device = case.fault, case.key.device
    for before in (timeline.told[HEALTHY_LOOKS - 1], *timeline.ill[: fault.looks - 1]):
        early = episode(before, case)
        assert early is None or early.state is EpisodeState.PENDING
        assert before.verdict.state is State.OK

    found = episode(after, case)
    assert found is not None, [entry.key for entry in after.episodes]
    assert found.state is EpisodeState.OPEN
    assert (found.finding.fault_class, found.finding.action) == (fault.fault_class, fault.action)
    open_codes = {entry.key.code for entry in after.episodes if entry.state is EpisodeState.OPEN}
    verdict, codes = with_also_found(case.name, fault.verdict, {fault.code})
    assert codes <= open_codes
    assert after.device_verdicts[device].state is verdict
    assert after.verdict.state is verdict
    others = {name: verdict.state for name, verdict in after.device_verdicts.items() if name != device}
    assert set(others.values()) == {State.OK}


def test_healing_clears_what_the_table_says_and_nothing_else(timeline: Timeline) -> None:
    """Conditions clear on the third good look; hardware events stay; replacements stay; nothing else moves."""
    case, snapshot = timeline.case, timeline.healed[-1]
    found = episode(timeline.opened, case)
    assert found is not None
    seen = [episode(healed, case) for healed in timeline.healed]
    states = [entry is not None and entry.state is EpisodeState.OPEN for entry in seen]

    if found.finding.clearing is Clearing.CONDITION:
        # Growth is seen once more in the look after the counter's reset, which begins a new epoch: no look at all.
        assert states[0] is True
        assert states[-1] is False
        assert snapshot.verdict.state is State.OK
        cleared = [change.key for change in timeline.changes if change.state is EpisodeState.CLEARED]
        families = {code.partition(".")[0] for code in {case.fault.code, *also_found(case.name)}}
        told = {(key.device, key.code.partition(".")[0]) for key in cleared}
        assert told == {(case.key.device, family) for family in families}
    elif found.finding.clearing is Clearing.APPLICATION_EVENT:
        # It closes with the job that it came from, and no process uses the device.
        assert states[-1] is False
        assert snapshot.verdict.state is State.OK
    else:
        assert states == [True] * len(states)
        assert snapshot.verdict.state is case.fault.verdict


def test_restart_in_the_middle_changes_nothing(timeline: Timeline) -> None:
    """An agent that is restarted after every look tells the same timeline as one that is not."""

    def story(snapshots: Iterable[Snapshot]) -> list[tuple[State, list[tuple[str, str]]]]:
        return [
            (snapshot.verdict.state, [(str(entry.key), entry.state.value) for entry in snapshot.episodes])
            for snapshot in snapshots
        ]

    assert len(timeline.told) == HEALTHY_LOOKS + len(timeline.ill) + len(timeline.healed)
    assert story(timeline.restarted) == story(timeline.told)


def passed(rig: Rig, **changed: float) -> Result:
    """Return the result of a verified load that ran just now, with *changed* figures."""
    figures = {"gemms_verified": 100, "mismatches": 0, "self_test_planted": 10, "self_test_found": 10} | changed
    return Result(
        workload="gemm",
        devices=(device_of(rig),),
        dtype="bf16",
        state=ResultState.FINISHED,
        started=rig.clock.instant(),
        ended=rig.clock.instant(),
        metrics=tuple(Metric(name, value, "count") for name, value in figures.items()),
    )


@every_vendor
def test_passed_retest_clears_an_uncorrected_error_although_its_counter_still_stands(rig: Rig) -> None:
    """The occurrence is settled; one more error opens it anew."""
    live(rig, case_of(rig, "memory.uncorrected"), 1, 1)
    rig.clock.advance(5)
    rig.retest(passed(rig))

    after = rig.look(3)
    assert after.verdict.state is State.OK

    rig.machine.set(f"ecc_uncorrected_volatile_dram.{SLOT}", 2)
    again = rig.look()
    assert again.verdict.state is State.FAILED


@every_vendor
def test_failed_retest_clears_nothing(rig: Rig) -> None:
    """A load with nothing verified, a wrong result or an incomplete self-test is no proof."""
    live(rig, case_of(rig, "memory.uncorrected"), 1, 1)
    for changed in ({"gemms_verified": 0}, {"self_test_found": 9}, {"mismatches": 1}):
        rig.clock.advance(5)
        rig.retest(passed(rig, **changed))

        assert rig.look().verdict.state is State.FAILED


@every_vendor
def test_lost_device_needs_a_reboot_before_its_retest_counts(rig: Rig) -> None:
    """In the same boot a passed load proves nothing of a device that fell off the bus; in the next it does."""
    live(rig, case_of(rig, "device.lost"), 1, 1)
    rig.machine.clear()
    rig.clock.advance(5)
    rig.retest(passed(rig))
    assert rig.look().verdict.state is State.FAILED

    rig.clock.reboot("boot-2", 60)
    assert rig.look().verdict.state is State.FAILED

    rig.clock.advance(5)
    rig.retest(passed(rig))
    assert rig.look().verdict.state is State.OK


WORN_OUT = {FakeNvml: "memory.row_remap_failed", FakeAmdSmi: "memory.bad_pages_threshold"}
"""What only another board heals."""
OTHER_NAME = "11111111-2222-3333-4444-555555555555"


@every_vendor
def test_another_serial_in_its_place_ends_what_the_old_board_had(rig: Rig) -> None:
    """A replaced board takes its own history with it."""
    live(rig, case_of(rig, WORN_OUT[type(rig.machine)]), 1, 1)
    rig.machine.clear()
    rig.machine.update({f"uuid.{SLOT}": OTHER_NAME, f"serial.{SLOT}": "1650000000999"})
    rig.reboot()

    after = rig.look(2)

    assert after.verdict.state is State.OK
    assert [entry.key.code for entry in after.episodes] == []
    assert device_of(rig) not in after.device_verdicts
    assert len(after.device_verdicts) == 8


@pytest.mark.parametrize("rig", [FakeNvml], indirect=True)
def test_board_that_does_not_answer_after_a_reboot_is_one_device_with_its_serial(rig: Rig) -> None:
    """Only its address is told, and the node remembers who sits there: lost under its name, and nobody is missing."""
    before = rig.look(2)
    (board,) = [device for device in before.devices if device.id == device_of(rig)]
    rig.machine.fail_device(SLOT)
    rig.reboot()

    after = rig.look(2)

    accelerators = [device for device in after.devices if device.kind is DeviceKind.ACCELERATOR]
    assert sorted(device.id for device in accelerators) == sorted(rig.machine.uuid(slot) for slot in range(8))
    assert next(device for device in accelerators if device.id == board.id).serial == board.serial
    assert {entry.key for entry in after.episodes} == {Key("device.lost", board.id)}
    assert len(after.device_verdicts) == 8

    rig.machine.clear()
    rig.look(1)
    rig.engine.take_devices("nvidia", rig.reader.enumerate_again())
    assert {entry.key for entry in rig.look(2).episodes} == {Key("device.lost", board.id)}


@every_vendor
def test_same_serial_in_its_place_is_the_same_board_whatever_its_uuid(rig: Rig) -> None:
    """A board whose UUID changed is not missed, and what it had goes on."""
    case = case_of(rig, WORN_OUT[type(rig.machine)])
    live(rig, case, 1, 1)
    rig.machine.set(f"uuid.{SLOT}", OTHER_NAME)
    rig.reboot()

    after = rig.look(2)

    assert [entry.key for entry in after.episodes] == [Key(case.fault.code, OTHER_NAME)]
    assert device_of(rig) not in after.device_verdicts
    assert len(after.device_verdicts) == 8


@pytest.mark.parametrize("rig", [FakeNvml], indirect=True)
def test_healthy_board_with_fast_memory_and_shared_power_is_ok(rig: Rig) -> None:
    """GDDR7 at 12481 MHz, and a module that enforces 700 of 900 requested watts: nothing is wrong."""
    rig.machine.update({
        f"memory_clock_megahertz.{SLOT}": 12481,
        f"power_limit_requested_milliwatts.{SLOT}": 900_000,
        f"power_limit_default_milliwatts.{SLOT}": 900_000,
    })  # fmt: skip
    snapshot = rig.look(LONG_ENOUGH)
    assert (snapshot.verdict.state, snapshot.episodes) == (State.OK, ())


@pytest.mark.parametrize("rig", [FakeNvml], indirect=True)
@pytest.mark.parametrize("answers", [{"link_state": 0, "link_count": 0}, {"links": 0}], ids=("down", "silent"))
def test_boards_whose_links_are_all_down_are_not_ok(rig: Rig, answers: dict[str, float | str]) -> None:
    """Eight GB300 before their fabric manager ran: each says so once, with what to start and to inspect."""
    rig.machine.update({"name": "NVIDIA GB300", "fabric_state": 1, **answers})
    rig.reboot()
    snapshot = rig.look(2)
    assert snapshot.verdict.state is not State.OK
    told = [entry.finding.message for entry in snapshot.episodes if "link" in entry.key.code]
    assert len(told) == 8
    assert all("start the fabric manager" in text and "inspected" in text for text in told)
    assert not any("permissions" in text for text in told)


@pytest.mark.parametrize("rig", [FakeNvml], indirect=True)
def test_event_of_a_board_in_a_long_pci_domain_is_its_own(rig: Rig) -> None:
    """Behind a volume controller or in a virtual machine a domain has five digits: one board, with its events."""
    rig.machine.update({f"pci_domain.{slot}": 0x10000 + slot for slot in range(8)})
    rig.reboot()
    address = rig.machine.pci(SLOT).replace("0000:", f"{0x10000 + SLOT:x}:")
    rig.kernel(f"NVRM: Xid (PCI:{address[:-2]}): 79, pid=1234, GPU has fallen off the bus.")
    snapshot = rig.look()
    assert len(snapshot.device_verdicts) == 8
    assert [entry.key for entry in snapshot.episodes] == [Key("nvidia.xid.79", device_of(rig))]


@pytest.mark.parametrize("rig", [FakeNvml], indirect=True)
def test_fault_stays_with_a_board_whose_new_driver_names_it_otherwise(rig: Rig) -> None:
    """Drivers before 470 leave out the vendor: the fault and the count of devices are those of before."""
    rig.machine.set(f"ecc_uncorrected_volatile_dram.{SLOT}", 1)
    rig.look(2)
    rig.machine.update({"name": "H100 80GB HBM3", "vbios": "97.00", "driver_version": "999.1"})
    rig.machine.set(f"ecc_uncorrected_volatile_dram.{SLOT}", 0)
    rig.reboot()
    snapshot = rig.look(3)
    assert [entry.key.code for entry in snapshot.episodes] == ["memory.uncorrected"]
    assert len(snapshot.device_verdicts) == 8


EMPTY_LIMITS = "core at 96 celsius, its limits empty"


@pytest.mark.parametrize("rig", [FakeNvml], indirect=True)
@pytest.mark.parametrize("empty", [0, 65535, 2**32 - 1])
def test_limits_of_heat_that_are_empty_registers_fail_no_board(rig: Rig, empty: int) -> None:
    """Without a margin the table stands in, and a board that is hot is told."""
    rig.machine.fail("nvmlDeviceGetMarginTemperature", NvmlReturn.NOT_SUPPORTED)
    for name in ("slowdown", "shutdown", "maximum", "memory_maximum"):
        rig.machine.set(f"threshold_{name}", empty)
    rig.reboot()
    assert rig.look(LONG_ENOUGH).verdict.state is State.OK
    rig.machine.set(f"temperature.{SLOT}", 96)
    codes = {entry.key.code for entry in rig.look(4).episodes}
    assert codes == {"temperature.slowdown", "temperature.high", *also_found(EMPTY_LIMITS)}


@pytest.mark.parametrize("rig", [FakeNvml], indirect=True)
@pytest.mark.parametrize("offset", [1, 25, 90])
def test_offset_of_slowdown_above_the_highest_operating_temperature_is_none(rig: Rig, offset: int) -> None:
    """A temperature in the place of its offset: the table stands in, and the board is not told as slow."""
    rig.machine.set("margin_slowdown", offset)
    rig.reboot()
    assert rig.look(LONG_ENOUGH).verdict.state is State.OK


@pytest.mark.parametrize("rig", [FakeNvml], indirect=True)
def test_boot_before_the_fabric_manager_closes_no_gate(rig: Rig) -> None:
    """Links down and no board joined for a minute: told, and over by itself; later it would be hard."""
    rig.machine.update({"fabric_state": 1, "link_state": 0})
    rig.reboot()
    starting = rig.look()
    assert starting.verdict.state is State.FAILED
    assert not any(entry.finding.hard for entry in starting.episodes)
    rig.machine.update({"fabric_state": 3, "link_state": 1})
    assert rig.look(LONG_ENOUGH).verdict.state is State.OK
    rig.machine.update({"fabric_state": 1, "link_state": 0})
    rig.clock.advance(600)
    assert any(entry.finding.hard for entry in rig.look().episodes)


@pytest.mark.parametrize("rig", [FakeNvml], indirect=True)
def test_same_event_from_nvml_and_the_kernel_log_counts_once(rig: Rig) -> None:
    """The episode of an XID that both sources tell has one occurrence."""
    xid(79)(rig, 1)
    rig.look()
    rig.kernel(f"NVRM: Xid (PCI:{rig.machine.pci(SLOT)[:-2]}): 79, pid=1234, GPU has fallen off the bus.")
    snapshot = rig.look()

    (found,) = [entry for entry in snapshot.episodes if entry.key.code == "nvidia.xid.79"]
    assert found.count == 1


@pytest.mark.parametrize("rig", [FakeAmdSmi], indirect=True)
def test_same_error_from_the_counters_and_the_kernel_log_is_told_by_both(rig: Rig) -> None:
    """The kernel names the block and the counters prove it: two findings of one device, and no other."""
    rig.machine.set(f"ecc_uncorrected_volatile_dram.{SLOT}", 1)
    rig.kernel(f"amdgpu {rig.machine.pci(SLOT)}: amdgpu: 1 uncorrectable hardware errors detected in umc block")
    snapshot = rig.look()

    told = {(entry.key.code, entry.key.device) for entry in snapshot.episodes}
    assert told == {("memory.uncorrected", device_of(rig)), ("amd.ras_ue", device_of(rig))}


TEMPERATURE = {
    FakeNvml: ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", "nvmlDeviceGetMarginTemperature"),
    FakeAmdSmi: ("amdsmi_get_temp_metric", "amdsmi_get_gpu_metrics_info"),
}
REFUSALS = {
    FakeNvml: (NvmlReturn.NOT_SUPPORTED, NvmlReturn.NO_PERMISSION, NvmlReturn.UNKNOWN),
    FakeAmdSmi: (AmdSmiStatus.NOT_SUPPORTED, AmdSmiStatus.NO_PERM, AmdSmiStatus.API_FAILED),
}


@pytest.mark.parametrize("refusal", range(3), ids=("not supported", "no permission", "unknown error"))
@every_vendor
def test_required_reading_that_cannot_be_had_makes_the_device_unknown(rig: Rig, refusal: int) -> None:
    """A board that must report its temperature and does not is never ok."""
    for function in TEMPERATURE[type(rig.machine)]:
        rig.machine.fail(function, REFUSALS[type(rig.machine)][refusal], SLOT)

    snapshot = rig.look(2)

    assert snapshot.device_verdicts[device_of(rig)].state is State.UNKNOWN
    assert snapshot.verdict.state is State.UNKNOWN


def test_node_with_boards_of_both_vendors_is_read_and_judged_as_one(
    fake_nvml: FakeNvml, fake_amdsmi: FakeAmdSmi
) -> None:
    """Sixteen devices behind two readers; a fault of either vendor fails its own device and the node."""
    with Rig(fake_nvml, fake_amdsmi) as rig:
        snapshot = rig.look(LONG_ENOUGH)
        assert (snapshot.verdict.state, len(snapshot.device_verdicts)) == (State.OK, 16)
        assert snapshot.episodes == ()

        fake_nvml.set(f"link_state.{SLOT}.5", 0)
        fake_amdsmi.set(f"ecc_uncorrected_volatile_dram.{SLOT}", 1)
        snapshot = rig.look()

    broken = {device for device, verdict in snapshot.device_verdicts.items() if verdict.state is State.FAILED}
    assert broken == {FakeNvml.uuid(SLOT), FakeAmdSmi.uuid(SLOT)}
    assert {device.vendor for device in snapshot.devices} == {"nvidia", "amd"}
    assert snapshot.verdict.state is State.FAILED
