"""One-shot verdict without an agent: samples a second apart, through the same engine, under the node lock.

A one-shot has no history. The daemon confirms a measured finding over minutes; here two rounds that agree confirm it.
Growth is measured from the second round on, so a round is added while a finding was seen once only, or growth could not
be measured; where one second has too few errors to tell a rate from a burst, the rounds are further apart. A healthy
node takes two rounds. Episodes of an agent in the store count: a stopped agent does not make a failed node healthy.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import msgspec

from nodevet.agent.config.settings import Configuration
from nodevet.agent.daemon.assembly import agent_info, build_engine, build_supervisor, configure
from nodevet.agent.readers.kernel_watch import KernelWatch
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.readers.telling import Cut, Listed, Told
from nodevet.agent.simulated.origin import refuse_simulated
from nodevet.agent.store.database import DamagedError
from nodevet.agent.store.machine import Machine, is_of, this_machine
from nodevet.agent.store.mirror import MIRROR_NAME, Mirror, ends, read_mirror, restore
from nodevet.agent.store.opening import DATABASE_NAME, read_store
from nodevet.agent.store.site_marks import known_marks
from nodevet.checks.core.clock import Clock, SystemClock
from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.core.guard import Guard
from nodevet.checks.core.model import AgentInfo, Episode, EpisodeState, Event, ReaderStatus, Result, Sample, Snapshot
from nodevet.checks.core.wire import Note
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import installed
from nodevet.checks.engine.verdicts import proved
from nodevet.checks.system.lock import acquire_node_lock
from nodevet.checks.system.procfs import refuse_foreign_proc

LOOKS = 2
MOST_LOOKS = 4
"""Growth is measured from the second round on, and two rounds must agree; one more decides where they do not."""
APART_SECONDS = 1.0
LONGEST_APART_SECONDS = 8.0
"""Longest time between rounds where one second has too few errors."""
MARGIN = 2.0
"""Factor on the mean time until enough errors are expected, because errors come by chance."""
UNASKED_SECONDS = 3600.0
"""Interval of a collector's own rounds: one between two rounds here would shorten the time that is measured."""
STOP_SECONDS = 2.0
STARTS = 3
"""Failed starts of a collector, a second apart, after which its devices are given up."""

Keep = Callable[[Sequence[Episode], Mapping[str, bytes]], None]
Also = Callable[[Snapshot], Sequence[Result]]


def look(
    configuration: Configuration,
    *,
    names: Sequence[str] = (),
    results: Sequence[Result] = (),
    purpose: str = "nodevet check",
    keep: Keep = lambda _changes, _memory: None,
    confirmed: bool = True,
    locked: bool = False,
    also: Also = lambda _snapshot: (),
    events: Sequence[Event] = (),
) -> Snapshot:
    """Read every device twice and return the snapshot. *results* of loads that just ran are judged with it.

    *keep* is given the episodes that each round changed, and the engine's memory after it. What need not be
    *confirmed* is read once: that shows what is here, who uses it, and what is hard. *locked* says that the caller
    holds the node lock. *also* returns results that a look adds to them, for the next one. *events* are what drivers
    told before.

    Raises BusyError while an agent or another look reads the devices, StoreError in directories of a simulated node,
    ConfigurationError where /proc is of other processes.
    """
    refuse_foreign_proc()
    refuse_simulated(Path(configuration.agent.state_dir), Path(configuration.agent.runtime_dir))
    clock = SystemClock(configuration.agent.root)
    checks = installed(known_marks(Path(configuration.agent.runtime_dir)))
    configured = tuple(impatient(entry) for entry in configure(checks, configuration, names))
    engine = build_engine(configured, configuration, clock, partial=bool(names))
    memory, notices = _recall(engine, configuration, clock)
    info = msgspec.structs.replace(agent_info(configuration, configured, clock.instant()), notices=notices)
    for result in results:
        engine.take_result(result)
    for event in events:
        engine.take_event(event)
    with nullcontext() if locked else acquire_node_lock(Path(configuration.agent.runtime_dir), purpose):
        most = MOST_LOOKS if confirmed else 1
        return proved(_look(engine, info, configuration, clock, memory.get("kernel_log"), keep, also, most), names)


def _look(
    engine: Engine,
    info: AgentInfo,
    configuration: Configuration,
    clock: Clock,
    kernel_memory: bytes | None,
    keep: Keep,
    also: Also,
    most: int,
) -> Snapshot:
    with selectors.DefaultSelector() as selector:
        if configuration.kernel_log.enabled:
            trouble = _read_kernel_log(engine, configuration, clock, selector, kernel_memory)
            info = msgspec.structs.replace(info, notices=(*info.notices, *filter(None, (trouble,))))
        patience = 4 * configuration.agent.deadline_seconds + 10
        guard = Guard()  # what failed is a finding of the one look that there is
        supervisor = build_supervisor(_only_asked(configuration), clock, selector, partial(_take, engine, guard))
        ready = msgspec.structs.replace(info, ready=True)

        def pause(seconds: float) -> None:
            supervisor.wait(lambda: False, seconds)
            supervisor.ask()

        def take() -> Snapshot:
            _take_look(engine, supervisor, patience, guard)
            done = engine.evaluate(ready)
            for result in also(done.snapshot):
                engine.take_result(result)
            keep(done.changes, engine.memory())
            return done.snapshot

        try:
            return look_until_settled(take, pause, most)
        finally:
            supervisor.stop()
            supervisor.wait(lambda: supervisor.at_rest, STOP_SECONDS)


