"""A load child: runs workloads one after the other, under a watchdog, and always ends in a result.

The child is the load's own process; this is the agent's end of it. A workload that dies, hangs or is stopped has a
result that says so, hence whoever waits for one result per workload never waits in vain.
"""

from __future__ import annotations

import selectors
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from nodevet.checks.burnin.metrics import UNITS
from nodevet.checks.burnin.stops import STOPPED_SECONDS
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import Instant, Metric, Result, ResultState
from nodevet.checks.core.wire import Burn, Failed, Found, Message, Note, ProgressMessage, Ready, ResultMessage
from nodevet.checks.engine.completeness import KILLED
from nodevet.checks.ipc.child_process import Child, Patience
from nodevet.checks.system.process import Exit
from nodevet.checks.system.procfs import STOPPED, ChildRecord

from .wrong import carried_on

_KEPT = ("gemms_verified", "gemms_checked", "mismatches", "measured_seconds")
"""What a workload tells with its progress that is true of it whenever it ends."""

STOP = Patience(terminate=0.1, kill=1.3, abandon=1.95)
"""A load takes SIGTERM as a second word to stop and needs up to 1 s to give back what it holds. It is gone before
the agent that stops it is: else the last state said for two minutes that it runs, and prologs waited for it."""
AT_ONCE = Patience(terminate=0.0, kill=0.0, abandon=0.65)
"""Somebody said a second time that it must end: what it told so far is its result."""
PAST_DEADLINE = Patience(terminate=0.0, kill=2.0, abandon=4.0)
"""The child takes up to 1 s after SIGTERM to tell what it knows."""


class _Job(msgspec.Struct, frozen=True):
    """The workload that runs: until when it must be done, and when it began."""

    burn: Burn
    started: Instant
    deadline: float


