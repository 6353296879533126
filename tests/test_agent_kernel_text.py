"""A kernel log that is a file informs; what the driver and the counters tell still fails the node."""

from __future__ import annotations

from pathlib import Path

from fakes.amdsmi.scenario import ERROR_FILES, FakeAmdSmi
from fakes.amdsmi.scenario import pci as amd_pci
from fakes.amdsmi.scenario import uuid as amd_uuid
from fakes.gpu_node import FakeNode, GpuNode, TextNode, pci
from fakes.host_tree import EDAC, virtual_machine, write_tree
from fakes.nvml.scenario import FakeNvml
from fakes.running_agent import RunningAgent


class AmdTextNode(FakeNode):
    """The same with fake boards of AMD."""

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


def test_counters_of_the_link_and_of_the_board_confirm_what_a_text_tells(
    tmp_path: Path, fake_amdsmi: FakeAmdSmi
) -> None:
    """Lines of AER and of RAS that prove nothing warn; the counters of sysfs and of the driver fail the boards."""
    root = write_tree(tmp_path / "root", virtual_machine() | fake_amdsmi.host_files())
    with AmdTextNode(tmp_path, fake_amdsmi, root=str(root)) as node:
        node.log_kernel(f"pcieport {amd_pci(1)}: AER: Uncorrectable (Fatal) error message received from {amd_pci(1)}")
        node.log_kernel(f"amdgpu {amd_pci(2)}: amdgpu: 1 uncorrectable hardware errors detected in umc block")
        node.wait_for_finding("text.pcie.aer")
        node.wait_for_finding("text.amd.ras_ue")
        assert (node.status()["verdict"], node.state_file().hard) == ("degraded", False)
        assert set(outcomes(node).values()) == {"warn"}
        total = ERROR_FILES["aer_dev_fatal"]
        write_tree(root, {f"sys/bus/pci/devices/{amd_pci(1)}/aer_dev_fatal": f"Undefined 0\n{total} 1\n"})
        node.wait_for_finding("pcie.fatal")
        fake_amdsmi.set("ecc_uncorrected_volatile_dram.2", 1)
        node.wait_for_finding("memory.uncorrected")
        failed = {(one["code"], one["device"]) for one in node.status()["findings"] if one["outcome"] == "fail"}
        assert failed == {("pcie.fatal", amd_uuid(1)), ("memory.uncorrected", amd_uuid(2))}
        assert (node.status()["verdict"], node.state_file().hard) == ("failed", True)


def test_two_agents_on_one_log_each_tell_all_of_it(tmp_path: Path, fake_nvml_library: Path) -> None:
    """One is killed and started again: neither takes anything from the other, nor tells anything twice."""
    nodes = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        nodes.append(GpuNode(tmp_path / name, fake_nvml_library))
    first, second = nodes
    second.kernel_log.unlink()
    second.kernel_log.symlink_to(first.kernel_log)
    with first, second:
        first.log_kernel(f"NVRM: Xid (PCI:{pci(2)[:-2]}): 79, pid=1, name=x, GPU has fallen off the bus.")
        for node in nodes:
            node.wait_for_finding("nvidia.xid.79")
        first.kill()
        second.log_kernel(f"NVRM: Xid (PCI:{pci(3)[:-2]}): 48, pid=1, name=x, DBE (double bit error)")
        second.wait_for_finding("nvidia.xid.48")
        first.start()
        first.wait_for_finding("nvidia.xid.48")
        for node in nodes:
            failed = sorted(entry["code"] for entry in node.status()["findings"] if entry["outcome"] == "fail")
            assert (failed, node.state_file().hard) == (["nvidia.xid.48", "nvidia.xid.79"], True)
