"""Jobs of a real SLURM at the gate: a bad node takes none, the job runs elsewhere, and a dead agent keeps nobody."""

from __future__ import annotations

import itertools
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from fakes.gpu_node import GpuNode
from fakes.probing_node import STEPS, ProbingNode
from fakes.slurm_cluster import SlurmCluster, SlurmOptions, StartSlurm
from fakes.slurm_gate import Gate, Line, accelerator

EIGHT = tuple(accelerator(minor) for minor in range(8))
ROUNDS = 50

BY_NODE = """#!/bin/sh
exec {folder}/$SLURMD_NODENAME/slurm/{script}
"""
"""Nodes that share a machine share the path of their prolog; each has scripts and a runtime directory of its own."""

WRITER = """
[slurm]
writer = "drain"
node_name = "n1"
conf = "{conf}"
poll_seconds = 1
"""


class GatedCluster:
    """A cluster whose nodes have the scripts of nodevet as prolog and epilog, each over its own runtime directory."""

    def __init__(
        self,
        repository: Path,
        folder: Path,
        start: StartSlurm,
        *scheduler: str,
        gres: str | None = None,
        gres_of_node: str | None = None,
    ) -> None:
        """Start it with healthy nodes, further *scheduler* parameters, this gres.conf and this ``Gres=``."""
        self.gates = {name: Gate(repository, folder / name, ("sh",)) for name in ("n1", "n2", "n3")}
        hooks = {}
        for script in ("prolog.sh", "epilog.sh", "healthcheck.sh"):
            hooks[script] = folder / script
            hooks[script].write_text(BY_NODE.format(folder=folder, script=script))
            hooks[script].chmod(0o755)
        options = SlurmOptions(
            prolog=hooks["prolog.sh"],
            epilog=hooks["epilog.sh"],
            health_check=hooks["healthcheck.sh"],
            scheduler=scheduler,
            gres=gres,
            gres_of_node=gres_of_node,
        )
        self.heal()
        self.slurm = start(options)

    def heal(self) -> None:
        """Let every node be healthy."""
        for gate in self.gates.values():
            gate.write(*EIGHT, expires_in=3600)

    def reset(self) -> None:
        """Let every node be healthy, idle and without jobs."""
        self.slurm.cancel_all()
        for gate in self.gates.values():
            gate.set(runtime_dir=gate.runtime, on_stale="pass", probe_wait_seconds=5)
        self.heal()
        for name in self.gates:
            self.slurm.wait(partial(self.is_at_rest, name), f"{name} is at rest")
            if self.slurm.node_state(name) == "drained":
                self.slurm.resume(name)

    def is_at_rest(self, node: str) -> bool:
        """Return whether no job is on *node*."""
        return self.slurm.node_state(node) in ("idle", "drained")

    def spoil(self, node: str, minor: int) -> None:
        """Break a GPU of *node*."""
        lines = [accelerator(n, *(("failed", "hard") if n == minor else ())) for n in range(8)]
        self.gates[node].write(*lines, never=True, expires_in=3600)

    def decisions(self, node: str, job: int) -> list[str]:
        """Return what the prolog of *job* decided on *node*, in order."""
        return self.decisions_in(self.gates[node].runtime, job)

    def decisions_in(self, runtime: Path, job: int) -> list[str]:
        """Return what the prologs of *job* decided by the log in *runtime*, in order."""
        lines = (line.split(" ") for line in (runtime / "gate.log").read_text().splitlines())
        return [words[0] for words in lines if words[2] == str(job)]


@pytest.fixture(scope="module")
def gated(repository: Path, tmp_path_factory: pytest.TempPathFactory, start_slurm: StartSlurm) -> GatedCluster:
    """A cluster that does not hold a job whose prolog failed."""
    return GatedCluster(repository, tmp_path_factory.mktemp("gated"), start_slurm, "nohold_on_prolog_fail")


@pytest.fixture
def cluster(gated: GatedCluster) -> Iterator[GatedCluster]:
    """The same, healthy and idle before and after each test."""
    yield gated
    gated.reset()


