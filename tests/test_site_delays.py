"""A check of a site that takes long delays the agent, and a delay of the agent excuses no driver that hangs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fakes.gpu_node import GpuNode
from fakes.site_package import site_package

from nodevet.agent.readers.heartbeat import LATE_SECONDS
from nodevet.agent.readers.stages import HELD_UP_SECONDS
from nodevet.checks.core.overrun import AGAIN_SECONDS
from nodevet.checks.engine.check_run import LONGEST_SECONDS

PROGRAM = """
import argparse, sys
sys.path.insert(0, {folder!r})
from nodevet.agent.commands import agent
parser = argparse.ArgumentParser()
agent.configure(parser)
sys.exit(agent.run(parser.parse_args(sys.argv[2:]), stands_for_kernel=True))
"""


def node_with(directory: Path, library: Path, body: str, **options: Any) -> GpuNode:
    """Return a node of eight GPUs beside a package of a site with one check, which does *body*."""
    site_package(directory / "packages", body=body)
    program = directory / "program.py"
    program.write_text(PROGRAM.format(folder=str(directory / "packages")))
    node = GpuNode(directory, library, **options)
    node.program = (str(program),)
    return node


def test_checks_of_a_site_delay_the_agent_by_less_than_an_overloaded_host_does() -> None:
    """A second interruption, of a check that caught the first, is below each threshold too."""
    assert LONGEST_SECONDS <= LATE_SECONDS / 2
    assert min(LATE_SECONDS, HELD_UP_SECONDS) > LONGEST_SECONDS + AGAIN_SECONDS


@pytest.mark.parametrize("seconds", [0.0, 0.15, 1.6], ids=["no_slow_check", "slow_check", "interrupted_check"])
def test_a_slow_check_hides_no_driver_that_hangs(tmp_path: Path, fake_nvml_library: Path, seconds: float) -> None:
    """As far as it may go, or beyond that, with a round each 10 s and a deadline of 5 s, as by default."""
    node = node_with(tmp_path, fake_nvml_library, f"import time; time.sleep({seconds})", deadline_seconds=5.0)
    text = node.configuration_file.read_text()
    node.configuration_file.write_text(re.sub(r"interval_seconds = [\d.]+", "interval_seconds = 10", text))
    node._interval = 10.0
    with node:
        node.wait_for_verdict("ok" if seconds < LONGEST_SECONDS else "unknown", 40.0)
        node.machine.hang("nvmlDeviceGetTemperatureV", 3)
        status = node.wait_for_verdict("failed", 60.0)
        assert {slot for slot, verdict in node.verdicts(status).items() if verdict == "failed"} == {3}
        assert not any("host overloaded" in entry["message"] for entry in status["findings"])
