"""How the results of a burn-in reach the agent that granted it: a wrong one at once, all of them at the end.

An agent that is restarted while a load of hours runs must not cost its results: another one takes them as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from nodevet.agent.client import AgentAbsent, AgentRefused, AgentSilent, Session
from nodevet.checks.model import Result, ResultState
from nodevet.exporters.schema import BurnInDocument

__all__ = ["PATIENCE_SECONDS", "Delivery"]

PATIENCE_SECONDS = 20.0
"""How long an agent may take to come back, or to end a probe of its own."""

FOUND_SECONDS = 3.0
"""How long the loop of a load may wait for the agent to take a wrong result."""

AGAIN_SECONDS = 0.5
ANSWER_SECONDS = 30.0


class Delivery:
    """Brings results to the agent at *socket*; *say* takes a line about what goes wrong."""

    def __init__(
        self, socket: Path, plan: str, say: Callable[[str], None], *, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Deliver for *plan*; an agent that is gone may come back within *patience_seconds*."""
        self._socket = socket
        self._plan = plan
        self._say = say
        self._patience_seconds = patience_seconds
        self._told: set[tuple[tuple[str, ...], str | None]] = set()

    def found(self, known: tuple[Result, ...]) -> None:
        """Tell the agent of those of *known* that are wrong, once each: the node is unfit now, not in some hours."""
        fresh = [
            result
            for result in known
            if result.metric("mismatches") and (result.devices, result.dtype) not in self._told
        ]
        if not fresh:
            return
        self._told |= {(result.devices, result.dtype) for result in fresh}
        going_on = [
            msgspec.structs.replace(result, state=ResultState.INTERRUPTED, detail="the load goes on")
            for result in fresh
        ]
        try:
            with Session(self._socket, timeout_seconds=FOUND_SECONDS) as session:
                session.ask("result", results=msgspec.to_builtins(going_on), plan=self._plan, ended=False)
        except (AgentAbsent, AgentSilent, AgentRefused) as error:
            self._say(f"a wrong result was found, and the agent does not take it yet: {error}")

    def ended(self, results: tuple[Result, ...], session: Session) -> BurnInDocument | None:
        """Return what the agent makes of *results*, by *session* or a new one; None where no agent takes them."""
        content = msgspec.to_builtins(results)
        deadline = time.monotonic() + self._patience_seconds
        try:
            return msgspec.convert(session.ask("result", results=content, plan=self._plan), BurnInDocument)
        except (AgentSilent, AgentRefused) as error:
            trouble = str(error)
        while True:
            try:
                with Session(self._socket, timeout_seconds=ANSWER_SECONDS) as another:
                    return msgspec.convert(another.ask("result", results=content, plan=self._plan), BurnInDocument)
            except (AgentAbsent, AgentSilent, AgentRefused) as error:
                if time.monotonic() >= deadline:
                    self._say(f"the agent does not take the results: {trouble}; then: {error}")
                    return None
            time.sleep(AGAIN_SECONDS)