@pytest.fixture
def start_here(tmp_path: Path) -> Iterator[StartSlurm]:
    """A function that starts a cluster for one test alone."""
    with ExitStack() as stack:
        yield lambda options: stack.enter_context(SlurmCluster(tmp_path / "cluster", options))


def is_done(slurm: SlurmCluster, job: int) -> Callable[[], bool]:
    """Return a question whether *job* is done."""
    return lambda: slurm.job_state(job) == "COMPLETED"


def test_a_healthy_job_runs_and_its_claim_stands_so_long(cluster: GatedCluster) -> None:
    """The claim is there while the job runs and is gone after its epilog; the log says open."""
    gate, slurm = cluster.gates["n2"], cluster.slurm
    done = slurm.srun("-w", "n2", "--gres=gpu:2", "ls", str(gate.claims))
    assert done.returncode == 0, done.stderr
    job = int(done.stdout)
    slurm.wait(lambda: not any(gate.claims.iterdir()), "the claim is gone")
    assert cluster.decisions("n2", job) == ["open"]


def test_a_broken_gpu_takes_no_job_and_the_job_runs_elsewhere(cluster: GatedCluster) -> None:
    """The node that was chosen first drains, and the requeued job starts by itself on another."""
    slurm = cluster.slurm
    cluster.spoil("n1", 0)
    job = slurm.submit("echo ran on $SLURMD_NODENAME", "--gres=gpu:1")
    slurm.wait(is_done(slurm, job), "the job is done")
    assert slurm.output(job) in ("ran on n2\n", "ran on n3\n")
    assert (slurm.node_state("n1"), slurm.node_reason("n1")) == ("drained", "Prolog error")
    assert cluster.decisions("n1", job) == ["closed"]
    assert list(cluster.gates["n1"].claims.iterdir()) == []
    assert int(slurm.job(job)["Restarts"]) == 1


def test_a_job_caught_between_allocation_and_start_runs_elsewhere(cluster: GatedCluster) -> None:
    """The fault comes while its prolog waits; a reason that was written meanwhile stays."""
    slurm, gate = cluster.slurm, cluster.gates["n1"]
    gate.set(probe_wait_seconds=50)  # also where slurmctld takes seconds to drain the node
    gate.write(*EIGHT, load="probing", expires_in=3600)
    job = slurm.submit("echo ran on $SLURMD_NODENAME", "--gres=gpu:1")
    slurm.wait(lambda: any(gate.claims.iterdir()), "its prolog waits")
    assert slurm.job(job)["NodeList"] == "n1"
    slurm.drain("n1", "nodevet: hw memory-errors: uncorrected on GPU 0")
    cluster.spoil("n1", 0)
    slurm.wait(is_done(slurm, job), "the job is done")
    assert slurm.output(job) in ("ran on n2\n", "ran on n3\n")
    assert slurm.node_reason("n1") == "nodevet: hw memory-errors: uncorrected on GPU 0"


def test_past_the_limit_the_gate_stays_open_and_below_it_the_reason_names_the_fault(
    cluster: GatedCluster, tmp_path: Path, fake_nvml_library: Path
) -> None:
    """A job starts on a broken GPU rather than closing one node too many; once there is room the agent drains."""
    slurm, gate = cluster.slurm, cluster.gates["n1"]
    slurm.drain("n3", "nodevet: hw thermal: hot [inspect]")
    with GpuNode(tmp_path, fake_nvml_library, more=WRITER.format(conf=slurm.configuration)) as agent:
        gate.set(runtime_dir=agent.runtime_dir)
        agent.machine.set("ecc_uncorrected_volatile_dram.0", 1)
        agent.wait_for(lambda status: status["slurm"]["limit_reached"], what="the limit is not told")
        done = slurm.srun("-w", "n1", "--gres=gpu:1", "true")
        assert done.returncode == 0, done.stderr
        slurm.wait(lambda: slurm.node_state("n1") == "idle", "n1 takes jobs again, undrained")
        agent.wait_for(
            lambda status: status["agent"]["gate_decisions"]["unpermitted"] == 1, what="the decision was not counted"
        )
        slurm.resume("n3")
        slurm.wait(lambda: slurm.node_state("n1") == "drained", "there is room, so n1 is drained")
        assert slurm.node_reason("n1").startswith("nodevet: hw memory-errors: ")


