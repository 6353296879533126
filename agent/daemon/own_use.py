"""What the agent's process takes of its machine, as psutil reads it: memory, processor time, descriptors, threads."""

from __future__ import annotations

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


class OwnUseReader(Service):
    """Reads once for each judgement, and keeps what was read last."""

    name = "own_use"

    def __init__(self, attach: Callable[[], psutil.Process] = psutil.Process) -> None:
        """Read nothing yet; *attach* returns the process to look at."""
        self._attach = attach
        self.last = OwnUse()

    def before_judging(self) -> None:
        """Read anew; what cannot be read is not known."""
        process = _read(self._attach)
        self.last = OwnUse() if process is None else _use(process)

    def describe(self, info: AgentInfo) -> AgentInfo:
        """Tell what was read."""
        return msgspec.structs.replace(info, own_use=self.last)


def _use(process: psutil.Process) -> OwnUse:
    with process.oneshot():  # each file of /proc is read once
        return OwnUse(
            resident_bytes=_read(lambda: process.memory_info().rss) or None,
            # 0 where the kernel tells no Pss: psutil adds up what it finds
            proportional_bytes=_read(lambda: process.memory_full_info().pss) or None,
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
