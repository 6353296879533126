"""The real agent on the fake driver and the real prolog: what a refusing driver costs jobs, and a dead agent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.gpu_node import GpuNode
from fakes.nvml.scenario import NvmlReturn
from fakes.slurm_gate import Gate

from nodevet.checks.engine.refusal import refusal_row

TOLD_SECONDS = 3 * refusal_row().seconds
GONE_SECONDS = 30.0


@pytest.fixture
def node(tmp_path: Path, fake_nvml_library: Path) -> Iterator[GpuNode]:
    """A running agent on eight healthy GPUs, which may close its gate."""
    with GpuNode(tmp_path, fake_nvml_library) as running:
        yield running


@pytest.fixture
def gate(node: GpuNode, repository: Path, tmp_path: Path) -> Gate:
    """The prolog, reading what that agent writes."""
    gate = Gate(repository, tmp_path / "gate", ("dash",), drain_wait_seconds=0, probe_wait_seconds=0)
    gate.set(runtime_dir=node.runtime_dir)
    gate.log = node.runtime_dir / "gate.log"
    return gate


def refuse(node: GpuNode) -> None:
    """Have the driver answer every call on every GPU with an error that says nothing."""
    for slot in range(8):
        node.machine.fail_device(slot, NvmlReturn.UNKNOWN)


def reaches(node: GpuNode) -> set[str]:
    """Return what the lines of the accelerators in the state file rest on."""
    return {line.reach for line in node.state_file().devices if line.kind == "accelerator"}


def test_a_driver_that_refuses_all_closes_the_gate_after_the_tables_looks(node: GpuNode, gate: Gate) -> None:
    """The first round of errors is unknown and open; then `on_driver_refusal` decides, and one good round ends it.

    Before it is a refusal it is no ignorance either: `on_stale=fail` would close every gate of a cluster whose driver
    was replaced, and knows no limit.
    """
    node.wait_for_verdict("ok")
    state_file = node.runtime_dir / "state"
    node.seconds_until(lambda: state_file.exists() and node.state_line().startswith("ok "), TOLD_SECONDS)
    assert gate.prolog("0").decision == "open"
    gate.set(on_stale="fail")

    refuse(node)
    node.wait_for_verdict("unknown")
    node.seconds_until(lambda: node.state_line().startswith("unknown "), TOLD_SECONDS)
    decided = gate.prolog("0")
    assert (decided.code, decided.decision, reaches(node)) == (0, "unpermitted", {"unpermitted"})

    node.seconds_until(lambda: "refused" in reaches(node), TOLD_SECONDS)
    assert reaches(node) == {"refused"}
    decided = gate.prolog("0")
    assert (decided.code, decided.decision) == (1, "refused_closed")
    assert "unknown error (NVML code 999)" in decided.said
    assert node.status()["verdict"] == "unknown"
    gate.set(on_stale="fail", on_driver_refusal="pass")
    decided = gate.prolog("0")
    assert (decided.code, decided.decision) == (0, "refused_open")

    gate.set(on_stale="fail", on_driver_refusal="fail")
    for device in {found["device"] for found in node.status()["findings"] if found["outcome"] == "unmeasured"}:
        assert (
            node.command("ack", "device.unread", "--device", device, "--note", "the driver is mended").returncode == 0
        )
    node.seconds_until(lambda: "refused" not in reaches(node), TOLD_SECONDS)
    decided = gate.prolog("0")
    assert (decided.code, decided.decision, reaches(node)) == (0, "open", {"observed"})

    node.machine.clear()
    node.wait_for_verdict("ok")
    node.seconds_until(lambda: node.state_line().startswith("ok "), TOLD_SECONDS)
    assert gate.prolog("0").decision == "open"


def test_a_refusal_stands_over_the_restart_of_the_agent(node: GpuNode, gate: Gate) -> None:
    """Ended by a signal or killed: the driver still refuses, so the first look of the new agent closes the gate again.

    The library does not start any more, so that no board is listed: what is known of them is from the agent before.
    """
    node.wait_for_verdict("ok")
    refuse(node)
    for symbol in ("nvmlInit_v2", "nvmlInitWithFlags"):
        node.machine.fail(symbol, NvmlReturn.UNKNOWN)
    node.seconds_until(lambda: "refused" in reaches(node), TOLD_SECONDS)

    for end in (node.kill, node.stop):
        end()
        node.start()
        node.seconds_until(lambda: reaches(node) == {"refused"}, GONE_SECONDS)
        decided = gate.prolog("0")
        assert (decided.code, decided.decision) == (1, "refused_closed")
        assert node.status()["verdict"] == "unknown"

    node.kill()
    node.machine.clear()
    node.start()
    node.wait_for_verdict("ok", GONE_SECONDS)
    node.seconds_until(lambda: node.state_line().startswith("ok "), GONE_SECONDS)
    assert gate.prolog("0").decision == "open"


@pytest.mark.parametrize(("on_stale", "code"), [("pass", 0), ("fail", 1)])
def test_an_agent_that_is_gone_is_on_stales_and_never_a_refusal(
    node: GpuNode, gate: Gate, on_stale: str, code: int
) -> None:
    """Killed amid errors of the driver: nobody was there for the looks that a refusal needs, however long ago."""
    node.wait_for_verdict("ok")
    refuse(node)
    node.wait_for_verdict("unknown")
    node.kill()
    gate.set(on_stale=on_stale, on_driver_refusal="fail" if on_stale == "pass" else "pass")

    end = time.monotonic() + GONE_SECONDS
    while "expired" not in (decided := gate.prolog("0")).words:
        assert time.monotonic() < end, decided
    assert (decided.code, decided.decision) == (code, "no_verdict_closed" if code else "no_verdict_open")


def test_a_lost_board_that_a_person_knows_keeps_no_job_away(node: GpuNode, gate: Gate) -> None:
    """With `on_stale=fail` each job of that GPU, or of all, would drain the node against the person's word."""
    gate.set(on_stale="fail")
    node.machine.fail_device(3)
    node.wait_for_verdict("failed")
    node.seconds_until(lambda: gate.prolog("0,3").decision == "closed", GONE_SECONDS)
    device = node.machine.uuid(3)
    assert node.command("ack", "device.lost", "--device", device, "--note", "kept without it").returncode == 0
    node.seconds_until(lambda: "observed" in reaches(node), GONE_SECONDS)
    for gpus in ("0", "3", "0,1,2,3,4,5,6,7"):
        decided = gate.prolog(gpus)
        assert (decided.code, decided.decision) == (0, "open"), decided
