"""What a backend is: one file that reads one vendor's devices, run inside a reader child.

A backend may hang or crash the process: nobody but the child imports it. It returns readings and raises
BackendError for a whole device or library; it never judges and never returns a made-up value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.guard import Bug, attempt
from nodevet.checks.core.model import Device, Event, Failure, FailureKind, Instant, Reading
from nodevet.checks.core.wire import Progress

Loaded = TypeVar("Loaded")


class BackendError(NodevetError):
    """A device or its library could not be read; ``failure`` says how."""

    def __init__(self, kind: FailureKind, detail: str, *, of_driver: bool = False) -> None:
        """Keep *kind* and *detail* as the failure to report, and whether it is evidence, a word *of_driver*."""
        super().__init__(detail)
        self.failure = Failure(kind, detail, of_driver)


def imported(what: str, load: Callable[[], Loaded], *, let: tuple[type[Exception], ...] = ()) -> Loaded:
    """Return what *load* imports; *let* passes. Raises BackendError where files of *what* are damaged or unreadable.

    That is no fault of a driver, nor a bug of nodevet.
    """
    done = attempt(load, let=(BackendError, *let))
    if isinstance(done, Bug):
        step = "install it anew; where its disk cannot be read, see journalctl -k"
        raise BackendError(FailureKind.READER, f"{what} cannot be imported ({done.error}): {step}")
    return done


class Context(Protocol):
    """What the child lends to its backend."""

    root: str
    """Stands before every path: ``/`` on a real machine, a captured tree in tests."""
    options: dict[str, object]
    progress: Progress
    """Write here what is about to be called, before each call that may hang."""

    def now(self) -> Instant:
        """Return the present moment."""
        ...

    def note(self, level: str, event: str, **fields: str) -> None:
        """Send a line to the agent's log."""
        ...


def names_in(context: Context, option: str) -> frozenset[str]:
    """Return the names that the *option* of *context* lists; none where it lists none."""
    told = context.options.get(option)
    return frozenset(map(str, told)) if isinstance(told, (list, tuple)) else frozenset()


class Backend(Protocol):
    """A loaded backend. ``groups`` are its sample groups, ``fast`` first."""

    groups: tuple[str, ...]
    versions: dict[str, str]

    def devices(self) -> tuple[Device, ...]:
        """Enumerate again and return every device that answers; raise BackendError when none can be listed.

        A device that the library counts but that does not answer is returned with what is remembered of it,
        and its ``read`` raises BackendError(LOST).
        """
        ...

    def read(self, group: str, device: Device) -> Iterable[Reading]:
        """Return the readings of *group*; raise BackendError when the whole device cannot be read."""
        ...

    def events(self) -> Iterator[Event]:
        """Return what happened since the last call, without waiting; nothing where that is unsupported."""
        ...

    def close(self) -> None:
        """Let go of every handle."""
        ...


class BackendFactory(Protocol):
    """The function ``open_backend`` that each backend module has; raises BackendError when it cannot load."""

    def __call__(self, context: Context) -> Backend:
        """Load the vendor's library and return the backend."""
        ...
