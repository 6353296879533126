"""A board that was unread when it went: what is said of its readings ends with the acknowledged loss."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from fakes.gpu_node import FakeNode, GpuNode
from fakes.host_tree import virtual_machine, write_tree
from fakes.nvml.scenario import FakeNvml, NvmlReturn, pci, uuid
from test_library_waits import failures


def test_a_board_that_was_unread_when_it_went_is_not_unread_for_ever(tmp_path: Path, fake_nvml_library: Path) -> None:
    """The driver is loaded anew without it, and a person acknowledges that it was removed."""
    machine = FakeNvml(tmp_path / "nvml.scenario", fake_nvml_library)
    files = virtual_machine() | machine.host_files()
    root = write_tree(tmp_path / "root", files)
    with FakeNode(tmp_path, machine, root=str(root)) as node:
        node.wait_for_verdict("ok")
        machine.fail("nvmlInitWithFlags", NvmlReturn.UNKNOWN).fail("nvmlInit_v2", NvmlReturn.UNKNOWN)
        for process in node.readers():
            os.kill(process, signal.SIGKILL)
        node.wait_for(lambda status: status["verdict"] == "unknown" and unread(status, uuid(7)), 20.0)
        for file in (root / "sys/bus/pci/devices" / pci(7)).iterdir():
            file.unlink()
        (root / "sys/bus/pci/devices" / pci(7)).rmdir()
        machine.clear().vanish(7)
        node.wait_for_finding("device.missing", 30.0)
        answer = node.command("ack", "device.missing", "--device", uuid(7), "--note", "removed")
        assert answer.returncode == 0, answer
        node.wait_for_verdict("ok", 15.0)
        node.wait_for(lambda status: not unread(status, uuid(7)), 30.0, "its readings are still told to be missing")


def unread(status: dict[str, Any], device: str) -> bool:
    """Return whether *device* is told to be unread."""
    told = ((entry["code"], entry["device"], entry["state"]) for entry in status["findings"])
    return ("device.unread", device, "open") in told


@pytest.mark.parametrize("how", ["release", "restart"])
def test_boards_that_their_driver_refused_by_number_are_not_missing_under_it(
    tmp_path: Path, fake_nvml_library: Path, how: str
) -> None:
    """No PCI bus shows the boards, and the reader that knew their names is gone: a release, a restart of the agent."""
    with GpuNode(tmp_path, fake_nvml_library) as node:
        node.wait_for_verdict("ok", 30.0)
        for slot in range(8):
            node.machine.fail_device(slot, NvmlReturn.UNKNOWN)
        node.wait_for_verdict("unknown")
        if how == "release":
            assert node.command("release", "--for", "1s").returncode == 0
        else:
            node.stop()
            node.start()
        node.wait_for(lambda status: unread(status, "nvidia-0"), 20.0, "no board is listed by its number")
        assert failures(node.status()) == []
        node.machine.clear()
        until = time.monotonic() + 8.0
        while time.monotonic() < until:
            assert failures(node.status()) == []
            time.sleep(0.4)
        node.wait_for_verdict("ok", 5.0)
