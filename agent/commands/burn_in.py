"""Test the hardware under load: compute matrix products on every idle device at once, and verify each bit for bit.

Every run first injects faults into its own results. A run that does not detect all of them verifies nothing.
"""

from __future__ import annotations

import argparse
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from nodevet.agent import __version__
from nodevet.agent.config.settings import Configuration
from nodevet.agent.control.client import AgentAbsent, AgentRefused, Session
from nodevet.agent.control.server import SOCKET_NAME
from nodevet.agent.daemon.assembly import node_name
from nodevet.agent.load.alone import LoadAlone
from nodevet.agent.load.claims import Claims, ClaimsSeen, LoadLock
from nodevet.agent.load.delivery import PATIENCE_SECONDS, Delivery
from nodevet.agent.load.history import History, found_alone, keep_unjudged, memory_before
from nodevet.agent.load.late import LateDevices
from nodevet.agent.load.lease import busy_reason, load_targets
from nodevet.agent.load.output import OutputFile
from nodevet.agent.load.rows import live_rows
from nodevet.agent.load.run import LoadRun, Spawn
from nodevet.agent.load.watch import AgentWatch, Unwatched, Watch
from nodevet.agent.once.beside import OwnReaders
from nodevet.agent.once.run import look
from nodevet.agent.slurm.first import first_status
from nodevet.agent.slurm.memory import MEMORY_NAME, load_memory
from nodevet.agent.terminal import exits
from nodevet.agent.terminal.live import LiveTable
from nodevet.agent.terminal.output import OutputError, emit, tell, unhindered
from nodevet.checks.burnin.launch import burn_command, compute_kind
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import BusyError, NodevetError
from nodevet.checks.core.model import AgentInfo, Device, Result, Snapshot, State, Verdict
from nodevet.checks.core.scheduler import WriterStatus
from nodevet.checks.engine.completeness import Planned
from nodevet.checks.engine.naming import chosen
from nodevet.checks.system.lock import acquire_node_lock
from nodevet.checks.system.signals import SignalPipe, ending, heeding_ctrl_c, interrupting, undisturbed
from nodevet.exporters.documents.schema import burn_in_document, encode
from nodevet.exporters.documents.types import BurnInDocument, DeviceDocument, StatusDocument

from . import _options as options
from ._burn_in_plan import LONGEST_SECONDS, add_plan, check_plan, dry_run, duration_of, listed, requests_of
from ._burn_in_text import show

SUMMARY = "test the hardware under load and verify every result"
LEASE_SECONDS = LONGEST_SECONDS
"""A lease ends with the connection. One that ended before its load would end the record of heat and power, too."""

LEASE_PATIENCE_SECONDS = 8.0
"""The agent's own probe gives way within two seconds."""


CLOSING_SECONDS = 2.5
"""What the verdict takes behind the load, of the time of the whole run."""

JOBS_EVERY_SECONDS = 0.1
"""How often the claims of jobs are looked at: a job waits until the load is gone."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet burn-in``."""
    add_plan(parser)
    parser.add_argument("--device", action="append", default=[], help=f"only this device, by {options.NAMES}")
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="run for one second per format, and list the injected faults and which of them were found",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be run, with times and memory, and start no load"
    )
    parser.add_argument("--output", "-o", metavar="FILE", help="write the result as JSON, for nodevet report render")
    options.add_json(parser)
    options.add_places(parser)


def run(
    arguments: argparse.Namespace, spawn: Spawn = burn_command, *, patience_seconds: float = PATIENCE_SECONDS
) -> int:
    """Run the load in child processes, and judge its results.

    *spawn* starts each child process. The results wait *patience_seconds* for an agent that is gone.

    Exit 0 ok, 1 degraded, 2 failed, 3 unknown: not measured, or not all of the plan proved.
    """
    began = time.monotonic()
    check_plan(arguments)
    settings = options.configuration(arguments)
    if arguments.dry_run:
        return dry_run(arguments, settings)
    output = None if arguments.output is None else OutputFile(arguments.output, _complain)
    load = Load(arguments, settings, output, spawn, patience_seconds, began)
    try:
        with interrupting(), unhindered():
            if output is not None:
                # A good document of an older run must not stand for this one, however early it is killed.
                output.write(encode(_of_load(load, (), (), (), "the burn-in has not started")))
            _run(load)
    except (NodevetError, KeyboardInterrupt) as error:
        if not load.ended:  # a signal behind the verdict changes nothing of it
            load.end(_of_load(load, (), (), (), str(error) or "it was stopped before it started"))
            raise
    document = load.ended[-1]
    try:
        if arguments.json:
            emit(encode(document))
        else:
            show(document, self_test=arguments.self_test)
    except (OutputError, BrokenPipeError) as error:
        if document.verdict != State.FAILED:
            raise  # a verdict that was not heard to its end is not ``ok``
        _complain(f"failed: {document.reason}; {error}")
    return exits.of_state(document.verdict)


