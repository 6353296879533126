"""A probe is gone before the first process of a job, whichever of prolog and agent comes first, at every step.

The prolog is the real one, held by a pipe between its claim and its look at the state; the agent's side is the real
prober, guard and publisher, driven step by step. The load is a process that holds a file locked, and the job's first
process one that wants the same lock.
"""

from __future__ import annotations

import itertools
import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from fakes.shell_gate import on_this_boot
from fakes.slurm_gate import Gate
from fakes.snapshots import cpu_node

from nodevet.agent.clock import SystemClock
from nodevet.agent.load_guard import LoadGuard
from nodevet.agent.prober import Prober
from nodevet.agent.publisher import Publisher
from nodevet.agent.settings import LoadSettings
from nodevet.checks.burnin.launch import Launch
from nodevet.checks.model import Device, Snapshot

PATIENCE_SECONDS = 20.0
DAY_SECONDS = 86400.0

STEPS = ("announced", "published", "begun")
ALL = tuple(itertools.combinations_with_replacement(range(len(STEPS) + 1), 2))
"""After how many steps of the agent the prolog claims, and after how many it looks."""

CLAIM_FIRST = [(claim, look) for claim, look in ALL if claim < 2]
PROBING_FIRST = [(claim, look) for claim, look in ALL if claim >= 2]
ROUNDS = 50


class LateClock(SystemClock):
    """The machine's clock, moved forward so that the next probe is due."""

    def __init__(self) -> None:
        """Begin at the present moment."""
        super().__init__()
        self.ahead = 0.0

    def monotonic(self) -> float:
        """Return the seconds that the loop goes by."""
        return super().monotonic() + self.ahead


class Node:
    """The agent's part that runs a probe, over the runtime directory that the prolog reads."""

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
        self.publisher.publish(self.snapshot)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.publisher.written is not self.snapshot and time.monotonic() < deadline:
            time.sleep(0.001)
        assert self.publisher.failure == ""

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


class HeldProlog:
    """A prolog that has claimed the node and waits for a word before it looks at the state."""

    def __init__(self, gate: Gate, job: int) -> None:
        """Start it and wait for its claim."""
        self.claim = gate.claims / str(job)
        self._gate = gate
        environment = {"SLURM_JOB_ID": str(job), "SLURMD_NODENAME": "n1"}
        self._process = subprocess.Popen(["/bin/sh", gate.scripts / "prolog.sh"], env=environment)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.claim.exists() and time.monotonic() < deadline:
            time.sleep(0.002)

    def look(self) -> None:
        """Let it go on."""
        (self._gate.runtime / "go").write_text("go\n")

    @property
    def code(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Run the epilog of its job."""
        self._process.wait(PATIENCE_SECONDS)
        self._gate.run("epilog.sh", SLURM_JOB_ID=self.claim.name)


@pytest.fixture
def node(repository: Path, tmp_path: Path) -> Iterator[Node]:
    """An idle node whose prolog stops between its claim and its look."""
    gate = Gate(repository, tmp_path, ("dash",))
    os.mkfifo(gate.runtime / "go")
    # In place of the look into gres.conf, which comes between the two.
    waits = f"wanted_gpus() {{ wanted=' ' order=minor; read -r go <{gate.runtime}/go; }}\n"
    (gate.scripts / "gres.sh").write_text(waits)
    made = Node(gate)
    yield made
    made.close()


def meet(node: Node, job: int, claim_after: int, look_after: int) -> None:
    """Let a job come at these steps of a probe; fail where anything of the probe is there when the job begins."""
    prolog: HeldProlog | None = None
    for done in range(len(STEPS) + 1):
        if done == claim_after:
            prolog = HeldProlog(node.gate, job)
        if prolog is not None and done == look_after:
            prolog.look()
        if done < len(STEPS):
            node.step(STEPS[done])
    assert prolog is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while prolog.code is None and time.monotonic() < deadline:
        node.turn()
    assert prolog.code == 0
    assert not node.is_used(), "the job begins beside a process of the probe"
    # As long as the job is there no probe begins, however often one is due.
    for name in STEPS:
        node.step(name)
    assert not node.is_used(), "a probe began beside the job"
    prolog.end()
    while node.guard.probing:
        node.turn()
    assert node.gate.lines()[-1].startswith("open ")


@pytest.mark.parametrize("first", [CLAIM_FIRST, PROBING_FIRST], ids=["claim first", "probing first"])
def test_a_probe_is_gone_before_the_first_process_of_a_job(node: Node, first: list[tuple[int, int]]) -> None:
    """Fifty times each, over every pair of steps at which the prolog may claim and look."""
    for job, (claim_after, look_after) in zip(range(1, ROUNDS + 1), itertools.cycle(first), strict=False):
        meet(node, job, claim_after, look_after)
    assert len(node.gate.lines()) == ROUNDS
    assert (node.started > 0) is (first is PROBING_FIRST), "the probe began where it should, and only there"


def test_without_a_job_the_probe_begins(node: Node) -> None:
    """The harness would see a load: the counterpart of all the rounds above."""
    for name in STEPS:
        node.step(name)
    assert node.is_used()
    assert (node.gate.runtime / "state").read_text().splitlines()[1].split()[4] == "probing"
