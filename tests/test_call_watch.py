"""What a watched call comes down to, of what is seen of its threads over time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from fakes.clocks import SteppedClock

from nodevet.agent.readers.call_watch import ROUNDS_OF_REST, CallWatch
from nodevet.agent.readers.heartbeat import Heartbeat
from nodevet.agent.readers.mapped_files import MappedFiles
from nodevet.agent.readers.system_call import SLEEPS, Leads, Wait
from nodevet.agent.readers.witness import Other, ProcessStatus, Rest, Surroundings
from nodevet.checks.ipc.child_process import Child

READER, THREAD = 7, 8
LISTENS = Wait(Leads.PROGRAM, "it waits for a program", "recvfrom socket")
ASKS = Wait(Leads.DRIVER, what="ioctl /dev/nvidia0")
UNKNOWN = Wait(Leads.UNKNOWN, "it waits in a call", "openat")


def seen(wait: Wait, ran_seconds: float = 1.0) -> ProcessStatus:
    """Return a process in this wait, which has run for so long."""
    return ProcessStatus("S", False, 0, 0.0, ran_seconds=ran_seconds, wait=wait)


class Shown(Surroundings):
    """Shows a reader in one wait, and one thread of it, which ``runs`` or not."""

    def __init__(self, wait: Wait, thread: Wait, *, runs: bool = False, module_of: int = 0) -> None:
        """Show these; process *module_of* waits in the module of the driver."""
        super().__init__(Path("/nonexistent"))
        self._wait_now, self._thread, self._runs, self._module_of = wait, thread, runs, module_of
        self.rests = [Rest()]
        self._ran = 1.0

    def look(self, pid: int) -> ProcessStatus:
        """Return the reader."""
        return seen(self._wait_now)

    def others(self, pid: int, at_rest: frozenset[tuple[int, str]] = frozenset()) -> dict[Other, ProcessStatus]:
        """Return the thread."""
        self._ran += self._runs
        is_at_rest = (THREAD, self._thread.what) in at_rest
        return {Other(THREAD, "thread"): msgspec.structs.replace(seen(self._thread, self._ran), at_rest=is_at_rest)}

    def rest(self, pid: int) -> Rest:
        """Return the next rest."""
        return self.rests.pop(0)

    def mapped(self, pid: int) -> MappedFiles:
        """Return none."""
        return MappedFiles({}, (), has_huge_pages=False)

    def waits_in_module(self, pid: int, module: str) -> bool:
        """Return whether it is the one that waits there."""
        return module == "nvidia" and pid == self._module_of


def watch_of(shown: Shown, *, rests: tuple[Rest, ...] = ()) -> str:
    """Return the other cause of a call that is looked at twice after *rests*."""
    clock = SteppedClock()
    beat = cast(Heartbeat, SimpleNamespace(want=lambda **_how: None))
    child = cast(Child, SimpleNamespace(pid=READER, call_number=1, in_call=True))
    watch = CallWatch(clock, shown, beat, "nvidia")
    shown.rests = list(rests)
    for _ in rests:
        watch.note_rest(READER)
    watch.look(child)
    clock.advance(1.0)
    return watch.other_cause(child)


@pytest.mark.parametrize("runs", [False, True])
def test_a_thread_that_reads_its_device_now_and_then_is_no_witness(runs: bool) -> None:
    """The call sleeps between two tries of a daemon; a thread that has not run meanwhile waits for an answer."""
    assert bool(watch_of(Shown(SLEEPS, ASKS, runs=runs))) is runs


def test_a_thread_that_listens_to_several_programs_in_turn_is_at_rest() -> None:
    """It waited for one of them in one of the last rounds; its wait hides no lock that the library never gets."""
    before = (Rest(frozenset({(THREAD, LISTENS.what)})), *(Rest() for _ in range(ROUNDS_OF_REST - 1)))
    lock = Wait(Leads.INSIDE, what="futex")
    working = watch_of(Shown(lock, LISTENS), rests=(Rest(),))
    assert "which it may wait for" in working
    shown = Shown(lock, LISTENS)
    assert shown.others(READER, before[0].waits)[Other(THREAD, "thread")].at_rest
    assert _rests(before)
    assert not _rests((*before, Rest()))


def _rests(rests: tuple[Rest, ...]) -> bool:
    """Return whether the thread counts as resting after *rests*."""
    found: list[frozenset[tuple[int, str]]] = []

    class Noted(Shown):
        def others(self, pid: int, at_rest: frozenset[tuple[int, str]] = frozenset()) -> dict[Other, ProcessStatus]:
            found.append(at_rest)
            return super().others(pid, at_rest)

    watch_of(Noted(Wait(Leads.INSIDE, what="futex"), LISTENS), rests=rests)
    return (THREAD, LISTENS.what) in found[-1]


@pytest.mark.parametrize(("module_of", "is_blamed"), [(READER, False), (THREAD, True)])
def test_the_module_is_asked_of_the_part_whose_wait_it_is(module_of: int, is_blamed: bool) -> None:
    """A call that waits for a thread, which waits in a function of the driver's module."""
    shown = Shown(Wait(Leads.INSIDE, what="futex"), UNKNOWN, module_of=module_of)
    assert (watch_of(shown) == "") is is_blamed


@pytest.mark.parametrize("in_call", [False, True])
def test_a_reader_between_two_calls_waits_for_the_agent(in_call: bool) -> None:
    """Its wait is no cause for which the next call would be excused."""
    beat = cast(Heartbeat, SimpleNamespace(want=lambda **_how: None))
    child = cast(Child, SimpleNamespace(pid=READER, call_number=1, in_call=in_call))
    watch = CallWatch(SteppedClock(), Shown(LISTENS, LISTENS), beat, "nvidia")
    watch.look(child)
    assert bool(watch.cause(child)) is in_call