def test_a_permit_of_its_own_closes_and_opens_a_node_without_rights_in_slurm(
    cluster: GatedCluster, tmp_path: Path, fake_nvml_library: Path
) -> None:
    """`slurm.permit = "local"`: the gate closes without a question, SLURM drains, and a person's word opens it."""
    slurm, gate = cluster.slurm, cluster.gates["n1"]
    with GpuNode(tmp_path, fake_nvml_library, more='[slurm]\npermit = "local"\n') as agent:
        gate.set(runtime_dir=agent.runtime_dir)
        agent.wait_for_verdict("ok")
        assert slurm.srun("-w", "n1", "--gres=gpu:1", "true").returncode == 0
        agent.machine.set("ecc_uncorrected_volatile_dram.0", 1)
        agent.wait_for_verdict("failed")
        slurm.wait(lambda: agent.state_file().reach == "hard", "the state file says so")
        job = slurm.submit("echo ran on $SLURMD_NODENAME", "--gres=gpu:1")
        slurm.wait(is_done(slurm, job), "the job ran elsewhere")
        assert slurm.output(job) in ("ran on n2\n", "ran on n3\n")
        slurm.wait(lambda: slurm.node_reason("n1") == "Prolog error", "SLURM has drained n1")
        assert agent.status()["gate"]["permit"] is True
        (device,) = (entry["device"] for entry in agent.status()["findings"] if entry["code"] == "memory.uncorrected")
        which = ("memory.uncorrected", "--device", device, "--part", "memory_block dram")
        told = agent.command("ack", *which, "--note", "replaced")
        assert told.returncode == 0, told.stderr
        slurm.wait(lambda: agent.state_file().reach != "hard", "the gate is open")
        slurm.resume("n1")
        done = slurm.srun("-w", "n1", "--gres=gpu:1", "true")
        assert done.returncode == 0, done.stderr


def test_a_resume_holds_with_a_job_in_the_queue(cluster: GatedCluster, tmp_path: Path, fake_nvml_library: Path) -> None:
    """The job starts within the wait of its prolog, the fault is acknowledged, and nobody drains the node again."""
    slurm, gate = cluster.slurm, cluster.gates["n1"]
    slow = WRITER.format(conf=slurm.configuration).replace("poll_seconds = 1\n", "poll_seconds = 60\n")
    with GpuNode(tmp_path, fake_nvml_library, more=slow) as agent:
        gate.set(runtime_dir=agent.runtime_dir)
        agent.machine.set("ecc_uncorrected_volatile_dram.0", 1)
        slurm.wait(lambda: agent.state_file().agent == "drained", "the agent has seen its drain")
        job = slurm.submit("true", "-w", "n1", "--gres=gpu:8")
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
        slurm.wait(is_done(slurm, job), "the job is done")
        assert set(cluster.decisions_in(agent.runtime_dir, job)) <= {"open", "resumed"}
        slurm.wait(lambda: slurm.node_state("n1") == "idle", "n1 is idle")
        agent.wait_for(lambda status: status["verdict"] != "failed", what="the fault is not acknowledged")


def test_a_resume_right_after_the_gate_closed_holds_with_jobs_in_the_queue(
    cluster: GatedCluster, tmp_path: Path, fake_nvml_library: Path
) -> None:
    """The agent's next look is a minute away: that its gate closed has it look for the drain by SLURM at once."""
    slurm, gate = cluster.slurm, cluster.gates["n1"]
    more = WRITER.format(conf=slurm.configuration).replace("poll_seconds = 1\n", "poll_seconds = 60\n")
    more = more.replace('"drain"', '"observe"') + 'permit = "local"\n[gate]\nmode = "gate"\n'
    with GpuNode(tmp_path, fake_nvml_library, more=more) as agent:
        gate.set(runtime_dir=agent.runtime_dir)
        agent.machine.set("ecc_uncorrected_volatile_dram.0", 1)
        slurm.wait(lambda: agent.state_file().reach == "hard", "the gate is closed")
        jobs = [slurm.submit("true", "-w", "n1", "--gres=gpu:8") for _ in range(3)]
        slurm.wait(lambda: slurm.node_reason("n1") == "Prolog error", "SLURM has drained n1")
        slurm.wait(lambda: agent.state_file().agent == "drained", "the agent has seen it", seconds=5.0)
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
        slurm.wait(lambda: all(is_done(slurm, job)() for job in jobs), "the jobs are done")
        agent.wait_for(lambda status: status["verdict"] != "failed", what="the fault is not acknowledged")
        slurm.wait(lambda: slurm.node_state("n1") == "idle", "n1 is idle")


