"""One reader: the child process that reads a backend round by round, and its failures.

A reader is a state machine that never blocks: the supervisor calls ``tick`` when a deadline passes, the selector calls
back when the child sends a message. A failure is reported twice, as the reader's status and as a failed sample of each
device that could not be read, so that no device looks healthy because it was not read.
"""

from __future__ import annotations

import math
import selectors

import msgspec

from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import NEVER, Failure, FailureKind, ReaderState, ReaderStatus, Sample
from nodevet.checks.core.wire import PROTOCOL, EventMessage, Failed, Note, Read, Ready, RoundDone, Sampled, Start
from nodevet.checks.ipc.child_process import Child, Patience
from nodevet.checks.system.process import Exit
from nodevet.checks.system.procfs import ChildRecord

from .blame import Blame, Fallen, no_start, stuck_seconds
from .orphan import Orphan
from .restarts import FIRST_RESTART_SECONDS, LONGEST_RESTART_SECONDS, Restarts
from .rounds import Round, Rounds
from .stages import ABSENT, LINES_PER_ROUND, PAST_DEADLINE, RELEASE, STOP, Outcome, Phase, Wish
from .telling import Telling
from .unread import seen_at
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
        self._restarts = Restarts()
        self.rounds = Rounds(plan, clock, telling)
        self._lines_left = LINES_PER_ROUND
        self._status = ReaderStatus(backend=plan.backend, state=ReaderState.STARTING, required=plan.required)

    @property
    def status(self) -> ReaderStatus:
        """Return the status of the reader."""
        told, child, skipped = self._status, self._child, self.rounds.quarantine.skipped
        return msgspec.structs.replace(
            told,
            detail=child.call if child and told.state is ReaderState.STARTING else told.detail,
            pid=self.record.pid if self.record else None,
            quarantined=tuple(skipped),
            left_alone={device: failure.detail for device, failure in skipped.items()},
            witnessed=self._blame.witnessed,
            blamed=self._blame.of_devices,
            since=told.since if self._phase is Phase.SERVING else None,
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
            return self.rounds.settled
        if self._phase is Phase.STUCK or self._wish is not Wish.READ:
            return self.at_rest
        if self._orphan is not None:
            return self._status.state is ReaderState.STUCK
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
            current = self.rounds.current
            candidates.append(self._blame.look_at(current.deadline, current.seconds) if current else None)
            candidates += self.rounds.next_deadlines
        elif self._wish is Wish.READ:
            candidates += [self._start_at, self.rounds.next_missed]
        return min((when for when in candidates if when is not None), default=None)

    # Requests of the agent.

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
            self.rounds.ask()
            if self._phase is Phase.NONE:
                self._say(self._state_before_answer, "")

    def retry(self) -> None:
        """Start at once instead of waiting for the next start: an operator reports that a driver was installed."""
        if self._wish is Wish.READ and self._start_at is not None:
            self._start_at = self._clock.monotonic()

    def look_again(self) -> None:
        """Start at once if the vendor was absent or refused: another reader lists devices of it."""
        if self._status.state in (ReaderState.ABSENT, ReaderState.FAILED):
            self.retry()

    def tick(self) -> None:
        """Execute everything that is due."""
        now = self._clock.monotonic()
        if self._child:
            self._child.tick()
        self._mend(now)
        if self._phase is Phase.LOADING:
            self._tick_loading(now)
        elif self._phase is Phase.STUCK and now >= self._stuck_look:
            self._look_at_stuck(now)
        elif self._phase is Phase.SERVING:
            self._tick_serving(now)
        elif self._phase is Phase.NONE and self._wish is Wish.READ:
            self._tick_absent(now)
        if self._phase is not Phase.SERVING and self._wish is Wish.READ:
            self.rounds.tell_missed(now, self._status.failure)

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
            self._change(crashes=self._status.crashes + 1)
            self._fell(self._blame.broke_protocol(detail), ReaderState.CRASHED)
            self._finish(PAST_DEADLINE, ask=False)

    def on_unreadable(self, detail: str) -> None:
        """Continue after one undecodable message: a device without a sample in this round is reported as unread."""
        self._note("error", "message ignored", detail=detail)
        if self.rounds.current is not None:
            self.rounds.current.unreadable = self._blame.lost_words(detail)
        elif self._phase is Phase.LOADING:
            self.on_nonsense(detail)

    def on_stuck(self) -> None:
        """Give up a child that cannot be killed; no other child is started while it lives."""
        self._phase = Phase.STUCK
        self._look_at_stuck(self._clock.monotonic())
        self._note("error", "collector is stuck", detail=self._status.detail)

    def on_end(self, ended: Exit) -> None:
        """Handle the exit of the process, and plan the next step."""
        assert self._child is not None
        if self._phase in (Phase.LOADING, Phase.SERVING):
            self._change(crashes=self._status.crashes + 1)
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
        if not ready.devices and not self.rounds.quarantine.skipped:  # otherwise all devices were to be skipped
            self._on_failed(Failure(FailureKind.NO_DEVICES, f"backend {self._plan.backend} lists no device"))
            return
        assert self._child is not None
        self._blame.record_success()
        self._blame.loaded(self._child)
        self._restarts.absences = 0
        shortage = self._blame.shortage(self._child)
        self._change(since=self._clock.instant(), refusals=0, versions=ready.versions, shortage=shortage)
        self.rounds.groups = ready.groups
        self.rounds.list_devices(ready.devices)
        self._say(ReaderState.RUNNING, "")
        self._phase = Phase.SERVING

    def _on_failed(self, failure: Failure) -> None:
        """Handle a backend that cannot load or lost its library; try again later."""
        self._change(refusals=self._status.refusals + 1, looked=self._clock.instant())
        never_there = failure.kind in ABSENT and not self.rounds.devices
        state = ReaderState.ABSENT if never_there else ReaderState.FAILED
        self._restarts.absences = self._restarts.absences + 1 if never_there and not self._plan.required else 0
        seldom = self._phase is Phase.LOADING and not self.rounds.devices and failure.kind is not FailureKind.READER
        wait = self._restarts.next_look() if seldom else self._restarts.next_wait()
        self.rounds.abort()
        self._say(state, failure.detail, failure)
        self._outcome = Outcome(state, failure.detail, failure, wait)
        self._finish(RELEASE, ask=True)

    def _on_sampled(self, sample: Sample) -> None:
        if not self.rounds.answer(sample.group, sample.device, self._clock.monotonic()):
            self.on_nonsense(f"a sample of {sample.device}, {sample.group}, that was not requested")
            return
        self._blame.record_success()
        self._telling.take(sample if sample.failure is None else self._blame.of_one(self._child, sample))

    def _on_round_done(self, done: RoundDone) -> None:
        if not self.rounds.end(done):
            self.on_nonsense(f"the end of a round of {done.group} that is not complete")
            return
        self._blame.record_success()
        assert self._child is not None
        self._child.tail.clear()  # what was printed before is no reason for what follows
        self._lines_left = LINES_PER_ROUND
        ended = self._clock.instant()
        self._change(last_round=ended, looked=ended)
        self.rounds.tell_skipped(done)
        if done.devices is not None:
            if self._status.shortage or self.rounds.lacks(done.devices):
                self._change(shortage=self._blame.shortage(self._child))
            self.rounds.list_devices(done.devices)
        if self._status.since:
            self._restarts.record_success(ended.seconds_since(self._status.since))
        last = self.rounds.is_last(done.group)
        if last and self._plan.holds_devices and (library := self._blame.replaced(self._child.pid)):
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
        current = self.rounds.current
        if current is not None:
            if now < current.deadline or not self._answers_after_all(current, now):
                self._watch(current.began, current.deadline, current.seconds)
        elif why := self.rounds.try_again(now):
            self._load_anew(why)
        elif due := self.rounds.begin(now):
            assert self._child is not None
            self._child.send(Read(due.group, due.number))

    def _look_at_stuck(self, now: float) -> None:
        """Check a child that could not be killed again, until the driver is known to be the cause."""
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
            self._change(hangs=self._status.hangs + 1)
            self._fell(fallen, ReaderState.HUNG)
            self._finish(PAST_DEADLINE, ask=False)

    def _answers_after_all(self, current: Round, now: float) -> bool:
        """Return whether the child has answered, or gets more time because the agent itself was delayed."""
        assert self._child is not None
        left = len(current.left)
        self._child.hear_out()
        if self.rounds.current is not current or len(current.left) < left or self._phase is not Phase.SERVING:
            return True
        return current.extend(now)

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
        self._change(starts=self._status.starts + 1)
        self._lines_left = LINES_PER_ROUND
        try:
            plan, environment = self._plan, self._plan.own_environment
            self._child = Child(plan.backend, plan.argv, self._selector, self, self._clock, environment=environment)
        except OSError as error:
            failure = seen_at(no_start(self._plan.backend, error).failure, self._status.looked or NEVER)
            self._say(ReaderState.CRASHED, failure.detail, failure)
            self._start_at = now + self._restarts.next_wait()
            return
        self._phase, self._start_at = Phase.LOADING, None
        self._start_deadline = now + self._plan.start_deadline_seconds
        self._blame.starts()
        self._change(state=self._state_before_answer)
        skipped = self.rounds.quarantine.skipped
        shared = {device.pci for device in self.rounds.devices if device.id not in skipped}  # by parts of one board
        boards = (device for device in self.rounds.devices if device.id in skipped)
        addresses = [board.pci for board in boards if board.pci and board.pci not in shared]
        self._child.send(
            Start(
                self._plan.stand_in or self._plan.backend,
                root=self._plan.root,
                skip=(*skipped, *addresses),
                last=self.rounds.quarantine.suspects,
                leave_out=self.rounds.left_out.names,
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
        looked = self._clock.instant()
        self._change(looked=looked)
        failure = seen_at(fallen.failure, looked)
        at_work = self.rounds.busy_with(self._child)
        device = at_work if fallen.charged else None
        self._blame.count(fallen, device)
        call, now = self._child.call, self._clock.monotonic()
        if fallen.charged and self._child.in_call and self.rounds.left_out.note(call, now):
            self._note("warning", "call is skipped for a time", call=call)
        self.rounds.charge(device, failure)
        is_excused = state is ReaderState.HUNG and not fallen.charged and self._child.in_call
        is_skipped = is_excused and at_work is not None and self.rounds.excuse(at_work, failure)
        self._say(state, failure.detail, failure)
        # If a device is the cause, its quarantine spares the driver; its siblings should not wait for that.
        wait = FIRST_RESTART_SECONDS if device is not None or is_skipped else self._restarts.next_wait()
        self._outcome = Outcome(state, failure.detail, failure, wait)
        self._note("error", f"collector {state.value}", detail=failure.detail, device=device or "")

    # Helpers.

    @property
    def _state_before_answer(self) -> ReaderState:
        """Return the state of a reader that was started: an absent vendor stays absent until the child answers."""
        return ReaderState.ABSENT if self._restarts.absences else ReaderState.STARTING

    def _close(self, wish: Wish, state: ReaderState, patience: Patience) -> None:
        self._wish = wish
        self.rounds.current = None
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
            self._start_at = now + self._restarts.next_wait()

    def _finish(self, patience: Patience, *, ask: bool) -> None:
        assert self._child is not None
        self._phase = Phase.ENDING
        self._child.finish(patience, ask=ask)

    def _note(self, level: str, event: str, **fields: str) -> None:
        self._telling.note(level, event, {**fields, "backend": self._plan.backend})

    def _say(self, state: ReaderState, detail: str, failure: Failure | None = None) -> None:
        self._change(state=state, detail=detail, failure=failure)

    def _change(self, **fields: object) -> None:
        self._status = msgspec.structs.replace(self._status, **fields)
