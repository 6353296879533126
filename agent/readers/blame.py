"""The cause of a reader's failure: the driver, if the evidence shows it; otherwise nobody.

The driver is blamed only for what happened inside a named call to it: a fatal signal that the library caused, a call
that cannot be killed, or a call that did not return although a process of equal priority ran on time and nothing kept
the reader from running. Every other failure is reported with its own cause and ends when reading works again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache

import msgspec

from nodevet.checks.backends.device_nodes import SAID_WITHOUT_ASKING
from nodevet.checks.backends.standstill import WAKE
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.model import Failure, FailureKind, Instant, Sample
from nodevet.checks.engine.refusal import REFUSALS
from nodevet.checks.ipc.child_process import Child
from nodevet.checks.ipc.last_words import INTERPRETER, NOT_INSTALLED, wants
from nodevet.checks.reference.limits import from_table
from nodevet.checks.reference.tables import load_table
from nodevet.checks.reference.vendors import vendor_of
from nodevet.checks.system.process import Exit

from .call_watch import SLOWLY, CallWatch
from .calls_of_users import CallRow, calls_of_users
from .heartbeat import Heartbeat
from .mapped_files import Stamp
from .start_failure import start_step
from .wants import Wants
from .witness import (
    UNNOTED,
    ProcessStatus,
    Surroundings,
    disturbance,
)

PROOF_SECONDS = from_table("reader.proof").value
"""Grace period after a call's deadline, in which the agent decides whether the machine itself was slow."""

STUCK_DEADLINES = 10.0
"""The driver is blamed for a killed process that is still inside a call after so many deadlines, in any state."""

SLOW_DEADLINES, SLOW_START_DEADLINES = 2.0, 10.0
"""Limit for all calls for one device, or of one start, in deadlines, while each single call returns."""

OF_A_DEVICE = frozenset({FailureKind.LOST, FailureKind.RESET_REQUIRED, FailureKind.FAULTY})

OTHERS_SENT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that a library does not send to itself."""

HANG = "hang"
KEPT_FALLS = 50

SAID = "said"
"""The row of reader_faults.csv for crashes that only the library's own message excuses."""

MOST_SAID = int(from_table("reader.excused").value)
"""Limit of such excused crashes: a broken board can make a library request too much memory again and again."""


class FaultRow(msgspec.Struct, frozen=True):
    """A fault that counts against a driver, and how long it counts."""

    fault: str
    window_seconds: float
    meaning: str
    source: str


class Fallen(msgspec.Struct, frozen=True):
    """The meaning of a failure: its message, the driver's fault if it is one, and whether its device is suspect."""

    failure: Failure
    fault: str = ""
    charged: bool = False


class Fall(msgspec.Struct, frozen=True):
    """A failure that the driver caused: its fault in the table, the device and the time."""

    backend: str
    fault: str
    device: str | None
    when: Instant


class _Stuck(msgspec.Struct, frozen=True):
    """A process that cannot be killed: since when nothing keeps it from exiting, and its last observation."""

    since: float
    seen: float
    look: ProcessStatus | None


