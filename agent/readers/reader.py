"""One reader: the child process that reads a backend round by round, and its failures.

A reader is a state machine that never blocks: the supervisor calls ``tick`` when a deadline passes, the selector calls
back when the child sends a message. A failure is reported twice, as the reader's status and as a failed sample of each
device that could not be read, so that no device looks healthy because it was not read.
"""

from __future__ import annotations

import math
import selectors
from collections.abc import Iterable

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import NEVER, Device, Failure, FailureKind, Instant, ReaderState, ReaderStatus, Sample
from nodevet.checks.core.wire import PROTOCOL, EventMessage, Failed, Note, Read, Ready, RoundDone, Sampled, Start
from nodevet.checks.ipc.child_process import Child, Patience
from nodevet.checks.system.process import Exit
from nodevet.checks.system.procfs import ChildRecord

from .at_work import device_at_work
from .blame import Blame, Fallen, no_start, stuck_seconds
from .calls_of_users import LeftOut
from .orphan import Orphan
from .quarantine import Quarantine
from .stages import (
    ABSENT,
    FIRST_RESTART_SECONDS,
    HELD_UP_SECONDS,
    LINES_PER_ROUND,
    LONGEST_RESTART_SECONDS,
    LONGEST_RETRY_SECONDS,
    PAST_DEADLINE,
    RELEASE,
    RETRY_SECONDS,
    STEADY_SECONDS,
    STOP,
    Outcome,
    Phase,
    Round,
    Schedule,
    Wish,
)
from .telling import Listed, Telling
from .unread import seen_at, unread, why_unread
from .witness import Surroundings


