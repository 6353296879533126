"""Puts the parts together by the configuration: the same for the daemon and for one-shot commands."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from nodevet.agent import __version__
from nodevet.agent.config.command_specs import command_plan
from nodevet.agent.config.load import digest
from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.agent.config.settings import AgentSettings, Configuration, SlurmSettings
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.readers.telling import Take
from nodevet.agent.readers.witness import Surroundings
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.digest import sha256
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.guard import Guard
from nodevet.checks.core.model import AgentInfo, Instant, Mode, Modes
from nodevet.checks.core.scheduler import Permit
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import Check
from nodevet.checks.engine.view import Cadence
from nodevet.checks.system.procfs import ChildRecord

SIMULATED = "simulated"
"""The backend that stands in for all others on a simulated node."""

FAST = "fast"
SLOW = "slow"


def node_name(configuration: Configuration) -> str:
    """Return how this node is called in all output."""
    return configuration.agent.node_name or socket.gethostname()


def configure(
    checks: Iterable[Check], configuration: Configuration, names: Sequence[str] = ()
) -> tuple[ConfiguredCheck, ...]:
    """Return the enabled *checks* with their policies; only those of *names* where some are given.

    One of a package that came, or could not be read, after *configuration* was made has no settings, and waits.
    """
    everything = {declared.name: declared for declared in checks if declared.name in configuration.checks}
    unknown = [name for name in names if name not in everything]
    if unknown:
        raise UsageError(f"check: unknown check {unknown[0]!r}; checks: {', '.join(sorted(everything))}")
    return tuple(
        ConfiguredCheck(declared, configuration.checks[name].policy)
        for name, declared in everything.items()
        if (name in names if names else configuration.checks[name].enabled)
    )


def cadences(configuration: Configuration) -> dict[str, Cadence]:
    """Return how often each group is read."""
    agent = configuration.agent
    slow = max(agent.slow_interval_seconds, agent.interval_seconds)
    return {FAST: Cadence(agent.interval_seconds, agent.deadline_seconds), SLOW: Cadence(slow, agent.deadline_seconds)}


def build_engine(
    configured: Sequence[ConfiguredCheck],
    configuration: Configuration,
    clock: Clock,
    *,
    partial: bool = False,
    simulated: bool = False,
    guard: Guard | None = None,
) -> Engine:
    """Return an engine that knows nothing yet."""
    rates = cadences(configuration)
    return Engine(
        configured,
        node=node_name(configuration),
        clock=clock.instant,
        cadences=engine_cadences(configuration, rates),
        partial=partial,
        modes=modes_in_force(configuration),
        simulated=simulated,
        guard=guard,
    )


def engine_cadences(configuration: Configuration, rates: dict[str, Cadence]) -> dict[tuple[str, str], Cadence]:
    """Return *rates* by (backend, group); a command has the groups that its settings name."""
    backends = configuration.agent.backends
    groups: dict[str, tuple[str, ...]] = {backend: tuple(rates) for backend in backends.enabled}
    groups |= {command.backend: command.groups for command in backends.commands}
    return {(backend, group): rates[group] for backend, names in groups.items() for group in names}


def modes_in_force(configuration: Configuration) -> Modes:
    """Return how far the faults of each check may reach; what a check said that is switched off by now is only seen."""
    return Modes(
        site=configuration.gate.mode,
        checks={
            name: settings.mode if settings.enabled else Mode.OBSERVE for name, settings in configuration.checks.items()
        },
    )


def build_supervisor(
    configuration: Configuration,
    clock: Clock,
    selector: selectors.BaseSelector,
    take: Take,
    remembered: Iterable[ChildRecord] = (),
    simulation: Path | None = None,
) -> Supervisor:
    """Return the readers of every enabled backend, not started yet; *take* is told all that they have.

    Where the file *simulation* is given, it says what they read: no driver is asked, and no file of this machine read.
    """
    agent = configuration.agent
    rates = cadences(configuration)
    plans = [
        ReaderPlan(
            backend=backend,
            cadences=rates,
            root=agent.root,
            holds_devices=backend != "host",
            stand_in=SIMULATED if simulation else None,
            options={"simulation": str(simulation), "stands_for": backend} if simulation else {},
        )
        for backend in agent.backends.enabled
    ]
    plans += [command_plan(command, agent, rates) for command in agent.backends.commands]
    looks = partial(Surroundings, modules=Path(agent.root, "sys/module"), root=agent.root)
    return Supervisor(plans, clock, selector, take, remembered, looks)


def agent_info(configuration: Configuration, configured: Sequence[ConfiguredCheck], started: Instant) -> AgentInfo:
    """Return what a snapshot says of the agent itself, at its start."""
    return AgentInfo(
        version=__version__,
        started=started,
        interval_seconds=configuration.agent.interval_seconds,
        configuration_digest=digest(configuration),
        rules_digest=_rules_digest(configured, modes_in_force(configuration)),
        configuration_file=configuration.file,
        permit=permit_of(configuration.slurm),
    )


def permit_of(settings: SlurmSettings) -> Permit:
    """Return the permit that the site gives by its *settings* alone; the reactor gives that of the cluster."""
    if settings.permit == "local":
        return Permit(held=True, why='slurm.permit is "local"')
    if settings.writer == "drain":
        return Permit()
    return Permit(
        why=f'slurm.writer is "{settings.writer}", and the agent requests a permit only with "drain"; a site without'
        ' rights in SLURM sets slurm.permit = "local"'
    )


def _rules_digest(configured: Sequence[ConfiguredCheck], modes: Modes) -> str:
    """Return sixteen hexadecimal digits over the version, the checks, their modes and their policies."""
    text = [f"{__version__} {os.uname().machine}"]
    for name, module, policy in ((entry.check.name, entry.check.module, entry.policy) for entry in configured):
        text.append(f"{name} {module} {modes.of(name).value} {msgspec.json.encode(policy).decode()}")
    return sha256("\n".join(text).encode()).hex()[:16]


def ttl_seconds(agent: AgentSettings) -> float:
    """Return how long a state of *agent* is good for: three rounds and a deadline."""
    return 3 * agent.interval_seconds + agent.deadline_seconds
