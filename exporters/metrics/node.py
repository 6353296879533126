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
    Outcome,
    OwnUse,
    ReaderState,
    Snapshot,
    State,
)
from nodevet.checks.engine.acknowledgement import is_word
from nodevet.checks.engine.modes import closing

from .family import Family, LabelValues, Maker, Value, family

_PLAIN_LIMIT_UNITS = ("celsius", "watts")
_LIMIT_UNITS = ("celsius", "watts", "hertz", "bytes", "seconds", "ratio", "bytes_per_second", "flops_per_second")


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
    yield family("build_info", {(agent.version,): 1})
    yield family("node_info", {(snapshot.node, snapshot.scope, str(snapshot.simulated).lower()): 1})
    yield family("agent_configuration_info", {(agent.configuration_digest, agent.rules_digest): 1})
    plain: dict[str, Value] = {
        "agent_start_timestamp_seconds": agent.started.wall_seconds,
        "agent_interval_seconds": agent.interval_seconds,
        "agent_ready": agent.ready,
        "probing": agent.probing,
        "configuration_last_reload_successful": agent.configuration_accepted,
        "snapshot_timestamp_seconds": snapshot.time.wall_seconds,
        "snapshot_generation": snapshot.generation,
        "simulated": snapshot.simulated,
    }
    for name, value in plain.items():
        yield family(name, {(): value})
    yield family("output_success", {("store",): not agent.store, ("state_file",): not agent.state_file})
    yield family("log_dropped_lines", {(): agent.dropped_log_lines})
    yield family("http_refused_connections", {(): agent.refused_connections})


def _own_use(use: OwnUse) -> Iterator[Family]:
    """Yield the resource usage of the agent's process at the judgement; unreadable values are left out."""
    yield family("agent_resident_memory_bytes", {(): use.resident_bytes})
    yield family("agent_proportional_memory_bytes", {(): use.proportional_bytes})
    yield family("agent_open_file_descriptors", {(): use.open_descriptors})
    yield family("agent_threads", {(): use.threads})
    yield family("agent_cpu_seconds", {(): use.cpu_seconds})


def _gate(snapshot: Snapshot) -> Iterator[Family]:
    agent = snapshot.agent
    yield family("gate_decisions", {(name,): count for name, count in agent.gate_decisions.items()})
    yield family("jobs", {(): agent.jobs})
    age = agent.oldest_job_seconds
    yield family("oldest_job_timestamp_seconds", {(): None if age is None else round(snapshot.time.wall_seconds - age)})


def _verdicts(snapshot: Snapshot) -> Iterator[Family]:
    verdict = snapshot.verdict
    yield family("node_state", _states(verdict.state))
    yield family("node_hard_fault", {(): verdict.hard})
    yield family("gate_closed", {(): bool(closing(snapshot))})
    yield family("gate_mode_info", {(snapshot.modes.site.value,): 1})
    oldest = verdict.oldest_evidence
    yield family("node_oldest_evidence_timestamp_seconds", {(): oldest.wall_seconds if oldest else None})


def _devices(snapshot: Snapshot) -> Iterator[Family]:
    states: dict[LabelValues, Value | None] = {}
    for device, judged in snapshot.device_verdicts.items():
        states.update(_states(judged.state, device))
    yield family("device_state", states)
    yield family(
        "device_info", {_identity(device): 1 for device in snapshot.devices if device.kind is not DeviceKind.NODE}
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
    """Yield the faults that are not cleared; faults of several parts of a device under one code share a series."""
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
    yield family("episodes", {(state.value,): n for state, n in counted.items() if state is not EpisodeState.CLEARED})
    yield family("episode_active", active)
    yield family("episode_occurrences", seen)
    yield family("episode_opened_timestamp_seconds", opened)


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
    yield family("acknowledged_episodes", numbers)
    yield family("acknowledgement_timestamp_seconds", said)
    yield family("acknowledgement_expiry_timestamp_seconds", ends)


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
    yield family("events", {labels: event.count for labels, event in counts.items()})
    yield family("event_last_timestamp_seconds", {labels: event.last.wall_seconds for labels, event in counts.items()})


def _checks(snapshot: Snapshot) -> Iterator[Family]:
    """Yield two series per check, so that a page grows little with each added check."""
    runs = {(run.check,): run for run in snapshot.checks}
    yield family("check_success", {labels: run.success for labels, run in runs.items()})
    yield family("check_duration_seconds", {labels: run.duration_seconds for labels, run in runs.items()})
    yield family(
        "findings",
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
        stricter = min if limit.op.startswith(">") else max
        by_unit[limit.unit][labels] = limit.value if known is None else stricter(limit.value, known)
    for unit, samples in by_unit.items():
        yield family("limit", samples, unit=unit)


def _readers(snapshot: Snapshot) -> Iterator[Family]:
    present = {(reader.backend,): reader for reader in snapshot.readers if reader.state is not ReaderState.ABSENT}
    yield family("reader_up", {labels: reader.state is ReaderState.RUNNING for labels, reader in present.items()})
    yield family(
        "reader_state",
        {
            (reader.backend, state.value): reader.state is state
            for reader in present.values()
            for state in ReaderState
            if state is not ReaderState.ABSENT
        },
    )
    yield family("reader_starts", {labels: reader.starts for labels, reader in present.items()})
    yield family("reader_hangs", {labels: reader.hangs for labels, reader in present.items()})
    yield family(
        "reader_last_round_timestamp_seconds",
        {labels: reader.last_round.wall_seconds for labels, reader in present.items() if reader.last_round},
    )
