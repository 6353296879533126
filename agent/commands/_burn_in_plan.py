"""What a burn-in is asked to run: its arguments, the requests of each device, and the list of a dry run."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable

from nodevet.agent.config.settings import Configuration
from nodevet.agent.daemon.verbs import LONGEST_LEASE_SECONDS
from nodevet.agent.load.lease import busy_reason, load_targets
from nodevet.agent.once.run import look
from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import say, table
from nodevet.checks.burnin.forecast import Forecast, forecast
from nodevet.checks.burnin.host import cores_of, processors_of_socket
from nodevet.checks.burnin.launch import compute_kind
from nodevet.checks.burnin.plan import (
    GemmRequest,
    duration_seconds,
    duration_words,
    load_plans,
    plan_named,
    requests_for,
)
from nodevet.checks.core.counts import count_of
from nodevet.checks.core.errors import BusyError, UsageError
from nodevet.checks.core.model import Device, DeviceKind
from nodevet.checks.engine.naming import chosen
from nodevet.exporters.documents.types import DeviceDocument

from . import _options as options

LONGEST_SECONDS = LONGEST_LEASE_SECONDS
_LONGEST_WORDS = f"{LONGEST_SECONDS:.0f} (31 days)"


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the workloads."""
    plans = "; ".join(f"{name}: {plan.help}" for name, plan in load_plans().items())
    parser.add_argument("--plan", choices=tuple(load_plans()), default="quick", help=plans)
    times = parser.add_mutually_exclusive_group()
    times.add_argument(
        "--duration",
        type=_duration,
        metavar="TIME",
        help="time of the whole run, which the formats share, set-up included: 90s, 10m, 8h, 3d (default: the plan's)",
    )
    times.add_argument("--seconds", type=float, help="seconds of load per number format, however long the set-up takes")
    parser.add_argument("--dtype", action="append", help="only this number format; repeatable")
    parser.add_argument("--shape", type=_shape, metavar="M,N,K", help="shape of each GEMM, in multiples of 128")


def _shape(text: str) -> tuple[int, int, int]:
    sides = [int(side) if side.strip().isdigit() else 0 for side in text.split(",")]
    if len(sides) != 3 or any(side <= 0 or side % 128 for side in sides):
        raise argparse.ArgumentTypeError(f"{text!r}: give M,N,K as positive multiples of 128, such as 4096,4096,8192")
    return (sides[0], sides[1], sides[2])


def _duration(text: str) -> float:
    try:
        seconds = duration_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds > LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than {duration_words(LONGEST_SECONDS)}, the longest run")
    return seconds


def check_plan(arguments: argparse.Namespace) -> None:
    """Raise UsageError where no device could run what *arguments* say."""
    if arguments.seconds is not None and not 0 < arguments.seconds <= LONGEST_SECONDS:
        raise UsageError(
            f"burn-in: --seconds {arguments.seconds:g}: must be a number above 0 and at most {_LONGEST_WORDS}"
        )
    if arguments.self_test and arguments.duration is not None:
        raise UsageError("burn-in: --self-test runs for one second per format: leave out --duration")
    refused = []
    for kind in plan_named(arguments.plan).dtypes:
        try:
            _requests_of_kind(arguments, "", kind, None)
        except UsageError as error:
            refused.append(error)
        else:
            return
    raise refused[0]


def duration_of(arguments: argparse.Namespace) -> float:
    """Return the seconds of the whole run; infinite where each format has seconds of its own."""
    if arguments.seconds is not None or arguments.self_test:
        return math.inf
    return float(arguments.duration or plan_named(arguments.plan).duration_seconds)


def requests_of(arguments: argparse.Namespace, device: Device) -> tuple[GemmRequest, ...]:
    """Return the requests of *device*; none where no workload exists for it. Raises UsageError."""
    kind = compute_kind(device)
    return () if kind is None else _requests_of_kind(arguments, device.id, kind, device.pci_device_id)


