"""Runs a program of the site once, within its time, and takes what it prints. Whatever it does, this returns or raises.

The program leads a session of its own, so that it is ended together with everything that it started. It is told to
end before it is killed; one that cannot be killed, because it sits in a driver in state D, is left alone, and no
second one is started beside it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from nodevet.checks.backends.base import BackendError
from nodevet.checks.core.errors import Closed
from nodevet.checks.core.model import FailureKind

__all__ = ["END_SECONDS", "MAXIMUM_OUTPUT_BYTES", "Printed", "Runner", "beginning", "printable"]

MAXIMUM_OUTPUT_BYTES = 4 << 20
"""Sixteen devices with every quantity on every part need a tenth of it."""

TERMINATE_SECONDS = 0.1
KILL_SECONDS = 0.1
END_SECONDS = TERMINATE_SECONDS + KILL_SECONDS
"""What it takes at most, beyond its time, to end a program."""

LEFT_BEHIND_SECONDS = 0.2
"""How long the output may stay open after the program has ended."""

LOOK_SECONDS = 0.05
"""How often the end of a program is looked for where the kernel has no pidfd (before 5.3)."""

READ_BYTES = 1 << 16
ERROR_TAIL_BYTES = 4096
TOLD_CHARACTERS = 200


class Printed(msgspec.Struct, frozen=True):
    """What a run gave: its output, and the last line of its standard error, or an empty text."""

    output: bytes
    last_line: str


class Runner:
    """Runs one program again and again, never two at a time."""

    def __init__(
        self,
        argv: tuple[str, ...],
        environment: Mapping[str, str],
        timeout_seconds: float,
        *,
        lifeline: int | None = None,
        take: Callable[[bytes], object] | None = None,
    ) -> None:
        """Run *argv*, without a shell and with *environment* alone, for at most *timeout_seconds* each time.

        Where *take* is given it gets the output piece by piece, however much that is, and none is kept.

        Where the descriptor *lifeline* hangs up, the agent is gone, and a run ends with Closed.
        """
        self._argv = argv
        self._environment = dict(environment)
        self._timeout_seconds = timeout_seconds
        self._lifeline = lifeline
        self._take = take
        self._stuck: subprocess.Popen[bytes] | None = None

    def run(self, **more: str) -> Printed:
        """Run it once, with *more* in its environment. Raises BackendError, which says what it did instead."""
        self._look_for_stuck()
        process = self._start(more)
        try:
            return _Run(process, self._lifeline, self._take).follow(self._timeout_seconds)
        finally:
            if not _end(process):
                self._stuck = process

    def _look_for_stuck(self) -> None:
        if self._stuck is not None and not _has_ended(self._stuck):
            raise BackendError(
                FailureKind.READER,  # the command is the site's: whatever it waits for, no driver is shown to hang
                f"process {self._stuck.pid} of an earlier run cannot be killed, and no second one is started beside it",
            )
        if self._stuck is not None:
            _end(self._stuck)
            self._stuck = None

    def _start(self, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
        _refuse_untrusted(self._argv[0])
        try:
            return subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._environment, **more},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            kind = FailureKind.DENIED if isinstance(error, PermissionError) else FailureKind.ERROR
            raise BackendError(kind, f"{self._argv[0]} cannot be started: {error.strerror}") from error


class _Run:
    """One run that goes on."""

    def __init__(
        self, process: subprocess.Popen[bytes], lifeline: int | None, taker: Callable[[bytes], object] | None
    ) -> None:
        assert process.stdout is not None and process.stderr is not None
        self._process = process
        self._lifeline = lifeline
        self._taker = taker
        self._printed_bytes = 0
        self._output = bytearray()
        self._errors = bytearray()
        self._streams = {process.stdout.fileno(): self._output, process.stderr.fileno(): self._errors}
        self._poll = select.poll()
        for descriptor in self._streams:
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)
        if lifeline is not None:
            self._poll.register(lifeline, 0)  # a hang-up is told unasked

    def follow(self, timeout_seconds: float) -> Printed:
        """Take what it prints until it has ended with status 0 and closed its output; else raise BackendError."""
        with contextlib.ExitStack() as cleanup:
            tick = self._watch_end(cleanup)
            self._read_all(timeout_seconds, tick)
        status = _status(self._process)
        if status != 0:
            raise BackendError(FailureKind.ERROR, f"{_ending(status)}{self._said()}")
        return Printed(bytes(self._output), self._last_line())

    def _watch_end(self, cleanup: contextlib.ExitStack) -> float:
        """Have the end of the process wake the poll; return the seconds after which to look anyway."""
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except OSError:
            return LOOK_SECONDS
        cleanup.callback(os.close, descriptor)
        self._poll.register(descriptor, select.POLLIN)
        return LEFT_BEHIND_SECONDS

    def _read_all(self, timeout_seconds: float, tick: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        ended: float | None = None
        while True:
            now = time.monotonic()
            if _has_ended(self._process):
                ended = now if ended is None else ended
                if not self._streams:
                    return
                if now - ended >= LEFT_BEHIND_SECONDS:
                    raise self._left_behind()
            if now >= deadline:
                raise self._hung(timeout_seconds)
            self._take(min(tick, deadline - now))

    def _take(self, seconds: float) -> None:
        """Wait at most *seconds* for what comes, and keep it."""
        for descriptor, _ in self._poll.poll(seconds * 1000):
            if descriptor == self._lifeline:
                raise Closed("the agent is gone")
            if descriptor in self._streams:
                self._read(descriptor)
            else:
                self._poll.unregister(descriptor)  # the pidfd of what has ended is ready for ever

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, READ_BYTES)
        if not data:
            self._poll.unregister(descriptor)
            del self._streams[descriptor]
            return
        kept = self._streams[descriptor]
        if kept is self._output:
            self._printed_bytes += len(data)
            if self._taker is not None:
                self._taker(data)
                return
        kept += data
        if kept is self._errors:
            del kept[:-ERROR_TAIL_BYTES]
        elif len(kept) > MAXIMUM_OUTPUT_BYTES:
            raise BackendError(
                FailureKind.ERROR,
                f"printed more than {MAXIMUM_OUTPUT_BYTES >> 20} MiB, beginning with {beginning(kept)}{self._said()}",
            )

    def _hung(self, seconds: float) -> BackendError:
        printed = f"it printed {self._printed_bytes} bytes so far" if self._printed_bytes else "it printed nothing"
        return BackendError(FailureKind.ERROR, f"did not end within {seconds:g} s, {printed}{self._said()}")

    def _left_behind(self) -> BackendError:
        return BackendError(
            FailureKind.ERROR,
            f"{_ending(_status(self._process))} and left a process behind that holds its output open; "
            f"a command must wait for all that it starts{self._said()}",
        )

    def _said(self) -> str:
        line = self._last_line()
        return f"; its last line on standard error: {line}" if line else ""

    def _last_line(self) -> str:
        lines = [line for line in self._errors.decode("utf-8", "replace").splitlines() if line.strip()]
        return printable(lines[-1].strip()) if lines else ""


def beginning(output: bytes | bytearray) -> str:
    """Return how *output* begins, for a message."""
    return repr(bytes(output[:60]).decode("utf-8", "replace"))


def printable(text: str) -> str:
    """Return *text* as one line of a message: cut, and without what cannot be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:TOLD_CHARACTERS])


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether *process* is over. It is not reaped yet, so that its id stays its own."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _status(process: subprocess.Popen[bytes]) -> int:
    """Return the status of a process that has ended, negative for a signal; it is not reaped."""
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    assert found is not None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _end(process: subprocess.Popen[bytes]) -> bool:
    """End *process* and all of its group; return whether it is gone."""
    for number, seconds in ((signal.SIGTERM, TERMINATE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        if _has_ended(process):
            break
        _signal(process, number)
        _wait(process, seconds)
    if not _has_ended(process):
        return False
    _signal(process, signal.SIGKILL)  # what it left behind in its group, while the id is still its own
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.wait()
    return True


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not _has_ended(process) and time.monotonic() < deadline:
        time.sleep(0.005)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _refuse_untrusted(program: str) -> None:
    """Refuse a program that somebody else could replace: it runs with the rights of the agent."""
    try:
        facts = Path(program).stat()
    except OSError as error:
        raise BackendError(FailureKind.ERROR, f"{program} cannot be started: {error.strerror}") from error
    if facts.st_uid not in (0, os.geteuid()):
        raise BackendError(
            FailureKind.DENIED,
            f"{program} belongs to uid {facts.st_uid}: let it belong to root or to the agent's user",
        )
    if stat.S_IMODE(facts.st_mode) & stat.S_IWOTH:
        raise BackendError(FailureKind.DENIED, f"{program} can be written by everybody: chmod o-w {program}")
