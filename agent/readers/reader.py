"""One reader: the child that reads a backend, asked round by round, and what becomes of it when it does not answer.

A reader is a state machine without waits: the supervisor calls ``tick`` when a deadline passes, the selector calls
back when the child says something. What goes wrong is told twice, as the reader's status and as a failed sample of
each device that could not be read, so that nothing looks healthy because nobody looked.
"""

from __future__ import annotations

import re
import selectors
from collections.abc import Iterable
from enum import Enum

import msgspec

from nodevet.agent.child_process import Child, Exit, Patience
from nodevet.agent.clock import Clock
from nodevet.agent.processes import ChildRecord
from nodevet.agent.readers.outbox import Outbox
from nodevet.agent.readers.plan import ReaderPlan
from nodevet.agent.readers.predecessor import Predecessor
from nodevet.agent.readers.quarantine import Quarantine
from nodevet.agent.readers.schedule import Schedule
from nodevet.checks.model import (
    Device,
    Failure,
    FailureKind,
    Instant,
    ReaderState,
    ReaderStatus,
    Sample,
)
from nodevet.checks.wire import (
    PROTOCOL,
    Failed,
    Happened,
    Message,
    Note,
    Read,
    Ready,
    RoundDone,
    Sampled,
    Start,
)

__all__ = ["RETRY_SECONDS", "Reader", "ReaderPlan"]

FIRST_RESTART_SECONDS = 1.0
LONGEST_RESTART_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""A reader that served so long starts again from the shortest wait."""

RETRY_SECONDS = 300.0
LONGEST_RETRY_SECONDS = 1800.0
"""When to look again for a vendor's library or devices that were not there: ever later, for they seldom come."""

LINES_PER_ROUND = 20

HELD_UP_SECONDS = 1.0
"""An agent that looks at a deadline later than this was held up itself, as on a paused machine, and its child too."""

STOP = Patience(terminate=0.6, kill=0.9, abandon=1.3)
RELEASE = Patience(terminate=3.0, kill=4.0, abandon=5.0)
PAST_DEADLINE = Patience(terminate=0.0, kill=0.3, abandon=2.0)

PCI_ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")

ABSENT = frozenset({FailureKind.NO_LIBRARY, FailureKind.NO_DRIVER, FailureKind.NO_DEVICES})
FALLEN = frozenset({FailureKind.HUNG, FailureKind.STUCK, FailureKind.CRASHED})


class Phase(Enum):
    """What the reader's process does."""

    NONE = "none"
    LOADING = "loading"
    SERVING = "serving"
    ENDING = "ending"
    STUCK = "stuck"


class Wish(Enum):
    """What the agent wants of the reader."""

    READ = "read"
    RELEASE = "release"
    STOP = "stop"


class _Round(msgspec.Struct):
    """The round that is being answered: devices still to come, in order, and until when the next must be done."""

    group: str
    number: int
    began: float
    deadline: float
    left: list[str]
    extended: bool = False


class _Outcome(msgspec.Struct, frozen=True):
    """What to say and do once the present process is gone."""

    state: ReaderState
    detail: str
    failure: Failure | None
    restart_after_seconds: float | None


