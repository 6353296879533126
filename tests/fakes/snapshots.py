"""Snapshots built by hand: what the engine would publish for a few nodes that tests of surfaces need.

The clock is fixed, so golden files and expiry times do not move. Every figure here is made up within the range
that such hardware reports.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodevet.checks.burnin.metrics import figures
from nodevet.checks.core.model import (
    NODE,
    Action,
    AgentInfo,
    CheckRun,
    Clearing,
    Device,
    DeviceKind,
    Episode,
    EpisodeState,
    EventCount,
    Failure,
    FailureKind,
    FaultClass,
    Finding,
    Firmware,
    Instant,
    Limit,
    Link,
    Outcome,
    OwnUse,
    Part,
    PartKind,
    ReaderState,
    ReaderStatus,
    Reading,
    ReadingStatus,
    Result,
    ResultState,
    Sample,
    Snapshot,
    State,
    Verdict,
)
from nodevet.checks.core.scheduler import Permit, WriterStatus
from nodevet.checks.engine.acknowledgement import granted

BOOT_ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
BOOTTIME_SECONDS = 86_400
WALL_SECONDS = 1_795_168_800.0
GPU_COUNT = 8
LINK_COUNT = 18
CHECKS = (
    "freshness", "inventory", "kernel-log", "links", "memory-errors", "pcie", "power", "thermal", "throttle",
)  # fmt: skip
THROTTLE_REASONS = (
    "idle", "applications_clocks", "power_cap", "hardware_slowdown", "sync_boost", "software_thermal",
    "hardware_thermal", "power_brake", "display_clocks",
)  # fmt: skip
VIOLATIONS = ("power_cap", "software_thermal", "sync_boost", "board_limit", "low_utilization", "reliability")


def at(seconds_ago: float = 0.0) -> Instant:
    """Return the moment of every snapshot here, or one *seconds_ago* before it."""
    return Instant(BOOT_ID, int((BOOTTIME_SECONDS - seconds_ago) * 1e9), WALL_SECONDS - seconds_ago)


def gpu(index: int, **changes: object) -> Device:
    """Return accelerator number *index* of eight, with *changes* to its fields."""
    device = Device(
        id=gpu_id(index),
        kind=DeviceKind.ACCELERATOR,
        vendor="nvidia",
        model="NVIDIA H100 80GB HBM3",
        backend="nvidia",
        uuid=gpu_id(index),
        serial=f"165012300{index:04d}",
        pci=f"0000:{0x1B + 0x10 * index:02x}:00.0",
        pci_device_id="0x233010de",
        minor=index,
        numa_node=index // 4,
        driver="570.124.06",
        firmware=(Firmware("vbios", "96.00.89.00.01"),),
        links=tuple(Link(port, "switch", "4") for port in range(LINK_COUNT)),
        memory_bytes=85_520_809_984,
        compute_units=132,
        maximum_clock_hertz=1_980_000_000,
        architecture="hopper",
    )
    return msgspec.structs.replace(device, **changes)


def gpu_id(index: int) -> str:
    """Return the UUID of accelerator number *index*."""
    return f"GPU-{index:08x}-5a1c-4f2e-9b77-0c1d2e3f4a5b"


def cpu(index: int) -> Device:
    """Return processor socket number *index*."""
    return Device(
        id=f"cpu-{index}",
        kind=DeviceKind.CPU,
        vendor="intel",
        model="Intel(R) Xeon(R) Platinum 8480C",
        backend="host",
        numa_node=index,
        compute_units=56,
        maximum_clock_hertz=3_800_000_000,
    )


def cpu_node() -> Snapshot:
    """Return a healthy machine without accelerators, its load proven."""
    sockets = tuple(cpu(index) for index in range(2))
    return _snapshot(
        devices=sockets,
        samples=_host_samples(sockets),
        readers=(_reader("host", {"kernel": "6.1.0"}), _absent_reader("nvidia")),
        results=tuple(burn_in(socket.id, 1.41 + n / 100, 0.71) for n, socket in enumerate(sockets)),
    )


def gpu_node(**changes: object) -> Snapshot:
    """Return a healthy machine of eight accelerators behind switches, with *changes* to the snapshot's fields."""
    sockets = tuple(cpu(index) for index in range(2))
    gpus = tuple(gpu(index) for index in range(GPU_COUNT))
    samples = [*_host_samples(sockets)]
    for index, device in enumerate(gpus):
        samples += _gpu_samples(device, index)
    snapshot = _snapshot(
        devices=(*sockets, *gpus),
        samples=tuple(samples),
        readers=(_reader("host", {"kernel": "6.1.0"}), _reader("nvidia", {"driver": "570.124.06", "nvml": "12.570"})),
        results=tuple(burn_in(device.id, 712 + 2.5 * n, 0.72 + n / 500) for n, device in enumerate(gpus)),
    )
    return msgspec.structs.replace(snapshot, **changes)


