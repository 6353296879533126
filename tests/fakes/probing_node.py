"""The agent's part that runs a probe, driven step by step over the runtime directory that a prolog reads."""

from __future__ import annotations

import selectors
import subprocess
import time
from collections.abc import Mapping

import msgspec
from fakes.late_clock import LateClock
from fakes.shell_gate import on_this_boot
from fakes.slurm_gate import Gate
from fakes.snapshots import cpu_node

from nodevet.agent.config.settings import LoadSettings
from nodevet.agent.load.guard import LoadGuard
from nodevet.agent.load.prober import Prober
from nodevet.agent.store.publisher import Publisher
from nodevet.checks.burnin.launch import Launch
from nodevet.checks.core.model import Device, Snapshot

__all__ = ["STEPS", "ProbingNode"]

PATIENCE_SECONDS = 20.0
DAY_SECONDS = 86400.0

STEPS = ("announced", "published", "begun")
"""What a probe that is due goes through until its load has the device."""


class ProbingNode:
    """Real prober, guard and publisher; the load is a process that holds the file ``in_use`` locked."""

    def __init__(self, gate: Gate) -> None:
        """Begin idle, with that on disk."""
        self.gate = gate
        self.in_use = gate.runtime / "in-use"
        self.clock = LateClock()
        self.selector = selectors.DefaultSelector()
        self.publisher = Publisher(gate.runtime, ttl_seconds=60)
        self.guard = LoadGuard(gate.runtime, self.clock, lambda _pid: True, lambda: self.publisher.written)
        self.guard.claims.prepare()
        settings = msgspec.convert({"probe": "on"}, LoadSettings)
        self.prober = Prober(settings, self.clock, self.selector, self.guard, node="n1", spawn=self._spawn)
        self.snapshot = on_this_boot(cpu_node())
        self.started = 0
        self.publish()

    def _spawn(self, _device: Device, environment: Mapping[str, str]) -> Launch:
        self.started += 1
        return Launch(("sh", "-c", f"exec flock --shared {self.in_use} sleep 60"), dict(environment))

    def publish(self) -> None:
        """Judge, and wait until that is on disk."""
        self.snapshot = self._judged()
        self.publisher.judged(self.snapshot)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.publisher.written is not self.snapshot and time.monotonic() < deadline:
            time.sleep(0.001)
        assert self.publisher.trouble == ""

    def _judged(self) -> Snapshot:
        node = on_this_boot(self.snapshot)
        agent = msgspec.structs.replace(node.agent, ready=True, probing=self.guard.probing)
        return msgspec.structs.replace(node, generation=node.generation + 1, agent=agent)

    def step(self, name: str) -> None:
        """Do one step of a probe that is due."""
        match name:
            case "announced":
                self.clock.ahead += DAY_SECONDS
                self.prober.tick(self.snapshot)
            case "published":
                self.publish()
            case "begun":
                self.prober.tick(self.snapshot)
                self.settle()

    def settle(self) -> None:
        """Wait until a load that was started has the lock, as it would have the device."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.prober.running and not self.is_used() and time.monotonic() < deadline:
            time.sleep(0.002)

    def turn(self) -> None:
        """Make a turn of the agent's loop."""
        for key, mask in self.selector.select(0.01):
            key.data(mask)
        self.guard.tick()
        self.prober.tick(self.snapshot)
        if self.snapshot.agent.probing != self.guard.probing:
            self.publish()

    def is_used(self) -> bool:
        """Return whether a load has the device, as the first process of a job would find it."""
        return subprocess.run(["flock", "--nonblock", self.in_use, "true"], check=False).returncode != 0

    def close(self) -> None:
        """End everything."""
        self.prober.stop("the test ends")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.guard.probing and time.monotonic() < deadline:
            self.turn()
        self.publisher.close()
        self.selector.close()
