"""Views built by hand: a healthy node of two accelerators and a memory controller, and what may be wrong with it.

Everything is healthy until a test changes it. A reading is named by quantity and part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from nodevet.checks.core.model import (
    WHOLE,
    Device,
    DeviceKind,
    Event,
    Failure,
    FailureKind,
    Finding,
    Instant,
    Metric,
    Outcome,
    Part,
    PartKind,
    Provenance,
    ReaderState,
    ReaderStatus,
    Reading,
    ReadingStatus,
    Result,
    ResultState,
    Sample,
    Scalar,
)
from nodevet.checks.core.parts import PART_NAMES
from nodevet.checks.core.quantities import QUANTITIES
from nodevet.checks.engine.baseline import requirements
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.view import Cadence, Growth, KernelLogState, KnownDevices, Seen, View

BOOT = "3b1f0a52-9a0c-4c6e-8f0e-6a5d0e2f4b11"
SECONDS = 5_000.0
WALL = 1_795_000_000.0

GPU = "GPU-aaaa"
SIBLING = "GPU-bbbb"
CONTROLLER = "mc0"

CORE = Part(PartKind.SENSOR, "core")
DRAM = Part(PartKind.MEMORY_BLOCK, "dram")
PCIE = Part(PartKind.PCIE)
SCOPE = Part(PartKind.POWER_SCOPE, "device")
COMPUTE = Part(PartKind.ENGINE, "compute")

BAD = (ReadingStatus.UNSUPPORTED, ReadingStatus.UNAVAILABLE, ReadingStatus.DENIED, ReadingStatus.ERROR)

REASONS = (
    "idle", "applications_clocks", "power_cap", "hardware_slowdown", "sync_boost", "software_thermal",
    "hardware_thermal", "power_brake", "display_clocks",
)  # fmt: skip
"""The nine reasons in the order of their bits."""

LINKS = 18

Quantity = tuple[str, Part]


def at(seconds: float = 0.0, boot: str = BOOT, wall: float | None = None) -> Instant:
    """Return the moment *seconds* after that of the healthy view."""
    return Instant(boot, int((SECONDS + seconds) * 1e9), WALL + seconds if wall is None else wall)


def reason(name: str) -> Part:
    """Return the part that stands for a reason to hold clocks down."""
    return Part(PartKind.REASON, name)


def link(port: int) -> Part:
    """Return the part that stands for a link."""
    return Part(PartKind.LINK, "", port)


def gpu(identity: str = GPU, slot: str = "0000:1b:00.0", **changes: Any) -> Device:
    """Return an accelerator with *changes*."""
    device = Device(
        id=identity,
        kind=DeviceKind.ACCELERATOR,
        vendor="nvidia",
        model="NVIDIA H100 80GB HBM3",
        backend="nvidia",
        uuid=identity,
        serial=f"serial of {identity}",
        pci=slot,
        minor=0,
    )
    return msgspec.structs.replace(device, **changes)


def bare_board(slot: str = "0000:1b:00.0", driver: str | None = None) -> Device:
    """Return an accelerator as only the PCI bus shows it."""
    return Device(
        id=f"pci-{slot}",
        kind=DeviceKind.ACCELERATOR,
        vendor="nvidia",
        model="PCI device 10de:2330",
        backend="host",
        pci=slot,
        driver=driver,
    )


def controller() -> Device:
    """Return a memory controller of the host."""
    return Device(id=CONTROLLER, kind=DeviceKind.MEMORY, vendor="host", model="EDAC mc0", backend="host")


NOT_IN_VIEW = frozenset(
    {
        "temperature_margin_shutdown_celsius",
        "temperature_margin_maximum_celsius",
        "clock_maximum_hertz",
        "throttle_events",
        "ecc_uncorrected_lifetime_errors",
        "remapped_rows_correctable",
        "remapped_rows_uncorrectable",
        "memory_total_bytes",
        "memory_used_bytes",
        "compute_processes",
        "compute_partition",
        "memory_partition",
        "persistence_mode",
        "memory_available_bytes",
        "load_average_ratio",
        "logical_processors",
        "physical_cores",
    }
)
"""Exported quantities that the healthy accelerator does not read: those of hosts, other vendors or no check."""

_WRITTEN: Mapping[Quantity, Scalar] = {
    ("temperature_celsius", CORE): 55,
    ("temperature_margin_celsius", CORE): 32,
    ("temperature_margin_slowdown_celsius", CORE): -2,
    ("temperature_celsius", Part(PartKind.SENSOR, "memory")): 66,
    ("temperature_slowdown_celsius", CORE): 87,
    ("temperature_shutdown_celsius", CORE): 92,
    ("temperature_maximum_celsius", Part(PartKind.SENSOR, "memory")): 95,
    ("power_watts", SCOPE): 610,
    ("power_limit_watts", SCOPE): 700,
    ("energy_joules", SCOPE): 7.2e6,
    ("power_limit_requested_watts", SCOPE): 700,
    ("power_limit_default_watts", SCOPE): 700,
    ("clock_hertz", Part(PartKind.CLOCK, "sm")): 1.7e9,
    ("clock_hertz", Part(PartKind.CLOCK, "memory")): 2.619e9,
    **{("throttle_active", reason(name)): False for name in REASONS},
    ("throttle_seconds", reason("hardware_thermal")): 0.0,
    ("throttle_seconds", reason("software_thermal")): 12.0,
    ("throttle_seconds", reason("power_cap")): 4000.0,
    ("ecc_enabled", WHOLE): True,
    ("ecc_uncorrected_errors", DRAM): 0,
    ("ecc_corrected_errors", DRAM): 3,
    ("ecc_deferred_errors", DRAM): 0,
    ("bad_pages_retired", WHOLE): 2,
    ("bad_pages_pending", WHOLE): 0,
    ("bad_pages_unreservable", WHOLE): 0,
    ("bad_pages_threshold", WHOLE): 128,
    ("row_remap_failed", WHOLE): False,
    ("row_remap_pending", WHOLE): False,
    ("row_remap_banks_without_spares", WHOLE): 0,
    ("ecc_sram_threshold_exceeded", WHOLE): False,
    ("recovery_action", WHOLE): "none",
    ("pcie_link_width", PCIE): 16,
    ("pcie_link_width_maximum", PCIE): 16,
    ("pcie_link_generation", PCIE): 5,
    ("pcie_link_generation_maximum", PCIE): 5,
    ("utilization_ratio", COMPUTE): 0.97,
    ("pcie_replays", PCIE): 7,
    ("pcie_correctable_errors", PCIE): 7,
    ("pcie_nonfatal_errors", PCIE): 0,
    ("pcie_fatal_errors", PCIE): 0,
    **{("link_active", link(port)): True for port in range(LINKS)},
    ("link_replay_errors", link(0)): 0,
    ("link_recovery_errors", link(0)): 0,
    ("link_crc_errors", link(0)): 0,
    ("link_effective_errors", link(0)): 0,
    ("fabric_state", WHOLE): "completed",
    ("fabric_healthy", WHOLE): True,
    ("fabric_faults", WHOLE): "",
    ("partitioned", WHOLE): False,
}
GPU_READINGS: Mapping[Quantity, Scalar] = {
    **_WRITTEN,
    **{
        (key, Part(entry.part, min(PART_NAMES[entry.part]))): entry.example
        for key, entry in QUANTITIES.items()
        if entry.exported and key not in NOT_IN_VIEW and key not in {written for written, _ in _WRITTEN}
    },
}
"""A quantity that is not written above has the example of its row."""

CONTROLLER_READINGS: Mapping[Quantity, Scalar] = {
    ("ecc_uncorrected_errors", Part(PartKind.MEMORY_BLOCK, "controller", 0)): 0,
    ("ecc_corrected_errors", Part(PartKind.MEMORY_BLOCK, "controller", 0)): 1,
    ("throttle_events", reason("package")): 5,
}


def sample(
    device: Device, readings: Mapping[Quantity, Scalar | Reading | None], seconds: float = 0.0, **changes: Any
) -> Sample:
    """Return a sample of *readings*; a Reading stands for itself, None leaves the reading out."""
    entries = tuple(
        value if isinstance(value, Reading) else Reading(quantity, value, part)
        for (quantity, part), value in readings.items()
        if value is not None
    )
    taken = Sample(device.backend, "fast", device.id, 1, at(seconds), 0.01, entries)
    return msgspec.structs.replace(taken, **changes)


def bad(quantity: str, part: Part = WHOLE, status: ReadingStatus = ReadingStatus.DENIED) -> Reading:
    """Return a reading without a value."""
    return Reading(quantity, None, part, status, "for a test")


def healthy(
    changes: Mapping[Quantity, Scalar | Reading | None] | None = None,
    growth: Mapping[Quantity, float] | None = None,
    *,
    device: Device | None = None,
    host: Mapping[Quantity, Scalar | Reading | None] | None = None,
    host_growth: Mapping[Quantity, float] | None = None,
    seconds: float = 10.0,
    **fields: Any,
) -> View:
    """Return the healthy view with *changes* to the readings of the first accelerator, and *fields* of the view.

    Every counter grew by zero over *seconds*, but those that *growth* names.
    """
    first, second, memory = device or gpu(), gpu(SIBLING, "0000:2b:00.0", minor=1), controller()
    samples = (
        sample(first, {**GPU_READINGS, **(changes or {})}),
        sample(second, GPU_READINGS),
        sample(memory, {**CONTROLLER_READINGS, **(host or {})}),
    )
    grown = {first.id: growth or {}, memory.id: host_growth or {}}
    devices = (first, second, memory)
    view = View(
        now=at(1),
        devices=devices,
        memory=KnownDevices({entry.id: Seen(entry, at(-60), at()) for entry in devices}),
        samples={(entry.device, entry.group): entry for entry in samples},
        growth={
            (entry.device, reading.quantity, reading.part): Growth(
                grown.get(entry.device, {}).get((reading.quantity, reading.part), 0.0), seconds, entry.time
            )
            for entry in samples
            for reading in entry.readings
        },
        readers=(reader("host"), reader("nvidia")),
        cadences={(backend, "fast"): Cadence(10, 5) for backend in ("host", "nvidia")},
        required={entry.id: requirements(entry) for entry in devices},
        kernel_log=KernelLogState(True, "/dev/kmsg", read=at()),
        results=(burn_in(first.id), burn_in(second.id)),
    )
    return msgspec.structs.replace(view, **fields)


def reader(backend: str, state: ReaderState = ReaderState.RUNNING, **changes: Any) -> ReaderStatus:
    """Return how the reader of *backend* does."""
    return msgspec.structs.replace(ReaderStatus(backend=backend, state=state, starts=1, last_round=at()), **changes)


def failed(kind: FailureKind, device: Device | None = None, detail: str = "for a test", seconds: float = 0.0) -> Sample:
    """Return a sample that could not be taken."""
    return sample(device or gpu(), {}, seconds, failure=Failure(kind, detail, of_driver=True))


def with_samples(view: View, *samples: Sample) -> View:
    """Return *view* with *samples* in place of those of the same device and group."""
    return msgspec.structs.replace(view, samples={**view.samples, **{(s.device, s.group): s for s in samples}})


def event(code: str, **changes: Any) -> Event:
    """Return something that the kernel told of the first accelerator."""
    told = Event(
        code=code,
        source="kernel_log",
        time=at(),
        text=f"a line about {code}",
        pci="0000:1b:00",
        sequence=77,
        provenance=Provenance.KERNEL,
    )
    return msgspec.structs.replace(told, **changes)


def burn_in(
    device: str = GPU, started: float = -300.0, state: ResultState = ResultState.FINISHED, **metrics: Any
) -> Result:
    """Return a verified workload without a mismatch, with *metrics* changed."""
    figures = {
        "gemms_run": 5000, "gemms_verified": 5000, "mismatches": 0, "self_test_planted": 6, "self_test_found": 6,
        **metrics,
    }  # fmt: skip
    return Result(
        workload="gemm",
        devices=(device,),
        state=state,
        started=at(started),
        ended=at(started + 60),
        metrics=tuple(Metric(name, value, "count") for name, value in figures.items()),
    )


def judge(name: str, view: View, **policy: Any) -> list[Finding]:
    """Return the findings of check *name*, its policy the default but for *policy*."""
    declared = next(entry for entry in discover() if entry.name == name)
    return list(declared.judge(view, declared.policy(**policy)))


def of(findings: Iterable[Finding], code: str, device: str = GPU, part: Part | None = None) -> Finding:
    """Return the one finding of *code* on *device*, and on *part* where it is given."""
    found = [f for f in findings if f.code == code and f.device == device and part in (None, f.part)]
    assert len(found) == 1, f"{len(found)} findings of {code} on {device}, {part}"
    return found[0]


def fault(code: str = "test.fault", outcome: Outcome = Outcome.FAIL, **changes: Any) -> Finding:
    """Return a finding for tests of the fold."""
    finding = Finding(check="test", code=code, outcome=outcome, message="a fault for a test", device=GPU)
    return msgspec.structs.replace(finding, **changes)
