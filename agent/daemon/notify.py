"""What systemd is told: one datagram per message, sd_notify(3).

The main loop sends WATCHDOG=1 after it made progress; a timer of its own would only prove that timer.
Nothing here raises: a service manager that went away is no reason to stop watching the node. One that is busy is told
later: without READY=1 it would end the agent when TimeoutStartSec= is over.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Self

from nodevet.agent.services.protocol import Service
from nodevet.checks.core.clock import Clock
from nodevet.checks.system.exhaustion import EXHAUSTED

AGAIN_SECONDS = 1.0
"""When a manager whose queue was full is told again."""

_STATES = frozenset({"READY", "RELOADING", "MONOTONIC_USEC", "STOPPING"})
"""Of these variables the manager needs the last that was sent."""

_LATER = EXHAUSTED | {errno.EAGAIN}
"""The manager's queue is full, or no descriptor or memory is free to send with: both pass."""


class Notifier:
    """Sends messages to a service manager, or does nothing where there is none."""

    def __init__(self, address: str | None, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Send to *address* (a path, or ``@name`` in the abstract namespace); None sends nowhere."""
        self._address = _socket_address(address)
        self._unheard: dict[str, str] = {}
        self._monotonic_ns = monotonic_ns

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Return the notifier that NOTIFY_SOCKET asks for."""
        return cls((os.environ if environment is None else environment).get("NOTIFY_SOCKET"))

    @property
    def active(self) -> bool:
        """Whether there is anyone to tell."""
        return self._address is not None

    @property
    def heard(self) -> bool:
        """Whether the manager took all that it needs to know."""
        return not self._unheard

    def again(self) -> bool:
        """Send what found no room in the manager's queue."""
        return self._send()

    def ready(self, status: str = "") -> bool:
        """Tell that the service is up (again, after a reload), with a line of *status*."""
        return self._send("READY=1", *_status(status))

    def status(self, text: str) -> bool:
        """Replace the line that ``systemctl status`` shows by *text*."""
        return self._send(*_status(text))

    def watchdog(self) -> bool:
        """Tell that the main loop made progress."""
        return self._send("WATCHDOG=1")

    def reloading(self) -> bool:
        """Tell that the configuration is being read again; ``ready`` ends it."""
        # systemd matches the reload by CLOCK_MONOTONIC in microseconds.
        return self._send("RELOADING=1", f"MONOTONIC_USEC={self._monotonic_ns() // 1000}")

    def stopping(self, status: str = "") -> bool:
        """Tell that the service is on its way down."""
        return self._send("STOPPING=1", *_status(status))

    def _send(self, *lines: str) -> bool:
        """Send *lines* and what was not heard as one datagram, without waiting; return whether it was sent."""
        if self._address is None:
            return False
        fresh = {line.partition("=")[0]: line for line in lines}
        over = _STATES if fresh.keys() & _STATES else frozenset[str]()
        together = {name: line for name, line in self._unheard.items() if name not in over} | fresh
        data = "\n".join(together.values()).encode("utf-8", "replace")
        self._unheard = {}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(data, self._address)
        except OSError as error:
            if error.errno in _LATER:
                self._unheard = {name: line for name, line in together.items() if name != "WATCHDOG"}
            return False
        return True


class Watchdog(Service):
    """Tells the service manager that the loop turns, and what it had no room for; nothing else may say so for it."""

    name = "watchdog"

    def __init__(self, notifier: Notifier, clock: Clock) -> None:
        """Feed as often as WATCHDOG_USEC asks for, or never where this process is not watched."""
        self._notifier = notifier
        self._clock = clock
        self._interval_seconds = watchdog_interval_seconds(os.environ, os.getpid())
        self._due = 0.0
        self._again_at = 0.0

    @property
    def next_deadline(self) -> float | None:
        """Return when ``tick`` must be called next, in monotonic seconds."""
        due = [] if self._interval_seconds is None else [self._due]
        return min([*due, *([] if self._notifier.heard else [self._again_at])], default=None)

    def tick(self) -> None:
        """Tell, where it is time."""
        now = self._clock.monotonic()
        if self._interval_seconds is not None and now >= self._due:
            # One that is lost comes again at once: after two, the manager takes the loop for dead.
            self._due = now + (self._interval_seconds if self._notifier.watchdog() else AGAIN_SECONDS)
        if not self._notifier.heard and now >= self._again_at:
            self._notifier.again()
            self._again_at = now + AGAIN_SECONDS


_LONGEST_USEC = 20
"""Digits of the greatest number of 64 bits, which is what systemd counts microseconds in."""


def watchdog_interval_seconds(environment: Mapping[str, str], pid: int) -> float | None:
    """Return how often WATCHDOG=1 is due, half of what systemd allows, or None where process *pid* is not watched."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or len(microseconds) > _LONGEST_USEC or not int(microseconds):
        return None
    return int(microseconds) / 2e6


def _socket_address(address: str | None) -> str | None:
    if not address or address[0] not in "/@":
        # Empty, or a kind such as vsock: that a service inside a virtual machine may be given for its host.
        return None
    return "\0" + address[1:] if address[0] == "@" else address


def _status(text: str) -> tuple[str, ...]:
    # A newline would begin another variable.
    return (f"STATUS={' '.join(text.split())}",) if text else ()
