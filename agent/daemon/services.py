"""What the main loop drives: each member says once what it contributes, and the loop asks all of them alike.

Whatever comes to the agent, another outside effect for instance, is one more function here and one more line in
``Daemon._gather``.
"""

from __future__ import annotations

import math
import selectors
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from nodevet.agent.config.settings import Configuration
from nodevet.agent.control.server import Control
from nodevet.agent.load.claims import Claims
from nodevet.agent.load.guard import LoadGuard
from nodevet.agent.readers.kernel_watch import KernelWatch
from nodevet.agent.simulated.node import SimulatedNode
from nodevet.agent.simulated.origin import MARKER_NAME, claim
from nodevet.agent.slurm.acknowledged import Acknowledged
from nodevet.agent.slurm.gate_log import GateLog
from nodevet.agent.slurm.memory import MEMORY_NAME, end_permit
from nodevet.agent.slurm.reactor import Reactor
from nodevet.agent.store.journal import Journal
from nodevet.agent.store.publisher import Publisher
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.errors import StoreError
from nodevet.checks.core.guard import Guard, one_line
from nodevet.checks.core.model import AgentInfo, Snapshot
from nodevet.checks.system.descriptors import descriptor_trouble
from nodevet.checks.system.lock import LOCK_NAME

from .assembly import node_name
from .event_log import EventLog
from .ingest import Ingest
from .listening import Listening
from .notify import Watchdog
from .own_use import OwnUseReader
from .reports import Reports
from .runtime_directory import RuntimeDirectory
from .showing import Showing
from .strays import Strays


def _nothing() -> None:
    """Contribute nothing."""


def _no_facts() -> Mapping[str, object]:
    return {}


def _no_words() -> str:
    return ""


def _ignore(_snapshot: Snapshot) -> None:
    """Have no use for a snapshot."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What one part of the agent does for the loop; whatever it does not give, it has no part in.

    Every call comes from the main thread and returns at once. ``name`` is the key of ``memory`` in the store.
    """

    name: str

    tick: Callable[[], None] = _nothing
    """Do what is due; called in every turn."""

    next_deadline: Callable[[], float | None] = _nothing
    """Return when a turn is needed although nothing comes in, in monotonic seconds."""

    before_judging: Callable[[], None] = _nothing
    """Bring in what is looked at once per judgement."""

    facts: Callable[[], Mapping[str, object]] = _no_facts
    """Return fields of AgentInfo by name: what every surface shall show of it."""

    trouble: Callable[[], str] = _no_words
    """Return what is wrong with it, in one line; empty while all is well."""

    judged: Callable[[Snapshot], None] = _ignore
    """Take what was judged, to act on it or to pass it on."""

    memory: Callable[[], bytes | None] = _nothing
    """Return what it needs after a restart."""

    stop: Callable[[], None] = _nothing
    """Begin to end: no new work."""


def soonest(members: Iterable[Member]) -> float:
    """Return the earliest deadline of *members* in monotonic seconds, infinity where none has one."""
    deadlines = (member.next_deadline() for member in members)
    return min((when for when in deadlines if when is not None), default=math.inf)


def memory_of(members: Iterable[Member]) -> dict[str, bytes]:
    """Return what *members* must be given after a restart, by their names."""
    kept = ((member.name, member.memory()) for member in members)
    return {name: memory for name, memory in kept if memory is not None}


def described(info: AgentInfo, members: Iterable[Member], guard: Guard) -> AgentInfo:
    """Return *info* with the facts of *members*, and with their troubles behind its notices."""
    everyone = tuple(members)
    for member in everyone:
        known = info
        part = f"{member.name}: description"
        info = guard.run(part, partial(_with_facts, known, member.facts()), partial(_itself, known))
    troubles = tuple(trouble for member in everyone if (trouble := member.trouble()))
    # What other programs and files told is in them: one letter that no encoding has would cost every surface.
    return msgspec.structs.replace(info, notices=tuple(map(one_line, (*info.notices, *troubles))))


def _with_facts(info: AgentInfo, facts: Mapping[str, Any]) -> AgentInfo:
    return msgspec.structs.replace(info, **facts)


def _itself(info: AgentInfo) -> AgentInfo:
    return info


def guarded(member: Member, guard: Guard) -> Member:
    """Return *member* with each of its functions run by *guard*: one that raises contributes nothing this time."""
    idle = Member(name=member.name)
    fields = [field for field in member.__struct_fields__ if field != "name"]
    safe = {field: _safe(guard, f"{member.name}: {field}", *_both(member, idle, field)) for field in fields}
    return msgspec.structs.replace(member, **safe)