@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_a_resume_while_the_agent_is_away_holds_with_a_job_in_the_queue(
    cluster: GatedCluster, tmp_path: Path, fake_nvml_library: Path, ends: str
) -> None:
    """The prolog opens, because its last word was that the node is drained; the next one acknowledges."""
    slurm, gate = cluster.slurm, cluster.gates["n1"]
    with GpuNode(tmp_path, fake_nvml_library, more=WRITER.format(conf=slurm.configuration)) as agent:
        gate.set(runtime_dir=agent.runtime_dir, drain_wait_seconds=1)
        agent.machine.set("ecc_uncorrected_volatile_dram.0", 1)
        slurm.wait(lambda: agent.state_file().agent == "drained", "the agent has seen its drain")
        if ends == "stopped":
            agent.stop()
        else:
            agent.kill()
        job = slurm.submit("true", "-w", "n1", "--gres=gpu:8")
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
        slurm.wait(is_done(slurm, job), "the job is done")
        assert cluster.decisions_in(agent.runtime_dir, job) == ["resumed"]
        agent.start()
        agent.wait_for(lambda status: status["verdict"] != "failed", what="the fault is not acknowledged")
        slurm.wait(lambda: slurm.node_state("n1") == "idle", "n1 is idle")


HALF = """#!/bin/sh
case "$*" in *config*) [ ! -e {silent} ] || exit 1 ;; esac
exec scontrol "$@"
"""
"""A scontrol that shows nodes, and does not say any more when slurmctld was started once the file is there."""


def test_a_resume_of_which_the_agent_saw_a_half_is_not_fought(
    cluster: GatedCluster, tmp_path: Path, fake_nvml_library: Path
) -> None:
    """SLURM shows the node in service and answers nothing else: the job starts, and the resume counts afterwards."""
    slurm, gate = cluster.slurm, cluster.gates["n1"]
    scontrol, silent = tmp_path / "scontrol", tmp_path / "silent"
    scontrol.write_text(HALF.format(silent=silent))
    scontrol.chmod(0o755)
    more = WRITER.format(conf=slurm.configuration) + f'scontrol = "{scontrol}"\n'
    with GpuNode(tmp_path, fake_nvml_library, more=more) as agent:
        gate.set(runtime_dir=agent.runtime_dir, drain_wait_seconds=1)
        agent.machine.set("ecc_uncorrected_volatile_dram.0", 1)
        slurm.wait(lambda: agent.state_file().agent == "drained", "the agent has seen its drain")
        silent.touch()
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
        agent.wait_for(lambda status: "no answer from SLURM" in status["slurm"]["doing"], what="it got every answer")
        job = slurm.submit("true", "-w", "n1", "--gres=gpu:8")
        slurm.wait(is_done(slurm, job), "the job is done")
        assert cluster.decisions_in(agent.runtime_dir, job) == ["resumed"]
        silent.unlink()
        agent.wait_for(lambda status: status["verdict"] != "failed", what="the fault is not acknowledged")
        slurm.wait(lambda: slurm.node_state("n1") == "idle", "n1 is idle")


def test_a_wrong_expectation_closes_nothing_and_drains_nobody(
    cluster: GatedCluster, tmp_path: Path, fake_nvml_library: Path
) -> None:
    """Nine accelerators are expected of a node with eight: it fails, and its jobs run."""
    slurm, gate = cluster.slurm, cluster.gates["n1"]
    wrong = WRITER.format(conf=slurm.configuration) + "[checks.inventory]\nexpected_accelerators = 9\n"
    with GpuNode(tmp_path, fake_nvml_library, more=wrong) as agent:
        gate.set(runtime_dir=agent.runtime_dir, on_stale="fail")
        agent.wait_for_verdict("failed")
        slurm.wait(lambda: agent.state_file().state == "failed", "the state file says so")
        assert agent.state_file().reach == "soft"
        done = slurm.srun("-w", "n1", "--gres=gpu:8", "true")
        assert done.returncode == 0, done.stderr
        assert "drain" not in slurm.node_state("n1")


