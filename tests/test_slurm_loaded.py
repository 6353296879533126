"""``nodevet slurm check`` says what the agent that runs has loaded, not only what nodevet.toml says by now."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import msgspec
import pytest
from fakes.running_agent import RunningAgent
from fakes.slurm_gate import install
from fakes.snapshots import failed_node

from nodevet.agent.config.load import load_configuration
from nodevet.agent.config.settings import Configuration, SlurmSettings
from nodevet.agent.slurm.first import first_status
from nodevet.agent.slurm.loaded import Running, running_of
from nodevet.checks.core.model import Mode, Modes
from nodevet.checks.engine.registry import installed
from nodevet.exporters.documents.schema import status_document
from nodevet.exporters.slurm.rules import WriterMemory

LOADED = Running("drain", "drain", "cluster")

SETTINGS = """\
[agent]
node_name = "n1"
[slurm]
scontrol = "/bin/false"
writer = "{writer}"
[gate]
mode = "{mode}"
"""


def settings(tmp_path: Path, writer: str = "drain", mode: str = "drain") -> Configuration:
    """Return what nodevet.toml says."""
    file = tmp_path / "nodevet.toml"
    file.write_text(SETTINGS.format(writer=writer, mode=mode))
    return load_configuration(file, installed(), overrides={})


@pytest.mark.parametrize(
    ("running", "told"),
    [
        (LOADED, ""),
        (Running("observe", "drain", "cluster"), '[gate] mode = "observe" and not "drain"'),
        (Running("drain", "off", "cluster"), '[slurm] writer = "off" and not "drain"'),
        (Running("drain", "drain", "local"), '[slurm] permit = "local" and not "cluster"'),
        (Running("drain", "drain", "cluster", "reload refused: x"), "reload refused: x"),
    ],
    ids=["alike", "mode", "writer", "permit", "message"],
)
def test_what_the_agent_has_loaded_otherwise_is_told(tmp_path: Path, running: Running, told: str) -> None:
    """Each of the modes by itself."""
    assert running.others(settings(tmp_path)) == (
        told if not told.startswith("[") else f"the agent that runs has {told}"
    )


@pytest.mark.parametrize("permit", ["cluster", "local"])
@pytest.mark.parametrize("writer", ["off", "observe", "drain"])
@pytest.mark.parametrize("mode", Mode)
def test_what_the_agent_has_loaded_is_in_what_it_says(writer: str, permit: str, mode: Mode) -> None:
    """Whatever of the modes it was started with."""
    chosen = msgspec.convert({"writer": writer, "permit": permit}, SlurmSettings)
    status = first_status(chosen, "n1", WriterMemory(), "boot-1")
    node = failed_node()
    agent = msgspec.structs.replace(node.agent, slurm=None if writer == "off" else status, permit=status.permit)
    document = status_document(msgspec.structs.replace(node, agent=agent, modes=Modes(mode)))
    assert running_of(document) == Running(mode.value, writer, permit)


@pytest.mark.parametrize(
    ("accepted", "message", "told"),
    [
        (True, "", ""),
        (True, "[report] change with the next restart", ""),
        (True, "[report], [slurm] change with the next restart", "[report], [slurm] change with the next restart"),
        (False, "reload refused: gate.mode", "reload refused: gate.mode"),
    ],
)
def test_what_waits_for_a_restart_is_told(accepted: bool, message: str, told: str) -> None:
    """Where it is about SLURM, or about everything."""
    node = failed_node()
    agent = msgspec.structs.replace(node.agent, configuration_accepted=accepted, configuration_message=message)
    assert running_of(status_document(msgspec.structs.replace(node, agent=agent))).message == told


def test_what_slurm_could_not_be_asked_is_taken_from_the_agents_notices() -> None:
    """Whatever else it says."""
    node = failed_node()
    agent = msgspec.structs.replace(node.agent, notices=("store: slow", "slurm: no answer: is it up?"))
    assert running_of(status_document(msgspec.structs.replace(node, agent=agent))).trouble == "no answer: is it up?"


def test_a_reload_that_takes_up_half_of_the_modes_is_told(repository: Path, tmp_path: Path) -> None:
    """Before: ok, "closes the gate and drains the node", while the agent closed and drained nothing."""
    node = RunningAgent(tmp_path, SETTINGS.format(writer="observe", mode="observe"))
    scripts = install(repository, tmp_path / "slurm", {"runtime_dir": node.runtime_dir, "mode": "gate"})
    with node:
        node.wait_for(lambda status: status["agent"]["ready"])

        def modes(name: str = "modes") -> tuple[str, str]:
            done = node.command("slurm", "check", "--node", "--json", "--scripts", str(scripts))
            (item,) = (entry for entry in json.loads(done.stdout)["items"] if entry["name"] == name)
            return item["status"], item["says"]

        node.wait_for(lambda status: any(told.startswith("slurm:") for told in status["agent"]["notices"]))
        assert modes("agent") == ("warning", "scontrol show partitions: status 1")

        settings(tmp_path)
        assert modes() == (
            "wrong",
            'the agent that runs has [gate] mode = "observe" and not "drain", '
            '[slurm] writer = "observe" and not "drain"',
        )
        assert node.process is not None
        node.process.send_signal(signal.SIGHUP)
        node.wait_for(lambda status: status["gate"]["mode"] == "drain")
        assert modes() == (
            "wrong",
            'the agent that runs has [slurm] writer = "observe" and not "drain"; [slurm] change with the next restart',
        )
        node.stop()
        node.start()
        node.wait_for(lambda status: status["agent"]["ready"])
        assert modes() == ("ok", "a hard fault closes the gate and drains the node")
