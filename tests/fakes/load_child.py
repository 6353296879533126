"""The parent's end of a real load child: starts it, talks to it over its socket, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from nodevet.checks.burnin.launch import burn_command
from nodevet.checks.core.model import Device, DeviceKind, Result
from nodevet.checks.core.wire import Burn, Channel, Message, Progress, ProgressMessage, ResultMessage, Stop

DEVICE = Device(id="cpu-0", kind=DeviceKind.CPU, vendor="amd", model="any", backend="host")

WITHOUT_TORCH = (
    sys.executable,
    "-I",
    "-c",
    "import sys; sys.modules['torch'] = None; "
    "from nodevet.checks.burnin.main import main; sys.exit(main(sys.argv[1:]))",
)
"""A child on whose machine torch is not installed."""

PATIENCE_SECONDS = 30.0


class LoadChild:
    """A running load child. Use it in a with statement."""

    def __init__(self, argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> None:
        """Start the child, as the agent would, with *environment* added."""
        launch = burn_command(DEVICE, os.environ)
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE_SECONDS)
        self.progress, shared = Progress.create()
        stdin, self._lifeline = os.pipe()
        self.process = subprocess.Popen(
            [*(argv or launch.argv), "--descriptor", str(theirs.fileno()), "--progress", str(shared)],
            stdin=stdin,
            stderr=subprocess.PIPE,
            pass_fds=(theirs.fileno(), shared),
            env=launch.environment | dict(environment or {}),
        )
        # One processor: several threads on a busy machine wait for each other more than they compute.
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(self.process.pid, {processors[self.process.pid % len(processors)]})
        theirs.close()
        os.close(shared)
        os.close(stdin)
        self._connection = ours
        self._channel = Channel(ours)
        self.ticks: list[ProgressMessage] = []

    def __enter__(self) -> LoadChild:
        """Return the child."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the child where it is still there, and close everything."""
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
        self._connection.close()
        self.progress.close()
        self.cut_lifeline()

    def send(self, message: Message) -> None:
        """Send *message*."""
        self._channel.send(message)

    def receive(self) -> Message:
        """Return the next message."""
        return self._channel.receive()

    def burn(self, **parameters: Any) -> None:
        """Ask for a small product workload with *parameters* changed."""
        small = {
            "device": "cpu-0",
            "dtype": "fp32",
            "seconds": 0.3,
            "shape": [256, 256, 512],
            "maximum_memory_bytes": 64 << 20,
        }
        self.send(Burn("gemm", small | parameters))

    def result(self) -> Result:
        """Return the result of the workload that runs; its progress lines are kept."""
        while True:
            message = self.receive()
            if isinstance(message, ResultMessage):
                return message.result
            assert isinstance(message, ProgressMessage)
            self.ticks.append(message)

    def wait_for_phase(self, phase: str, *, figures: bool = False) -> None:
        """Return once the workload says that it is in *phase*, and with *figures* shows some."""
        while not (self.ticks and self.ticks[-1].phase == phase and (self.ticks[-1].figures or not figures)):
            message = self.receive()
            assert isinstance(message, ProgressMessage)
            self.ticks.append(message)

    def seconds_to_end(self, *, stop: bool = False, terminate: bool = False, cut: bool = False) -> float:
        """End the child in the way named and return how long it took to go, without its waits for a processor."""
        begin, waited = time.monotonic(), self._waited_seconds()
        if stop:
            self.send(Stop())
        if terminate:
            self.process.send_signal(signal.SIGTERM)
        if cut:
            self.cut_lifeline()
        deadline = begin + PATIENCE_SECONDS
        while os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            assert time.monotonic() < deadline, "the child does not end"
            time.sleep(0.01)
        seconds = time.monotonic() - begin - (self._waited_seconds() - waited)
        self.process.wait()
        return seconds

    def _waited_seconds(self) -> float:
        """Return how long the child's main thread was ready to run and other work had the processor."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[1]) / 1e9

    def cut_lifeline(self) -> None:
        """Close the child's standard input, as the death of the parent does."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def stderr(self) -> str:
        """Return what the child that ended wrote to standard error."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def children(self) -> int:
        """Return how many processes the child started itself."""
        return len(psutil.Process(self.process.pid).children(recursive=True))
