"""The page and the metrics, opened at the start or as soon as that can be.

Any user of the node may hold the port before the agent does, and an address that the site chose may come after it at a
boot. Neither may leave a node without its agent: state file, socket and SLURM need no port, and a service manager gives
up after a few starts.
"""

from __future__ import annotations

from collections.abc import Callable

from nodevet.agent.clock import Clock
from nodevet.checks.errors import BusyError
from nodevet.exporters.http import AbsentAddressError, HttpServer, is_free

__all__ = ["AGAIN_SECONDS", "Listening"]

AGAIN_SECONDS = 5.0
"""Between two looks at whether the address is free."""


class Listening:
    """An HTTP server, or the wait for its address. One thread owns it."""

    def __init__(self, listen: str, make: Callable[[], HttpServer], clock: Clock, *, may_wait: bool) -> None:
        """Open *listen* by *make*. What stands in the way is waited for where that *may_wait*, else raised."""
        self._listen = listen
        self._make = make
        self._clock = clock
        self._server: HttpServer | None = None
        self._again_at: float | None = None
        self._trouble = ""
        try:
            self._server = make()
        except (BusyError, AbsentAddressError) as error:
            if not may_wait:
                raise
            self._trouble = f"no page and no metrics until then, the agent goes on without: {error}"

    @property
    def url(self) -> str:
        """Return the address of the page, empty while there is none."""
        return self._server.url if self._server is not None else ""

    @property
    def trouble(self) -> str:
        """Return why there is none, in one line."""
        return self._trouble

    @property
    def refused(self) -> int:
        """Return how many connections were closed unanswered."""
        return self._server.refused if self._server is not None else 0

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        return self._again_at

    def start(self) -> None:
        """Begin to answer, at once or when the address is free."""
        if self._server is not None:
            self._server.start()
        else:
            self._again_at = self._clock.monotonic() + AGAIN_SECONDS

    def tick(self) -> None:
        """Open the address where it was not free so far."""
        now = self._clock.monotonic()
        if self._again_at is None or now < self._again_at:
            return
        self._again_at = now + AGAIN_SECONDS
        if not is_free(self._listen):  # to name the holder takes long where many processes run
            return
        try:
            self._server = self._make()
        except (BusyError, AbsentAddressError):
            return  # somebody was quicker
        self._again_at, self._trouble = None, ""
        self._server.start()

    def stop(self) -> None:
        """Stop answering and free the address."""
        self._again_at = None
        if self._server is not None:
            self._server.stop()
