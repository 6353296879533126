"""The load child: ``python -I -m nodevet.checks.burnin.main``, started by the agent for one device.

It answers each ``Burn`` with ``ProgressMessage`` lines and one ``ResultMessage``. ``Stop`` on the channel or
SIGTERM end it within two seconds at any point: a separate thread takes SIGTERM, because the main thread may sit in a
library that returns to Python only after seconds. When its parent ends, the kernel kills it: its results have no
receiver any more, and wrong ones were sent before. When its parent is stopped it ends by itself: the parent could not
end it to free the device for a job.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import psutil

from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.errors import Closed
from nodevet.checks.core.model import Result, ResultState
from nodevet.checks.core.wire import (
    Burn,
    Channel,
    Found,
    Message,
    Progress,
    ProgressMessage,
    Ready,
    ResultMessage,
    Start,
    Stop,
)
from nodevet.checks.ipc.worker import THREAD_SECONDS, become_child
from nodevet.checks.system.background import Background
from nodevet.checks.system.exhaustion import next_step

from .errors import InterruptionError
from .plan import WORKLOAD, GemmRequest

HOW_TO_GET_TORCH = "torch is not installed: pip install 'nodevet[burnin]'"

TICK_SECONDS = 0.25
ENDING_SECONDS = 1.0
"""Time in which the workload may end by itself after SIGTERM."""


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process *pid* (proc_pid_stat(5)); an ended process is not stopped."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except (psutil.Error, OSError, LookupError):  # it has ended, or /proc does not show it
        return False


class Session:
    """The channel to the parent, shared by the workload and by the thread that waits for SIGTERM."""

    def __init__(self, channel: Channel, progress: Progress) -> None:
        """Serve *channel*."""
        self._channel = channel
        self._progress = progress
        self._lock = threading.Lock()
        self._waiting: deque[Message] = deque()
        self._interrupted = threading.Event()
        self._result_so_far: Callable[[ResultState, str], Result] | None = None
        self._ending_seconds = 0.0
        self._last_tick = float("-inf")
        self._parent = os.getppid()
        self._last_poll = float("-inf")

    def next_message(self) -> Message:
        """Return the next message of the parent. Raises Closed when the parent has ended."""
        return self._waiting.popleft() if self._waiting else self._channel.receive()

    def send(self, message: Message) -> None:
        """Send *message*. Raises Closed when the parent has ended."""
        with self._lock:
            self._channel.send(message)

    def begin(self, result_so_far: Callable[[ResultState, str], Result], ending_seconds: float = 0.0) -> None:
        """Start a workload: *result_so_far* makes its result, *ending_seconds* is its time to end by itself."""
        with self._lock:
            self._result_so_far = result_so_far
            self._ending_seconds = ending_seconds
        self.pause()

    def finish(self, result: Result) -> None:
        """Send the result of the workload, once."""
        with self._lock:
            if self._result_so_far is not None:
                self._result_so_far = None
                self._channel.send(ResultMessage(result))

    @property
    def interrupted(self) -> bool:
        """Return whether the child was asked to end."""
        return self._interrupted.is_set()

    def pause(self) -> None:
        """Raise InterruptionError where the child must end; part of ``workload.Control``."""
        poll = select.poll()  # select(2) accepts no descriptor above 1023
        poll.register(self._channel, select.POLLIN)
        while self._channel.pending() or poll.poll(0):
            message = self._channel.receive()
            if isinstance(message, Stop):
                self._interrupted.set()
            else:
                self._waiting.append(message)
        if self.interrupted:
            raise InterruptionError("asked to stop")
        if self._is_parent_stopped():
            self._interrupted.set()
            raise InterruptionError("its parent was stopped (Ctrl-Z, SIGSTOP) and could not have it give way to a job")

    def _is_parent_stopped(self) -> bool:
        """Return whether the parent was stopped by a signal, polled every quarter of a second."""
        now = time.monotonic()
        if now - self._last_poll < TICK_SECONDS:
            return False
        self._last_poll = now
        return is_stopped(self._parent)

    def tick(self, ratio: float, phase: str, shown: dict[str, float | int]) -> None:
        """Send progress, at most four times a second; part of ``workload.Control``."""
        self.pause()
        now = time.monotonic()
        if now - self._last_tick < TICK_SECONDS and shown:
            return
        self._last_tick = now
        self._progress.write(phase)
        self.send(ProgressMessage(ratio, phase, dict(shown)))

    def known(self, result: Result) -> None:
        """Send the result so far of a workload that found a wrong result; part of ``workload.Control``."""
        with self._lock:
            if self._result_so_far is not None:
                self._channel.send(Found(result))

    def end_on_sigterm(self) -> None:
        """Wait for SIGTERM, give the workload time to end, then send the result so far and end the process."""
        signal.sigwait({signal.SIGTERM})
        self._interrupted.set()
        deadline = time.monotonic() + self._ending_seconds
        while self._is_busy() and time.monotonic() < deadline:
            time.sleep(0.02)
        with self._lock:
            if self._result_so_far is not None:
                self._channel.send(ResultMessage(self._result_so_far(ResultState.INTERRUPTED, "asked to stop")))
            os._exit(0)

    def _is_busy(self) -> bool:
        with self._lock:
            return self._result_so_far is not None


def main(arguments: Sequence[str], choose: Callable[..., Any] | None = None) -> int:
    """Serve the agent until it sends ``Stop`` or ends; return the exit status.

    *choose* selects the multiplication: a broken one simulates broken hardware.
    """
    # Before any thread exists, so that all threads inherit it and only the waiting one gets the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    end = become_child(arguments, grace_seconds=0.0)
    session = Session(end.channel, end.progress)
    Background(session.end_on_sigterm).start(THREAD_SECONDS)
    try:
        while not session.interrupted:
            match session.next_message():
                case Start():
                    session.send(Ready(devices=()))
                case Burn() as burn:
                    session.finish(_burn(burn, session, choose))
                case Stop():
                    break
    except Closed:
        pass
    return 0


def _burn(burn: Burn, session: Session, choose: Callable[..., Any] | None) -> Result:
    clock = SystemClock()
    started, began = clock.instant(), clock.monotonic()
    device, dtype = str(burn.parameters.get("device", "")), str(burn.parameters.get("dtype", ""))

    def blank(state: ResultState, detail: str) -> Result:
        return Result(
            workload=burn.workload,
            devices=(device,),
            state=state,
            started=started,
            ended=clock.instant(),
            dtype=dtype,
            detail=detail,
        )

    try:
        session.begin(blank)
        if burn.workload != WORKLOAD:
            return blank(ResultState.REFUSED, f"workload {burn.workload!r} is unknown; there is {WORKLOAD!r}")
        request = msgspec.convert(burn.parameters, GemmRequest)
        session.tick(0.0, "loading torch", {})
        from .workload import Run, run_gemm  # the only import of torch, which may be absent and takes seconds to load

        run = Run(request, clock, began)
        session.begin(run.result, ENDING_SECONDS)
        return run_gemm(run, session) if choose is None else run_gemm(run, session, choose)
    except InterruptionError as error:
        return blank(ResultState.INTERRUPTED, str(error))
    except msgspec.ValidationError as error:
        return blank(ResultState.REFUSED, f"request: {error}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return blank(ResultState.REFUSED, HOW_TO_GET_TORCH)
    except (ImportError, OSError) as error:
        step = next_step(str(error), "reinstall it: pip install 'nodevet[burnin]'")
        return blank(ResultState.REFUSED, f"torch cannot be loaded: {error}; {step}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
