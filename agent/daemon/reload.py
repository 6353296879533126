"""A configuration that is read again: within a time, and what of it takes effect at once."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from nodevet.agent.config.settings import Configuration
from nodevet.checks.core.errors import ConfigurationError
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.system.background import Background

READ_SECONDS = 3.0
"""How long the main loop waits for the file: a site may have it on a server."""

FIXED = ("agent", "kernel_log", "report", "slurm", "store")
"""Tables whose settings are commands, directories and processes that were opened at the start."""


def taken_up(present: Configuration, fresh: Configuration) -> tuple[Configuration, str]:
    """Return what is in force when *fresh* follows *present*, and a line on the tables that wait for a restart."""
    later = [name for name in FIXED if getattr(fresh, name) != getattr(present, name)]
    message = f"[{'], ['.join(later)}] change with the next restart" if later else ""
    return msgspec.structs.replace(fresh, **{name: getattr(present, name) for name in FIXED}), message


class Reread:
    """Reads a configuration again whenever it is called, and waits for no disk that does not answer."""

    def __init__(self, load: Callable[[], Configuration], *, seconds: float = READ_SECONDS) -> None:
        """Read by *load*, for at most *seconds*."""
        self._load = load
        self._seconds = seconds
        self._thread: Background | None = None
        self._found: Configuration | ConfigurationError | Bug | None = None

    def __call__(self) -> Configuration:
        """Return what was read. Raises ConfigurationError, also where nothing answers in time."""
        if self._thread is None or not self._thread.is_alive():  # else one waits already, and would read what was then
            self._found = None
            thread = Background(self._read)
            try:
                thread.start()
            except RuntimeError as error:
                raise ConfigurationError(f"it cannot be read: no thread can be started: {error}") from error
            self._thread = thread
            thread.join(self._seconds)
        if self._thread.is_alive() or self._found is None:
            raise ConfigurationError(f"its file did not answer within {self._seconds:g} s: check its disk")
        if isinstance(self._found, ConfigurationError):
            raise self._found
        if isinstance(self._found, Bug):
            raise RuntimeError(str(self._found))
        return self._found

    def _read(self) -> None:
        try:
            self._found = attempt(self._load, let=(ConfigurationError,))
        except ConfigurationError as error:
            self._found = error
