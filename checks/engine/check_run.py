"""One run of a check on a view: an exception costs only this check, an invalid record only itself.

If a check raises, the events, results and samples that cause it are found by bisection and set aside; of a sample only
the readings. The rest is judged. A record that was set aside is a finding of its own, ``unknown``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec

from nodevet.checks.core.guard import Bug, attempt, culprits
from nodevet.checks.core.model import (
    NODE,
    Action,
    CheckRun,
    Clearing,
    Episode,
    Event,
    FaultClass,
    Finding,
    Instant,
    Key,
    Outcome,
    Part,
    PartKind,
    ReaderState,
    ReaderStatus,
    Reading,
    ReadingStatus,
    Sample,
)
from nodevet.checks.core.overrun import Overrun, within
from nodevet.checks.core.parts import reader_of
from nodevet.checks.reference.limits import from_table

from .left_open import LeftOpen
from .registry import Check
from .site_code import in_one_process, line_of
from .unlisted import of_removed_sources
from .view import View

CHECK_ERROR = "check.error"
LONGEST_SECONDS = from_table("site_checks.together").value
"""Time limit in seconds for all checks of a site together in one round, because the main loop waits for them.

Checks of nodevet itself need milliseconds.
"""

NOT_ASKED = "it did not run: another custom check used the time of all"

FIRST_REST_SECONDS = from_table("site_checks.first_rest").value
LONGEST_REST_SECONDS = from_table("site_checks.longest_rest").value
"""Longest pause in seconds of a check that exceeded its time; the pause doubles with each overrun in a row."""

MOST_FINDINGS = int(from_table("site_checks.findings").value)
"""Limit of findings per check, more than any node has: a check that yields for ever would use up all memory."""

MOST_TRIES = int(from_table("site_checks.tries").value)
"""Limit of repeated runs of a check in one round; beyond it, the check itself is broken."""

Item = TypeVar("Item")


class ConfiguredCheck(msgspec.Struct, frozen=True):
    """A check with its configured policy."""

    check: Check
    policy: msgspec.Struct


class Ran(msgspec.Struct, frozen=True):
    """The findings of a check; ``error`` if it could not run at all; ``aside`` are events that it cannot judge.

    A check that ``overran`` its time was interrupted.
    """

    findings: tuple[Finding, ...] = ()
    error: str = ""
    aside: tuple[Event, ...] = ()
    overran: bool = False


class Rests:
    """The checks that exceeded their time, and the end of their pause; and those that left too many files open."""

    def __init__(self) -> None:
        """Start without any."""
        self._resting: dict[str, tuple[Instant, float, Ran]] = {}
        self._left_open = LeftOpen()
        self._round: Instant | None = None
        self._left = 0.0

    def run(self, configured: ConfiguredCheck, view: View) -> Ran:
        """Return the check's result for *view*, or its last result during a pause."""
        if configured.check.is_own:
            return run_check(configured, view)
        name = configured.check.name
        if why := self._left_open.why(name):
            return Ran(error=why)
        since, rest, before = self._resting.pop(name, (view.now, 0.0, Ran()))
        seconds = view.now.seconds_since(since)
        if seconds is not None and seconds < rest:
            self._resting[name] = since, rest, before
            return before
        if view.now != self._round:
            self._round, self._left = view.now, LONGEST_SECONDS
        numbers, began = self._left_open.before(name), time.monotonic()
        ran = run_check(configured, view, self._left)
        self._left -= time.monotonic() - began
        self._left_open.after(name, numbers)
        if ran.overran:
            self._left = 0.0  # it took all
            longer = min(max(2 * rest, FIRST_REST_SECONDS), LONGEST_REST_SECONDS)
            self._resting[name] = view.now, longer, ran
        return ran


class _Tries:
    """Runs a check on parts of a view, up to a limit of runs."""

    def __init__(self, configured: ConfiguredCheck, view: View) -> None:
        self._armed = configured
        self._bare = msgspec.structs.replace(view, events=(), results=(), samples={}, reuse=None)
        self._left = MOST_TRIES

    @property
    def exhausted(self) -> bool:
        return self._left <= 0

    def fails(self, **parts: object) -> bool:
        """Return whether the check raises on these parts of the view alone."""
        self._left -= 1
        if self.exhausted:
            return False
        return isinstance(attempt(partial(_judged, self._armed, msgspec.structs.replace(self._bare, **parts))), Bug)


def run_check(configured: ConfiguredCheck, view: View, seconds: float = LONGEST_SECONDS) -> Ran:
    """Return the check's result for *view*, without the records that make it raise.

    A check of a site has *seconds* to run.
    """
    if configured.check.broken:
        return Ran(error=configured.check.broken)
    if configured.check.is_own:
        return _run(configured, view)
    if seconds <= 0.0:
        return Ran(error=NOT_ASKED)
    anew = msgspec.structs.replace(view, reuse=None)  # it may read anything in the view
    try:
        with configured.check.during():
            return within(seconds, partial(_run, configured, anew))
    except Overrun as error:
        together = f"the checks of a site have {LONGEST_SECONDS:g} s together"
        return Ran(error=f"{error} ({together}); it is asked again ever later", overran=True)


