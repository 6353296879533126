"""The runtime directory, recreated where somebody removed it while the agent runs.

A cleaner of temporary files or an ``rm -rf`` takes state file, mirror, socket, lock and claims away from an agent that
goes on reading. Nobody could ask it, every prolog would find no verdict, and a second agent could read beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from nodevet.agent.services.protocol import Service
from nodevet.checks.core.errors import NodevetError
from nodevet.checks.system.files import file_identity


class RuntimeDirectory(Service):
    """Looks after *path* before each judgement; ``trouble`` says what became of it."""

    name = "runtime_directory"

    def __init__(
        self,
        path: Path,
        restore: Iterable[tuple[Path, Callable[[], None]]],
        *,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Look after *path*, which is there now; *restore* has what lies there, with what puts it back.

        That raises NodevetError where it cannot. *log* takes a line when the directory was recreated.
        """
        self._path = path
        self._kept = {place: (file_identity(place), again) for place, again in restore}
        self._log = log
        status = path.stat()
        self._mode, self._group = status.st_mode & 0o7777, status.st_gid
        self._identity = file_identity(path)
        self._times = 0
        self._failure = ""

    @property
    def trouble(self) -> str:
        """Return what is wrong, or was since the start, in one line; empty where nothing was."""
        if self._failure:
            return self._failure
        if not self._times:
            return ""
        times = "" if self._times == 1 else f" {self._times} times"
        return (
            f"{self._path} was removed{times} while the agent ran, and recreated: claims of jobs that ran then are "
            "lost; exclude it from the cleaning of temporary files"
        )

    def before_judging(self) -> None:
        """Make the directory anew where it is gone, and have put back what lay in it."""
        failures = []
        try:
            self._make()
        except OSError as error:
            failures.append(f"{self._path} was removed while the agent ran and cannot be made ({error.strerror})")
        else:
            for place, (known, restore) in self._kept.items():
                if file_identity(place) == known:
                    continue
                try:
                    restore()
                except NodevetError as error:
                    failures.append(str(error))
                else:
                    self._kept[place] = (file_identity(place), restore)
        self._failure = f"{'; '.join(failures)}: restart the agent" if failures else ""

    def _make(self) -> None:
        """Make the directory with the mode and group that it had, where it is gone; note where it is another one."""
        is_gone = not self._path.is_dir()
        if is_gone:
            self._path.mkdir(mode=0o700, parents=True)
            with suppress(PermissionError):  # a group that this user is no member of
                os.chown(self._path, -1, self._group)
            self._path.chmod(self._mode)
        identity = file_identity(self._path)
        if is_gone or identity != self._identity:  # a new one may have the number of the old one
            self._identity = identity
            self._times += 1
            self._failure = ""
            self._log(self.trouble)
