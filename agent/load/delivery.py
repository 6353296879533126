"""How the results of a burn-in reach the agent that granted it: a wrong one at once, all of them at the end.

An agent that is restarted while a load of hours runs must not cost its results: another one takes them as well. One
that hangs must not keep the person who waits: the wait has an end, and a signal shortens it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from nodevet.agent.control.client import AgentAbsent, AgentRefused, AgentSilent, Session
from nodevet.checks.core.model import Result
from nodevet.exporters.documents.types import BurnInDocument

from .wrong import WrongTelling

PATIENCE_SECONDS = 20.0
"""How long an agent may take to come back, or to end a probe of its own."""

FOUND_SECONDS = 3.0
"""How long the loop of a load may wait for the agent to take a wrong result."""

AGAIN_SECONDS = 0.5
ANSWER_SECONDS = 20.0
"""How long an agent that took the results may need for its answer; it takes milliseconds."""

SEND_SECONDS = 5.0
LOOK_SECONDS = 0.2
"""How often a signal is looked for while the agent is waited for."""

HURRIED_SECONDS = 2.0
"""How long an agent has left when somebody sends a signal: one that works answers within that."""

TELL_AFTER_SECONDS = 3.0


class Delivery:
    """Brings results to the agent at *socket*; *say* takes a line about what goes wrong."""

    def __init__(
        self,
        socket: Path,
        plan: str,
        say: Callable[[str], None],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        also: Callable[[dict[str, Any], tuple[Result, ...]], tuple[Result, ...]] | None = None,
    ) -> None:
        """Deliver for *plan*; an agent that is gone may come back within *patience_seconds*.

        *also* returns what the agent's status adds to the results at the end.
        """
        self._socket = socket
        self._plan = plan
        self._say = say
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._also = also
        self._added: tuple[Result, ...] | None = None
        self.found = WrongTelling(self._tell_wrong, say, clock).found
        """Tells the agent of those of the known results that are wrong."""
        self._hurried_until: float | None = None

    def _tell_wrong(self, fresh: tuple[Result, ...]) -> str:
        """Tell the agent of *fresh*, which may be restarted meanwhile; return why it does not take them."""
        try:
            with Session(self._socket, timeout_seconds=FOUND_SECONDS) as session:
                session.ask("result", results=msgspec.to_builtins(fresh), plan=self._plan, ended=False)
        except (AgentAbsent, AgentSilent, AgentRefused) as error:
            return f"the agent has not accepted it yet: {error}"
        return ""

    def ended(
        self,
        results: tuple[Result, ...],
        session: Session,
        signals: Callable[[], int] = lambda: 0,
        *,
        hurried: bool = False,
    ) -> BurnInDocument | None:
        """Return what the agent makes of *results*, by *session* or a new one; None where no agent takes them.

        *signals* counts those that came: another one while the agent is waited for leaves it two seconds. *hurried*: it
        has only two seconds from the start.
        """
        before, began = signals(), self._clock()
        self._hurried_until = began + HURRIED_SECONDS if hurried else None
        deadline = began + self._patience_seconds

        def left(until: float) -> float:
            if self._hurried_until is None and signals() > before:
                self._hurried_until = self._clock() + HURRIED_SECONDS
                self._say(f"the agent has {HURRIED_SECONDS:g} s left to accept the results")
            return min(until, self._hurried_until or until) - self._clock()

        try:
            return self._asked(session, results, left)
        except (AgentSilent, AgentRefused) as error:
            trouble = str(error)
        last = ""
        while left(deadline) > 0:
            try:
                with Session(self._socket, timeout_seconds=SEND_SECONDS) as another:
                    return self._asked(another, results, left)
            except (AgentAbsent, AgentSilent, AgentRefused) as error:
                last = f"; then: {error}"
            time.sleep(AGAIN_SECONDS)
        self._say(f"the agent does not accept the results: {trouble}{last}")
        return None

    def _asked(self, session: Session, results: tuple[Result, ...], left: Callable[[float], float]) -> BurnInDocument:
        """Return the agent's answer to *results*, and to what its status adds to them.

        Raises AgentSilent, AgentRefused.
        """
        if self._also is not None and self._added is None:  # once: those that come again must be the same
            self._added = self._also(self._answer(session, left, "status"), results)
        everything = msgspec.to_builtins((*results, *(self._added or ())))
        answer = self._answer(session, left, "result", results=everything, plan=self._plan)
        return msgspec.convert(answer, BurnInDocument)

    def _answer(self, session: Session, left: Callable[[float], float], verb: str, **arguments: Any) -> dict[str, Any]:
        """Return the agent's answer to *verb*. Raises AgentSilent, AgentRefused."""
        until = self._clock() + ANSWER_SECONDS
        tell_at = self._clock() + TELL_AFTER_SECONDS
        session.wait_at_most(SEND_SECONDS)
        session.send(verb, **arguments)
        session.wait_at_most(LOOK_SECONDS)
        while True:
            try:
                return session.receive()
            except AgentSilent as error:
                if not isinstance(error.__cause__, TimeoutError) or left(until) <= 0:
                    raise
            if self._clock() >= tell_at:
                tell_at = float("inf")
                self._say("waiting for the agent to accept the results; Ctrl-C ends the wait")
