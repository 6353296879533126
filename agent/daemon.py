"""The daemon: one main thread that owns all mutable state, and helper threads that receive immutable snapshots.

The loop waits in one selector for children, the kernel log, the socket and signals; it never waits for a driver, a disk
or a scraper. Its steps are those of ``_turn``.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from nodevet.agent.assembly import (
    FAST,
    agent_info,
    arm,
    build_engine,
    build_supervisor,
    engine_cadences,
    modes_in_force,
    node_name,
)
from nodevet.agent.assembly import cadences as group_cadences
from nodevet.agent.clock import Clock
from nodevet.agent.control import SOCKET_NAME, Control
from nodevet.agent.engine import Armed
from nodevet.agent.gate_log import GateLog
from nodevet.agent.journal import Journal
from nodevet.agent.kernel_watch import KernelWatch
from nodevet.agent.load_guard import LoadGuard
from nodevet.agent.log import make_logger
from nodevet.agent.notify import Notifier, watchdog_interval_seconds
from nodevet.agent.origin import keep_apart
from nodevet.agent.prober import PLAN as PROBE_PLAN
from nodevet.agent.prober import Prober
from nodevet.agent.processes import ChildRecord, start_ticks
from nodevet.agent.publisher import Publisher
from nodevet.agent.reactor import Reactor
from nodevet.agent.recorder import LoadRecorder
from nodevet.agent.reports import Reports
from nodevet.agent.settings import Configuration
from nodevet.agent.signals import SignalPipe
from nodevet.agent.simulated_node import Simulate, SimulatedNode
from nodevet.agent.simulated_prober import SimulatedProber
from nodevet.agent.verbs import verbs
from nodevet.checks.errors import ConfigurationError, StoreError
from nodevet.checks.model import AgentInfo, Device, Episode, EpisodeState, Key, Result, Sample, Snapshot
from nodevet.checks.registry import installed
from nodevet.checks.wire import Note
from nodevet.exporters.http import HttpServer
from nodevet.exporters.schema import BurnInDocument, burn_in_document, status_document

__all__ = ["Daemon"]

SETTLE_SECONDS = 0.25
"""How long a round may still be coming in before what is there is judged."""

FIRST_ROUND_SECONDS = 5.0
"""How long the first judgement waits for every reader; one that hangs at its start must not hide the others."""

LONGEST_WAIT_SECONDS = 10.0
"""How long the loop may sleep when nothing is due: whatever happens wakes it."""

LONGEST_WAIT_BESIDE_LOAD_SECONDS = 0.5
"""The same while a probe runs or a report is rendered, whose end nobody tells of."""

STOP_SECONDS = 1.5
LONGEST_START_SECONDS = 60.0
"""A reader that never comes up does not keep the agent from being ready; it is told like any other fault."""

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
        say: Callable[[str], None] = lambda _line: None,
        simulate: Simulate | None = None,
    ) -> None:
        """Prepare by *configuration*; *reload* reads it again; *say* takes lines meant for a person at a terminal.

        Where *simulate* is given, the agent stands for that node and reads nothing of this machine.
        """
        self._configuration = configuration
        self._clock = clock
        self._reload = reload
        self._say = say
        log = make_logger(configuration.agent.log_level)
        self._log = log if simulate is None else log.bind(simulated=True)
        self._armed = arm(installed(), configuration)
        self._info = agent_info(configuration, self._armed, clock.instant())
        self._selector = selectors.DefaultSelector()
        self._engine = build_engine(self._armed, configuration, clock, simulated=simulate is not None)
        self._simulated = SimulatedNode.of(simulate, configuration, clock, self._note_simulation)
        self.guard = LoadGuard(
            Path(configuration.agent.runtime_dir),
            clock,
            lambda pid: start_ticks(pid) is not None,
            lambda: self._publisher.written,
        )
        self._recorder = LoadRecorder()
        self._load_results: tuple[Result, ...] = ()
        self._snapshot: Snapshot | None = None
        self._stopping = False
        self._ready = False
        self._dirty_since: float | None = None
        self._began = clock.monotonic()
        self._evaluated = 0.0
        self._last_turn = time.monotonic()

    # What the surfaces ask for.

    @property
    def snapshot(self) -> Snapshot:
        """Return the newest snapshot."""
        assert self._snapshot is not None
        return self._snapshot

    def acknowledge(self, key: Key, *, note: str, actor: str) -> Episode | None:
        """Acknowledge the episode of *key* and judge anew."""
        episode = self._engine.acknowledge(key, note=note, actor=actor)
        if episode is not None:
            self._log.warning("acknowledged", code=key.code, device=key.device, note=note, actor=actor)
            self._evaluate((episode,))
        return episode

    def take_results(self, results: tuple[Result, ...], plan: str) -> BurnInDocument | None:
        """Judge and keep *results* of a load; return its document, or None while the agent's own probe goes on."""
        for result in results:
            self._engine.take_result(result)
            self._journal.keep_result(result)
            self._log.info("load ended", **_figures(result))
        self._evaluate()
        self._load_results = (*self._load_results, *results)
        if self._prober.running or not self._load_results:
            return None
        document = burn_in_document(self.snapshot, plan=plan, results=self._load_results, series=self._recorder.end())
        self._load_results = ()
        self._reports.render(document)
        return document

    def stop_probe(self, reason: str) -> bool:
        """Begin to end a probe that runs; False where none does."""
        running = self._prober.running
        self._prober.stop(reason)
        return running

    def release(self, seconds: float) -> None:
        """Close every device handle for *seconds*."""
        self._prober.stop("devices are released")
        self._supervisor.release(seconds)

    # Life.

    def run(self) -> int:
        """Run until a signal ends it, and return the exit code."""
        with ExitStack() as cleanup:
            self._start(cleanup)
            while not self._stopping:
                self._turn()
            self._stop()
        return 0

    def _start(self, cleanup: ExitStack) -> None:
        """Take every resource that can be refused before anything is read, so that a refusal is one clear line."""
        agent = self._configuration.agent
        runtime = Path(agent.runtime_dir)
        cleanup.callback(self._selector.close)
        keep_apart(self._configuration.agent, self._simulated)
        self._signals = cleanup.enter_context(SignalPipe(self._selector, self._on_signal))
        self._journal = cleanup.enter_context(Journal(self._configuration, self._clock))
        self._reports = Reports(self._configuration, log=self._complain, rendered=self._on_report)
        cleanup.callback(self._reports.close)
        self._http = HttpServer(
            agent.listen,
            lambda: self._snapshot,
            self._complaint,
            report=self._reports.latest,
            now=self._clock.instant,
            log=self._complain,
        )
        cleanup.callback(self._http.stop)
        if self._simulated is not None:
            self._simulated.start()
        memory = self._journal.restore(self._engine)
        self._info = msgspec.structs.replace(self._info, notices=self._journal.notices)
        records = self._remembered_readers(memory.get("readers", b"\x90"))
        simulation = self._simulated.file if self._simulated else None
        self._supervisor = build_supervisor(self._configuration, self._clock, self._selector, records, simulation)
        self._kernel: KernelWatch | None = None
        if self._configuration.kernel_log.enabled:
            self._kernel = KernelWatch(
                self._configuration.kernel_log.path,
                self._clock,
                self._selector,
                memory=memory.get("kernel_log"),
                log=self._complain,
            )
        self._prober = self._make_prober()
        try:
            self.guard.claims.prepare()
        except StoreError as error:
            self._complain(f"{error}: prologs cannot claim this node, so no load runs")
        self._gate_log = GateLog(runtime, memory=memory.get("gate_log"), log=self._complain)
        self._publisher = Publisher(runtime, ttl_seconds=_ttl_seconds(self._configuration))
        self._control = Control(runtime / SOCKET_NAME, verbs(self), self._selector)
        cleanup.callback(self._control.close)
        self._reactor = self._make_reactor(memory.get("slurm"))
        if self._reactor is not None:
            cleanup.callback(self._reactor.close)
        self._snapshot = self._engine.remembered(self._agent())
        self._publisher.publish(self._snapshot)
        self._http.start()
        self._notifier = Notifier.from_environment()
        self._watchdog_seconds = watchdog_interval_seconds(os.environ, os.getpid())
        self._watchdog_at = 0.0
        self._notifier.ready(f"reads {', '.join(agent.backends.names)}")
        self._greet()

    def _make_reactor(self, memory: bytes | None) -> Reactor | None:
        """Return what writes to SLURM, or None where nothing may; a simulated node is never told of to anybody."""
        configuration = self._configuration
        if configuration.slurm.writer == "off" or self._simulated is not None:
            return None
        return Reactor(
            configuration.slurm,
            configuration.slurm.node_name or node_name(configuration),
            self._selector,
            runtime=Path(configuration.agent.runtime_dir),
            memory=memory,
            boot_id=self._clock.instant().boot_id,
            told=self._on_reactor,
        )

    def _make_prober(self) -> Prober | SimulatedProber:
        if self._simulated is not None:
            return SimulatedProber(self._simulated, self._clock)
        return Prober(
            self._configuration.load,
            self._clock,
            self._selector,
            self.guard,
            node=node_name(self._configuration),
            refresh=lambda: self._supervisor.ask(FAST),
            root=self._configuration.agent.root,
            log=self._on_note,
        )

    def _remembered_readers(self, memory: bytes) -> tuple[ChildRecord, ...]:
        try:
            return msgspec.msgpack.decode(memory, type=tuple[ChildRecord, ...])
        except msgspec.MsgspecError as error:
            self._complain(f"readers left by an agent of an earlier version are not looked for: {error}")
            return ()

    def _turn(self) -> None:
        """Wait for the next thing, take it in, do what is due, and judge where something changed."""
        for key, mask in self._selector.select(self._patience()):
            key.data(mask)
        self._last_turn = time.monotonic()
        self._take_readers()
        if self._simulated is not None:
            self._simulated.tick()
        self._take_kernel_events()
        probing = self._prober.running
        results = self._prober.tick(self._snapshot)
        if results or probing is not self._prober.running:
            self.take_results(results, PROBE_PLAN)
        self._record_load()
        self._reports.tick()
        self.guard.tick()
        if self.snapshot.agent.probing != self.guard.probing:
            self._dirty(now=True)
        if self._clock.monotonic() >= self._judge_at():
            self._evaluate()
        self._feed_watchdog()

    def _record_load(self) -> None:
        """Record heat, power and clock as long as somebody holds the lease."""
        if self.guard.leases.current is not None:
            self._recorder.begin(self._clock.instant().boottime_ns / 1e9)
        else:
            self._recorder.end()

    def _feed_watchdog(self) -> None:
        """Tell the service manager that the loop turns; nothing else may say so for it."""
        now = self._clock.monotonic()
        if self._watchdog_seconds is not None and now >= self._watchdog_at:
            self._notifier.watchdog()
            self._watchdog_at = now + self._watchdog_seconds

    def _patience(self) -> float:
        """Return how long the selector may wait."""
        now = self._clock.monotonic()
        deadlines = [
            self._supervisor.next_deadline,
            self._kernel.next_deadline if self._kernel else None,
            self._prober.next_deadline,
            self.guard.next_deadline,
            self._simulated.next_deadline if self._simulated else None,
            None if self._watchdog_seconds is None else self._watchdog_at,
            self._judge_at(),
        ]
        is_loaded = self._prober.running or self._reports.rendering
        longest = LONGEST_WAIT_BESIDE_LOAD_SECONDS if is_loaded else LONGEST_WAIT_SECONDS
        wake = min((when for when in deadlines if when is not None), default=now + longest)
        return min(max(wake - now, 0.0), longest)

    def _take_readers(self) -> None:
        self._supervisor.tick()
        collected = self._supervisor.collect()
        for note in collected.notes:
            self._on_note(note)
        if collected.inventory_changed:
            self._take_inventory()
        for sample in collected.samples:
            self._take_sample(sample)
        for event in collected.events:
            self._engine.take_event(event)
        statuses = self._supervisor.statuses
        known = None if self._snapshot is None else self._snapshot.readers
        if collected.events or (known is not None and [s.state for s in statuses] != [s.state for s in known]):
            self._dirty(now=True)
        elif collected.samples or collected.inventory_changed:
            self._dirty(now=self._supervisor.settled)
        self._engine.take_readers(statuses)
        patient = self._clock.monotonic() < self._began + LONGEST_START_SECONDS
        if not self._ready and (self._supervisor.settled or not patient):
            self._ready = True
            self._dirty(now=True)

    def _take_inventory(self) -> None:
        by_backend: dict[str, list[Device]] = {name: [] for name in self._configuration.agent.backends.names}
        for device in self._supervisor.devices:
            by_backend.setdefault(device.backend, []).append(device)
        for backend, devices in by_backend.items():
            self._engine.take_devices(backend, devices)
        self._journal.keep_devices(self._supervisor.devices)

    def _take_sample(self, sample: Sample) -> None:
        self._engine.take_sample(sample)
        self._recorder.take(sample)
        self._journal.keep_sample(sample)

    def _take_kernel_events(self) -> None:
        if self._kernel is None:
            return
        events = self._kernel.tick()
        for event in events:
            self._engine.take_event(event)
            self._log.warning("kernel event", code=event.code, pci=event.pci, text=event.text[:200])
        self._engine.take_kernel_log(self._kernel.state)
        if events:
            self._dirty(now=True)

    def _dirty(self, *, now: bool) -> None:
        """Note that there is something to judge: at once, or when the round has come in."""
        settled = self._clock.monotonic() - SETTLE_SECONDS
        if now:
            self._dirty_since = settled
        elif self._dirty_since is None:
            self._dirty_since = self._clock.monotonic()

    def _judge_at(self) -> float:
        """Return when to judge next, in monotonic seconds."""
        # Time itself is evidence: a reading grows old although nothing comes in.
        since = self._evaluated + self._configuration.agent.interval_seconds
        if self._dirty_since is not None:
            since = min(since, self._dirty_since)
        due = since + SETTLE_SECONDS
        # Half a round would call everything that is still to come missing.
        return due if self._ready else max(due, self._began + FIRST_ROUND_SECONDS)

    def _evaluate(self, also_changed: tuple[Episode, ...] = ()) -> None:
        before = self._snapshot
        self._gate_log.tick()
        done = self._engine.evaluate(self._agent())
        self._dirty_since = None
        self._evaluated = self._clock.monotonic()
        self._snapshot = done.snapshot
        self._publisher.publish(done.snapshot)
        readers = msgspec.msgpack.encode(self._supervisor.records)
        memory = {"readers": readers, "gate_log": self._gate_log.memory}
        if self._kernel is not None and self._kernel.memory is not None:
            memory["kernel_log"] = self._kernel.memory
        if self._reactor is not None:
            self._reactor.submit(done.snapshot)
            memory["slurm"] = self._reactor.memory
        self._journal.keep_round((*also_changed, *done.changes), {**self._engine.memory(), **memory})
        self._tell(before, done.snapshot, done.changes)
        if self._control.watched("watch"):
            self._control.publish("watch", msgspec.to_builtins(status_document(done.snapshot)))

    def _tell(self, before: Snapshot | None, after: Snapshot, changes: tuple[Episode, ...]) -> None:
        """Log what changed: state changes at warning, nothing for a round that changed nothing."""
        for episode in changes:
            level = "info" if episode.state is EpisodeState.CLEARED else "warning"
            getattr(self._log, level)(
                f"finding {episode.state.value}",
                code=episode.key.code,
                device=episode.key.device,
                message=episode.cleared_by or episode.finding.message,
            )
        known = before.agent.notices if before else ()
        for notice in after.agent.notices:
            if notice not in known:
                self._complain(notice)
        for notice in known:
            if notice not in after.agent.notices:
                self._log.info("trouble is over", detail=notice)
        writer, did = after.agent.slurm, before.agent.slurm if before else None
        if writer is not None and writer.doing and (did is None or did.doing != writer.doing):
            self._log.warning("slurm", node=writer.node, writer=writer.writer, doing=writer.doing)
        if before is None or before.verdict.state is not after.verdict.state:
            self._log.warning("verdict", state=after.verdict.state.value, reason=after.verdict.reason)
            self._notifier.status(f"{after.verdict.state.value}: {after.verdict.reason}")

    def _agent(self) -> AgentInfo:
        store = "; ".join(self._journal.troubles) if self._snapshot else ""
        state_file = self._publisher.failure if self._snapshot else ""
        scenario = self._simulated.trouble if self._simulated else ""
        slurm = self._reactor.trouble if self._reactor else ""
        claims = self.guard.claims.look()
        return msgspec.structs.replace(
            self._info,
            ready=self._ready,
            stopping=self._stopping,
            load=self._load_words(),
            probing=self.guard.probing,
            jobs=claims.count,
            oldest_job_seconds=claims.oldest_seconds,
            gate_decisions=self._gate_log.counts,
            store=store,
            state_file=state_file,
            slurm=self._reactor.status if self._reactor else None,
            notices=(*self._info.notices, *(trouble for trouble in (store, state_file, scenario, slurm) if trouble)),
        )

    def _load_words(self) -> str:
        lease = self.guard.leases.current
        if lease is None or lease.pid == os.getpid():
            return self._prober.status
        return f"{lease.holder} runs"

    def _greet(self) -> None:
        url = self._http.url
        self._say(f"nodevet {self._info.version} vets {node_name(self._configuration)}")
        if self._simulated is not None:
            self._say(
                f"  SIMULATED: {self._simulated.profile}, {self._simulated.title}; nothing of this machine is read"
            )
        self._say(f"  status   {url}")
        self._say(f"  metrics  {url}metrics")
        self._say(f"  report   {url}report (after the first probe)")
        where = f" --runtime-dir {self._configuration.agent.runtime_dir}" if self._simulated else ""
        self._say(f"  ask      nodevet status{where}")
        for notice in self._info.notices:
            self._say(f"  note     {notice}")
            self._complain(notice)

    def _on_signal(self, number: int) -> None:
        if number != signal.SIGHUP:
            self._stopping = True
        elif not self._stopping:
            self._reconfigure()

    def _reconfigure(self) -> None:
        """Read the configuration again, and a scenario; what is refused leaves everything as it was, and is told."""
        if self._simulated is not None:
            self._simulated.reload()
        self._notifier.reloading()
        try:
            fresh = self._reload()
            armed = arm(installed(), fresh)
        except ConfigurationError as error:
            line = "; ".join(str(error).splitlines())
            self._info = msgspec.structs.replace(
                self._info, configuration_accepted=False, configuration_message=f"reload refused: {line}"
            )
            self._log.error("reload refused", reason=line)
        else:
            self._apply(fresh, armed)
        self._notifier.ready("")
        if self._ready:
            self._evaluate()
        else:
            # Half a first round would open findings about all that is still to come.
            self._dirty(now=True)

    def _apply(self, fresh: Configuration, armed: tuple[Armed, ...]) -> None:
        fixed = {
            name: getattr(self._configuration, name) for name in ("agent", "kernel_log", "report", "slurm", "store")
        }
        later = [name for name, value in fixed.items() if getattr(fresh, name) != value]
        message = f"[{'], ['.join(later)}] change with the next restart" if later else ""
        self._configuration = msgspec.structs.replace(fresh, **fixed)
        self._armed = armed
        rates = engine_cadences(self._configuration, group_cadences(self._configuration))
        self._engine.reconfigure(armed, rates, modes_in_force(self._configuration))
        self._prober.configure(fresh.load)
        info = agent_info(self._configuration, armed, self._info.started)
        self._info = msgspec.structs.replace(info, notices=self._info.notices, configuration_message=message)
        self._log.warning("reloaded", digest=info.configuration_digest, note=message)

    def _stop(self) -> None:
        """End within two seconds: no new work, loads and readers closed, last state written."""
        self._notifier.stopping()
        self._prober.stop("the agent stops")
        if self._reactor is not None:
            self._reactor.stop()
        self._supervisor.stop()
        deadline = self._clock.monotonic() + STOP_SECONDS
        while self._clock.monotonic() < deadline and not (self._supervisor.at_rest and not self._prober.running):
            for key, mask in self._selector.select(0.05):
                key.data(mask)
            self._supervisor.tick()
            self._prober.tick(None)
        if self._kernel is not None:
            self._kernel.close()
        last = msgspec.structs.replace(self.snapshot, agent=self._agent())
        self._snapshot = last
        self._publisher.publish(last)
        self._publisher.close(0.3)

    def _complaint(self) -> str | None:
        silent = time.monotonic() - self._last_turn
        return f"the main loop has made no turn for {silent:.0f} s" if silent > SILENT_SECONDS else None

    def _on_reactor(self) -> None:
        """Take what a person acknowledged by resuming the node in SLURM, and what the writer has to tell."""
        assert self._reactor is not None
        for entry in self._reactor.take():
            if any(entry.known.covers(episode) for episode in self.snapshot.episodes if _is_open(episode)):
                self.acknowledge(entry.known.key, note=entry.note, actor="slurm")
        self._dirty(now=True)

    def _note_simulation(self, line: str) -> None:
        self._log.warning("simulation", detail=line)

    def _complain(self, line: str) -> None:
        self._log.warning("trouble", detail=line)

    def _on_report(self, page: Path) -> None:
        self._log.info("report rendered", page=str(page), url=f"{self._http.url}report")

    def _on_note(self, note: Note) -> None:
        level = note.level if note.level in ("debug", "info", "warning", "error") else "info"
        getattr(self._log, level)(note.event, **note.fields)


def _is_open(episode: Episode) -> bool:
    return episode.state is EpisodeState.OPEN


def _figures(result: Result) -> dict[str, object]:
    """Return what a line of the log says of a load."""
    rate, verified, wrong = (result.metric(name) for name in ("tflops_median", "gemms_verified", "mismatches"))
    figures: dict[str, object] = {
        "device": ",".join(result.devices),
        "dtype": result.dtype,
        "state": result.state.value,
        "tflops": None if rate is None else round(rate, 4),
        "verified": verified,
        "wrong": wrong,
        "detail": result.detail,
    }
    return {name: value for name, value in figures.items() if value not in (None, "")}


def _ttl_seconds(configuration: Configuration) -> float:
    """Return how long a state is good for: three rounds and a deadline."""
    return 3 * configuration.agent.interval_seconds + configuration.agent.deadline_seconds