class Reader:
    """Reads one backend through a child process. Everything that it finds goes to the *outbox*."""

    def __init__(
        self,
        plan: ReaderPlan,
        clock: Clock,
        selector: selectors.BaseSelector,
        outbox: Outbox,
        earlier: ChildRecord | None = None,
    ) -> None:
        """Prepare to read; the child starts at the first tick. *earlier* is a reader that outlived its agent."""
        self._plan = plan
        self._clock = clock
        self._selector = selector
        self._outbox = outbox
        self._predecessor = Predecessor(earlier, clock) if earlier else None
        self._child: Child | None = None
        self._phase = Phase.NONE
        self._wish = Wish.READ
        self._outcome: _Outcome | None = None
        self._start_at: float | None = clock.monotonic()
        self._start_deadline = 0.0
        self._serving_since = 0.0
        self._falls = 0
        self._absences = 0
        self._round: _Round | None = None
        self._schedules = {group: Schedule(cadence, clock.monotonic()) for group, cadence in plan.cadences.items()}
        self._quarantine = Quarantine()
        self._guilty: str | None = None
        self._lines_left = LINES_PER_ROUND
        self._state = ReaderState.STARTING
        self._detail = ""
        self._failure: Failure | None = None
        self._starts = 0
        self._hangs = 0
        self._crashes = 0
        self._last_round: Instant | None = None
        self._versions: dict[str, str] = {}
        self._groups: tuple[str, ...] = ()
        self._devices: tuple[Device, ...] = ()

    # What others may ask.

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the devices as last listed; they stay known while their reader is down."""
        return self._devices

    @property
    def status(self) -> ReaderStatus:
        """Return how the reader does."""
        return ReaderStatus(
            backend=self._plan.backend,
            state=self._state,
            detail=self._child.call if self._child and self._state is ReaderState.STARTING else self._detail,
            pid=self.record.pid if self.record else None,
            starts=self._starts,
            hangs=self._hangs,
            crashes=self._crashes,
            last_round=self._last_round,
            failure=self._failure,
            versions=self._versions,
            quarantined=tuple(self._quarantine.skipped),
            required=self._plan.required,
        )

    @property
    def record(self) -> ChildRecord | None:
        """Return the process to remember over a restart of the agent; None where there is none."""
        if self._child:
            return self._child.record
        return self._predecessor.record if self._predecessor else None

    @property
    def settled(self) -> bool:
        """Return whether nothing is to be expected soon: every due round is answered, or none can be."""
        now = self._clock.monotonic()
        if self._phase is Phase.SERVING:
            return self._round is None and not any(entry.due <= now for entry in self._offered())
        if self._phase is Phase.STUCK or self._wish is not Wish.READ:
            return self.at_rest
        if self._predecessor is not None:
            return self._state is ReaderState.STUCK
        return (
            self._phase is Phase.NONE and self._start_at is not None and self._start_at > now + LONGEST_RESTART_SECONDS
        )

    @property
    def at_rest(self) -> bool:
        """Return whether no process of this reader runs, or one that cannot be helped."""
        return self._phase in (Phase.NONE, Phase.STUCK)

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        candidates = [self._child.next_deadline if self._child else None]
        if self._phase is Phase.LOADING:
            candidates.append(self._start_deadline)
        if self._phase is Phase.SERVING:
            due = min((entry.due for entry in self._offered()), default=None)
            candidates.append(self._round.deadline if self._round else due)
            candidates.append(self._quarantine.next_deadline)
        elif self._wish is Wish.READ:
            candidates.append(self._start_at)
            candidates += [entry.given_up for entry in self._missable().values()]
        return min((when for when in candidates if when is not None), default=None)

    # What others may wish.

    def ask(self, group: str | None = None) -> None:
        """Make *group* (or every group) due now."""
        for name, schedule in self._schedules.items():
            if group in (None, name):
                schedule.due = self._clock.monotonic()

    def stop(self, patience: Patience = STOP) -> None:
        """Close the reader for good, within the *patience*."""
        self._close(Wish.STOP, ReaderState.STOPPED, patience)

    def release(self) -> None:
        """Close every handle of a device until ``resume``; a reader that holds none goes on."""
        if self._plan.holds_devices and self._wish is Wish.READ:
            self._close(Wish.RELEASE, ReaderState.RELEASED, RELEASE)

    def resume(self) -> None:
        """Read again after a release."""
        if self._wish is Wish.RELEASE:
            self._wish = Wish.READ
            self._start_at = self._clock.monotonic()
            self.ask()
            if self._phase is Phase.NONE:
                self._say(self._state_before_answer, "")

    def retry(self) -> None:
        """Start at once where a start is waited for: somebody says that a driver was installed."""
        if self._wish is Wish.READ and self._start_at is not None:
            self._start_at = self._clock.monotonic()

    def look_again(self) -> None:
        """Start at once where the vendor was absent: another reader shows that it should be there."""
        if self._state is ReaderState.ABSENT:
            self.retry()

    def tick(self) -> None:
        """Do what is due."""
        now = self._clock.monotonic()
        if self._child:
            self._child.tick()
        if self._child and self._phase is Phase.LOADING and now >= self._start_deadline:
            self._child.hear_out()
        if self._phase is Phase.LOADING and now >= self._start_deadline:
            self._hung(self._plan.start_deadline_seconds)
        elif self._phase is Phase.SERVING:
            self._tick_serving(now)
        elif self._phase is Phase.NONE and self._wish is Wish.READ:
            self._tick_absent(now)
        if self._phase is not Phase.SERVING and self._wish is Wish.READ:
            self._tell_missed_rounds(now)

    # What the child tells.

    def on_message(self, message: Message) -> None:
        """Take a message of the child; one that it may not send now ends it."""
        match message:
            case Note():
                self._note(message.level, message.event, **message.fields)
            case Happened() if self._phase is Phase.SERVING:
                self._outbox.event(message.event)
            case Ready() if self._phase is Phase.LOADING:
                self._on_ready(message)
            case Failed() if self._phase in (Phase.LOADING, Phase.SERVING):
                self._on_failed(message.failure)
            case Sampled() if self._phase is Phase.SERVING:
                self._on_sampled(message.sample)
            case RoundDone() if self._phase is Phase.SERVING:
                self._on_round_done(message)
            case _ if self._phase is not Phase.ENDING:
                self.on_nonsense(f"{type(message).__name__} while {self._phase.value}")

    def on_line(self, line: str) -> None:
        """Pass a line of the child's standard error to the log, a few per round."""
        if self._lines_left > 0:
            self._note("info", "reader said", line=line)
        self._lines_left -= 1

    def on_nonsense(self, detail: str) -> None:
        """End a child that breaks the protocol."""
        if self._phase in (Phase.LOADING, Phase.SERVING):
            self._fell(FailureKind.CRASHED, f"the reader broke the protocol: {detail}")
            self._finish(PAST_DEADLINE, ask=False)

    def on_stuck(self) -> None:
        """Give up a child that cannot be killed; no other is started while it lives."""
        assert self._child is not None
        self._phase = Phase.STUCK
        detail = f"{self._child.call} cannot be ended ({self._child.where}); no second reader is started beside it"
        self._say(ReaderState.STUCK, detail, Failure(FailureKind.STUCK, detail))
        self._note("error", "reader is stuck", detail=detail)

    def on_end(self, ended: Exit) -> None:
        """Learn that the process is gone, and plan what follows."""
        assert self._child is not None
        if self._phase in (Phase.LOADING, Phase.SERVING):
            last = f"; it said last: {self._child.tail[-1]}" if self._child.tail else ""
            self._fell(FailureKind.CRASHED, f"the reader {ended} in: {self._child.call}{last}")
        outcome, self._outcome, self._child, self._phase = self._outcome, None, None, Phase.NONE
        if self._wish is Wish.STOP:
            self._say(ReaderState.STOPPED, "")
        elif self._wish is Wish.RELEASE:
            self._say(ReaderState.RELEASED, "no handle of a device is open")
        elif outcome is not None:
            self._say(outcome.state, outcome.detail, outcome.failure)
            self._start_at = self._in(outcome.restart_after_seconds)

    def _on_ready(self, ready: Ready) -> None:
        if ready.protocol != PROTOCOL:
            detail = f"reader speaks protocol {ready.protocol}, agent {PROTOCOL}: restart the agent after the upgrade"
            self._on_failed(Failure(FailureKind.VERSION_MISMATCH, detail))
            return
        if not ready.devices:
            self._on_failed(Failure(FailureKind.NO_DEVICES, f"backend {self._plan.backend} lists no device"))
            return
        self._phase = Phase.SERVING
        self._serving_since = self._clock.monotonic()
        self._absences = 0
        self._groups = ready.groups
        self._versions = ready.versions
        self._list_devices(ready.devices)
        self._say(ReaderState.RUNNING, "")

    def _on_failed(self, failure: Failure) -> None:
        """Take back a backend that cannot load, or that lost its library; look again later."""
        never_there = failure.kind in ABSENT and not self._devices
        state = ReaderState.ABSENT if never_there else ReaderState.FAILED
        self._absences = self._absences + 1 if never_there and not self._plan.required else 0
        again = min(RETRY_SECONDS * 2.0 ** max(self._absences - 1, 0), LONGEST_RETRY_SECONDS)
        wait = again if self._phase is Phase.LOADING and not self._devices else self._next_wait()
        self._abort_round()
        self._say(state, failure.detail, failure)
        self._outcome = _Outcome(state, failure.detail, failure, wait)
        self._finish(RELEASE, ask=True)

    def _on_sampled(self, sample: Sample) -> None:
        current = self._round
        if current is None or sample.group != current.group or sample.device not in current.left:
            self.on_nonsense(f"a sample of {sample.device}, {sample.group}, that was not asked for")
            return
        now = self._clock.monotonic()
        current.left.remove(sample.device)
        current.began = now
        current.deadline = now + self._schedules[current.group].cadence.deadline_seconds
        self._quarantine.acquit(sample.device, now)
        self._outbox.samples.append(sample)

    def _on_round_done(self, done: RoundDone) -> None:
        current = self._round
        if current is None or (done.group, done.round) != (current.group, current.number) or current.left:
            self.on_nonsense(f"the end of a round of {done.group} that is not at its end")
            return
        self._round = None
        self._lines_left = LINES_PER_ROUND
        self._last_round = self._clock.instant()
        for device, failure in self._quarantine.skipped.items():
            self._tell_failure(device, current.group, current.number, failure)
        if done.devices is not None:
            self._list_devices(done.devices)
        if self._clock.monotonic() - self._serving_since >= STEADY_SECONDS:
            self._falls = 0
        self._tick_serving(self._clock.monotonic())  # another group may have waited for this round to end

    # What is due.

    def _tick_serving(self, now: float) -> None:
        if self._round is not None:
            if now >= self._round.deadline and not self._answers_after_all(self._round, now):
                self._hung(now - self._round.began)
            return
        if self._quarantine.try_again(now):
            self._outcome = _Outcome(ReaderState.STARTING, "tries a quarantined device again", None, 0.0)
            self._finish(RELEASE, ask=True)
            return
        for schedule in self._offered():
            if schedule.due <= now:
                self._ask_round(schedule, now)
                return

    def _answers_after_all(self, current: _Round, now: float) -> bool:
        """Return whether the child has spoken, or deserves more time because this very agent was held up."""
        assert self._child is not None
        left = len(current.left)
        self._child.hear_out()
        if self._round is not current or len(current.left) < left or self._phase is not Phase.SERVING:
            return True
        if now - current.deadline > HELD_UP_SECONDS and not current.extended:
            current.extended = True
            current.deadline = now + HELD_UP_SECONDS
            return True
        return False

    def _ask_round(self, schedule: Schedule, now: float) -> None:
        assert self._child is not None
        group = next(name for name, entry in self._schedules.items() if entry is schedule)
        schedule.advance(now)
        deadline = now + schedule.cadence.deadline_seconds
        self._round = _Round(group, schedule.number, now, deadline, self._reading_order())
        self._child.send(Read(group, schedule.number))

    def _reading_order(self) -> list[str]:
        """Return the devices in the order in which the child reads them."""
        skipped, suspects = self._quarantine.skipped, self._quarantine.suspects
        wanted = [device.id for device in self._devices if device.id not in skipped]
        return sorted(wanted, key=lambda device: device in suspects)

    def _tick_absent(self, now: float) -> None:
        if self._predecessor is not None:
            self._predecessor.tick(now)
            if not self._predecessor.gone:
                self._say(self._predecessor.state, self._predecessor.detail, self._predecessor.failure)
                self._start_at = now + FIRST_RESTART_SECONDS
                return
            self._predecessor = None
        if self._start_at is not None and now >= self._start_at:
            self._start(now)

    def _start(self, now: float) -> None:
        self._start_at = None
        self._starts += 1
        self._lines_left = LINES_PER_ROUND
        try:
            self._child = Child(
                self._plan.backend,
                self._plan.argv,
                self._selector,
                self,
                self._clock,
                environment=self._plan.environment,
            )
        except OSError as error:
            detail = f"the reader cannot be started: {error}"
            self._say(ReaderState.CRASHED, detail, Failure(FailureKind.CRASHED, detail))
            self._start_at = now + self._next_wait()
            return
        self._phase = Phase.LOADING
        self._start_deadline = now + self._plan.start_deadline_seconds
        self._state = self._state_before_answer
        skipped = self._quarantine.skipped
        addresses = (device.pci for device in self._devices if device.id in skipped and device.pci)
        self._child.send(
            Start(
                self._plan.stand_in or self._plan.backend,
                root=self._plan.root,
                skip=(*skipped, *addresses),
                last=self._quarantine.suspects,
                options=dict(self._plan.options),
            )
        )

    # What went wrong.

    def _hung(self, seconds: float) -> None:
        """Tell that a call did not return, and force the child to end."""
        assert self._child is not None
        self._hangs += 1
        detail = f"{self._child.call} has not returned for {seconds:.1f} s ({self._child.where})"
        self._fell(FailureKind.HUNG, detail)
        self._finish(PAST_DEADLINE, ask=False)

    def _fell(self, kind: FailureKind, detail: str) -> None:
        """Note that the reader went down, charge the device it was busy with, and plan the restart."""
        self._crashes += kind is FailureKind.CRASHED
        assert self._child is not None
        failure = Failure(kind, detail)
        device = self._guilty = self._blamed(self._child.call)
        if device is not None:
            self._quarantine.charge(device, failure, self._clock.monotonic())
            for group in {self._round.group} if self._round else self._missable():
                self._tell_failure(device, group, self._schedules[group].number, failure)
        state = ReaderState.HUNG if kind is FailureKind.HUNG else ReaderState.CRASHED
        self._abort_round()
        self._say(state, detail, failure)
        # Where a device is to blame its quarantine spares the driver; its siblings should not wait for that.
        wait = self._next_wait() if device is None else FIRST_RESTART_SECONDS
        self._outcome = _Outcome(state, detail, failure, wait)
        self._note("error", f"reader {state.value}", detail=detail, device=device or "")

    def _blamed(self, call: str) -> str | None:
        """Return the device that the child was busy with: the next of the round, else the one that *call* names.

        A device that was never listed is known by its PCI address. One that nothing names is nobody's fault.
        """
        if self._round is not None and self._round.left:
            return self._round.left[0]
        for device in self._devices:
            if any(name in call for name in (device.uuid, device.pci) if name):
                return device.id
        address = PCI_ADDRESS.search(call)
        return address.group() if address else None

    def _tell_missed_rounds(self, now: float) -> None:
        """Say of every known device that it was not read, once per round that could not even be asked for."""
        for group, schedule in self._missable().items():
            if now < schedule.given_up:
                continue
            schedule.advance(now)
            for device in self._devices:
                failure = self._quarantine.skipped.get(device.id) or self._missed(device)
                self._tell_failure(device.id, group, schedule.number, failure)

    def _missed(self, device: Device) -> Failure:
        """Return why *device* is not read now: a device is not charged with what another one did to the reader."""
        if self._failure is None:
            return Failure(FailureKind.ERROR, "the reader has not started yet")
        if self._failure.kind in FALLEN and device.id != self._guilty:
            return Failure(FailureKind.ERROR, f"the reader is {self._state.value}: {self._failure.detail}")
        return self._failure

    def _tell_failure(self, device: str, group: str, number: int, failure: Failure) -> None:
        """Add a failed sample; a device that was never listed has none, it is only named in the status."""
        if all(known.id != device for known in self._devices):
            return
        instant = self._clock.instant()
        simulated = self._plan.stand_in is not None
        self._outbox.samples.append(
            Sample(self._plan.backend, group, device, number, instant, 0.0, failure=failure, simulated=simulated)
        )

    # Small steps.

    @property
    def _state_before_answer(self) -> ReaderState:
        """Return what a reader is that was started: a vendor that was absent is so until something else is known."""
        return ReaderState.ABSENT if self._absences else ReaderState.STARTING

    def _offered(self) -> Iterable[Schedule]:
        """Return the schedules of the groups that the backend has."""
        return [entry for group, entry in self._schedules.items() if group in self._groups]

    def _missable(self) -> dict[str, Schedule]:
        """Return the schedules whose rounds are told as missed: before the first start nothing is known to be."""
        known = self._groups if self._devices else ()
        return {group: entry for group, entry in self._schedules.items() if group in known}

    def _abort_round(self) -> None:
        """Make the round that was not finished due again at once."""
        if self._round is not None:
            self._schedules[self._round.group].due = self._clock.monotonic()
            self._round = None

    def _close(self, wish: Wish, state: ReaderState, patience: Patience) -> None:
        self._wish = wish
        self._round = None
        self._start_at = None
        if self._phase is Phase.NONE:
            self._say(state, "")
        elif self._phase is not Phase.STUCK:
            self._finish(patience, ask=True)

    def _finish(self, patience: Patience, *, ask: bool) -> None:
        assert self._child is not None
        self._phase = Phase.ENDING
        self._child.finish(patience, ask=ask)

    def _list_devices(self, devices: tuple[Device, ...]) -> None:
        """Keep *devices*, and quarantined ones that the backend could not list without touching them."""
        listed = {device.id for device in devices}
        left_alone = [
            device for device in self._devices if device.id in self._quarantine.skipped and device.id not in listed
        ]
        together = (*devices, *left_alone)
        if together != self._devices:
            self._outbox.listed_anew = self._outbox.listed_anew or bool(self._devices)
            self._devices = together
            self._outbox.inventory_changed = True

    def _note(self, level: str, event: str, **fields: str) -> None:
        self._outbox.note(level, event, {**fields, "backend": self._plan.backend})

    def _say(self, state: ReaderState, detail: str, failure: Failure | None = None) -> None:
        self._state, self._detail, self._failure = state, detail, failure

    def _in(self, seconds: float | None) -> float | None:
        return None if seconds is None else self._clock.monotonic() + seconds

    def _next_wait(self) -> float:
        """Return the seconds to wait before the next start, twice as long each time."""
        wait = min(FIRST_RESTART_SECONDS * 2.0**self._falls, LONGEST_RESTART_SECONDS)
        self._falls += 1
        return wait
