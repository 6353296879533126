"""The command line, but that the threads of its loads on a processor sleep while they wait for each other.

By default they spin, which keeps the processor from the very thread that is waited for where other tests run beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from unittest import mock

from nodevet.agent import cli
from nodevet.agent.terminal import exits
from nodevet.checks.burnin import launch
from nodevet.checks.burnin.launch import Launch, burn_command
from nodevet.checks.core.model import Device


def sleeping(device: Device, environment: Mapping[str, str]) -> Launch:
    """Return the command of the load child for *device*, with one more variable."""
    real = burn_command(device, environment)
    return Launch(real.argv, {**real.environment, "OMP_WAIT_POLICY": "PASSIVE"})


if __name__ == "__main__":
    with mock.patch.object(launch, "burn_command", sleeping):  # before a command's module takes it from there
        exits.end_process(cli.main())
