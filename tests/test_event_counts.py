"""Events are counted by code and device: on their device, once each, and a restart changes nothing."""

from __future__ import annotations

import msgspec
from fakes.views import GPU, at, event, gpu

from nodevet.checks.core.model import NODE, AgentInfo, FaultClass
from nodevet.checks.engine.engine import ConfiguredCheck, Engine
from nodevet.checks.engine.registry import discover
from nodevet.checks.engine.tally import MAXIMUM_COUNTED, Counts, count_events
from nodevet.checks.engine.view import View

VIEW = View(now=at(), devices=(gpu(),))


def told(counts: Counts) -> dict[tuple[str, str], int]:
    """Return the bare numbers of *counts*."""
    return {key: entry.count for key, entry in counts.items()}


def test_events_are_counted_on_the_device_they_name() -> None:
    """By PCI address; what names no known device is the node's. The class tells a user's fault from the hardware's."""
    events = [event("nvidia.xid.31"), event("nvidia.xid.31", sequence=78), event("nvidia.xid.79", pci="0000:ff:00")]
    counts = count_events({}, events, VIEW)
    assert told(counts) == {("nvidia.xid.31", GPU): 2, ("nvidia.xid.79", NODE): 1}
    assert counts["nvidia.xid.31", GPU].fault_class is FaultClass.APPLICATION
    assert counts["nvidia.xid.79", NODE].fault_class is FaultClass.HARDWARE


def test_the_time_of_the_last_event_is_kept() -> None:
    """A counter that appears with its first event grows by nothing that a rate could see: the time tells."""
    counts = count_events({}, [event("nvidia.xid.31", time=at(3))], VIEW)
    assert count_events(counts, [event("nvidia.xid.31", time=at(9))], VIEW)["nvidia.xid.31", GPU].last == at(9)
    assert count_events(counts, [], VIEW) == counts


def test_counts_are_bounded_and_the_longest_silent_go_first() -> None:
    """A log full of codes that nobody knows does not grow the page without end."""
    events = [event(f"nvidia.xid.{number}") for number in range(1000, 1000 + MAXIMUM_COUNTED)]
    counts = count_events({}, [*events, events[0], event("nvidia.xid.79")], VIEW)
    assert len(counts) == MAXIMUM_COUNTED
    assert ("nvidia.xid.1000", GPU) in counts
    assert ("nvidia.xid.1001", GPU) not in counts


def test_a_restart_counts_on() -> None:
    """The counts come back with the engine's memory, and the same event is not counted twice."""
    info = AgentInfo(version="0", started=at(), interval_seconds=10)

    def engine() -> Engine:
        made = Engine([ConfiguredCheck(entry, entry.policy()) for entry in discover()], node="n1", clock=at)
        made.take_devices("nvidia", (gpu(),))
        return made

    first, second = engine(), engine()
    first.take_event(event("nvidia.xid.31"))
    before = first.evaluate(info).snapshot.events
    second.restore(first.memory())
    second.take_event(msgspec.structs.replace(event("nvidia.xid.31")))
    assert second.evaluate(info).snapshot.events == before
    assert [(entry.code, entry.device, entry.count) for entry in before] == [("nvidia.xid.31", GPU, 1)]
