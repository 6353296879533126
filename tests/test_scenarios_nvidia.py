"""Scenario to timeline of verdicts: real wrapper on a fake driver, real engine, and a clock that the test moves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import pytest
from fakes.nvml.scenario import FakeNvml, NvmlReturn, uuid
from fakes.rig import Rig

from nodevet.checks.kernel_log.parse import events_from_lines
from nodevet.checks.model import (
    WHOLE,
    Action,
    Clearing,
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
DEVICE = uuid(SLOT)
LONG_ENOUGH = 5
"""Intervals in which a finding that needs 3 of 5 looks must have been confirmed."""

Plant = Callable[[FakeNvml, int], object]


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
    heal: Callable[[FakeNvml], object]


def everything_again(machine: FakeNvml) -> object:
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
    heal: Callable[[FakeNvml], object] = everything_again,
) -> Fault:
    """Return a fault that must fail its device after *looks* intervals."""
    return Fault(name, plant, code, verdict, action, looks, part, fault_class, heal)


degraded = functools.partial(failed, verdict=State.DEGRADED)
measured = functools.partial(failed, looks=3)
measured_degraded = functools.partial(failed, looks=3, verdict=State.DEGRADED)


def steady(key: str, value: float) -> Plant:
    """Return a fault that sets *key* of slot 3, or of a part of it (``link_state/5``)."""
    return lambda machine, _turn: machine.set(_of_slot(key), value)


def growing(key: str, step: int) -> Plant:
    """Return a fault that lets the counter *key* grow by *step* each interval."""
    return lambda machine, turn: machine.set(_of_slot(key), turn * step)


def xid(code: int) -> Plant:
    """Return an XID that the driver reports once."""
    return lambda machine, turn: machine.xid(SLOT, code) if turn == 1 else None


def slow_under_load(machine: FakeNvml, _turn: int) -> None:
    """Let the bus run slower than it could while the device works; at idle that is how boards save power."""
    machine.set(f"pcie_generation.{SLOT}", 3).set(f"utilization_percent.{SLOT}", 95)


def _of_slot(key: str) -> str:
    name, _, part = key.partition("/")
    return f"{name}.{SLOT}.{part}" if part else f"{name}.{SLOT}"


A_FIFTH = 2_000_000_000
"""Nanoseconds of an interval of ten seconds."""

CORE, MEMORY = Part(PartKind.SENSOR, "core"), Part(PartKind.SENSOR, "memory")
DRAM, PCIE, LINK = Part(PartKind.MEMORY_BLOCK, "dram"), Part(PartKind.PCIE), Part(PartKind.LINK, "", 5)
POWER = Part(PartKind.POWER_SCOPE, "device")
SITE, UNKNOWN = FaultClass.CONFIGURATION, FaultClass.UNKNOWN
INSPECT, REBOOT, RESET, WATCH = Action.INSPECT, Action.REBOOT, Action.RESET_DEVICE, Action.WATCH
DRAIN, REPLACE = Action.DRAIN_RESET, Action.REPLACE


def held(reason: str) -> Part:
    """Return the part that stands for a throttle reason."""
    return Part(PartKind.REASON, reason)


def violation(reason: str) -> Plant:
    """Return a fault that holds the clock down for a fifth of the time."""
    return growing(f"violation_{reason}_nanoseconds", A_FIFTH)


# fmt: off
FAULTS = (
    measured("beyond its margin", steady("temperature_margin", -2), "temperature.slowdown", INSPECT, part=CORE),
    measured_degraded("near its margin", steady("temperature_margin", 3), "temperature.high", INSPECT, part=CORE),
    measured("hot memory", steady("memory_temperature", 105), "temperature.slowdown", INSPECT, part=MEMORY),
    measured("hardware thermal slowdown", violation("hardware_thermal"), "throttle.hardware_thermal", INSPECT,
             part=held("hardware_thermal")),
    measured("power brake", violation("power_brake"), "throttle.power_brake", INSPECT, part=held("power_brake")),
    measured("hardware slowdown flag", steady("event_reasons", 0x8), "throttle.hardware_slowdown", INSPECT,
             part=held("hardware_slowdown")),
    measured_degraded("software thermal slowdown", violation("software_thermal"), "throttle.software_thermal", INSPECT,
                      part=held("software_thermal")),
    failed("uncorrected memory error", steady("ecc_uncorrected_volatile_dram", 1), "memory.uncorrected", DRAIN,
           part=DRAM),
    failed("row remap failed", steady("remap_failed", 1), "memory.row_remap_failed", REPLACE),
    degraded("row remap pending", steady("remap_pending", 1), "memory.row_remap_pending", RESET),
    failed("SRAM over its threshold", steady("sram_threshold_exceeded", 1), "memory.sram_threshold", REPLACE),
    failed("driver asks for a reset", steady("recovery_action", 1), "memory.recovery_action", RESET),
    failed("driver asks for a reboot", steady("recovery_action", 2), "memory.recovery_action", REBOOT),
    degraded("error correction off", steady("ecc_mode", 0), "memory.ecc_disabled", INSPECT, fault_class=SITE),
    degraded("power limit lowered", steady("power_limit_milliwatts", 400000), "power.limit_lowered", WATCH, part=POWER,
             fault_class=SITE),
    measured_degraded("narrow PCIe", steady("pcie_width", 8), "pcie.width", INSPECT, part=PCIE),
    measured_degraded("slow PCIe under load", slow_under_load, "pcie.generation", INSPECT, part=PCIE,
                      heal=lambda machine: machine.clear(f"pcie_generation.{SLOT}")),
    failed("fatal PCIe errors", growing("pcie_fatal_errors", 1), "pcie.fatal", REBOOT, part=PCIE),
    measured_degraded("PCIe replays", growing("pcie_replays", 500), "pcie.replay_rate", INSPECT, part=PCIE),
    failed("one link down", steady("link_state/5", 0), "link.down", RESET, part=LINK),
    measured_degraded("link replays", growing("link_replay_errors/5", 7), "link.replay", INSPECT, part=LINK),
    measured_degraded("link recoveries", growing("link_recovery_errors/5", 2), "link.recovery", INSPECT, part=LINK),
    failed("fabric not joined", steady("fabric_state", 1), "fabric.state", INSPECT, fault_class=SITE),
    failed("fell off the bus", lambda machine, _turn: machine.fail_device(SLOT), "device.lost", REBOOT),
    failed("vanished", lambda machine, _turn: machine.vanish(SLOT), "device.missing", REBOOT),
    failed("XID 79", xid(79), "nvidia.xid.79", REBOOT),
    failed("XID 48", xid(48), "nvidia.xid.48", DRAIN),
    degraded("an XID that no table knows", xid(999), "nvidia.xid.999", INSPECT, fault_class=UNKNOWN),
)
# fmt: on


@pytest.fixture
def rig(fake_nvml: FakeNvml) -> Iterator[Rig]:
    """A healthy machine that was looked at twice, so that counters have a rate."""
    with Rig(fake_nvml) as running:
        running.look(2)
        yield running


def episode(snapshot: Snapshot, fault: Fault) -> Episode | None:
    """Return the episode of *fault*, or None."""
    key = Key(fault.code, DEVICE, fault.part)
    return next((entry for entry in snapshot.episodes if entry.key == key), None)


def live(rig: Rig, fault: Fault, first: int, last: int) -> Snapshot:
    """Let the fault be there in its intervals *first* to *last*, and return the last snapshot."""
    assert rig.snapshot is not None
    for turn in range(first, last + 1):
        if fault.plant(rig.machine, turn) is not None and fault.code.startswith("nvidia.xid."):
            rig.reader.events.append(rig.reader.wait_for_event())
        rig.look()
    return rig.snapshot


def test_healthy_machine_is_ok(rig: Rig) -> None:
    """Eight healthy devices give ok, no episode, and nothing that was not measured."""
    snapshot = rig.look(LONG_ENOUGH)

    assert snapshot.verdict.state is State.OK
    assert snapshot.episodes == ()
    assert [finding.code for finding in snapshot.findings if finding.outcome is Outcome.UNMEASURED] == []
    assert {verdict.state for verdict in snapshot.device_verdicts.values()} == {State.OK}
    assert len(snapshot.device_verdicts) == 8


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_gives_state_device_code_class_and_action(rig: Rig, fault: Fault) -> None:
    """Every fault is confirmed after exactly its looks, on its device alone, with class and action."""
    before = live(rig, fault, 1, fault.looks - 1)
    early = episode(before, fault)
    assert early is None or early.state is EpisodeState.PENDING
    assert before.verdict.state is State.OK

    after = live(rig, fault, fault.looks, fault.looks)

    found = episode(after, fault)
    assert found is not None, [entry.key for entry in after.episodes]
    assert found.state is EpisodeState.OPEN
    assert (found.finding.fault_class, found.finding.action) == (fault.fault_class, fault.action)
    assert after.device_verdicts[DEVICE].state is fault.verdict
    assert after.verdict.state is fault.verdict
    others = {device: verdict.state for device, verdict in after.device_verdicts.items() if device != DEVICE}
    assert set(others.values()) == {State.OK}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_healing_clears_what_the_table_says_and_nothing_else(rig: Rig, fault: Fault) -> None:
    """Conditions clear on the third good look; hardware events stay; replacements stay; nothing else moves."""
    opened = live(rig, fault, 1, fault.looks)
    found = episode(opened, fault)
    assert found is not None
    fault.heal(rig.machine)

    states, snapshot = [], opened
    for _ in range(LONG_ENOUGH + 1):
        snapshot = rig.look()
        now = episode(snapshot, fault)
        states.append(now is not None and now.state is EpisodeState.OPEN)

    if found.finding.clearing is Clearing.CONDITION:
        # Growth is seen once more in the look after the counter's reset, which begins a new epoch: no look at all.
        assert states[0] is True
        assert states[-1] is False
        assert snapshot.verdict.state is State.OK
        cleared = [change for change in rig.changes if change.state is EpisodeState.CLEARED]
        family = fault.code.partition(".")[0]
        assert {(change.key.device, change.key.code.partition(".")[0]) for change in cleared} == {(DEVICE, family)}
    else:
        assert states == [True] * len(states)
        assert snapshot.verdict.state is fault.verdict


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_restart_in_the_middle_changes_nothing(fake_nvml: FakeNvml, fault: Fault) -> None:
    """An agent that is restarted after every look tells the same timeline as one that is not."""

    def timeline(*, restarting: bool) -> list[tuple[State, list[tuple[str, str]]]]:
        fake_nvml.clear()
        story = []
        with Rig(fake_nvml) as rig:
            rig.look(2)
            for turn in range(1, fault.looks + 6):
                if turn == fault.looks + 2:
                    fault.heal(rig.machine)
                snapshot = live(rig, fault, turn, turn) if turn < fault.looks + 2 else rig.look()
                told = [(str(entry.key), entry.state.value) for entry in snapshot.episodes]
                story.append((snapshot.verdict.state, told))
                if restarting:
                    rig.restart()
        return story

    assert timeline(restarting=True) == timeline(restarting=False)


def passed(rig: Rig, **changed: float) -> Result:
    """Return the result of a verified load that ran just now, with *changed* figures."""
    figures = {"gemms_verified": 100, "mismatches": 0, "self_test_planted": 10, "self_test_found": 10} | changed
    return Result(
        workload="gemm",
        devices=(DEVICE,),
        dtype="bf16",
        state=ResultState.FINISHED,
        started=rig.clock.instant(),
        ended=rig.clock.instant(),
        metrics=tuple(Metric(name, value, "count") for name, value in figures.items()),
    )


def test_passed_retest_clears_an_uncorrected_error_although_its_counter_still_stands(rig: Rig) -> None:
    """The occurrence is settled; one more error opens it anew."""
    fault = next(entry for entry in FAULTS if entry.code == "memory.uncorrected")
    live(rig, fault, 1, 1)
    rig.clock.advance(5)
    rig.retest(passed(rig))

    after = rig.look(3)
    assert after.verdict.state is State.OK

    rig.machine.set(f"ecc_uncorrected_volatile_dram.{SLOT}", 2)
    again = rig.look()
    assert again.verdict.state is State.FAILED


def test_failed_retest_clears_nothing(rig: Rig) -> None:
    """A load with nothing verified, a wrong result or an incomplete self-test is no proof."""
    fault = next(entry for entry in FAULTS if entry.code == "memory.uncorrected")
    live(rig, fault, 1, 1)
    for changed in ({"gemms_verified": 0}, {"self_test_found": 9}, {"mismatches": 1}):
        rig.clock.advance(5)
        rig.retest(passed(rig, **changed))

        assert rig.look().verdict.state is State.FAILED


def test_lost_device_needs_a_reboot_before_its_retest_counts(rig: Rig) -> None:
    """In the same boot a passed load proves nothing of a device that fell off the bus; in the next it does."""
    fault = next(entry for entry in FAULTS if entry.code == "device.lost")
    live(rig, fault, 1, 1)
    rig.machine.clear()
    rig.clock.advance(5)
    rig.retest(passed(rig))
    assert rig.look().verdict.state is State.FAILED

    rig.clock.reboot("boot-2", 60)
    assert rig.look().verdict.state is State.FAILED

    rig.clock.advance(5)
    rig.retest(passed(rig))
    assert rig.look().verdict.state is State.OK


def test_another_serial_in_its_place_ends_what_the_old_board_had(rig: Rig) -> None:
    """A replaced board takes its own history with it."""
    fault = next(entry for entry in FAULTS if entry.code == "memory.row_remap_failed")
    live(rig, fault, 1, 1)
    rig.machine.clear()
    rig.machine.update({f"uuid.{SLOT}": "GPU-11111111-2222-3333-4444-555555555555", f"serial.{SLOT}": "1650000000999"})

    after = rig.look(2)

    assert after.verdict.state is State.OK
    assert [entry.key.code for entry in after.episodes] == []
    assert DEVICE not in after.device_verdicts
    assert len(after.device_verdicts) == 8


def test_same_serial_in_its_place_is_the_same_board_whatever_its_uuid(rig: Rig) -> None:
    """A board whose UUID changed is not missed, and what it had goes on."""
    fault = next(entry for entry in FAULTS if entry.code == "memory.row_remap_failed")
    live(rig, fault, 1, 1)
    name = "GPU-11111111-2222-3333-4444-555555555555"
    rig.machine.set(f"uuid.{SLOT}", name)

    after = rig.look(2)

    assert [entry.key for entry in after.episodes] == [Key(fault.code, name)]
    assert DEVICE not in after.device_verdicts
    assert len(after.device_verdicts) == 8


def test_same_event_from_nvml_and_the_kernel_log_counts_once(rig: Rig) -> None:
    """The episode of an XID that both sources tell has one occurrence."""
    rig.machine.xid(SLOT, 79)
    event = rig.reader.wait_for_event()
    rig.reader.events.append(event)
    assert event.pci is not None
    (same,) = events_from_lines([f"NVRM: Xid (PCI:{event.pci[:-2]}): 79, pid=1234, GPU has fallen off the bus."])
    rig.look()
    rig.engine.take_event(msgspec.structs.replace(same, time=rig.clock.instant()))
    snapshot = rig.look()

    (found,) = [entry for entry in snapshot.episodes if entry.key.code == "nvidia.xid.79"]
    assert found.count == 1


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (NvmlReturn.NOT_SUPPORTED, State.UNKNOWN),
        (NvmlReturn.NO_PERMISSION, State.UNKNOWN),
        (NvmlReturn.UNKNOWN, State.UNKNOWN),
    ],
)
def test_required_reading_that_cannot_be_had_makes_the_device_unknown(rig: Rig, code: NvmlReturn, state: State) -> None:
    """A board that must report its temperature and does not is never ok."""
    rig.machine.fail("nvmlDeviceGetTemperatureV", code, SLOT)
    rig.machine.fail("nvmlDeviceGetTemperature", code, SLOT)
    rig.machine.fail("nvmlDeviceGetMarginTemperature", code, SLOT)

    snapshot = rig.look(2)

    assert snapshot.device_verdicts[DEVICE].state is state
    assert snapshot.verdict.state is state
