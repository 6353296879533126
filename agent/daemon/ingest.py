"""What comes in by itself, readings and the kernel log, on its way to engine, store and the curves of a load."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

import msgspec

from nodevet.agent.load.recorder import LoadRecorder
from nodevet.agent.readers.kernel_watch import KernelWatch
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.store.journal import Journal
from nodevet.checks.core.guard import Guard
from nodevet.checks.core.model import Device, Event, ReaderState, Sample
from nodevet.checks.core.quantities import QUANTITIES
from nodevet.checks.engine.engine import Engine

from .event_log import EventLog
from .pace import Pace


class Ingest:
    """Hands on what came in, and has *pace* know how soon it must be judged."""

    def __init__(
        self, engine: Engine, journal: Journal, recorder: LoadRecorder, pace: Pace, event_log: EventLog, guard: Guard
    ) -> None:
        """Take in for these. What cannot be taken costs itself: *guard* tells of it, and the rest is taken."""
        self._guard = guard
        self._engine = engine
        self._journal = journal
        self._recorder = recorder
        self._pace = pace
        self._event_log = event_log
        self._states: list[ReaderState] = []
        self._untaken: frozenset[str] = frozenset()
        self._unknown: set[str] = set()

    def take_readings(self, supervisor: Supervisor, backends: Iterable[str]) -> None:
        """Drive the readers of *supervisor*, which read *backends*, and take what they told."""
        self._guard.run("readers: turn", supervisor.tick, _nothing)  # what the others told is taken
        collected = supervisor.collect()
        for note in collected.notes:
            self._guard.run("log of readers", partial(self._event_log.note, note), _nothing)
        self._guard.run("log of what was cut", partial(self._event_log.cut, collected.dropped), _nothing)
        if collected.inventory_changed or self._untaken:  # what is listed is told once: until it is taken it is new
            only = None if collected.inventory_changed else self._untaken
            self._untaken = self._take_inventory(supervisor.devices, backends, only)
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
            self._guard.run("log of the kernel", partial(self._event_log.kernel_event, event), _nothing)
        self._engine.take_kernel_log(watch.state)
        if events:
            self._pace.hurry()

    def _take_event(self, event: Event) -> None:
        self._guard.run(f"intake of event {event.code}", partial(self._engine.take_event, event), _nothing)

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

    def _take_inventory(
        self, devices: tuple[Device, ...], backends: Iterable[str], only: Collection[str] | None
    ) -> frozenset[str]:
        """Hand *devices* on, to all or *only* to those who did not take them; return who did not."""
        by_backend: dict[str, list[Device]] = {name: [] for name in backends}
        for device in devices:
            by_backend.setdefault(device.backend, []).append(device)
        steps = {name: partial(self._engine.take_devices, name, listed) for name, listed in by_backend.items()}
        steps["the store"] = partial(self._journal.keep_devices, devices)
        due = {name: step for name, step in steps.items() if only is None or name in only}
        return frozenset(name for name, step in due.items() if not self._is_done(f"intake of devices: {name}", step))

    def _is_done(self, part: str, step: Callable[[], None]) -> bool:
        """Do *step* of *part*; return whether it raised nothing."""

        def done() -> bool:
            step()
            return True

        return self._guard.run(part, done, bool)


def _nothing() -> None:
    """Go on without it."""
