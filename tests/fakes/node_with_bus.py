"""A node of eight boards with its PCI bus and the pages of its driver, and the words of its status. Real agents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fakes.gpu_node import FakeNode
from fakes.host_tree import virtual_machine, write_tree
from fakes.machine import FakeMachine
from fakes.nvml.scenario import FakeNvml

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
