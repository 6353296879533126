"""The metrics page: which series a Snapshot has.

The page is built from one Snapshot each time, so a device that vanished vanishes here too, and a reading that is not
there is a series that is not there: never a zero.

A default page keeps one node small: error counters of links and memory blocks are summed per device. With
``detail`` the same metrics carry one series per link and block, and every exported quantity is on the page.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping

from nodevet.checks.model import (
    NODE,
    Device,
    DeviceKind,
    EpisodeState,
    Outcome,
    Part,
    PartKind,
    ReaderState,
    Reading,
    ReadingStatus,
    Result,
    ResultState,
    Snapshot,
    State,
)
from nodevet.checks.quantities import QUANTITIES, Quantity, QuantityKind
from nodevet.exporters.exposition import Family, Value, escape, labels_text, text

__all__ = ["MetricsPage", "families"]

PREFIX = "nodevet_"
STALE_ROUNDS = 3
STALE_MINIMUM_SECONDS = 180.0
"""Readings older than both are history, not the present: their series end."""

_PART_LABEL = {
    PartKind.SENSOR: "sensor",
    PartKind.LINK: "link",
    PartKind.MEMORY_BLOCK: "block",
    PartKind.CLOCK: "clock",
    PartKind.REASON: "reason",
    PartKind.PCIE: "port",
    PartKind.POWER_SCOPE: "scope",
    PartKind.ENGINE: "engine",
}

_SUMMED_PARTS = frozenset({PartKind.LINK, PartKind.MEMORY_BLOCK})

_ANY = frozenset({"*"})
_HELD_DOWN = frozenset(
    {
        "power_cap",
        "hardware_slowdown",
        "software_thermal",
        "hardware_thermal",
        "power_brake",
        "board_limit",
        "reliability",
        "core",
        "package",
    }
)

_DEFAULT: Mapping[str, frozenset[str]] = {
    "temperature_celsius": _ANY,
    "temperature_margin_celsius": _ANY,
    "power_watts": frozenset({"device"}),
    "clock_hertz": frozenset({"sm", "core"}),
    "throttle_seconds": _HELD_DOWN,
    "throttle_events": _ANY,
    "ecc_corrected_errors": _ANY,
    "ecc_uncorrected_errors": _ANY,
    "row_remap_pending": _ANY,
    "row_remap_failed": _ANY,
    "pcie_link_width": _ANY,
    "pcie_replays": _ANY,
    "pcie_correctable_errors": _ANY,
    "pcie_nonfatal_errors": _ANY,
    "pcie_fatal_errors": _ANY,
    "link_replay_errors": _ANY,
    "link_recovery_errors": _ANY,
    "link_crc_errors": _ANY,
    "utilization_ratio": frozenset({"compute"}),
    "memory_total_bytes": _ANY,
    "memory_used_bytes": _ANY,
    "memory_available_bytes": _ANY,
    "load_average_ratio": _ANY,
    "logical_processors": _ANY,
}
"""What a page without detail shows: quantity to the names of its parts."""

_BURN_IN = (
    ("tflops_median", 1e12, "flops_per_second", "Median rate of the last finished burn-in of this workload."),
    ("efficiency_ratio", 1, "efficiency_ratio", "Rate of the last finished burn-in over the theoretical peak."),
    ("gemms_verified", 1, "gemms_verified", "Matrix products of the last finished burn-in that were verified."),
    ("mismatches", 1, "mismatches", "Wrong matrix products that the last finished burn-in found."),
)
"""Figure of a result, what brings it to a base unit, its name here, and its help."""

_LIMIT_UNITS = ("celsius", "watts", "hertz", "bytes", "seconds", "ratio", "bytes_per_second", "flops_per_second")

Readings = dict[tuple[str, str, int | None], Reading]
"""The newest readings of one quantity by device, name of the part and its index."""


def families(snapshot: Snapshot, *, detail: bool = False) -> list[Family]:
    """Return the metrics of *snapshot*, those of the node first; families without series are left out."""
    found = [
        *_agent(snapshot),
        *_verdicts(snapshot),
        *_findings(snapshot, detail=detail),
        *_checks(snapshot),
        *_readers(snapshot, detail=detail),
        *_quantities(snapshot, detail=detail),
        *_burn_in(snapshot),
    ]
    return [family for family in found if family.samples]


class MetricsPage:
    """Renders a Snapshot once per format and hands the same bytes out until another Snapshot comes."""

    def __init__(self, *, detail: bool = False) -> None:
        """Start with nothing rendered; *detail* puts every link and every quantity on the page."""
        self._detail = detail
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._pages: dict[tuple[bool, bool], bytes] = {}

    def render(self, snapshot: Snapshot, openmetrics: bool = False, *, compressed: bool = False) -> bytes:
        """Return the page of *snapshot*, gzipped when *compressed*. Safe to call from several threads."""
        with self._lock:
            if snapshot is not self._snapshot:
                self._snapshot = snapshot
                self._pages = {}
            return self._page(snapshot, openmetrics, compressed)

    def _page(self, snapshot: Snapshot, openmetrics: bool, compressed: bool) -> bytes:
        page = self._pages.get((openmetrics, compressed))
        if page is None:
            if compressed:
                page = gzip.compress(self._page(snapshot, openmetrics, False), compresslevel=1, mtime=0)
            else:
                page = text(families(snapshot, detail=self._detail), openmetrics=openmetrics)
            self._pages[openmetrics, compressed] = page
        return page


def _gauge(name: str, description: str, samples: Mapping[str, Value | None]) -> Family:
    return _family(name, "gauge", description, samples)


def _family(name: str, kind: str, description: str, samples: Mapping[str, Value | None]) -> Family:
    measured = {labels: value for labels, value in samples.items() if value is not None}
    return Family(PREFIX + name, kind, description, measured)


def _states(current: State, **labels: str) -> dict[str, Value | None]:
    return {labels_text(**labels, state=state.value): state is current for state in State}


def _agent(snapshot: Snapshot) -> Iterator[Family]:
    agent = snapshot.agent
    yield _gauge("agent_build_info", "Version of the agent.", {labels_text(version=agent.version): 1})
    yield _gauge(
        "agent_configuration_info",
        "Digests of the configuration and of the rules in force.",
        {labels_text(configuration=agent.configuration_digest, rules=agent.rules_digest): 1},
    )
    plain: tuple[tuple[str, str, Value], ...] = (
        ("agent_start_timestamp_seconds", "When the agent started.", agent.started.wall_seconds),
        ("agent_interval_seconds", "Time between two rounds of reading.", agent.interval_seconds),
        ("agent_ready", "Whether the first round is complete.", agent.ready),
        (
            "configuration_last_reload_successful",
            "Whether the configuration that was read last is in force.",
            agent.configuration_accepted,
        ),
        ("snapshot_timestamp_seconds", "When the state on this page was judged.", snapshot.time.wall_seconds),
        ("snapshot_generation", "Number of the judgement on this page, counted by the agent.", snapshot.generation),
        ("simulated", "Whether this node is a simulation.", snapshot.simulated),
    )
    for name, description, value in plain:
        yield _gauge(name, description, {"": value})


def _verdicts(snapshot: Snapshot) -> Iterator[Family]:
    verdict = snapshot.verdict
    yield _gauge("node_state", "Verdict of the node, 1 for the state it is in.", _states(verdict.state))
    yield _gauge(
        "node_hard_fault", "Whether the verdict rests on a fault that needs one look only.", {"": verdict.hard}
    )
    oldest = verdict.oldest_evidence
    yield _gauge(
        "node_oldest_evidence_timestamp_seconds",
        "When the oldest reading was taken that the verdict rests on.",
        {"": oldest.wall_seconds if oldest else None},
    )
    states: dict[str, Value | None] = {}
    for device, judged in snapshot.device_verdicts.items():
        states.update(_states(judged.state, device=device))
    yield _gauge("device_state", "Verdict of a device, 1 for the state it is in.", states)
    yield _gauge(
        "device_info",
        "Identity of a device.",
        {_identity(device): 1 for device in snapshot.devices if device.kind is not DeviceKind.NODE},
    )


def _identity(device: Device) -> str:
    return labels_text(
        device=device.id,
        kind=device.kind.value,
        vendor=device.vendor,
        model=device.model,
        uuid=device.uuid or "",
        pci=device.pci or "",
        serial=device.serial or "",
        driver=device.driver or "",
    )


def _findings(snapshot: Snapshot, *, detail: bool) -> Iterator[Family]:
    counted = dict.fromkeys(EpisodeState, 0)
    active: dict[str, Value | None] = {}
    seen: dict[str, int] = {}
    for episode in snapshot.episodes:
        counted[episode.state] += 1
        if episode.state is EpisodeState.CLEARED:
            continue
        finding = episode.finding
        key = labels_text(code=episode.key.code, device=episode.key.device)
        active[
            labels_text(
                code=episode.key.code,
                device=episode.key.device,
                fault_class=finding.fault_class.value,
                action=finding.action.value,
                state=episode.state.value,
            )
        ] = 1
        seen[key] = seen.get(key, 0) + episode.count
    yield _gauge(
        "episodes",
        "Faults that are not cleared, by where they stand.",
        {labels_text(state=state.value): n for state, n in counted.items() if state is not EpisodeState.CLEARED},
    )
    yield _gauge("episode_active", "A fault that is not cleared, present while it lasts.", active)
    yield _family(
        "episode_occurrences", "counter", "Times that a fault that is not cleared was seen, over its parts.", seen
    )
    if detail:
        yield from _limits(snapshot)


def _limits(snapshot: Snapshot) -> Iterator[Family]:
    by_unit: dict[str, dict[str, Value | None]] = {unit: {} for unit in _LIMIT_UNITS}
    for finding in snapshot.findings:
        if finding.limit is not None and finding.limit.unit in by_unit:
            labels = labels_text(check=finding.check, code=finding.code, device=finding.device)
            by_unit[finding.limit.unit].setdefault(labels, finding.limit.value)
    for unit, samples in by_unit.items():
        yield _gauge(f"limit_{unit}", "Limit in force for what a check judged last.", samples)


def _checks(snapshot: Snapshot) -> Iterator[Family]:
    runs = {labels_text(check=run.check): run for run in snapshot.checks}
    yield _gauge(
        "check_success",
        "Whether the last run of the check came to its end.",
        {labels: run.success for labels, run in runs.items()},
    )
    yield _gauge(
        "check_duration_seconds",
        "Duration of the last run of the check.",
        {labels: run.duration_seconds for labels, run in runs.items()},
    )
    yield _gauge(
        "check_last_run_timestamp_seconds",
        "When the check ran last.",
        {labels: run.time.wall_seconds for labels, run in runs.items()},
    )
    yield _gauge(
        "check_findings",
        "Findings of the last run of the check that did not pass, by outcome.",
        {
            labels_text(check=run.check, outcome=outcome.value): run.outcomes.get(outcome.value, 0)
            for run in snapshot.checks
            for outcome in (Outcome.WARN, Outcome.FAIL, Outcome.UNMEASURED)
        },
    )
    totals = {
        labels_text(outcome=outcome.value): sum(run.outcomes.get(outcome.value, 0) for run in snapshot.checks)
        for outcome in Outcome
    }
    yield _gauge("findings", "Findings of the last run of every check, by outcome.", totals)


def _readers(snapshot: Snapshot, *, detail: bool) -> Iterator[Family]:
    present = {
        labels_text(backend=reader.backend): reader
        for reader in snapshot.readers
        if reader.state is not ReaderState.ABSENT
    }
    yield _gauge(
        "reader_up",
        "Whether the process that reads a backend answers; backends without devices are left out.",
        {labels: reader.state is ReaderState.RUNNING for labels, reader in present.items()},
    )
    yield _family(
        "reader_starts",
        "counter",
        "Times that the reader of a backend was started.",
        {labels: reader.starts for labels, reader in present.items()},
    )
    yield _family(
        "reader_hangs",
        "counter",
        "Times that the reader of a backend did not answer before its deadline.",
        {labels: reader.hangs for labels, reader in present.items()},
    )
    yield _gauge(
        "reader_last_round_timestamp_seconds",
        "When the reader of a backend completed a round last.",
        {labels: reader.last_round.wall_seconds for labels, reader in present.items() if reader.last_round},
    )
    if detail:
        yield _gauge(
            "reader_state",
            "How the reader of a backend is doing, 1 for the state it is in.",
            {
                labels_text(backend=reader.backend, state=state.value): reader.state is state
                for reader in snapshot.readers
                for state in ReaderState
            },
        )


def _quantities(snapshot: Snapshot, *, detail: bool) -> Iterator[Family]:
    statuses = dict.fromkeys(ReadingStatus, 0)
    shown = {key for key, quantity in QUANTITIES.items() if quantity.exported and (detail or key in _DEFAULT)}
    taken: dict[str, Readings] = {key: {} for key in (*shown, "link_active")}
    for sample in sorted(snapshot.samples, key=lambda sample: sample.time.wall_seconds):
        age = snapshot.time.seconds_since(sample.time)
        if age is None or age > max(STALE_MINIMUM_SECONDS, STALE_ROUNDS * snapshot.agent.interval_seconds):
            continue
        for reading in sample.readings:
            statuses[reading.status] += 1
            if reading.quantity in taken:
                part = reading.part
                taken[reading.quantity][sample.device, part.name, part.index] = reading
    yield _gauge(
        "readings",
        "Readings of the last rounds, by how they went.",
        {labels_text(status=status.value): count for status, count in statuses.items()},
    )
    if taken["link_active"]:
        yield from _link_counts(taken["link_active"])
    for key, quantity in QUANTITIES.items():
        if key in shown and taken[key]:
            yield from _quantity(quantity, taken[key], detail=detail)


def _link_counts(readings: Readings) -> Iterator[Family]:
    up = _summed(readings)
    links = dict.fromkeys(up, 0)
    for (device, *_), reading in readings.items():
        if reading.status is not ReadingStatus.UNSUPPORTED:
            links[labels_text(device=device)] += 1
    yield _gauge(
        "links", "Links that the device has.", {labels: n for labels, n in links.items() if up[labels] is not None}
    )
    yield _gauge("links_up", "Links of the device that are up; left out where one of them could not be read.", up)


def _quantity(quantity: Quantity, readings: Readings, *, detail: bool) -> Iterator[Family]:
    if quantity.kind is QuantityKind.TEXT:
        return
    if quantity.kind is QuantityKind.STATE:
        samples = _state_samples(quantity, readings)
    elif quantity.part in _SUMMED_PARTS and not detail:
        samples = _summed(readings)
    else:
        shown = _ANY if detail else _DEFAULT[quantity.key]
        samples = {
            _part_labels(device, reading.part): reading.value
            for (device, name, _), reading in readings.items()
            if isinstance(reading.value, (int, float)) and (shown is _ANY or name in shown)
        }
    kind = "counter" if quantity.kind is QuantityKind.COUNTER else "gauge"
    yield _family(quantity.key, kind, quantity.help, samples)


def _state_samples(quantity: Quantity, readings: Readings) -> dict[str, Value | None]:
    return {
        labels_text(device=device, state=state): reading.value == state
        for (device, *_), reading in readings.items()
        if reading.value is not None
        for state in quantity.states
    }


def _summed(readings: Readings) -> dict[str, Value | None]:
    """Return one sum per device; a device of which a part could not be read has none, for it would be too small."""
    sums: dict[str, float | int | None] = {}
    for (device, *_), reading in readings.items():
        if reading.status is ReadingStatus.UNSUPPORTED:
            continue
        so_far, value = sums.get(device, 0), reading.value
        if so_far is None or value is None or isinstance(value, str):
            sums[device] = None
        else:
            sums[device] = so_far + value
    return {labels_text(device=device): value for device, value in sums.items()}


def _part_labels(device: str, part: Part) -> str:
    index = "" if part.index is None else str(part.index)
    value = "_".join(word for word in (part.name, index) if word)
    if not value:
        return f'{{device="{escape(device)}"}}'
    return f'{{device="{escape(device)}",{_PART_LABEL.get(part.kind, "part")}="{escape(value)}"}}'


def _burn_in(snapshot: Snapshot) -> Iterator[Family]:
    finished = sorted(
        (result for result in snapshot.results if result.state is ResultState.FINISHED),
        key=lambda result: result.ended.wall_seconds,
    )
    last = {_workload(result): result for result in finished}
    for figure, scale, name, description in _BURN_IN:
        found = ((labels, result.metric(figure)) for labels, result in last.items())
        samples = {labels: value * scale for labels, value in found if value is not None}
        yield _gauge(f"burnin_{name}", description, samples)
    yield _gauge(
        "burnin_finished_timestamp_seconds",
        "When the last finished burn-in of this workload ended.",
        {labels: result.ended.wall_seconds for labels, result in last.items()},
    )


def _workload(result: Result) -> str:
    device = result.devices[0] if len(result.devices) == 1 else NODE
    return labels_text(workload=result.workload, device=device, dtype=result.dtype or "")
