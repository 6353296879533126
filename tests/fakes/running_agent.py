"""A real agent in a process of its own, with directories of its own, for tests that look at it from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

START_SECONDS = 20.0


class RunningAgent:
    """Starts ``nodevet agent`` in *directory* and asks it over every surface."""

    program: tuple[str, ...] = ("-m", "nodevet.agent.cli")
    python: str = sys.executable

    def __init__(
        self,
        directory: Path,
        configuration: str = "",
        *,
        environment: Mapping[str, str] | None = None,
        interval_seconds: float = 1.0,
        arguments: tuple[str, ...] = (),
        within: tuple[str, ...] = (),
    ) -> None:
        """Write *configuration* (TOML) to a file; ``start`` runs the agent with it, by the command *within* if any."""
        self.directory = directory
        self.state_dir = directory / "state"
        self.runtime_dir = directory / "run"
        self.configuration_file = directory / "nodevet.toml"
        self.configuration_file.write_text(configuration)
        self.log = directory / "agent.log"
        self.output = directory / "agent.out"
        self._environment = {**os.environ, **(environment or {})}
        self._interval = interval_seconds
        self._arguments = arguments
        self._within = within
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def variables(self) -> Mapping[str, str]:
        """Return the environment in which programs see the node as its agent does."""
        return self._environment

    def __enter__(self) -> Self:
        """Start and wait until it listens."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it whatever happened."""
        self.stop()

    def start(self, errors: int | None = None) -> None:
        """Start the agent and wait until it prints where it listens; its log goes to *errors* where that is given."""
        command = [*self._within, self.python, "-I", *self.program, "agent", "--listen", "127.0.0.1:0"]
        command += ["--config", str(self.configuration_file), "--interval", str(self._interval)]
        command += ["--state-dir", str(self.state_dir), "--runtime-dir", str(self.runtime_dir), *self._arguments]
        with self.output.open("ab") as output, self.log.open("ab") as log:
            offset = output.tell()
            stderr = log if errors is None else errors
            self.process = subprocess.Popen(command, stdout=output, stderr=stderr, env=self._environment)
        self.url = self._wait(lambda: self._address(offset), START_SECONDS, "printed no address")

    def _address(self, offset: int) -> str | None:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.output.read_bytes()[offset:].decode())
        return found[0] if found else None

    def stop(self, number: int = signal.SIGTERM, seconds: float = 10.0) -> float:
        """Send the signal and wait for the end; return how long that took in seconds."""
        if self.process is None:
            return 0.0
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self.process = None
        return time.monotonic() - began

    def kill(self) -> None:
        """End the agent as a crash would."""
        self.stop(signal.SIGKILL)

    def status(self) -> dict[str, Any]:
        """Return ``/api/v1/status``."""
        document: dict[str, Any] = json.loads(self.get("/api/v1/status"))
        return document

    def get(self, path: str) -> str:
        """Return the body at *path*, whatever its status code."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310 (our own loopback address)
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def state_line(self) -> str:
        """Return the first line of the state file."""
        return (self.runtime_dir / "state").read_text().splitlines()[0]

    def command(self, *words: str, timeout_seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a ``nodevet`` command against this agent's directories."""
        places = ["--config", str(self.configuration_file)]
        places += ["--state-dir", str(self.state_dir), "--runtime-dir", str(self.runtime_dir)]
        return subprocess.run(
            [sys.executable, "-I", "-m", "nodevet.agent.cli", *words, *places],
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            env=self._environment,
            check=False,
        )

    def wait_for(
        self, accepts: Callable[[dict[str, Any]], object], seconds: float = 15.0, what: str = "did not come"
    ) -> dict[str, Any]:
        """Ask for the status until *accepts* says yes, and return it; fail with the last status after *seconds*."""
        last: dict[str, Any] = {}

        def look() -> dict[str, Any] | None:
            nonlocal last
            last = self.status()
            return last if accepts(last) else None

        try:
            return dict(self._wait(look, seconds, what))
        except AssertionError as error:
            raise AssertionError(f"{error}; last status: {json.dumps(last, indent=1)[:6000]}") from None

    def wait_for_verdict(self, verdict: str, seconds: float = 15.0) -> dict[str, Any]:
        """Wait until the node's verdict is *verdict*."""
        return self.wait_for(lambda status: status["verdict"] == verdict, seconds, f"verdict {verdict} did not come")

    def wait_for_finding(self, code: str, seconds: float = 15.0) -> dict[str, Any]:
        """Wait until an open finding *code* is listed, and return that finding."""
        status = self.wait_for(
            lambda status: any(
                finding["code"] == code and finding["state"] == "open" for finding in status["findings"]
            ),
            seconds,
            f"finding {code} did not come",
        )
        return next(finding for finding in status["findings"] if finding["code"] == code)

    def seconds_until(self, happens: Callable[[], object], seconds: float) -> float:
        """Ask until *happens* says yes and return how long that took; fail after *seconds*."""
        began = time.monotonic()
        self._wait(happens, seconds, "did not come")
        return time.monotonic() - began

    def _wait(self, look: Callable[[], Any], seconds: float, what: str) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            if self.process is None or self.process.poll() is not None:
                raise AssertionError(f"the agent ended: {self.log.read_text()[-4000:]}")
            time.sleep(0.05)
        raise AssertionError(f"{what} within {seconds:g} s; log: {self.log.read_text()[-3000:]}")
