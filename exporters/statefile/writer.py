"""Writes the state file: the verdict in a few lines of plain text, for a prolog that must not wait.

docs/reference/state-file.md has the grammar. The file is replaced atomically and reaches the disk before the writer
returns: a reader sees the old file or the new one, also after a crash of the machine. reader.py reads the file, with
the standard library alone.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.model import NODE, Device, DeviceKind, ReaderState, Snapshot, State, Verdict
from nodevet.checks.engine.acknowledgement import acknowledged_words
from nodevet.checks.engine.losses import taken_out
from nodevet.checks.engine.modes import Reach, asked, reaches
from nodevet.checks.engine.standing import verdict as judge
from nodevet.checks.reference.vendors import vendor_of
from nodevet.checks.system.files import replace

from .reader import FORMAT, NEVER, uptime_seconds

MODE = 0o644
NOTHING = "-"
"""Placeholder of a field without a value, so that a shell splits every line into the same fields."""

SLACK_SECONDS = 1.0
"""Maximum difference (s) of the two clocks of an ordinary host, caused by the rounding of /proc/uptime."""


class StateFileError(NodevetError):
    """The state file cannot be written: names the file, the cause and the next step. The existing file stays."""


def clock_lead(root: str = "/") -> float:
    """Return the lead (s) of CLOCK_BOOTTIME over ``proc/uptime`` below *root*, which readers of the state file use.

    Both are one clock, except in a container whose /proc/uptime began with the container (lxcfs): an expiry by
    CLOCK_BOOTTIME would be late there by the earlier uptime of the host. The lead is zero if it cannot be read. It is
    read anew for each file, because one of the clocks may stop while the machine is suspended.
    """
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        uptime = uptime_seconds(root)
    except (OSError, ValueError, IndexError):
        return 0.0
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    is_same = before - SLACK_SECONDS <= uptime <= after + SLACK_SECONDS
    return 0.0 if is_same or not math.isfinite(uptime) else after - uptime


def write_state(path: Path, snapshot: Snapshot, *, ttl_seconds: float, lead_seconds: float = 0.0) -> None:
    """Replace *path* with the state of *snapshot*, valid for *ttl_seconds* after its judgement.

    Its times are on the clock of its readers; the clock of the snapshot leads by *lead_seconds*. Raises StateFileError
    if the file cannot be written or *path* is a symbolic link.
    """
    try:
        replace(path, state_text(snapshot, ttl_seconds=ttl_seconds, lead_seconds=lead_seconds).encode(), mode=MODE)
    except OSError as error:
        raise StateFileError(f"state file {path} cannot be written: {advice(error)}") from error


def state_text(snapshot: Snapshot, *, ttl_seconds: float, lead_seconds: float = 0.0) -> str:
    """Return the text of the state file of *snapshot*.

    A verdict ``failed`` because of a hard fault does not expire within its boot: it outlives the agent. This holds also
    if the fault's mode only observes, so that the mode alone decides the effect.
    """
    verdict, reach = snapshot.verdict, reaches(snapshot)
    fresh_until = max(int(snapshot.time.boottime_ns / 1e9 + ttl_seconds - lead_seconds), 0)
    expires = NEVER if verdict.state is State.FAILED and verdict.hard else fresh_until
    lines = [
        f"{verdict.state.value} {expires} {snapshot.generation} {_words(verdict.reason)}",
        " ".join(
            (
                FORMAT,
                snapshot.time.boot_id,
                "simulated" if snapshot.simulated else "real",
                _agent(snapshot),
                "probing" if snapshot.agent.probing else "idle",
                reach(verdict, ""),
                verdict.action.value,
                str(fresh_until),
                _words(snapshot.node),
            )
        ),
        *_device_lines(snapshot, reach),
    ]
    lines.append(f"end {len(lines)}")
    return "\n".join(lines) + "\n"


def _agent(snapshot: Snapshot) -> str:
    if snapshot.agent.slurm is not None and snapshot.agent.slurm.drained:
        # Also before a further write, and in an agent that stops: a new job means that a person resumed the node.
        return "drained"
    if snapshot.agent.stopping:
        return "stopped"
    if asked(snapshot):
        return "draining"
    if any(reader.state is ReaderState.RELEASED for reader in snapshot.readers):
        return "released"
    return "running" if snapshot.agent.ready else "starting"


def _device_lines(snapshot: Snapshot, reach: Callable[[Verdict, str], Reach]) -> Iterator[str]:
    """Yield the line of the node's own faults, then one per device; a device without a judgement is unknown.

    Devices are in the order of their PCI addresses, by which SLURM numbers the GPUs that it finds itself. Devices that
    it does not find have no address here: those that a person declared gone, and those without their vendor's driver.
    """
    gone = taken_out(snapshot.episodes)
    of_node = snapshot.device_verdicts.get(NODE) or judge(NODE, snapshot.episodes, snapshot.findings)
    if snapshot.findings and not of_node.episodes:
        known = acknowledged_words(episode for episode in snapshot.episodes if episode.key.device == NODE)
        of_node = Verdict(state=State.OK, reason=known or "healthy")
    yield _line("node", None, of_node, reach(of_node, NODE), identity=_permitted(snapshot))
    for device in sorted(snapshot.devices, key=lambda device: (device.pci or "").lower()):
        if device.id != NODE:
            verdict, judged = _verdict(snapshot, device)
            is_found = not {device.id, device.parent} & gone and not _is_without_driver(device)
            counted = device if is_found else msgspec.structs.replace(device, pci=None)
            yield _line(device.kind.value, counted, verdict, reach(verdict, judged))


def _is_without_driver(device: Device) -> bool:
    """Return whether only the bus shows *device*: it is lent to a guest, or has another driver or none."""
    module = vendor_of(device.vendor).kernel_module
    is_bare = (device.kind, device.backend) == (DeviceKind.ACCELERATOR, "host")
    return is_bare and module is not None and device.driver != module


def _verdict(snapshot: Snapshot, device: Device) -> tuple[Verdict, str]:
    """Return the worse verdict of *device* and of its parent, with the id of that device: jobs suffer from either."""
    unjudged = Verdict(state=State.UNKNOWN, reason="no check judged a value")
    own = snapshot.device_verdicts.get(device.id, unjudged)
    whole = None if device.parent is None else snapshot.device_verdicts.get(device.parent)
    if whole is None or device.parent is None or (whole.state.rank <= own.state.rank and own != whole):
        return own, device.id
    return whole, device.parent


def _permitted(snapshot: Snapshot) -> str:
    """Return NODE, with SLURM's name of the only node that may close: a machine may be several nodes."""
    permit = snapshot.agent.permit
    return f"{NODE}:{permit.node}" if permit.held and permit.node else NODE


def _line(kind: str, device: Device | None, verdict: Verdict, reach: Reach, *, identity: str = NODE) -> str:
    pci = NOTHING if device is None or device.pci is None else device.pci.lower()
    minor = NOTHING if device is None or device.minor is None else str(device.minor)
    name = identity if device is None else _words(device.id).replace(" ", "_")
    words = (kind, pci, minor, verdict.state.value, reach, verdict.action.value, name)
    return " ".join((*words, _words(verdict.reason)))


def _words(text: str) -> str:
    """Return *text* on one line, without control characters and backslashes, for the ``read`` of a shell."""
    plain = "".join(letter if letter.isprintable() and letter != "\\" else " " for letter in text)
    return " ".join(plain.split()) or NOTHING


def advice(error: OSError) -> str:
    """Return the cause of *error* and the next step, on one line."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "no space left; the old file stays: free space on its file system"
        case errno.ELOOP:
            return "it is a symbolic link, which is not followed: remove the link"
        case errno.ENOENT:
            return "its directory does not exist: create it or set --runtime-dir"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"{os.strerror(error.errno)}: run as the owner of the directory or set --runtime-dir"
    return error.strerror or str(error)
