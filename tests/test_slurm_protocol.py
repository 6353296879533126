"""A probe is gone before the first process of a job, whichever of prolog and agent comes first, at every step.

The prolog is the real one, held by a pipe between its claim and its look at the state; the agent's side is the real
prober, guard and publisher, driven step by step. The load is a process that holds a file locked, and the job's first
process one that wants the same lock.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.probing_node import STEPS, ProbingNode
from fakes.slurm_gate import Gate

from nodevet.agent.daemon.loop import STOP_SECONDS
from nodevet.agent.load.child import STOP
from nodevet.checks.burnin.launch import Launch
from nodevet.checks.burnin.main import ENDING_SECONDS

PATIENCE_SECONDS = 20.0
ALL = tuple(itertools.combinations_with_replacement(range(len(STEPS) + 1), 2))
"""After how many steps of the agent the prolog claims, and after how many it looks."""

CLAIM_FIRST = [(claim, look) for claim, look in ALL if claim < 2]
PROBING_FIRST = [(claim, look) for claim, look in ALL if claim >= 2]
ROUNDS = 50


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
def node(repository: Path, tmp_path: Path) -> Iterator[ProbingNode]:
    """An idle node whose prolog stops between its claim and its look."""
    gate = Gate(repository, tmp_path, ("dash",))
    os.mkfifo(gate.runtime / "go")
    # In place of the look into gres.conf, which comes between the two.
    waits = f"wanted_gpus() {{ wanted=' ' order=minor; read -r go <{gate.runtime}/go; }}\n"
    (gate.scripts / "gres.sh").write_text(waits)
    made = ProbingNode(gate)
    yield made
    made.close()


def meet(node: ProbingNode, job: int, claim_after: int, look_after: int) -> None:
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
def test_a_probe_is_gone_before_the_first_process_of_a_job(node: ProbingNode, first: list[tuple[int, int]]) -> None:
    """Fifty times each, over every pair of steps at which the prolog may claim and look."""
    for job, (claim_after, look_after) in zip(range(1, ROUNDS + 1), itertools.cycle(first), strict=False):
        meet(node, job, claim_after, look_after)
    assert len(node.gate.lines()) == ROUNDS
    assert (node.started > 0) is (first is PROBING_FIRST), "the probe began where it should, and only there"


def test_without_a_job_the_probe_begins(node: ProbingNode) -> None:
    """The harness would see a load: the counterpart of all the rounds above."""
    for name in STEPS:
        node.step(name)
    assert node.is_used()
    assert (node.gate.runtime / "state").read_text().splitlines()[1].split()[4] == "probing"


def test_a_load_that_ends_slowly_is_gone_before_the_agent_that_stops_it(
    node: ProbingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the last state says `probing` for two minutes, and `on_stale=fail` closes the gate on that."""
    slow = f"trap '' TERM; exec flock --shared {node.in_use} sleep 60"
    monkeypatch.setattr(node.prober, "_spawn", lambda _device, environment: Launch(("sh", "-c", slow), environment))
    for step in STEPS:
        node.step(step)
    assert node.guard.probing
    assert ENDING_SECONDS + STOP.terminate < STOP.kill, "a load of ours ends by itself"
    node.prober.stop("the agent stops")
    deadline = time.monotonic() + STOP_SECONDS
    while node.guard.probing and time.monotonic() < deadline:
        node.prober.tick(None)
        for key, mask in node.selector.select(0.05):
            key.data(mask)
    assert not node.guard.probing
