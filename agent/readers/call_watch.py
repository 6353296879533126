"""A call that is out for long: what is seen of its process until the deadline.

The process is looked at from time to time, and more closely from half of the deadline on, when a second process
keeps time beside it. A cause at one look excuses the call, although it may be over by the deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import msgspec

from nodevet.checks.core.clock import Clock
from nodevet.checks.ipc.child_process import Child

from .evidence import ELSEWHERE, OF_PARTS, other_cause
from .heartbeat import Heartbeat
from .stages import HELD_UP_SECONDS
from .system_call import Leads
from .witness import STARVED_RATIO, Other, ProcessStatus, Rest, Surroundings, disturbance, disturbed, unscheduled

SUSPICIOUS_SHARE = 0.5
LONGEST_WATCH_SECONDS = 5.0
"""A call is watched from this share of its deadline on, at most this many seconds before the deadline."""

EARLY_SECONDS, EARLY_SHARE = 0.5, 0.05
"""Before that, the agent checks at this interval, or share of a long deadline, whether it and the reader can run."""

LOOK_AGAIN_SECONDS = 0.1
"""Interval of the checks after the deadline, until it is known whether the machine itself was slow."""

ROUNDS_OF_REST = 8
"""Rounds between which a thread at rest is seen in each of its waits, if it has a few of them in turn."""

SLOWLY = "the calls return, but slowly: raise agent.deadline_seconds if the driver needs this long"


class _Look(msgspec.Struct, frozen=True):
    """A reader at one moment, with its threads and child processes."""

    seconds: float
    status: ProcessStatus | None
    others: Mapping[Other, ProcessStatus]


class _Suspicion(msgspec.Struct, frozen=True):
    """A watched call: its number, and the reader when the watch began.

    ``moved``: earlier calls returned, but slowly. ``held``: the reason why the reader could not run for a while.
    ``resting``: since when the reader was runnable but did not run, and its state then.
    """

    number: int
    first: _Look
    moved: bool = False
    held: str = ""
    resting: tuple[float, ProcessStatus] | None = None


class _Call(msgspec.Struct, frozen=True):
    """The reader's call when it was last ``seen``: its number and its earliest possible start (``since``)."""

    number: int
    since: float
    seen: float


class _Early(msgspec.Struct, frozen=True):
    """Looks at calls since ``start``, before they are watched: the last one, its time, and a cause they showed."""

    start: float
    last: float
    held: str = ""
    look: _Look | None = None


