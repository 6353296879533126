"""One load on several devices: a child per device, each working through its requests, and what came of them.

The same for the agent's probe and for `nodevet burn-in`. It never waits: whoever owns the loop calls ``tick``.
"""

from __future__ import annotations

import os
import selectors
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from nodevet.checks.burnin.launch import Launch, burn_command, chosen_by, why_not_chosen
from nodevet.checks.burnin.plan import WORKLOAD, GemmRequest
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import Device, Result, ResultState
from nodevet.checks.core.wire import Note, ProgressMessage
from nodevet.checks.engine.completeness import ASKED, LOAD, PLANNED, REFUSAL
from nodevet.checks.engine.retest import LEFT_OUT

from .child import LoadChild
from .claims import LoadLock
from .curve import Curve

START_SECONDS = 120.0
"""Until a child has imported torch, made its operands and proved its checks: minutes on a cold file system."""

SLOWNESS = 3.0
"""A workload may take this many times its planned seconds before it counts as hung."""

Spawn = Callable[[Device, Mapping[str, str]], Launch]


ONE_UUID = (
    "its UUID is also that of another partition, so a load cannot choose it: set the board to SPX to load all of it"
)

_VERIFIED, _WRONG = "gemms_verified", "mismatches"

OTHERS_MAY_RUN = ("format", "untold", "exactness")
"""What may refuse one number format and says nothing of the next."""


class DeviceProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What the child of one device does now, and what it has done of all its formats."""

    device: Device
    dtype: str | None = None
    phase: str
    ratio: float
    figures: Mapping[str, Any] = {}
    verified: int = 0
    wrong: int = 0
    left_seconds: float | None = None
    ended: tuple[ResultState, ...] = ()


class _Worker(msgspec.Struct):
    """The child of one device, what it does and still has to do, how far it is, and its rate since that ``began``."""

    device: Device
    child: LoadChild
    waiting: deque[GemmRequest]
    planned: int
    running: GemmRequest | None = None
    seen: int = 0
    ratio: float = 0.0
    phase: str = "starting"
    figures: Mapping[str, Any] = {}
    began: float = 0.0
    rate: Curve = msgspec.field(default_factory=Curve)


class LoadRun:
    """Runs *requests* (by device id) on *devices*, all devices at once, one request of a device after the other."""

    def __init__(
        self,
        devices: Iterable[Device],
        requests: Mapping[str, tuple[GemmRequest, ...]],
        clock: Clock,
        selector: selectors.BaseSelector,
        *,
        among: Iterable[Device],
        spawn: Spawn = burn_command,
        log: Callable[[Note], None] | None = None,
        lock: LoadLock | None = None,
        refused: Mapping[str, str] | None = None,
        until: float | None = None,
    ) -> None:
        """Start every child; *lock* is held as long as one of them lives.

        Requests with a duration share what is left *until* this moment of the clock: one that is refused at once leaves
        its time to those behind it, one whose set-up takes long takes it from them.

        *among* are all devices of the node: a load chooses its device by a name that no other one may have. Devices
        that *refused* names, and those without a name to choose them by, are not loaded; every format that was planned
        for them says why. Raises BusyError and StoreError where the lock cannot be taken.
        """
        self._clock = clock
        self._until = until
        devices = self._devices = tuple(devices)
        everything = {device.id: device for device in (*among, *devices)}
        names = Counter(map(chosen_by, everything.values()))
        refusals = {device.id: why_not_chosen(device, everything.values()) for device in devices}
        self._not_told_apart = frozenset(
            device.id for device in devices if names[chosen_by(device)] > 1 and refusals[device.id] is None
        )
        began = clock.instant()
        self._load = f"{began.boot_id}:{began.boottime_ns}"
        self._planned = sum(len(requests.get(device.id, ())) or 1 for device in devices)
        self._stopped = ""
        self._results: list[Result] = []
        self._workers: list[_Worker] = []
        # A child that cannot be started (no memory, an interpreter that is being replaced) is one refused load.
        held = () if lock is None else (lock.acquire(),)
        try:
            for device in devices:
                planned = requests.get(device.id, ())
                reason = (refused or {}).get(device.id) or refusals[device.id]
                try:
                    if reason is None:
                        self._start(device, planned, selector, spawn, log, held)
                except OSError as error:
                    reason = f"the load cannot be started: {error.strerror or error}"
                if reason is not None:
                    self._refuse(device, planned, reason)
        finally:
            for descriptor in held:
                os.close(descriptor)
        self.tick()

    @property
    def done(self) -> bool:
        """Return whether every child is gone."""
        return all(worker.child.at_rest and not worker.waiting for worker in self._workers)

    @property
    def results(self) -> tuple[Result, ...]:
        """Return what came so far, in the order in which it came."""
        return tuple(self._results)

    @property
    def so_far(self) -> tuple[Result, ...]:
        """Return what came, and what running workloads told of wrong results: all that would be known without them."""
        running = ((worker.child.known, worker.running) for worker in self._workers if worker.child.busy)
        return (*self._results, *(self._stamped(known, request) for known, request in running if known is not None))

    @property
    def stopping(self) -> str:
        """Return why the load was asked to end, or an empty string."""
        return self._stopped

    @property
    def ratio(self) -> float:
        """Return how far the whole run is, from 0 to 1."""
        shares = [(worker.seen + worker.ratio) / worker.planned for worker in self._workers if worker.planned]
        return min(sum(shares) / len(shares), 1.0) if shares else 1.0

    @property
    def phase(self) -> str:
        """Return what the slowest device does."""
        busy = [worker for worker in self._workers if not worker.child.at_rest]
        if not busy:
            return "done"
        worker = min(busy, key=lambda entry: (entry.seen + entry.ratio) / max(entry.planned, 1))
        return f"{worker.device.pci or worker.device.id}: {worker.phase}"

    @property
    def progress(self) -> tuple[DeviceProgress, ...]:
        """Return what each device does, in the order of the devices; those that are not loaded are at their end."""
        workers = {worker.device.id: worker for worker in self._workers}
        return tuple(self._progress_of(device, workers.get(device.id)) for device in self._devices)

    def _progress_of(self, device: Device, worker: _Worker | None) -> DeviceProgress:
        own = [result for result in self._results if result.devices == (device.id,)]
        verified, wrong = (sum(int(result.metric(name) or 0) for result in own) for name in (_VERIFIED, _WRONG))
        if worker is None or worker.child.at_rest:
            states = tuple(result.state for result in own)
            return DeviceProgress(device=device, phase="", ratio=1.0, verified=verified, wrong=wrong, ended=states)
        figures, known = worker.figures, worker.child.known
        now_wrong = max(int(figures.get(_WRONG, 0)), 0 if known is None else int(known.metric(_WRONG) or 0))
        return DeviceProgress(
            device=device,
            dtype=None if worker.running is None else worker.running.dtype,
            phase="stopping" if self._stopped else worker.phase,
            ratio=worker.ratio,
            figures=figures,
            verified=verified + int(figures.get(_VERIFIED, 0)),
            wrong=wrong + now_wrong,
            left_seconds=self._left(worker),
        )

    def _left(self, worker: _Worker) -> float | None:
        """Return the seconds until *worker* is done: of the run, or by its formats where each has its own."""
        planned = (worker.running, *worker.waiting)
        if self._until is not None and any(request.duration_seconds for request in planned if request is not None):
            return max(0.0, self._until - self._clock.monotonic())
        if worker.running is None:
            return None
        behind = sum(request.planned_seconds for request in worker.waiting)
        return (1.0 - worker.ratio) * worker.running.planned_seconds + behind

    @property
    def pids(self) -> frozenset[int]:
        """Return the process ids of the children: they are no strangers on their devices."""
        records = (worker.child.record for worker in self._workers)
        return frozenset(record.pid for record in records if record is not None)

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        deadlines = (worker.child.next_deadline for worker in self._workers)
        return min((when for when in deadlines if when is not None), default=None)

    def tick(self) -> None:
        """Do what is due: take results, start the next request of each device, end what hangs."""
        for worker in self._workers:
            worker.child.tick()
            self._collect(worker)
            if worker.child.busy:
                continue
            if not worker.child.alive:
                self._skip(worker, worker.child.detail)
            elif worker.waiting:
                self._next(worker)
            else:
                worker.child.stop("all done")

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        """Begin to end every child; ``done`` within two seconds if the loop goes on.

        They check what waits and tell their results; *at_once* they are killed, and what they told before counts.
        """
        self._stopped = self._stopped or reason
        for worker in self._workers:
            worker.child.stop(reason, at_once=at_once)

    def _collect(self, worker: _Worker) -> None:
        """Take the results that came from *worker*."""
        for result in worker.child.results[worker.seen :]:
            worker.seen += 1
            worker.ratio, worker.figures = 0.0, {}
            told = self._stamped(_with_curve(self._with_reason(result), worker.rate), worker.running)
            self._results.append(told)
            if result.state is ResultState.REFUSED and result.conditions.get(REFUSAL) not in OTHERS_MAY_RUN:
                # No torch or no such device holds for whatever was to follow; a missing format does not.
                self._skip(worker, result.detail)

    def _skip(self, worker: _Worker, reason: str) -> None:
        """Leave out what still waits: whatever was planned has a result, also where it never ran."""
        while worker.waiting:
            self._leave_out(worker.device, worker.waiting.popleft(), f"not run: {reason or self._stopped}")

    def _leave_out(self, device: Device, request: GemmRequest | None, detail: str) -> None:
        now = self._clock.instant()
        result = Result(
            workload=WORKLOAD,
            devices=(device.id,),
            state=ResultState.INTERRUPTED if self._stopped else ResultState.REFUSED,
            started=now,
            ended=now,
            dtype=None if request is None else request.dtype,
            detail=detail,
        )
        self._results.append(self._stamped(result, request))

    def _refuse(self, device: Device, requests: tuple[GemmRequest, ...], reason: str) -> None:
        """Tell of every planned format of *device* that it was not run; of the device itself where none was planned."""
        for request in requests or (None,):
            self._leave_out(device, request, reason)

    def _stamped(self, result: Result, request: GemmRequest | None) -> Result:
        """Return *result* with the load that it is of, and whether somebody asked for its format by name."""
        conditions = {**result.conditions, LOAD: self._load, PLANNED: self._planned}
        if request is not None and request.asked:
            conditions[ASKED] = True
        dtype = result.dtype or (request.dtype if request is not None else None)
        detail = result.detail
        if not self._not_told_apart.isdisjoint(result.devices):
            conditions.setdefault(LEFT_OUT, ONE_UUID)
            detail = detail or f"in part: {ONE_UUID}"
        return msgspec.structs.replace(result, conditions=conditions, dtype=dtype, detail=detail)

    def _with_reason(self, result: Result) -> Result:
        """Return *result* with why it was interrupted, which the child does not know."""
        if result.state is not ResultState.INTERRUPTED or not self._stopped:
            return result
        return msgspec.structs.replace(result, detail=self._stopped)

    def _start(
        self,
        device: Device,
        requests: tuple[GemmRequest, ...],
        selector: selectors.BaseSelector,
        spawn: Spawn,
        log: Callable[[Note], None] | None,
        held: tuple[int, ...],
    ) -> None:
        launch = spawn(device, os.environ)
        worker: _Worker

        def on_tick(tick: ProgressMessage) -> None:
            worker.ratio, worker.phase = tick.ratio, tick.phase
            worker.figures = tick.figures or worker.figures
            if "tflops" in tick.figures:
                now = self._clock.monotonic()
                worker.began = worker.began if worker.rate.points else now
                worker.rate.add(now - worker.began, float(tick.figures["tflops"]))

        child = LoadChild(
            f"load {device.id}",
            launch.argv,
            (device.id,),
            self._clock,
            selector,
            environment=launch.environment,
            silence_seconds=START_SECONDS,
            on_tick=on_tick,
            on_note=log,
            inherit=held,
        )
        worker = _Worker(device, child, deque(requests), len(requests))
        self._workers.append(worker)

    def _next(self, worker: _Worker) -> None:
        request = self._with_share(worker.waiting.popleft(), len(worker.waiting))
        worker.running = request
        worker.phase, worker.figures = "starting", {}
        worker.rate = Curve()
        worker.child.burn(WORKLOAD, msgspec.to_builtins(request), START_SECONDS + SLOWNESS * request.planned_seconds)

    def _with_share(self, request: GemmRequest, behind: int) -> GemmRequest:
        """Return *request* with its share of the time that is left, where so many are *behind* it."""
        if self._until is None or not request.duration_seconds:
            return request
        share = (self._until - self._clock.monotonic()) / (behind + 1)
        return msgspec.structs.replace(request, duration_seconds=max(share, request.seconds))


def _with_curve(result: Result, rate: Curve) -> Result:
    """Return *result* with its rate over time in the conditions, for the report."""
    if not rate.points:
        return result
    points = [[round(seconds, 3), round(value, 6)] for seconds, value in rate.points]
    return msgspec.structs.replace(result, conditions={**result.conditions, "curves": {"tflops": points}})