def test_only_the_gpus_of_the_job_count(cluster: GatedCluster) -> None:
    """A job beside the broken GPU runs; one that wants all of them does not."""
    cluster.spoil("n3", 7)
    slurm = cluster.slurm
    beside = slurm.srun("-w", "n3", "--gres=gpu:2", "true")
    assert beside.returncode == 0, beside.stderr
    assert slurm.srun("-w", "n3", "hostname").returncode == 0
    whole = slurm.srun("-w", "n3", "--gres=gpu:8", "true")
    assert whole.returncode != 0
    slurm.wait(lambda: slurm.node_state("n3") == "drained", "n3 is drained")


def test_gres_conf_in_another_order_leads_to_the_right_gpu(
    repository: Path, tmp_path: Path, start_here: StartSlurm
) -> None:
    """SLURM's first GPU is then /dev/nvidia4, and a fault on /dev/nvidia0 is another's."""
    gres = "Name=gpu Type=h100 File={devices}/nvidia[4-7]\nName=gpu Type=h100 File={devices}/nvidia[0-3]\n"
    cluster = GatedCluster(repository, tmp_path, start_here, gres=gres)
    cluster.spoil("n2", 0)
    beside = cluster.slurm.srun("-w", "n2", "--gres=gpu:1", "true")
    assert beside.returncode == 0, beside.stderr
    cluster.spoil("n2", 4)
    assert cluster.slurm.srun("-w", "n2", "--gres=gpu:1", "true").returncode != 0


def test_types_in_another_order_than_in_slurm_conf_start_no_job_on_a_broken_gpu(
    repository: Path, tmp_path: Path, start_here: StartSlurm
) -> None:
    """SLURM's first GPU is that of the type which slurm.conf names first: here /dev/nvidia4, the second line's."""
    gres = "Name=gpu Type=a100 File={devices}/nvidia[0-3]\nName=gpu Type=h100 File={devices}/nvidia[4-7]\n"
    types = "gpu:h100:4,gpu:a100:4"
    cluster = GatedCluster(repository, tmp_path, start_here, gres=gres, gres_of_node=types)
    told = cluster.slurm.srun("-w", "n2", "--gres=gpu:h100:1", "sh", "-c", "echo $SLURM_STEP_GPUS")
    assert told.stdout.strip() == "0", told.stderr
    cluster.spoil("n2", 4)
    assert cluster.slurm.srun("-w", "n2", "--gres=gpu:h100:1", "true").returncode != 0


def test_a_fault_of_the_node_takes_every_job(cluster: GatedCluster) -> None:
    """Also one without GPUs."""
    cluster.gates["n1"].write(Line(verdict="failed", hard="hard", reason="driver hung"), *EIGHT, never=True)
    assert cluster.slurm.srun("-w", "n1", "true").returncode != 0


def test_a_dead_agent_drains_no_node(cluster: GatedCluster) -> None:
    """Without any state file the job starts, and the log says that there was no verdict."""
    gate = cluster.gates["n2"]
    gate.state.unlink()
    done = cluster.slurm.srun("-w", "n2", "--gres=gpu:1", "printenv", "SLURM_JOB_ID")
    assert done.returncode == 0, done.stderr
    assert cluster.decisions("n2", int(done.stdout)) == ["no_verdict_open"]


def test_the_health_check_changes_nothing_in_slurm(cluster: GatedCluster) -> None:
    """A failed node stays idle for SLURM; slurmd's log has what the check said by its exit code."""
    cluster.spoil("n1", 3)
    slurm = cluster.slurm
    slurm.wait(lambda: "health_check failed: rc:1" in slurm.log("slurmd-n1"), "the health check ran")
    assert (slurm.node_state("n1"), slurm.node_reason("n1")) == ("idle", "")


