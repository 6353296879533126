"""Scenario to timeline of verdicts, through the real engine: every kind of fault, on every profile that can have it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.also_found import with_also_found
from fakes.drill import Drill

from nodevet.checks.core.model import State
from nodevet.checks.reference.profiles import profile_names
from nodevet.checks.simulation.faults import KINDS

BEGINS, ENDS = 60, 420

NVIDIA, AMD, CPU = "dgx-h100", "mi300x-8", "cpu-node"

OK, DEGRADED, FAILED, UNKNOWN = State.OK, State.DEGRADED, State.FAILED, State.UNKNOWN

CASES: list[tuple[str, str, str, State, str, State]] = [
    # Profile, kind, its settings, verdict while it lasts, codes that are open then, verdict afterwards, re-tested.
    (NVIDIA, "overheat", "", FAILED, "temperature.slowdown temperature.high throttle.hardware_thermal", OK),
    (AMD, "overheat", "", FAILED, "temperature.slowdown temperature.high throttle.socket_thermal", OK),
    (CPU, "overheat", "", FAILED, "temperature.slowdown temperature.high throttle.package", OK),
    (NVIDIA, "throttle", "", FAILED, "throttle.hardware_slowdown throttle.power_brake", OK),
    (AMD, "throttle", "", FAILED, "throttle.processor_hot", OK),
    (CPU, "throttle", "", DEGRADED, "throttle.core", OK),
    (NVIDIA, "ecc_uncorrected", "", FAILED, "memory.uncorrected memory.row_remap_pending nvidia.xid.63", OK),
    (AMD, "ecc_uncorrected", "", FAILED, "memory.uncorrected amd.ras_ue", OK),
    (CPU, "ecc_uncorrected", 'device = "memory"', FAILED, "memory.uncorrected text.memory.edac_ue", FAILED),
    (NVIDIA, "ecc_corrected_storm", "", DEGRADED, "memory.corrected_rate", OK),
    (AMD, "ecc_corrected_storm", "", DEGRADED, "memory.corrected_rate", OK),
    (CPU, "ecc_corrected_storm", 'device = "memory"', DEGRADED, "memory.corrected_rate", OK),
    (NVIDIA, "link_down", "link = 17", FAILED, "link.down nvidia.xid.74", OK),
    (AMD, "link_down", "link = 6", FAILED, "link.down", OK),
    (NVIDIA, "link_errors", "", DEGRADED, "link.crc_rate link.replay link.recovery", OK),
    (NVIDIA, "pcie_narrow", "", DEGRADED, "pcie.width", OK),
    (AMD, "pcie_narrow", "lanes = 4", DEGRADED, "pcie.width", OK),
    (NVIDIA, "lost", "", FAILED, "device.lost nvidia.xid.79", FAILED),
    (AMD, "lost", "", FAILED, "device.lost amd.gpu_lost", FAILED),
    (NVIDIA, "missing", "", FAILED, "device.missing", FAILED),
    (AMD, "missing", "", FAILED, "device.missing", FAILED),
    (NVIDIA, "wrong_result", "", FAILED, "burnin.mismatch", OK),
    (AMD, "wrong_result", "", FAILED, "burnin.mismatch", OK),
    (CPU, "wrong_result", "", FAILED, "burnin.mismatch", OK),
    (NVIDIA, "slow", "", OK, "", OK),
    (NVIDIA, "xid", "code = 79", FAILED, "nvidia.xid.79", FAILED),
    (NVIDIA, "xid", "code = 31", OK, "", OK),
    (NVIDIA, "xid", "code = 48", FAILED, "nvidia.xid.48", OK),
    (AMD, "kernel_log", 'text = "amdgpu {pci}: amdgpu: GPU reset(3) failed"', FAILED, "amd.gpu_reset_failed", FAILED),
    (NVIDIA, "set", 'quantity = "row_remap_failed"\nvalue = true', FAILED, "memory.row_remap_failed", FAILED),
    (NVIDIA, "set", 'quantity = "temperature_celsius"\nstatus = "denied"', UNKNOWN, "reading.temperature_celsius", OK),
]  # fmt: skip
NAMES = [f"{case[0]} {case[1]} {case[2].splitlines()[0] if case[2] else ''}".strip() for case in CASES]


def scenario(profile: str, kind: str, lines: str) -> str:
    """Return a scenario of one fault on the third accelerator, or on the first socket."""
    target = '"cpu-0"' if profile == CPU else "2"
    device = "" if "device" in lines else f"device = {target}\n"
    return f'[[fault]]\nkind = "{kind}"\nat = {BEGINS}\nuntil = {ENDS}\n{device}{lines}\n'


@pytest.mark.parametrize(
    ("name", "profile", "kind", "lines", "during", "codes", "after"),
    [(name, *case) for name, case in zip(NAMES, CASES, strict=True)],
    ids=NAMES,
)
def test_a_fault_is_found_while_it_lasts_and_gone_when_it_was_proved(
    name: str, profile: str, kind: str, lines: str, during: State, codes: str, after: State
) -> None:
    """Nothing is found before it begins; what only a reboot, another board or a person ends stays."""
    drill = Drill(profile, scenario(profile, kind, lines))
    before = drill.run(BEGINS - 10)
    assert (before.verdict.state, drill.open_codes(before)) == (State.OK, set()), before.verdict.reason
    drill.run(20)
    drill.probe()
    ill = drill.run(ENDS - BEGINS - 30)
    told = ill.verdict.state, drill.open_codes(ill)
    assert told == with_also_found(name, during, codes.split()), ill.verdict.reason
    drill.run(30)
    drill.probe()
    assert drill.run(240).verdict.state is after


@pytest.mark.parametrize("profile", profile_names())
def test_a_healthy_node_is_ok_in_every_round_of_two_hours(profile: str) -> None:
    """Through jobs that begin and end; nothing is even pending."""
    drill = Drill(profile, interval_seconds=30, twins=False)
    for _ in range(240):
        snapshot = drill.run(0)
        drill.clock.advance(drill.interval_seconds)
        assert (snapshot.verdict.state, snapshot.episodes) == (State.OK, ()), snapshot.verdict.reason


def test_every_kind_of_fault_has_a_drill() -> None:
    """Hang and crash need a process: tests/test_agent_simulated.py."""
    assert {case[1] for case in CASES} == KINDS.keys() - {"hang", "crash"}


EXPECTED: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "application-errors": ((NVIDIA,), {"nvidia.xid.31", "nvidia.xid.13"}),
    "bad-day": ((NVIDIA, AMD), {"temperature.slowdown", "pcie.width", "link.down", "memory.uncorrected"}),
    "driver-hangs": ((NVIDIA, AMD), set()),
    "links": ((NVIDIA,), {"link.crc_rate", "link.down"}),
    "lost": ((NVIDIA, AMD), {"device.lost"}),
    "memory-errors": ((NVIDIA, AMD), {"memory.corrected_rate", "memory.uncorrected"}),
    "memory-module": ((NVIDIA, AMD, CPU), {"memory.corrected_rate", "memory.uncorrected"}),
    "overheat": ((NVIDIA, AMD), {"temperature.slowdown"}),
    "settings": ((NVIDIA,), {"power.limit_lowered", "pcie.width", "memory.ecc_disabled"}),
    "wrong-results": ((NVIDIA, AMD), {"burnin.mismatch"}),
}
"""The scenarios that are delivered: the profiles that they are for, and codes that each must bring."""


@pytest.mark.parametrize(
    ("name", "profile"), [(name, profile) for name, (profiles, _) in EXPECTED.items() for profile in profiles]
)
def test_a_delivered_scenario_brings_what_it_promises(repository: Path, name: str, profile: str) -> None:
    """On every profile that its first lines name."""
    text = (repository / "deploy" / "scenarios" / f"{name}.toml").read_text()
    drill = Drill(profile, text, interval_seconds=30)
    found: set[str] = set()
    for _ in range(130 if name == "bad-day" else 36):
        snapshot = drill.run(0)
        found |= drill.open_codes(snapshot)
        drill.probe()
        drill.clock.advance(drill.interval_seconds)
    assert EXPECTED[name][1] <= found


def test_every_delivered_scenario_is_drilled(repository: Path) -> None:
    """None is left out."""
    assert {path.stem for path in (repository / "deploy" / "scenarios").glob("*.toml")} == EXPECTED.keys()
