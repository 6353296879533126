"""A child process at the other end of a channel, driven by a selector: no call here blocks.

The child leads its own process group and session. It is asked to stop before SIGTERM, gets SIGTERM before SIGKILL,
and is abandoned where even that has no effect, because a process that sits in a driver in state D cannot be killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from nodevet.checks.core.clock import Clock
from nodevet.checks.core.errors import WireError
from nodevet.checks.core.wire import Decoder, Message, Progress, Stop, encode
from nodevet.checks.system.process import Exit, Process
from nodevet.checks.system.procfs import ChildRecord, describe, start_ticks, tight_limit

from .last_words import LastWords

READ_BYTES = 1 << 18
"""Largest read from a child at once, so that a child that floods its channel does not starve the others."""

LINE_CHARACTERS = 500
GIVEN_UP_SECONDS = 0.2
"""Longest wait of the loop for the end of a killed process that could not be followed; it takes a few ms."""
EXIT_POLL_SECONDS = 0.1
"""Poll interval for the end of a child where the kernel has no pidfd."""


class Patience(msgspec.Struct, frozen=True):
    """Seconds from the first stop request to a child until SIGTERM, SIGKILL and giving up."""

    terminate: float
    kill: float
    abandon: float


HUNG_UP = Patience(terminate=1.0, kill=2.0, abandon=4.0)


class ChildOwner(Protocol):
    """The receiver of a child's messages, output and end."""

    def on_message(self, message: Message) -> None:
        """Take a message of the protocol."""
        ...

    def on_line(self, line: str) -> None:
        """Take a line of the child's standard output or standard error."""
        ...

    def on_nonsense(self, detail: str) -> None:
        """Handle a protocol violation of the child, which still runs."""
        ...

    def on_unreadable(self, detail: str) -> None:
        """Handle one unreadable message; it is dropped, and the messages after it are taken."""
        ...

    def on_stuck(self) -> None:
        """Handle a child that could not even be killed. Should it ever end, ``on_end`` follows."""
        ...

    def on_end(self, ended: Exit) -> None:
        """Handle the end of the child, once: the last call on an owner."""
        ...


