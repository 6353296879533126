"""An engine beside one that judges everything anew in every round: whatever happens, both must say the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from nodevet.checks.core.guard import PartFault
from nodevet.checks.core.model import (
    AgentInfo,
    Device,
    Episode,
    Event,
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
from nodevet.checks.engine.view import Cadence, KernelLogState

__all__ = ["Twins", "timeless"]


class Twins(Engine):
    """The engine under test, which hands all that it takes to its twin as well, and compares what both say."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Start both with nothing known."""
        super().__init__(*arguments, **named)
        self.anew = Engine(*arguments, **named, reuses=False)

    def take_devices(self, backend: str, devices: Iterable[Device]) -> None:
        """Hand it to both."""
        listed = tuple(devices)
        self.anew.take_devices(backend, listed)
        super().take_devices(backend, listed)

    def take_sample(self, sample: Sample) -> None:
        """Hand it to both."""
        self.anew.take_sample(sample)
        super().take_sample(sample)

    def take_event(self, event: Event) -> None:
        """Hand it to both."""
        self.anew.take_event(event)
        super().take_event(event)

    def take_result(self, result: Result) -> None:
        """Hand it to both."""
        self.anew.take_result(result)
        super().take_result(result)

    def take_readers(self, statuses: Iterable[ReaderStatus]) -> None:
        """Hand them to both."""
        told = tuple(statuses)
        self.anew.take_readers(told)
        super().take_readers(told)

    def take_kernel_log(self, state: KernelLogState) -> None:
        """Hand it to both."""
        self.anew.take_kernel_log(state)
        super().take_kernel_log(state)

    def take_faults(self, faults: Iterable[PartFault]) -> None:
        """Hand them to both."""
        told = tuple(faults)
        self.anew.take_faults(told)
        super().take_faults(told)

    def reconfigure(
        self, checks: Sequence[ConfiguredCheck], cadences: Mapping[tuple[str, str], Cadence], modes: Modes
    ) -> None:
        """Have both judge by other policies."""
        self.anew.reconfigure(checks, cadences, modes)
        super().reconfigure(checks, cadences, modes)

    def acknowledge(
        self, key: Key, *, note: str, actor: str, until: Instant | Returns | None = None, knew: Knew = anybody
    ) -> Episode | None:
        """Acknowledge it in both."""
        self.anew.acknowledge(key, note=note, actor=actor, until=until, knew=knew)
        return super().acknowledge(key, note=note, actor=actor, until=until, knew=knew)

    def restore(self, memory: Mapping[str, bytes]) -> None:
        """Have both go on from *memory*."""
        self.anew.restore(memory)
        super().restore(memory)

    def adopt(self, episodes: Iterable[Episode]) -> None:
        """Have both go on with *episodes*."""
        told = tuple(episodes)
        self.anew.adopt(told)
        super().adopt(told)

    def evaluate(self, agent: AgentInfo) -> Round:
        """Return what the engine says, which is what its twin says, and all of which can be kept and shown."""
        done, anew = super().evaluate(agent), self.anew.evaluate(agent)
        assert timeless(done.snapshot) == timeless(anew.snapshot)
        assert done.changes == anew.changes
        assert all(sound(finding) == finding for finding in done.snapshot.findings)
        return done


def timeless(snapshot: Snapshot) -> Snapshot:
    """Return *snapshot* without how long each check took."""
    runs = tuple(msgspec.structs.replace(run, duration_seconds=0.0) for run in snapshot.checks)
    return msgspec.structs.replace(snapshot, checks=runs)