def _only_asked(configuration: Configuration) -> Configuration:
    """Return *configuration* with readers that read when they are asked to."""
    slow = max(configuration.agent.slow_interval_seconds, UNASKED_SECONDS)
    agent = msgspec.structs.replace(configuration.agent, interval_seconds=UNASKED_SECONDS, slow_interval_seconds=slow)
    return msgspec.structs.replace(configuration, agent=agent)


def look_until_settled(take: Callable[[], Snapshot], wait: Callable[[float], None], most: int = MOST_LOOKS) -> Snapshot:
    """*take* at *most* so many looks until nothing waits for another, *wait* some seconds between; return the last."""
    snapshot, apart = take(), APART_SECONDS
    for taken in range(1, most):
        is_pending = any(episode.state is EpisodeState.PENDING for episode in snapshot.episodes)
        is_untold = any(finding.again and not finding.bad for finding in snapshot.findings)
        if taken >= LOOKS and not is_pending and not is_untold:
            break
        enough = max((finding.again for finding in snapshot.findings), default=0.0)
        apart = max(apart, min(MARGIN * enough, LONGEST_APART_SECONDS))
        wait(apart)
        snapshot = take()
    return snapshot


def _take_look(engine: Engine, supervisor: Supervisor, patience_seconds: float, guard: Guard) -> None:
    supervisor.wait(lambda: all(map(is_given_up, supervisor.unsettled)), patience_seconds)
    engine.take_readers(supervisor.statuses)
    engine.take_faults(guard.faults)


def _take(engine: Engine, guard: Guard, told: Told) -> None:
    """Have *engine* take what a reader told. The lines of its log are for nobody here."""
    match told:
        case Sample():
            guard.run(f"intake of {told.group} of {told.device}", partial(engine.take_sample, told))
        case Event():
            guard.run(f"intake of event {told.code}", partial(engine.take_event, told))
        case Listed():
            take = partial(engine.take_devices, told.backend, told.devices)
            guard.run(f"intake of devices: {told.backend}", take)
        case Note() | Cut():
            pass


def is_given_up(status: ReaderStatus) -> bool:
    """Return whether nothing is expected of a reader any more: no process came of it, as without a descriptor."""
    return status.starts >= STARTS and status.pid is None and not status.hangs and not status.crashes


def _read_kernel_log(
    engine: Engine, configuration: Configuration, clock: Clock, selector: selectors.BaseSelector, memory: bytes | None
) -> str:
    """Give *engine* what the kernel told since the agent last read its log, or since boot where none ever did.

    Return what of it is lost, in words.
    """
    watch = KernelWatch(configuration.kernel_log.path, clock, selector, memory=memory, log=lambda _line: None)
    for event in (*watch.read(), *watch.settle()):
        engine.take_event(event)
    engine.take_kernel_log(watch.state)
    watch.close()
    return watch.trouble


def _recall(engine: Engine, configuration: Configuration, clock: Clock) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """Give *engine* the memory of the agent that is not running; return it, and what could not be read, in words.

    As at the agent's own start, the mirror of this boot counts where the store knows less or is lost.
    """
    mirror, told = None, ""
    try:
        mirror = read_mirror(Path(configuration.agent.runtime_dir) / MIRROR_NAME)
        told = mirror.notice if mirror is not None else ""
    except StoreError as error:
        told = str(error)
    ended: list[Episode] = []
    path, machine = Path(configuration.agent.state_dir) / DATABASE_NAME, this_machine(Path(configuration.agent.root))
    memory, notices = _memory(engine, path, machine, mirror, ended)
    if mirror is not None:
        engine.adopt(restore(engine.episodes, mirror, clock.instant().boot_id, ended))
    return memory, (*notices, *filter(None, (told,)))


def _memory(
    engine: Engine, path: Path, machine: Machine, mirror: Mirror | None, ended: list[Episode]
) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """Give *engine* what the database at *path* keeps of *machine*, and *ended* what it ends of what *mirror* has."""
    try:
        if not path.exists():
            return {}, ()
        with closing(read_store(path)) as store:
            memory = store.load_memory()
            if not is_of(memory, machine):
                other = f"the history is ignored: {path} is from another machine: start the agent, which moves it aside"
                return {}, (other,)
            ended += ends(store, mirror)
    except DamagedError as error:
        return {}, (f"the history is ignored: {error}: start the agent, which moves it aside",)
    except (StoreError, BusyError, OSError) as error:
        return {}, (f"the history is ignored: {error}",)
    try:
        engine.restore(memory)
    except msgspec.MsgspecError as error:
        return memory, (f"a part of the history cannot be read and is ignored: {error}",)
    return memory, ()


def impatient(entry: ConfiguredCheck) -> ConfiguredCheck:
    """Return the check with a policy that two looks can confirm."""
    fields = set(entry.policy.__struct_fields__)
    shorter = {name: LOOKS for name in ("needed", "window") if name in fields and getattr(entry.policy, name) > LOOKS}
    return ConfiguredCheck(entry.check, msgspec.structs.replace(entry.policy, **shorter)) if shorter else entry
