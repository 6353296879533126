"""Loads that a signal ends or stops: no fault of a device, and no proof of it."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from pathlib import Path

import pytest
from fakes.late_clock import LateClock

from nodevet.agent.load.child import LoadChild
from nodevet.checks.core.model import Result, ResultState

SECONDS = 20.0


def ended_by(number: int, begun: Path) -> Result:
    """Return the result of a load child that gets the signal *number* once its file *begun* is there."""
    clock = LateClock()
    text = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(60)"
    with selectors.DefaultSelector() as selector:
        child = LoadChild("load", (sys.executable, "-I", "-c", text), ("cpu-0",), clock, selector, silence_seconds=10.0)
        child.burn("gemm", {"dtype": "fp32"}, 600.0)
        until = time.monotonic() + SECONDS
        while not begun.exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert child.record is not None
        os.kill(child.record.pid, number)
        while not child.at_rest and time.monotonic() < until:
            for key, _mask in selector.select(0.05):
                key.data(_mask)
            clock.ahead += 0.5
            child.tick()
    (result,) = child.results
    return result


def test_a_load_that_sigkill_ends_is_unknown(tmp_path: Path) -> None:
    """The out of memory killer, a person or an oops: the words name them, and the device is not blamed."""
    result = ended_by(signal.SIGKILL, tmp_path / "begun")
    assert (result.state, result.conditions.get("killed")) == (ResultState.DIED, True)
    assert result.detail.startswith("the load was killed by SIGKILL: by the OOM killer, a person or a kernel oops")


def test_a_load_that_is_stopped_is_told_as_stopped(tmp_path: Path) -> None:
    """SIGSTOP to the load alone: its silence is not its device's."""
    result = ended_by(signal.SIGSTOP, tmp_path / "begun")
    assert result.conditions.get("killed") is True
    assert "stopped by a signal" in result.detail
    assert " in: " not in result.detail


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_load_that_crashes_died(tmp_path: Path, number: int) -> None:
    """A crash in a library is not excused."""
    result = ended_by(number, tmp_path / "begun")
    assert (result.state, "killed" in result.conditions) == (ResultState.DIED, False)
