"""What the kernel said before its ring was overwritten, from the journal: asked once, in a thread, with a deadline."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable

import msgspec

from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.command_run import Runner
from nodevet.checks.errors import Closed
from nodevet.checks.kernel_log.journal import ARGUMENTS, backlog
from nodevet.checks.kernel_log.lines import Line
from nodevet.checks.kernel_log.parse import KernelLogParser
from nodevet.checks.kernel_log.reader import Missing
from nodevet.checks.model import Event, FailureKind, Instant

__all__ = ["JournalReader", "Told", "journal_output"]

SEARCHED = "/usr/bin:/bin"
DEADLINE_SECONDS = 20.0


class Told(msgspec.Struct, frozen=True):
    """What the journal has of the span: its events and how many records it holds, or in words why it tells nothing."""

    events: tuple[Event, ...] = ()
    records: int = 0
    trouble: str = ""


class JournalReader:
    """Reads the journal for the records that are *missing*, without holding up who asked."""

    def __init__(self, missing: Missing, output: Callable[[], bytes], place: Callable[[Line], Instant]) -> None:
        """Ask *output*, which raises BackendError where it cannot tell; *place* says when a line was recorded."""
        self.missing = missing
        self._output = output
        self._place = place
        self._told = Told(trouble="its reader ended early")
        self._thread = threading.Thread(target=self._read, name="journal", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Return whether ``told`` is the answer."""
        return not self._thread.is_alive()

    @property
    def told(self) -> Told:
        """Return the answer."""
        return self._told

    def wait(self) -> None:
        """Wait for the answer: no longer than the deadline of the program."""
        self._thread.join(DEADLINE_SECONDS + 1.0)

    def _read(self) -> None:
        try:
            output = self._output()
        except (BackendError, Closed) as error:
            self._told = Told(trouble=str(error) or "it was stopped")
            return
        found = backlog(output, self.missing.after_seconds, self.missing.before_seconds)
        parser = KernelLogParser()
        for line in found.lines:
            parser.feed(line, self._place(line))
        self._told = Told(tuple(parser.take()), found.records)


def journal_output() -> bytes:
    """Return what journalctl prints of the kernel's records since boot. Raises BackendError, which says why not."""
    program = shutil.which("journalctl", path=SEARCHED)
    if program is None:
        raise BackendError(FailureKind.ERROR, "there is no journalctl")
    runner = Runner((program, *ARGUMENTS), {"PATH": SEARCHED, "LC_ALL": "C"}, DEADLINE_SECONDS)
    return runner.run().output
