"""What the kernel said before its ring was overwritten, from the journal: asked once, in a thread, with a deadline."""

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
"""Gives what it is called with the output of journalctl, piece by piece."""


class Told(msgspec.Struct, frozen=True):
    """What the journal has of the span: its events, how many records it holds, and in words why that is not all."""

    events: tuple[Event, ...] = ()
    records: int = 0
    trouble: str = ""


class JournalReader:
    """Reads the journal for the records that are *missing*, without holding up who asked."""

    def __init__(self, missing: Missing, output: Output, place: Callable[[Line], Instant], boot_id: str = "") -> None:
        """Ask *output*, which raises NodevetError or OSError where it cannot go on.

        *place* says when a line was recorded. Entries of another boot than *boot_id* do not count.
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
        """Wait for the answer: no longer than the deadline of the program."""
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
    """Give *take* what journalctl prints of the kernel's records since boot.

    Raises NodevetError or OSError, which say why not. Where the ring was overwritten there are more records than fit
    into memory at once, so none of it is kept.
    """
    program = shutil.which("journalctl", path=SEARCHED)
    if program is None:
        raise NodevetError("there is no journalctl")
    environment = {"PATH": SEARCHED, "LC_ALL": "C"}
    Runner(take=take).run((program, *ARGUMENTS), DEADLINE_SECONDS, environment).checked()
