"""On a real SLURM, with jobs that queue: the limits hold by every route, a resume holds, and a restart is no person."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest
from fakes.alerts import raised
from fakes.slurm_cluster import SlurmCluster, SlurmOptions, StartSlurm
from fakes.slurm_gate import Gate
from fakes.slurm_node import BY_NODE, ReactorNode

from nodevet.agent.config.settings import SlurmSettings
from nodevet.checks.core.model import Mode
from nodevet.exporters.slurm.scontrol import Scontrol

NODES = 6
LIMIT = 2
SETTINGS = SlurmSettings(writer="drain", poll_seconds=1.0, maximum_drained_ratio=0.34, maximum_new_ratio=1.0)

OPEN_GATES = ("NodevetDrainLimitReached", "NodevetPermitUnanswered", "NodevetDrainNotWritten")
"""Alerts that tell of a broken node whose gate is open."""

TURNS_SECONDS = 120.0
"""How long nodes that ask for the same two places may take until two have them: who finds too many steps back."""

FAULTS = ("inventory.expected_accelerators", "device.missing", "nvidia.xid.79")
"""A wrong expectation, an empty listing and a bad kernel rule, as if each had become a hard fault on every node."""


class Cluster:
    """Six nodes with the real prolog, and the agent's half at each."""

    def __init__(
        self,
        repository: Path,
        folder: Path,
        start: StartSlurm,
        size: int = NODES,
        settings: SlurmSettings = SETTINGS,
    ) -> None:
        """Start it healthy, with *size* nodes."""
        gates = {f"n{number}": Gate(repository, folder / f"n{number}", ("sh",)) for number in range(1, size + 1)}
        hooks = {}
        for script in ("prolog.sh", "epilog.sh"):
            hooks[script] = folder / script
            hooks[script].write_text(BY_NODE.format(folder=folder, script=script))
            hooks[script].chmod(0o755)
        options = SlurmOptions(
            nodes=size,
            cpus=4,
            gpus=0,
            prolog=hooks["prolog.sh"],
            epilog=hooks["epilog.sh"],
            scheduler=("nohold_on_prolog_fail",),
            extra=("RebootProgram=/bin/true", "ResumeTimeout=120"),
        )
        for gate in gates.values():
            gate.set(mode="gate", gpus="all")
        self.slurm = start(options)
        self.nodes = {name: ReactorNode(gate, self.slurm, name, settings) for name, gate in gates.items()}

    def stop(self) -> None:
        """End the agents' halves; the cluster ends with its fixture."""
        for node in self.nodes.values():
            node.stop()

    def drained(self) -> list[str]:
        """Return the nodes that are drained or draining, by one question."""
        rows = self.slurm.run("sinfo", "-h", "-N", "-o", "%N %T").split("\n")
        return sorted({name for name, _, state in (row.partition(" ") for row in rows) if "drain" in state})

    def _is_idle(self) -> bool:
        """Resume what is drained; an agent may have been about to drain when its node was healed."""
        for name in self.drained():
            self.slurm.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
        return all(self.slurm.node_state(name) == "idle" for name in self.nodes)

    def reset(self) -> None:
        """Let every node be healthy and idle."""
        if not done(self.slurm):
            self.slurm.cancel_all()
        for node in self.nodes.values():
            node.heal()
            node.mode = Mode.DRAIN
        # A look of before that sees the resume below would acknowledge the fault, and its like for an hour.
        self.slurm.wait(lambda: not any(node.status.considered for node in self.nodes.values()), "the agents know it")
        self.slurm.wait(self._is_idle, "all are idle")
        self.slurm.wait(lambda: not any(node.status.drained for node in self.nodes.values()), "the agents saw it")


@pytest.fixture(scope="module")
def started(repository: Path, tmp_path_factory: pytest.TempPathFactory, start_slurm: StartSlurm) -> Iterator[Cluster]:
    """The cluster of this module."""
    made = Cluster(repository, tmp_path_factory.mktemp("limits"), start_slurm)
    yield made
    made.stop()


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    """The same, healthy and idle before and after each test."""
    yield started
    started.reset()