def _run(configured: ConfiguredCheck, view: View) -> Ran:
    done = attempt(partial(_judged, configured, view))
    if not isinstance(done, Bug):
        return Ran(done)
    tries = _Tries(configured, view)
    if tries.fails():
        return Ran(error=str(done))
    events = culprits(view.events, lambda some: tries.fails(events=tuple(some)))
    results = culprits(view.results, lambda some: tries.fails(results=tuple(some)))
    samples = dict(culprits(tuple(view.samples.items()), lambda some: tries.fails(samples=dict(some))))
    mended = {key: _mended(tries, key, sample) for key, sample in samples.items()}
    rest = msgspec.structs.replace(
        view,
        events=_without(view.events, events),
        results=_without(view.results, results),
        samples=_replaced(view.samples, mended),
        reuse=None,
    )
    again = attempt(partial(_judged, configured, rest))
    if isinstance(again, Bug) or tries.exhausted or not (events or results or samples):
        return Ran(error=str(done))
    aside = partial(_set_aside, configured.check, done)
    told = [aside(sample.device, "", f"readings of {sample.device}") for sample in samples.values()]
    told += [aside(NODE, ".events", f"{len(events)} events, such as {events[0].code}")] if events else []
    told += [aside(NODE, ".results", f"results of {results[0].workload}")] if results else []
    unique = {finding.key: finding for finding in told}
    return Ran((*again, *unique.values()), aside=tuple(events))


def nothing_found(check: Check, error: str) -> Finding:
    """Return the finding of a check that raised, or that has nothing to judge on this node."""
    if not error:
        return Finding(
            check=check.name,
            code=f"{check.name}.nothing",
            outcome=Outcome.SKIPPED,
            message=f"check {check.name} matched nothing on this node",
            fault_class=FaultClass.UNKNOWN,
        )
    # The error of a broken check contains the next step, and a paused check is not at fault.
    step = "" if check.broken or error == NOT_ASKED else f"; {_report(check)}"
    return _error(check, NODE, "", f"check {check.name} did not run: {error}{step}")


def runs_again(check: Check, ran: Ran, episodes: Iterable[Episode]) -> tuple[Finding, ...]:
    """Return the findings that end "could not run" episodes of *check*, or those of records that it can judge now."""
    told = [episode for episode in episodes if episode.key.code == CHECK_ERROR and episode.check == check.name]
    if ran.error or not told:
        return ()
    standing = {finding.key for finding in ran.findings}
    return tuple(_over(episode, f"check {check.name} runs again") for episode in told if episode.key not in standing)


def _over(episode: Episode, message: str) -> Finding:
    return msgspec.structs.replace(
        episode.finding,
        outcome=Outcome.PASS,
        message=message,
        action=Action.NONE,
        required=False,
        evidence_time=None,
    )


def not_asked(checks: Iterable[ConfiguredCheck], episodes: Iterable[Episode]) -> tuple[Finding, ...]:
    """Return the findings that end "could not run" episodes of checks that are not among *checks* any more.

    Such a check was disabled, its package was removed, or it has another name now that it loads.
    """
    asked = {configured.check.name for configured in checks}
    return tuple(
        _over(episode, f"check {episode.check} is no longer configured")
        for episode in episodes
        if episode.key.code == CHECK_ERROR and episode.check not in asked
    )


def not_configured(readers: Iterable[ReaderStatus], episodes: Iterable[Episode]) -> tuple[Finding, ...]:
    """Return the findings that end "could not read" episodes of readers that are not among *readers* any more.

    Its backend or command was removed from the configuration. Faults of a driver do not end with that, nor do those of
    boards that it read (inventory).
    """
    backends = {reader.backend for reader in readers}
    return tuple(
        _over(episode, f"no collector of {backend} is configured")
        for episode in episodes
        if episode.key.device == NODE
        and episode.key.code.startswith("reader.")
        and episode.outcome is Outcome.UNMEASURED
        and (backend := reader_of(episode.key.part)) not in backends
    )


def not_listed(view: View, findings: Iterable[Finding], episodes: Iterable[Episode]) -> tuple[Finding, ...]:
    """Return the findings that end "could not read" episodes of devices that no driver lists any more.

    Their loss is among *findings*, or they had a number instead of a name while their driver refused. Nothing reads
    them: without this they stand until the device is back.
    """
    known = tuple(findings)
    lost = {entry.device for entry in known if entry.code == "device.missing" and entry.outcome is Outcome.FAIL}
    listings = [reader.last_round or reader.state is ReaderState.ABSENT for reader in view.readers]
    has_listed = bool(listings) and all(listings)  # without collectors nothing is known of any device
    unread = of_removed_sources(view)
    judged: set[Key] | None = None
    found = []
    for episode in episodes:
        device = episode.key.device
        if episode.outcome is not Outcome.UNMEASURED or device == NODE:
            continue
        if device in lost or device in unread or (has_listed and view.device(device) is None):
            judged = judged or {entry.key for entry in known}
            if episode.key not in judged:
                found.append(_over(episode, "the device is no longer listed"))
    return tuple(found)


