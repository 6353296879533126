"""Threads: a sufficient number at the start, or a refusal that names the cause.

The number of threads is limited per user (RLIMIT_NPROC, which counts all processes) and per service (TasksMax of
systemd.resource-control(5)). Later failures for lack of a thread are retried; the start is refused as a whole.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

from nodevet.checks.core.counts import count_of
from nodevet.checks.core.errors import BusyError

from .background import START_SECONDS, Background
from .procfs import memory_limit

NEEDED = 8
"""One each for log, state file, database and incoming connections; a reader is a process with three."""

_M_ARENA_MAX = -8


def share_one_heap() -> None:
    """Let all threads that start later allocate from one heap: those of their own took half a MiB (mallopt(3), glibc).

    Python's threads run one at a time, so they do not wait for it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def prove_threads(start: Callable[[Background], None] = Background.start) -> None:
    """Start the threads that the agent needs at the same time, and end them. Raises BusyError where one is refused."""
    done = threading.Event()
    begun: list[Background] = []
    try:
        for _ in range(NEEDED):
            thread = Background(done.wait)
            start(thread)
            begun.append(thread)
    except RuntimeError as error:
        raise BusyError(
            f"only {count_of(len(begun), 'more thread')} can be started, and the agent needs {NEEDED}: {_remedy()}"
        ) from error
    finally:
        done.set()
        for thread in begun:
            thread.join(START_SECONDS)


def _remedy() -> str:
    """Return the remedy. A thread's stack is memory too: a memory limit is reported first, where there is one."""
    usual = "raise LimitNPROC and TasksMax of the unit, or ulimit -u of the shell, or end other processes of this user"
    limit = memory_limit(os.getpid())
    return f"remove {limit} (LimitAS or LimitDATA of the unit, ulimit -v or -d); else {usual}" if limit else usual