@pytest.fixture
def fresh(repository: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of its own for a test that closes gates: what it closed counts for an hour."""
    with ExitStack() as stack:
        made = Cluster(
            repository, tmp_path, lambda options: stack.enter_context(SlurmCluster(tmp_path / "slurm", options))
        )
        stack.callback(made.stop)
        yield made


@pytest.fixture
def alone(repository: Path, tmp_path: Path) -> Iterator[Cluster]:
    """One node whose slurmctld and slurmd a test may start anew."""
    with ExitStack() as stack:
        made = Cluster(
            repository, tmp_path, lambda options: stack.enter_context(SlurmCluster(tmp_path / "slurm", options)), size=1
        )
        stack.callback(made.stop)
        yield made


def is_acknowledged(node: ReactorNode, code: str) -> bool:
    """Return whether somebody's resume has acknowledged the fault *code*."""
    return code in node.acknowledged


def done(slurm: SlurmCluster) -> bool:
    """Return whether no job waits or runs."""
    return not slurm.run("squeue", "-h").strip()


@pytest.mark.soak
def test_a_fault_on_every_node_costs_the_limit_and_no_job(
    cluster: Cluster, campaign: Callable[[int], int], repository: Path, tmp_path: Path
) -> None:
    """Two of six close, whatever waits at their gates; the gates of the others stay open, and every job runs.

    Of the gates that stay open one alert tells, by the pages of all six, and none of what is no trouble of SLURM's.
    """
    rules = repository / "deploy/prometheus/nodevet.rules.yml"
    slurm = cluster.slurm
    for code in FAULTS[: campaign(10)]:
        before = {name: len(node.decisions()) for name, node in cluster.nodes.items()}
        slurm.run("sbatch", "--requeue", "-o", "/dev/null", f"--array=1-{campaign(200)}", "--wrap", "true")
        for node in cluster.nodes.values():
            node.fail(code)
        most = 0

        def look() -> bool:
            nonlocal most
            most = max(most, len(cluster.drained()))
            assert most <= LIMIT
            refused = sum(node.status.limit_reached for node in cluster.nodes.values())
            held = [name for name, node in cluster.nodes.items() if node.status.permit.held]
            return refused == NODES - LIMIT and held == cluster.drained() and done(slurm)

        slurm.wait(look, "every job ran, and the others met the limit", 120.0)
        assert most == LIMIT
        assert [name for name in cluster.nodes if slurm.node_reason(name) == "Prolog error"] == []
        words = {word for name, node in cluster.nodes.items() for word in node.decisions()[before[name] :]}
        assert "unpermitted" in words
        held = [name for name, node in cluster.nodes.items() if node.status.permit.held]
        assert held == cluster.drained()
        pages = {name: node.page() for name, node in cluster.nodes.items()}
        told = {alert: raised(tmp_path, rules, pages, alert) for alert in OPEN_GATES}
        assert told == {alert: int(alert == "NodevetDrainLimitReached") for alert in OPEN_GATES}
        shown = Scontrol(configuration=str(slurm.configuration)).read(held[0])
        assert shown.reason_seconds == pytest.approx(time.time(), abs=120.0)
        assert (shown.reason_user, shown.partitions) == ("root", ("main",))
        # A person takes both over: there is room for those that wait, and again no more than the limit.
        for name in held:
            slurm.run("scontrol", "update", f"NodeName={name}", "Reason=ops: ticket 4711")
        slurm.wait(lambda: len(cluster.drained()) == 2 * LIMIT, "two more are closed")
        cluster.reset()


@pytest.mark.soak
def test_gates_that_close_without_a_drain_of_ours_keep_the_limit(
    fresh: Cluster, campaign: Callable[[int], int]
) -> None:
    """Where the mode is gate SLURM drains what a job met: two of six, over restarts of the agents."""
    cluster, slurm = fresh, fresh.slurm
    for node in cluster.nodes.values():
        node.mode = Mode.GATE
        node.fail("nvidia.xid.79")
    held: set[str] = set()

    def look() -> bool:
        held.update(name for name, node in cluster.nodes.items() if node.status.permit.held)
        assert len(held) <= LIMIT and set(cluster.drained()) <= held
        return set(cluster.drained()) == held and len(held) == LIMIT

    slurm.wait(
        lambda: sum(node.status.permit.held for node in cluster.nodes.values()) == LIMIT,
        "two have a permit",
        TURNS_SECONDS,
    )
    for name in cluster.nodes:
        slurm.run("sbatch", "--requeue", "-o", "/dev/null", "-w", name, f"--array=1-{campaign(40)}", "--wrap", "true")
    slurm.wait(look, "those that have it are closed")
    assert {slurm.node_reason(name) for name in held} == {"Prolog error"}
    for node in cluster.nodes.values():
        node.stop()
        node.start()
    slurm.wait(lambda: all(node.status.last_read_seconds for node in cluster.nodes.values()), "the agents looked anew")
    slurm.wait(look, "nothing closes for a restart")
    closed = frozenset(held)
    for name in sorted(closed):
        slurm.run("scontrol", "update", f"NodeName={name}", "Reason=ops: ticket 4711")
    slurm.wait(lambda: not any(cluster.nodes[name].status.closed for name in closed), "a person has them")
    slurm.wait(
        lambda: sum(node.status.permit.held for node in cluster.nodes.values()) == LIMIT,
        "two others have a permit",
        TURNS_SECONDS,
    )


def test_reasons_that_slurm_replaces_leave_the_limit_as_it_is(cluster: Cluster) -> None:
    """What slurmstepd sends for processes that nobody can kill overwrites the reason of a node that is drained."""
    slurm = cluster.slurm
    for node in cluster.nodes.values():
        node.fail("nvidia.xid.79")
    slurm.wait(lambda: len(cluster.drained()) == LIMIT, "two are drained")
    held = cluster.drained()
    for name in held:
        slurm.drain(name, "Kill task failed")
    later = time.time() + 1.0
    slurm.wait(
        lambda: all((node.status.last_read_seconds or 0.0) > later for node in cluster.nodes.values()), "all looked"
    )
    time.sleep(4 * SETTINGS.poll_seconds)
    assert cluster.drained() == held
    assert [cluster.nodes[name].status.closed for name in held] == [True] * LIMIT


@pytest.mark.soak
def test_every_resume_holds_with_ten_jobs_queued(cluster: Cluster, campaign: Callable[[int], int]) -> None:
    """All ten run on the node that was resumed, its faults are acknowledged, and nothing drains it again."""
    slurm, node = cluster.slurm, cluster.nodes["n1"]
    for number in range(campaign(50)):
        node.fail(code := f"nvidia.xid.{100 + number}")
        slurm.wait(lambda: node.status.permit.held and node.status.drained, "n1 is closed")
        slurm.run("sbatch", "-w", "n1", "-o", "/dev/null", "--array=1-10", "--wrap", "true")
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
        slurm.wait(partial(done, slurm), "ten jobs ran on n1", 60.0)
        slurm.wait(partial(is_acknowledged, node, code), "it is acknowledged")
        node.fail(code, count=2 + number)
        assert ("n1" in cluster.drained(), slurm.node_reason("n1")) == (False, ""), number
        node.heal()


@pytest.mark.soak
def test_a_resume_holds_over_restarts_of_agent_and_controller(alone: Cluster) -> None:
    """While the fault occurs again and again."""
    slurm, node = alone.slurm, alone.nodes["n1"]
    node.fail("nvidia.xid.79")
    slurm.wait(lambda: node.status.permit.held and node.status.drained, "n1 is closed")
    slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    slurm.wait(partial(is_acknowledged, node, "nvidia.xid.79"), "it is acknowledged")
    node.stop()
    slurm.restart_controller()
    node.start()
    node.reopen()
    for count in range(2, 5):
        node.fail("nvidia.xid.79", count=count)
        assert slurm.srun("-w", "n1", "true").returncode == 0
    slurm.wait(lambda: node.status.last_read_seconds is not None, "the agent looked")
    slurm.wait(partial(is_acknowledged, node, "nvidia.xid.79"), "it is still acknowledged")
    assert (alone.drained(), node.status.writes["drain"]) == ([], 0)


@pytest.mark.soak
def test_a_resume_within_seconds_of_a_closed_gate_holds(repository: Path, tmp_path: Path) -> None:
    """Between two looks of the agent a job met the gate, SLURM drained the node, and a person brought it back."""
    with ExitStack() as stack:
        settings = msgspec.structs.replace(SETTINGS, poll_seconds=60.0)
        made = Cluster(
            repository,
            tmp_path,
            lambda options: stack.enter_context(SlurmCluster(tmp_path / "slurm", options)),
            size=1,
            settings=msgspec.structs.replace(settings, permit="local"),
        )
        stack.callback(made.stop)
        node, slurm = made.nodes["n1"], made.slurm
        node.mode = Mode.GATE
        node.fail("nvidia.xid.79")
        slurm.wait(lambda: node.status.last_read_seconds is not None and node.status.permit.held, "the gate is closed")
        job = slurm.submit("true", "--requeue")
        slurm.wait(lambda: slurm.node_reason("n1") == "Prolog error", "a job met it")
        time.sleep(3.0)
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
        slurm.wait(lambda: slurm.job_state(job) == "COMPLETED", "the job ran")
        assert (node.decisions()[0], made.drained()) == ("closed", [])
        assert is_acknowledged(node, "nvidia.xid.79")


def test_a_reboot_that_is_taken_back_is_no_resume(alone: Cluster) -> None:
    """``scontrol reboot ASAP`` drains a busy node and ``cancel_reboot`` returns it: nobody spoke of its fault."""
    slurm, node = alone.slurm, alone.nodes["n1"]
    slurm.run("sbatch", "-w", "n1", "-o", "/dev/null", "--wrap", "sleep 300")
    slurm.wait(lambda: "RUNNING" in slurm.run("squeue", "-h", "-o", "%T"), "a job runs on n1")
    slurm.run("scontrol", "reboot", "ASAP", "n1")
    node.fail("nvidia.xid.79")
    # A look that began before the fault saw the drain too; what counts is one that knew of both.
    slurm.wait(lambda: node.status.drained and node.status.skipped["foreign_reason"], "the agent saw it drained")
    slurm.run("scontrol", "cancel_reboot", "n1")
    slurm.wait(lambda: node.status.returned, "the agent saw it in service again")
    slurm.wait(lambda: node.status.permit.held and node.status.drained, "it is closed")
    assert node.acknowledged == []
    assert "after a requested reboot, which acknowledges nothing" in node.status.returned


@pytest.mark.soak
def test_a_closed_node_that_is_rebooted_through_slurm_stays_ours(alone: Cluster) -> None:
    """``scontrol reboot``, as the reason advises: SLURM adds its words and keeps the drain, which counts on."""
    slurm, node = alone.slurm, alone.nodes["n1"]
    node.fail("nvidia.xid.79")
    slurm.wait(lambda: node.status.permit.held and node.status.drained, "n1 is closed")
    slurm.run("scontrol", "reboot", "n1")
    slurm.wait(lambda: slurm.node_reason("n1").endswith(" : reboot issued"), "it reboots")
    slurm.restart_node("n1", "-b")
    slurm.wait(lambda: slurm.node_state("n1") == "drained", "it is back, and drained")
    before = node.status.last_read_seconds or 0.0
    slurm.wait(lambda: (node.status.last_read_seconds or 0.0) > before, "the agent saw it")
    assert (node.status.drained_by, node.status.permit.held) == ("nodevet", True)
    assert node.status.skipped["foreign_reason"] == 0


def _cold_start(cluster: Cluster) -> None:
    """Slurmctld forgets everything."""
    cluster.slurm.restart_controller(cold=True)


def _older_state(cluster: Cluster) -> None:
    """Slurmctld goes on with what was saved before the drain."""
    cluster.slurm.restart_controller(restore=cluster.slurm.directory / "state-before")


def _slurmd_b(cluster: Cluster) -> None:
    """Slurmd says that its machine was booted, and SLURM returns the node to service."""
    cluster.slurm.run("scontrol", "reboot", "ASAP", "nextstate=RESUME", "reason=firmware", "n1")
    cluster.slurm.wait(lambda: "REBOOT_ISSUED" in cluster.slurm.run("scontrol", "show", "node", "n1"), "it reboots")
    cluster.slurm.restart_node("n1", "-b")


WAYS = {"a cold start": _cold_start, "an older saved state": _older_state, "a reboot with nextstate": _slurmd_b}


@pytest.mark.soak
def test_a_node_that_a_restart_returned_is_acknowledged_by_nobody(
    alone: Cluster, campaign: Callable[[int], int]
) -> None:
    """It drains again with a permit, and status says what to type if it was a person after all."""
    slurm, node = alone.slurm, alone.nodes["n1"]
    for how in list(WAYS)[: campaign(10)]:
        if WAYS[how] is _older_state:
            slurm.restart_controller()  # it saves its state when it ends
            shutil.copytree(slurm.directory / "state", slurm.directory / "state-before")
            slurm.wait(lambda: slurm.node_state("n1") == "idle", "n1 is back")
        node.fail("nvidia.xid.79")
        slurm.wait(lambda: node.status.permit.held and node.status.drained, "n1 is closed")
        WAYS[how](alone)
        slurm.wait(lambda: node.status.returned, f"the agent saw {how}", 90.0)
        assert node.acknowledged == [], how
        slurm.wait(lambda: node.status.permit.held and node.status.drained, "it is closed again", 90.0)
        assert "nodevet ack nvidia.xid.79 --device" in node.status.returned
        assert node.acknowledged == [], how
        alone.reset()
