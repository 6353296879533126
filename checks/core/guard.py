"""The one place that catches every exception: a bug costs the part that has it, and nothing beside it.

A part is anything with a name: a member of the main loop, a check, a page, a verb, one record, one sample. What a part
raises is our own bug, never the hardware's: it is told once, counted, shown as ``unknown``, and over when the part
works again. Errors that a part may expect are caught by their names where they arise, not here.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import PurePath
from typing import TypeVar

import msgspec

from .model import Action, Clearing, FaultClass, Finding, Outcome, Part, PartKind
from .overrun import Overrun

AGENT = "agent"
"""Stands where a finding names its check: the agent itself."""

CODE = "agent.error"
"""The code of every finding about a part of the agent that failed."""

MAXIMUM_WORDS = 300
MAXIMUM_PARTS = 100
"""So many parts are told apart; names come from our code, so this is only for safety."""

Returned = TypeVar("Returned")
Item = TypeVar("Item")


class Bug(msgspec.Struct, frozen=True):
    """An exception that nobody expected: its words, and the line of the innermost file that raised it."""

    error: str
    where: str

    def __str__(self) -> str:
        """Return both for people."""
        return f"{self.error} ({self.where})" if self.where else self.error


class PartFault(msgspec.Struct, frozen=True):
    """A part that failed: how often since the start of the process, with what, and whether it works again."""

    part: str
    count: int
    error: str
    works: bool = False


def attempt(work: Callable[[], Returned], *, let: tuple[type[Exception], ...] = ()) -> Returned | Bug:
    """Return what *work* returns, or the Bug where it raises anything but *let*, which the caller expects.

    What ends a process, or is raised into it from outside, passes. Libraries raise more that is no Exception: what is
    cancelled (asyncio), or skipped (a test).
    """
    try:
        return work()
    except let:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit, Overrun):
        raise
    except BaseException as problem:  # noqa: BLE001 (the one broad except of the project)
        return _bug(problem)


class Guard:
    """Runs parts by name and remembers which failed. Safe to use from several threads."""

    def __init__(self, log: Callable[[str], None]) -> None:
        """*log* takes a line when a part fails in a new way, and one when it works again."""
        self._log = log
        self._lock = threading.Lock()
        self._faults: dict[str, PartFault] = {}

    @property
    def faults(self) -> tuple[PartFault, ...]:
        """Return the parts that ever failed, those that work again too."""
        with self._lock:
            return tuple(self._faults.values())

    def run(self, part: str, work: Callable[[], Returned], otherwise: Callable[[], Returned]) -> Returned:
        """Return what *work* of *part* returns; where it raises, what *otherwise* returns."""
        done = attempt(work)
        if isinstance(done, Bug):
            self.failed(part, done)
            return otherwise()
        if part in self._faults:
            self.works(part)
        return done

    def failed(self, part: str, bug: Bug) -> None:
        """Note that *part* failed; the same failure is told once."""
        with self._lock:
            before = self._faults.get(part)
            if before is None and len(self._faults) >= MAXIMUM_PARTS:
                part, before = "others", self._faults.get("others")
            told = before is not None and not before.works and before.error == str(bug)
            self._faults[part] = PartFault(part, before.count + 1 if before else 1, str(bug))
        if not told:
            self._tell(f"{part} failed: {bug}; the agent runs without it: report this bug")

    def works(self, part: str) -> None:
        """Note that *part* worked; what it failed with is over."""
        with self._lock:
            before = self._faults.get(part)
            if before is None or before.works:
                return
            self._faults[part] = msgspec.structs.replace(before, works=True)
        self._tell(f"{part} works again")

    def _tell(self, line: str) -> None:
        """Log *line*; a log that fails, too, costs that line: the part is among the faults all the same."""
        attempt(partial(self._log, line))


def fault_findings(faults: Iterable[PartFault]) -> tuple[Finding, ...]:
    """Return what *faults* mean for the node: it is not seen in full, which is our own bug and closes no gate."""
    return tuple(
        Finding(
            check=AGENT,
            code=CODE,
            outcome=Outcome.PASS if fault.works else Outcome.UNMEASURED,
            message=f"{fault.part} of the agent works again" if fault.works else _words(fault),
            part=Part(PartKind.DEVICE, f"vendor:{fault.part}"),
            fault_class=FaultClass.UNKNOWN,
            action=Action.NONE if fault.works else Action.WATCH,
            clearing=Clearing.UNMEASURED,
            required=not fault.works,
            gates=False,
        )
        for fault in faults
    )


def culprits(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> tuple[Item, ...]:
    """Return those of *items* that make *fails* true by themselves, found by halving: few tries where few are bad."""
    if not items or not fails(items):
        return ()
    if len(items) == 1:
        return tuple(items)
    middle = len(items) // 2
    return (*culprits(items[:middle], fails), *culprits(items[middle:], fails))


def _words(fault: PartFault) -> str:
    times = "once" if fault.count == 1 else f"{fault.count} times"
    return (
        f"{fault.part} of the agent failed {times}: {fault.error}; all other parts run; "
        "this is a bug in nodevet and no hardware fault: report it with the agent's log"
    )


def _bug(problem: BaseException) -> Bug:
    frames = traceback.extract_tb(problem.__traceback__)
    where = f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return Bug(f"{type(problem).__name__}: {_printable(problem)}"[:MAXIMUM_WORDS], where)


def _printable(problem: BaseException) -> str:
    """Return the words of *problem* on one line; an exception may hold any text, or raise when it is asked for it."""
    return one_line(str(traceback.TracebackException(type(problem), problem, None)))


def one_line(text: str) -> str:
    """Return *text* as one line that every surface can show, whatever letters or broken bytes are in it."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def printable(text: str) -> str:
    """Return *text* with ``?`` for what cannot be printed: each letter keeps its place."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
