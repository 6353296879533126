"""What comes in by itself, readings and the kernel log, on its way to engine, store and the curves of a load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from nodevet.agent.load.recorder import LoadRecorder
from nodevet.agent.readers.remembered import pack_readers
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.readers.telling import Cut, Listed, Take, Told
from nodevet.agent.services.protocol import Service
from nodevet.agent.store.journal import Journal
from nodevet.checks.core.guard import Guard
from nodevet.checks.core.model import Device, Event, ReaderState, Result, Sample
from nodevet.checks.core.quantities import QUANTITIES
from nodevet.checks.core.wire import Note
from nodevet.checks.engine.engine import Engine
from nodevet.checks.engine.view import KernelLogState

from .event_log import EventLog
from .pace import Pace

STORE = "the store"
"""Takes a list of devices as the engine does, of all backends at once."""


class Ingest(Service):
    """The readers of all backends: hands on what they tell, and has *pace* know how soon it must be judged."""

    name = "readers"

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        recorder: LoadRecorder,
        pace: Pace,
        event_log: EventLog,
        guard: Guard,
        supervise: Callable[[Take], Supervisor],
    ) -> None:
        """Take in for these what the readers of *supervise* tell.

        What cannot be taken costs itself: *guard* tells of it, and the rest is taken.
        """
        self._guard = guard
        self._engine = engine
        self._journal = journal
        self._recorder = recorder
        self._pace = pace
        self._event_log = event_log
        self._states: list[ReaderState] = []
        self._listed: dict[str, tuple[Device, ...]] = {}
        self._untaken: frozenset[str] = frozenset()
        self._unknown: set[str] = set()
        self._has_news = False
        self.has_readings = False
        """Whether readings came since the last ``tick``."""
        self.supervisor = supervise(self.take)

    def take(self, told: Told) -> None:
        """Take what a reader tells, at once."""
        match told:
            case Sample():
                part = f"intake of {told.group} of {told.device}"
                self._guard.run(part, partial(self._take_sample, told))
                self.has_readings = True
            case Event():
                self._take_event(told)
                self._has_news = True
            case Listed():
                self._listed[told.backend] = told.devices
                self._untaken = self._untaken_of({*self._untaken, told.backend, STORE})
                self.has_readings = True
            case Note():
                self._guard.run("log of readers", partial(self._event_log.note, told))
            case Cut():
                self._guard.run("log of what was cut", partial(self._event_log.cut, told.count))

    def take_kernel_log(self, events: Iterable[Event], state: KernelLogState) -> None:
        """Take what the kernel logged since the last time, and whether its log can be read."""
        for event in events:
            self._take_event(event)
            self._guard.run("log of the kernel", partial(self._event_log.kernel_event, event))
            self._pace.hurry()
        self._engine.take_kernel_log(state)

    def take_result(self, result: Result, *, keep: bool = True) -> None:
        """Take what a load measured; what is to be had again at its end need not be kept."""

        def take() -> None:
            self._engine.take_result(result)
            if keep:
                self._journal.keep_result(result)

        self._guard.run(f"intake of result {result.workload}", take)

    def tick(self) -> None:
        """Drive the readers, and have it judged where they told something."""
        self._guard.run("readers: turn", self.supervisor.tick)  # what the others told is taken
        if self._untaken:  # a list is told once: until it is taken it is new
            self._untaken = self._untaken_of(self._untaken)
        statuses, settled, before = self.supervisor.statuses, self.supervisor.settled, self._states
        self._engine.take_readers(statuses)
        self._states = [status.state for status in statuses]
        if self._has_news or self._states != before:
            self._pace.hurry()
        elif self.has_readings:
            self._pace.readings_came(settled=settled)
        self.has_readings = self._has_news = False
        self._pace.look(settled=settled)

    @property
    def next_deadline(self) -> float | None:
        """Return when a reader is due."""
        return self.supervisor.next_deadline

    @property
    def memory(self) -> bytes:
        """Return the readers' processes, and the falls that count against drivers."""
        return pack_readers(self.supervisor.records, self.supervisor.falls)

    def stop(self) -> None:
        """Begin to close the readers."""
        self.supervisor.stop()

    def _take_event(self, event: Event) -> None:
        self._guard.run(f"intake of event {event.code}", partial(self._engine.take_event, event))

    def _take_sample(self, sample: Sample) -> None:
        unknown = {entry.quantity for entry in sample.readings} - QUANTITIES.keys()
        if unknown:  # of a reader of a later release, as after an upgrade
            sample = msgspec.structs.replace(
                sample, readings=tuple(entry for entry in sample.readings if entry.quantity not in unknown)
            )
        for name in sorted(unknown - self._unknown):
            self._event_log.trouble(f"readings of {name!r} are left out: restart the agent after the upgrade")
        self._unknown |= unknown
        self._engine.take_sample(sample)
        self._recorder.take(sample)
        self._journal.keep_sample(sample)

    def _untaken_of(self, due: Iterable[str]) -> frozenset[str]:
        """Hand the lists of those that are *due* on; return who did not take theirs."""
        return frozenset(
            name
            for name in due
            if not self._guard.run(f"intake of devices: {name}", partial(self._hand_on, name), bool)
        )

    def _hand_on(self, name: str) -> bool:
        if name == STORE:
            self._journal.keep_devices(tuple(device for listed in self._listed.values() for device in listed))
        else:
            self._engine.take_devices(name, self._listed[name])
        return True
