"""One load on several devices: what is run, what follows a refusal, and that nothing is waited for in vain."""

from __future__ import annotations

import json
import selectors
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodevet.agent.clock import SystemClock
from nodevet.agent.load.run import LoadRun
from nodevet.checks.burnin.launch import Launch
from nodevet.checks.burnin.plan import GemmRequest
from nodevet.checks.model import Device, DeviceKind, ResultState

PROGRAM = Path(__file__).with_name("fakes") / "scripted_load.py"
DEVICES = tuple(
    Device(id=f"GPU-{slot}", kind=DeviceKind.ACCELERATOR, vendor="nvidia", model="any", backend="nvidia")
    for slot in range(2)
)
PATIENCE_SECONDS = 20.0


def run(script: Mapping[str, str], *, stop_after: int | None = None) -> LoadRun:
    """Run every format of *script* on two devices to the end; stop it after so many results where asked to."""

    def spawn(_device: Device, environment: Mapping[str, str]) -> Launch:
        return Launch((sys.executable, "-I", str(PROGRAM), json.dumps(script)), dict(environment))

    requests = {
        device.id: tuple(GemmRequest(device=device.id, dtype=dtype, seconds=0.1) for dtype in script)
        for device in DEVICES
    }
    with selectors.DefaultSelector() as selector:
        load = LoadRun(DEVICES, requests, SystemClock(), selector, spawn=spawn)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not load.done and time.monotonic() < deadline:
            for key, mask in selector.select(0.05):
                key.data(mask)
            if stop_after is not None and len(load.results) >= stop_after:
                load.stop("enough")
            load.tick()
        load.tick()
    assert load.done
    return load


def states(load: LoadRun, device: str = "GPU-0") -> list[tuple[str | None, ResultState]]:
    """Return format and state of each result of *device*, in order."""
    return [(result.dtype, result.state) for result in load.results if result.devices == (device,)]


def test_every_device_runs_every_format_in_order() -> None:
    """Both devices finish both requests, and the run is complete."""
    load = run({"fp32": "finish", "bf16": "finish"})

    for device in ("GPU-0", "GPU-1"):
        assert states(load, device) == [("fp32", ResultState.FINISHED), ("bf16", ResultState.FINISHED)]
    assert load.ratio == 1.0
    assert load.phase == "done"


def test_a_format_that_a_device_lacks_does_not_end_the_others() -> None:
    """A refusal for its format is told, and what follows is run."""
    load = run({"fp8_e4m3": "no_format", "bf16": "finish"})

    assert states(load) == [("fp8_e4m3", ResultState.REFUSED), ("bf16", ResultState.FINISHED)]


def test_a_refusal_that_holds_for_all_is_told_once() -> None:
    """Without torch nothing that follows could run either."""
    load = run({"fp32": "no_torch", "bf16": "finish"})

    assert states(load) == [("fp32", ResultState.REFUSED)]


def test_a_load_that_dies_has_a_result_that_says_so() -> None:
    """The signal is named, and the rest is not silently passed over as done."""
    load = run({"fp32": "die", "bf16": "finish"})

    (first, *_) = [result for result in load.results if result.devices == ("GPU-0",)]
    assert first.state is ResultState.DIED
    assert "SIGABRT" in first.detail
    assert ResultState.FINISHED not in {result.state for result in load.results}


@pytest.mark.parametrize("second", ["hang", "finish"])
def test_a_stopped_load_is_interrupted_within_two_seconds(second: str) -> None:
    """What ran until then is kept."""
    began = time.monotonic()
    load = run({"fp32": "finish", "bf16": second}, stop_after=2)

    assert time.monotonic() - began < PATIENCE_SECONDS / 2
    assert ("fp32", ResultState.FINISHED) in states(load)
    if second == "hang":
        assert states(load)[-1][1] is ResultState.INTERRUPTED


def test_a_load_that_cannot_be_started_is_refused_and_the_others_run() -> None:
    """No memory for a process, or an interpreter that is being replaced, does not end who asked for the load."""

    def spawn(device: Device, environment: Mapping[str, str]) -> Launch:
        program = sys.executable if device is DEVICES[1] else "/nonexistent/python"
        return Launch((program, "-I", str(PROGRAM), json.dumps({"fp32": "finish"})), dict(environment))

    requests = {device.id: (GemmRequest(device=device.id, dtype="fp32", seconds=0.1),) for device in DEVICES}
    with selectors.DefaultSelector() as selector:
        load = LoadRun(DEVICES, requests, SystemClock(), selector, spawn=spawn)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not load.done and time.monotonic() < deadline:
            for key, mask in selector.select(0.05):
                key.data(mask)
            load.tick()
    assert load.done
    assert [result.state for result in load.results if result.devices == ("GPU-0",)] == [ResultState.REFUSED]
    assert "cannot be started: No such file" in load.results[0].detail
    assert [result.state for result in load.results if result.devices == ("GPU-1",)] == [ResultState.FINISHED]