def _both(member: Member, idle: Member, field: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return getattr(member, field), getattr(idle, field)


def _safe(guard: Guard, part: str, work: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return *work* run by *guard*, with what *otherwise* returns where it raises."""
    if work is otherwise:
        return work
    return lambda *arguments: guard.run(part, partial(work, *arguments), partial(otherwise, *arguments))


def store(journal: Journal) -> Member:
    """Return what is told of the store; the loop itself keeps each round in *journal*."""

    def trouble() -> str:
        return "; ".join(dict.fromkeys((*journal.troubles, *journal.learned)))

    return Member(name="store", facts=lambda: {"store": "; ".join(journal.troubles)}, trouble=trouble)


def showing(held: Showing) -> Member:
    """Return what shows a round once it is kept."""
    return Member(name="showing", tick=held.tick, next_deadline=lambda: held.next_deadline)


def state_file(publisher: Publisher) -> Member:
    """Return the writer of the state file."""
    return Member(
        name="state_file",
        facts=lambda: {"state_file": publisher.failure},
        trouble=lambda: publisher.failure,
        judged=publisher.publish,
    )


def reports(kept: Reports) -> Member:
    """Return the renderer of report pages."""
    return Member(name="reports", tick=kept.tick, next_deadline=lambda: kept.next_deadline)


def log(event_log: EventLog, strays: Strays) -> Member:
    """Return what folds storms of lines, tells how many were dropped, and what exceptions ended in no code of ours."""

    def tick() -> None:
        for line in strays.take():
            event_log.trouble(line)
        event_log.tick()

    return Member(
        name="log",
        tick=tick,
        next_deadline=lambda: event_log.next_deadline,
        facts=lambda: {"dropped_log_lines": event_log.dropped_lines},
    )


def runtime_directory(
    journal: Journal, control: Control, claims: Claims, simulated: SimulatedNode | None, *, log: Callable[[str], None]
) -> Member:
    """Return what makes the runtime directory anew where it was removed; its state comes with the next round."""
    place = control.path.parent
    lasting: list[tuple[Path, Callable[[], None]]] = [
        (place / LOCK_NAME, journal.restore_lock),
        (control.path, control.restore),
        (claims.directory, claims.prepare),
    ]
    if simulated is not None:
        lasting.insert(0, (place / MARKER_NAME, partial(claim, (place,), simulated.identity)))
    looked_after = RuntimeDirectory(place, lasting, log=log)
    return Member(name="runtime_directory", before_judging=looked_after.tick, trouble=lambda: looked_after.trouble)


def descriptors() -> Member:
    """Return the warning before file descriptors run out."""
    return Member(name="descriptors", trouble=descriptor_trouble)


def own_use() -> Member:
    """Return what tells how much of the machine the agent itself takes, read once for each judgement."""
    reader = OwnUseReader()
    return Member(name="own_use", before_judging=reader.look, facts=lambda: {"own_use": reader.last})


def host_name(configuration: Configuration) -> Member:
    """Return the warning that this machine got another name since the start, such as from DHCP during a boot."""
    known, before = node_name(configuration), _short_host_name()

    def trouble() -> str:
        present = _short_host_name()
        if present == before or known != before:
            return ""
        return f"this machine is called {present} now, and the agent goes on as {known}: restart it, or set node_name"

    return Member(name="host_name", trouble=trouble)


def _short_host_name() -> str:
    return socket.gethostname().split(".")[0]


def http(server: Listening) -> Member:
    """Return what is told of the HTTP server, which answers from threads of its own once its address is free."""
    return Member(
        name="http",
        tick=server.tick,
        next_deadline=lambda: server.next_deadline,
        facts=lambda: {"refused_connections": server.refused},
        trouble=lambda: server.trouble,
    )


def watchdog(watched: Watchdog) -> Member:
    """Return what tells the service manager that the loop turns."""
    return Member(name="watchdog", tick=watched.tick, next_deadline=lambda: watched.next_deadline)


def simulation(node: SimulatedNode | None) -> Member | None:
    """Begin the scenario of *node*, where the agent stands for a simulated one. Raises StoreError."""
    if node is None:
        return None
    node.start()
    return Member(
        name="simulation", tick=node.tick, next_deadline=lambda: node.next_deadline, trouble=lambda: node.trouble
    )


def kernel_log(watch: KernelWatch | None, ingest: Ingest) -> Member | None:
    """Return what follows the kernel log for *ingest*, where that is wanted."""
    if watch is None:
        return None
    return Member(
        name="kernel_log",
        tick=partial(ingest.take_kernel_events, watch),
        next_deadline=lambda: watch.next_deadline,
        trouble=lambda: watch.trouble,
        memory=lambda: watch.memory,
    )


def load_guard(
    guard: LoadGuard, *, log: Callable[[str], None], told: Callable[[], bool], changed: Callable[[], None]
) -> Member:
    """Return what keeps loads and jobs apart; *log* takes why prologs cannot claim the node, so that no load runs.

    *changed* is called as long as the newest snapshot says something else, by *told*, of whether a load may run.
    """
    try:
        guard.claims.prepare()
    except StoreError as error:
        log(f"{error}: prologs cannot claim this node, so no load runs")

    def facts() -> Mapping[str, object]:
        claims = guard.claims.look()
        return {"probing": guard.probing, "jobs": claims.count, "oldest_job_seconds": claims.oldest_seconds}

    def tick() -> None:
        guard.tick()
        if told() != guard.probing:
            changed()

    return Member(name="load_guard", tick=tick, next_deadline=lambda: guard.next_deadline, facts=facts)


def gate_log(runtime: Path, *, memory: bytes | None, log: Callable[[str], None]) -> Member:
    """Return what counts the decisions of prologs."""
    counted = GateLog(runtime, memory=memory, log=log)
    return Member(
        name="gate_log",
        before_judging=counted.tick,
        facts=lambda: {"gate_decisions": counted.counts},
        memory=lambda: counted.memory,
    )


def slurm(
    configuration: Configuration,
    clock: Clock,
    selector: selectors.BaseSelector,
    cleanup: ExitStack,
    *,
    memory: bytes | None,
    told: Callable[[tuple[Acknowledged, ...]], None],
) -> Member | None:
    """Return the writer to SLURM, or None where it is off; *told* takes what people did there, and any news."""
    runtime, boot_id = Path(configuration.agent.runtime_dir), clock.instant().boot_id
    if configuration.slurm.writer != "drain" or configuration.slurm.permit == "local":
        end_permit(runtime / MEMORY_NAME, memory, boot_id)
    if configuration.slurm.writer == "off":
        return None
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
    return Member(
        name="slurm",
        facts=lambda: {"slurm": reactor.status, "permit": reactor.status.permit},
        trouble=lambda: reactor.trouble,
        judged=reactor.submit,
        memory=lambda: reactor.memory,
        stop=reactor.stop,
    )
