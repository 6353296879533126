"""The agent's own periodic probe: when it runs, on what, and when it gives way."""

from __future__ import annotations

import hashlib
import os
import selectors
from collections.abc import Callable
from pathlib import Path

from nodevet.agent.clock import Clock
from nodevet.agent.lease import LeaseBook, busy_reason, load_targets
from nodevet.agent.load_run import LoadRun, Spawn
from nodevet.agent.settings import LoadSettings
from nodevet.checks.burnin.launch import burn_command, compute_kind
from nodevet.checks.burnin.plan import GemmRequest, requests_for
from nodevet.checks.model import Device, Result, ResultState, Snapshot
from nodevet.checks.wire import Note

__all__ = ["Prober", "phase_of_day", "scheduler_here"]

PLAN = "probe"
FIRST_SECONDS = 3.0
"""After the first round, so that what is judged first is the node at rest."""

NOT_READY_SECONDS = 1.0
"""When to look again while the readers have not answered once."""

RETRY_SECONDS = 60.0
"""When to look again for idle devices."""

SCHEDULER_FILES = ("etc/slurm/slurm.conf", "run/slurmd.pid", "var/run/secrets/kubernetes.io", "var/lib/kubelet")


class Prober:
    """Starts a probe when one is due and every device is idle; ``tick`` drives it."""

    def __init__(
        self,
        settings: LoadSettings,
        clock: Clock,
        selector: selectors.BaseSelector,
        leases: LeaseBook,
        *,
        node: str,
        root: str = "/",
        spawn: Spawn = burn_command,
        log: Callable[[Note], None] | None = None,
    ) -> None:
        """Schedule the first probe shortly after the start; later ones are spread over the fleet by *node*'s name."""
        self._clock = clock
        self._selector = selector
        self._leases = leases
        self._node = node
        self._root = root
        self._spawn = spawn
        self._log = log
        self._run: LoadRun | None = None
        self._began = 0.0
        self._taken = 0
        self.status = ""
        self.configure(settings)
        self._due = clock.monotonic() + FIRST_SECONDS

    def configure(self, settings: LoadSettings) -> None:
        """Go on with other *settings*."""
        self._settings = settings
        self._off = _why_off(settings, self._root)
        if self._run is None:
            self.status = self._off

    @property
    def running(self) -> bool:
        """Return whether a probe runs."""
        return self._run is not None

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        if self._run is not None:
            return self._run.next_deadline
        return None if self._off else self._due

    def tick(self, snapshot: Snapshot | None) -> tuple[Result, ...]:
        """Start, drive or end a probe, and return the results that came."""
        if self._run is not None:
            return self._drive(self._run, snapshot)
        if self._off or snapshot is None or self._clock.monotonic() < self._due:
            return ()
        if snapshot.agent.ready:
            self._try(snapshot)
        else:
            self._due = self._clock.monotonic() + NOT_READY_SECONDS
        return ()

    def stop(self, reason: str) -> None:
        """Begin to end a probe that runs."""
        if self._run is not None:
            self._run.stop(reason)

    def _try(self, snapshot: Snapshot) -> None:
        devices = tuple(device for device in load_targets(snapshot.devices) if compute_kind(device))
        reason = self._why_not(snapshot, devices)
        if reason:
            self.status = f"probe waits: {reason}"
            self._due = self._clock.monotonic() + RETRY_SECONDS
            return
        requests = {device.id: _requests(device) for device in devices}
        self._began = self._clock.monotonic()
        self._taken = 0
        self._run = LoadRun(devices, requests, self._clock, self._selector, spawn=self._spawn, log=self._log)
        self.status = "probing"

    def _why_not(self, snapshot: Snapshot, devices: tuple[Device, ...]) -> str | None:
        if not devices:
            return "this node has no device that a load exists for"
        if snapshot.simulated:
            return "the node is simulated"
        reason = busy_reason(snapshot, devices)
        if reason:
            return reason
        seconds = self._settings.budget_seconds + RETRY_SECONDS
        lease = self._leases.take("probe", os.getpid(), (device.id for device in devices), seconds)
        if lease is None:
            current = self._leases.current
            return f"{current.holder} holds the lease" if current else "the lease is taken"
        return None

    def _drive(self, run: LoadRun, snapshot: Snapshot | None) -> tuple[Result, ...]:
        run.tick()
        if self._clock.monotonic() - self._began > self._settings.budget_seconds + RETRY_SECONDS:
            run.stop("the probe exceeded its budget")
        elif snapshot is not None:
            devices = load_targets(snapshot.devices)
            stranger = busy_reason(snapshot, devices, run.pids) if run.pids else None
            if stranger and "hold it" in stranger:
                run.stop(f"gives way: {stranger}")
        fresh = run.results[self._taken :]
        self._taken += len(fresh)
        if run.done and self._taken == len(run.results):
            self._finish(run)
        else:
            self.status = f"probing {run.ratio:.0%}"
        return fresh

    def _finish(self, run: LoadRun) -> None:
        self._run = None
        self._leases.give_back(os.getpid())
        refused = next((result for result in run.results if result.state is ResultState.REFUSED), None)
        self.status = f"no probe: {refused.detail}" if refused else ""
        now = self._clock.instant()
        interval = self._settings.interval_seconds
        wait = (phase_of_day(self._node, interval) - now.wall_seconds) % interval
        self._due = self._clock.monotonic() + max(wait, RETRY_SECONDS)


def phase_of_day(node: str, interval_seconds: float) -> float:
    """Return this node's own moment within the interval, so that a fleet does not probe all at once."""
    digest = hashlib.sha256(node.encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64 * interval_seconds


def scheduler_here(root: str = "/") -> str | None:
    """Return the file that shows that a scheduler runs jobs on this node, or None."""
    return next((f"/{name}" for name in SCHEDULER_FILES if (Path(root) / name).exists()), None)


def _requests(device: Device) -> tuple[GemmRequest, ...]:
    return requests_for(PLAN, device.id, compute_kind(device) or "cpu", pci_device_id=device.pci_device_id)


def _why_off(settings: LoadSettings, root: str) -> str:
    if settings.probe == "off":
        return "probe is off (load.probe)"
    if settings.probe == "auto":
        found = scheduler_here(root)
        if found:
            return f"probe is off: {found} shows a scheduler; set load.probe = on to run it beside jobs"
    return ""