def _run(load: Load) -> None:
    """Run *load* until it has ended; from its first product on, no signal costs its document."""
    try:
        _with_agent(load)
    except AgentAbsent:
        _alone(load)


def _complain(line: str) -> None:
    tell(f"nodevet burn-in: {line}")


class Load(msgspec.Struct, frozen=True):
    """What was asked for: the arguments, the settings, and where the document goes; then the document at the end."""

    arguments: argparse.Namespace
    settings: Configuration
    output: OutputFile | None
    spawn: Spawn
    patience_seconds: float
    began: float = 0.0
    signals: list[int] = []
    ended: list[BurnInDocument] = []

    def end(self, document: BurnInDocument) -> None:
        """Keep *document* as the last one."""
        self.ended.append(document)
        if self.output is not None:
            self.output.write(encode(document), last=True)

    @property
    def hurried(self) -> bool:
        """Return whether Ctrl-C came after the load was told to end: nothing is waited for any more."""
        return len(self.signals) > 1

    @property
    def until(self) -> float:
        """Return the moment of the monotonic clock at which the load itself is to end."""
        return self.began + duration_of(self.arguments) - CLOSING_SECONDS

    @property
    def runtime(self) -> Path:
        """Return the runtime directory."""
        return Path(self.settings.agent.runtime_dir)


def _with_agent(load: Load) -> None:
    """Run under the agent's lease, which ends with the connection, and let the agent judge."""
    session = Session(load.runtime / SOCKET_NAME, timeout_seconds=30.0)
    with session:
        try:
            granted = _lease(session, load.arguments.device)
        except AgentRefused as error:
            load.end(_not_run(load, session, error))
            return
        devices = msgspec.convert(granted["devices"], tuple[Device, ...])
        among = msgspec.convert(granted.get("among", ()), tuple[Device, ...])  # an older agent does not tell
        socket, plan = load.runtime / SOCKET_NAME, load.arguments.plan
        late = None if load.arguments.device or not among else LateDevices(among, partial(requests_of, load.arguments))

        def also(status: dict[str, Any], results: tuple[Result, ...]) -> tuple[Result, ...]:
            now = listed(msgspec.convert(status.get("devices", ()), tuple[DeviceDocument, ...]))
            return () if late is None else late.told(now, results, SystemClock().instant())

        adds = None if late is None else also
        delivery = Delivery(socket, plan, _complain, patience_seconds=load.patience_seconds, also=adds)
        with undisturbed() as passed:
            lock, claims = LoadLock(load.runtime), Claims(load.runtime)
            results = _load(
                load, devices, lock, claims.look, among=among, found=delivery.found, watch=AgentWatch(socket)
            )
            document = delivery.ended(results, session, lambda: passed.count, hurried=load.hurried)
            if document is None:
                document = _judged_alone(load, devices, results, late)
            elif document.agent is not None:
                for notice in document.agent.notices:
                    _complain(f"note of the agent: {notice}")
            load.end(document)


def _not_run(load: Load, session: Session, refusal: AgentRefused) -> BurnInDocument:
    """Return the document of a load that the agent refused: each planned format says why. Else raises *refusal*."""
    if refusal.kind not in ("busy", "refused"):
        raise refusal
    told = msgspec.convert(session.ask("status"), StatusDocument)
    if told.simulated:
        raise refusal
    targets, names = load_targets(listed(told.devices)), load.arguments.device
    devices = chosen(targets, names, "burn-in") if names else targets
    if not any(compute_kind(device) for device in devices):
        raise refusal
    results = _load(load, devices, None, ClaimsSeen, among=(), busy={each.id: str(refusal) for each in devices})
    tell(f"nodevet: {refusal}")
    return _of_load(load, devices, (), results, str(refusal))


