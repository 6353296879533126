"""Reads the devices while a load of the same process runs, where no agent does: heat, power, clocks, throttling."""

from __future__ import annotations

import selectors

import msgspec

from nodevet.agent.config.settings import Configuration
from nodevet.agent.daemon.assembly import build_supervisor
from nodevet.agent.load.conditions import KnownConditions
from nodevet.agent.load.recorder import LoadRecorder
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.readers.telling import Told
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import Event, Sample

EVERY_SECONDS = 2.0
"""How often the devices are read."""

SELDOM_SECONDS = 86400.0
"""Links, errors and inventory are read once: the look behind the load reads them."""

STOP_SECONDS = 2.0


class OwnReaders:
    """Readers of this process; the caller holds the node lock. ``recorder`` has what they read."""

    def __init__(self, configuration: Configuration, clock: Clock) -> None:
        """Read as *configuration* says."""
        self._configuration = configuration
        self._clock = clock
        self._supervisor: Supervisor | None = None
        self.recorder = LoadRecorder()
        self.events: list[Event] = []
        """What the drivers told meanwhile, for the look behind the load."""
        self.trouble = ""
        """Why nothing is read any more, where that is a bug of ours."""

    @property
    def known(self) -> KnownConditions:
        """The conditions of now, by device."""
        return self.recorder.now(self._clock.instant().boottime_ns / 1e9)

    def start(self, selector: selectors.BaseSelector) -> None:
        """Begin to read, in the loop that owns *selector*."""
        self.recorder.begin(self._clock.instant().boottime_ns / 1e9)
        self._supervisor = build_supervisor(_often(self._configuration), self._clock, selector, self._take)

    def tick(self) -> None:
        """Do what is due; a load goes on without its readers."""
        if self._supervisor is not None and not self.trouble:
            try:
                self._supervisor.tick()
            except RuntimeError as error:  # what the supervisor raises for a bug of a reader
                self.trouble = str(error)
                self._supervisor.stop()

    def stop(self) -> None:
        """Close every device: the load has ended."""
        if self._supervisor is not None:
            supervisor, self._supervisor = self._supervisor, None
            supervisor.stop()
            supervisor.wait(lambda: supervisor.at_rest, STOP_SECONDS)

    def _take(self, told: Told) -> None:
        match told:
            case Sample():
                self.recorder.take(told)
            case Event():
                self.events.append(told)


def _often(configuration: Configuration) -> Configuration:
    """Return *configuration* with readers that read what changes under load, and the rest once."""
    every = EVERY_SECONDS
    agent = msgspec.structs.replace(
        configuration.agent, interval_seconds=every, slow_interval_seconds=max(every, SELDOM_SECONDS)
    )
    return msgspec.structs.replace(configuration, agent=agent)
