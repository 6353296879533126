"""Prove the hardware under load: matrix products whose results are verified bit for bit, on every idle device at once.

Every run begins by planting faults in its own results; one that does not find them all proves nothing and says so.
"""

from __future__ import annotations

import argparse
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from nodevet.agent import exits
from nodevet.agent.client import AgentAbsent, AgentRefused, Session
from nodevet.agent.clock import SystemClock
from nodevet.agent.commands import options
from nodevet.agent.control import SOCKET_NAME
from nodevet.agent.load.alone import LoadAlone
from nodevet.agent.load.claims import Claims, ClaimsSeen, LoadLock
from nodevet.agent.load.lease import load_targets
from nodevet.agent.load.run import LoadRun
from nodevet.agent.lock import acquire_node_lock
from nodevet.agent.oneshot import look
from nodevet.agent.settings import Configuration
from nodevet.agent.signals import SignalPipe
from nodevet.agent.terminal import Progress, emit, paint, say, table
from nodevet.checks.burnin.launch import compute_kind
from nodevet.checks.burnin.plan import load_plans, requests_for
from nodevet.checks.errors import BusyError, UsageError
from nodevet.checks.model import Device, Result
from nodevet.exporters.schema import BurnInDocument, burn_in_document, encode

SUMMARY = "prove the hardware under load"
LEASE_SECONDS = 86400.0
LEASE_PATIENCE_SECONDS = 8.0
"""The agent's own probe gives way within two seconds."""


JOBS_EVERY_SECONDS = 0.1
"""How often the claims of jobs are looked at: a job waits until the load is gone."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet burn-in``."""
    plans = "; ".join(f"{name}: {plan.help}" for name, plan in load_plans().items())
    parser.add_argument("--plan", choices=tuple(load_plans()), default="quick", help=plans)
    parser.add_argument("--seconds", type=float, help="of load per number format (default: the plan's)")
    parser.add_argument("--dtype", action="append", help="only this number format; may be given again")
    parser.add_argument("--device", action="append", default=[], help="only this device, by id, PCI address or serial")
    parser.add_argument("--self-test", action="store_true", help="only plant faults, and list how each was found")
    parser.add_argument("--output", "-o", metavar="FILE", help="write the document there, for nodevet report render")
    options.add_json(parser)
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the load and judge it; exit 0 ok, 1 degraded, 2 failed, 3 unknown or not measured."""
    if arguments.seconds is not None and not 0 < arguments.seconds < float("inf"):
        raise UsageError(f"burn-in: --seconds {arguments.seconds:g}: must be a number above 0")
    settings = options.configuration(arguments)
    try:
        document = _with_agent(arguments, settings)
    except AgentAbsent:
        document = _alone(arguments, settings)
    if arguments.output:
        _write(arguments.output, document)
    if arguments.json:
        emit(encode(document))
    else:
        _show(document, self_test=arguments.self_test)
    if document.verified.gemms == 0 and document.verdict in ("ok", "degraded"):
        return exits.UNKNOWN
    return exits.of_state(document.verdict)


def _with_agent(arguments: argparse.Namespace, settings: Configuration) -> BurnInDocument:
    """Run under the agent's lease, which ends with the connection, and let the agent judge."""
    session = Session(Path(settings.agent.runtime_dir) / SOCKET_NAME, timeout_seconds=30.0)
    with session:
        granted = _lease(session, arguments.device)
        devices = msgspec.convert(granted["devices"], tuple[Device, ...])
        runtime = Path(settings.agent.runtime_dir)
        results = _load(arguments, devices, LoadLock(runtime), Claims(runtime).look)
        answer = session.ask("result", results=msgspec.to_builtins(results), plan=arguments.plan)
    return msgspec.convert(answer, BurnInDocument)


def _lease(session: Session, devices: list[str]) -> dict[str, object]:
    deadline = time.monotonic() + LEASE_PATIENCE_SECONDS
    while True:
        try:
            return session.ask("lease", seconds=LEASE_SECONDS, devices=devices)
        except AgentRefused as error:
            if "ask again" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _alone(arguments: argparse.Namespace, settings: Configuration) -> BurnInDocument:
    """Run without an agent: look, load under the node lock and told to prologs, look again."""
    before = look(settings, purpose="nodevet burn-in")
    devices = _chosen(load_targets(before.devices), arguments.device)
    runtime = Path(settings.agent.runtime_dir)
    with acquire_node_lock(runtime, "nodevet burn-in"), LoadAlone(runtime, before) as alone:
        results = _load(arguments, devices, alone.lock, alone.look)
    after = look(settings, results=results, purpose="nodevet burn-in")
    return burn_in_document(after, plan=arguments.plan, results=results)