def told_run(check: Check, ran: Ran, findings: Iterable[Finding], now: Instant, seconds: float) -> CheckRun:
    """Return the snapshot's record of the run of *check* that began *now* and took *seconds*."""
    return CheckRun(
        check=check.name,
        time=now,
        duration_seconds=seconds,
        success=not ran.error,
        error=ran.error,
        outcomes=tally(findings),
    )


def tally(findings: Iterable[Finding]) -> dict[str, int]:
    """Return the number of *findings* per outcome."""
    outcomes = [finding.outcome for finding in findings]  # of a thousand findings: a list counts them by identity
    return {outcome.value: outcomes.count(outcome) for outcome in Outcome}


def _judged(configured: ConfiguredCheck, view: View) -> tuple[Finding, ...]:
    """Return the findings of the check. Raises any exception of the check, and for a site's check those of `sound`.

    RuntimeError if the check calls exit, as a script does, or a debugger, or yields too many findings.
    """
    try:
        check = configured.check
        judge = partial(check.judge, view, configured.policy)
        found = _listed(judge) if check.is_own else tuple(map(sound, in_one_process(partial(_listed, judge))))
    except _ends() as error:
        is_debugger = isinstance(error, _quits_of_debuggers())
        ended = RuntimeError("calls a debugger" if is_debugger else f"raised {type(error).__name__}: {error}")
        raise ended.with_traceback(line_of(error, configured.check.module)) from error
    if len(found) > MOST_FINDINGS:
        raise RuntimeError(f"yielded more than {MOST_FINDINGS} findings")
    return found


def _ends() -> tuple[type[BaseException], ...]:
    """Return what is raised to end a process, a generator or the run of a debugger."""
    return (SystemExit, GeneratorExit, *_quits_of_debuggers())


def _quits_of_debuggers() -> tuple[type[BaseException], ...]:
    """Return what a debugger of the standard library raises; none where none is imported, which takes 0.8 MiB."""
    module = sys.modules.get("bdb")
    return () if module is None else (module.BdbQuit,)


def _listed(judge: Callable[[], Iterable[Finding]]) -> tuple[Finding, ...]:
    return tuple(islice(judge(), MOST_FINDINGS + 1))


def sound(finding: object) -> Finding:
    """Return *finding* with valid field types. Raises TypeError, or msgspec's error for a field.

    Nothing validates fields when a finding is made, and one that cannot be stored or shown would cost all others. Our
    own checks are type-checked before a release.
    """
    if not isinstance(finding, Finding):
        raise TypeError(f"yielded {type(finding).__name__}, not Finding")
    return msgspec.msgpack.decode(msgspec.msgpack.encode(finding), type=Finding)


def _mended(tries: _Tries, key: tuple[str, str], sample: Sample) -> Sample | None:
    """Return *sample* without the values that make the check raise; None if the sample as a whole does."""

    def fails(some: Sequence[Reading]) -> bool:
        return tries.fails(samples={key: msgspec.structs.replace(sample, readings=tuple(some))})

    bad = culprits(sample.readings, fails)
    if not bad:
        return None
    readings = tuple(_unread(entry) if any(entry is one for one in bad) else entry for entry in sample.readings)
    mended = msgspec.structs.replace(sample, readings=readings)
    return None if tries.fails(samples={key: mended}) else mended


def _unread(reading: Reading) -> Reading:
    detail = f"{reading.value!r} cannot be judged"[:200]
    return Reading(reading.quantity, None, reading.part, ReadingStatus.ERROR, detail)


def _without(items: Sequence[Item], bad: Sequence[Item]) -> tuple[Item, ...]:
    return tuple(item for item in items if not any(item is one for one in bad))


def _replaced(
    samples: Mapping[tuple[str, str], Sample], mended: Mapping[tuple[str, str], Sample | None]
) -> dict[tuple[str, str], Sample]:
    together = {**samples, **mended}
    return {key: sample for key, sample in together.items() if sample is not None}


def _set_aside(check: Check, bug: Bug, device: str, suffix: str, what: str) -> Finding:
    words = f"check {check.name} cannot judge {what}: {bug}; it is skipped; {_report(check)}"
    return _error(check, device, suffix, words)


def _report(check: Check) -> str:
    """Return who can fix *check*, as text."""
    return "report this bug in nodevet" if check.is_own else f"correct {check.module}"


def _error(check: Check, device: str, suffix: str, message: str) -> Finding:
    return Finding(
        check=check.name,
        code=CHECK_ERROR,
        outcome=Outcome.UNMEASURED,
        message=message,
        device=device,
        part=Part(PartKind.DEVICE, f"vendor:{check.name}{suffix}"),
        fault_class=FaultClass.UNKNOWN,
        clearing=Clearing.UNMEASURED,
        required=True,
        gates=False,
    )
