"""Kernel messages overwritten in the ring buffer, read from the journal: once, in a thread, with a deadline."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import msgspec

from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.model import Event, Instant
from nodevet.checks.kernel_log.journal import ARGUMENTS, Span
from nodevet.checks.kernel_log.lines import Line
from nodevet.checks.kernel_log.parse import KernelLogParser
from nodevet.checks.kernel_log.reader import Missing
from nodevet.checks.system.background import Background
from nodevet.checks.system.process import Runner

SEARCHED = "/usr/bin:/bin"
DEADLINE_SECONDS = 20.0

Output = Callable[[Callable[[bytes], object]], None]
"""Passes the output of journalctl to its argument, piece by piece."""


class Told(msgspec.Struct, frozen=True):
    """The journal's answer: its events, its number of records, and the reason why it is incomplete, if it is."""

    events: tuple[Event, ...] = ()
    records: int = 0
    trouble: str = ""


class JournalReader:
    """Reads the *missing* records from the journal without blocking the caller."""

    def __init__(self, missing: Missing, output: Output, place: Callable[[Line], Instant], boot_id: str = "") -> None:
        """Read from *output*, which raises NodevetError or OSError if it cannot continue.

        *place* returns when a line was recorded. Entries of another boot than *boot_id* do not count.
        """
        self.missing = missing
        self._boot_id = boot_id
        self._output = output
        self._place = place
        self.told = Told(trouble="its reader ended early")
        """The answer."""
        self._thread = Background(self._read)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Return whether ``told`` is the answer."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait for the answer, at most until the deadline of the program."""
        self._thread.join(DEADLINE_SECONDS + 1.0)

    def _read(self) -> None:
        parser = KernelLogParser()
        span = Span(
            self.missing.after_seconds,
            self.missing.before_seconds,
            lambda line: parser.feed(line, self._place(line)),
            self._boot_id,
        )
        trouble = ""
        try:
            self._output(span.feed)
        except (NodevetError, OSError) as error:
            trouble = str(error)
        self.told = Told(tuple(parser.take()), span.records, trouble)


def journal_output(take: Callable[[bytes], object]) -> None:
    """Pass to *take* what journalctl prints of the kernel's records since boot.

    Raises NodevetError or OSError with the reason. After the ring buffer was overwritten, the records may not fit into
    memory at once; none of them is kept.
    """
    program = shutil.which("journalctl", path=SEARCHED)
    if program is None:
        raise NodevetError("there is no journalctl")
    environment = {"PATH": SEARCHED, "LC_ALL": "C"}
    Runner(take=take).run((program, *ARGUMENTS), DEADLINE_SECONDS, environment).checked()
