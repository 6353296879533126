"""A kernel log that is a file informs; what the driver and the counters tell still fails the node."""

from __future__ import annotations

from pathlib import Path

from fakes.gpu_node import FakeNode, GpuNode, pci
from fakes.host_tree import EDAC, virtual_machine, write_tree
from fakes.nvml.scenario import FakeNvml
from fakes.running_agent import RunningAgent


class TextNode(GpuNode):
    """A node of fake GPUs under the program that sites install: a file does not stand for its kernel's log."""

    program = RunningAgent.program


def edac(count: int) -> dict[str, str]:
    """Return a controller of memory with so many uncorrected errors."""
    counts = {"ue_count": count, "ce_count": 0, "ue_noinfo_count": 0, "ce_noinfo_count": 0}
    return {f"{EDAC}/mc0/mc_name": "Intel_10nm Socket\n"} | {
        f"{EDAC}/mc0/{file}": f"{n}\n" for file, n in counts.items()
    }


def outcomes(node: FakeNode) -> dict[str, str]:
    """Return what is told, with its outcome."""
    return {entry["code"]: entry["outcome"] for entry in node.status()["findings"] if entry["outcome"] != "pass"}


def test_what_a_file_tells_informs_and_the_driver_and_the_counter_gate(tmp_path: Path, fake_nvml_library: Path) -> None:
    """The same faults told twice: as text they warn, by NVML and by ue_count the gate closes for them."""
    root = write_tree(tmp_path / "root", virtual_machine() | edac(0))
    with TextNode(tmp_path, fake_nvml_library, root=str(root)) as node:
        assert isinstance(node.machine, FakeNvml)
        node.log_kernel(f"NVRM: Xid (PCI:{pci(2)[:-2]}): 79, pid=1, name=x, GPU has fallen off the bus.")
        node.log_kernel("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_DIMM#0 (channel:0 slot:0 page:0x1)")
        node.wait_for_finding("text.nvidia.xid.79")
        node.wait_for_finding("text.memory.edac_ue")
        assert (node.status()["verdict"], node.state_file().hard) == ("degraded", False)
        assert set(outcomes(node).values()) == {"warn"}
        node.machine.xid(2, 79)
        node.wait_for_finding("nvidia.xid.79")
        write_tree(root, edac(1))
        node.wait_for_finding("memory.uncorrected")
        told = outcomes(node)
        assert (told["nvidia.xid.79"], told["memory.uncorrected"]) == ("fail", "fail")
        assert (node.status()["verdict"], node.state_file().hard) == ("failed", True)
