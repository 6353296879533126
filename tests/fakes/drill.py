"""A fire drill without processes: a simulated node judged by the real engine, moved by a clock of its own."""

from __future__ import annotations

from fakes.clocks import SteppedClock
from fakes.twins import JudgedTwice

from nodevet.agent.config.load import load_configuration
from nodevet.agent.daemon.assembly import (
    FAST,
    SLOW,
    agent_info,
    cadences,
    configure,
    engine_cadences,
    modes_in_force,
)
from nodevet.agent.simulated.node import simulated_configuration
from nodevet.agent.simulated.prober import probe_results
from nodevet.checks.core.model import (
    EpisodeState,
    Event,
    Failure,
    FailureKind,
    ReaderState,
    ReaderStatus,
    Reading,
    Sample,
    Snapshot,
)
from nodevet.checks.core.quantities import measured
from nodevet.checks.engine.engine import Engine
from nodevet.checks.engine.registry import installed
from nodevet.checks.engine.view import KernelLogState
from nodevet.checks.kernel_log.lines import split_line
from nodevet.checks.kernel_log.parse import KernelLogParser
from nodevet.checks.kernel_log.rules import stand_in
from nodevet.checks.reference.profiles import load_profile
from nodevet.checks.simulation.node import Simulation, Trouble, World
from nodevet.checks.simulation.scenario import parse_scenario

__all__ = ["Drill"]

SLOW_SECONDS = 60.0
"""How often the slow group is read, as by default."""


class Drill:
    """One simulated node; ``run`` moves it on and returns the newest snapshot."""

    def __init__(
        self,
        profile: str,
        scenario: str = "",
        *,
        node: str = "drill",
        interval_seconds: float = 10.0,
        twins: bool = True,
    ) -> None:
        """Begin *scenario* (TOML) now on a node of *profile*, of which nothing was read yet.

        Each round is judged anew beside, unless no *twins* are wanted.
        """
        self.clock = SteppedClock(seconds=5000.0)
        self.interval_seconds = interval_seconds
        self.name = profile
        self.node = node
        settings = load_configuration(None, installed(), environment={"HOME": "/nonexistent"}, uid=1000)
        self.settings = simulated_configuration(settings, profile)
        configured = configure(installed(), self.settings)
        self.engine = (JudgedTwice if twins else Engine)(
            configured,
            node=node,
            clock=self.clock.instant,
            cadences=engine_cadences(self.settings, cadences(self.settings)),
            modes=modes_in_force(self.settings),
            simulated=True,
        )
        self.info = agent_info(self.settings, configured, self.clock.instant())
        self.rounds = 0
        self._slow_at = 0.0
        self._wrong: frozenset[str] = frozenset()
        self.replace(scenario)

    def replace(self, scenario: str) -> None:
        """Put another scenario in the place of the present one."""
        parsed = parse_scenario(scenario, "drill.toml", load_profile(self.name))
        now = self.clock.instant()
        self.world = World(Simulation(profile=self.name, node=self.node, scenario=parsed, since_ns=now.boottime_ns))
        self._logged = -1.0
        self._began = now

    def run(self, seconds: float) -> Snapshot:
        """Go on for *seconds*, one round after the other, and return the newest snapshot."""
        snapshot = self.round()
        for _ in range(int(seconds / self.interval_seconds)):
            self.clock.advance(self.interval_seconds)
            snapshot = self.round()
        return snapshot

    def round(self) -> Snapshot:
        """Read every device once, hear the kernel, and judge."""
        now = self.clock.instant()
        groups: tuple[str, ...] = (FAST,)
        if self.clock.monotonic() >= self._slow_at:
            groups, self._slow_at = (FAST, SLOW), self.clock.monotonic() + SLOW_SECONDS
        for backend in load_profile(self.name).backends:
            self.engine.take_devices(backend, self.world.devices(backend, now))
            for device in self.world.devices(backend, now):
                for group in groups:
                    self.engine.take_sample(self._sample(backend, device.id, group))
        for event in self._events():
            self.engine.take_event(event)
        self.engine.take_readers(
            ReaderStatus(backend=backend, state=ReaderState.RUNNING, last_round=now)
            for backend in load_profile(self.name).backends
        )
        self.engine.take_kernel_log(KernelLogState(readable=True, path="simulated", read=now))
        self.rounds += 1
        return self.engine.evaluate(self.info).snapshot

    def probe(self) -> None:
        """Have a probe end now."""
        now = self.clock.instant()
        measured = self.world.probe(now)
        due, self._wrong = self._wrong, frozenset(entry.device for entry in measured if entry.mismatches)
        probe = load_profile(self.name).probe
        for result in probe_results(measured, probe, now, retested=due - self._wrong):
            self.engine.take_result(result)

    def open_codes(self, snapshot: Snapshot) -> set[str]:
        """Return the codes of all findings that are open."""
        return {episode.key.code for episode in snapshot.episodes if episode.state is EpisodeState.OPEN}

    def _sample(self, backend: str, device: str, group: str) -> Sample:
        now = self.clock.instant()
        trouble = self.world.trouble(device, now)
        failure = Failure(FailureKind.LOST, "simulated", of_driver=True) if trouble is Trouble.LOST else None
        readings: tuple[Reading, ...] = ()
        if failure is None:
            readings = tuple(map(measured, self.world.readings(device, group, now)))
        return Sample(backend, group, device, self.rounds, now, 0.0, readings, failure, simulated=True)

    def _events(self) -> list[Event]:
        now = self.clock.instant()
        seconds = now.seconds_since(self._began) or 0.0
        parser = KernelLogParser()
        for _, line in self.world.kernel_lines(self._logged, seconds):
            parser.feed(stand_in(split_line(f"[{seconds:.6f}] {line}")), now)
        self._logged = seconds
        return parser.take(None)
