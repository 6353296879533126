"""A supervisor with one scripted reader, on a clock that the test moves."""

from __future__ import annotations

import json
import selectors
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fakes.clocks import SteppedClock
from fakes.heard import Heard
from fakes.pass_time import pass_time
from fakes.stopping import stop_readers

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.agent.readers.disk import Disk
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.readers.telling import Take
from nodevet.agent.readers.witness import Surroundings
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import Failure, ReaderState, ReaderStatus, Sample
from nodevet.checks.engine.view import Cadence
from nodevet.checks.system.procfs import ChildRecord

__all__ = ["DEADLINE", "INTERVAL", "REAL_SECONDS", "SCRIPTED", "Bench", "outcome"]

SCRIPTED = Path(__file__).with_name("scripted_child.py")
INTERVAL, DEADLINE = 10.0, 5.0
REAL_SECONDS = 20.0
"""How long a test waits for a real process before it gives up; nothing waits so long when it works."""


class Bench(Heard):
    """A supervisor with one scripted reader, and everything it told."""

    def __init__(
        self, folder: Path, remembered: tuple[ChildRecord, ...] = (), *, cgroups: Path | None = None, **script: Any
    ) -> None:
        """Prepare the script in *folder*. *cgroups* are looked at there; by default nothing is seen of them."""
        super().__init__()
        self.script = {"log": str(folder / "log"), "devices": ["a", "b", "c"], **script}
        self._file = folder / "script.json"
        self.write()
        self.clock = SteppedClock(boot_id=SystemClock().instant().boot_id)
        self.selector = selectors.DefaultSelector()
        # The freezer of a test stands for a driver: that it is the freezer is not to be seen.
        self.surroundings = Surroundings(cgroups=cgroups or folder, disk=Disk(REAL_SECONDS))
        self.supervisor = self.supervise([self.plan()], remembered)

    def supervise(
        self, plans: Iterable[ReaderPlan], remembered: tuple[ChildRecord, ...] = (), take: Take | None = None
    ) -> Supervisor:
        """Return the supervisor of readers by *plans*, which tell this bench, or what shall *take* it."""
        looks = lambda: self.surroundings  # noqa: E731
        return Supervisor(plans, self.clock, self.selector, take or self.take, remembered, looks)

    def plan(self) -> ReaderPlan:
        """How the scripted reader is run."""
        return ReaderPlan(
            backend="fake",
            cadences={"fast": Cadence(INTERVAL, DEADLINE)},
            argv=(sys.executable, "-I", str(SCRIPTED), str(self._file)),
        )

    def write(self, **script: Any) -> None:
        """Change the script."""
        self.script.update(script)
        self._file.with_suffix(".new").write_text(json.dumps(self.script))
        self._file.with_suffix(".new").rename(self._file)

    def status(self) -> ReaderStatus:
        """How the reader does."""
        return self.supervisor.statuses[0]

    @property
    def log(self) -> list[str]:
        """What the children were asked, over all starts."""
        file = Path(self.script["log"])
        return file.read_text().splitlines() if file.exists() else []

    @property
    def failure(self) -> Failure:
        """What the reader failed with."""
        failure = self.status().failure
        assert failure is not None
        return failure

    def until(self, done: Callable[[], bool]) -> None:
        """Run the loop, without moving the clock, until *done*."""
        end = time.monotonic() + REAL_SECONDS
        while True:
            self.supervisor.tick()
            deadline = self.supervisor.next_deadline
            if done():
                return
            assert deadline is None or deadline > self.clock.monotonic(), "a loop would spin"
            runs = self.supervisor.records or self.supervisor.heartbeat.waits
            assert runs, f"nothing runs that could bring it about: {self.supervisor.statuses}"
            assert time.monotonic() < end, f"not reached: {self.supervisor.statuses}"
            for key, mask in self.selector.select(0.05):
                self.supervisor.handle(key, mask)

    def until_in(self, call: str) -> None:
        """Run the loop until the child sits in *call* and everything it said before is heard."""
        self.until(lambda: call in self.call() and not self.selector.select(0))

    def until_state(self, state: ReaderState) -> None:
        """Run the loop until the reader is in *state*."""
        self.until(lambda: self.status().state is state)

    def round(self, seconds: float = 0.0) -> list[Sample]:
        """Move the clock, run until everything due is answered, and return the new samples."""
        self.clock.advance(seconds)
        before = len(self.samples)
        self.until(lambda: self.supervisor.settled)
        return self.samples[before:]

    def fall(self, state: ReaderState, device: str) -> None:
        """Let the round that hangs at *device* come to its deadline, and wait until the child is gone."""
        self.until_in(f"fake_read({device}")
        self.pass_time(DEADLINE)
        self.until_gone(state)

    def until_gone(self, state: ReaderState) -> None:
        """Wait until the child, which the clock alone has ended and left in *state*, is gone."""
        assert self.status().state is state
        self.until(lambda: self.status().pid is None)

    def pass_time(self, seconds: float) -> None:
        """Let *seconds* pass on a machine that keeps time."""
        pass_time(self.clock, self.supervisor, self.until, seconds)

    def call(self) -> str:
        """What the child is about to call."""
        return "".join(record.detail for record in self.supervisor.records)

    def close(self) -> None:
        """Stop the reader, in real time."""
        stop_readers(self.supervisor, self.selector, self.clock)


def outcome(samples: list[Sample]) -> dict[str, str]:
    """What each device's last sample says: ``ok`` or the kind of failure."""
    return {sample.device: sample.failure.kind.value if sample.failure else "ok" for sample in samples}