class Reader:
    """Reads one backend through a child process, and reports all results."""

    def __init__(
        self,
        plan: ReaderPlan,
        clock: Clock,
        selector: selectors.BaseSelector,
        telling: Telling,
        blame: Blame,
        surroundings: Surroundings,
        earlier: ChildRecord | None = None,
    ) -> None:
        """Prepare to read; the child starts at the first tick. *earlier* is a reader process of an earlier agent.

        *blame* decides the cause of a failure, *surroundings* whether the machine keeps a child from exiting.
        """
        self._plan = plan
        self._clock = clock
        self._selector = selector
        self._telling = telling
        self.listed_anew = False
        """Whether the list of devices changed since the other readers were informed."""
        self._blame = blame
        self._deadline = min((entry.deadline_seconds for entry in plan.cadences.values()), default=1.0)
        self._stuck_seconds = stuck_seconds(self._deadline, plan.start_deadline_seconds)
        self._orphan = Orphan(earlier, clock, surroundings, self._stuck_seconds) if earlier else None
        self._child: Child | None = None
        self._phase = Phase.NONE
        self._wish = Wish.READ
        self._outcome: Outcome | None = None
        self._start_at: float | None = clock.monotonic()
        self._start_deadline = self._stuck_look = 0.0
        self._falls = self._absences = self._refusals = self._starts = self._hangs = self._crashes = 0
        self._round: Round | None = None
        self._schedules = {group: Schedule(cadence, clock.monotonic()) for group, cadence in plan.cadences.items()}
        self._quarantine = Quarantine()
        self._left_out = LeftOut()
        self._guilty: str | None = None
        self._lines_left = LINES_PER_ROUND
        self._state = ReaderState.STARTING
        self._detail = ""
        self._failure: Failure | None = None
        self._last_round: Instant | None = None
        self._looked: Instant | None = None
        self._since: Instant | None = None
        self._versions: dict[str, str] = {}
        self._groups: tuple[str, ...] = ()
        self.devices: tuple[Device, ...] = ()
        """The devices as last listed; they stay known while their reader is down."""

    @property
    def status(self) -> ReaderStatus:
        """Return the status of the reader."""
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
            left_alone={device: failure.detail for device, failure in self._quarantine.skipped.items()},
            required=self._plan.required,
            witnessed=self._blame.witnessed,
            blamed=self._blame.of_devices,
            refusals=self._refusals,
            since=self._since if self._phase is Phase.SERVING else None,
            looked=self._looked,
        )

    @property
    def record(self) -> ChildRecord | None:
        """Return the process to remember across a restart of the agent; None if there is none."""
        if self._child:
            return self._child.record
        return self._orphan.record if self._orphan else None

    @property
    def settled(self) -> bool:
        """Return whether no result is expected soon: every due round is answered, or cannot be."""
        now = self._clock.monotonic()
        if self._phase is Phase.SERVING:
            return self._round is None and not any(entry.due <= now for entry in self._offered())
        if self._phase is Phase.STUCK or self._wish is not Wish.READ:
            return self.at_rest
        if self._orphan is not None:
            return self._state is ReaderState.STUCK
        waits_long = self._start_at is not None and self._start_at > now + LONGEST_RESTART_SECONDS
        return self._phase is Phase.NONE and waits_long

    @property
    def at_rest(self) -> bool:
        """Return whether no process of this reader runs, or only one that cannot be killed."""
        return self._phase in (Phase.NONE, Phase.STUCK)

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        candidates = [self._child.next_deadline if self._child else None]
        if self._phase is Phase.STUCK:
            candidates.append(self._stuck_look)
        if self._phase is Phase.LOADING:
            candidates.append(self._blame.look_at(self._start_deadline, self._plan.start_deadline_seconds))
        if self._phase is Phase.SERVING:
            due = min((entry.due for entry in self._offered()), default=None)
            current = self._round
            candidates.append(self._blame.look_at(current.deadline, self._patience(current)) if current else due)
            candidates += [self._quarantine.next_deadline, self._left_out.next_deadline]
        elif self._wish is Wish.READ:
            candidates.append(self._start_at)
            candidates += [entry.given_up for entry in self._missable().values()]
        return min((when for when in candidates if when is not None), default=None)

    # Requests of the agent.

    def ask(self, group: str | None = None) -> None:
        """Make *group* (or every group) due now."""
        for name, schedule in self._schedules.items():
            if group in (None, name):
                schedule.due = self._clock.monotonic()

    def stop(self, patience: Patience = STOP) -> None:
        """Close the reader permanently, within the *patience*."""
        self._close(Wish.STOP, ReaderState.STOPPED, patience)

    def release(self) -> None:
        """Close every handle of a device until ``resume``; a reader that holds none continues."""
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
        """Start at once instead of waiting for the next start: an operator reports that a driver was installed."""
        if self._wish is Wish.READ and self._start_at is not None:
            self._start_at = self._clock.monotonic()

    def look_again(self) -> None:
        """Start at once if the vendor was absent or refused: another reader lists devices of it."""
        if self._state in (ReaderState.ABSENT, ReaderState.FAILED):
            self.retry()

    def tick(self) -> None:
        """Execute everything that is due."""
        now = self._clock.monotonic()
        if self._child:
            self._child.tick()
        self._mend(now)
        if self._phase is Phase.LOADING:
            self._tick_loading(now)
        elif self._phase is Phase.STUCK:
            self._tick_stuck(now)
        elif self._phase is Phase.SERVING:
            self._tick_serving(now)
        elif self._phase is Phase.NONE and self._wish is Wish.READ:
            self._tick_absent(now)
        if self._phase is not Phase.SERVING and self._wish is Wish.READ:
            self._tell_missed_rounds(now)

    # Messages of the child.

    def on_message(self, message: object) -> None:
        """Handle a message of the child; end the child if the message is not allowed now."""
        match message:
            case Note():
                self._note(message.level, message.event, **message.fields)
            case EventMessage() if self._phase in (Phase.SERVING, Phase.ENDING):  # reported once, also during exit
                self._telling.event(message.event)
            case Ready() if self._phase is Phase.LOADING:
                self._on_ready(message)
            case Failed() if self._phase in (Phase.LOADING, Phase.SERVING):
                self._on_failed(self._blame.of_all(self._child, message.failure))
            case Sampled() if self._phase is Phase.SERVING:
                self._on_sampled(message.sample)
            case RoundDone() if self._phase is Phase.SERVING:
                self._on_round_done(message)
            case _ if self._phase is not Phase.ENDING:
                self.on_nonsense(f"{type(message).__name__} while {self._phase.value}")

    def on_line(self, line: str) -> None:
        """Pass a line of the child's standard error to the log, up to a limit per round; the others are counted."""
        self._telling.line(self._plan.backend, line, room=self._lines_left > 0)
        self._lines_left -= 1

    def on_nonsense(self, detail: str) -> None:
        """End a child that breaks the protocol."""
        if self._phase in (Phase.LOADING, Phase.SERVING):
            self._crashes += 1
            self._fell(self._blame.broke_protocol(detail), ReaderState.CRASHED)
            self._finish(PAST_DEADLINE, ask=False)

    def on_unreadable(self, detail: str) -> None:
        """Continue after one undecodable message: a device without a sample in this round is reported as unread."""
        self._note("error", "message ignored", detail=detail)
        if self._round is not None:
            self._round.unreadable = detail
        elif self._phase is Phase.LOADING:
            self.on_nonsense(detail)

    def on_stuck(self) -> None:
        """Give up a child that cannot be killed; no other child is started while it lives."""
        self._phase = Phase.STUCK
        self._look_at_stuck(self._clock.monotonic())
        self._note("error", "collector is stuck", detail=self._detail)

    def on_end(self, ended: Exit) -> None:
        """Handle the exit of the process, and plan the next step."""
        assert self._child is not None
        if self._phase in (Phase.LOADING, Phase.SERVING):
            self._crashes += 1
            self._fell(self._blame.ended(self._child, ended), ReaderState.CRASHED)
        self._blame.record_success()
        outcome, self._outcome, self._child, self._phase = self._outcome, None, None, Phase.NONE
        if self._wish is Wish.STOP:
            self._say(ReaderState.STOPPED, "")
        elif self._wish is Wish.RELEASE:
            self._say(ReaderState.RELEASED, "no handle of a device is open")
        elif outcome is not None:
            self._say(outcome.state, outcome.detail, outcome.failure)
            self._start_at = self._clock.monotonic() + outcome.restart_after_seconds

    def _on_ready(self, ready: Ready) -> None:
        if ready.protocol != PROTOCOL:
            detail = (
                f"collector speaks protocol {ready.protocol}, agent {PROTOCOL}: restart the agent after the upgrade"
            )
            self._on_failed(Failure(FailureKind.READER, detail))
            return
        if not ready.devices and not self._quarantine.skipped:  # otherwise all devices were to be skipped
            self._on_failed(Failure(FailureKind.NO_DEVICES, f"backend {self._plan.backend} lists no device"))
            return
        assert self._child is not None
        self._blame.record_success()
        self._blame.loaded(self._child)
        self._since = self._clock.instant()
        self._absences = self._refusals = 0
        self._groups = ready.groups
        self._versions = ready.versions
        self._list_devices(ready.devices)
        self._say(ReaderState.RUNNING, "")
        self._phase = Phase.SERVING

    def _on_failed(self, failure: Failure) -> None:
        """Handle a backend that cannot load or lost its library; try again later."""
        self._refusals += 1
        self._looked = self._clock.instant()
        never_there = failure.kind in ABSENT and not self.devices
        state = ReaderState.ABSENT if never_there else ReaderState.FAILED
        self._absences = self._absences + 1 if never_there and not self._plan.required else 0
        again = min(RETRY_SECONDS * 2.0 ** max(self._absences - 1, 0), LONGEST_RETRY_SECONDS)
        seldom = self._phase is Phase.LOADING and not self.devices and failure.kind is not FailureKind.READER
        wait = again if seldom else self._next_wait()
        self._abort_round()
        self._say(state, failure.detail, failure)
        self._outcome = Outcome(state, failure.detail, failure, wait)
        self._finish(RELEASE, ask=True)

    def _on_sampled(self, sample: Sample) -> None:
        current = self._round
        if current is None or sample.group != current.group or sample.device not in current.left:
            self.on_nonsense(f"a sample of {sample.device}, {sample.group}, that was not asked for")
            return
        now = self._clock.monotonic()
        self._blame.record_success()
        current.left.remove(sample.device)
        current.began = now
        current.deadline = now + self._schedules[current.group].cadence.deadline_seconds
        self._quarantine.record_success(sample.device, now)
        self._telling.take(sample if sample.failure is None else self._blame.of_one(self._child, sample))

    def _on_round_done(self, done: RoundDone) -> None:
        current = self._round
        if current is not None and current.unreadable:
            for device in current.left:
                self._tell_failure(device, current.group, current.number, self._blame.lost_words(current.unreadable))
            current.left.clear()
        if current is None or (done.group, done.round) != (current.group, current.number) or current.left:
            self.on_nonsense(f"the end of a round of {done.group} that is not at its end")
            return
        self._round = None
        self._blame.record_success()
        assert self._child is not None
        self._child.tail.clear()  # what was printed before is no reason for what follows
        self._lines_left = LINES_PER_ROUND
        self._last_round = self._looked = self._clock.instant()
        for device, failure in self._quarantine.skipped.items():
            self._tell_failure(device, current.group, current.number, failure)
        if done.devices is not None:
            self._list_devices(done.devices)
        if self._since and (self._clock.instant().seconds_since(self._since) or 0.0) >= STEADY_SECONDS:
            self._falls = 0
        last = [group for group in self._groups if group in self._schedules][-1:]
        if done.group in last and self._plan.holds_devices and (library := self._blame.replaced(self._child.pid)):
            self._load_anew(f"{library} was replaced on disk: it is reloaded")
            return
        self._tick_serving(self._clock.monotonic())  # another group may have waited for the end of this round

    # Due steps.

    def _tick_loading(self, now: float) -> None:
        assert self._child is not None
        if now >= self._start_deadline:
            self._child.hear_out()
        seconds = self._plan.start_deadline_seconds
        if self._phase is Phase.LOADING:
            self._watch(self._start_deadline - seconds, self._start_deadline, seconds)

    def _tick_serving(self, now: float) -> None:
        current = self._round
        if current is not None:
            if now < current.deadline or not self._answers_after_all(current, now):
                self._watch(current.began, current.deadline, self._patience(current))
            return
        if self._quarantine.try_again(now):
            self._load_anew("retries a quarantined device")
            return
        if self._left_out.try_again(now):
            self._load_anew("retries a skipped call")
            return
        for schedule in self._offered():
            if schedule.due <= now:
                self._ask_round(schedule, now)
                return

    def _tick_stuck(self, now: float) -> None:
        """Check a child that could not be killed again, until the driver is known to be the cause."""
        if now >= self._stuck_look:
            self._look_at_stuck(now)

    def _look_at_stuck(self, now: float) -> None:
        assert self._child is not None
        failure = self._blame.stuck(self._child, self._stuck_seconds).failure
        self._stuck_look = math.inf if failure.kind is FailureKind.STUCK else now + self._deadline
        self._say(ReaderState.STUCK, failure.detail, failure)

    def _load_anew(self, why: str) -> None:
        """Replace this child by a new one, without blame."""
        self._outcome = Outcome(ReaderState.STARTING, why, None, 0.0)
        self._note("info", "collector restarts", why=why)
        self._finish(RELEASE, ask=True)

    def _watch(self, began: float, deadline: float, seconds: float) -> None:
        """Watch a long call, and end the child once its *deadline* has passed and the cause is proven."""
        assert self._child is not None
        fallen = self._blame.watch(self._child, began, deadline, seconds)
        if fallen is not None:
            self._hangs += 1
            self._fell(fallen, ReaderState.HUNG)
            self._finish(PAST_DEADLINE, ask=False)

    def _patience(self, current: Round) -> float:
        return self._schedules[current.group].cadence.deadline_seconds

    def _answers_after_all(self, current: Round, now: float) -> bool:
        """Return whether the child has answered, or gets more time because the agent itself was delayed."""
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
        self._round = Round(group, schedule.number, now, deadline, self._reading_order())
        self._child.send(Read(group, schedule.number))

    def _reading_order(self) -> list[str]:
        """Return the devices in the order in which the child reads them."""
        skipped, suspects = self._quarantine.skipped, self._quarantine.suspects
        wanted = [device.id for device in self.devices if device.id not in skipped]
        return sorted(wanted, key=lambda device: device in suspects)

    def _tick_absent(self, now: float) -> None:
        if self._orphan is not None:
            self._orphan.tick(now)
            if not self._orphan.gone:
                self._say(self._orphan.state, self._orphan.detail, self._orphan.failure)
                self._start_at = now + FIRST_RESTART_SECONDS
                return
            self._orphan = None
        if self._start_at is not None and now >= self._start_at:
            self._start(now)

    def _start(self, now: float) -> None:
        self._start_at = now + FIRST_RESTART_SECONDS
        self._starts += 1
        self._lines_left = LINES_PER_ROUND
        try:
            self._child = Child(
                self._plan.backend,
                self._plan.argv,
                self._selector,
                self,
                self._clock,
                environment=self._plan.own_environment,
            )
        except OSError as error:
            failure = seen_at(no_start(self._plan.backend, error).failure, self._looked or NEVER)
            self._say(ReaderState.CRASHED, failure.detail, failure)
            self._start_at = now + self._next_wait()
            return
        self._phase, self._start_at = Phase.LOADING, None
        self._start_deadline = now + self._plan.start_deadline_seconds
        self._blame.starts()
        self._state = self._state_before_answer
        skipped = self._quarantine.skipped
        addresses = (device.pci for device in self.devices if device.id in skipped and device.pci)
        self._child.send(
            Start(
                self._plan.stand_in or self._plan.backend,
                root=self._plan.root,
                skip=(*skipped, *addresses),
                last=self._quarantine.suspects,
                leave_out=self._left_out.names,
                prove=self._blame.to_prove,
                stand_still=self._blame.stands_still,
                options=dict(self._plan.options),
            )
        )

    # Failures.

    def _fell(self, fallen: Fallen, state: ReaderState) -> None:
        """Record the failure of the reader, charge the device that it was reading, and plan the restart."""
        assert self._child is not None
        self._phase = Phase.ENDING  # counted once, even if a later line raises
        self._looked = self._clock.instant()
        failure = seen_at(fallen.failure, self._looked)
        device = self._guilty = self._busy_with() if fallen.charged else None
        self._blame.count(fallen, device)
        if fallen.charged and self._child.in_call and self._left_out.note(self._child.call, self._clock.monotonic()):
            self._note("warning", "call is skipped for a time", call=self._child.call)
        if device is not None:
            self._quarantine.record_failure(device, failure, self._clock.monotonic())
            for group in {self._round.group} if self._round else self._missable():
                self._tell_failure(device, group, self._schedules[group].number, failure)
        self._abort_round()
        self._say(state, failure.detail, failure)
        # If a device is the cause, its quarantine spares the driver; its siblings should not wait for that.
        wait = self._next_wait() if device is None else FIRST_RESTART_SECONDS
        self._outcome = Outcome(state, failure.detail, failure, wait)
        self._note("error", f"collector {state.value}", detail=failure.detail, device=device or "")

    def _busy_with(self) -> str | None:
        """Return the device that the child was reading."""
        assert self._child is not None
        left = self._round.left if self._round is not None else []
        return device_at_work(self._child, self.devices, left[0] if left else None)

    def _tell_missed_rounds(self, now: float) -> None:
        """Report every known device as unread, once per round that could not be requested."""
        for group, schedule in self._missable().items():
            if now < schedule.given_up:
                continue
            schedule.advance(now)
            for device in self.devices:
                failure = self._quarantine.skipped.get(device.id) or why_unread(device.id, self._failure, self._guilty)
                self._tell_failure(device.id, group, schedule.number, failure)

    def _tell_failure(self, device: str, group: str, number: int, failure: Failure) -> None:
        """Add a failed sample; a device that was never listed has none, only the status names it."""
        if any(known.id == device for known in self.devices):
            self._telling.take(unread(self._plan, device, group, number, self._clock.instant(), failure))

    # Helpers.

    @property
    def _state_before_answer(self) -> ReaderState:
        """Return the state of a reader that was started: an absent vendor stays absent until the child answers."""
        return ReaderState.ABSENT if self._absences else ReaderState.STARTING

    def _offered(self) -> Iterable[Schedule]:
        """Return the schedules of the groups that the backend has."""
        return [entry for group, entry in self._schedules.items() if group in self._groups]

    def _missable(self) -> dict[str, Schedule]:
        """Return the schedules whose rounds can be reported as missed: none before the first start."""
        known = self._groups if self.devices else ()
        return {group: entry for group, entry in self._schedules.items() if group in known}

    def _abort_round(self) -> None:
        """Make the unfinished round due again at once."""
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

    def _mend(self, now: float) -> None:
        """Recover from an exception of our own inside a step: without an end or a start time the reader stays idle."""
        if self._phase is Phase.ENDING and self._child is not None and not self._child.ending:
            self._finish(PAST_DEADLINE, ask=False)
        if self._phase is Phase.NONE and self._wish is Wish.READ and self._start_at is None:
            self._start_at = now + self._next_wait()

    def _finish(self, patience: Patience, *, ask: bool) -> None:
        assert self._child is not None
        self._phase = Phase.ENDING
        self._child.finish(patience, ask=ask)

    def _list_devices(self, devices: tuple[Device, ...]) -> None:
        """Store *devices*, and quarantined ones that the backend could not list without accessing them."""
        left_alone = self._quarantine.skipped.keys() - {device.id for device in devices}
        together = (*devices, *(device for device in self.devices if device.id in left_alone))
        if together != self.devices:
            self.listed_anew = self.listed_anew or bool(self.devices)
            self.devices = together
            self._telling.take(Listed(self._plan.backend, together))

    def _note(self, level: str, event: str, **fields: str) -> None:
        self._telling.note(level, event, {**fields, "backend": self._plan.backend})

    def _say(self, state: ReaderState, detail: str, failure: Failure | None = None) -> None:
        self._state, self._detail, self._failure = state, detail, failure

    def _next_wait(self) -> float:
        """Return the seconds until the next start, doubled each time."""
        wait = min(FIRST_RESTART_SECONDS * 2.0**self._falls, LONGEST_RESTART_SECONDS)
        self._falls += 1
        return wait
