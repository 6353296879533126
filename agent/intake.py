"""What comes in by itself, readings and the kernel log, on its way to engine, store and the curves of a load."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from nodevet.agent.engine import Engine
from nodevet.agent.kernel_watch import KernelWatch
from nodevet.agent.load.recorder import LoadRecorder
from nodevet.agent.pace import Pace
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.storage.journal import Journal
from nodevet.agent.telling import Teller
from nodevet.checks.guard import Guard
from nodevet.checks.model import Device, Event, ReaderState, Sample

__all__ = ["Intake"]


class Intake:
    """Hands on what came in, and has *pace* know how soon it must be judged."""

    def __init__(
        self, engine: Engine, journal: Journal, recorder: LoadRecorder, pace: Pace, teller: Teller, guard: Guard
    ) -> None:
        """Take in for these. What cannot be taken costs itself: *guard* tells of it, and the rest is taken."""
        self._guard = guard
        self._engine = engine
        self._journal = journal
        self._recorder = recorder
        self._pace = pace
        self._teller = teller
        self._states: list[ReaderState] = []

    def take_readings(self, supervisor: Supervisor, backends: Iterable[str]) -> None:
        """Drive the readers of *supervisor*, which read *backends*, and take what they told."""
        supervisor.tick()
        collected = supervisor.collect()
        for note in collected.notes:
            self._teller.note(note)
        if collected.inventory_changed:
            self._take_inventory(supervisor.devices, backends)
        for sample in collected.samples:
            part = f"intake of {sample.group} of {sample.device}"
            self._guard.run(part, partial(self._take_sample, sample), _nothing)
        for event in collected.events:
            self._take_event(event)
        self._engine.take_readers(supervisor.statuses)
        states, before = [status.state for status in supervisor.statuses], self._states
        self._states = states
        settled = supervisor.settled
        if collected.events or states != before:
            self._pace.hurry()
        elif collected.samples or collected.inventory_changed:
            self._pace.readings_came(settled=settled)
        self._pace.look(settled=settled)

    def take_kernel_events(self, watch: KernelWatch) -> None:
        """Take what the kernel logged since the last time, and whether its log can be read."""
        events = watch.tick()
        for event in events:
            self._take_event(event)
            self._teller.kernel_event(event)
        self._engine.take_kernel_log(watch.state)
        if events:
            self._pace.hurry()

    def _take_event(self, event: Event) -> None:
        self._guard.run(f"intake of event {event.code}", partial(self._engine.take_event, event), _nothing)

    def _take_sample(self, sample: Sample) -> None:
        self._engine.take_sample(sample)
        self._recorder.take(sample)
        self._journal.keep_sample(sample)

    def _take_inventory(self, devices: tuple[Device, ...], backends: Iterable[str]) -> None:
        by_backend: dict[str, list[Device]] = {name: [] for name in backends}
        for device in devices:
            by_backend.setdefault(device.backend, []).append(device)
        for backend, listed in by_backend.items():
            self._engine.take_devices(backend, listed)
        self._journal.keep_devices(devices)


def _nothing() -> None:
    """Go on without it."""
