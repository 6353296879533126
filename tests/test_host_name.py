"""A machine that gets its name while the agent runs."""

from __future__ import annotations

import socket

import pytest

from nodevet.agent.config.load import load_configuration
from nodevet.agent.daemon.services import HostName


@pytest.mark.parametrize(("node_name", "told"), [("", True), ("gpu-07", False)])
def test_a_host_name_that_comes_after_the_start_is_told(
    monkeypatch: pytest.MonkeyPatch, node_name: str, told: bool
) -> None:
    """SLURM knows no node localhost, so there is no permit; a name that the site gave is never another."""
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost.localdomain")
    configuration = load_configuration(None, (), overrides={"agent.node_name": node_name or None})
    service = HostName(configuration)
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert not service.trouble, "the domain is no part of the name"
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-17")
    line = "the host name is now gpu-17, and the agent still uses localhost: restart the agent, or set node_name"
    assert service.trouble == (line if told else "")
