"""The scripts of deploy/slurm on a clock of the test's: every ``sleep`` of theirs is a step, and takes no time."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fakes.slurm_gate import Gate

__all__ = ["SteppedGate"]

BEGIN_SECONDS = 100_000
"""How long the machine of these tests has been up when the first script starts."""

SLEEP = """
sleep() {{
    echo "$1" >{steps}/asked && read -r step <{steps}/answered && [ "$step" = slept ]
}}
"""
"""Stands in gate.sh before all else. A function goes before the program, and before what busybox has built in."""


class SteppedGate(Gate):
    """A gate whose scripts read the clock from a file, which only their own waiting moves.

    While a script sleeps it waits for this process, which first does what the agent does in that time: `agent` is
    called at each sleep with how many there were. `waited_seconds` tells how long the last script has slept, to the
    hundredth.
    """

    def __init__(self, repository: Path, folder: Path, shell: tuple[str, ...], **settings: object) -> None:
        """Lay it out as `Gate` does, and lead the scripts to the clock and the steps of this one."""
        super().__init__(repository, folder, shell, **settings)
        self.agent: Callable[[int], object] = lambda _sleeps: None
        self.takes_fractions = True
        self.waited_seconds = 0.0
        self._hundredths = BEGIN_SECONDS * 100
        self._clock = folder / "uptime"
        self._steps = folder / "steps"
        self._steps.mkdir()
        for name in ("asked", "answered"):
            os.mkfifo(self._steps / name)
        self._set_clock()
        library = self.scripts / "gate.sh"
        text = library.read_text()
        assert text.count("/proc/uptime") == 1, "the scripts read the clock elsewhere too"
        library.write_text(SLEEP.format(steps=self._steps) + text.replace("/proc/uptime", str(self._clock)))

    def uptime_seconds(self) -> float:
        """Return how long this machine has been up."""
        return self._hundredths / 100

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a script as slurmd does, and be the agent whenever it sleeps."""
        began = self._hundredths
        asked, answered = (os.open(self._steps / name, os.O_RDWR) for name in ("asked", "answered"))
        ended = os.eventfd(0)
        try:
            with ThreadPoolExecutor(1) as pool:
                script_run = pool.submit(super().run, script, **environment)
                script_run.add_done_callback(lambda _run: os.eventfd_write(ended, 1))
                self._attend(asked, answered, ended)
                return script_run.result()
        finally:
            self.waited_seconds = (self._hundredths - began) / 100
            for descriptor in (asked, answered, ended):
                os.close(descriptor)

    def _attend(self, asked: int, answered: int, ended: int) -> None:
        """Answer each sleep until the script has ended. What the agent raises is raised here, behind that end."""
        sleeps, raised = 0, None
        while asked in select.select([asked, ended], [], [])[0]:
            seconds = os.read(asked, 64).decode().strip()
            if "." in seconds and not self.takes_fractions:
                os.write(answered, b"usage\n")
                continue
            sleeps += 1
            try:
                if raised is None:
                    self.agent(sleeps)
            except BaseException as error:  # noqa: BLE001  # the shell waits for its answer first
                raised = error
            self._hundredths += round(float(seconds) * 100)
            self._set_clock()
            os.write(answered, b"slept\n")
        if raised is not None:
            raise raised

    def _set_clock(self) -> None:
        """Write the clock as the kernel does."""
        self._clock.write_text(f"{self._hundredths // 100}.{self._hundredths % 100:02d} 0.00\n")
