"""The node on the metrics page: its agent, verdicts, faults, events, checks, the limits in force and the readers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from nodevet.checks.core.model import (
    NODE,
    Device,
    DeviceKind,
    Episode,
    EpisodeState,
    Finding,
    Outcome,
    OwnUse,
    ReaderState,
    Snapshot,
    State,
)
from nodevet.checks.engine.acknowledgement import is_word
from nodevet.checks.engine.modes import closing

from .family import Family, LabelValues, Maker, Value, counter, gauge

_PLAIN_LIMIT_UNITS = ("celsius", "watts")
_LIMIT_UNITS = ("celsius", "watts", "hertz", "bytes", "seconds", "ratio", "bytes_per_second", "flops_per_second")

_FAULT = ("code", "device")
_EPISODE = ("check", "code", "device", "fault_class", "outcome", "action", "state")
_IDENTITY = ("device", "kind", "vendor", "model", "uuid", "pci", "serial", "driver")


def node_makers(snapshot: Snapshot, *, detail: bool) -> Iterator[Maker]:
    """Yield the makers of all metrics apart from quantities and burn-in results."""
    yield "metrics: agent", partial(_agent, snapshot)
    yield "metrics: own use", partial(_own_use, snapshot.agent.own_use)
    yield "metrics: gate", partial(_gate, snapshot)
    yield "metrics: verdicts", partial(_verdicts, snapshot)
    yield "metrics: devices", partial(_devices, snapshot)
    yield "metrics: episodes", partial(_episodes, snapshot)
    yield "metrics: acknowledgements", partial(_acknowledged, snapshot)
    yield "metrics: events", partial(_events, snapshot)
    yield "metrics: checks", partial(_checks, snapshot)
    yield "metrics: limits", partial(_limits, snapshot, _LIMIT_UNITS if detail else _PLAIN_LIMIT_UNITS)
    yield "metrics: readers", partial(_readers, snapshot)


def _states(current: State, *labels: str) -> dict[LabelValues, Value | None]:
    return {(*labels, state.value): state is current for state in State}


def _agent(snapshot: Snapshot) -> Iterator[Family]:
    agent = snapshot.agent
    yield gauge("build_info", "Version of the agent that serves this page.", ("version",), {(agent.version,): 1})
    yield gauge(
        "node_info",
        "Name of the node, scope of its verdict, and whether it is simulated.",
        ("node", "scope", "simulated"),
        {(snapshot.node, snapshot.scope, str(snapshot.simulated).lower()): 1},
    )
    yield gauge(
        "agent_configuration_info",
        "Digests of the active configuration and rules.",
        ("configuration", "rules"),
        {(agent.configuration_digest, agent.rules_digest): 1},
    )
    plain: tuple[tuple[str, str, Value], ...] = (
        ("agent_start_timestamp_seconds", "Start time of the agent.", agent.started.wall_seconds),
        ("agent_interval_seconds", "Interval between two rounds of reading.", agent.interval_seconds),
        ("agent_ready", "Whether the first round is complete.", agent.ready),
        ("probing", "Whether a probe or burn-in of the agent may run on the devices now.", agent.probing),
        (
            "configuration_last_reload_successful",
            "Whether the last configuration reload succeeded.",
            agent.configuration_accepted,
        ),
        ("snapshot_timestamp_seconds", "Time of the verdict on this page.", snapshot.time.wall_seconds),
        ("snapshot_generation", "Sequence number of the verdict on this page.", snapshot.generation),
        ("simulated", "Whether this node is simulated.", snapshot.simulated),
    )
    for name, description, value in plain:
        yield gauge(name, description, (), {(): value})
    yield gauge(
        "output_success",
        "Whether the last write of the output (store, state file) succeeded.",
        ("output",),
        {("store",): not agent.store, ("state_file",): not agent.state_file},
    )
    yield counter(
        "log_dropped_lines",
        "Log lines of the agent that were dropped because the log receiver was too slow.",
        (),
        {(): agent.dropped_log_lines},
    )
    yield counter(
        "http_refused_connections",
        "HTTP connections closed without an answer: incomplete request, or too many connections.",
        (),
        {(): agent.refused_connections},
    )


def _own_use(use: OwnUse) -> Iterator[Family]:
    """Yield the resource use of the agent's process; values that could not be read are left out."""
    gauges: tuple[tuple[str, str, Value | None], ...] = (
        ("resident_memory_bytes", "Resident memory of the agent's process (RSS).", use.resident_bytes),
        (
            "proportional_memory_bytes",
            "Proportional memory of the agent's process (PSS).",
            use.proportional_bytes,
        ),
        ("open_file_descriptors", "Open file descriptors of the agent's process.", use.open_descriptors),
        ("threads", "Threads of the agent's process.", use.threads),
    )
    for name, description, value in gauges:
        yield gauge(f"agent_{name}", description, (), {(): value})
    yield counter("agent_cpu_seconds", "CPU time of the agent's process, user and system.", (), {(): use.cpu_seconds})


