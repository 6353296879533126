"""Programs in their own session: started, followed for a limited time, and ended with all their children.

``Process`` is the only place that starts programs. ``ipc.child_process`` supervises a child that speaks our protocol,
``Runner`` runs a program to its end. A program gets SIGTERM before SIGKILL. A program that cannot be killed, because
it sits in a driver in state D, is left alone, and no second one is started beside it.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from subprocess import DEVNULL, PIPE
from typing import IO, Self

import msgspec

from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.guard import printable

__all__ = ["DEVNULL", "PIPE"]

MAXIMUM_BYTES = 4 << 20
"""Ten times the output of sixteen devices with every quantity on every part."""

GRACE_SECONDS = 0.1
"""Time from SIGTERM to SIGKILL, and from SIGKILL to giving up."""

LEFT_BEHIND_SECONDS = 0.2
"""Longest time that the output may stay open after the program has ended."""

TICK_SECONDS = 0.1
"""Interval in which a run polls whether its result is still wanted."""

LOOK_SECONDS = 0.05
"""Poll interval for the end of a program where the kernel has no pidfd (before 5.3)."""

READ_BYTES = 1 << 16
ERROR_TAIL_BYTES = 1 << 16
SHOWN_CHARACTERS = 200


class Exit(msgspec.Struct, frozen=True):
    """The end of a process: the status as subprocess gives it, negative for a signal."""

    status: int

    @property
    def signal(self) -> int | None:
        """Return the number of the signal that ended it, or None."""
        return -self.status if self.status < 0 else None

    @property
    def fault(self) -> str:
        """Return the name of that signal, such as ``SIGSEGV``; empty where none ended it."""
        if self.status >= 0:
            return ""
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"

    def __str__(self) -> str:
        """Return ``was killed by SIGABRT`` or ``ended with status 3``."""
        return f"was killed by {self.fault}" if self.fault else f"ended with status {self.status}"


class Process:
    """One program, leader of its own session and group. Raises OSError where it cannot be started."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: int = DEVNULL,
        stdout: int = DEVNULL,
        stderr: int = DEVNULL,
        environment: Mapping[str, str] | None = None,
        inherit: tuple[int, ...] = (),
    ) -> None:
        """Start *argv*, without a shell, with *environment* alone (None: ours) and the descriptors *inherit*."""
        self._process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            pass_fds=inherit,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Return the process id, which is also that of its group."""
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        """Return its standard input, which was opened as a pipe."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Return its standard output, which was opened as a pipe."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes]:
        """Return its standard error, which was opened as a pipe."""
        assert self._process.stderr is not None
        return self._process.stderr

    @property
    def is_reaped(self) -> bool:
        """Return whether it was reaped: its id may belong to another process by now."""
        return self._process.returncode is not None

    def ended(self) -> Exit | None:
        """Return its end, or None while it runs. It is not reaped, so that its id is not used again."""
        if self._process.returncode is not None:
            return Exit(self._process.returncode)
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # other code in this process waited for it: its status is lost
            return Exit(self._process.wait())
        if found is None:
            return None
        return Exit(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)

    def signal(self, number: signal.Signals) -> None:
        """Send *number* to it and all of its group."""
        if not self.is_reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def reap(self) -> Exit:
        """Reap a process that has ended; processes left in its group are killed before."""
        self.signal(signal.SIGKILL)
        self.close()
        return Exit(self._process.wait())

    def end(self, terminate_seconds: float = GRACE_SECONDS, kill_seconds: float = GRACE_SECONDS) -> bool:
        """End it and its group: SIGTERM, after *terminate_seconds* SIGKILL; return whether it has ended."""
        for number, seconds in ((signal.SIGTERM, terminate_seconds), (signal.SIGKILL, kill_seconds)):
            if self.ended() is None and seconds > 0:
                self.signal(number)
                self._wait(seconds)
        is_gone = self.ended() is not None
        if is_gone:
            self.reap()
        self.close()
        return is_gone

    def close(self) -> None:
        """Close its pipes, even while another process writes to them."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.ended() is None and time.monotonic() < deadline:
            time.sleep(0.005)


class RunFailure(enum.Enum):
    """The reasons why a run has no usable result."""

    FAILED = "failed"
    LATE = "late"
    TOO_MUCH = "too much"
    LEFT_BEHIND = "left behind"
    UNWANTED = "unwanted"
    STUCK = "stuck"


class RunError(NodevetError):
    """A run without a usable result: its kind, and the message for people, without a subject."""

    def __init__(self, failure: RunFailure, message: str, pid: int) -> None:
        """Report a *failure* of the process *pid*."""
        super().__init__(message)
        self.failure, self.pid = failure, pid


class Done(msgspec.Struct, frozen=True):
    """The result of a program that has ended: its status, its output, and the end of its standard error."""

    pid: int
    exit: Exit
    output: bytes
    errors: bytes

    @property
    def last_line(self) -> str:
        """Return the last line of standard error, cut for a message; empty without one."""
        return _last_line(self.errors)

    def checked(self) -> Self:
        """Return this. Raises RunError where the program did not end with status 0."""
        if self.exit.status != 0:
            raise RunError(RunFailure.FAILED, f"{self.exit}{_quote(self.errors)}", self.pid)
        return self


class Runner:
    """Runs programs one after the other, each within its time limit: every run returns or raises."""

    def __init__(
        self,
        *,
        grace_seconds: float = GRACE_SECONDS,
        left_behind_seconds: float = LEFT_BEHIND_SECONDS,
        maximum_bytes: int = MAXIMUM_BYTES,
        is_wanted: Callable[[], bool] = lambda: True,
        take: Callable[[bytes], object] | None = None,
    ) -> None:
        """Run nothing yet.

        *grace_seconds* is the time from SIGTERM to SIGKILL, and the wait after SIGKILL. *take* receives the output
        piece by piece without a size limit, and none is kept. A run ends soon after *is_wanted* returns False.
        """
        self.grace_seconds = grace_seconds
        self.left_behind_seconds = left_behind_seconds
        self.maximum_bytes = maximum_bytes
        self.is_wanted = is_wanted
        self.take = take
        self._stuck: Process | None = None

    def run(self, argv: Sequence[str], timeout_seconds: float, environment: Mapping[str, str] | None = None) -> Done:
        """Run *argv* until it has ended and closed its output, for at most *timeout_seconds*.

        Raises OSError where it cannot be started, and RunError where it did not end or its output could not be read.
        """
        self._refuse_while_stuck()
        process = Process(argv, stdout=PIPE, stderr=PIPE, environment=environment)
        try:
            return _Run(process, self).follow(timeout_seconds)
        finally:
            if not process.end(self.grace_seconds, self.grace_seconds):
                self._stuck = process

    def _refuse_while_stuck(self) -> None:
        if self._stuck is None:
            return
        if self._stuck.ended() is None:
            pid = self._stuck.pid
            why = f"process {pid} of an earlier run cannot be killed, and no second one is started beside it"
            raise RunError(RunFailure.STUCK, why, pid)
        self._stuck.reap()
        self._stuck = None


class _Run:
    """One run in progress."""

    def __init__(self, process: Process, runner: Runner) -> None:
        self._process = process
        self._runner = runner
        self._printed_bytes = 0
        self._output = bytearray()
        self._errors = bytearray()
        self._streams = {process.stdout.fileno(): self._output, process.stderr.fileno(): self._errors}
        self._poll = select.poll()
        for descriptor in self._streams:
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)

    def follow(self, timeout_seconds: float) -> Done:
        """Read its output until it has ended and closed it. Raises RunError."""
        with contextlib.ExitStack() as cleanup:
            tick = self._watch_end(cleanup)
            ended = self._read_all(timeout_seconds, tick)
        return Done(self._process.pid, ended, bytes(self._output), bytes(self._errors))

    def _watch_end(self, cleanup: contextlib.ExitStack) -> float:
        """Let the end of the process wake the poll; return the seconds after which to poll anyway."""
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except OSError:
            return LOOK_SECONDS
        cleanup.callback(os.close, descriptor)
        self._poll.register(descriptor, select.POLLIN)
        return TICK_SECONDS

    def _read_all(self, timeout_seconds: float, tick: float) -> Exit:
        deadline = time.monotonic() + timeout_seconds
        left_behind: float | None = None
        while True:
            now = time.monotonic()
            if (ended := self._process.ended()) is not None:
                if not self._streams:
                    return ended
                left_behind = now + self._runner.left_behind_seconds if left_behind is None else left_behind
                if now >= left_behind:
                    raise self._error(
                        RunFailure.LEFT_BEHIND,
                        f"{ended} and left a process behind that holds its output open; "
                        "a command must wait for all that it starts",
                    )
            if not self._runner.is_wanted():
                raise self._error(RunFailure.UNWANTED, "was given up")
            if now >= deadline:
                count = self._printed_bytes
                printed = f"it printed {count} bytes so far" if count else "it printed nothing"
                raise self._error(RunFailure.LATE, f"did not end within {timeout_seconds:g} s, {printed}")
            self._take(min(tick, deadline - now))

    def _take(self, seconds: float) -> None:
        """Wait at most *seconds* for output, and keep it."""
        for descriptor, _ in self._poll.poll(seconds * 1000):
            if descriptor in self._streams:
                self._read(descriptor)
            else:
                self._poll.unregister(descriptor)  # the pidfd of an ended process stays ready for ever

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, READ_BYTES)
        if not data:
            self._poll.unregister(descriptor)
            del self._streams[descriptor]
        elif self._streams[descriptor] is self._errors:
            self._errors += data
            del self._errors[:-ERROR_TAIL_BYTES]
        else:
            self._printed_bytes += len(data)
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        if self._runner.take is not None:
            self._runner.take(data)
            return
        self._output += data
        most = self._runner.maximum_bytes
        if len(self._output) > most:
            begins = repr(bytes(self._output[:60]).decode("utf-8", "replace"))
            raise self._error(RunFailure.TOO_MUCH, f"printed more than {most >> 20} MiB, beginning with {begins}")

    def _error(self, failure: RunFailure, message: str) -> RunError:
        return RunError(failure, message + _quote(self._errors), self._process.pid)


def _quote(errors: bytes | bytearray) -> str:
    line = _last_line(errors)
    return f"; its last line on standard error: {line}" if line else ""


def _last_line(errors: bytes | bytearray) -> str:
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    shown = lines[-1].strip()[:SHOWN_CHARACTERS] if lines else ""
    return printable(shown)


def python_module(module: str) -> tuple[str, ...]:
    """Return the command that runs our *module*, without PYTHONPATH and the working directory on its path."""
    return (sys.executable, "-I", "-m", module)
