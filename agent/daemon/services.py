"""The services of the daemon, driven together, and those of them that have no other home.

Whatever comes to the agent, another outside effect for instance, is one more class below ``Service`` and one more line
in ``Daemon._gather``.
"""

from __future__ import annotations

import math
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from nodevet.agent.config.settings import Configuration
from nodevet.agent.control.server import Control
from nodevet.agent.load.claims import Claims
from nodevet.agent.services.protocol import Service
from nodevet.agent.simulated.origin import MARKER_NAME, claim
from nodevet.agent.slurm.memory import MEMORY_NAME, end_permit
from nodevet.agent.store.journal import Journal
from nodevet.agent.store.site_marks import RUNNING_NAME, SiteMarks
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.guard import Guard, one_line
from nodevet.checks.core.model import AgentInfo, Snapshot
from nodevet.checks.engine.site_code import Watch
from nodevet.checks.system.descriptors import descriptor_trouble
from nodevet.checks.system.lock import LOCK_NAME
from nodevet.exporters.documents.schema import status_document

from .assembly import node_name
from .event_log import EventLog
from .runtime_directory import RuntimeDirectory
from .strays import Strays

if TYPE_CHECKING:
    from nodevet.agent.simulated.node import SimulatedNode
    from nodevet.agent.slurm.acknowledged import Acknowledged
    from nodevet.agent.slurm.reactor import Reactor

Answer = TypeVar("Answer")

BROKEN_WAIT_SECONDS = 1.0
"""Until the next turn for a part of the agent that fails, whatever it asks for."""


