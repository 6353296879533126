"""The real reader on a fake machine, the real engine, and a clock that the test moves: a timeline in milliseconds."""

from __future__ import annotations

from types import TracebackType

import msgspec
from fakes.nvml.scenario import FakeNvml
from fakes.reader import ReaderProcess

from nodevet.agent.clock import SteppedClock
from nodevet.agent.engine import Armed, Engine
from nodevet.checks.model import AgentInfo, Episode, ReaderState, ReaderStatus, Result, Snapshot
from nodevet.checks.registry import discover
from nodevet.checks.view import Cadence, KernelLogState

__all__ = ["INTERVAL_SECONDS", "Rig"]

INTERVAL_SECONDS = 10.0
DEADLINE_SECONDS = 5.0


class Rig:
    """Eight fake H100 behind the nvidia reader, judged by every check."""

    def __init__(self, machine: FakeNvml) -> None:
        """Start the reader on *machine*."""
        self.machine = machine
        self.clock = SteppedClock()
        self.reader = ReaderProcess(machine.environment)
        self.engine = self._engine()
        self.changes: list[Episode] = []
        self.snapshot: Snapshot | None = None

    def __enter__(self) -> Rig:
        """Wait until the backend is loaded."""
        ready = self.reader.ready()
        self.engine.take_devices("nvidia", ready.devices)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the reader."""
        self.reader.__exit__(kind, error, trace)

    def look(self, intervals: int = 1, *, slow: bool = True) -> Snapshot:
        """Let *intervals* pass, read and judge after each, and return the last snapshot."""
        for _ in range(intervals):
            self.clock.advance(INTERVAL_SECONDS)
            self._read("fast")
            if slow:
                self._read("slow")
                self.engine.take_devices("nvidia", self.reader.devices)
            self.judge()
        assert self.snapshot is not None
        return self.snapshot

    def judge(self) -> Snapshot:
        """Judge what is there, without another reading."""
        for event in self.reader.events:
            self.engine.take_event(msgspec.structs.replace(event, time=self.clock.instant()))
        self.reader.events.clear()
        status = ReaderStatus(backend="nvidia", state=ReaderState.RUNNING, last_round=self.clock.instant(), starts=1)
        self.engine.take_readers((status,))
        self.engine.take_kernel_log(KernelLogState(readable=True, path="/dev/kmsg", read=self.clock.instant()))
        done = self.engine.evaluate(AgentInfo(version="0", started=self.clock.instant(), interval_seconds=10))
        self.changes += done.changes
        self.snapshot = done.snapshot
        return done.snapshot

    def retest(self, result: Result) -> None:
        """Hand in the result of a load."""
        self.engine.take_result(result)

    def restart(self) -> None:
        """Let another engine go on from what the first one would have kept."""
        memory = self.engine.memory()
        self.engine = self._engine()
        self.engine.restore(memory)
        self.engine.take_devices("nvidia", self.reader.devices)

    def _engine(self) -> Engine:
        armed = [Armed(check, check.policy()) for check in discover()]
        cadence = Cadence(INTERVAL_SECONDS, DEADLINE_SECONDS)
        cadences = {("nvidia", "fast"): cadence, ("nvidia", "slow"): cadence}
        return Engine(armed, node="rig", clock=self.clock.instant, cadences=cadences)

    def _read(self, group: str) -> None:
        for sample in self.reader.round(group).values():
            self.engine.take_sample(msgspec.structs.replace(sample, time=self.clock.instant()))
