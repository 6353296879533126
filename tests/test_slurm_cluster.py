"""The cluster that other tests stand on is a real SLURM, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

from fakes.slurm_cluster import SlurmCluster, SlurmOptions


def test_a_job_gets_the_gpus_it_asked_for(slurm: SlurmCluster) -> None:
    """The device nodes are GPUs to SLURM: a job is given as many as it wants."""
    done = slurm.srun("--gres=gpu:2", "-w", "n2", "sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES")
    assert done.stdout.split() == ["n2", "0,1"], done.stderr


def test_a_batch_job_is_followed_to_its_end(slurm: SlurmCluster) -> None:
    """A batch job has a state, a host and an output."""
    job = slurm.submit("echo ran on $SLURMD_NODENAME", "-w", "n3")
    slurm.wait(lambda: slurm.job_state(job) == "COMPLETED", "the job is done")
    assert (slurm.job(job)["BatchHost"], slurm.output(job)) == ("n3", "ran on n3\n")


def test_a_drain_carries_its_reason(slurm: SlurmCluster) -> None:
    """A drained node has the operator's reason, and a resumed one has none."""
    slurm.drain("n1", "op: replace fan")
    slurm.wait(lambda: slurm.node_state("n1") == "drained", "n1 is drained")
    assert slurm.node_reason("n1") == "op: replace fan"
    slurm.resume("n1")
    assert slurm.node_reason("n1") == ""


def test_a_stopped_cluster_leaves_no_process(tmp_path: Path) -> None:
    """Daemons, steps of running jobs and the jobs themselves are gone after the stop."""
    with SlurmCluster(tmp_path / "slurm", SlurmOptions(nodes=1, gpus=0)) as cluster:
        job = cluster.submit("sleep 100 & setsid sleep 101; wait")
        cluster.wait(lambda: cluster.job_state(job) == "RUNNING", "the job runs")
        assert cluster.processes
    assert cluster.processes == []
