"""A kernel log of tens of thousands of different lines, through the real agent: bounded, and nothing real is hidden."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.gpu_node import GpuNode, TextNode, pci
from fakes.nvml.scenario import uuid

from nodevet.checks.engine.overflow import MAXIMUM_KEPT, NOT_KEPT

STOP_SECONDS = 3.0
MAXIMUM_GROWTH_BYTES = 96 << 20
MOST_FINDINGS = MAXIMUM_KEPT + 50
MOST_LINES = 1_200
"""Of 512 findings and 64 events that are told apart one or two lines each, and what a start and an end say."""


def flood(count: int) -> list[str]:
    """Return lines of so many different XIDs and SXids that no table knows, on eight boards and a switch."""
    lines = []
    for index in range(count):
        number = 5_000 + index // 2
        xid = f"NVRM: Xid (PCI:{pci(index % 8)[:-2]}): {number}, pid=1234, name=python, Ch 00000008"
        sxid = f"nvidia-nvswitch0: SXid (PCI:0000:85:00.0): {20_000 + number}, Non-fatal, Link 12 error {number}"
        lines.append(sxid if index % 2 else xid)
    return lines


@pytest.mark.parametrize("kind", [GpuNode, TextNode])
def test_a_flood_of_different_lines_is_bounded_and_hides_no_hard_fault(
    kind: type[GpuNode], tmp_path: Path, fake_nvml_library: Path, campaign: Callable[[int], int]
) -> None:
    """Whether the kernel tells them or a file: memory, log and status stay small, a lost board in it is kept."""
    count = campaign(60_000)
    lines = flood(count)
    for place, board in ((count // 2, 3), (len(lines) + 1, 5)):
        lines.insert(place, f"NVRM: Xid (PCI:{pci(board)[:-2]}): 79, pid=1, name=x, GPU has fallen off the bus.")
    code = "nvidia.xid.79" if kind is GpuNode else "text.nvidia.xid.79"

    def both_are_told(status: dict[str, Any]) -> bool:
        return {entry["device"] for entry in status["findings"] if entry["code"] == code} == {uuid(3), uuid(5)}

    with kind(tmp_path, fake_nvml_library) as node:
        assert node.process is not None
        before = psutil.Process(node.process.pid).memory_info().rss
        with node.kernel_log.open("a") as file:
            file.writelines(f"[{index * 6 + 10}.000000] {line}\n" for index, line in enumerate(lines))
        status = node.wait_for(both_are_told, 60)
        assert len(status["findings"]) <= MOST_FINDINGS
        assert (status["verdict"] == "failed") is (kind is GpuNode)
        is_cut = any(entry["code"] == NOT_KEPT for entry in status["findings"])
        assert is_cut is (kind is GpuNode)
        assert psutil.Process(node.process.pid).memory_info().rss - before < MAXIMUM_GROWTH_BYTES
        assert node.stop() < STOP_SECONDS
        assert len(node.log.read_text().splitlines()) < MOST_LINES
        node.start()
        assert len(node.wait_for(both_are_told, 30)["findings"]) <= MOST_FINDINGS