class LoadChild:
    """One process that puts load on *devices*. Raises OSError where it cannot be started.

    ``results`` grows by one per workload. *on_tick* and *on_note* are called from the loop that drives the selector.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        devices: Sequence[str],
        clock: Clock,
        selector: selectors.BaseSelector,
        *,
        environment: Mapping[str, str] | None = None,
        silence_seconds: float = 60.0,
        on_tick: Callable[[ProgressMessage], None] | None = None,
        on_note: Callable[[Note], None] | None = None,
        inherit: tuple[int, ...] = (),
    ) -> None:
        """Start the child; it must say something at least every *silence_seconds* while a workload runs."""
        self._devices = tuple(devices)
        self._clock = clock
        self._silence_seconds = silence_seconds
        self._on_tick = on_tick
        self._on_note = on_note
        self._job: _Job | None = None
        self._heard = self._ticked = clock.monotonic()
        self.known: Result | None = None
        """What the workload told of wrong results so far, or None."""
        self.detail = ""
        """Why the child ended, where it did not just stop."""
        self._stopping = self._at_once = False
        self._figures: Mapping[str, Any] = {}
        self._gave_up = False
        self._stuck = False
        self._ended = False
        self._killed = False
        self.results: list[Result] = []
        self._child = Child(
            name, argv, selector, self, clock, environment=environment, inherit=inherit, orphaned=signal.SIGKILL
        )

    @property
    def busy(self) -> bool:
        """Return whether a workload runs."""
        return self._job is not None

    @property
    def alive(self) -> bool:
        """Return whether another workload can be started."""
        return not (self._ended or self._stuck or self._child.ending)

    @property
    def at_rest(self) -> bool:
        """Return whether the process is gone, or cannot be helped."""
        return self._ended or self._stuck

    @property
    def record(self) -> ChildRecord | None:
        """Return what to remember of the process over a restart of the agent; None once it is gone."""
        return None if self._ended else self._child.record

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        if self._ended:
            return None
        candidates = [self._child.next_deadline]
        if self._job is not None and not self._child.ending:
            candidates += [self._job.deadline, self._heard + self._silence_seconds]
        return min((when for when in candidates if when is not None), default=None)

    def burn(self, workload: str, parameters: Mapping[str, Any], deadline_seconds: float) -> None:
        """Start *workload*; it must be done within *deadline_seconds*. One at a time."""
        assert self._job is None, f"{self._job} still runs"
        burn = Burn(workload, dict(parameters))
        now = self._clock.monotonic()
        self._job = _Job(burn, self._clock.instant(), now + deadline_seconds)
        self.known = None
        self._figures = {}
        self._heard = self._ticked = now
        if self.alive:
            self._child.send(burn)
        else:
            self._result(ResultState.REFUSED, self.detail or "the load was stopped")

    def stop(self, reason: str = "stopped", *, at_once: bool = False) -> None:
        """Begin to end the load; ``at_rest`` within two seconds if the loop goes on.

        *at_once*: it is killed, and its result is what it told so far.
        """
        if not self._ended:
            self._stopping = True
            self._at_once = self._at_once or at_once
            self.detail = self.detail or reason
            self._child.finish(AT_ONCE if at_once else STOP, ask=not at_once)

    def tick(self) -> None:
        """Do what is due."""
        if self._ended:
            return
        self._allow_for_stop()
        self._child.tick()
        if self._job is None or self._child.ending:
            return
        now = self._clock.monotonic()
        if now >= self._job.deadline:
            self._give_up(
                f"{self._job.burn.workload} is not done after its deadline, it is{self._in_call() or ' idle'}"
            )
        elif now >= self._heard + self._silence_seconds:
            where = self._child.where
            self._killed = STOPPED in where
            self._give_up(f"no message for {now - self._heard:.0f} s{self._in_call()} ({where})")

    def _allow_for_stop(self) -> None:
        """Give the workload the time in which its parent could not hear it.

        A loop that turns so late was stopped or frozen, as a suspended job is with all its processes: its silence is
        not the child's.
        """
        now = self._clock.monotonic()
        gap, self._ticked = now - self._ticked, now
        if gap > STOPPED_SECONDS and self._job is not None:
            self._heard = min(self._heard + gap, now)  # what lay in the pipe was heard after the gap
            self._job = msgspec.structs.replace(self._job, deadline=self._job.deadline + gap)

    def on_message(self, message: Message) -> None:
        """Take what the child tells."""
        self._heard = self._clock.monotonic()
        match message:
            case ProgressMessage():
                self._figures = message.figures or self._figures
                self.known = None if self.known is None else carried_on(self.known, message.figures)
                if self._on_tick is not None:
                    self._on_tick(message)
            case Note():
                if self._on_note is not None:
                    self._on_note(message)
            case Found() if self._job is not None:
                self.known = message.result
            case ResultMessage() if self._job is not None:
                self._job = None
                self.results.append(self._complete(message.result))
            case Failed():
                self._give_up(message.failure.detail)
            case Ready():
                pass
            case _:
                self.on_nonsense(f"{type(message).__name__} is not a message of a load")

    def on_line(self, line: str) -> None:
        """Pass a line of the child's standard error on."""
        if self._on_note is not None:
            self._on_note(Note("info", "load said", {"line": line}))

    def on_nonsense(self, detail: str) -> None:
        """End a child that breaks the protocol."""
        self._give_up(f"the load broke the protocol: {detail}")

    def on_unreadable(self, detail: str) -> None:
        """End a child of which a message cannot be read: it may have been a result."""
        self.on_nonsense(detail)

    def on_stuck(self) -> None:
        """Give up a child that cannot be killed."""
        self._stuck = True
        self._result(ResultState.DIED, f"{self._child.call} cannot be ended ({self._child.where})")

    def on_end(self, ended: Exit) -> None:
        """Learn that the process is gone."""
        self._ended = True
        if not self.detail and (self._job is not None or ended.status):
            last = f"; it said last: {said}" if (said := self._child.tail.last) else ""
            self.detail = f"the load {ended}{self._in_call()}{last}"
            if ended.signal == signal.SIGKILL and not self._gave_up:
                self.detail += ": by the out of memory killer, a person or an oops; read the kernel log (dmesg)"
                self._killed = True
        elif not self.detail and self.results:
            self.detail = self.results[-1].detail  # it ended by itself, and said why
        was_stopped = self._stopping and not self._gave_up
        self._result(ResultState.INTERRUPTED if was_stopped else ResultState.DIED, self.detail)

    def _in_call(self) -> str:
        return f" in: {self._child.call}" if self._child.call else ""

    def _give_up(self, reason: str) -> None:
        if not self._child.ending:
            self.detail = reason
            self._gave_up = True
            self._child.finish(PAST_DEADLINE, ask=False)

    def _result(self, state: ResultState, detail: str) -> None:
        """Add the result of a workload that has none of its own."""
        if self._job is None:
            return
        burn, started = self._job.burn, self._job.started
        blank = Result(
            workload=burn.workload,
            devices=self._devices,
            state=state,
            started=started,
            ended=self._clock.instant(),
            dtype=burn.parameters.get("dtype"),
            shape=tuple(burn.parameters.get("shape") or ()),
            detail=detail,
            conditions={KILLED: True} if self._killed else {},
            metrics=_told(self._figures) if self._at_once else (),
        )
        self._job = None
        self.results.append(self._complete(blank))

    def _complete(self, result: Result) -> Result:
        """Return *result* with all that is known: what was found wrong stays so, however the workload ended."""
        if result.state is ResultState.INTERRUPTED and self._gave_up:
            # It was ended because it hung, which it does not know.
            result = msgspec.structs.replace(result, state=ResultState.DIED, detail=self.detail)
        known = self.known
        if known is None or (result.metric("mismatches") or 0) >= (known.metric("mismatches") or 0):
            return result
        return msgspec.structs.replace(
            known, state=result.state, ended=result.ended, detail=result.detail or known.detail
        )


def _told(figures: Mapping[str, Any]) -> tuple[Metric, ...]:
    """Return the figures of a workload that was killed, as it told them last."""
    return tuple(Metric(name, figures[name], UNITS[name]) for name in _KEPT if name in figures)