class Blame:
    """Decides the cause of each failure of one reader. The caller reports what happened; this class ends no process."""

    def __init__(self, backend: str, clock: Clock, surroundings: Surroundings, heartbeat: Heartbeat) -> None:
        """Start without any failures."""
        self._backend = backend
        self._name = f"the {backend} collector"
        self._clock = clock
        self._surroundings = surroundings
        self._wants = Wants(surroundings)
        self._falls: list[Fall] = []
        self._watch = CallWatch(clock, surroundings, heartbeat, _module(backend))
        self._loading = True
        self._proven = False
        self._stuck: _Stuck | None = None
        self._libraries: dict[str, Stamp | None] = {}
        self._unnoted: int | None = None  # the process whose libraries are not known yet
        self._shared: tuple[str, ...] | None = None
        self._has_huge_pages = False
        self._unproven: tuple[str, ...] = ()
        self._unread = False
        self._unseen = self._stood = False

    # Result.

    @property
    def witnessed(self) -> int:
        """Return the number of recent failures that the driver caused."""
        return sum(fall.fault != SAID for fall in self._recent())

    @property
    def of_devices(self) -> dict[str, int]:
        """Return the same number for each device that a call named."""
        counts: dict[str, int] = {}
        for fall in self._recent():
            if fall.device is not None:
                counts[fall.device] = counts.get(fall.device, 0) + 1
        return counts

    def count(self, fallen: Fallen, device: str | None) -> None:
        """Record a failure at *device* if *fallen* says that the driver caused it."""
        if fallen.fault:
            fall = Fall(self._backend, fallen.fault, device, self._clock.instant())
            self._falls = [*self._falls[1 - KEPT_FALLS :], fall]

    def recall(self, falls: Iterable[Fall]) -> None:
        """Restore those of *falls* that an earlier agent recorded for this driver."""
        known = (fall for fall in falls if fall.backend == self._backend and fall.fault in fault_rows())
        self._falls = [*known, *self._falls][-KEPT_FALLS:]
        self._unread = any(fall.fault == signal.SIGBUS.name for fall in self._recent())

    @property
    def falls(self) -> tuple[Fall, ...]:
        """Return the failures that still count."""
        return tuple(self._recent())

    # A call in progress.

    def watch(self, child: Child, began: float, deadline: float, seconds: float) -> Fallen | None:
        """Watch a long call of *child*; return the meaning of its failure once *deadline* has passed, else None.

        The call began at *began* and may take *seconds*.
        """
        if self._stands(child):
            return None
        now = self._clock.monotonic()
        call = self._watch.call(child, began)
        if now >= deadline:
            self._watch.look(child)
            elapsed = now - call.since
            missing = 0.0 if self._watch.cause(child) else self._watch.missing_seconds(child, elapsed, seconds)
            if child.in_call and elapsed < seconds + missing:
                return self._slow(child, now - began, seconds)
            return self.overdue(child, elapsed, now - max(deadline, call.since + seconds + missing))
        self._watch.look_before(child, deadline, seconds)
        return None

    def look_at(self, deadline: float, seconds: float) -> float:
        """Return when to check next a call that must end by *deadline*."""
        return self._watch.look_at(deadline, seconds, soon=self._unseen)

    def record_success(self) -> None:
        """Stop the watch: the reader answered or exited."""
        self._watch.end()
        self._stuck = None
        self._proven = False

    def overdue(self, child: Child, seconds: float, late: float) -> Fallen | None:
        """Return the failure of *child*, which has not answered for *seconds*; None until the cause is decided.

        *late* is the number of seconds since the deadline.
        """
        self._watch.look(child)
        out = f"{child.call or 'its start'} has not returned for {seconds:.1f} s ({child.where})"
        if users := _of_users(child):
            return _soft(f"{out}, but {users.meaning}", charged=True)
        if cause := self._of_files() or self._watch.cause(child):
            return _soft(f"{out}, but {cause}")
        kept = self._watch.kept_time()
        if kept is None and late < PROOF_SECONDS:
            return None
        if not kept:
            return _soft(f"{out}, but {self._watch.no_time(kept)}")
        if not child.in_call:
            return self._ours(f"did not answer for {seconds:.1f} s outside of any driver call: {out}")
        if other := self._watch.other_cause(child):
            return _soft(f"{out}, but {other}", charged=True)
        self._proven = True
        return Fallen(Failure(FailureKind.HUNG, out, of_driver=True), HANG, charged=True)

    def stuck(self, child: Child, patience_seconds: float) -> Fallen:
        """Return the meaning of *child* not being killable, now and at each later check.

        The driver is blamed at once if the process is in state D and its call is proven to hang. Any other process may
        still be working, or exiting slowly on a busy machine: it has *patience_seconds* in which nothing keeps it from
        exiting.
        """
        now, look = self._clock.monotonic(), self._surroundings.look(child.pid)
        before = self._stuck or _Stuck(now, now, look)
        cause = disturbance(look, look, 1.0) or disturbance(before.look, look, now - before.seen)
        cause = cause or self._surroundings.silence(self._libraries)
        self._stuck = _Stuck(now if cause else before.since, now, look)
        out = f"{child.call} cannot be terminated ({child.where}); no second collector is started"
        if cause := cause or ((users := _of_users(child)) and users.meaning) or "":
            return _soft(f"{out}: {cause}")
        if not child.in_call:
            return _soft(f"{out}: it is in no driver call")
        hangs = self._proven and look is not None and look.state == "D"
        if not hangs and now - before.since < patience_seconds:
            return _soft(f"{out}: it was killed and has not ended yet; check the load of the node")
        return Fallen(Failure(FailureKind.STUCK, out, of_driver=True), charged=True)

    # Errors that the driver reports.

    def of_all(self, child: Child | None, failure: Failure) -> Failure:
        """Return the *failure* by which *child* gave up its whole backend, weighed; it names no device."""
        kind = FailureKind.ERROR if failure.kind in OF_A_DEVICE else failure.kind
        return self._weighed(child, msgspec.structs.replace(failure, kind=kind))

    def of_one(self, child: Child | None, sample: Sample) -> Sample:
        """Return a *sample* of *child* with its failure weighed."""
        if sample.failure is None:
            return sample
        return msgspec.structs.replace(sample, failure=self._weighed(child, sample.failure))

    def _weighed(self, child: Child | None, failure: Failure) -> Failure:
        """Return *failure*, not attributed to the driver if the machine refused memory or another resource.

        Nor is it attributed to the driver if the library never called it, unless the failure names a fault of the
        driver.
        """
        is_refusal = child is not None and failure.of_driver and failure.kind in REFUSALS
        want = self._wants.behind(child, failure.kind, self._shared or ()) if child is not None and is_refusal else ""
        if not want and is_refusal and failure.kind in SAID_WITHOUT_ASKING:
            want = self._surroundings.unasked(self._backend, failure.kind)
        if not want:
            return failure
        kind = FailureKind.ERROR if failure.kind in SAID_WITHOUT_ASKING else failure.kind
        return msgspec.structs.replace(failure, kind=kind, detail=f"{failure.detail}; {want}", of_driver=False)

    def shortage(self, child: Child) -> str:
        """Return what may have kept *child* from a device when it listed its devices; empty if nothing did."""
        return self._wants.behind(child, FailureKind.LOST, self._shared or ())

    # A process that exited.

    def starts(self) -> None:
        """Note the start of a new process: files that were replaced before are not a cause of its exit."""
        self._wants.look()
        self._loading, self._stood = True, False
        self._unnoted = None
        self._watch.forget_rest()
        self._has_huge_pages = False
        stamps = self._surroundings.stamps(self._libraries)
        if stamps is not None:
            self._libraries = {path: seen for path, seen in stamps.items() if seen is not None}

    def loaded(self, child: Child) -> None:
        """Record which libraries *child* has loaded."""
        self._loading = self._unseen = False
        self._unproven = ()
        self._note_files(child.pid)

    def _note_files(self, pid: int, before: Mapping[str, Stamp | None] | None = None) -> Mapping[str, Stamp | None]:
        """Record the libraries and shared files of *pid*; files that it had *before* keep their earlier record.

        Return the libraries that it has mapped now; none if their disk does not answer.
        """
        self._watch.note_rest(pid)
        mapped = self._surroundings.mapped(pid)
        if mapped is None:
            if before is None:
                self._shared, self._unnoted = None, pid
            return {}
        self._shared, self._unnoted = mapped.shared, None
        self._has_huge_pages = self._has_huge_pages or mapped.has_huge_pages
        found = mapped.libraries
        gone = [path for path, seen in found.items() if seen is None]
        there = (self._surroundings.stamps(gone) if gone else {}) or {}
        # A library that was never on disk cannot be replaced there.
        new = {path: seen for path, seen in found.items() if seen is not None or there.get(path)}
        self._libraries = new | dict(before or {})
        return found

    @property
    def to_prove(self) -> tuple[str, ...]:
        """Return the libraries that the next process must read in full before it loads them.

        A disk error on a page of a library also ends the process by SIGBUS. A second SIGBUS counts only if all
        libraries could be read since the first.
        """
        return self._unproven

    @property
    def stands_still(self) -> bool:
        """Return whether the next process must stop at a crash until the agent has examined it.

        An earlier process crashed while it was starting, before its files were recorded.
        """
        return self._unseen

    def replaced(self, pid: int) -> str | None:
        """Return a loaded library of *pid* whose file on disk was replaced, or None.

        Records first the files that it loaded since its start, or that a slow disk kept from being recorded.
        """
        self._wants.look()
        mapped = self._note_files(pid, self._libraries if self._unnoted is None else None)
        return self._surroundings.replaced(self._libraries, mapped)

    def _of_files(self) -> str:
        return self._surroundings.of_files(self._libraries) if self._unnoted is None else UNNOTED

    def ended(self, child: Child, end: Exit) -> Fallen:
        """Return the meaning of *child* exiting without a request."""
        said = f"; it said last: {child.tail.last}" if child.tail.last else ""
        where = f"in: {child.call}" if child.in_call else f"outside of any driver call (last: {child.call})"
        if child.was_ended:
            return self._ours("closed its channel and was terminated" + said)
        if end.signal == signal.SIGKILL:
            return _soft(
                f"{self._name} was killed by SIGKILL {_while(child)}: by the out of memory killer, a person or an "
                "oops; see `journalctl -k`"
            )
        if loaded := self._of_files():
            return _soft(f"{self._name} {end} {where}: {loaded}")
        words = child.tail.text
        is_crash = end.fault in fault_rows() and child.in_call
        lacking = [want for want in wants() if want.words.search(words)]
        shown = self._wants.seen(child, said=bool(lacking), files=self._shared or ())
        if lacking:
            told = _soft(f"{self._name} {end} {where}, for lack of {lacking[0].name}{said}; {shown or lacking[0].step}")
            if shown or not is_crash or not lacking[0].of_boards:
                return told
            if sum(fall.fault == SAID for fall in self._recent()) < MOST_SAID:
                return msgspec.structs.replace(told, fault=SAID)
        if end.signal is None and NOT_INSTALLED.search(words):
            return _soft(f"{self._name} {end}{said}; a part of nodevet is missing or broken: reinstall nodevet")
        if shown and end.signal not in OTHERS_SENT:
            return _soft(f"{self._name} {end} {where}, but {shown}{said}")
        was_told, self._unseen = self._unseen, self._unseen or (is_crash and self._loading)
        if end.signal == signal.SIGBUS and child.in_call and (others := self._unserved()):
            return _soft(f"{self._name} {end} {where}, but {others}")
        if end.signal == signal.SIGBUS and child.in_call and self._unread:
            self._unread, self._unproven = False, tuple(self._libraries)
            words = "an earlier agent saw such a crash too, and no library was read in full since then"
            return _soft(f"{self._name} {end} {where}, but {words}")
        if is_crash and (users := _of_users(child)) and users.crash:
            return _soft(f"{self._name} {end} {where}, but {users.crash}{said}", charged=True)
        if is_crash and (other := self._surroundings.preloaded() or self._scribbled(was_told)):
            return _soft(f"{self._name} {end} {where}, but {other}")
        if is_crash and not INTERPRETER.search(words):
            if end.signal == signal.SIGBUS:
                self._unproven = tuple(self._libraries)
            failure = Failure(FailureKind.CRASHED, f"the collector {end} in: {child.call}{said}", of_driver=True)
            return Fallen(failure, end.fault, charged=True)
        if end.signal in OTHERS_SENT:
            return _soft(f"{self._name} {end} {_while(child)}: not sent by the agent{said}")
        return self._ours(f"{end} {where}{said}")

    def broke_protocol(self, detail: str) -> Fallen:
        """Return the meaning of a message that violates the protocol."""
        return self._ours(f"broke the protocol: {detail}")

    def lost_words(self, detail: str) -> Failure:
        """Return the failure for a sample of the reader that could not be decoded."""
        return self._ours(f"sent an unreadable message: {detail}").failure

    # Helpers.

    def _stands(self, child: Child) -> bool:
        """Return whether *child* has stopped in its crash handler; record its files and let it continue.

        Only once: after that, its usual deadline applies.
        """
        is_told = self._unseen and self._loading and not self._stood
        if not (is_told and child.in_call and self._surroundings.stands_still(child.pid)):
            return False
        self._stood = True
        self._note_files(child.pid)
        with suppress(ProcessLookupError):
            os.kill(child.pid, WAKE)
        return True

    def _slow(self, child: Child, needed: float, seconds: float) -> Fallen | None:
        """Return the failure for *child* if it *needed* too long, though its present call took less than *seconds*.

        None: wait. A late call has its full time: a driver whose calls return does answer, only slowly.
        """
        self._watch.look(child)
        if needed < (SLOW_START_DEADLINES if self._loading else SLOW_DEADLINES) * seconds:
            return None
        words = f"{self._name} needed {needed:.1f} s up to {child.call or 'its start'}: {SLOWLY}"
        return _soft(words, charged=True)

    def _unserved(self) -> str:
        """Return another cause than the library for an access to an unmapped address; empty if there is none."""
        if self._shared is None:
            return (
                "it is not known which files it had mapped: no start reached that point; search `journalctl -k` "
                "for errors of their disk, and reinstall the driver's libraries"
            )
        if self._shared:
            return f"it shares {self._shared[0]} with other programs: one may have truncated it, or its disk is full"
        if self._has_huge_pages:
            return "it has mapped huge pages, and none may have been left: see HugePages_Free in /proc/meminfo"
        return ""

    def _scribbled(self, was_told: bool) -> str:
        """Return which other programs may have corrupted data that the library reads; empty if none.

        Unknown until a process *was_told* to stop at a crash.
        """
        if self._shared is None and not was_told:
            return "it is not known which files it had mapped: the agent records them if the next start crashes"
        return f"it shares {self._shared[0]} with other programs: one may have written into it" if self._shared else ""

    def _ours(self, what: str) -> Fallen:
        words = f"{self._name} {what}; no driver fault is known: report this with the agent's log"
        return Fallen(Failure(FailureKind.READER, words), charged=True)

    def _recent(self) -> list[Fall]:
        if not self._falls:
            return []
        now, rows = self._clock.instant(), fault_rows()
        ages = ((fall, now.seconds_since(fall.when)) for fall in self._falls)
        return [fall for fall, age in ages if age is not None and age <= rows[fall.fault].window_seconds]


