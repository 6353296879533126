"""A board that is silent beside one that is gone: real agents of two vendors."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi
from fakes.gpu_node import FakeNode
from fakes.host_tree import virtual_machine, write_tree
from fakes.machine import FakeMachine
from fakes.nvml.scenario import FakeNvml, NvmlReturn

SLOTS = range(8)
FRAME_SECONDS = 20.0


def page(address: str, slot: int) -> dict[str, str]:
    """Return the NVIDIA driver's page about the board at *address*."""
    facts = f"Model: \t NVIDIA H100 80GB HBM3\nDevice Minor: \t {slot}\n"
    return {f"proc/driver/nvidia/gpus/{address}/information": facts}


def node_of(directory: Path, machine: FakeMachine, **options: Any) -> tuple[FakeNode, Path]:
    """Return a node of *machine* with its PCI bus and its driver's pages, not started, and the root of its files."""
    files = virtual_machine() | machine.host_files()
    if isinstance(machine, FakeNvml):
        for slot in SLOTS:
            files |= page(machine.pci(slot), slot)
    root = write_tree(directory / "root", files)
    return FakeNode(directory, machine, root=str(root), **options), root


def opened(status: Mapping[str, Any], outcome: str = "fail") -> dict[str, str]:
    """Return the code of an open finding with *outcome* of each device that has one."""
    found = (entry for entry in status["findings"] if entry["outcome"] == outcome and entry["state"] == "open")
    return {entry["device"]: entry["code"] for entry in found}


def rounds(node: FakeNode, count: int = 4) -> dict[str, Any]:
    """Wait until *count* more rounds were judged, and return the status then."""
    begin = node.status()["generation"]
    return node.wait_for(lambda status: status["generation"] >= begin + count, FRAME_SECONDS, "no round came")


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