def degraded_node() -> Snapshot:
    """Return the eight accelerators of which number 2 runs hot: a measured condition that does not close the gate."""
    finding = Finding(
        check="thermal",
        code="thermal.margin",
        outcome=Outcome.WARN,
        message="core is 3 degrees below its slowdown temperature, limit 5: clean the filters, check the fans",
        device=gpu_id(2),
        part=Part(PartKind.SENSOR, "core"),
        value=3,
        unit="celsius",
        limit=Limit("<=", 5, "celsius", "table limits.csv thermal.margin"),
        action=Action.INSPECT,
        needed=3,
        window=5,
        evidence_time=at(2),
    )
    return with_findings(gpu_node(), (finding,), State.DEGRADED)


def acknowledged_node() -> Snapshot:
    """Return the node with a failed link, which a person acknowledged for a week."""
    node = failed_node()
    known = tuple(
        granted(episode, note="INC-7, cable ordered", actor="uid 0", time=at(600), until=at(-7 * 86_400))
        for episode in node.episodes
    )
    return msgspec.structs.replace(node, episodes=known)


def failed_node() -> Snapshot:
    """Return the eight accelerators of which number 5 fell off the bus: its reader says lost, its readings are gone."""
    lost = gpu_id(5)
    finding = Finding(
        check="kernel-log",
        code="nvidia.xid.79",
        outcome=Outcome.FAIL,
        message="GPU has fallen off the bus (XID 79): power cycle the node, then reseat or replace the board",
        device=lost,
        action=Action.POWER_CYCLE,
        clearing=Clearing.HARDWARE_EVENT,
        occurrence="kmsg:4711",
        evidence=("NVRM: Xid (PCI:0000:6b:00): 79, GPU has fallen off the bus.",),
        evidence_time=at(30),
    )
    healthy = gpu_node()
    samples = tuple(
        msgspec.structs.replace(sample, readings=(), failure=Failure(FailureKind.LOST, "GPU is lost", of_driver=True))
        if sample.device == lost
        else sample
        for sample in healthy.samples
    )
    return with_findings(msgspec.structs.replace(healthy, samples=samples), (finding,), State.FAILED)


def unknown_node() -> Snapshot:
    """Return the eight accelerators whose reader may not open the devices: nothing of theirs was measured."""
    finding = Finding(
        check="inventory",
        code="backend.denied",
        outcome=Outcome.UNMEASURED,
        message="nvidia: permission denied on /dev/nvidiactl: add the agent's user to the group of the device nodes",
        device=NODE,
        fault_class=FaultClass.NODE,
        action=Action.INSPECT,
        required=True,
        evidence_time=at(1),
    )
    healthy = gpu_node()
    samples = tuple(
        msgspec.structs.replace(sample, readings=tuple(_denied(reading) for reading in sample.readings))
        if sample.backend == "nvidia"
        else sample
        for sample in healthy.samples
    )
    unread = Verdict(state=State.UNKNOWN, reason="nothing was evaluated")
    verdicts = {
        device.id: unread if device.backend == "nvidia" else healthy.device_verdicts[device.id]
        for device in healthy.devices
    }
    unmeasured = msgspec.structs.replace(healthy, samples=samples, results=(), device_verdicts=verdicts)
    return with_findings(unmeasured, (finding,), State.UNKNOWN)


def starting_node() -> Snapshot:
    """Return a node of which nothing was evaluated yet."""
    unknown = Verdict(state=State.UNKNOWN, reason="nothing was evaluated yet")
    snapshot = gpu_node(samples=(), results=(), findings=(), checks=(), verdict=unknown, generation=0)
    return msgspec.structs.replace(
        snapshot,
        device_verdicts={device.id: unknown for device in snapshot.devices},
        agent=msgspec.structs.replace(snapshot.agent, ready=False),
    )


