"""The lines that greet whoever starts the agent."""

from __future__ import annotations

import pytest
from fakes.snapshots import gpu_node

from nodevet.agent.telling import greeting


@pytest.mark.parametrize(
    ("elsewhere", "command"),
    [("", "nodevet status"), ("/srv/run", "nodevet status --runtime-dir /srv/run")],
)
def test_the_command_that_asks_this_agent_is_told(elsewhere: str, command: str) -> None:
    """It can be copied as it stands, also where the files lie elsewhere than a command looks by itself."""
    lines = greeting(gpu_node().agent, "n1", "http://127.0.0.1:1/", simulates="", elsewhere=elsewhere)
    assert f"  ask      {command}" in list(lines)
