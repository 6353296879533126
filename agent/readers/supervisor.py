"""All readers of a node, driven by one thread and its selector.

The daemon's loop waits in ``selector.select`` until ``next_deadline``, passes keys to ``handle`` and calls ``tick``. A
one-shot command calls ``wait`` instead, which is that loop. All results go to one callback as they arrive.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterable

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.core.model import Device, DeviceKind, ReaderState, ReaderStatus
from nodevet.checks.system.procfs import ChildRecord

from .blame import Blame, Fall
from .heartbeat import Heartbeat
from .reader import Reader
from .restarts import RETRY_SECONDS
from .telling import Take, Telling
from .witness import Surroundings

LONGEST_WAIT_SECONDS = 0.5

EARLY_LOOKS, EARLY_SECONDS = 2, 20.0
"""Number and interval of early retries for a vendor whose boards are listed and whose driver refuses.

It may still be loading, and one refusal proves nothing (reference/refusals.csv).
"""


class Supervisor:
    """Keeps one reader per backend running, within its deadlines, and never two of one backend."""

    def __init__(
        self,
        plans: Iterable[ReaderPlan],
        clock: Clock,
        selector: selectors.BaseSelector,
        take: Take,
        remembered: Iterable[ChildRecord] = (),
        surroundings: Callable[[], Surroundings] = Surroundings,
    ) -> None:
        """Prepare a reader per plan; *take* receives all results, *remembered* are records of an earlier agent.

        *surroundings* makes the observer of a reader's process, by default on this machine: one for each reader,
        because an unanswered file operation for one reader says nothing about another. Children register with
        *selector* as they start; the data of each key is a function of the event mask.
        """
        self._clock = clock
        self._selector = selector
        self._telling = Telling(take, clock)
        self._resume_at: float | None = None
        self._looks = 0
        self._look_at = clock.monotonic() + EARLY_SECONDS
        earlier = {record.name: record for record in remembered}
        self.heartbeat = Heartbeat(clock, selector)
        """Shows whether the machine runs processes on time during a long call."""
        self._blames: dict[str, Blame] = {}
        self._readers: dict[str, Reader] = {}
        for plan in plans:
            name, looks = plan.backend, surroundings()
            blame = self._blames[name] = Blame(name, clock, looks, self.heartbeat)
            self._readers[name] = Reader(plan, clock, selector, self._telling, blame, looks, earlier.get(name))

    def handle(self, key: selectors.SelectorKey, mask: int) -> None:
        """Handle the messages of a child."""
        key.data(mask)

    def tick(self) -> None:
        """Execute everything that is due: start children, request rounds, end children past their deadline.

        An exception of one reader does not stop the others: RuntimeError is raised after all had their turn.
        """
        try:
            self._turn()
        finally:
            self._telling.end_turn()

    def _turn(self) -> None:
        if self._resume_at is not None and self._clock.monotonic() >= self._resume_at:
            self.resume()
        anew = [reader for reader in self._readers.values() if reader.rounds.listed_anew]
        if anew:
            for reader in anew:
                reader.rounds.listed_anew = False
            self._look_again(self._readers)
        if self._clock.monotonic() >= self._look_at:
            self._looks += 1
            wait = EARLY_SECONDS if self._looks < EARLY_LOOKS else RETRY_SECONDS
            self._look_at = self._clock.monotonic() + wait
            self._look_again(self._shown())
        turns = [self.heartbeat.tick, *(reader.tick for reader in self._readers.values())]
        bugs = [done for done in map(attempt, turns) if isinstance(done, Bug)]
        if bugs:
            raise RuntimeError(str(bugs[0]))

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in the clock's monotonic seconds."""
        waits = any(self._readers[name].status.state is ReaderState.ABSENT for name in self._shown())
        look_at = self._look_at if waits else None
        beat = self.heartbeat.next_deadline
        candidates = [self._resume_at, look_at, beat, *(reader.next_deadline for reader in self._readers.values())]
        return min((when for when in candidates if when is not None), default=None)

    @property
    def statuses(self) -> tuple[ReaderStatus, ...]:
        """Return the status of each reader, in the order of the plans."""
        return tuple(reader.status for reader in self._readers.values())

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return every device that a reader listed, including readers that are down now."""
        return tuple(device for reader in self._readers.values() for device in reader.rounds.devices)

    @property
    def records(self) -> tuple[ChildRecord, ...]:
        """Return the processes to remember: the next agent starts no reader beside them."""
        return tuple(reader.record for reader in self._readers.values() if reader.record is not None)

    @property
    def falls(self) -> tuple[Fall, ...]:
        """Return the recent failures that count against drivers, for ``recall`` of the next agent."""
        return tuple(fall for blame in self._blames.values() for fall in blame.falls)

    def recall(self, falls: Iterable[Fall]) -> None:
        """Restore *falls* of an earlier agent: after its restart, a second failure still counts as the second."""
        known = tuple(falls)
        for blame in self._blames.values():
            blame.recall(known)

    @property
    def settled(self) -> bool:
        """Return whether every reader has answered what was due, or cannot."""
        return not self.unsettled

    @property
    def unsettled(self) -> tuple[ReaderStatus, ...]:
        """Return the status of those readers that still have results to report soon."""
        return tuple(reader.status for reader in self._readers.values() if not reader.settled)

    @property
    def at_rest(self) -> bool:
        """Return whether no child runs, except those that cannot be killed."""
        return all(reader.at_rest for reader in self._readers.values())

    def ask(self, group: str | None = None) -> None:
        """Make *group* (or every group) of every backend due now."""
        for reader in self._readers.values():
            reader.rounds.ask(group)

    def retry(self) -> None:
        """Start every reader that waits for its next start at once."""
        for reader in self._readers.values():
            reader.retry()

    def release(self, seconds: float | None = None) -> None:
        """Close every handle of a device within five seconds; read again after *seconds*, or on ``resume``."""
        self._resume_at = None if seconds is None else self._clock.monotonic() + seconds
        for reader in self._readers.values():
            reader.release()

    def resume(self) -> None:
        """Read released devices again."""
        self._resume_at = None
        for reader in self._readers.values():
            reader.resume()

    def stop(self) -> None:
        """Begin to close every reader; ``at_rest`` within 1.5 s if the loop goes on."""
        self._resume_at = None
        self.heartbeat.stop()
        for reader in self._readers.values():
            reader.stop()

    def _shown(self) -> set[str]:
        """Return the backends whose accelerators another reader (the host's) lists: they should not stay absent."""
        vendors = {device.vendor for device in self.devices if device.kind is DeviceKind.ACCELERATOR}
        return vendors & self._readers.keys()

    def _look_again(self, backends: Iterable[str]) -> None:
        for backend in backends:
            self._readers[backend].look_again()

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Run the loop until *done* or for *seconds*; return whether it is done. For one-shot commands.

        All of it counts as one turn for the limits of events and log lines.
        """
        end = self._clock.monotonic() + seconds
        while True:
            self._turn()
            now = self._clock.monotonic()
            if done() or now >= end:
                self._telling.end_turn()
                return done()
            wake = min(end, now + LONGEST_WAIT_SECONDS, self.next_deadline or end)
            for key, mask in self._selector.select(max(0.0, wake - now)):
                self.handle(key, mask)
