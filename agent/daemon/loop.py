"""The daemon: one main thread that owns all mutable state, and helper threads that receive immutable snapshots.

The loop waits in one selector for children, the kernel log, the socket and signals; it never waits for a driver, a disk
or a scraper. ``_turn`` is the whole of it. What it drives are the services that ``_gather`` lists: whatever the agent
comes to do besides is one more of them.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nodevet.agent.config.load import usual_runtime_directory
from nodevet.agent.config.settings import Configuration
from nodevet.agent.control.server import SOCKET_NAME
from nodevet.agent.load.guard import LoadGuard
from nodevet.agent.load.prober import Prober
from nodevet.agent.load.recorder import LoadRecorder
from nodevet.agent.load.run import Spawn
from nodevet.agent.readers.kernel_watch import KernelWatch
from nodevet.agent.readers.release import Release
from nodevet.agent.readers.remembered import recalled_readers
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.readers.telling import Take
from nodevet.agent.services.protocol import Service
from nodevet.agent.simulated.origin import keep_apart
from nodevet.agent.slurm.gate_log import GateLog
from nodevet.agent.store.journal import Journal
from nodevet.agent.store.publisher import Publisher
from nodevet.agent.terminal.outlet import Outlet
from nodevet.checks.burnin.launch import burn_command
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.errors import ConfigurationError, DescriptorsClosed, StoreError
from nodevet.checks.core.guard import Bug, Guard, attempt
from nodevet.checks.core.model import AgentInfo, Episode, Instant, Key, Snapshot
from nodevet.checks.engine.acknowledgement import Returns
from nodevet.checks.engine.engine import ConfiguredCheck, Round
from nodevet.checks.engine.episodes import Knew
from nodevet.checks.engine.registry import installed
from nodevet.checks.engine.site_code import UNWATCHED, Watch
from nodevet.checks.system.procfs import exists
from nodevet.checks.system.signals import SignalPipe
from nodevet.exporters.web.http import HttpServer

from .assembly import (
    FAST,
    agent_info,
    build_engine,
    build_supervisor,
    configure,
    engine_cadences,
    modes_in_force,
    node_name,
    ttl_seconds,
)
from .assembly import cadences as group_cadences
from .event_log import EventLog, greeting
from .ingest import Ingest
from .listening import Listening
from .loads import Loads
from .log import make_logger
from .notify import Notifier, Watchdog
from .own_use import OwnUseReader
from .pace import Pace
from .reload import taken_up
from .reports import Reports
from .services import BROKEN_WAIT_SECONDS, Descriptors, HostName, Log, Services, Socket, Store, runtime_directory, slurm
from .showing import Showing
from .strays import Strays
from .verbs import verbs

if TYPE_CHECKING:
    from nodevet.agent.simulated.node import Simulate, SimulatedNode
    from nodevet.agent.simulated.prober import SimulatedProber
    from nodevet.agent.slurm.acknowledged import Acknowledged
    from nodevet.agent.slurm.reactor import Reactor

LONGEST_WAIT_SECONDS = 10.0
"""How long the loop may sleep when nothing is due: whatever happens wakes it."""

BROKEN_TURN_SECONDS = 0.05
"""Least time of a turn in which a part of the agent failed: no signal, answer or reader waits much longer for it."""

GATHER_SECONDS = 0.05
"""How long the loop waits for more when readings came: a round has one message for each device, and the next message is
a few milliseconds behind. Without this pause each would be a turn of its own.
"""

STOP_SECONDS = 1.5

MOST_FAILURES = 10
"""So often in a row the owner of a descriptor may raise before it is heard no more."""

SILENT_SECONDS = 30.0
"""A main loop that made no turn for so long is not healthy."""


class Daemon:
    """Runs the agent of one node until it is told to stop."""

    def __init__(
        self,
        configuration: Configuration,
        clock: Clock,
        *,
        reload: Callable[[], Configuration],
        outlet: Outlet,
        say: Callable[[str], None] = lambda _line: None,
        simulate: Simulate | None = None,
        through: Callable[[Service], Service] = lambda service: service,
        stands_for_kernel: bool = False,
        spawn: Spawn = burn_command,
        watch: Watch = UNWATCHED,
    ) -> None:
        """Prepare by *configuration*; *reload* reads it again; *say* takes lines meant for a person at a terminal.

        What is logged goes through *outlet*. Where *simulate* is given, the agent stands for that node and reads
        nothing of this machine. Each service passes *through* before the loop drives it: a drill puts faults there.
        With *stands_for_kernel* the configured log is that of fake devices: as a simulated one, it counts as the
        kernel's. *spawn* says how the child of a probe is started, and *watch* is over code of the site.
        """
        self._spawn = spawn
        self._watch = watch
        self._through = through
        self._configuration = configuration
        self._clock = clock
        self._reload = reload
        self._say = say
        self._stands_for_kernel = stands_for_kernel or simulate is not None
        self._notifier = Notifier.from_environment()
        log = make_logger(configuration.agent.log_level, outlet=outlet)
        self._event_log = EventLog(
            log if simulate is None else log.bind(simulated=True),
            self._notifier,
            monotonic=clock.monotonic,
            outlet=outlet,
        )
        self._guard = Guard(self._event_log.trouble)
        self._strays = Strays()
        self._deaf: dict[int, int] = {}
        configured = configure(installed(watch), configuration)
        self._info = agent_info(configuration, configured, clock.instant())
        self._selector = selectors.DefaultSelector()
        self._engine = build_engine(configured, configuration, clock, simulated=simulate is not None, guard=self._guard)
        self._simulated = self._simulated_node(simulate)
        self._recorder = LoadRecorder()
        self._pace = Pace(clock, configuration.agent.interval_seconds)
        self._snapshot: Snapshot | None = None
        self._judged: Snapshot | None = None
        self._stopping = False
        self._last_turn = time.monotonic()

    # What the surfaces ask for.

    @property
    def snapshot(self) -> Snapshot:
        """Return the snapshot that every surface shows."""
        assert self._snapshot is not None
        return self._snapshot

    @property
    def newest(self) -> Snapshot:
        """Return what was judged last, which is shown once it is kept."""
        return self._judged or self.snapshot

    def when_kept(self, act: Callable[[str], None]) -> None:
        """Call *act* when all that was judged so far is shown, with what is wrong where it could not be kept."""
        self._showing.when_shown(lambda trouble: self._guard.run("answer", partial(act, trouble)))

    @property
    def now(self) -> Instant:
        """Return the present moment."""
        return self._clock.instant()

    def acknowledge(
        self, key: Key, *, note: str, actor: str, knew: Knew, until: Instant | Returns | None = None
    ) -> Episode | None:
        """Acknowledge the episode of *key*, where who does so *knew* it as it is now, and judge anew."""
        episode = self._engine.acknowledge(key, note=note, actor=actor, knew=knew, until=until)
        if episode is not None:
            self.judge((episode,))
            self.when_kept(partial(self._event_log.acknowledged, (episode,), note, actor))
        return episode

    def release(self, seconds: float) -> None:
        """Close every device handle for *seconds*, also where the agent restarts meanwhile."""
        self.loads.stop_probe("devices are released")
        self._release.begin(seconds)
        self.judge()

    # The loop.

    def run(self) -> int:
        """Run until a signal ends it, and return the exit code."""
        with ExitStack() as cleanup:
            cleanup.enter_context(self._strays)
            self._start(cleanup)
            try:
                while not self._stopping:
                    self._turn()
            except DescriptorsClosed:
                cleanup.pop_all()  # what it would close is closed, or by now another's
                raise
            self._stop()
        return 0

    def _turn(self) -> None:
        """Wait for the next thing, take it in, do what is due, and judge where something changed."""
        self._hear_all(self._patience())
        if self._ingest.has_readings:
            time.sleep(GATHER_SECONDS)
            self._hear_all(0.0)
        self._last_turn = time.monotonic()
        self._services.tick()
        if self._pace.due:
            self._guard.run("round", self.judge, self._pace.judged)
        if self._services.has_broken:
            # What it left unread wakes the selector at once, again and again.
            time.sleep(BROKEN_TURN_SECONDS)

    def _hear_all(self, patience_seconds: float) -> None:
        """Let each owner take what came, or comes within *patience_seconds*."""
        for key, mask in self._wait(patience_seconds):
            self._hear(key, mask)

    def _wait(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what can be read within *seconds*. Raises DescriptorsClosed where the selector is no longer ours."""
        try:
            return self._selector.select(seconds)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EINVAL):
                raise
            closer = self._watch.closer or "other code in its process"
            raise DescriptorsClosed(f"{closer} closed the descriptors of the agent, which ends: correct it") from error

    def _hear(self, key: selectors.SelectorKey, mask: int) -> None:
        """Let the owner of *key* take what came; one that only raises is heard no more, or the loop would spin."""
        part = f"input of {_owner(key)}"
        done = attempt(partial(key.data, mask))
        if not isinstance(done, Bug):
            self._guard.works(part)
            self._deaf.pop(key.fd, None)
            return
        self._guard.failed(part, done)
        self._deaf[key.fd] = self._deaf.get(key.fd, 0) + 1
        if self._deaf[key.fd] >= MOST_FAILURES and key.fd in self._selector.get_map():
            self._selector.unregister(key.fileobj)

    def _patience(self) -> float:
        """Return how long the selector may wait."""
        now = self._clock.monotonic()
        wake = min(self._pace.next_deadline, self._services.next_deadline)
        # A part that fails may fail to say when it must be called.
        broken = any(not fault.works for fault in self._guard.faults)
        return min(max(wake - now, 0.0), BROKEN_WAIT_SECONDS if broken else LONGEST_WAIT_SECONDS)

    def judge(self, also_changed: tuple[Episode, ...] = ()) -> None:
        """Judge what is known, keep it, and have it shown once it is kept; at once where that cannot be waited for."""
        self._services.before_judging()
        self._guard.run("faults", partial(self._engine.take_faults, self._guard.faults))
        done = self._round()
        self._pace.judged()
        self._judged = done.snapshot
        ticket = self._guard.run("store", partial(self._keep, (*also_changed, *done.changes)))
        if ticket is not None:
            self._guard.run("mirror", partial(self._publisher.mirror, done.snapshot))
        show = partial(self._show, done.snapshot, done.changes)
        self._guard.run("showing", partial(self._showing.offer, done.snapshot, done.changes, ticket), show)

    def _show(self, snapshot: Snapshot, changes: tuple[Episode, ...]) -> None:
        """Hand *snapshot* to every surface, and tell what changed."""
        before, self._snapshot = self._snapshot, snapshot
        self._services.judged(snapshot)
        self._guard.run("log", partial(self._event_log.changes, before, snapshot, changes))

    def _round(self) -> Round:
        """Return what a judgement gave; where judging itself fails, the last snapshot with nothing green in it."""
        agent = self._agent()
        done = attempt(partial(self._engine.evaluate, agent))
        if not isinstance(done, Bug):
            self._guard.works("judging")
            return done
        self._guard.failed("judging", done)
        return Round(self._engine.unjudged(self.newest, agent, str(done)), ())

    def _keep(self, changes: tuple[Episode, ...]) -> int | None:
        return self._journal.keep_round(changes, {**self._engine.memory(), **self._services.memory()})

    def _agent(self) -> AgentInfo:
        info = msgspec.structs.replace(self._info, ready=self._pace.ready, stopping=self._stopping)
        return self._guard.run("description", partial(self._services.describe, info), lambda: info)

    def _complaint(self) -> str | None:
        silent = time.monotonic() - self._last_turn
        return f"the main loop has made no turn for {silent:.0f} s" if silent > SILENT_SECONDS else None

    # Its start and its end.

    def _start(self, cleanup: ExitStack) -> None:
        """Take every resource that can be refused before anything is read, so that a refusal is one clear line."""
        agent = self._configuration.agent
        cleanup.callback(self._selector.close)
        keep_apart(agent, self._simulated)
        cleanup.enter_context(SignalPipe(self._selector, self._on_signal))
        self._journal = cleanup.enter_context(Journal(self._configuration, self._clock))
        self._selector.register(self._journal.bell, selectors.EVENT_READ, lambda _mask: self._journal.answer())
        cleanup.callback(self._selector.unregister, self._journal.bell)
        self._reports = Reports(self._configuration, log=self._event_log.trouble, rendered=self._on_report)
        cleanup.callback(self._reports.close)
        page = partial(HttpServer, agent.listen, lambda: self._snapshot, self._complaint, log=self._event_log.trouble)
        page = partial(page, report=self._reports.latest, reported=self._reports.has_any, now=self._clock.instant)
        may_wait = self._notifier.active and self._simulated is None  # a person reads a refusal
        self._http = Listening(agent.listen, partial(page, guard=self._guard), self._clock, may_wait=may_wait)
        cleanup.callback(self._http.close)
        ttl, runtime, ended = ttl_seconds(agent), Path(agent.runtime_dir), lambda: self._journal.ended
        self._publisher = Publisher(runtime, ttl_seconds=ttl, guard=self._guard, ended=ended, root=agent.root)
        cleanup.callback(self._publisher.close, 0.3)
        self._showing = Showing(
            self._clock,
            self._show,
            keeping=self._journal.keeping,
            trouble=lambda: self._journal.trouble,
            mirrored=self._publisher.has_mirrored,
        )
        memory = self._journal.restore(self._engine)
        self._info = msgspec.structs.replace(self._info, notices=self._journal.notices)
        self._services = self._gather(memory, cleanup)
        self._snapshot = self._engine.remembered(self._agent())
        self._publisher.judged(self._snapshot)
        self._http.start()
        self._notifier.ready(f"reads {', '.join(agent.backends.names)}")
        self._greet()

    def _gather(self, memory: Mapping[str, bytes], cleanup: ExitStack) -> Services:
        """Open all that the loop drives, in the order of a turn; *memory* is what each had kept before a restart."""
        configuration, trouble = self._configuration, self._event_log.trouble
        if self._simulated is not None:
            self._simulated.start()
        ingest = self._readers(memory.get("readers"))
        self._ingest, self._supervisor = ingest, ingest.supervisor
        self._release = Release(self._supervisor, self._clock, memory.get("release"))
        watch = self._kernel_watch(memory.get("kernel_log"), ingest, cleanup)
        self.guard, self.loads = self._loads(ingest)
        runtime = Path(configuration.agent.runtime_dir)
        gate_log = GateLog(runtime, memory=memory.get("gate_log"), log=trouble)
        control = Socket(runtime / SOCKET_NAME, verbs(self), self._selector, guard=self._guard)
        cleanup.callback(control.close)
        gathered = (
            Store(self._journal),
            self._showing,
            self._publisher,
            ingest,
            self._release,
            self._simulated,
            watch,
            self.loads,
            self._reports,
            self.guard,
            gate_log,
            control,
            runtime_directory(self._journal, control, self.guard.claims, self._simulated, self._watch, log=trouble),
            self._slurm(memory.get("slurm"), cleanup),
            Log(self._event_log, self._strays),
            self._http,
            Descriptors(),
            OwnUseReader(),
            HostName(configuration),
            Watchdog(self._notifier, self._clock),
        )
        driven = (self._through(service) for service in gathered if service is not None)
        return Services(driven, self._guard, self._clock.monotonic)

    def _readers(self, memory: bytes | None) -> Ingest:
        """Return the readers of all backends, and look for those that an agent before has left."""
        kept = recalled_readers(memory, log=self._event_log.trouble)
        simulation = self._simulated.file if self._simulated else None

        def supervise(take: Take) -> Supervisor:
            return build_supervisor(self._configuration, self._clock, self._selector, take, kept.records, simulation)

        engine, journal, log = self._engine, self._journal, self._event_log
        ingest = Ingest(engine, journal, self._recorder, self._pace, log, self._guard, supervise)
        ingest.supervisor.recall(kept.falls)
        return ingest

    def _kernel_watch(self, memory: bytes | None, ingest: Ingest, cleanup: ExitStack) -> KernelWatch | None:
        settings = self._configuration.kernel_log
        if not settings.enabled:
            return None
        watch = KernelWatch(
            settings.path,
            self._clock,
            self._selector,
            memory=memory,
            log=self._event_log.trouble,
            take=ingest.take_kernel_log,
            stands_for_kernel=self._stands_for_kernel,
        )
        cleanup.callback(watch.close)
        return watch

    def _loads(self, ingest: Ingest) -> tuple[LoadGuard, Loads]:
        """Return what keeps loads and jobs apart, and the loads."""
        runtime = Path(self._configuration.agent.runtime_dir)
        lease = LoadGuard(runtime, self._clock, exists, lambda: self._publisher.written, self._take_probing)
        try:
            lease.claims.prepare()
        except StoreError as error:
            self._event_log.trouble(f"{error}: prologs cannot claim this node, so no load can run")
        prober, recorder, reports = self._prober(lease), self._recorder, self._reports
        return lease, Loads(prober, lease, recorder, reports, ingest, self._event_log, self)

    def _simulated_node(self, wanted: Simulate | None) -> SimulatedNode | None:
        """Return the node that is *wanted*, or None; an agent of a real node does not import what simulates one."""
        if wanted is None:
            return None
        from nodevet.agent.simulated.node import SimulatedNode

        return SimulatedNode.of(wanted, self._configuration, self._clock, self._event_log.simulation)

    def _prober(self, lease: LoadGuard) -> Prober | SimulatedProber:
        if self._simulated is not None:
            from nodevet.agent.simulated.prober import SimulatedProber

            return SimulatedProber(self._simulated, self._clock)
        return Prober(
            self._configuration.load,
            self._clock,
            self._selector,
            lease,
            node=node_name(self._configuration),
            refresh=lambda: self._supervisor.ask(FAST),
            root=self._configuration.agent.root,
            spawn=self._spawn,
            log=self._event_log.note,
        )

    def _take_probing(self, probing: bool) -> None:
        """Have it judged soon as long as the newest snapshot says something else of whether a load may run."""
        if self.newest.agent.probing != probing:
            self._pace.hurry()

    def _slurm(self, memory: bytes | None, cleanup: ExitStack) -> Reactor | None:
        if self._simulated is not None:
            return None  # nobody is ever told of a simulated node
        return slurm(self._configuration, self._clock, self._selector, cleanup, memory=memory, told=self._take_resumed)

    def _take_resumed(self, entries: tuple[Acknowledged, ...]) -> None:
        """Take what a person acknowledged by resuming the node in SLURM, judged once, and what is new there."""
        from nodevet.agent.slurm.acknowledged import RESUMER, said

        words = said(entries, self._engine)
        if words:
            self.judge(words)
            self.when_kept(partial(self._event_log.acknowledged, words, entries[0].note, RESUMER))
        self._pace.hurry()

    def _greet(self) -> None:
        simulates = f"{self._simulated.profile}, {self._simulated.title}" if self._simulated else ""
        runtime_dir = self._configuration.agent.runtime_dir
        elsewhere = runtime_dir if Path(runtime_dir) != usual_runtime_directory(os.environ, os.geteuid()) else ""
        node = node_name(self._configuration)
        url, trouble = self._http.url, self._http.trouble
        for line in greeting(self._info, node, url, trouble=trouble, simulates=simulates, elsewhere=elsewhere):
            self._say(line)
        for notice in self._info.notices:
            self._event_log.trouble(notice)

    def _stop(self) -> None:
        """End within two seconds: no new work, loads and readers closed, last state written."""
        self._guard.run("end", self._notifier.stopping)
        self._services.stop()
        deadline = self._clock.monotonic() + STOP_SECONDS
        while self._clock.monotonic() < deadline and not self._guard.run("end", self._is_at_rest, bool):
            for key, mask in self._selector.select(0.05):
                self._hear(key, mask)
            self._guard.run("readers: end", self._supervisor.tick)
            self._guard.run("loads: end", self.loads.end)
            self._guard.run("showing: end", self._showing.tick)
        self._guard.run("showing: end", self._showing.finish)
        self._guard.run("state file: end", self._tell_end)

    def _tell_end(self) -> None:
        self._snapshot = msgspec.structs.replace(self.snapshot, agent=self._agent())
        self._publisher.judged(self._snapshot)

    def _is_at_rest(self) -> bool:
        return self._supervisor.at_rest and not self.loads.prober.running and not self._showing.pending

    # What it is told from outside.

    def _on_signal(self, number: int) -> None:
        if number != signal.SIGHUP:
            self._stopping = True
        elif not self._stopping:
            self._reconfigure()

    def _reconfigure(self) -> None:
        """Read the configuration again, and a scenario; what is refused or fails leaves all as it was, and is told."""
        self._notifier.reloading()
        self._guard.run("reload", self._read_again, self._not_reconfigured)
        self._notifier.ready("")
        self._pace.hurry()

    def _read_again(self) -> None:
        if self._simulated is not None:
            self._simulated.reload()
        try:
            fresh = self._reload()
            configured = configure(installed(self._watch), fresh)
        except ConfigurationError as error:
            line = "; ".join(str(error).splitlines())
            self._info = msgspec.structs.replace(
                self._info, configuration_accepted=False, configuration_message=f"reload refused: {line}"
            )
            self._event_log.reloaded("error", "reload refused", reason=line)
        else:
            self._take_up(fresh, configured)

    def _not_reconfigured(self) -> None:
        line = "reload failed, the previous settings stay active: an error in nodevet; read the agent's log"
        self._info = msgspec.structs.replace(self._info, configuration_accepted=False, configuration_message=line)

    def _take_up(self, fresh: Configuration, configured: tuple[ConfiguredCheck, ...]) -> None:
        """Put *fresh* into force: what may raise comes before all that changes anything."""
        taken, message = taken_up(self._configuration, fresh)
        rates, modes = engine_cadences(taken, group_cadences(taken)), modes_in_force(taken)
        info = agent_info(taken, configured, self._info.started)
        self.loads.prober.configure(fresh.load)
        self._engine.reconfigure(configured, rates, modes)
        self._configuration = taken
        self._info = msgspec.structs.replace(info, notices=self._info.notices, configuration_message=message)
        told = partial(self._event_log.reloaded, "warning", "reloaded", digest=info.configuration_digest, note=message)
        self._guard.run("log", told)

    def _on_report(self, page: Path) -> None:
        self._event_log.report_rendered(page, f"{self._http.url}report" if self._http.url else "")


def _owner(key: selectors.SelectorKey) -> str:
    """Return the name in our code of what *key* calls."""
    return str(getattr(key.data, "__qualname__", "a descriptor")).split(".<locals>")[0]