def _gate(snapshot: Snapshot) -> Iterator[Family]:
    agent = snapshot.agent
    yield counter(
        "gate_decisions",
        "Decisions of the SLURM prolog; kept over restarts of the agent.",
        ("decision",),
        {(name,): count for name, count in agent.gate_decisions.items()},
    )
    yield gauge("jobs", "Jobs with a claim on this node: prolog run, epilog not yet run.", (), {(): agent.jobs})
    age = agent.oldest_job_seconds
    yield gauge(
        "oldest_job_timestamp_seconds",
        "Time of the oldest claim of a job; a claim blocks the probe of the agent.",
        (),
        {(): None if age is None else round(snapshot.time.wall_seconds - age)},
    )


def _verdicts(snapshot: Snapshot) -> Iterator[Family]:
    verdict = snapshot.verdict
    yield gauge(
        "node_state",
        "Verdict of the node: 1 for the current state, 0 for the others.",
        ("state",),
        _states(verdict.state),
    )
    yield gauge(
        "node_hard_fault",
        "Whether the node is failed by a hard fault, one that a single sample proves.",
        (),
        {(): verdict.hard},
    )
    yield gauge(
        "gate_closed",
        "Whether the gate is closed: the prolog, where installed, keeps jobs off this node or its device.",
        (),
        {(): bool(closing(snapshot))},
    )
    yield gauge(
        "gate_mode_info",
        "Configured effect of a hard fault ([gate] mode): observe, gate or drain.",
        ("mode",),
        {(snapshot.modes.site.value,): 1},
    )
    oldest = verdict.oldest_evidence
    yield gauge(
        "node_oldest_evidence_timestamp_seconds",
        "Time of the oldest sample behind the verdict.",
        (),
        {(): oldest.wall_seconds if oldest else None},
    )


def _devices(snapshot: Snapshot) -> Iterator[Family]:
    states: dict[LabelValues, Value | None] = {}
    for device, judged in snapshot.device_verdicts.items():
        states.update(_states(judged.state, device))
    yield gauge(
        "device_state", "Verdict of a device: 1 for the current state, 0 for the others.", ("device", "state"), states
    )
    yield gauge(
        "device_info",
        "Identity of a device.",
        _IDENTITY,
        {_identity(device): 1 for device in snapshot.devices if device.kind is not DeviceKind.NODE},
    )


def _identity(device: Device) -> LabelValues:
    return (
        device.id,
        device.kind.value,
        device.vendor,
        device.model,
        device.uuid or "",
        device.pci or "",
        device.serial or "",
        device.driver or "",
    )


def _episodes(snapshot: Snapshot) -> Iterator[Family]:
    """Yield the faults that are not cleared; those of several parts of a device under one code are one series."""
    counted = dict.fromkeys(EpisodeState, 0)
    active: dict[LabelValues, Value | None] = {}
    opened: dict[LabelValues, Value | None] = {}
    seen: dict[LabelValues, int] = {}
    for episode in snapshot.episodes:
        counted[episode.state] += 1
        if episode.state is EpisodeState.CLEARED:
            continue
        active[_episode_labels(episode)] = 1
        key = (episode.key.code, episode.key.device)
        seen[key] = seen.get(key, 0) + episode.count
        opened[key] = min(opened.get(key) or episode.opened.wall_seconds, episode.opened.wall_seconds)
    yield gauge(
        "episodes",
        "Episodes that are not cleared, by state.",
        ("state",),
        {(state.value,): n for state, n in counted.items() if state is not EpisodeState.CLEARED},
    )
    yield gauge(
        "episode_active", "Episode that is not cleared; the series exists while the episode lasts.", _EPISODE, active
    )
    yield counter(
        "episode_occurrences", "Occurrences of an episode that is not cleared, summed over its parts.", _FAULT, seen
    )
    yield gauge(
        "episode_opened_timestamp_seconds",
        "Time when an episode that is not cleared was first seen, earliest of its parts.",
        _FAULT,
        opened,
    )


def _acknowledged(snapshot: Snapshot) -> Iterator[Family]:
    """Yield acknowledged episodes; parts of a device under one acknowledgement are one series."""
    numbers: dict[LabelValues, int] = {}
    said: dict[LabelValues, float] = {}
    ends: dict[LabelValues, float] = {}
    for episode in (*filter(is_word, snapshot.episodes), *snapshot.covered):
        key = (episode.key.code, episode.key.device)
        state = "expired" if episode.expired is not None else "standing" if is_word(episode) else "absent"
        labels = (*key, episode.actor or "", episode.note or "", state)
        numbers[labels] = numbers.get(labels, 0) + 1
        if episode.acknowledged is not None:
            said[key] = max(said.get(key, 0.0), episode.acknowledged.wall_seconds)
        if episode.until is not None:
            end = episode.until.wall_seconds
            ends[key] = min(ends.get(key, end), end)
    yield gauge(
        "acknowledged_episodes",
        "Acknowledged episodes, by actor and note; state absent: the fault is cleared and its return is covered.",
        (*_FAULT, "actor", "note", "state"),
        numbers,
    )
    yield gauge(
        "acknowledgement_timestamp_seconds",
        "Time of the last acknowledgement of an episode, latest of its parts.",
        _FAULT,
        said,
    )
    yield gauge(
        "acknowledgement_expiry_timestamp_seconds",
        "Expiry time of the acknowledgement of an episode, earliest of its parts.",
        _FAULT,
        ends,
    )


