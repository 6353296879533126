"""The real load child that dies, hangs or fails while its wrong result is examined: what it knew is never lost."""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.burnin import NO_TORCH  # skips this file where torch is not installed
from fakes.late_clock import LateClock

from nodevet.agent.load.child import LoadChild
from nodevet.checks.burnin.launch import burn_command
from nodevet.checks.core.model import Device, DeviceKind, Result, ResultState, State
from nodevet.checks.engine.completeness import account

PROGRAM = Path(__file__).with_name("fakes") / "broken_load.py"
DEVICE = Device(id="cpu-0", kind=DeviceKind.CPU, vendor="amd", model="any", backend="host")
REQUEST = {
    "device": "cpu-0",
    "dtype": "fp32",
    "seconds": 60.0,
    "shape": [256, 256, 512],
    "maximum_memory_bytes": 24 << 20,
    "self_test": False,
}
PATIENCE_SECONDS = 60.0


@pytest.mark.soak
def test_a_real_load_that_dies_of_its_wrong_result_leaves_it_behind(campaign: Callable[[int], int]) -> None:
    """Aborts, kills, hangs and full disks while it is examined: failed each time, with format and shape."""
    assert NO_TORCH
    for number in range(campaign(12)):
        end = ("hang", "abort", "disk", "kill")[number % 4]
        result = ended(end)
        assert result.state is ResultState.DIED, (end, result)
        assert (result.metric("mismatches"), result.dtype, result.shape) == (1, "fp32", (256, 256, 512)), end
        assert account((), (result,)).state is State.FAILED


def ended(end: str) -> Result:
    """Return the result of a child that comes to its *end* once it knows of a wrong product."""
    launch, clock = burn_command(DEVICE, os.environ), LateClock()
    argv = (sys.executable, "-I", str(PROGRAM), end)
    with selectors.DefaultSelector() as selector:
        child = LoadChild("load", argv, ("cpu-0",), clock, selector, environment=launch.environment)
        child.burn("gemm", REQUEST, PATIENCE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not child.at_rest and time.monotonic() < deadline:
            for key, mask in selector.select(0.05):
                key.data(mask)
            if end == "hang" and child.known is not None and child.alive:
                clock.ahead += 2.0  # a leap would be a suspension, and no silence
            child.tick()
            if child.results or time.monotonic() > deadline - 5:
                child.stop()
    return child.results[0]