def eventful_node() -> Snapshot:
    """Return the hot node with everything that a metrics page can tell: events, limits in force, a load that runs."""
    hot = degraded_node()
    sample = next(finding for finding in hot.findings if finding.limit)
    limits = (
        Limit(">=", 84, "celsius", "table limits.csv temperature.high"),
        Limit(">=", 90, "celsius", "reported by the device"),
        Limit(">", 0.01, "ratio", "table limits.csv throttle.ratio"),
    )
    passing = tuple(
        msgspec.structs.replace(
            sample, code=f"{sample.check}.{limit.unit}", device=gpu_id(n), outcome=Outcome.PASS, limit=limit
        )
        for n, limit in enumerate(limits)
    )
    events = (
        EventCount(code="nvidia.xid.31", device=gpu_id(1), fault_class=FaultClass.APPLICATION, count=2, last=at(40)),
        EventCount(code="nvidia.xid.94", device=gpu_id(3), fault_class=FaultClass.HARDWARE, count=1, last=at(900)),
    )
    agent = msgspec.structs.replace(
        hot.agent,
        probing=True,
        load="probe runs",
        jobs=2,
        oldest_job_seconds=7200.0,
        gate_decisions={**dict.fromkeys(("open", "closed", "observed"), 0), "open": 12, "no_verdict_open": 1},
        slurm=WriterStatus(
            writer="drain",
            node="n0042",
            partitions=("main",),
            states=("IDLE",),
            last_read_seconds=at(20).wall_seconds,
            writes={"drain": 1, "update": 0},
            skipped={"limit": 0, "foreign": 2},
        ),
    )
    return msgspec.structs.replace(hot, findings=(*hot.findings, *passing), events=events, agent=agent)


EVERY_STATE = {
    State.OK: gpu_node,
    State.DEGRADED: degraded_node,
    State.FAILED: failed_node,
    State.UNKNOWN: unknown_node,
}
"""A node in each state, for tests over all surfaces."""


def with_findings(snapshot: Snapshot, findings: Iterable[Finding], state: State) -> Snapshot:
    """Return *snapshot* with *findings* confirmed as open episodes and the verdicts that follow from them."""
    findings = tuple(findings)
    worst = findings[0]
    verdict = Verdict(
        state=state,
        reason=f"{worst.code} on {worst.device}: {worst.message}",
        action=worst.action,
        episodes=tuple(finding.key for finding in findings),
        oldest_evidence=at(30),
        hard=state is State.FAILED,
    )
    verdicts = dict(snapshot.device_verdicts)
    verdicts.update({finding.device: verdict for finding in findings if finding.device in verdicts})
    return msgspec.structs.replace(
        snapshot,
        verdict=verdict,
        device_verdicts=verdicts,
        findings=tuple(f for f in snapshot.findings if f.check not in {g.check for g in findings}) + findings,
        episodes=tuple(open_episode(finding) for finding in findings),
        checks=tuple(_run(name, snapshot.findings, findings) for name in CHECKS),
    )


def open_episode(finding: Finding, state: EpisodeState = EpisodeState.OPEN) -> Episode:
    """Return an episode of *finding* that was confirmed a while ago."""
    return Episode(
        key=finding.key,
        check=finding.check,
        state=state,
        outcome=finding.outcome,
        finding=finding,
        opened=at(30),
        confirmed=at(20),
        last_seen=at(),
        count=3,
    )


def burn_in(device: str, tflops: float, efficiency: float, *, wrong: int = 0) -> Result:
    """Return a finished matrix multiplication on *device*, all products verified, *wrong* of them wrong."""
    gemms = 90_112
    values: dict[str, float | int | None] = {
        "tflops_median": tflops,
        "tflops_p5": tflops * 0.987,
        "tflops_spread": 0.011,
        "peak_tflops": tflops / efficiency,
        "tflops_mean": tflops,
        "peak_highest_tflops": tflops / efficiency * 1.082,
        "efficiency_ratio": efficiency,
        "efficiency_held_ratio": efficiency / 0.95,
        "clock_held_hertz": 0.95 * 1.83e9,
        "clock_fraction_ratio": 0.95,
        "gemms_run": gemms,
        "gemms_verified": gemms,
        "mismatches": wrong,
        "verified_fraction": 1.0,
        "mismatch_rate_upper_bound_95": (3.0 + 2 * wrong) / gemms,
        "flop_verified": 3.71e17,
        "bytes_verified": 2.41e13,
        "checking_overhead_ratio": 0.013,
        "late_batches": 0,
        "batches": 704,
        "operand_sets_certified": 3,
        "self_test_planted": 3,
        "self_test_found": 3,
        "measured_seconds": 598.2,
        "memory_bytes": 8_053_063_680,
    }
    return Result(
        workload="gemm",
        devices=(device,),
        state=ResultState.FINISHED,
        started=at(700),
        ended=at(100),
        dtype="bfloat16",
        shape=(8192, 8192, 30720),
        seed=20261,
        pattern="wide",
        conditions={
            "verification": "mismatch" if wrong else "verified",
            "temperature_celsius": 61.5,
            "clock_hertz": 1.755e9,
            "power_watts": 688.0,
        },
        metrics=figures(values),
    )


