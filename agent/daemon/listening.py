"""The page and the metrics, opened at the start or as soon as that can be.

Any user of the node may hold the port before the agent does, and an address that the site chose, or whoever resolves
its name, may come after it at a boot. None of this may leave a node without its agent: state file, socket and SLURM
need no port.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from nodevet.agent.services.protocol import Service
from nodevet.checks.core.clock import Clock
from nodevet.checks.core.errors import BusyError, NodevetError
from nodevet.checks.core.model import AgentInfo
from nodevet.checks.system.background import Background
from nodevet.exporters.web.http import HttpServer
from nodevet.exporters.web.listen_address import AbsentAddressError, is_free, is_name

AGAIN_SECONDS = 5.0
"""Between two looks at whether the address is free."""

CAUSE_SECONDS = 60.0
"""Between two looks at who holds the address: that takes long where many processes run."""

NOT_SERVED = f"page and metrics are not served; the agent retries every {AGAIN_SECONDS:g} s"

RESOLVE_SECONDS = 5.0
"""How long the start waits for a name: resolv.conf(5) may take minutes where no server answers."""


class Listening(Service):
    """An HTTP server, or the wait for its address. One thread owns it."""

    name = "http"

    def __init__(self, listen: str, make: Callable[[], HttpServer], clock: Clock, *, may_wait: bool) -> None:
        """Open *listen* by *make*. What stands in the way is waited for where that *may_wait*, else raised."""
        self._listen = listen
        self._make = make
        self._clock = clock
        self._server: HttpServer | None = None
        self._again_at: float | None = None
        self._trouble = ""
        self._attempt: _Attempt | None = None
        self._cause_at = clock.monotonic() + CAUSE_SECONDS
        try:
            self._server = self._attempted(RESOLVE_SECONDS) if may_wait and is_name(listen) else make()
        except (BusyError, AbsentAddressError) as error:
            if not may_wait:
                raise
            self._waits_for(error)
        else:
            if self._server is None:
                self._waits_for(f"{listen}: its name is not resolved yet")

    @property
    def url(self) -> str:
        """Return the address of the page, empty while there is none."""
        return self._server.url if self._server is not None else ""

    @property
    def trouble(self) -> str:
        """Return why there is none, in one line."""
        return self._trouble

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Tell how many connections were closed unanswered."""
        refused = self._server.refused if self._server is not None else 0
        return msgspec.structs.replace(info, refused_connections=refused)

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
        try:
            server = self._attempted(0.0) if is_name(self._listen) else self._opened(now)
        except (NodevetError, OSError) as error:  # it is held, the name has no address yet, or no descriptor is left
            self._waits_for(error)
            return
        if server is None:
            return
        try:
            server.start()
        except RuntimeError as error:  # no thread can be had
            server.stop()
            self._waits_for(error)
            return
        self._server, self._again_at, self._trouble = server, None, ""

    def close(self) -> None:
        """Stop answering and free the address."""
        self._again_at = None
        if self._server is not None:
            self._server.stop()

    def _waits_for(self, cause: Exception | str) -> None:
        self._trouble = f"{NOT_SERVED}: {cause}"

    def _opened(self, now: float) -> HttpServer | None:
        """Return what can be opened at *now*; where the address is not free, a thread asks why from time to time."""
        if self._attempt is None:
            if is_free(self._listen):
                return self._make()
            if now < self._cause_at:
                return None
            self._cause_at = now + CAUSE_SECONDS
        return self._attempted(0.0)

    def _attempted(self, seconds: float) -> HttpServer | None:
        """Return what a thread has opened, None while it is at it: no loop waits for a resolver.

        Raises what it raised, once.
        """
        attempt = self._attempt = self._attempt or _Attempt(self._make)
        if not attempt.is_done(seconds):
            return None
        self._attempt = None
        if attempt.error is not None:
            raise attempt.error
        return attempt.server


class _Attempt:
    """One opening of the address, in a thread of its own."""

    def __init__(self, make: Callable[[], HttpServer]) -> None:
        self.server: HttpServer | None = None
        self.error: NodevetError | None = None
        self._make = make
        self._thread = Background(self._open)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise BusyError(f"no thread can be started to open it: {error}") from error

    def is_done(self, seconds: float) -> bool:
        """Return whether it has ended, after *seconds* at most."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _open(self) -> None:
        try:
            self.server = self._make()
        except NodevetError as error:
            self.error = error
