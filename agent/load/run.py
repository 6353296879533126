"""One load on several devices: a child per device, each working through its requests, and what came of them.

The same for the agent's probe and for `nodevet burn-in`. It never waits: whoever owns the loop calls ``tick``.
"""

from __future__ import annotations

import os
import selectors
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from nodevet.agent.clock import Clock
from nodevet.agent.load.child import LoadChild
from nodevet.agent.load.claims import LoadLock
from nodevet.agent.load.curve import Curve
from nodevet.checks.burnin.launch import Launch, burn_command
from nodevet.checks.burnin.plan import WORKLOAD, GemmRequest
from nodevet.checks.model import Device, Result, ResultState
from nodevet.checks.wire import Note, Ticked

__all__ = ["LoadRun", "Spawn"]

START_SECONDS = 120.0
"""Until a child has imported torch, made its operands and proved its checks: minutes on a cold file system."""

SLOWNESS = 3.0
"""A workload may take this many times its planned seconds before it counts as hung."""

Spawn = Callable[[Device, Mapping[str, str]], Launch]


class _Worker(msgspec.Struct):
    """The child of one device, what it still has to do, how far it is, and its rate since that ``began``."""

    device: Device
    child: LoadChild
    waiting: deque[GemmRequest]
    planned: int
    seen: int = 0
    ratio: float = 0.0
    phase: str = "starting"
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
        spawn: Spawn = burn_command,
        log: Callable[[Note], None] | None = None,
        lock: LoadLock | None = None,
    ) -> None:
        """Start every child; *lock* is held as long as one of them lives.

        Raises BusyError and StoreError where the lock cannot be taken.
        """
        self._clock = clock
        self._stopped = ""
        self._results: list[Result] = []
        self._workers: list[_Worker] = []
        # A child that cannot be started (no memory, an interpreter that is being replaced) is one refused load.
        held = () if lock is None else (lock.acquire(),)
        try:
            for device in devices:
                try:
                    self._start(device, requests.get(device.id, ()), selector, spawn, log, held)
                except OSError as error:
                    self._refuse(device, f"the load cannot be started: {error.strerror or error}")
        finally:
            for descriptor in held:
                os.close(descriptor)
        self.tick()

    @property
    def done(self) -> bool:
        """Return whether every child is gone."""
        return all(worker.child.at_rest for worker in self._workers)

    @property
    def results(self) -> tuple[Result, ...]:
        """Return what came so far, in the order in which it came."""
        return tuple(self._results)

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
            for result in worker.child.results[worker.seen :]:
                worker.seen += 1
                worker.ratio = 0.0
                self._results.append(_with_curve(self._with_reason(result), worker.rate))
                if result.state is ResultState.REFUSED and result.conditions.get("refusal") != "format":
                    # No torch or no such device holds for whatever was to follow; a missing format does not.
                    worker.waiting.clear()
            if worker.child.busy or not worker.child.alive:
                continue
            if worker.waiting:
                self._next(worker)
            else:
                worker.child.stop("all done")

    def stop(self, reason: str) -> None:
        """Begin to end every child; ``done`` within two seconds if the loop goes on."""
        self._stopped = self._stopped or reason
        for worker in self._workers:
            worker.waiting.clear()
            worker.child.stop(reason)

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

        def on_tick(tick: Ticked) -> None:
            worker.ratio, worker.phase = tick.ratio, tick.phase
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

    def _refuse(self, device: Device, detail: str) -> None:
        now = self._clock.instant()
        state = ResultState.REFUSED
        self._results.append(
            Result(workload=WORKLOAD, devices=(device.id,), state=state, started=now, ended=now, detail=detail)
        )

    def _next(self, worker: _Worker) -> None:
        request = worker.waiting.popleft()
        planned = request.seconds + request.warmup_seconds
        worker.phase = f"{request.dtype} product"
        worker.rate = Curve()
        worker.child.burn(WORKLOAD, msgspec.to_builtins(request), START_SECONDS + SLOWNESS * planned)


def _with_curve(result: Result, rate: Curve) -> Result:
    """Return *result* with its rate over time in the conditions, for the report."""
    if not rate.points:
        return result
    points = [[round(seconds, 3), round(value, 6)] for seconds, value in rate.points]
    return msgspec.structs.replace(result, conditions={**result.conditions, "curves": {"tflops": points}})
