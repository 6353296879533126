"""Report pages, rendered by a child process so that the template engine's memory is never the agent's."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nodevet.agent.settings import Configuration
from nodevet.checks.files import replace
from nodevet.exporters.schema import BurnInDocument, encode

__all__ = ["Reports"]

RENDER_SECONDS = 30.0
LOOK_SECONDS = 0.5

STAMP = "[0-9]" * 8 + "T*"
"""How names of reports begin: other files in a directory that a site chose are neither shown nor removed."""


class Reports:
    """Keeps the last reports in a directory: the document as JSON, the page as HTML beside it."""

    def __init__(
        self, configuration: Configuration, *, log: Callable[[str], None], rendered: Callable[[Path], None]
    ) -> None:
        """Write into the directory of *configuration*.

        *log* takes a line about what went wrong; *rendered* is called with each page that is there.
        """
        chosen = configuration.report.directory
        self._directory = Path(chosen) if chosen else Path(configuration.agent.state_dir) / "reports"
        self._keep = configuration.report.keep
        self._log = log
        self._rendered = rendered
        self._child: subprocess.Popen[bytes] | None = None
        self._page: Path | None = None
        self._deadline = 0.0
        self._latest = self._newest()

    def latest(self) -> bytes | None:
        """Return the newest page, or None before there is one. Called from the HTTP threads."""
        newest = self._latest
        try:
            return None if newest is None else newest.read_bytes()
        except OSError:
            return None

    def render(self, document: BurnInDocument) -> None:
        """Begin to render *document*; one that is still being rendered is given up."""
        self.close()
        name = document.time.replace(":", "").replace("-", "").replace(".", "-")
        source = self._directory / f"{name}.json"
        self._page = source.with_suffix(".html")
        try:
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            replace(source, encode(document))
            command = [sys.executable, "-I", "-m", "nodevet.agent.cli", "report", "render", str(source)]
            self._child = subprocess.Popen(
                [*command, "--output", str(self._page)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._log(f"report: {source} cannot be written: {error.strerror}: free space or set report.directory")
            return
        self._deadline = time.monotonic() + RENDER_SECONDS

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds: nobody tells that a child has ended."""
        return time.monotonic() + LOOK_SECONDS if self._child is not None else None

    def tick(self) -> None:
        """Take a page that is finished, and drop the oldest reports."""
        if self._child is None:
            return
        if self._child.poll() is None:
            if time.monotonic() > self._deadline:
                self._log(f"report: {self._page} was not rendered within {RENDER_SECONDS:g} s")
                self.close()
            return
        assert self._child.stderr is not None
        said = self._child.stderr.read().decode("utf-8", "replace").strip()
        if self._child.returncode == 0:
            self._latest = self._page
            assert self._page is not None
            self._rendered(self._page)
        else:
            self._log(f"report was not rendered: {said or f'status {self._child.returncode}'}")
        self.close()
        try:
            self._drop_oldest()
        except OSError as error:
            self._log(f"report: {error.filename} cannot be removed: {error.strerror}: set report.directory")

    def _newest(self) -> Path | None:
        try:
            return max(self._directory.glob(f"{STAMP}.html"), default=None)
        except OSError as error:  # a server that is gone, or a broken disk
            self._log(f"report: {self._directory} cannot be read: {error.strerror}: set report.directory")
            return None

    def _drop_oldest(self) -> None:
        for old in sorted(self._directory.glob(f"{STAMP}.json"))[: -self._keep]:
            old.unlink(missing_ok=True)
            old.with_suffix(".html").unlink(missing_ok=True)

    def close(self) -> None:
        """End a child that still renders."""
        if self._child is None:
            return
        self._child.kill()
        self._child.wait()
        if self._child.stderr is not None:
            self._child.stderr.close()
        self._child = None