def _requests_of_kind(
    arguments: argparse.Namespace, device: str, kind: str, pci_device_id: str | None
) -> tuple[GemmRequest, ...]:
    return requests_for(
        arguments.plan,
        device,
        kind,
        seconds=1.0 if arguments.self_test else arguments.seconds,
        duration_seconds=arguments.duration,
        dtypes=tuple(arguments.dtype) if arguments.dtype else None,
        pci_device_id=pci_device_id,
        shape=arguments.shape,
    )


def listed(told: Iterable[DeviceDocument]) -> tuple[Device, ...]:
    """Return the devices that the agent has *told*, as far as it does."""
    return tuple(
        Device(
            id=each.id,
            kind=DeviceKind(each.kind),
            vendor=each.vendor,
            model=each.model,
            pci=each.pci,
            serial=each.serial,
            parent=each.parent,
            minor=each.minor,
            backend="host" if each.kind == DeviceKind.CPU else each.vendor,
        )
        for each in told
    )


def dry_run(arguments: argparse.Namespace, settings: Configuration) -> int:
    """Print what a burn-in would run on the devices of this node, and start no load; exit 0."""
    document = options.status_of_agent(settings)
    busy: dict[str, str] = {}
    if document is not None:
        devices = listed(document.devices)
    else:
        seen = look(settings, purpose="nodevet burn-in --dry-run", confirmed=False)
        devices = seen.devices
        busy = {device.id: reason for device in devices if (reason := busy_reason(seen, (device,)))}
    targets = load_targets(devices)
    devices = chosen(targets, arguments.device, "burn-in") if arguments.device else targets
    kinds = {device.id: kind for device in devices if (kind := compute_kind(device))}
    if not kinds:
        raise BusyError("burn-in: no device of this node can run a workload; `nodevet devices` lists the devices")
    plans = {
        device.id: [forecast(request, kinds[device.id], _cores(device)) for request in requests_of(arguments, device)]
        for device in devices
        if device.id in kinds
    }
    say(_headline(arguments, plans, kinds))
    rows = [
        (each.device, *_cells(each, begins))
        for entries in plans.values()
        for each, begins in zip(entries, _begins(entries), strict=True)
    ]
    say(table(rows, ("DEVICE", "FORMAT", "SHAPE", "BEGINS", "SET-UP", "LOAD", "MEMORY")))
    for device in devices:
        if device.id not in kinds:
            say(f"{device.id}: not run: no workload exists for it")
        elif device.id in busy:
            say(f"not idle now: {busy[device.id]}")
    return exits.OK


def _cores(device: Device) -> int | None:
    """Return the cores of a processor that this process may use; None for an accelerator."""
    if device.kind is not DeviceKind.CPU:
        return None
    return cores_of(processors_of_socket(device.id.removeprefix("cpu-"), os.sched_getaffinity(0))) or None


def _headline(arguments: argparse.Namespace, plans: dict[str, list[Forecast]], kinds: dict[str, str]) -> str:
    plan, total = plan_named(arguments.plan), duration_of(arguments)
    if math.isinf(total):
        total = max(sum(each.setup_seconds + each.seconds for each in entries) for entries in plans.values())
    caps = {plan.maximum_memory_bytes.get(kind) for kind in kinds.values()}
    most = "at most 10 % of the free memory"
    if set(kinds.values()) != {"cpu"}:
        most = f"at most {plan.memory_ratio:.0%} of the free memory"
    cap = next(iter(caps)) if len(caps) == 1 else None
    most += f" and {_bytes(cap)}" if cap else ""
    return f"plan {arguments.plan}: {duration_words(total)} on {count_of(len(plans), 'device')}; {most}"


def _begins(entries: list[Forecast]) -> list[float]:
    """Return when each of *entries* begins, in seconds from the start."""
    moments = [0.0]
    for each in entries[:-1]:
        moments.append(moments[-1] + each.setup_seconds + each.seconds)
    return moments


def _cells(each: Forecast, begins: float) -> tuple[str, ...]:
    shape = "x".join(map(str, each.shape))
    times = (f"{seconds:.0f} s" for seconds in (begins, each.setup_seconds, each.seconds))
    return (each.dtype, shape, *times, _bytes(each.memory_bytes))


def _bytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
