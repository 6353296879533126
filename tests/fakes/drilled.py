"""A service of which a test replaces some functions; the others are those of the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodevet.agent.services.protocol import Service
from nodevet.checks.core.model import AgentInfo, Snapshot

__all__ = ["FUNCTIONS", "READ", "Drilled", "asked", "own"]

READ = ("next_deadline", "trouble", "memory")
"""What is read of a service, not called."""

FUNCTIONS = ("tick", "before_judging", "describe", "judged", "stop", *READ)


def asked(service: Service, function: str, *arguments: Any) -> Any:
    """Return what *service* says to *function*."""
    return getattr(service, function) if function in READ else getattr(service, function)(*arguments)


def own(service: Service) -> tuple[str, ...]:
    """Return the functions that *service* gives itself."""
    return tuple(name for name in FUNCTIONS if getattr(type(service), name) is not getattr(Service, name))


class Drilled(Service):
    """Stands for *service*; what is named is called in its place, without arguments where it is only read."""

    def __init__(self, service: Service, **instead: Callable[..., Any]) -> None:
        """Have *instead* called."""
        self.name = service.name
        self._service = service
        self._instead = instead

    def _ask(self, function: str, *arguments: Any) -> Any:
        if function in self._instead:
            return self._instead[function](*arguments)
        return asked(self._service, function, *arguments)

    def tick(self) -> None:
        """Do what is due."""
        self._ask("tick")

    @property
    def next_deadline(self) -> float | None:
        """Return when a turn is needed."""
        return self._ask("next_deadline")  # type: ignore[no-any-return]

    def before_judging(self) -> None:
        """Look once."""
        self._ask("before_judging")

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Tell of itself."""
        return self._ask("describe", info)  # type: ignore[no-any-return]

    @property
    def trouble(self) -> str:
        """Return what is wrong."""
        return self._ask("trouble")  # type: ignore[no-any-return]

    def judged(self, snapshot: Snapshot) -> None:
        """Take what was judged."""
        self._ask("judged", snapshot)

    @property
    def memory(self) -> bytes | None:
        """Return what it needs after a restart."""
        return self._ask("memory")  # type: ignore[no-any-return]

    def stop(self) -> None:
        """Begin to end."""
        self._ask("stop")