class CallWatch:
    """Watches the calls of one reader. All times are those of *clock*."""

    def __init__(self, clock: Clock, surroundings: Surroundings, heartbeat: Heartbeat, module: str) -> None:
        """Start without a call; *module* is the kernel module of the driver, empty if it has none."""
        self._module = module
        self._clock = clock
        self._surroundings = surroundings
        self._heartbeat = heartbeat
        self._rests: deque[Rest] = deque(maxlen=ROUNDS_OF_REST)
        self._suspicion: _Suspicion | None = None
        self._early: _Early | None = None
        self._call: _Call | None = None

    def note_rest(self, pid: int) -> None:
        """Record how *pid* is between two calls."""
        self._rests.append(self._surroundings.rest(pid))

    def forget_rest(self) -> None:
        """Forget that: a new process starts."""
        self._rests.clear()

    def end(self) -> None:
        """End the watch: the reader answered or exited."""
        self._suspicion = self._early = self._call = None

    # Looks.

    def call(self, child: Child, began: float) -> _Call:
        """Return the call of *child* and the earliest time at which it can have begun; the request began at *began*."""
        now, last = self._clock.monotonic(), self._call
        if last is not None and self._suspicion is not None and now - last.seen > HELD_UP_SECONDS:
            self._suspicion = msgspec.structs.replace(self._suspicion, held=_held_up(now - last.seen))
        number, since = child.call_number, began if last is None else last.seen
        self._call = _Call(number, last.since if last is not None and last.number == number else since, now)
        return self._call

    def look_before(self, child: Child, deadline: float, seconds: float) -> None:
        """Look at the call of *child*, which may take *seconds* until *deadline*, if a look is due."""
        if self._suspicion is None:
            self._look_early(child, deadline - seconds, seconds)
        if self._clock.monotonic() >= deadline - _lead(seconds):
            self.look(child)

    def look(self, child: Child) -> None:
        """Look closely at the call of *child*."""
        self._suspect(child)
        self._look_between(child)

    def look_at(self, deadline: float, seconds: float, *, soon: bool) -> float:
        """Return when to look next at a call that must end by *deadline*; *soon*: at short intervals."""
        now = self._clock.monotonic()
        if self._suspicion is None:
            start = deadline - seconds
            last = self._early.last if self._early is not None and self._early.start == start else start
            if soon:
                return min(now + LOOK_AGAIN_SECONDS, deadline - _lead(seconds))
            return min(last + _step(seconds), deadline - _lead(seconds))
        return min(deadline, now + EARLY_SECONDS) if now < deadline else now + LOOK_AGAIN_SECONDS

    # Results.

    def missing_seconds(self, child: Child, elapsed_seconds: float, seconds: float) -> float:
        """Return how many of the *elapsed_seconds* of a call do not count, because it computes and had no processor.

        A call that computes may do so for its *seconds*. One that waits for the driver needs no processor: 0.
        """
        look, rest = self._surroundings.look(child.pid), self._rests[-1] if self._rests else Rest()
        if look is None or look.ran_seconds is None or rest.ran_seconds is None or rest.waited_seconds is None:
            return 0.0
        ran, waited = look.ran_seconds - rest.ran_seconds, (look.waited_seconds or 0.0) - rest.waited_seconds
        if ran + waited < STARVED_RATIO * seconds:
            return 0.0
        return max(0.0, elapsed_seconds - ran if look.state == "R" else waited)

    def cause(self, child: Child) -> str:
        """Return what kept *child* from running or from calling the driver; empty if nothing did."""
        assert self._suspicion is not None
        return self._suspicion.held or _between(self._suspicion.first, self._look(child))

    def kept_time(self) -> bool | None:
        """Return whether the machine ran processes on time since the watch began; None: it is not known yet."""
        assert self._suspicion is not None
        return self._heartbeat.kept_time(self._suspicion.first.seconds)

    def other_cause(self, child: Child) -> str:
        """Return what the call of *child* may wait for instead of the driver; empty if the driver is blamed."""
        look = self._look(child)
        if look.status is None:
            return ""
        cause = other_cause(look.status, look.others, self._still(look))
        wait, pid = cause.wait, child.pid if cause.part is None else cause.part.pid
        if wait.leads is Leads.UNKNOWN and self._module and self._surroundings.waits_in_module(pid, self._module):
            return ""
        is_witness = look.status.wait.leads is Leads.DRIVER or look.status.state == "D"
        is_elsewhere = wait.leads in ELSEWHERE
        mapped = None if is_witness or is_elsewhere else self._surroundings.mapped(child.pid)
        if mapped is not None and mapped.shared:
            return f"it shares {mapped.shared[0]} with other programs, one of which may hold a lock on it"
        return wait.words

    def no_time(self, kept: bool | None) -> str:
        """Return why nothing shows that the machine ran processes on time; *kept* is what ``kept_time`` said."""
        seen = self._suspicion
        assert seen is not None
        if self._heartbeat.failure:
            return self._heartbeat.failure
        if kept is None and seen.moved:
            return SLOWLY
        if kept is None:
            return "host overloaded: the agent was delayed; check load, memory and swap of the node"
        pid = self._heartbeat.pid
        look = None if pid is None or not self._heartbeat.waits else self._surroundings.look(pid)
        if look is not None and (look.frozen or look.state in "Tt"):
            return f"the idle test process (process {pid}) is stopped too: continue or thaw both"
        return (
            "host overloaded: an idle test process answered only after "
            f"{self._heartbeat.worst(seen.first.seconds):.1f} s; check load, memory and swap of the node"
        )

    # Helpers.

    def _suspect(self, child: Child) -> None:
        """Start to watch the call of *child*, which has been in progress for long."""
        anew = self._suspicion is None or self._suspicion.number != child.call_number
        if anew:
            look, early, moved = self._look(child), self._early, self._suspicion is not None
            held = early.held if early is not None else ""
            if early is not None and early.look is not None and not moved:
                held = held or _between(early.look, look)
            self._suspicion = _Suspicion(child.call_number, look, moved, held)
        self._heartbeat.want(anew=anew)

    def _look_early(self, child: Child, start: float, seconds: float) -> None:
        """Record what keeps reader or agent from running before the call that began at *start* is watched."""
        now, step = self._clock.monotonic(), _step(seconds)
        before = self._early if self._early is not None and self._early.start == start else _Early(start, start)
        late = now - before.last - step
        if late < 0:
            self._early = before
            return
        look = self._look(child)
        if look.status is None:
            return
        held = _held_up(late) if late > HELD_UP_SECONDS else _between(before.look or look, look)
        self._early = _Early(start, now, held or self._elsewhere(child, look) or before.held, look)

    def _look_between(self, child: Child) -> None:
        """Record what keeps the reader from running for a while: it may continue before its deadline."""
        look, seen = self._look(child), self._suspicion
        status = look.status
        if seen is None or status is None:
            return
        since, before = seen.resting or (look.seconds, status)
        if status.state != "R" or status.ran_seconds != before.ran_seconds:
            since, before = look.seconds, status
        held = disturbance(status, status, 1.0) or self._elsewhere(child, look) or seen.held
        held = held or unscheduled(before, status, look.seconds - since)
        self._suspicion = msgspec.structs.replace(seen, held=held, resting=(since, before))

    @property
    def _waits_at_rest(self) -> frozenset[tuple[int, str]]:
        """Return the waits between the last rounds: a thread that listens to several programs in turn has several."""
        return frozenset().union(*(rest.waits for rest in self._rests))

    def _look(self, child: Child) -> _Look:
        """Look at *child*, and at its threads and programs if it may wait for one of them."""
        status = self._surroundings.look(child.pid)
        waits_inside = status is not None and status.wait.leads in OF_PARTS
        others = self._surroundings.others(child.pid, self._waits_at_rest) if waits_inside else {}
        return _Look(self._clock.monotonic(), status, others)

    def _still(self, last: _Look) -> set[Other]:
        """Return the threads and programs that have not run from the first look of the watch to the *last* one."""
        first = {} if self._suspicion is None else self._suspicion.first.others
        return {
            other
            for other, status in last.others.items()
            if (before := first.get(other)) is not None and status.ran_seconds == before.ran_seconds is not None
        }

    def _elsewhere(self, child: Child, look: _Look) -> str:
        """Return which file or program the call of *child* waits for; empty if it is none."""
        if look.status is None or not child.in_call:  # at rest it waits for the agent
            return ""
        wait = other_cause(look.status, look.others).wait
        # A sleep proves nothing, and excuses nothing that is over by the deadline.
        return wait.words if wait.leads in ELSEWHERE else ""


def _between(first: _Look, last: _Look) -> str:
    """Return what kept a reader from running between two looks; empty if nothing did."""
    seconds = last.seconds - first.seconds
    return disturbance(first.status, last.status, seconds) or disturbed(first.others, last.others, seconds)


def _held_up(seconds: float) -> str:
    return f"host overloaded: the agent was delayed for {seconds:.1f} s; check load and memory of the node"


def _lead(seconds: float) -> float:
    """Return how many seconds before the end of a deadline of *seconds* the watch begins."""
    return min(SUSPICIOUS_SHARE * seconds, LONGEST_WATCH_SECONDS)


def _step(seconds: float) -> float:
    """Return the interval of the checks before the watch, for a call that may take *seconds*."""
    return max(EARLY_SECONDS, EARLY_SHARE * seconds)
