"""A real agent on a node of fake machines, with a kernel log that the test writes."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from fakes.machine import FakeMachine
from fakes.nvml.scenario import FakeNvml, pci
from fakes.running_agent import RunningAgent

from nodevet.exporters.statefile.reader import StateFile, parse

__all__ = ["DEADLINE_SECONDS", "INTERVAL_SECONDS", "FakeNode", "GpuNode", "TextNode", "pci"]

INTERVAL_SECONDS = 1.0
DEADLINE_SECONDS = 1.0
CONFIGURATION = """
[agent]
node_name = "node-1"
interval_seconds = {interval}
slow_interval_seconds = {interval}
deadline_seconds = {deadline}
root = "{root}"
[kernel_log]
path = "{log}"
[load]
probe = "{probe}"
"""


class FakeNode(RunningAgent):
    """The agent, its fake machines and its kernel log. ``with`` starts it."""

    program: tuple[str, ...] = (str(Path(__file__).with_name("agent_main.py")),)

    def __init__(
        self,
        directory: Path,
        *machines: FakeMachine,
        deadline_seconds: float = DEADLINE_SECONDS,
        root: str = "/",
        probe: str = "off",
        more: str = "",
        logged: bool = False,
        environment: Mapping[str, str] | None = None,
        within: tuple[str, ...] = (),
    ) -> None:
        """Prepare a node of *machines* in *directory*; *more* is added to its configuration.

        The agent is run by the command *within*, such as one that gives it another view of the file system.
        """
        self.kernel_log = directory / "kernel.log"
        self.kernel_log.write_text("")
        self.machines = machines
        configuration = CONFIGURATION.format(
            interval=INTERVAL_SECONDS, deadline=deadline_seconds, root=root, log=self.kernel_log, probe=probe
        )
        loaded: dict[str, str] = {}
        for machine in machines:
            loaded |= machine.logged_environment if logged else machine.environment
        # Without a SLURM nobody else gives the permit that a gate needs to close.
        local = "" if "[slurm]" in more else '\n[slurm]\npermit = "local"\n'
        super().__init__(
            directory, configuration + more + local, environment={**loaded, **(environment or {})}, within=within
        )

    def start(self, errors: int | None = None) -> None:
        """Start the agent and wait until it has judged its first round."""
        super().start(errors)
        self.wait_for(lambda status: status["agent"]["ready"], 20.0, "the first round did not come in")

    def log_kernel(self, text: str) -> None:
        """Let the kernel log *text*."""
        with self.kernel_log.open("a") as file:
            file.write(f"[{time.clock_gettime(time.CLOCK_BOOTTIME):12.6f}] {text}\n")

    def reload(self) -> None:
        """Have the agent read its configuration again."""
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def state_file(self) -> StateFile:
        """Return what a reader of the state file learns from it."""
        found = parse((self.runtime_dir / "state").read_text())
        assert isinstance(found, StateFile), found
        return found

    def readers(self) -> list[int]:
        """Return every process that has a fake library of this node loaded."""
        return [process.pid for process in psutil.process_iter() if self._holds_library(process.pid)]

    def _holds_library(self, pid: int) -> bool:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            return False
        return any(str(machine.library) in maps for machine in self.machines)

    def verdicts(self, status: Mapping[str, Any]) -> dict[int, str]:
        """Return the verdict of each GPU of the first machine by its slot."""
        by_id = {device["id"]: device["verdict"] for device in status["devices"]}
        names = {slot: self.machines[0].uuid(slot) for slot in range(8)}
        return {slot: by_id[name] for slot, name in names.items() if name in by_id}

    def metric(self, name: str, **labels: str) -> float | None:
        """Return the value of one series of ``/metrics``, or None where it is not there."""
        wanted = [re.escape(f'{key}="{value}"') for key, value in labels.items()]
        for line in self.get("/metrics").splitlines():
            if re.match(rf"{re.escape(name)}[{{ ]", line) and all(re.search(label, line) for label in wanted):
                return float(line.rpartition(" ")[2])
        return None


class GpuNode(FakeNode):
    """A node with eight fake H100."""

    def __init__(self, directory: Path, library: Path, **options: Any) -> None:
        """Prepare a healthy node in *directory*, with the *options* of every node."""
        self.machine = FakeNvml(directory / "nvml.scenario", library)
        super().__init__(directory, self.machine, **options)


class TextNode(GpuNode):
    """A node of fake GPUs under the program that sites install: a file does not stand for its kernel's log."""

    program = RunningAgent.program
