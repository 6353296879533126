"""A service: what a part of the agent does for the main loop, which drives all of them alike.

A part that is one stands below ``Service`` and gives only what it has part in; mypy holds each to the types here.
"""

from __future__ import annotations

from typing import Protocol

from nodevet.checks.core.model import AgentInfo, Snapshot


class Service(Protocol):
    """What the loop asks of a part of the agent. Every call comes from the main thread and returns at once."""

    name: str
    """What the part is called: where it failed, and as the key of its ``memory`` in the store."""

    def tick(self) -> None:
        """Do what is due; called in every turn."""
        return

    @property
    def next_deadline(self) -> float | None:
        """Return when a turn is needed although nothing comes in, in monotonic seconds."""
        return None

    def before_judging(self) -> None:
        """Bring in what is looked at once per judgement."""
        return

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Return *info* with what every surface shall show of the part."""
        return info

    @property
    def trouble(self) -> str:
        """Return what is wrong with it, in one line; empty while all is well."""
        return ""

    def judged(self, snapshot: Snapshot) -> None:
        """Take what was judged, to act on it or to pass it on."""
        return

    @property
    def memory(self) -> bytes | None:
        """Return what it needs after a restart."""
        return None

    def stop(self) -> None:
        """Begin to end: no new work."""
        return
