"""The agent of a node of fake devices: the file that stands for their kernel's log counts as the kernel's own.

``NODEVET_TEST_LOAD`` is the script of its probes (scripted_load.py), which then put no load on anything.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from nodevet.agent.commands import agent
from nodevet.checks.burnin.launch import Launch, burn_command
from nodevet.checks.core.model import Device

SCRIPT = os.environ.get("NODEVET_TEST_LOAD")


def scripted(device: Device, environment: Mapping[str, str]) -> Launch:
    """Return how to start a load child that does as the script says, or a real one where there is none."""
    if SCRIPT is None:
        return burn_command(device, environment)
    program = Path(__file__).with_name("scripted_load.py")
    return Launch((sys.executable, "-I", str(program), SCRIPT), dict(environment))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    agent.configure(parser)
    sys.exit(agent.run(parser.parse_args(sys.argv[2:]), stands_for_kernel=True, spawn=scripted))