@lru_cache(maxsize=1)
def fault_rows() -> Mapping[str, FaultRow]:
    """Return the rows of reference/reader_faults.csv by the name of the fault."""
    return {row.fault: row for row in load_table("reader_faults.csv", FaultRow)}


def _module(backend: str) -> str:
    vendor = vendor_of(backend)
    return (vendor.kernel_module if vendor is not None else None) or ""


def _of_users(child: Child) -> CallRow | None:
    return calls_of_users().get(child.call.partition(" ")[0])


def stuck_seconds(deadline_seconds: float, start_deadline_seconds: float) -> float:
    """Return how many seconds a killed process may stay in a call; the arguments are deadlines of calls and start."""
    return max(STUCK_DEADLINES * deadline_seconds, start_deadline_seconds)


def no_start(backend: str, error: OSError) -> Fallen:
    """Return the failure for a reader of *backend* that could not be started, with the remedy."""
    return _soft(f"the {backend} collector cannot be started: {error}: {start_step(error)}")


def _while(child: Child) -> str:
    return f"in: {child.call}" if child.in_call else "outside of any driver call"


def _soft(detail: str, *, charged: bool = False) -> Fallen:
    """Return a failure that blames nobody; a *charged* device is read after all others, then not read for a while."""
    return Fallen(Failure(FailureKind.READER, detail), charged=charged)