class Services:
    """All services of the daemon. Each function of each runs under the guard: one that raises contributes nothing."""

    def __init__(
        self, services: Iterable[Service], guard: Guard, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Drive *services* in their order; *monotonic* is the clock of their deadlines."""
        self._services = tuple(services)
        self._guard = guard
        self._monotonic = monotonic
        self._broken: dict[str, float] = {}
        self._taking_part: dict[str, tuple[Service, ...]] = {}

    def tick(self) -> None:
        """Let each do what is due; one that raises cannot have moved its deadline, and is not due at once again."""
        broken: list[str] = []
        for service in self._parts("tick"):
            self._guard.run(f"{service.name}: tick", service.tick, partial(broken.append, service.name))
        self._broken = dict.fromkeys(broken, self._monotonic() + BROKEN_WAIT_SECONDS) if broken else {}

    @property
    def has_broken(self) -> bool:
        """Return whether the last ``tick`` of one raised."""
        return bool(self._broken)

    @property
    def next_deadline(self) -> float:
        """Return the earliest deadline in monotonic seconds, infinity where none has one."""
        deadlines = self._each("next_deadline", self._due, None)
        return min((when for when in deadlines if when is not None), default=math.inf)

    def _due(self, service: Service) -> float | None:
        when = service.next_deadline
        return when if when is None else max(when, self._broken.get(service.name, when))

    def before_judging(self) -> None:
        """Let each bring in what it looks at once per judgement."""
        self._each("before_judging", lambda service: service.before_judging(), None)

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Return *info* with what each tells of itself, and with their troubles behind its notices."""
        info = reduce(self._with, self._services, info)
        troubles = filter(None, self._each("trouble", lambda service: service.trouble, ""))
        # What other programs and files told is in them: one letter that no encoding has would cost every surface.
        return msgspec.structs.replace(info, notices=tuple(map(one_line, (*info.notices, *troubles))))

    def judged(self, snapshot: Snapshot) -> None:
        """Hand *snapshot* to each."""
        self._each("judged", lambda service: service.judged(snapshot), None)

    def memory(self) -> dict[str, bytes]:
        """Return what they must be given after a restart, by their names."""
        names = (service.name for service in self._parts("memory"))
        kept = zip(names, self._each("memory", lambda service: service.memory, None), strict=True)
        return {name: memory for name, memory in kept if memory is not None}

    def stop(self) -> None:
        """Let each begin to end."""
        self._each("stop", lambda service: service.stop(), None)

    def _with(self, info: AgentInfo, service: Service) -> AgentInfo:
        return self._guard.run(f"{service.name}: describe", partial(service.describe, info), lambda: info)

    def _each(self, function: str, ask: Callable[[Service], Answer], otherwise: Answer) -> list[Answer]:
        """Return what *ask* gets of each, in their order; of one that raises it is what is *otherwise*."""
        return [
            self._guard.run(f"{service.name}: {function}", partial(ask, service), lambda: otherwise)
            for service in self._parts(function)
        ]

    def _parts(self, function: str) -> tuple[Service, ...]:
        """Return the services that have a *function* of their own: two calls of each turn would ask all in vain."""
        if function not in self._taking_part:
            nothing = getattr(Service, function)
            own = (service for service in self._services if getattr(type(service), function, None) is not nothing)
            self._taking_part[function] = tuple(own)
        return self._taking_part[function]


class Store(Service):
    """What is told of the store; the loop itself keeps each round in the journal."""

    name = "store"

    def __init__(self, journal: Journal) -> None:
        """Tell of the store of *journal*."""
        self._journal = journal

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Tell what is wrong with it now."""
        return msgspec.structs.replace(info, store=self._journal.trouble)

    @property
    def trouble(self) -> str:
        """Return that, and what people must know of it since the start."""
        return "; ".join(dict.fromkeys((*self._journal.troubles, *self._journal.learned)))


class Log(Service):
    """Folds storms of lines, tells how many were dropped, and what exceptions ended in no code of ours."""

    name = "log"

    def __init__(self, event_log: EventLog, strays: Strays) -> None:
        """Drive *event_log*, and tell there of *strays*."""
        self._event_log = event_log
        self._strays = strays

    def tick(self) -> None:
        """Tell what is due."""
        for line in self._strays.take():
            self._event_log.trouble(line)
        self._event_log.tick()

    @property
    def next_deadline(self) -> float | None:
        """Return when a storm is over."""
        return self._event_log.next_deadline

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Tell how many lines were dropped."""
        return msgspec.structs.replace(info, dropped_log_lines=self._event_log.dropped_lines)


class Socket(Control):
    """The agent's socket; whoever watches is told of each judgement."""

    def judged(self, snapshot: Snapshot) -> None:
        """Send *snapshot* to those who watch."""
        if self.watched("watch"):
            self.publish("watch", msgspec.to_builtins(status_document(snapshot)))


class Descriptors(Service):
    """The warning before file descriptors run out."""

    name = "descriptors"

    @property
    def trouble(self) -> str:
        """Return it."""
        return descriptor_trouble()


class HostName(Service):
    """The warning that this machine got another name since the start, such as from DHCP during a boot."""

    name = "host_name"

    def __init__(self, configuration: Configuration) -> None:
        """Note what the machine is called, and the node by *configuration*."""
        self._known, self._before = node_name(configuration), _short_host_name()

    @property
    def trouble(self) -> str:
        """Return it."""
        present, known = _short_host_name(), self._known
        if present == self._before or known != self._before:
            return ""
        return f"the host name is now {present}, and the agent still uses {known}: restart the agent, or set node_name"


def _short_host_name() -> str:
    return socket.gethostname().split(".")[0]


def runtime_directory(
    journal: Journal,
    control: Control,
    claims: Claims,
    simulated: SimulatedNode | None,
    watch: Watch,
    *,
    log: Callable[[str], None],
) -> RuntimeDirectory:
    """Return what makes the runtime directory anew where it was removed; its state comes with the next round."""
    place = control.path.parent
    lasting: list[tuple[Path, Callable[[], None]]] = [
        (place / LOCK_NAME, journal.restore_lock),
        (control.path, control.restore),
        (claims.directory, claims.prepare),
    ]
    if isinstance(watch, SiteMarks):
        lasting.append((place / RUNNING_NAME, watch.restore))
    if simulated is not None:
        lasting.insert(0, (place / MARKER_NAME, partial(claim, (place,), simulated.identity)))
    return RuntimeDirectory(place, lasting, log=log)


def slurm(
    configuration: Configuration,
    clock: Clock,
    selector: selectors.BaseSelector,
    cleanup: ExitStack,
    *,
    memory: bytes | None,
    told: Callable[[tuple[Acknowledged, ...]], None],
) -> Reactor | None:
    """Return the writer to SLURM, or None where it is off; *told* takes what people did there, and any news."""
    runtime, boot_id = Path(configuration.agent.runtime_dir), clock.instant().boot_id
    if configuration.slurm.writer != "drain" or configuration.slurm.permit == "local":
        end_permit(runtime / MEMORY_NAME, memory, boot_id)
    if configuration.slurm.writer == "off":
        return None
    from nodevet.agent.slurm.reactor import Reactor

    reactor = Reactor(
        configuration.slurm,
        configuration.slurm.node_name or node_name(configuration),
        selector,
        runtime=runtime,
        memory=memory,
        boot_id=boot_id,
        told=lambda: told(reactor.take()),
    )
    cleanup.callback(reactor.close)
    return reactor
