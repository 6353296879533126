"""What a load may watch beside its children: the conditions of the devices, from whoever reads them.

A running agent is the only reader of its node, so it is asked. It may hang: then the cells are empty, and the load goes
on.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from nodevet.agent.control.client import AgentAbsent, AgentRefused, AgentSilent, Session

from .conditions import Conditions, KnownConditions

ASK_SECONDS = 2.0
"""How often the agent is asked; it reads every ten seconds by default."""

ANSWER_SECONDS = 0.5
"""How long the loop of a load may wait for the rest of an answer that has begun."""

STALE_SECONDS = 10.0
"""After so long without an answer nothing is known any more."""

AGAIN_SECONDS = 10.0
"""When an agent that does not answer is asked again."""


class Watch(Protocol):
    """Knows the conditions of the devices while a load runs."""

    @property
    def known(self) -> KnownConditions:
        """The conditions of now, by device."""
        ...

    def start(self, selector: selectors.BaseSelector) -> None:
        """Begin, in the loop that owns *selector*."""
        ...

    def tick(self) -> None:
        """Do what is due."""
        ...

    def stop(self) -> None:
        """End, and forget the selector."""
        ...


class Unwatched:
    """Where nobody reads the devices."""

    @property
    def known(self) -> KnownConditions:
        """Nothing."""
        return {}

    def start(self, _selector: selectors.BaseSelector) -> None:
        """Do nothing."""

    def tick(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class AgentWatch:
    """Asks the agent for the conditions, over a connection of its own that nobody waits for."""

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        """Ask the agent at *path*."""
        self._path = path
        self._clock = clock
        self._selector: selectors.BaseSelector | None = None
        self._session: Session | None = None
        self._asked = False
        self._due = self._answered = 0.0
        self._known: KnownConditions = {}

    @property
    def known(self) -> KnownConditions:
        """The conditions that the agent told last; nothing where that is long ago."""
        return self._known if self._clock() - self._answered <= STALE_SECONDS else {}

    def start(self, selector: selectors.BaseSelector) -> None:
        """Begin, in the loop that owns *selector*."""
        self._selector = selector

    def tick(self) -> None:
        """Ask again where it is time."""
        now = self._clock()
        if self._selector is None or now < self._due:
            return
        if self._asked:  # no answer yet: another connection, or none for a while
            self._drop()
            return
        try:
            if self._session is None:
                self._session = Session(self._path, timeout_seconds=ANSWER_SECONDS)
                self._selector.register(self._session, selectors.EVENT_READ, self._receive)
            self._session.send("conditions")
        except (AgentAbsent, AgentSilent, AgentRefused):
            self._drop()
            return
        self._asked, self._due = True, now + AGAIN_SECONDS

    def stop(self) -> None:
        """Disconnect."""
        self._drop()
        self._selector = None

    def _receive(self, _mask: int) -> None:
        if self._session is None:
            return
        try:
            answer = self._session.receive()
            self._known = msgspec.convert(answer.get("conditions"), dict[str, Conditions])
        except (AgentSilent, AgentRefused, msgspec.ValidationError):
            self._drop()
            return
        self._asked = False
        self._answered = self._clock()
        self._due = self._answered + ASK_SECONDS

    def _drop(self) -> None:
        self._due, self._asked = self._clock() + AGAIN_SECONDS, False
        if self._session is not None:
            if self._selector is not None:
                self._selector.unregister(self._session)
            self._session.close()
            self._session = None
