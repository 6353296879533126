"""What a reader needs to run one command of the site; the agent makes it of the settings."""

from __future__ import annotations

import msgspec

from nodevet.checks.engine.renamed import COMMANDS
from nodevet.checks.system.process import GRACE_SECONDS

END_SECONDS = 2 * GRACE_SECONDS
"""Longest time after the timeout to end a program."""


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One configured command: program, timeout and groups. ``fast`` is the first group."""

    name: str
    argv: tuple[str, ...]
    timeout_seconds: float
    groups: tuple[str, ...]
    environment: dict[str, str] = {}

    @property
    def backend(self) -> str:
        """Return the name of its backend."""
        return COMMANDS + self.name
