"""Engines that judge everything anew beside the one under test: whatever happens, both must find the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from fakes import depth

from nodevet.checks.core.guard import PartFault
from nodevet.checks.core.model import (
    AgentInfo,
    CheckRun,
    Device,
    Episode,
    Event,
    Finding,
    Instant,
    Key,
    Modes,
    ReaderStatus,
    Result,
    Sample,
    Snapshot,
)
from nodevet.checks.engine.acknowledgement import Returns
from nodevet.checks.engine.check_run import sound
from nodevet.checks.engine.engine import ConfiguredCheck, Engine, Round
from nodevet.checks.engine.episodes import Knew, anybody
from nodevet.checks.engine.runner import CheckRunner
from nodevet.checks.engine.view import Cadence, KernelLogState, View

__all__ = ["JudgedTwice", "Restarted", "Twins", "timeless"]


class Leader(Engine):
    """The engine under test, which hands all that it takes to others as well."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Start with nothing known, and no other."""
        super().__init__(*arguments, **named)
        self.others: list[Engine] = []

    def take_devices(self, backend: str, devices: Iterable[Device]) -> None:
        """Hand it to all."""
        listed = tuple(devices)
        for other in self.others:
            other.take_devices(backend, listed)
        super().take_devices(backend, listed)

    def take_sample(self, sample: Sample) -> None:
        """Hand it to all."""
        for other in self.others:
            other.take_sample(sample)
        super().take_sample(sample)

    def take_event(self, event: Event) -> None:
        """Hand it to all."""
        for other in self.others:
            other.take_event(event)
        super().take_event(event)

    def take_result(self, result: Result) -> None:
        """Hand it to all."""
        for other in self.others:
            other.take_result(result)
        super().take_result(result)

    def take_readers(self, statuses: Iterable[ReaderStatus]) -> None:
        """Hand them to all."""
        told = tuple(statuses)
        for other in self.others:
            other.take_readers(told)
        super().take_readers(told)

    def take_kernel_log(self, state: KernelLogState) -> None:
        """Hand it to all."""
        for other in self.others:
            other.take_kernel_log(state)
        super().take_kernel_log(state)

    def take_faults(self, faults: Iterable[PartFault]) -> None:
        """Hand them to all."""
        told = tuple(faults)
        for other in self.others:
            other.take_faults(told)
        super().take_faults(told)

    def reconfigure(
        self, checks: Sequence[ConfiguredCheck], cadences: Mapping[tuple[str, str], Cadence], modes: Modes
    ) -> None:
        """Have all judge by other policies."""
        for other in self.others:
            other.reconfigure(checks, cadences, modes)
        super().reconfigure(checks, cadences, modes)

    def acknowledge(
        self, key: Key, *, note: str, actor: str, until: Instant | Returns | None = None, knew: Knew = anybody
    ) -> Episode | None:
        """Acknowledge it in all."""
        for other in self.others:
            other.acknowledge(key, note=note, actor=actor, until=until, knew=knew)
        return super().acknowledge(key, note=note, actor=actor, until=until, knew=knew)

    def restore(self, memory: Mapping[str, bytes]) -> None:
        """Have all go on from *memory*."""
        for other in self.others:
            other.restore(memory)
        super().restore(memory)

    def adopt(self, episodes: Iterable[Episode]) -> None:
        """Have all go on with *episodes*."""
        told = tuple(episodes)
        for other in self.others:
            other.adopt(told)
        super().adopt(told)


class Twins(Leader):
    """An engine beside one that never reuses a finding; all that both say is compared in every round."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Start both with nothing known."""
        super().__init__(*arguments, **named)
        self.anew = Engine(*arguments, **named, reuses=False)
        self.others.append(self.anew)

    def evaluate(self, agent: AgentInfo) -> Round:
        """Return what the engine says, which is what its twin says, and all of which can be kept and shown."""
        done, anew = super().evaluate(agent), self.anew.evaluate(agent)
        assert timeless(done.snapshot) == timeless(anew.snapshot)
        assert done.changes == anew.changes
        assert all(sound(finding) == finding for finding in done.snapshot.findings)
        return done


