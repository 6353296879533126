"""Runs a site's program once, within its timeout, and only from a path that no other user can write."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Mapping
from pathlib import Path

from nodevet.checks.backends.base import BackendError
from nodevet.checks.core.errors import Closed
from nodevet.checks.core.model import FailureKind
from nodevet.checks.system.process import Done, RunError, RunFailure, Runner


class CommandRunner:
    """Runs one program repeatedly, never two at a time."""

    def __init__(
        self, argv: tuple[str, ...], environment: Mapping[str, str], timeout_seconds: float, lifeline: int | None = None
    ) -> None:
        """Run *argv*, without a shell and with *environment* alone, for at most *timeout_seconds* each time.

        The descriptor *lifeline* hangs up when the agent has ended; a run then ends with Closed.
        """
        self._argv = argv
        self._environment = dict(environment)
        self._timeout_seconds = timeout_seconds
        self._hang_up = select.poll()
        if lifeline is not None:
            self._hang_up.register(lifeline, 0)  # a hang-up is reported without an event mask
        self._runner = Runner(is_wanted=lambda: not self._hang_up.poll(0))

    def run(self, **more: str) -> Done:
        """Run it once, with *more* in its environment. Raises BackendError with the failure."""
        _refuse_untrusted(self._argv[0])
        try:
            return self._runner.run(self._argv, self._timeout_seconds, {**self._environment, **more}).checked()
        except RunError as error:
            if error.failure is RunFailure.UNWANTED:
                raise Closed("the agent is gone") from error
            # The command is the site's: its hang is no evidence that a driver hangs.
            kind = FailureKind.READER if error.failure is RunFailure.STUCK else FailureKind.ERROR
            raise BackendError(kind, str(error)) from error
        except OSError as error:
            kind = FailureKind.DENIED if isinstance(error, PermissionError) else FailureKind.ERROR
            raise BackendError(kind, f"{self._argv[0]} cannot be started: {_why(error)}") from error


def _why(error: OSError) -> str:
    """Return the reason of *error* for a program that is there: what is not found then is its interpreter."""
    if isinstance(error, FileNotFoundError):
        return "the interpreter in its first line (#!) or its dynamic loader does not exist"
    return error.strerror or str(error)


def _refuse_untrusted(program: str) -> None:
    """Refuse a program that another user could replace: it runs with the rights of the agent."""
    try:
        facts = Path(program).stat()
    except OSError as error:
        raise BackendError(FailureKind.ERROR, f"{program} cannot be started: {error.strerror}") from error
    if facts.st_uid not in (0, os.geteuid()):
        raise BackendError(
            FailureKind.DENIED, f"{program} belongs to uid {facts.st_uid}: let it belong to root or to the agent's user"
        )
    if stat.S_IMODE(facts.st_mode) & stat.S_IWOTH:
        raise BackendError(FailureKind.DENIED, f"{program} can be written by everybody: chmod o-w {program}")