def _episode_labels(episode: Episode) -> LabelValues:
    return (
        episode.check,
        episode.key.code,
        episode.key.device,
        episode.finding.fault_class.value,
        episode.outcome.value,
        episode.finding.action.value,
        episode.state.value,
    )


def _events(snapshot: Snapshot) -> Iterator[Family]:
    counts = {(event.code, event.device, event.fault_class.value): event for event in snapshot.events}
    yield counter(
        "events",
        "Events of the kernel log and drivers, by code; a repeated log line is not counted.",
        (*_FAULT, "fault_class"),
        {labels: event.count for labels, event in counts.items()},
    )
    yield gauge(
        "event_last_timestamp_seconds",
        "Time of the last event of a code.",
        (*_FAULT, "fault_class"),
        {labels: event.last.wall_seconds for labels, event in counts.items()},
    )


def _checks(snapshot: Snapshot) -> Iterator[Family]:
    """Yield two series for each check: more of them would make a page grow with every check that is added."""
    runs = {(run.check,): run for run in snapshot.checks}
    yield gauge(
        "check_success",
        "Whether the last run of the check succeeded.",
        ("check",),
        {labels: run.success for labels, run in runs.items()},
    )
    yield gauge(
        "check_duration_seconds",
        "Duration of the last run of the check.",
        ("check",),
        {labels: run.duration_seconds for labels, run in runs.items()},
    )
    yield gauge(
        "findings",
        "Findings of the last verdict that did not pass, by outcome.",
        ("outcome",),
        {
            (outcome.value,): sum(run.outcomes.get(outcome.value, 0) for run in snapshot.checks)
            for outcome in (Outcome.WARN, Outcome.FAIL, Outcome.UNMEASURED)
        },
    )


def _limits(snapshot: Snapshot, units: tuple[str, ...]) -> Iterator[Family]:
    """Yield the limits in force: the strictest of all devices of a model and of their parts."""
    models = {device.id: device.model for device in snapshot.devices}
    by_unit: dict[str, dict[LabelValues, Value | None]] = {unit: {} for unit in units}
    for finding in snapshot.findings:
        limit = finding.limit
        if limit is None or limit.unit not in by_unit:
            continue
        model = models.get(finding.device, NODE)
        labels = (finding.check, finding.code, limit.op, model)
        known = by_unit[limit.unit].get(labels)
        by_unit[limit.unit][labels] = limit.value if known is None else _stricter(finding, known)
    for unit, samples in by_unit.items():
        yield gauge(
            f"limit_{unit}",
            "Limit in force; a value is out of limit where value op limit holds.",
            ("check", "code", "op", "model"),
            samples,
        )


def _stricter(finding: Finding, known: Value) -> Value:
    """Return the one of two limits that is broken first."""
    assert finding.limit is not None
    choose = min if finding.limit.op.startswith(">") else max
    return choose(finding.limit.value, known)


def _readers(snapshot: Snapshot) -> Iterator[Family]:
    present = {(reader.backend,): reader for reader in snapshot.readers if reader.state is not ReaderState.ABSENT}
    yield gauge(
        "reader_up",
        "Whether the collector (reader process) of a backend answers; backends without devices are left out.",
        ("backend",),
        {labels: reader.state is ReaderState.RUNNING for labels, reader in present.items()},
    )
    yield gauge(
        "reader_state",
        "State of the collector of a backend, 1 for the current state; backends without devices are left out.",
        ("backend", "state"),
        {
            (reader.backend, state.value): reader.state is state
            for reader in present.values()
            for state in ReaderState
            if state is not ReaderState.ABSENT
        },
    )
    yield counter(
        "reader_starts",
        "Starts of the collector of a backend.",
        ("backend",),
        {labels: reader.starts for labels, reader in present.items()},
    )
    yield counter(
        "reader_hangs",
        "Hangs of the collector of a backend: no answer before its deadline.",
        ("backend",),
        {labels: reader.hangs for labels, reader in present.items()},
    )
    yield gauge(
        "reader_last_round_timestamp_seconds",
        "Time of the last complete round of the collector of a backend.",
        ("backend",),
        {labels: reader.last_round.wall_seconds for labels, reader in present.items() if reader.last_round},
    )
