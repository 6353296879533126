"""Process 1 of a container without an init: it starts the command as its child, and takes the ends of all others.

The kernel hands every orphan to process 1, and one that nobody waits for stays as a zombie. The command waits for
its own children alone; from another process nobody can take their ends away from it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

PASSED_ON = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH}
)

BY_THE_KERNEL = 0x80
"""SI_KERNEL of sigaction(2): a terminal has told its whole process group, the command too.

But its hang-up: that is told to the leader of the session alone, which is process 1."""


def under_init() -> int | None:
    """Return None in the process that is to run the command; in process 1 its exit code, once it has ended.

    With process 1 the kernel ends whatever else is in the container, loads and readers too.
    """
    if os.getpid() != 1:
        return None
    awaited = PASSED_ON | {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    command = os.fork()
    if command == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
        return None
    while True:
        told = signal.sigwaitinfo(awaited)
        if told.si_signo != signal.SIGCHLD:
            if told.si_signo == signal.SIGHUP or told.si_code != BY_THE_KERNEL:
                os.kill(command, told.si_signo)
            continue
        code = _taken(command)
        if code is not None:
            return code


def _taken(command: int) -> int | None:
    """Take the ends of all children; return the exit code of *command* where it is among them."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == command:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if pid == 0:
                break
    return None
