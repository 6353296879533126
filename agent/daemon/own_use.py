"""What the agent's process takes of its machine, as psutil reads it: memory, processor time, descriptors, threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
import psutil

from nodevet.agent.services.protocol import Service
from nodevet.checks.core.model import AgentInfo, OwnUse

_Found = TypeVar("_Found")

_UNREADABLE = (psutil.Error, OSError, ValueError, LookupError)
"""What psutil raises where a file of /proc cannot be opened, or holds something that it does not expect."""


PROPORTIONAL_SECONDS = 60.0
"""The interval of readings of the proportional memory: the kernel walks all pages for it, which takes milliseconds."""


class OwnUseReader(Service):
    """Reads the use of the agent's process before each judgement."""

    name = "own_use"

    def __init__(
        self, attach: Callable[[], psutil.Process] = psutil.Process, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Read nothing yet; *attach* returns the process to look at, *monotonic* the seconds of a clock."""
        self._attach = attach
        self._monotonic = monotonic
        self._due = 0.0
        self.last = OwnUse()

    def before_judging(self) -> None:
        """Read again; a value that cannot be read is unknown."""
        process, now = _read(self._attach), self._monotonic()
        if process is None:
            self._due, self.last = now, OwnUse()
            return
        proportional_bytes = self.last.proportional_bytes
        if now >= self._due:
            self._due = now + PROPORTIONAL_SECONDS
            # 0 where the kernel reports no Pss: psutil adds up what it finds
            proportional_bytes = _read(lambda: process.memory_full_info().pss) or None
        self.last = _use(process, proportional_bytes)

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Tell what was read."""
        return msgspec.structs.replace(info, own_use=self.last)


def _use(process: psutil.Process, proportional_bytes: int | None) -> OwnUse:
    """Return the use of *process*, with the last reading of its *proportional_bytes*."""
    with process.oneshot():  # each file of /proc is read once
        return OwnUse(
            resident_bytes=_read(lambda: process.memory_info().rss) or None,
            proportional_bytes=proportional_bytes,
            cpu_seconds=_read(partial(_cpu_seconds, process)),
            open_descriptors=_read(process.num_fds),
            threads=_read(process.num_threads),
        )


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _read(read: Callable[[], _Found]) -> _Found | None:
    try:
        return read()
    except _UNREADABLE:
        return None