def _lease(session: Session, devices: list[str]) -> dict[str, object]:
    deadline = time.monotonic() + LEASE_PATIENCE_SECONDS
    while True:
        try:
            return session.ask("lease", seconds=LEASE_SECONDS, devices=devices)
        except AgentRefused as error:
            if "ask again" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _alone(load: Load) -> None:
    """Run without an agent: look, load under the node lock and told to prologs, look again, and keep what was found."""
    settings = load.settings
    # One lock from the first look to the verdict: who takes it between load and verdict would cost the results.
    with acquire_node_lock(load.runtime, "nodevet burn-in"):
        before = _look_before(settings)
        targets, names = load_targets(before.devices), load.arguments.device
        devices = chosen(targets, names, "burn-in") if names else targets
        readers = OwnReaders(settings, SystemClock())
        busy = {device.id: reason for device in devices if (reason := busy_reason(before, (device,)))}

        def stamped(result: Result) -> Result:
            return readers.recorder.stamped(result, before.samples)

        found = found_alone(settings, stamped, _complain).found
        with undisturbed():
            with LoadAlone(load.runtime, before, say=_complain, writer=_writer_before(load)) as alone:
                results = _load(
                    load, devices, alone.lock, alone.look, among=before.devices, busy=busy, found=found, watch=readers
                )
            late = None if load.arguments.device else LateDevices(before.devices, partial(requests_of, load.arguments))
            results = tuple(map(stamped, results))
            load.end(_judged_alone(load, devices, results, late, readers=readers))


def _look_before(settings: Configuration) -> Snapshot:
    """Read the node, and keep the unjudged results of a killed burn-in: this one must clear them, not hide them."""
    history = History(settings, ())
    before = look(settings, purpose="nodevet burn-in", keep=history.take, confirmed=False, locked=True)
    trouble = history.save() if history.changed else ""
    if trouble:
        _complain(f"results of an earlier burn-in are not in the history: {trouble}")
    return before


def _writer_before(load: Load) -> WriterStatus | None:
    """Return how the writer of the agent that is gone left the node in SLURM; None where there is none."""
    settings = load.settings
    if settings.slurm.writer == "off":
        return None
    boot_id = SystemClock().instant().boot_id
    stored = memory_before(settings).get("slurm")
    memory = load_memory(load.runtime / MEMORY_NAME, stored, boot_id).memory
    return first_status(settings.slurm, settings.slurm.node_name or node_name(settings), memory, boot_id)


class _NotJudgedError(NodevetError):
    """Nobody waits for the verdict."""


def _judged_alone(
    load: Load,
    devices: tuple[Device, ...],
    results: tuple[Result, ...],
    late: LateDevices | None,
    *,
    readers: OwnReaders | None = None,
) -> BurnInDocument:
    """Look at the node, judge *results* with it, and keep both; where nobody can, what the load itself proved stands.

    *late* knows what the load left out, where it was of all devices. *readers* read the devices meanwhile; then this
    process holds the node lock.
    """
    settings = load.settings
    history = History(settings, results)
    events = () if readers is None else tuple(readers.events)
    series = () if readers is None else readers.recorder.end()

    def also(seen: Snapshot) -> tuple[Result, ...]:
        return () if late is None else late.told(seen.devices, results, seen.time)

    try:
        if load.hurried:
            raise _NotJudgedError("Ctrl-C came twice")
        with heeding_ctrl_c() if load.signals else nullcontext():
            after = look(
                settings,
                results=results,
                purpose="nodevet burn-in",
                keep=history.take,
                locked=readers is not None,
                also=also,
                events=events,
            )
    except (NodevetError, KeyboardInterrupt) as error:
        trouble = keep_unjudged(settings, results)
        there = load.arguments.output or "the printed output"
        kept = f"are only in {there}, because the history cannot be written: {trouble}"
        kept = kept if trouble else "are in the history"
        _complain(f"the node was not judged after the burn-in: {str(error) or 'Ctrl-C came again'}; its results {kept}")
        return _of_load(load, devices, (), results, "the node was not judged after the burn-in")
    if late is not None:
        results = (*results, *late.results)
        history.add(late.results)
    trouble = history.save()
    if trouble:
        _complain(f"the history was not written: {trouble}")
    return burn_in_document(after, plan=load.arguments.plan, results=results, series=series)


