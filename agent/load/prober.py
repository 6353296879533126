"""The agent's own periodic probe: when it runs, on what, and when it gives way."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Iterable
from pathlib import Path

from nodevet.agent.config.settings import LoadSettings
from nodevet.checks.burnin.launch import burn_command, compute_kind
from nodevet.checks.burnin.plan import GemmRequest, plan_named, requests_for
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.digest import sha256
from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.model import Device, DeviceKind, Instant, Result, ResultState, Snapshot
from nodevet.checks.core.wire import Note
from nodevet.checks.engine.retest import LEFT_OUT

from .guard import POLL_SECONDS, LoadGuard
from .late import LateDevices
from .lease import IDLE_MEMORY_BYTES, busy_reason, is_held, load_targets
from .run import LoadRun, Spawn
from .wrong import UntoldWrong

PLAN = "probe"
FIRST_SECONDS = 3.0
"""After the first round, so that what is judged first is the node at rest."""

NOT_READY_SECONDS = 1.0
"""When to look again while the readers have not answered once."""

RETRY_SECONDS = 60.0
"""When to look again for idle devices."""

MEMORY_SECONDS = 2.0
"""How long after its last process a load's memory may take to be seen free; then the readers are not waited for."""

SCHEDULER_FILES = ("etc/slurm/slurm.conf", "run/slurmd.pid", "var/run/secrets/kubernetes.io", "var/lib/kubelet")


class Prober:
    """Starts a probe when one is due and every device is idle; ``tick`` drives it."""

    def __init__(
        self,
        settings: LoadSettings,
        clock: Clock,
        selector: selectors.BaseSelector,
        guard: LoadGuard,
        *,
        node: str,
        root: str = "/",
        spawn: Spawn = burn_command,
        refresh: Callable[[], None] = lambda: None,
        log: Callable[[Note], None] | None = None,
    ) -> None:
        """Schedule the first probe shortly after the start; later ones are spread over the fleet by *node*'s name.

        *refresh* has the devices read at once, to see that their memory is free.
        """
        self._clock = clock
        self._selector = selector
        self._guard = guard
        self._node = node
        self._root = root
        self._spawn = spawn
        self._refresh = refresh
        self._log = log
        self._announced: tuple[Device, ...] = ()
        self._among: tuple[Device, ...] = ()
        self._run: LoadRun | None = None
        self._ended: Instant | None = None
        self._began = 0.0
        self._taken = 0
        self._untold = UntoldWrong()
        self.status = ""
        self.configure(settings)
        self._due = clock.monotonic() + FIRST_SECONDS

    def configure(self, settings: LoadSettings) -> None:
        """Go on with other *settings*."""
        self._off = _why_off(settings, self._root)
        self._settings = settings
        if not self.running and not self._announced:
            self.status = self._off

    @property
    def running(self) -> bool:
        """Return whether a probe runs, or what is left of it is still going away."""
        return self._run is not None or self._ended is not None

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        if self.running or self._announced:
            return self._clock.monotonic() + POLL_SECONDS
        return None if self._off else self._due

    def tick(self, snapshot: Snapshot | None) -> tuple[Result, ...]:
        """Start, drive or end a probe, and return the results that came."""
        if self._run is not None:
            return self._drive(self._run, snapshot)
        if self._ended is not None:
            self._leave(self._ended, snapshot)
            return ()
        if self._announced:
            self._begin()
            return ()
        if self._off or snapshot is None or self._clock.monotonic() < self._due:
            return ()
        if snapshot.agent.ready:
            self._try(snapshot)
        else:
            self._due = self._clock.monotonic() + NOT_READY_SECONDS
        return ()

    def found(self) -> tuple[Result, ...]:
        """Return what the probe that runs has found to be wrong since the last time, before its formats end."""
        if self._run is None:
            return ()
        fresh = self._untold.of(self._run.so_far[self._taken :])
        self._untold.told(fresh)
        return fresh

    def stop(self, reason: str) -> None:
        """Begin to end a probe that runs; one that is only announced does not begin."""
        if self._run is not None:
            self._run.stop(reason)
        elif self._announced:
            self._withdraw(reason)

    def _try(self, snapshot: Snapshot) -> None:
        devices = tuple(device for device in load_targets(snapshot.devices) if compute_kind(device))
        reason = self._why_not(snapshot, devices)
        if reason:
            self._wait(reason)
            return
        self._announced, self._among = devices, snapshot.devices
        self.status = "probe is announced"

    def _begin(self) -> None:
        """Start the announced probe once its announcement is on disk and no job is here."""
        standing = self._guard.standing(os.getpid())
        if standing is None:
            return
        if standing:
            self._withdraw(standing)
            return
        devices = self._announced
        requests = {device.id: _requests(device) for device in devices}
        try:
            self._run = LoadRun(
                devices,
                requests,
                self._clock,
                self._selector,
                among=self._among,
                spawn=self._spawn,
                log=self._log,
                lock=self._guard.lock,
                until=self._clock.monotonic() + plan_named(PLAN).duration_seconds,
            )
        except NodevetError as error:
            self._withdraw(str(error))
            return
        self._announced = ()
        self._began = self._clock.monotonic()
        self._taken = 0
        self._untold = UntoldWrong()
        self.status = "probing"

    def _withdraw(self, reason: str) -> None:
        self._announced = ()
        self._guard.leases.give_back(os.getpid())
        self._wait(reason)

    def _wait(self, reason: str) -> None:
        self.status = f"probe waits: {reason}"
        self._due = self._clock.monotonic() + RETRY_SECONDS

    def _why_not(self, snapshot: Snapshot, devices: tuple[Device, ...]) -> str | None:
        if not devices:
            return "this node has no device that can run a load"
        if snapshot.simulated:
            return "the node is simulated"
        reason = busy_reason(snapshot, devices)
        if reason:
            return reason
        seconds = self._settings.budget_seconds + RETRY_SECONDS
        names = (device.id for device in devices)
        return self._guard.announce("probe", os.getpid(), names, seconds, snapshot.generation)

    def _drive(self, run: LoadRun, snapshot: Snapshot | None) -> tuple[Result, ...]:
        claimed = self._guard.claims.look().reason
        if claimed:
            run.stop(f"gives way: {claimed}")
        run.tick()
        if self._clock.monotonic() - self._began > self._settings.budget_seconds + RETRY_SECONDS:
            run.stop("the probe exceeded its budget")
        elif snapshot is not None:
            devices = load_targets(snapshot.devices)
            stranger = busy_reason(snapshot, devices, run.pids) if run.pids else None
            if stranger and is_held(stranger):
                run.stop(f"gives way: {stranger}")
        fresh = run.results[self._taken :]
        self._taken += len(fresh)
        if run.done and self._taken == len(run.results):
            return (*fresh, *self._finish(run, snapshot))
        self.status = f"probing {run.ratio:.0%}"
        return fresh

    def _finish(self, run: LoadRun, snapshot: Snapshot | None) -> tuple[Result, ...]:
        """End the probe; return what it left out because that was listed only after it began: probed soon."""
        self._run = None
        self._ended = now = self._clock.instant()
        self._refresh()
        refused = next((result for result in run.results if result.state is ResultState.REFUSED), None)
        self.status = f"no probe: {refused.detail}" if refused else _in_part(run.results)
        interval = self._settings.interval_seconds
        late = LateDevices(self._among, _requests).told(() if snapshot is None else snapshot.devices, run.results, now)
        wait = 0.0 if late else (phase_of_day(self._node, interval) - now.wall_seconds) % interval
        self._due = self._clock.monotonic() + max(wait, RETRY_SECONDS)
        return late

    def _leave(self, ended: Instant, snapshot: Snapshot | None) -> None:
        """Give the lease back once no process of the probe is left and its memory is seen free."""
        if self._guard.lock.is_held():
            return
        waited_ns = self._clock.instant().boottime_ns - ended.boottime_ns
        if snapshot is None or waited_ns >= MEMORY_SECONDS * 1e9 or _memory_is_free(snapshot, ended):
            self._ended = None
            self._guard.leases.give_back(os.getpid())