def _chosen(targets: tuple[Device, ...], names: list[str]) -> tuple[Device, ...]:
    if not names:
        return targets
    chosen = tuple(device for device in targets if {device.id, device.pci, device.serial, device.uuid} & set(names))
    if len(chosen) < len(set(names)):
        known = ", ".join(device.pci or device.id for device in targets)
        raise UsageError(f"burn-in: not every device of {', '.join(names)} is here; a load runs on: {known}")
    return chosen


def _load(
    arguments: argparse.Namespace, devices: tuple[Device, ...], lock: LoadLock, look_for_jobs: Callable[[], ClaimsSeen]
) -> tuple[Result, ...]:
    """Run the plan on *devices* and return the results; SIGINT, SIGTERM and a job interrupt it and keep what came."""
    usable = tuple(device for device in devices if compute_kind(device))
    if not usable:
        raise BusyError("burn-in: no device of this node has a load; `nodevet devices` shows what there is")
    seconds = 1.0 if arguments.self_test else arguments.seconds
    requests = {
        device.id: requests_for(
            arguments.plan,
            device.id,
            compute_kind(device) or "cpu",
            seconds=seconds,
            dtypes=tuple(arguments.dtype) if arguments.dtype else None,
            pci_device_id=device.pci_device_id,
        )
        for device in usable
    }
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        progress = stack.enter_context(_shown())
        load = LoadRun(usable, requests, SystemClock(), selector, lock=lock)
        stack.enter_context(SignalPipe(selector, lambda _number: load.stop("interrupted")))
        while not load.done:
            for key, mask in selector.select(JOBS_EVERY_SECONDS):
                key.data(mask)
            reason = look_for_jobs().reason
            if reason:
                load.stop(f"gives way: {reason}")
            load.tick()
            progress.show(load.ratio, load.phase)
    return load.results


@contextmanager
def _shown() -> Iterator[Progress]:
    progress = Progress()
    try:
        yield progress
    finally:
        progress.done()


def _write(name: str, document: BurnInDocument) -> None:
    try:
        Path(name).write_bytes(encode(document))
    except OSError as error:
        raise UsageError(f"burn-in: {name} cannot be written: {error.strerror}") from error


def _show(document: BurnInDocument, *, self_test: bool) -> None:
    say(f"{document.node}: {paint(document.verdict)}" + ("" if document.verdict == "ok" else f": {document.reason}"))
    runs: dict[tuple[str, str], dict[str, float | int | None]] = {}
    states: dict[tuple[str, str], tuple[str, str]] = {}
    for result in document.results:
        key = (result.device, result.dtype or "")
        runs.setdefault(key, {})[result.metric] = result.value
        states[key] = (result.state, result.detail or str(result.conditions.get("verification", "")))
        if self_test and result.metric == "self_test_found":
            _show_self_test(result.device, result.dtype or "", result.conditions.get("self_test", []))
    rows = [
        (device, dtype, *states[device, dtype], *(_number(figures.get(name)) for name in _COLUMNS))
        for (device, dtype), figures in runs.items()
    ]
    if rows:
        say(table(rows, ("DEVICE", "FORMAT", "STATE", "RESULTS", *_COLUMNS.values())))
    verified = document.verified
    say(f"{verified.gemms} products verified bit for bit, {verified.mismatches} wrong")


_COLUMNS = {
    "tflops_median": "TFLOPS",
    "tflops_p5": "P5",
    "peak_tflops": "PEAK",
    "efficiency_ratio": "EFFICIENCY",
    "gemms_verified": "VERIFIED",
    "mismatches": "WRONG",
}


def _show_self_test(device: str, dtype: str, planted: object) -> None:
    rows = [
        (
            str(fault.get("fault", "")),
            _yes(fault.get("found")),
            _yes(fault.get("located")),
            str(fault.get("detail", "")),
        )
        for fault in (planted if isinstance(planted, (list, tuple)) else ())
    ]
    say(f"self-test of {device}, {dtype}:")
    say(table(rows, ("PLANTED FAULT", "FOUND", "LOCATED", "WHY NOT")))


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _number(value: float | int | None) -> str:
    if value is None:
        return "unknown"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
