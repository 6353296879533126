"""Scenario to timeline of verdicts: real wrapper on a fake driver, real engine, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import pytest
from fakes.nvml.reader import uuid
from fakes.nvml.scenario import FakeNvml, NvmlReturn
from fakes.rig import Rig

from nodevet.checks.kernel_log.parse import events_from_lines
from nodevet.checks.model import (
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


class Fault(NamedTuple):
    """A fault of the machine in slot 3, and what must be said of it."""

    name: str
    plant: Callable[[FakeNvml, int], object]
    code: str
    verdict: State
    fault_class: FaultClass
    action: Action
    looks: int
    part: Part = Part()
    heal: Callable[[FakeNvml], object] = lambda machine: machine.clear()


def violation(name: str) -> Callable[[FakeNvml, int], object]:
    """Return a fault that holds the clock down for a fifth of the time."""
    return lambda machine, turn: machine.set(f"violation_{name}_nanoseconds.{SLOT}", turn * 2_000_000_000)


def steady(**values: float) -> Callable[[FakeNvml, int], object]:
    """Return a fault that sets *values* of slot 3, or of a part of it (``link_state__5``)."""
    keys = {
        ".".join([*name.split("__")[:1], str(SLOT), *name.split("__")[1:]]): value for name, value in values.items()
    }
    return lambda machine, _turn: machine.update(keys)


def growing(name: str, step: int) -> Callable[[FakeNvml, int], object]:
    """Return a fault that lets the counter *name* grow by *step* each interval."""
    key = ".".join([*name.split("__")[:1], str(SLOT), *name.split("__")[1:]])
    return lambda machine, turn: machine.set(key, turn * step)


HARDWARE, CONFIGURATION = FaultClass.HARDWARE, FaultClass.CONFIGURATION
CORE, MEMORY = Part(PartKind.SENSOR, "core"), Part(PartKind.SENSOR, "memory")
DRAM, PCIE, LINK = Part(PartKind.MEMORY_BLOCK, "dram"), Part(PartKind.PCIE), Part(PartKind.LINK, "", 5)


def reason(name: str) -> Part:
    """Return the part of a throttle reason."""
    return Part(PartKind.REASON, name)


FAULTS = (
    Fault(
        "beyond its margin",
        steady(temperature_margin=-2),
        "temperature.slowdown",
        State.FAILED,
        HARDWARE,
        Action.INSPECT,
        3,
        CORE,
    ),
    Fault(
        "close to its margin",
        steady(temperature_margin=3),
        "temperature.high",
        State.DEGRADED,
        HARDWARE,
        Action.INSPECT,
        3,
        CORE,
    ),
    Fault(
        "hot memory",
        steady(memory_temperature=105),
        "temperature.slowdown",
        State.FAILED,
        HARDWARE,
        Action.INSPECT,
        3,
        MEMORY,
    ),
    Fault(
        "hardware thermal slowdown",
        violation("hardware_thermal"),
        "throttle.hardware_thermal",
        State.FAILED,
        HARDWARE,
        Action.INSPECT,
        3,
        reason("hardware_thermal"),
    ),
    Fault(
        "power brake",
        violation("power_brake"),
        "throttle.power_brake",
        State.FAILED,
        HARDWARE,
        Action.INSPECT,
        3,
        reason("power_brake"),
    ),
    Fault(
        "software thermal slowdown",
        violation("software_thermal"),
        "throttle.software_thermal",
        State.DEGRADED,
        HARDWARE,
        Action.INSPECT,
        3,
        reason("software_thermal"),
    ),
    Fault(
        "hardware slowdown flag",
        steady(event_reasons=0x8),
        "throttle.hardware_slowdown",
        State.FAILED,
        HARDWARE,
        Action.INSPECT,
        3,
        reason("hardware_slowdown"),
    ),
    Fault(
        "uncorrected memory error",
        steady(ecc_uncorrected_volatile_dram=1),
        "memory.uncorrected",
        State.FAILED,
        HARDWARE,
        Action.DRAIN_RESET,
        1,
        DRAM,
    ),
    Fault(
        "row remap failed", steady(remap_failed=1), "memory.row_remap_failed", State.FAILED, HARDWARE, Action.REPLACE, 1
    ),
    Fault(
        "row remap pending",
        steady(remap_pending=1),
        "memory.row_remap_pending",
        State.DEGRADED,
        HARDWARE,
        Action.RESET_DEVICE,
        1,
    ),
    Fault(
        "SRAM over its threshold",
        steady(sram_threshold_exceeded=1),
        "memory.sram_threshold",
        State.FAILED,
        HARDWARE,
        Action.REPLACE,
        1,
    ),
    Fault(
        "driver asks for a reset",
        steady(recovery_action=1),
        "memory.recovery_action",
        State.FAILED,
        HARDWARE,
        Action.RESET_DEVICE,
        1,
    ),
    Fault(
        "driver asks for a reboot",
        steady(recovery_action=2),
        "memory.recovery_action",
        State.FAILED,
        HARDWARE,
        Action.REBOOT,
        1,
    ),
    Fault(
        "power limit lowered",
        steady(power_limit_milliwatts=400000),
        "power.limit_lowered",
        State.DEGRADED,
        CONFIGURATION,
        Action.WATCH,
        1,
        Part(PartKind.POWER_SCOPE, "device"),
    ),
    Fault("narrow PCIe", steady(pcie_width=8), "pcie.width", State.DEGRADED, HARDWARE, Action.INSPECT, 3, PCIE),
    Fault(
        "slow PCIe under load",
        steady(pcie_generation=3, utilization_percent=95),
        "pcie.generation",
        State.DEGRADED,
        HARDWARE,
        Action.INSPECT,
        3,
        PCIE,
        lambda machine: machine.clear(f"pcie_generation.{SLOT}"),
    ),
    Fault(
        "fatal PCIe errors",
        growing("pcie_fatal_errors", 1),
        "pcie.fatal",
        State.FAILED,
        HARDWARE,
        Action.REBOOT,
        1,
        PCIE,
    ),
    Fault(
        "PCIe replays",
        growing("pcie_replays", 500),
        "pcie.replay_rate",
        State.DEGRADED,
        HARDWARE,
        Action.INSPECT,
        3,
        PCIE,
    ),
    Fault("one link down", steady(link_state__5=0), "link.down", State.FAILED, HARDWARE, Action.RESET_DEVICE, 1, LINK),
    Fault(
        "link replays",
        growing("link_replay_errors__5", 7),
        "link.replay",
        State.DEGRADED,
        HARDWARE,
        Action.INSPECT,
        3,
        LINK,
    ),
    Fault(
        "link recoveries",
        growing("link_recovery_errors__5", 2),
        "link.recovery",
        State.DEGRADED,
        HARDWARE,
        Action.INSPECT,
        3,
        LINK,
    ),
    Fault("fabric not joined", steady(fabric_state=1), "fabric.state", State.FAILED, CONFIGURATION, Action.INSPECT, 1),
    Fault(
        "fell off the bus",
        lambda machine, _turn: machine.fail_device(SLOT),
        "device.lost",
        State.FAILED,
        HARDWARE,
        Action.REBOOT,
        1,
    ),
    Fault(
        "vanished",
        lambda machine, _turn: machine.vanish(SLOT),
        "device.missing",
        State.FAILED,
        HARDWARE,
        Action.REBOOT,
        1,
    ),
    Fault(
        "XID 79",
        lambda machine, turn: machine.xid(SLOT, 79) if turn == 1 else None,
        "nvidia.xid.79",
        State.FAILED,
        HARDWARE,
        Action.REBOOT,
        1,
    ),
    Fault(
        "XID 48",
        lambda machine, turn: machine.xid(SLOT, 48) if turn == 1 else None,
        "nvidia.xid.48",
        State.FAILED,
        HARDWARE,
        Action.DRAIN_RESET,
        1,
    ),
    Fault(
        "an XID that no table knows",
        lambda machine, turn: machine.xid(SLOT, 999) if turn == 1 else None,
        "nvidia.xid.999",
        State.DEGRADED,
        FaultClass.UNKNOWN,
        Action.INSPECT,
        1,
    ),
)


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


def plant(rig: Rig, fault: Fault, turns: int) -> Snapshot:
    """Let the fault last for *turns* intervals and return the last snapshot."""
    snapshot = rig.snapshot
    for turn in range(1, turns + 1):
        fault.plant(rig.machine, turn)
        if "xid" in fault.code and turn == 1:
            rig.reader.events.append(rig.reader.wait_for_event())
        snapshot = rig.look()
    assert snapshot is not None
    return snapshot


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
    before = plant(rig, fault, fault.looks - 1) if fault.looks > 1 else rig.snapshot
    assert before is not None
    early = episode(before, fault)
    assert early is None or early.state is EpisodeState.PENDING
    assert before.verdict.state is State.OK

    fault_seen = fault._replace(plant=lambda machine, _turn: fault.plant(machine, fault.looks))
    if fault.looks == 1:
        fault_seen = fault
    after = plant(rig, fault_seen, 1)

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
    opened = plant(rig, fault, max(fault.looks, 1))
    found = episode(opened, fault)
    assert found is not None
    fault.heal(rig.machine)

    states = []
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

    def timeline(*, restarting: bool) -> list[tuple[State, tuple[str, ...]]]:
        fake_nvml.clear()
        story = []
        with Rig(fake_nvml) as rig:
            rig.look(2)
            for turn in range(1, fault.looks + 2):
                snapshot = (
                    plant(rig, fault._replace(plant=lambda machine, _t, turn=turn: fault.plant(machine, turn)), 1)
                    if "xid" not in fault.code
                    else (plant(rig, fault, 1) if turn == 1 else rig.look())
                )
                story.append(
                    (snapshot.verdict.state, tuple(str(entry.key) + entry.state for entry in snapshot.episodes))
                )
                if restarting:
                    rig.restart()
            fault.heal(rig.machine)
            for _ in range(4):
                snapshot = rig.look()
                story.append(
                    (snapshot.verdict.state, tuple(str(entry.key) + entry.state for entry in snapshot.episodes))
                )
                if restarting:
                    rig.restart()
        return story

    assert timeline(restarting=True) == timeline(restarting=False)


def passed(rig: Rig, device: str = DEVICE, **changed: float) -> Result:
    """Return the result of a verified load that ran just now, with *changed* figures."""
    figures = {"gemms_verified": 100, "mismatches": 0, "self_test_planted": 10, "self_test_found": 10} | changed
    return Result(
        workload="gemm",
        devices=(device,),
        dtype="bf16",
        state=ResultState.FINISHED,
        started=rig.clock.instant(),
        ended=rig.clock.instant(),
        metrics=tuple(Metric(name, value, "count") for name, value in figures.items()),
    )


def test_passed_retest_clears_an_uncorrected_error_although_its_counter_still_stands(rig: Rig) -> None:
    """The occurrence is settled; one more error opens it anew."""
    fault = next(entry for entry in FAULTS if entry.code == "memory.uncorrected")
    plant(rig, fault, 1)
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
    plant(rig, fault, 1)
    for changed in ({"gemms_verified": 0}, {"self_test_found": 9}, {"mismatches": 1}):
        rig.clock.advance(5)
        rig.retest(passed(rig, **changed))

        assert rig.look().verdict.state is State.FAILED


def test_lost_device_needs_a_reboot_before_its_retest_counts(rig: Rig) -> None:
    """In the same boot a passed load proves nothing of a device that fell off the bus; in the next it does."""
    fault = next(entry for entry in FAULTS if entry.code == "device.lost")
    plant(rig, fault, 1)
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
    plant(rig, fault, 1)
    rig.machine.clear()
    rig.machine.update({f"uuid.{SLOT}": "GPU-11111111-2222-3333-4444-555555555555", f"serial.{SLOT}": "1650000000999"})

    after = rig.look(2)

    assert after.verdict.state is State.OK
    assert [entry.key.code for entry in after.episodes] == []
    assert DEVICE not in after.device_verdicts
    assert len(after.device_verdicts) == 8


def test_same_event_from_nvml_and_the_kernel_log_counts_once(rig: Rig) -> None:
    """The episode of an XID that both sources tell has one occurrence."""
    rig.machine.xid(SLOT, 79)
    event = rig.reader.wait_for_event()
    rig.reader.events.append(event)
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
