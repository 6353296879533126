"""The only broad ``except`` of the project: a bug disables the part that has it, and no other.

A part is anything with a name: a service of the main loop, a check, a page, a verb, one record, one sample. An
exception in a part is a bug of nodevet, never a hardware fault: it is logged once, counted and shown as ``unknown``
until the part works again. Expected errors are caught by name where they arise, not here.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import PurePath
from types import TracebackType
from typing import Any, TypeVar, overload

import msgspec

from .model import Action, Clearing, FaultClass, Finding, Outcome, Part, PartKind
from .overrun import Overrun

AGENT = "agent"
"""The check name in findings about the agent itself."""

CODE = "agent.error"
"""The code of every finding about a part of the agent that failed."""

MAXIMUM_WORDS = 300
MAXIMUM_PARTS = 100
"""Largest number of parts that are tracked separately; names come from our code, so this is only for safety."""

Returned = TypeVar("Returned")
Item = TypeVar("Item")


class Bug(msgspec.Struct, frozen=True):
    """An unexpected exception: its text, and the line of the innermost file that raised it."""

    error: str
    where: str

    def __str__(self) -> str:
        """Return text and line for display."""
        return f"{self.error} ({self.where})" if self.where else self.error


class PartFault(msgspec.Struct, frozen=True):
    """A part that failed: how often since the start of the process, its last error, and whether it works again."""

    part: str
    count: int
    error: str
    works: bool = False


def attempt(work: Callable[[], Returned], *, let: tuple[type[Exception], ...] = ()) -> Returned | Bug:
    """Return the result of *work*, or the Bug where it raises anything but *let*, which the caller expects.

    Exceptions that end the process or are raised into it from outside pass. BaseException is caught because libraries
    raise others of it: cancellation (asyncio) and skipping (a test).
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
    """Runs parts by name and remembers the failed ones. Safe to use from several threads."""

    def __init__(self, log: Callable[[str], None] = lambda _line: None) -> None:
        """*log* receives a line when a part fails in a new way, and one when it works again."""
        self._log = log
        self._lock = threading.Lock()
        self._faults: dict[str, PartFault] = {}

    @property
    def faults(self) -> tuple[PartFault, ...]:
        """Return the parts that ever failed, including those that work again."""
        with self._lock:
            return tuple(self._faults.values())

    @overload
    def run(self, part: str, work: Callable[[], Returned], otherwise: Callable[[], Returned]) -> Returned: ...

    @overload
    def run(self, part: str, work: Callable[[], Returned]) -> Returned | None: ...

    def run(self, part: str, work: Callable[[], Any], otherwise: Callable[[], Any] = lambda: None) -> Any:
        """Return the result of *work* of *part*; where it raises, the result of *otherwise*, or None."""
        done = attempt(work)
        if isinstance(done, Bug):
            self.failed(part, done)
            return otherwise()
        if part in self._faults:
            self.works(part)
        return done

    def failed(self, part: str, bug: Bug) -> None:
        """Record that *part* failed; the same failure is logged once."""
        with self._lock:
            before = self._faults.get(part)
            if before is None and len(self._faults) >= MAXIMUM_PARTS:
                part, before = "others", self._faults.get("others")
            is_logged = before is not None and not before.works and before.error == str(bug)
            self._faults[part] = PartFault(part, before.count + 1 if before else 1, str(bug))
        if not is_logged:
            self._report(f"{part} failed: {bug}; the agent runs without it: report this bug")

    def works(self, part: str) -> None:
        """Record that *part* works again."""
        with self._lock:
            before = self._faults.get(part)
            if before is None or before.works:
                return
            self._faults[part] = msgspec.structs.replace(before, works=True)
        self._report(f"{part} works again")

    def _report(self, line: str) -> None:
        """Log *line*; if the log fails too, only the line is lost: the part is among the faults all the same."""
        attempt(partial(self._log, line))


def fault_findings(faults: Iterable[PartFault]) -> tuple[Finding, ...]:
    """Return findings for *faults*: a bug of nodevet hides a part of the node, which closes no gate."""
    return tuple(
        Finding(
            check=AGENT,
            code=CODE,
            outcome=Outcome.PASS if fault.works else Outcome.UNMEASURED,
            message=f"{fault.part} of the agent works again" if fault.works else _fault_text(fault),
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
    """Return the *items* for which *fails* is true on their own, found by bisection: few calls where few are bad."""
    if not items or not fails(items):
        return ()
    if len(items) == 1:
        return tuple(items)
    middle = len(items) // 2
    return (*culprits(items[:middle], fails), *culprits(items[middle:], fails))


OF_FILES = ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError")
"""Errors of a module that is missing or half written, as during an upgrade under a running agent."""

MISSING_STEP = "a file of nodevet is missing or half written: restart the agent after an upgrade, or reinstall nodevet"
BUG_STEP = "this is a bug in nodevet and no hardware fault: report it with the agent's log"


def _fault_text(fault: PartFault) -> str:
    times = "once" if fault.count == 1 else f"{fault.count} times"
    return (
        f"{fault.part} of the agent failed {times}: {fault.error}; all other parts run; "
        f"{MISSING_STEP if str(fault.error).startswith(OF_FILES) else BUG_STEP}"
    )


def _bug(problem: BaseException) -> Bug:
    return Bug(f"{type(problem).__name__}: {_printable(problem)}"[:MAXIMUM_WORDS], _where(problem.__traceback__))


def _where(trace: TracebackType | None) -> str:
    """Return file and line of the innermost frame; without ``traceback``, which would read the file."""
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{PurePath(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def _printable(problem: BaseException) -> str:
    """Return the text of *problem* on one line; an exception may hold any text, or raise while it is formatted."""
    return one_line(str(traceback.TracebackException(type(problem), problem, None)))


def one_line(text: str) -> str:
    """Return *text* as one printable line, with any letters or broken bytes in it."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def printable(text: str) -> str:
    """Return *text* with ``?`` for each unprintable letter: every letter keeps its position."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