def _snapshot(
    devices: tuple[Device, ...],
    samples: tuple[Sample, ...],
    readers: tuple[ReaderStatus, ...],
    results: tuple[Result, ...],
) -> Snapshot:
    findings = tuple(
        Finding(check=name, code=f"{name}.ok", outcome=Outcome.PASS, message="within limits", device=device.id)
        for name in CHECKS
        for device in devices
    )
    ok = Verdict(state=State.OK, reason="all checks pass", oldest_evidence=at(10))
    return Snapshot(
        generation=42,
        time=at(),
        node="n0042",
        scope="node",
        simulated=False,
        verdict=ok,
        device_verdicts={device.id: ok for device in devices},
        devices=devices,
        samples=samples,
        findings=findings,
        episodes=(),
        results=results,
        readers=readers,
        checks=tuple(_run(name, findings) for name in CHECKS),
        agent=AgentInfo(
            version="0.1.0",
            started=at(3600),
            interval_seconds=10.0,
            configuration_digest="9f2c11d0",
            rules_digest="51aa0b3e",
            configuration_file="/etc/nodevet/nodevet.toml",
            ready=True,
            permit=Permit(held=True, why="a fake node has one"),
            own_use=OwnUse(
                resident_bytes=40 << 20,
                proportional_bytes=30 << 20,
                cpu_seconds=12.5,
                open_descriptors=42,
                threads=5,
            ),
        ),
    )


def _run(check: str, *findings: tuple[Finding, ...]) -> CheckRun:
    outcomes: dict[str, int] = {}
    for finding in (one for group in findings for one in group if one.check == check):
        outcomes[finding.outcome.value] = outcomes.get(finding.outcome.value, 0) + 1
    return CheckRun(check=check, time=at(1), duration_seconds=0.0004, success=True, outcomes=outcomes)


def _reader(backend: str, versions: dict[str, str]) -> ReaderStatus:
    return ReaderStatus(
        backend=backend, state=ReaderState.RUNNING, pid=4242, starts=1, last_round=at(1), versions=versions
    )


def _absent_reader(backend: str) -> ReaderStatus:
    return ReaderStatus(backend=backend, state=ReaderState.ABSENT, detail="no device of this vendor")


def _sample(backend: str, group: str, device: str, readings: Iterable[Reading]) -> Sample:
    return Sample(backend, group, device, 8640, at(1), 0.004, tuple(readings))


def _host_samples(sockets: tuple[Device, ...]) -> tuple[Sample, ...]:
    node = (
        Reading("memory_total_bytes", 2_164_663_517_184),
        Reading("memory_available_bytes", 2_061_584_302_080),
        Reading("load_average_ratio", 0.03),
        Reading("logical_processors", 224),
        Reading("physical_cores", 112),
        Reading("uptime_seconds", float(BOOTTIME_SECONDS)),
    )
    samples = [_sample("host", "fast", NODE, node)]
    for index, socket in enumerate(sockets):
        readings = [
            Reading("temperature_celsius", 44.0 + index, Part(PartKind.SENSOR, "package")),
            Reading("clock_hertz", 3_000_000_000, Part(PartKind.CLOCK, "core")),
            Reading("throttle_events", 0, Part(PartKind.REASON, "package")),
            Reading("throttle_events", 0, Part(PartKind.REASON, "core")),
            Reading("ecc_corrected_errors", 0, Part(PartKind.MEMORY_BLOCK, "dram")),
            Reading("ecc_uncorrected_errors", 0, Part(PartKind.MEMORY_BLOCK, "dram")),
        ]
        samples.append(_sample("host", "fast", socket.id, readings))
    return tuple(samples)


