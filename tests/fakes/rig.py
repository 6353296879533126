"""The real readers on fake machines, the real engine, and a clock that the test moves: a timeline in milliseconds."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import msgspec
from fakes.clocks import SteppedClock
from fakes.host_tree import PCI, write_tree
from fakes.machine import FakeMachine
from fakes.reader import ReaderProcess
from fakes.twins import JudgedTwice

from nodevet.checks.core.model import AgentInfo, Episode, ReaderState, ReaderStatus, Result, Snapshot
from nodevet.checks.core.scheduler import Permit
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.view import Cadence, KernelLogState
from nodevet.checks.kernel_log.lines import split_line
from nodevet.checks.kernel_log.parse import KernelLogParser
from nodevet.checks.kernel_log.rules import stand_in

__all__ = ["INTERVAL_SECONDS", "Rig"]

INTERVAL_SECONDS = 10.0
DEADLINE_SECONDS = 5.0


class Rig:
    """A node of one or more fake machines, each behind the reader of its vendor, judged by every check."""

    def __init__(self, *machines: FakeMachine, engine: type[JudgedTwice] = JudgedTwice) -> None:
        """Start a reader on each of *machines*; all of them find the libraries of all. *engine* judges them."""
        self.machines = machines
        self.clock = SteppedClock()
        for machine in machines:
            write_tree(self.root, machine.host_files())
        self.readers = self._start()
        self._kind = engine
        self.engine = self._engine()
        self.changes: list[Episode] = []
        self.snapshot: Snapshot | None = None

    def __enter__(self) -> Rig:
        """Wait until the backends are loaded."""
        self._wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the readers."""
        for reader in self.readers.values():
            reader.__exit__(kind, error, trace)

    @property
    def root(self) -> Path:
        """The folder in which the readers find what the kernel shows."""
        return self.machine.path.with_suffix(".root")

    @property
    def machine(self) -> FakeMachine:
        """The only machine, or the first."""
        return self.machines[0]

    @property
    def reader(self) -> ReaderProcess:
        """The reader of that machine."""
        return self.readers[self.machine.backend]

    def look(self, intervals: int = 1, *, slow: bool = True) -> Snapshot:
        """Let *intervals* pass, read and judge after each, and return the last snapshot."""
        for _ in range(intervals):
            self.clock.advance(INTERVAL_SECONDS)
            for machine in self.machines:
                machine.advance(INTERVAL_SECONDS)
            for backend, reader in self.readers.items():
                self._read(reader, "fast")
                if slow:
                    self._read(reader, "slow")
                    self.engine.take_devices(backend, reader.devices)
            self.judge()
        assert self.snapshot is not None
        return self.snapshot

    def judge(self) -> Snapshot:
        """Judge what is there, without another reading."""
        for reader in self.readers.values():
            for event in reader.events:
                self.engine.take_event(msgspec.structs.replace(event, time=self.clock.instant()))
            reader.events.clear()
        self.engine.take_readers(tuple(map(self._status, self.readers)))
        self.engine.take_kernel_log(KernelLogState(readable=True, path="/dev/kmsg", read=self.clock.instant()))
        done = self.engine.evaluate(self._info())
        self.changes += done.changes
        self.snapshot = done.snapshot
        return done.snapshot

    def _info(self) -> AgentInfo:
        local = Permit(held=True, why="a rig has one")
        return AgentInfo(version="0", started=self.clock.instant(), interval_seconds=10, permit=local)

    def event(self) -> None:
        """Wait for what the driver of the first machine tells without being asked, and keep it for the next look."""
        self.reader.events.append(self.reader.wait_for_event())

    def kernel(self, *lines: str) -> None:
        """Let the kernel print *lines* now."""
        parser = KernelLogParser()
        for line in lines:
            parser.feed(stand_in(split_line(line)), self.clock.instant())
        for event in parser.take():
            self.engine.take_event(event)

    def show(self, slot: int, name: str, text: str) -> None:
        """Let the kernel show *text* in the file *name* of the board in *slot* of the first machine."""
        (self.root / PCI / self.machine.pci(slot) / name).write_text(text)

    def retest(self, result: Result) -> None:
        """Hand in the result of a load."""
        self.engine.take_result(result)

    def restart(self) -> None:
        """Let another engine go on from what the first one would have kept."""
        memory = self.engine.memory()
        self.engine = self._engine()
        self.engine.restore(memory)
        for backend, reader in self.readers.items():
            self.engine.take_devices(backend, reader.devices)

    def reboot(self) -> None:
        """Boot the node again: new readers, and an engine that goes on from what was kept."""
        self.clock.reboot("boot-2", 60)
        self.start_again()

    def start_again(self) -> None:
        """Start the agent again: new readers, and an engine that goes on from what was kept."""
        self.__exit__(None, None, None)
        self.readers = self._start()
        self.restart()
        self._wait()

    def _start(self) -> dict[str, ReaderProcess]:
        environment = {name: value for machine in self.machines for name, value in machine.environment.items()}
        return {
            machine.backend: ReaderProcess(environment, machine.backend, root=str(self.root))
            for machine in self.machines
        }

    def _wait(self) -> None:
        for backend, reader in self.readers.items():
            self.engine.take_devices(backend, reader.ready().devices)

    def _engine(self) -> Engine:
        configured = [ConfiguredCheck(check, check.policy()) for check in discover()]
        cadence = Cadence(INTERVAL_SECONDS, DEADLINE_SECONDS)
        cadences = {(backend, group): cadence for backend in self.readers for group in ("fast", "slow")}
        return self._kind(configured, node="rig", clock=self.clock.instant, cadences=cadences)

    def _status(self, backend: str) -> ReaderStatus:
        return ReaderStatus(backend=backend, state=ReaderState.RUNNING, last_round=self.clock.instant(), starts=1)

    def _read(self, reader: ReaderProcess, group: str) -> None:
        for sample in reader.round(group).values():
            self.engine.take_sample(msgspec.structs.replace(sample, time=self.clock.instant()))
