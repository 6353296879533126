"""The node that ``nodevet agent --simulate`` stands for: its settings, its scenario and its kernel log.

The agent alone reads the scenario's file. What it accepted it writes into the runtime directory, where the readers
see it before every reading; lines of the kernel log go to a file beside it, which is followed as a real log is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from nodevet.agent.config.settings import Configuration
from nodevet.agent.services.protocol import Service
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.errors import ConfigurationError, StoreError
from nodevet.checks.reference.profiles import load_profile
from nodevet.checks.simulation.node import ProbeFigures, Simulation, World
from nodevet.checks.simulation.scenario import Scenario, parse_scenario
from nodevet.checks.system.files import opened, replace_file

SIMULATION_NAME = "simulation.json"
KERNEL_LOG_NAME = "kernel.log"
KERNEL_LOG_BYTES = 1 << 20
"""A log that is longer when the agent starts begins anew."""

SCENARIO_BYTES = 256 << 10
"""A file that is larger is no scenario: to read it would hold up the agent."""

LOOK_SECONDS = 1.0
"""How often the scenario's file is looked at."""


class Simulate(msgspec.Struct, frozen=True):
    """What the command line asks for: a profile, and the file of a scenario."""

    profile: str
    scenario: Path | None = None


def simulated_configuration(settings: Configuration, profile: str) -> Configuration:
    """Return *settings* for a node of *profile*: its backends and its kernel log, nothing of this machine."""
    runtime, state = Path(settings.agent.runtime_dir), Path(settings.agent.state_dir)
    backends = msgspec.structs.replace(settings.agent.backends, enabled=load_profile(profile).backends, commands=())
    return msgspec.structs.replace(
        settings,
        agent=msgspec.structs.replace(settings.agent, backends=backends, root="/"),
        kernel_log=msgspec.structs.replace(settings.kernel_log, enabled=True, path=str(runtime / KERNEL_LOG_NAME)),
        report=msgspec.structs.replace(settings.report, directory=str(state / "reports")),
    )


def read_scenario(path: Path | None, profile: str) -> Scenario:
    """Return the scenario in the file *path*, or that of a healthy node. Raises ConfigurationError."""
    if path is None:
        return Scenario()
    try:
        text = _bytes_of(path).decode("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}): name a scenario that exists") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
    return parse_scenario(text, str(path), load_profile(profile))


def _bytes_of(path: Path) -> bytes:
    """Return what the file *path* holds, without waiting for a writer or swallowing what has no end."""
    with opened(path, follow=True) as (descriptor, status):
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"{path}: is not a regular file: name a scenario")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(SCENARIO_BYTES + 1)
    if len(content) > SCENARIO_BYTES:
        raise ConfigurationError(f"{path}: is larger than {SCENARIO_BYTES >> 10} KiB: name a scenario")
    return content


class SimulatedNode(Service):
    """Keeps the files of the simulation in step with its scenario; ``tick`` drives it."""

    name = "simulation"

    def __init__(
        self,
        profile: str,
        node: str,
        runtime: Path,
        clock: Clock,
        *,
        scenario: Path | None = None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Read the scenario; raises ConfigurationError where it is refused. Nothing is written yet."""
        self.profile = profile
        self.revision = 0
        self._trouble = ""
        self._node = node
        self._runtime = runtime
        self._clock = clock
        self._path = scenario
        self._log = log
        self._seen = self._stamp()
        self.scenario = read_scenario(scenario, profile)
        """The scenario in force."""
        self._look_at = 0.0
        self._world = World(Simulation(profile=profile, node=node))

    @classmethod
    def of(
        cls, wanted: Simulate, configuration: Configuration, clock: Clock, log: Callable[[str], None]
    ) -> SimulatedNode:
        """Return the node that is *wanted* under *configuration*. Raises ConfigurationError."""
        runtime = Path(configuration.agent.runtime_dir)
        return cls(wanted.profile, configuration.agent.node_name, runtime, clock, scenario=wanted.scenario, log=log)

    @property
    def identity(self) -> str:
        """Return what tells this simulated node from others."""
        return f"{self._node} ({self.profile})"

    @property
    def file(self) -> Path:
        """Return the file that the readers follow."""
        return self._runtime / SIMULATION_NAME

    @property
    def title(self) -> str:
        """Return what the scenario calls itself."""
        return self.scenario.title

    @property
    def trouble(self) -> str:
        """Return why the scenario that was read last is not in force, in one line."""
        return self._trouble

    @property
    def next_deadline(self) -> float:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        return self._look_at

    def start(self) -> None:
        """Begin the scenario. Raises StoreError where the runtime directory cannot be written."""
        log = self._runtime / KERNEL_LOG_NAME
        try:
            log.touch(mode=0o640)
            if log.stat().st_size > KERNEL_LOG_BYTES:
                os.truncate(log, 0)
        except OSError as error:
            raise StoreError(f"{log}: cannot be written ({error.strerror}): check {self._runtime}") from error
        self._begin()

    def tick(self) -> None:
        """Take up a scenario that was replaced, and log what the kernel says by now."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        if self._stamp() != self._seen:
            self.reload()
        self._write_lines()

    def reload(self) -> None:
        """Read the scenario again and begin it; one that is refused leaves the present one in force, and is told."""
        self._seen = self._stamp()
        try:
            scenario = read_scenario(self._path, self.profile)
        except ConfigurationError as error:
            self._refuse("; ".join(str(error).splitlines()))
            return
        self.scenario = scenario
        try:
            self._begin()
        except StoreError as error:
            self._refuse(str(error))

    def probe(self) -> tuple[ProbeFigures, ...]:
        """Return what a probe measures now."""
        return self._world.probe(self._clock.instant())

    def seconds(self) -> float:
        """Return how far into the scenario it is."""
        return (self._clock.instant().boottime_ns - self._since_ns) / 1e9

    def _refuse(self, reason: str) -> None:
        self._trouble = f"scenario refused, the one before goes on: {reason}"
        self._log(self._trouble)

    def _begin(self) -> None:
        self._since_ns = self._clock.instant().boottime_ns
        simulation = Simulation(profile=self.profile, node=self._node, scenario=self.scenario, since_ns=self._since_ns)
        replace_file(self.file, msgspec.json.encode(simulation))
        self._world = World(simulation)
        self._logged = -1.0
        self.revision += 1
        self._trouble = ""
        self._log(f"simulates {self.profile}: {self.title}")

    def _write_lines(self) -> None:
        seconds = self.seconds()
        lines = self._world.kernel_lines(self._logged, seconds)
        self._logged = seconds
        if not lines:
            return
        # The kernel's stamps do not count sleep: the monotonic clock, as the reader of the log expects.
        now = self._clock.monotonic()
        text = "".join(f"[{now - (seconds - at):12.6f}] {line}\n" for at, line in lines)
        try:
            with (self._runtime / KERNEL_LOG_NAME).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            self._log(f"{self._runtime / KERNEL_LOG_NAME}: cannot be written: {error.strerror}")

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return what changes when the file is replaced or written; None where there is none."""
        try:
            status = os.stat(self._path) if self._path else None  # noqa: PTH116 (one look for three facts)
        except OSError:
            return None
        return (status.st_mtime_ns, status.st_ino, status.st_size) if status else None
