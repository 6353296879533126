"""The lines that greet whoever starts the agent."""

from __future__ import annotations

import pytest
from fakes.snapshots import gpu_node

from nodevet.agent.daemon.event_log import greeting

URL = "http://127.0.0.1:1/"


@pytest.mark.parametrize(
    ("elsewhere", "command"),
    [("", "nodevet status"), ("/srv/run", "nodevet status --runtime-dir /srv/run")],
)
def test_the_command_that_asks_this_agent_is_told(elsewhere: str, command: str) -> None:
    """It can be copied as it stands, also where the files lie elsewhere than a command looks by itself."""
    lines = greeting(gpu_node().agent, "n1", URL, trouble="", simulates="", elsewhere=elsewhere)
    assert f"  command  {command}" in list(lines)


def test_without_a_page_the_reason_is_told_instead_of_its_address() -> None:
    """An address that nobody of ours answers at would lead to somebody else's page."""
    lines = list(greeting(gpu_node().agent, "n1", "", trouble="port 1 is in use", simulates="", elsewhere=""))
    assert "  note     port 1 is in use" in lines
    assert not any("http" in line for line in lines)