def _gpu_samples(device: Device, index: int) -> tuple[Sample, ...]:
    return (
        _sample("nvidia", "fast", device.id, _fast_readings(index)),
        _sample("nvidia", "slow", device.id, (*_memory_readings(), *_pcie_readings(), *_link_readings())),
    )


def _fast_readings(index: int) -> Iterable[Reading]:
    core, memory = Part(PartKind.SENSOR, "core"), Part(PartKind.SENSOR, "memory")
    board = Part(PartKind.POWER_SCOPE, "device")
    yield Reading("temperature_celsius", 34 + index, core)
    yield Reading("temperature_celsius", 42 + index, memory)
    yield Reading("temperature_margin_celsius", 53 - index, core)
    yield Reading("temperature_slowdown_celsius", 89, core)
    yield Reading("temperature_shutdown_celsius", 92, core)
    yield Reading("temperature_maximum_celsius", 87, core)
    yield Reading("power_watts", 71.25 + index, board)
    yield Reading("power_limit_watts", 700.0, board)
    yield Reading("power_limit_default_watts", 700.0, board)
    yield Reading("energy_joules", 6_200_000.5 + index, board)
    for name, clock, maximum in (
        ("sm", 345_000_000, 1_980_000_000),
        ("memory", 2_619_000_000, 2_619_000_000),
        ("graphics", 345_000_000, 1_980_000_000),
        ("video", 765_000_000, 1_545_000_000),
    ):
        yield Reading("clock_hertz", clock, Part(PartKind.CLOCK, name))
        yield Reading("clock_maximum_hertz", maximum, Part(PartKind.CLOCK, name))
    for reason in THROTTLE_REASONS:
        yield Reading("throttle_active", reason == "idle", Part(PartKind.REASON, reason))
    for reason in VIOLATIONS:
        yield Reading("throttle_seconds", 0.0, Part(PartKind.REASON, reason))
    yield Reading("utilization_ratio", 0.0, Part(PartKind.ENGINE, "compute"))
    yield Reading("memory_total_bytes", 85_520_809_984)
    yield Reading("memory_used_bytes", 1_048_576)
    yield Reading("compute_processes", 1)
    yield Reading("compute_process_ids", "31337")
    yield Reading("persistence_mode", value=True)


def _memory_readings() -> Iterable[Reading]:
    yield Reading("ecc_enabled", value=True)
    for block in ("dram", "sram"):
        part = Part(PartKind.MEMORY_BLOCK, block)
        yield Reading("ecc_corrected_errors", 0, part)
        yield Reading("ecc_uncorrected_errors", 0, part)
        yield Reading("ecc_uncorrected_lifetime_errors", 0, part)
    yield Reading("ecc_sram_threshold_exceeded", value=False)
    yield Reading("remapped_rows_correctable", 0)
    yield Reading("remapped_rows_uncorrectable", 0)
    yield Reading("row_remap_pending", value=False)
    yield Reading("row_remap_failed", value=False)
    yield Reading("row_remap_banks_without_spares", 0)
    yield Reading("recovery_action", "none")
    yield Reading("fabric_state", "completed")


def _pcie_readings() -> Iterable[Reading]:
    part = Part(PartKind.PCIE)
    yield Reading("pcie_link_generation", 5, part)
    yield Reading("pcie_link_generation_maximum", 5, part)
    yield Reading("pcie_link_width", 16, part)
    yield Reading("pcie_link_width_maximum", 16, part)
    yield Reading("pcie_replays", 0, part)
    for key in ("pcie_correctable_errors", "pcie_nonfatal_errors", "pcie_fatal_errors"):
        yield Reading(key, None, part, ReadingStatus.UNSUPPORTED, "no AER file for this address")


def _link_readings() -> Iterable[Reading]:
    for port in range(LINK_COUNT):
        part = Part(PartKind.LINK, index=port)
        yield Reading("link_active", value=True, part=part)
        yield Reading("link_bandwidth_bytes_per_second", 26_562_000_000, part)
        yield Reading("link_replay_errors", 0, part)
        yield Reading("link_recovery_errors", 0, part)
        yield Reading("link_crc_errors", 0, part)


def _denied(reading: Reading) -> Reading:
    return Reading(reading.quantity, None, reading.part, ReadingStatus.DENIED, "permission denied")
