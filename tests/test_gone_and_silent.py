"""A board that is silent beside one that is gone: real agents of two vendors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi
from fakes.machine import FakeMachine
from fakes.node_with_bus import FRAME_SECONDS, node_of, opened, rounds
from fakes.nvml.scenario import FakeNvml, NvmlReturn


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_board_that_is_silent_for_once_is_not_missing_beside_one_that_is_gone(
    tmp_path: Path, fake_nvml: FakeNvml, fake_amdsmi: FakeAmdSmi, vendor: str
) -> None:
    """Board 5 went and was acknowledged; board 6 now has its index, and is in error for one list, then answers.

    Before, board 6 was taken for board 5: device.missing, hard until a re-test after a reboot, and the acknowledgement
    of board 5 ended.
    """
    machine: FakeMachine = fake_nvml if vendor == "nvidia" else fake_amdsmi
    node, root = node_of(tmp_path, machine)
    with node:
        node.wait_for_verdict("ok")
        machine.vanish(5)
        if vendor == "nvidia":
            shutil.rmtree(root / "proc/driver/nvidia/gpus" / machine.pci(5))
        node.wait_for_finding("device.missing")
        assert node.command("ack", "device.missing", "--device", machine.uuid(5), "--note", "dead").returncode == 0
        node.wait_for_verdict("ok")

        machine.fail_device(6, NvmlReturn.UNKNOWN if vendor == "nvidia" else AmdSmiStatus.BUSY)
        node.wait_for(lambda status: status["verdict"] != "ok", FRAME_SECONDS, "the error was not told")
        machine.clear("error.6")
        status = rounds(node)
        assert (opened(status), node.state_file().hard) == ({}, False)