def _in_part(results: Iterable[Result]) -> str:
    """Return which part of a device the probe did not reach, or an empty string where it reached all of each."""
    left_out = next((result.conditions[LEFT_OUT] for result in results if LEFT_OUT in result.conditions), None)
    return f"the probe proves nothing: {left_out}" if left_out else ""


def phase_of_day(node: str, interval_seconds: float) -> float:
    """Return this node's own moment within the interval, so that a fleet does not probe all at once."""
    digest = sha256(node.encode())
    return int.from_bytes(digest[:8]) / 2**64 * interval_seconds


def _memory_is_free(snapshot: Snapshot, since: Instant) -> bool:
    """Return whether readings that began after *since* show every accelerator without much memory in use."""
    accelerators = {device.id for device in load_targets(snapshot.devices) if device.kind is DeviceKind.ACCELERATOR}
    seen_free = {
        sample.device
        for sample in snapshot.samples
        if sample.time.boottime_ns > since.boottime_ns
        for reading in sample.readings
        if reading.quantity == "memory_used_bytes"
        and isinstance(reading.value, (int, float))
        and reading.value <= IDLE_MEMORY_BYTES
    }
    return accelerators <= seen_free


def scheduler_here(root: str = "/") -> str | None:
    """Return the file that shows that a scheduler runs jobs on this node, or None."""
    return next((f"/{name}" for name in SCHEDULER_FILES if (Path(root) / name).exists()), None)


def _requests(device: Device) -> tuple[GemmRequest, ...]:
    kind = compute_kind(device)
    return () if kind is None else requests_for(PLAN, device.id, kind, pci_device_id=device.pci_device_id)


def _why_off(settings: LoadSettings, root: str) -> str:
    if settings.probe == "off":
        return "probe is off (load.probe)"
    if settings.probe == "auto":
        found = scheduler_here(root)
        if found:
            return f"probe is off: {found} shows a scheduler; set load.probe = on to run it beside jobs"
    return ""
