"""Report pages, rendered by a child process so that the template engine's memory is never the agent's.

A site may keep them on a server, and a disk may stand still for minutes, as while a snapshot of it is taken. So a
thread of their own writes, starts and looks, and the main loop takes what it has to tell: it waits for no disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nodevet.agent.config.settings import Configuration
from nodevet.agent.services.protocol import Service
from nodevet.checks.core.errors import BusyError
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.system.background import Background
from nodevet.checks.system.files import replace
from nodevet.checks.system.process import RunError, RunFailure, Runner, python_module
from nodevet.exporters.documents.schema import encode
from nodevet.exporters.documents.types import BurnInDocument

RENDER_SECONDS = 30.0
LOOK_SECONDS = 0.5

SILENT_SECONDS = RENDER_SECONDS + 5.0
"""After so long without an end it is no child that is slow, but the disk that does not answer."""

READ_SECONDS = 1.0
"""How long whoever asks for a page waits for another who reads one: each who reads holds a thread."""

START_SECONDS = 0.3
"""How long the start waits for the page that was there before."""

END_SECONDS = 0.4
"""How long the end of the agent waits: for the document of the last load, and for the child to be gone."""

STAMP = "[0-9]" * 8 + "T*"
"""How names of reports begin: other files in a directory that a site chose are neither shown nor removed."""


class Reports(Service):
    """Keeps the last reports in a directory: the document as JSON, the page as HTML beside it."""

    name = "reports"

    def __init__(
        self, configuration: Configuration, *, log: Callable[[str], None], rendered: Callable[[Path], None]
    ) -> None:
        """Write into the directory of *configuration*.

        *log* takes a line about what went wrong; *rendered* is called with each page that is there. Both are called
        by ``tick``.
        """
        chosen = configuration.report.directory
        self._directory = Path(chosen or f"{configuration.agent.state_dir}/reports").absolute()
        self._keep = configuration.report.keep
        self._log = log
        self._runner = Runner(is_wanted=self._is_due)
        self._rendered = rendered
        self._latest: Path | None = None
        self._reading = threading.Lock()
        self._condition = threading.Condition()
        self._wanted: Callable[[], None] | None = None
        self._works_since: float | None = None
        self._is_late = False
        self._closing = False
        self._outcomes: list[Callable[[], None]] = []
        self._have_done(self._look)
        with self._condition:
            self._condition.wait_for(lambda: self._works_since is None, START_SECONDS)

    def has_any(self) -> bool:
        """Return whether there is a page, without a look at the disk."""
        return self._latest is not None

    def latest(self) -> bytes | None:
        """Return the newest page, or None before there is one. Called from the HTTP threads.

        Raises BusyError where another thread waits for it: on a disk that does not answer one is enough.
        """
        newest = self._latest
        if newest is None:
            return None
        if not self._reading.acquire(timeout=READ_SECONDS):
            raise BusyError(f"reading the report takes more than {READ_SECONDS:g} s: check its disk")
        try:
            return newest.read_bytes()
        except OSError:
            return None
        finally:
            self._reading.release()

    def render(self, document: BurnInDocument) -> None:
        """Begin to render *document*; one that is still being rendered is given up."""
        self._have_done(partial(self._make, document))

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds: nobody tells that a child has ended."""
        with self._condition:
            return time.monotonic() + LOOK_SECONDS if self._works_since is not None or self._outcomes else None

    def tick(self) -> None:
        """Tell what came of it, or that nothing does."""
        with self._condition:
            outcomes, self._outcomes = self._outcomes, []
            since, was_late = self._works_since, self._is_late
            self._is_late = since is not None and time.monotonic() - since > SILENT_SECONDS
            if self._is_late and not was_late:
                words = f"report: {self._directory} does not answer: check its disk, or set report.directory"
                outcomes.append(partial(self._log, words))
        for tell in outcomes:
            tell()

    def close(self) -> None:
        """End a child that still renders; what was handed over is still written, where that takes no time."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._works_since is None, END_SECONDS)

    def _have_done(self, job: Callable[[], None]) -> None:
        """Have the thread do *job* next; it lives while there is one."""
        with self._condition:
            self._wanted = job
            self._condition.notify_all()
            if self._works_since is not None:
                return
            self._works_since = time.monotonic()
        try:
            Background(self._run).start()
        except RuntimeError as error:
            with self._condition:
                self._works_since, self._wanted = None, None
            self._tell(f"report: no thread can be started: {error}")

    def _run(self) -> None:
        while True:
            with self._condition:
                job, self._wanted = self._wanted, None
                self._works_since = None if job is None else time.monotonic()
                if job is None:
                    self._condition.notify_all()
                    return
            done = attempt(job)
            if isinstance(done, Bug):
                self._tell(f"report: nodevet's own error, please report it: {done}")

    def _tell(self, line: str) -> None:
        with self._condition:
            self._outcomes.append(partial(self._log, line))

    def _look(self) -> None:
        """Find the page that was there before the start."""
        try:
            self._latest = max(self._directory.glob(f"{STAMP}.html"), default=None)
        except OSError as error:  # a server that is gone, or a broken disk
            self._tell(f"report: {self._directory} cannot be read: {error.strerror}: set report.directory")

    def _make(self, document: BurnInDocument) -> None:
        """Write *document*, render its page, and drop the oldest reports."""
        name = document.time.replace(":", "").replace("-", "").replace(".", "-")
        source = self._directory / f"{name}.json"
        page = source.with_suffix(".html")
        try:
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            replace(source, encode(document))
            if not self._is_due():
                return
            command = (*python_module("nodevet.agent.cli"), "report", "render", str(source), "--output", str(page))
            done = self._runner.run(command, RENDER_SECONDS)
        except OSError as error:
            self._tell(f"report: {source} cannot be written: {error.strerror}: free space or set report.directory")
            return
        except RunError as error:
            if error.failure is not RunFailure.UNWANTED:
                self._tell(f"report: {page} was not rendered: its renderer {error}")
            return
        if done.exit.status == 0:
            self._latest = page
            with self._condition:
                self._outcomes.append(partial(self._rendered, page))
        else:
            said = done.errors.decode("utf-8", "replace").strip()
            self._tell(f"report was not rendered: {said or f'status {done.exit.status}'}")
        try:
            self._drop_oldest()
        except OSError as error:
            self._tell(f"report: {error.filename} cannot be removed: {error.strerror}: set report.directory")

    def _is_due(self) -> bool:
        """Return whether the page is still wanted: there is no newer one, and the agent goes on."""
        with self._condition:
            return not self._closing and self._wanted is None

    def _drop_oldest(self) -> None:
        for old in sorted(self._directory.glob(f"{STAMP}.json"))[: -self._keep]:
            old.unlink(missing_ok=True)
            old.with_suffix(".html").unlink(missing_ok=True)
