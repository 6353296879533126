"""Threads: enough of them at the start, or a refusal that names the cause.

A user may have only so many (RLIMIT_NPROC counts threads, also those of other processes), and so may a service
(TasksMax of systemd.resource-control(5)). What fails for want of one later is tried again; the start is refused whole.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from nodevet.checks.core.errors import BusyError

from .background import START_SECONDS, Background
from .procfs import memory_limit

NEEDED = 8
"""One each writes log, state file and database and accepts connections; a reader is a process with three."""


def prove_threads(start: Callable[[Background], None] = Background.start) -> None:
    """Start as many threads as the agent needs at once, and end them. Raises BusyError where one is refused."""
    done = threading.Event()
    begun: list[Background] = []
    try:
        for _ in range(NEEDED):
            thread = Background(done.wait)
            start(thread)
            begun.append(thread)
    except RuntimeError as error:
        raise BusyError(
            f"only {len(begun)} more threads can be started, and the agent needs {NEEDED}: {_remedy()}"
        ) from error
    finally:
        done.set()
        for thread in begun:
            thread.join(START_SECONDS)


def _remedy() -> str:
    """Return what to do. The stack of a thread is memory too: a limit on that is told first, where there is one."""
    usual = "raise LimitNPROC and TasksMax of the unit, or ulimit -u of the shell, or end other processes of this user"
    limit = memory_limit(os.getpid())
    return f"remove {limit} (LimitAS or LimitDATA of the unit, ulimit -v or -d); else {usual}" if limit else usual
