"""The agent's own state: its notices, its readers, and the checks that ran."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from nodevet.checks.core.model import AgentInfo, CheckRun, Outcome, ReaderState, ReaderStatus, Snapshot
from nodevet.checks.engine.modes import closing
from nodevet.exporters.format import age, duration, moment, words

_OUTCOMES = (Outcome.PASS, Outcome.WARN, Outcome.FAIL, Outcome.UNMEASURED, Outcome.SKIPPED)
_QUIET = frozenset({ReaderState.ABSENT, ReaderState.STARTING, ReaderState.RELEASED, ReaderState.STOPPED})


class ReaderRow(msgspec.Struct, frozen=True):
    """A collector: its state, the verdict that colours it, its last round, its problems and versions."""

    name: str
    state: str
    verdict: str
    last_round: str
    details: str


class AgentSection(msgspec.Struct, frozen=True):
    """The section of the agent; ``outcomes`` are the columns of its checks."""

    notices: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    readers: tuple[ReaderRow, ...]
    outcomes: tuple[str, ...]
    checks: tuple[CheckRun, ...]


def agent_section(snapshot: Snapshot) -> AgentSection:
    """Return the section of the agent."""
    agent = snapshot.agent
    trouble = agent.slurm.trouble if agent.slurm else ""
    notices = dict.fromkeys([agent.configuration_message, agent.state_file, agent.store, trouble, *agent.notices])
    return AgentSection(
        notices=tuple(filter(None, notices)),
        facts=tuple(_facts(agent, snapshot)),
        readers=tuple(_reader(reader, snapshot) for reader in snapshot.readers),
        outcomes=tuple(outcome.value for outcome in _OUTCOMES),
        checks=snapshot.checks,
    )


def _facts(agent: AgentInfo, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    starting = "starting: the first round is not complete"
    yield "State", "stopping" if agent.stopping else "ready" if agent.ready else starting
    if not agent.configuration_accepted:
        yield "Reload", "rejected: the configuration on disk is not in force"
    yield "Started", f"{moment(agent.started)} ({age(snapshot.time, agent.started)})"
    yield "Interval", duration(agent.interval_seconds)
    yield "Gate", _gate(snapshot)
    yield from _scheduler(agent)
    yield "Load", agent.load or "none"
    yield "Configuration", agent.configuration_file or "built-in defaults"
    yield "Version", agent.version


def _gate(snapshot: Snapshot) -> str:
    """Return whether the gate keeps jobs off this node, and the largest effect of a hard fault."""
    if snapshot.simulated:
        return "none: a simulated node closes no gate"
    closed = sorted({episode.key.code for episode in closing(snapshot)})
    state = f"closed by {', '.join(closed)}" if closed else "open"
    return f"{state} (mode {snapshot.modes.site.value})"


def _scheduler(agent: AgentInfo) -> Iterator[tuple[str, str]]:
    """Yield the facts about jobs, prolog decisions and the SLURM writer, if there are any."""
    decided = [f"{words(name)} {count:,}" for name, count in agent.gate_decisions.items() if count]
    if decided:
        yield "Prolog decisions", ", ".join(decided)
    if agent.jobs:
        yield "Jobs with a claim", f"{agent.jobs:,}"
    slurm = agent.slurm
    if slurm is not None:
        drained = f", drained by {slurm.drained_by}" if slurm.drained_by else ""
        stands = f"{slurm.node} is {' '.join(slurm.states) or 'not known'}{drained}"
        due = f"drain pending: {slurm.wanted}" if slurm.wanted else ""
        yield f"SLURM, mode {slurm.writer}", "; ".join(filter(None, [stands, slurm.doing, due]))


def _reader(reader: ReaderStatus, snapshot: Snapshot) -> ReaderRow:
    troubles = [
        reader.detail,
        f"hung {reader.hangs} times" if reader.hangs else "",
        f"crashed {reader.crashes} times" if reader.crashes else "",
        f"not read: {', '.join(reader.quarantined)}" if reader.quarantined else "",
    ]
    uses = [f"{name} {version}" for name, version in reader.versions.items()]
    return ReaderRow(
        reader.backend,
        reader.state.value,
        "ok" if reader.state is ReaderState.RUNNING else "unknown" if reader.state in _QUIET else "failed",
        age(snapshot.time, reader.last_round),
        "; ".join(filter(None, [*troubles, *uses])),
    )