class Child:
    """One child process. Raises OSError where it cannot be started."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        selector: selectors.BaseSelector,
        owner: ChildOwner,
        clock: Clock,
        *,
        environment: Mapping[str, str] | None = None,
        inherit: tuple[int, ...] = (),
        orphaned: signal.Signals = signal.SIGCONT,
    ) -> None:
        """Start *argv* with descriptors appended, and register with *selector*; keys carry a callback as data.

        The child also inherits the descriptors *inherit*, unannounced. *orphaned* is the signal that the kernel sends
        it when this process ends: a stopped child does not notice its lifeline, and may be stopped before it can set up
        anything.
        """
        self._name = name
        self._selector = selector
        self._owner = owner
        self._clock = clock
        self._decoder = Decoder(owner.on_unreadable)
        self._partial = b""
        self._steps: deque[tuple[float, Callable[[], None]]] = deque()
        self.tail = LastWords()
        self.abandoned = self.was_ended = self._is_reported = False
        self._tight_limit: str | None = None
        self._last_call: tuple[str, int] | None = None
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as childs_own:
            stdin = self._open(argv, environment, inherit, on_failure, childs_own)
            _signal_at_end(stdin, self.pid, orphaned)
            on_failure.callback(self._give_up)
            self._start_ticks = start_ticks(self.pid)
            self._watch(on_failure)
            on_failure.pop_all()

    @property
    def pid(self) -> int:
        """Return the process id, which is also that of its group."""
        return self._process.pid

    @property
    def tight_limit(self) -> str:
        """Return the limit on memory or files that the child has, or had until it ended; empty without one."""
        return tight_limit(self.pid) if self._tight_limit is None else self._tight_limit

    @property
    def record(self) -> ChildRecord | None:
        """Return the record of the child to store over a restart of the agent; None once it has ended."""
        if self._process.is_reaped or self._start_ticks is None:
            return None
        boot_id = self._clock.instant().boot_id
        return ChildRecord(self._name, self.pid, self._start_ticks, boot_id, self.call, self.in_call)

    @property
    def call(self) -> str:
        """Return the child's present call, or its last one."""
        return self._progress.read() if self._last_call is None else self._last_call[0]

    @property
    def call_number(self) -> int:
        """Return the number of the driver call, different for each call."""
        return self._progress.number if self._last_call is None else self._last_call[1]

    @property
    def in_call(self) -> bool:
        """Return whether the child is inside a driver call, or ended there."""
        return bool(self.call_number & 1)

    @property
    def where(self) -> str:
        """Return pid, state and kernel function of the process, for display."""
        return f"process {self.pid}, {describe(self.pid)}"

    @property
    def ending(self) -> bool:
        """Return whether the child was asked or forced to end."""
        return bool(self._steps) or self.abandoned

    @property
    def next_deadline(self) -> float | None:
        """Return the time of the next ``tick``, in the clock's monotonic seconds."""
        deadlines = [when for when, _ in list(self._steps)[:1]]
        if self._pidfd is None:
            deadlines.append(self._clock.monotonic() + EXIT_POLL_SECONDS)
        return min(deadlines, default=None)

    def send(self, message: Message) -> None:
        """Send *message* whole; a full channel is reported as nonsense, and a closed one means that the child ends."""
        frame = encode(message)
        try:
            sent = self._connection.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it has ended or is about to: on_end follows
        if sent != len(frame):
            self._owner.on_nonsense("it does not read its channel")

    def finish(self, patience: Patience, *, ask: bool) -> None:
        """End the child, with a Stop message first if *ask*; a shorter patience replaces a longer one."""
        if self.abandoned:
            return
        if ask and not self._steps:
            self.send(Stop())
        now = self._clock.monotonic()
        wanted = {
            self._terminate: now + patience.terminate,
            self._kill: now + patience.kill,
            self._abandon: now + patience.abandon,
        }
        left = {step: when for when, step in self._steps} or wanted
        self._steps = deque((min(when, left[step]), step) for step, when in wanted.items() if step in left)
        self._take_steps()

    def hear_out(self) -> None:
        """Read all messages that the child has sent so far: data in the pipe already is not late."""
        while self._connection.fileno() >= 0 and self._is_watched(self._connection) and self._read_channel():
            pass

    def tick(self) -> None:
        """Take the steps that are due, and poll for the child's end, even if the last poll raised."""
        self._take_steps()
        self._poll_end()

    def _take_steps(self) -> None:
        while self._steps and self._steps[0][0] <= self._clock.monotonic():
            _, step = self._steps.popleft()
            step()

    def _open(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None,
        inherit: tuple[int, ...],
        on_failure: contextlib.ExitStack,
        childs_own: contextlib.ExitStack,
    ) -> int:
        """Start the process, and return its end of the lifeline."""
        self._connection, theirs = socket.socketpair()
        on_failure.callback(self._connection.close)
        childs_own.callback(theirs.close)
        self._connection.setblocking(False)
        self._progress, shared = Progress.create()
        on_failure.callback(self._progress.close)
        childs_own.callback(os.close, shared)
        stdin, self._lifeline = os.pipe()
        on_failure.callback(os.close, self._lifeline)
        childs_own.callback(os.close, stdin)
        self._errors, stderr = os.pipe()
        on_failure.callback(os.close, self._errors)
        childs_own.callback(os.close, stderr)
        os.set_blocking(self._errors, False)
        self._process = Process(
            [*argv, "--descriptor", str(theirs.fileno()), "--progress", str(shared)],
            stdin=stdin,
            stdout=stderr,
            stderr=stderr,
            environment=environment,
            inherit=(theirs.fileno(), shared, *inherit),
        )
        return stdin

    def _give_up(self) -> None:
        """End a process that cannot be followed: no other code would."""
        self.was_ended = True
        self._process.end(0.0, GIVEN_UP_SECONDS)

    def _watch(self, on_failure: contextlib.ExitStack) -> None:
        watched: dict[int | socket.socket, Callable[[], object]] = {
            self._connection: self._read_channel,
            self._errors: self._read_errors,
        }
        try:
            self._pidfd: int | None = os.pidfd_open(self.pid)
        except OSError:
            self._pidfd = None  # kernels before 5.3: the end is polled for
        else:
            on_failure.callback(os.close, self._pidfd)
            watched[self._pidfd] = self._poll_end
        for file, take in watched.items():
            self._selector.register(file, selectors.EVENT_READ, lambda _mask, take=take: take())
            on_failure.callback(self._selector.unregister, file)

    def _read_channel(self) -> bool:
        """Read from the channel; return whether there may be more."""
        if self._is_closed:
            return False
        try:
            data = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._forget(self._connection)
            if not self._steps:  # a child that closed its channel has a moment to end by itself
                self.finish(HUNG_UP, ask=False)
            return False
        try:
            for message in self._decoder.feed(data):
                self._owner.on_message(message)
        except WireError as error:
            self._forget(self._connection)
            self._owner.on_nonsense(str(error))
            return False
        return True

    def _read_errors(self) -> bool:
        """Read from standard error; return whether there may be more."""
        if self._is_closed:
            return False
        try:
            data = os.read(self._errors, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._forget(self._errors)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > LINE_CHARACTERS or not data:
            lines, self._partial = [*lines, self._partial], b""
        for line in lines:
            text = line[:LINE_CHARACTERS].decode("utf-8", "replace").strip()
            if text:
                self.tail.append(text)
                self._owner.on_line(text)
        return bool(data)

    def _poll_end(self) -> None:
        """Report the end of the process to the owner, once; its last messages are read before.

        Where that raises, the next call continues from there: otherwise the process would be treated as running.
        """
        if not self._process.is_reaped:
            if self._process.ended() is None:
                return
            self._process.signal(signal.SIGKILL)  # kills processes left in its group, while the id is still its own
            if not self.abandoned:
                self.hear_out()
                while self._is_watched(self._errors) and self._read_errors():
                    pass
            self._tight_limit = tight_limit(self.pid)
            self._process.reap()
        self._last_call = self._last_call or (self.call, self.call_number)
        self._steps.clear()
        self._progress.close()
        self._close()
        if not self._is_reported:
            self._owner.on_end(self._process.reap())
            self._is_reported = True

    def _terminate(self) -> None:
        self.was_ended = True
        self._process.signal(signal.SIGTERM)
        self._process.signal(signal.SIGCONT)  # a stopped process sees neither signal nor lifeline before SIGCONT

    def _kill(self) -> None:
        self.was_ended = True
        self._process.signal(signal.SIGKILL)

    def _abandon(self) -> None:
        """Close everything except the descriptor that reports its end."""
        self.abandoned = True
        self._close(keep_watching=True)
        self._owner.on_stuck()

    def _close(self, *, keep_watching: bool = False) -> None:
        if self._pidfd is not None and not keep_watching:
            self._forget(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._is_closed:
            return
        self._forget(self._connection)
        self._forget(self._errors)
        self._connection.close()
        os.close(self._errors)
        os.close(self._lifeline)

    @property
    def _is_closed(self) -> bool:
        # The end of the process and its last messages may arrive in one round of the selector: the first of the two to
        # be handled has closed the descriptors of the other.
        return self._connection.fileno() < 0

    def _is_watched(self, file: socket.socket | int) -> bool:
        return file in self._selector.get_map()

    def _forget(self, file: socket.socket | int) -> None:
        if self._is_watched(file):
            self._selector.unregister(file)


def _signal_at_end(pipe: int, pid: int, number: signal.Signals) -> None:
    """Let the kernel send *number* to the process *pid* when the other end of *pipe* is closed (fcntl(2), O_ASYNC)."""
    fcntl.fcntl(pipe, fcntl.F_SETOWN, pid)
    fcntl.fcntl(pipe, fcntl.F_SETSIG, number)
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC)
