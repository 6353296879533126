"""The interface of a backend: one file that reads one vendor's devices inside a reader child.

A backend may hang or crash its process, so only the child imports it. It returns readings and raises BackendError for a
whole device or library; it never judges and never returns an invented value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.core.model import Device, Event, Failure, FailureKind, Instant, Reading
from nodevet.checks.core.wire import Progress
from nodevet.checks.reference.limits import from_table

MOST_EVENTS = int(from_table("reader.events").value)
"""So many events a backend yields at one look; the next look takes the rest."""

Loaded = TypeVar("Loaded")


class BackendError(NodevetError):
    """A device or its library could not be read; ``failure`` holds kind and detail."""

    def __init__(self, kind: FailureKind, detail: str, *, of_driver: bool = False) -> None:
        """Store *kind* and *detail* as the failure; *of_driver* says that it is evidence against the driver."""
        super().__init__(detail)
        self.failure = Failure(kind, detail, of_driver)


def imported(what: str, load: Callable[[], Loaded], *, let: tuple[type[Exception], ...] = ()) -> Loaded:
    """Return the result of the import *load*. Raises BackendError for damaged or unreadable files of *what*.

    Exceptions in *let* pass. Such a failure is neither a fault of a driver nor a bug of nodevet.
    """
    done = attempt(load, let=(BackendError, *let))
    if isinstance(done, Bug):
        step = "install it anew; where its disk cannot be read, see journalctl -k"
        raise BackendError(FailureKind.READER, f"{what} cannot be imported ({done.error}): {step}")
    return done


class Context(Protocol):
    """The services of the child for its backend."""

    root: str
    """Prefix of every path: ``/`` on a real machine, a captured tree in tests."""
    options: dict[str, object]
    progress: Progress
    """Write the next call here before each call that may hang."""

    def now(self) -> Instant:
        """Return the present time."""
        ...

    def note(self, level: str, event: str, **fields: str) -> None:
        """Send a line to the agent's log."""
        ...


def names_in(context: Context, option: str) -> frozenset[str]:
    """Return the names in the *option* of *context*; empty if the option is missing."""
    told = context.options.get(option)
    return frozenset(map(str, told)) if isinstance(told, (list, tuple)) else frozenset()


class Backend(Protocol):
    """A loaded backend. ``groups`` are its sample groups, ``fast`` first."""

    groups: tuple[str, ...]
    versions: dict[str, str]

    def devices(self) -> tuple[Device, ...]:
        """Enumerate again and return every device that answers. Raises BackendError when none can be listed.

        A device that the library counts but that does not answer is returned with its remembered identity, and its
        ``read`` raises BackendError(LOST).
        """
        ...

    def read(self, group: str, device: Device) -> Iterable[Reading]:
        """Return the readings of *group*. Raises BackendError when the whole device cannot be read."""
        ...

    def events(self) -> Iterator[Event]:
        """Return the events since the last call, at most MOST_EVENTS, without waiting; nothing if unsupported."""
        ...

    def close(self) -> None:
        """Release every handle."""
        ...


class BackendFactory(Protocol):
    """The function ``open_backend`` of each backend module. Raises BackendError when it cannot load."""

    def __call__(self, context: Context) -> Backend:
        """Load the vendor's library and return the backend."""
        ...