def _load(
    load: Load,
    devices: tuple[Device, ...],
    lock: LoadLock | None,
    look_for_jobs: Callable[[], ClaimsSeen],
    *,
    among: tuple[Device, ...],
    busy: Mapping[str, str] | None = None,
    found: Callable[[tuple[Result, ...]], None] = lambda _known: None,
    watch: Watch | None = None,
) -> tuple[Result, ...]:
    """Run the plan on *devices* and return the results; SIGINT, SIGTERM and a job interrupt it and keep what came.

    *among* are all devices of the node. Those that are *busy* are not loaded. Each of them, and each that no load
    exists for, has results that say so.
    *found* is given what is known in each turn, long before the load ends. *watch* knows the conditions of the devices.
    """
    if not any(compute_kind(device) for device in devices):
        raise BusyError("burn-in: no device of this node can run a workload; `nodevet devices` lists the devices")
    requests = {device.id: requests_of(load.arguments, device) for device in devices}
    planned = [Planned(request.device, request.dtype, request.asked) for each in requests.values() for request in each]
    refused = {device.id: "no workload exists for it" for device in devices if not compute_kind(device)} | dict(
        busy or {}
    )
    told: list[tuple[object, ...]] | None = None  # so that a load that is killed leaves no older, better document
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        live = LiveTable()
        stack.enter_context(live.above())
        seen = watch or Unwatched()
        seen.start(selector)
        stack.callback(seen.stop)
        running = LoadRun(
            devices,
            requests,
            SystemClock(),
            selector,
            among=among,
            spawn=load.spawn,
            lock=lock,
            refused=refused,
            until=load.until,
        )
        stack.enter_context(SignalPipe(selector, partial(_signalled, load, running), ending()))
        while not running.done:
            for key, mask in selector.select(JOBS_EVERY_SECONDS):
                key.data(mask)
            reason = look_for_jobs().reason
            if reason:
                running.stop(f"gives way: {reason}")
            running.tick()
            seen.tick()
            live.show(_title(load, running), running.ratio, live_rows(running.progress, seen.known))
            found(running.so_far)
            known = [_milestone(result) for result in running.so_far]
            if known != told:
                told = known
                if load.output is not None:
                    so_far = _of_load(load, devices, planned, running.so_far, "the burn-in has not finished")
                    load.output.write(encode(so_far))
    return running.results


def _signalled(load: Load, running: LoadRun, number: int) -> None:
    """End the load and keep what it tells; a Ctrl-C after that has it killed, and nothing is waited for."""
    if not running.stopping:
        load.signals.append(number)
        running.stop("interrupted")
    elif number == signal.SIGINT:
        load.signals.extend((signal.SIGINT, number))
        running.stop("interrupted", at_once=True)


def _title(load: Load, running: LoadRun) -> str:
    """Return the line above the live table."""
    name = f"burn-in, plan {load.arguments.plan}: {running.ratio:.0%}"
    if running.stopping:
        return f"{name}; stopping: {running.stopping}; Ctrl-C again ends at once"
    return f"{name}; Ctrl-C stops it and keeps what was measured"


def _milestone(result: Result) -> tuple[object, ...]:
    """Return what of *result* is worth writing the file again: not each further wrong product of a broken device."""
    return (result.devices, result.dtype, result.state, bool(result.metric("mismatches")))


def _of_load(
    load: Load, devices: tuple[Device, ...], planned: Iterable[Planned], results: tuple[Result, ...], reason: str
) -> BurnInDocument:
    """Return the document of a node without a verdict, for *reason*, with the results of the burn-in itself."""
    now = SystemClock().instant()
    verdict = Verdict(state=State.UNKNOWN, reason=reason)
    snapshot = Snapshot(
        generation=0,
        time=now,
        node=node_name(load.settings),
        scope="burn-in",
        simulated=False,
        verdict=verdict,
        device_verdicts={device.id: verdict for device in devices},
        devices=devices,
        samples=(),
        findings=(),
        episodes=(),
        results=results,
        readers=(),
        checks=(),
        agent=AgentInfo(version=__version__, started=now, interval_seconds=0.0),
    )
    return burn_in_document(snapshot, plan=load.arguments.plan, planned=planned, results=results)
