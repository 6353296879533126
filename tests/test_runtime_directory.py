"""The runtime directory is removed while the agent runs: it comes back whole, and that is told."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.running_agent import RunningAgent

from nodevet.agent.control.client import AgentAbsent, ask
from nodevet.agent.control.server import SOCKET_NAME
from nodevet.agent.daemon.runtime_directory import RuntimeDirectory
from nodevet.checks.core.errors import BusyError, StoreError
from nodevet.checks.system.lock import acquire_node_lock

CONFIGURATION = """
[agent.backends]
enabled = ["host"]
[kernel_log]
enabled = false
"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    """A running agent."""
    with RunningAgent(tmp_path, CONFIGURATION) as running:
        running.wait_for(lambda status: status["agent"]["ready"])
        yield running


def answers(agent: RunningAgent) -> bool:
    """Return whether the socket is there and answers."""
    try:
        return bool(ask(agent.runtime_dir / SOCKET_NAME, "status"))
    except AgentAbsent:
        return False


def remove(folder: Path) -> None:
    """Remove *folder*, in which the agent may still write, as it began before."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{folder} is still there")


@pytest.mark.parametrize("times", [1, 3])
def test_a_runtime_directory_that_was_removed_comes_back_whole(agent: RunningAgent, times: int) -> None:
    """State file, mirror, socket, lock and claims; with its mode; no second agent reads meanwhile; and it is told."""
    agent.runtime_dir.chmod(0o751)
    agent.stop()
    agent.start()
    names = {entry.name for entry in agent.runtime_dir.iterdir() if not entry.name.startswith(".")}
    for number in range(times):
        away = agent.runtime_dir.with_name(f"away{number}")
        agent.runtime_dir.rename(away)
        remove(away)
        agent.seconds_until(
            lambda: agent.runtime_dir.exists() and names <= {entry.name for entry in agent.runtime_dir.iterdir()}, 10
        )
    assert stat.S_IMODE(agent.runtime_dir.stat().st_mode) == 0o751
    agent.seconds_until(lambda: answers(agent), 10)
    with pytest.raises(BusyError, match="nodevet agent"):
        acquire_node_lock(agent.runtime_dir)
    assert agent.command("status").stdout.startswith(agent.status()["node"])
    told = [line for line in agent.status()["agent"]["notices"] if "was removed" in line]
    assert len(told) == 1
    assert "was removed" in agent.log.read_text()
    assert agent.stop() < 3.0


@pytest.mark.parametrize("name", ["control.socket", "node.lock", "claims", "state", "episodes.json"])
def test_one_file_that_was_removed_comes_back(agent: RunningAgent, name: str) -> None:
    """As a cleaner of temporary files does, by age."""
    path = agent.runtime_dir / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    agent.seconds_until(path.exists, 10)
    agent.seconds_until(lambda: answers(agent), 10)
    with pytest.raises(BusyError, match="nodevet agent"):
        acquire_node_lock(agent.runtime_dir)


def test_a_second_agent_in_the_place_of_the_first_is_told(agent: RunningAgent) -> None:
    """It took the lock of a directory that was made by somebody else: neither takes it from the other."""
    away = agent.runtime_dir.with_name("away")
    agent.runtime_dir.rename(away)
    with acquire_node_lock(agent.runtime_dir, "another"):
        told = agent.wait_for(lambda status: any("held by another" in line for line in status["agent"]["notices"]))
    assert any("restart the agent" in line for line in told["agent"]["notices"])
    agent.wait_for(lambda status: not any("held by another" in line for line in status["agent"]["notices"]))


def test_a_directory_that_cannot_be_made_is_told_with_what_to_do(tmp_path: Path) -> None:
    """As in a service whose part of the file system may not be written; and it comes back when it can."""
    parent = tmp_path / "run"
    place = parent / "nodevet"
    place.mkdir(parents=True)
    restored: list[str] = []
    told: list[str] = []
    looked_after = RuntimeDirectory(place, [(place / "state", lambda: restored.append("state"))], log=told.append)
    looked_after.before_judging()
    assert (looked_after.trouble, restored) == ("", [])
    place.rmdir()
    parent.rmdir()
    parent.write_text("in the way")
    looked_after.before_judging()
    assert "cannot be made" in looked_after.trouble
    assert "restart the agent" in looked_after.trouble
    parent.unlink()
    looked_after.before_judging()
    assert place.is_dir()
    assert "recreated" in looked_after.trouble
    assert "restart" not in looked_after.trouble
    assert len(told) == 1


def test_what_cannot_be_put_back_is_tried_again(tmp_path: Path) -> None:
    """And what stands beside it is put back."""
    file, other = tmp_path / "one", tmp_path / "two"
    file.touch()
    other.touch()
    tries: list[int] = []

    def fails() -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise StoreError(f"{file}: held by another")
        file.touch()

    looked_after = RuntimeDirectory(tmp_path, [(file, fails), (other, other.touch)])
    file.unlink()
    other.unlink()
    looked_after.before_judging()
    assert "held by another" in looked_after.trouble
    assert other.exists()
    looked_after.before_judging()
    looked_after.before_judging()
    looked_after.before_judging()
    assert (len(tries), looked_after.trouble) == (3, "")