class JudgedTwice(Leader):
    """An engine that judges views a second time, anew, and finds the same: all that follows from findings is equal.

    `Twins` does the rest of a round twice as well, which takes longer.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Start with nothing known."""
        super().__init__(*arguments, **named)
        self._runner = self._two = TwoRunners(self._runner)

    def evaluate(self, agent: AgentInfo) -> Round:
        """Return what the engine says, all of which can be kept and shown."""
        done = super().evaluate(agent)
        assert not self._two.compared or all(sound(finding) == finding for finding in done.snapshot.findings)
        return done


JUDGED_TWICE_EVERY = 3
"""Of so many rounds one is judged twice; in a campaign all are."""


class TwoRunners(CheckRunner):
    """The runner of an engine, beside one that looks at the same views without the findings of the round before."""

    def __init__(self, own: CheckRunner) -> None:
        """Take the place of *own*."""
        super().__init__(own.checks, partial=own.partial)
        self._anew = CheckRunner(own.checks, partial=own.partial)
        self._rounds = 0
        self.compared = False
        """Whether the last view was judged twice."""

    def run(self, view: View, episodes: tuple[Episode, ...]) -> tuple[tuple[CheckRun, ...], tuple[Finding, ...]]:
        """Return what both find, as the one with reuse tells it."""
        self._anew.checks = self.checks
        self._anew.restore(self._waiting)
        done = super().run(view, episodes)
        self._rounds += 1
        self.compared = depth.IS_CAMPAIGN or not (self._rounds + len(view.devices)) % JUDGED_TWICE_EVERY
        if not self.compared:
            return done
        anew = self._anew.run(msgspec.structs.replace(view, reuse=None), episodes)
        assert done[1] == anew[1]
        assert untimed(done[0]) == untimed(anew[0])
        return done

    def restore(self, waiting: Mapping[str, tuple[Event, ...]]) -> None:
        """Have both go on with the events that waited."""
        super().restore(waiting)
        self._anew.restore(waiting)


class Restarted(JudgedTwice):
    """Beside it an engine that is started again after every round and goes on from what it kept."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Start all of them with nothing known."""
        super().__init__(*arguments, **named)
        self._start = partial(Engine, *arguments, **named)
        self._devices: dict[str, tuple[Device, ...]] = {}
        self.restarted = self._start()
        self.others.append(self.restarted)
        self.told: tuple[Snapshot, Snapshot] | None = None
        """What the engine said last, and what the one said that is started again."""

    def take_devices(self, backend: str, devices: Iterable[Device]) -> None:
        """Hand it to all, and keep it for the next start."""
        self._devices[backend] = listed = tuple(devices)
        super().take_devices(backend, listed)

    def evaluate(self, agent: AgentInfo) -> Round:
        """Return what the engine says, and start the other again once it has said its own."""
        done = super().evaluate(agent)
        self.told = (done.snapshot, self.restarted.evaluate(agent).snapshot)
        memory = self.restarted.memory()
        self.others.remove(self.restarted)
        self.restarted = self._start()
        self.restarted.restore(memory)
        for backend, devices in self._devices.items():
            self.restarted.take_devices(backend, devices)
        self.others.append(self.restarted)
        return done


def timeless(snapshot: Snapshot) -> Snapshot:
    """Return *snapshot* without how long each check took."""
    return msgspec.structs.replace(snapshot, checks=untimed(snapshot.checks))


def untimed(runs: Iterable[CheckRun]) -> tuple[CheckRun, ...]:
    """Return *runs* without how long each took."""
    return tuple(msgspec.structs.replace(run, duration_seconds=0.0) for run in runs)
