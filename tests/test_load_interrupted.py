"""Ctrl-C once keeps what was measured and drains what was queued; twice ends at once with what is known."""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fakes.clocks import SteppedClock
from fakes.gpu_node import FakeNode

from nodevet.agent.load.child import AT_ONCE, STOP, LoadChild
from nodevet.agent.load.claims import LoadLock
from nodevet.checks.core.model import ResultState

PROGRAM = Path(__file__).with_name("fakes") / "scripted_burn_in.py"
LOAD = Path(__file__).with_name("fakes") / "scripted_load.py"
PATIENCE_SECONDS = 45.0
HOST_ONLY = '[agent.backends]\nenabled = ["host"]\n'


class Burning:
    """A burn-in of one format on a node of its own, whose child does *how*."""

    def __init__(self, folder: Path, how: str, *, agent: bool) -> None:
        """Start it, beside an *agent* or without one."""
        self.node = FakeNode(folder, more=HOST_ONLY)
        if agent:
            self.node.start()
        self._file = folder / "burn-in.json"
        places = ["--config", str(self.node.configuration_file), "--state-dir", str(self.node.state_dir)]
        places += ["--runtime-dir", str(self.node.runtime_dir), "--output", str(self._file)]
        self._gate = folder / "begun"
        script = json.dumps({"fp32": f"on:touch:{self._gate}:{how}"})
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), script, "--json", *places],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._wait(lambda: bool(list(folder.glob("begun-*"))))

    def _wait(self, done: Any) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < deadline, "it did not happen"
            assert self._process.poll() is None, self._process.communicate()
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait_for_line(self, words: str) -> None:
        """Wait until standard error says *words*."""
        assert self._process.stderr is not None
        while line := self._process.stderr.readline():
            if words in line:
                return
        raise AssertionError(f"{words!r} was not said")

    def ended(self) -> tuple[int, dict[str, Any], str]:
        """Return exit code, document and what was said."""
        try:
            printed, said = self._process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            self._process.kill()
            self._process.communicate()
            self.node.stop()
        assert printed, (self._process.returncode, said)
        document = json.loads(printed)
        assert json.loads(self._file.read_text()) == document
        assert not LoadLock(self.node.runtime_dir).is_held()
        return self._process.returncode, document, said


def figures(document: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the only format."""
    return {result["metric"]: result["value"] for result in document["results"]}


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "alone"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_was_measured_and_what_was_queued(tmp_path: Path, number: int, agent: bool) -> None:
    """The child checks what waits; the run is incomplete, and the node is judged."""
    burning = Burning(tmp_path, "drain", agent=agent)
    burning.signal(number)
    code, document, _said = burning.ended()
    assert (code, document["verdict"], document["completeness"]["state"]) == (3, "unknown", "incomplete")
    assert {result["state"] for result in document["results"]} == {"interrupted"}
    assert figures(document)["gemms_verified"] == 10
    assert document["agent"] is not None


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "alone"])
def test_ctrl_c_twice_ends_at_once_with_what_is_known(tmp_path: Path, agent: bool) -> None:
    """A child that hears nothing is killed; what it told before is its result."""
    burning = Burning(tmp_path, "deaf", agent=agent)
    burning.signal(signal.SIGINT)
    burning.wait_for_line("fp32 stop")
    burning.signal(signal.SIGINT)
    code, document, _said = burning.ended()
    assert (code, document["completeness"]["state"]) == (3, "incomplete")
    (state,) = {result["state"] for result in document["results"]}
    assert state == "interrupted"
    assert figures(document)["gemms_checked"] == 5000


def test_a_wrong_result_stays_one_after_ctrl_c_twice(tmp_path: Path) -> None:
    """Nobody waits for the verdict of the node, and the load has its own."""
    burning = Burning(tmp_path, "wrong:deaf", agent=False)
    burning.signal(signal.SIGINT)
    burning.wait_for_line("fp32 stop")
    burning.signal(signal.SIGINT)
    code, document, said = burning.ended()
    assert (code, document["verdict"], document["completeness"]["state"]) == (2, "failed", "wrong")
    assert "not judged after the burn-in: Ctrl-C came" in said
    assert "results are in the history" in said


@pytest.mark.parametrize(("at_once", "seconds"), [(False, STOP.kill), (True, 0.0)])
def test_the_end_is_bounded(tmp_path: Path, at_once: bool, seconds: float) -> None:
    """A child that hears neither Stop nor SIGTERM is killed after 1.3 s, or at once; its result says interrupted."""
    assert STOP.abandon < 2
    assert AT_ONCE.kill == 0
    clock = SteppedClock()
    argv = (sys.executable, "-I", str(LOAD), json.dumps({"fp32": f"on:touch:{tmp_path / 'begun'}:deaf"}))
    with selectors.DefaultSelector() as selector:
        child = LoadChild("load", argv, ("cpu-0",), clock, selector)
        child.burn("gemm", {"device": "cpu-0", "dtype": "fp32"}, 1e6)

        def turn(done: Any) -> None:
            deadline = time.monotonic() + 10.0
            while not done():
                assert time.monotonic() < deadline
                for key, mask in selector.select(0.02):
                    key.data(mask)
                child.tick()

        turn(lambda: bool(list(tmp_path.glob("begun-*"))))
        child.stop("interrupted")
        if at_once:
            child.stop("interrupted", at_once=True)
        else:
            clock.advance(seconds)
        turn(lambda: child.at_rest)
    (result,) = child.results
    assert (result.state, result.detail) == (ResultState.INTERRUPTED, "interrupted")
    assert result.metric("gemms_checked") == (5000 if at_once else None)
    assert not result.conditions
