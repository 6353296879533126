"""The common start of every child process of the agent.

A child gets three things from the agent: a socket for the protocol, a shared line of text for the name of its next
call, and a lifeline on standard input. Standard output is redirected to standard error, because vendor libraries print
there at will and must not disturb the protocol.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from nodevet.checks.core.wire import Channel, Progress
from nodevet.checks.system.background import Background

THREAD_SECONDS = 30.0
"""Longest time to the first step of a child's thread: half of the limit for the child's own start."""

GRACE_SECONDS = 3.0
"""Time in which a child without a parent may close its library before it is killed."""

STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR = 0, 1, 2
_WATCHER_STACK_BYTES = 128 << 10
_PR_SET_PDEATHSIG = 1


class ChildEnd(msgspec.Struct, frozen=True):
    """The child's end of its connections to the agent."""

    channel: Channel
    progress: Progress


def become_child(arguments: Sequence[str], grace_seconds: float = GRACE_SECONDS) -> ChildEnd:
    """Take over the descriptors that *arguments* name (``--descriptor N --progress M``) and watch the lifeline.

    Processes that the child starts do not inherit them. Raises SystemExit with a usage message on other arguments.
    """
    match list(arguments):
        case ["--descriptor", descriptor, "--progress", shared] if descriptor.isdigit() and shared.isdigit():
            return _take_over(int(descriptor), int(shared), grace_seconds)
    raise SystemExit("usage: --descriptor SOCKET --progress MEMORY; only the agent starts this program")


def _take_over(descriptor: int, shared: int, grace_seconds: float) -> ChildEnd:
    os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    progress = Progress(shared)
    os.close(shared)
    watch_lifeline(lambda: _hang_up(connection), grace_seconds)
    return ChildEnd(Channel(connection), progress)


def watch_lifeline(orphaned: Callable[[], None], grace_seconds: float = GRACE_SECONDS) -> None:
    """Call *orphaned* once standard input ends, then kill this process if it still runs after *grace_seconds*.

    This runs in its own thread, because the main thread may sit in a driver call that never returns. A library that is
    being loaded may block every thread: without a grace period the kernel kills the process at that moment.
    """
    _signal_when_orphaned(signal.SIGCONT if grace_seconds else signal.SIGKILL)
    previous = threading.stack_size(_WATCHER_STACK_BYTES)
    try:
        Background(lambda: _wait_for_end(orphaned, grace_seconds)).start(THREAD_SECONDS)
    finally:
        threading.stack_size(previous)


def _signal_when_orphaned(number: signal.Signals) -> None:
    """Let the kernel send *number* when the parent ends: a stopped process could not see its lifeline.

    prctl(2), PR_SET_PDEATHSIG. The signal is sent when the parent's thread that started this process ends, the main
    one.
    """
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _wait_for_end(orphaned: Callable[[], None], grace_seconds: float) -> None:
    while os.read(STANDARD_INPUT, 4096):
        pass
    orphaned()
    time.sleep(grace_seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already: the child is ending
        connection.shutdown(socket.SHUT_RDWR)