def test_a_held_job_runs_elsewhere_once_it_is_released(
    repository: Path, tmp_path: Path, start_here: StartSlurm
) -> None:
    """Without nohold_on_prolog_fail SLURM requeues the job and holds it."""
    cluster = GatedCluster(repository, tmp_path, start_here)
    slurm = cluster.slurm
    cluster.spoil("n1", 0)
    job = slurm.submit("echo ran on $SLURMD_NODENAME", "--gres=gpu:1")
    slurm.wait(lambda: "held" in slurm.job(job)["Reason"], "the job is held")
    assert slurm.output(job) == ""
    slurm.run("scontrol", "release", str(job))
    slurm.wait(is_done(slurm, job), "the job is done")
    assert slurm.output(job) in ("ran on n2\n", "ran on n3\n")


@pytest.mark.parametrize("job_first", [False, True], ids=["probing first", "claim first"])
def test_a_probe_is_gone_when_slurmd_starts_the_job(cluster: GatedCluster, job_first: bool) -> None:
    """Through the real slurmd, fifty times each: the first process of the job finds the device free.

    The probe runs already, is only announced, or becomes due when the job has claimed the node.
    """
    gate, slurm = cluster.gates["n3"], cluster.slurm
    node = ProbingNode(gate)
    befores = itertools.cycle(((),) if job_first else (STEPS, STEPS[:2], STEPS[:1]))
    try:
        for before in itertools.islice(befores, ROUNDS):
            for name in before:
                node.step(name)
            assert node.is_used() is (before == STEPS)
            job = subprocess.Popen(
                ["srun", "-w", "n3", "flock", "--nonblock", node.in_use, "sleep", "0.2" if job_first else "0"],
                env=slurm.environment,
                cwd=slurm.directory,
                stderr=subprocess.PIPE,
                text=True,
            )
            slurm.wait(lambda: any(gate.claims.iterdir()), "the prolog has claimed the node")
            for name in STEPS if job_first else ():
                node.step(name)
            while job.poll() is None:
                node.turn()
            assert job.returncode == 0, job.communicate()[1]
            job.communicate()
            slurm.wait(lambda: not any(gate.claims.iterdir()), "its claim is gone")
            while node.guard.probing:
                node.turn()
    finally:
        node.close()
    assert {line.split(" ")[0] for line in gate.lines()[-ROUNDS:]} == {"open"}
    assert (node.started > 0) is not job_first


def test_a_killed_agent_leaves_a_failed_node_closed_and_a_healthy_one_open(
    cluster: GatedCluster, tmp_path: Path, fake_nvml_library: Path
) -> None:
    """By the real agent's own state file: the fault stands without it, and health expires into no verdict."""
    slurm, gate = cluster.slurm, cluster.gates["n1"]
    with GpuNode(tmp_path, fake_nvml_library) as agent:
        gate.set(runtime_dir=agent.runtime_dir)
        agent.wait_for_verdict("ok")
        assert slurm.srun("-w", "n1", "--gres=gpu:1", "true").returncode == 0
        agent.wait_for(
            lambda status: status["agent"]["gate_decisions"]["open"] == 1, what="the decision was not counted"
        )
        agent.stop(signal.SIGKILL)
        state = agent.state_file()
        slurm.wait(lambda: gate_seconds() > state.expires_uptime, "the verdict has expired")
        healthy = slurm.srun("-w", "n1", "--gres=gpu:1", "true")
        assert healthy.returncode == 0, healthy.stderr

        agent.machine.set("ecc_uncorrected_volatile_dram.0", 1)
        agent.start()
        agent.wait_for_verdict("failed")
        decisions = agent.status()["agent"]["gate_decisions"]
        assert (decisions["open"], decisions["no_verdict_open"]) == (1, 1)
        slurm.wait(lambda: agent.state_file().hard, "what outlives the agent is on disk")
        agent.stop(signal.SIGKILL)
        slurm.wait(lambda: gate_seconds() > agent.state_file().fresh_until_uptime, "nothing is up to date")
        assert slurm.srun("-w", "n1", "--gres=gpu:1", "true").returncode != 0
        slurm.wait(lambda: slurm.node_reason("n1") == "Prolog error", "SLURM has drained n1")


def gate_seconds() -> float:
    """Return the seconds of uptime."""
    return float(Path("/proc/uptime").read_text().split()[0])
