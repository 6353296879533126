"""`nodevet burn-in` and the jobs of a scheduler, with an agent and without one."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from fakes.gpu_node import FakeNode, GpuNode, pci

from nodevet.agent.control.client import AgentRefused, Session
from nodevet.agent.load.claims import LoadLock
from nodevet.agent.slurm.memory import MEMORY_NAME, Kept, save_memory
from nodevet.agent.terminal import exits
from nodevet.exporters.slurm.rules import WriterMemory
from nodevet.exporters.statefile.reader import StateFile, boot_id, parse

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

HOST_ONLY = '[agent.backends]\nenabled = ["host"]\n'
PATIENCE_SECONDS = 40.0


def state(node: FakeNode) -> StateFile | None:
    """Return the node's state file, or None before there is one."""
    path = node.runtime_dir / "state"
    found = parse(path.read_text()) if path.exists() else None
    return found if isinstance(found, StateFile) else None


def burn_in(node: FakeNode) -> subprocess.Popen[str]:
    """Start a burn-in that would take a minute."""
    words = ["burn-in", "--plan", "probe", "--seconds", "60", "--dtype", "fp32"]
    places = ["--config", str(node.configuration_file), "--state-dir", str(node.state_dir)]
    places += ["--runtime-dir", str(node.runtime_dir)]
    command = [sys.executable, "-I", "-m", "nodevet.agent.cli", *words, *places]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until_loaded(node: FakeNode, burning: subprocess.Popen[str]) -> None:
    """Wait until the load's process is there, and the state file says so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and burning.poll() is None:
        found = state(node)
        if found is not None and found.probing and LoadLock(node.runtime_dir).is_held():
            return
        time.sleep(0.05)
    raise AssertionError(f"no load began: {burning.communicate() if burning.poll() is not None else 'it still looks'}")


def claim(node: FakeNode) -> Path:
    """Let the prolog of a job come."""
    path = node.runtime_dir / "claims" / "4711"
    path.touch()
    return path


def test_the_lease_is_answered_when_it_is_told_and_refused_while_a_job_is_here(tmp_path: Path) -> None:
    """Whoever has the answer may start at once: the state file says probing, and nobody claimed before that."""
    with FakeNode(tmp_path, more=HOST_ONLY) as node:
        with Session(node.runtime_dir / "control.socket") as session:
            assert session.ask("lease", seconds=60.0)["granted"] is True
            found = state(node)
            assert found is not None
            assert found.probing
        node.seconds_until(lambda: not node.state_file().probing, 5.0)
        job = claim(node)
        with Session(node.runtime_dir / "control.socket") as session, pytest.raises(AgentRefused, match="a job claims"):
            session.ask("lease", seconds=60.0)
        status = node.wait_for(lambda status: status["agent"]["jobs"] == 1)
        assert status["agent"]["oldest_job_seconds"] >= 0
        assert "jobs: 1 with a claim on this node" in node.command("status").stdout
        assert node.metric("nodevet_jobs") == 1
        assert node.metric("nodevet_gate_decisions_total", decision="no_verdict_open") == 0
        job.unlink()


def test_an_agent_whose_folder_of_claims_is_taken_goes_on_without_loads(tmp_path: Path) -> None:
    """It vets the node, says what is wrong in its log, and grants nobody a lease."""
    node = FakeNode(tmp_path, more=HOST_ONLY)
    node.runtime_dir.mkdir()
    (node.runtime_dir / "claims").symlink_to(tmp_path)
    with node:
        assert node.status()["agent"]["ready"]
        with (
            Session(node.runtime_dir / "control.socket") as session,
            pytest.raises(AgentRefused, match="is a symbolic link"),
        ):
            session.ask("lease", seconds=60.0)
        assert "so no load can run" in node.log.read_text()


def test_a_burn_in_after_the_agent_leaves_the_gate_closed(tmp_path: Path, fake_nvml_library: Path) -> None:
    """The agent closed it with a permit and was killed: a load on the other boards opens nothing."""
    more = '[slurm]\nwriter = "drain"\nscontrol = "/bin/false"\npoll_seconds = 1\n'
    node = GpuNode(tmp_path, fake_nvml_library, more=more)
    node.runtime_dir.mkdir()
    save_memory(node.runtime_dir / MEMORY_NAME, Kept(boot_id(), WriterMemory(permit=boot_id(), nodes=3)))
    with node:
        node.log_kernel(f"NVRM: Xid (PCI:{pci(0)[:-2]}): 79, GPU has fallen off the bus.")
        node.wait_for_verdict("failed")
        node.seconds_until(lambda: node.state_file().hard, 5.0)
        node.kill()
        words = ["burn-in", "--plan", "probe", "--seconds", "1", "--device", "1"]
        assert node.command(*words).returncode == exits.FAILED
        found = node.state_file()
        assert (found.reason.split(":")[0], found.probing, found.hard) == ("GPU 0 (0000", False, True)
        assert "a burn-in without an agent" in found.devices[0].reason


@needs_torch
@pytest.mark.parametrize("with_agent", [True, False])
def test_a_burn_in_gives_way_to_a_job(tmp_path: Path, with_agent: bool) -> None:
    """The load ends, the state says idle, and the command says what interrupted it."""
    node = FakeNode(tmp_path, more=HOST_ONLY)
    if with_agent:
        node.start()
    try:
        burning = burn_in(node)
        wait_until_loaded(node, burning)
        claim(node)
        began = time.monotonic()
        while (found := state(node)) is not None and found.probing and time.monotonic() - began < PATIENCE_SECONDS:
            time.sleep(0.02)
        took = time.monotonic() - began
        printed, said = burning.communicate(timeout=PATIENCE_SECONDS)
    finally:
        if with_agent:
            node.stop()
    assert took < 5.0
    assert burning.returncode == 3, said
    assert "interrupted" in printed
    assert "gives way: a job claims this node" in printed


@needs_torch
def test_a_burn_in_without_an_agent_is_refused_while_a_job_is_here(tmp_path: Path) -> None:
    """It says why, runs nothing, and leaves the node idle."""
    node = FakeNode(tmp_path, more=HOST_ONLY)
    (node.runtime_dir / "claims").mkdir(parents=True)
    claim(node)
    burning = burn_in(node)
    _, said = burning.communicate(timeout=PATIENCE_SECONDS)
    assert burning.returncode == 3
    assert "burn-in: a job claims this node" in said
    found = state(node)
    assert found is not None
    assert not found.probing
