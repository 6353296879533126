"""Boards that are lent to guests, have other addresses after a boot, or hang in one part: real agents, fake drivers."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi, pci, uuid
from fakes.gpu_node import FakeNode
from fakes.host_tree import LINK, pci_device, virtual_machine, write_tree
from fakes.site_tool import SettableTool, device, temperature
from test_agent_amd import node_of
from test_agent_command import table

SETTLED_SECONDS = 6.0
UNCORRECTABLE = "amdgpu: 3 uncorrectable hardware errors detected in umc block"
BUSES = (0x19, 0x1A, 0x33, 0x34, 0x4D, 0x4E, 0xB3, 0xB4)


def open_findings(status: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Return code and device of each open finding, with its outcome."""
    return {
        (entry["code"], entry["device"]): entry["outcome"] for entry in status["findings"] if entry["state"] == "open"
    }


@pytest.mark.parametrize("driver", ["gim", "pciback"])
def test_boards_that_the_host_lends_to_guests_close_no_gate(
    tmp_path: Path, fake_amdsmi: FakeAmdSmi, driver: str
) -> None:
    """AMD's SR-IOV driver of a host is called gim, and Xen's driver pciback (its module: xen-pciback)."""
    fake_amdsmi.fail("amdsmi_init", AmdSmiStatus.DRIVER_NOT_LOADED)
    files = virtual_machine() | {
        name: f"{LINK}../../../../bus/pci/drivers/{driver}" if name.endswith("/driver") else text
        for name, text in fake_amdsmi.host_files().items()
        if not name.startswith("sys/module/amdgpu")
    }
    with FakeNode(tmp_path, fake_amdsmi, root=str(write_tree(tmp_path / "root", files))) as node:
        time.sleep(SETTLED_SECONDS)
        assert ("driver.missing", "node") not in open_findings(node.status())
        assert not node.state_file().hard


def gaudis(buses: tuple[int, ...], *, serial: bool) -> list[dict[str, Any]]:
    """Return eight boards as a command prints them: always under the same ids."""
    return [
        device(
            f"hl{number}",
            temperature(45),
            vendor="habana",
            model="HL-225",
            pci=f"0000:{bus:02x}:00.0",
            **({"serial": f"AN{number:04}"} if serial else {}),
        )
        for number, bus in enumerate(buses)
    ]


def write_boards(root: Path, buses: tuple[int, ...], boot: str) -> Path:
    """Write the host's tree of a *boot* with the boards on these *buses*."""
    files = virtual_machine() | {"proc/sys/kernel/random/boot_id": f"{boot}\n"}
    for bus in buses:
        files |= pci_device(f"0000:{bus:02x}:00.0", "0x1da3", "0x1020", "0x120000", driver="habanalabs")
    shutil.rmtree(root, ignore_errors=True)
    return write_tree(root, files)


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("moved", [1, 4])
def test_boards_whose_buses_are_renumbered_by_a_boot_are_not_missing(tmp_path: Path, moved: int, serial: bool) -> None:
    """A backplane was added, so some buses have other numbers: the command prints the same ids and serials."""
    after = BUSES[:-moved] + tuple(bus + 3 for bus in BUSES[-moved:])
    tool = SettableTool(tmp_path)
    tool.print(*gaudis(BUSES, serial=serial))
    root = write_boards(tmp_path / "root", BUSES, "11111111-1111-4111-8111-111111111111")
    more = '[agent.backends]\nenabled = ["host"]\n' + table(tool.program, "gaudi")
    node = FakeNode(tmp_path, root=str(root), more=more)
    with node:
        node.wait_for_verdict("ok")
        time.sleep(3)
    write_boards(root, after, "22222222-2222-4222-8222-222222222222")
    tool.print(*gaudis(after, serial=serial))
    with node:
        time.sleep(SETTLED_SECONDS)
        failed = {key for key, outcome in open_findings(node.status()).items() if outcome == "fail"}
        assert failed == set()
        assert not node.state_file().hard


def split(machine: FakeAmdSmi) -> None:
    """Split the board in slot 3 as in CPX."""
    machine.set("count", 15)
    for slot in range(8, 15):
        machine.update({f"pci_bus.{slot}": 0x3C, f"uuid.{slot}": uuid(3), f"partition_id.{slot}": slot - 7})


def test_a_partition_that_hangs_hides_neither_its_board_nor_its_siblings(
    tmp_path: Path, fake_amdsmi: FakeAmdSmi
) -> None:
    """They are read, or told as unread: a device that nobody reads may not disappear from every surface."""
    split(fake_amdsmi)
    with node_of(tmp_path, fake_amdsmi) as node:
        listed = {entry["id"] for entry in node.wait_for_verdict("ok")["devices"]}
        fake_amdsmi.hang("amdsmi_get_gpu_memory_usage", gpu=11)
        node.wait_for_verdict("failed")
        time.sleep(SETTLED_SECONDS)
        assert listed - {entry["id"] for entry in node.status()["devices"]} == set()
        assert {entry.minor for entry in node.state_file().devices} >= {131, 136, 137}


def test_an_error_of_a_board_is_not_that_of_the_partition_that_hangs(tmp_path: Path, fake_amdsmi: FakeAmdSmi) -> None:
    """The kernel names the board; the finding is the board's, and all its partitions are as bad as it."""
    split(fake_amdsmi)
    with node_of(tmp_path, fake_amdsmi) as node:
        node.wait_for_verdict("ok")
        fake_amdsmi.hang("amdsmi_get_gpu_memory_usage", gpu=11)
        node.wait_for_verdict("failed")
        time.sleep(SETTLED_SECONDS)
        node.log_kernel(f"amdgpu {pci(3)}: {UNCORRECTABLE}")
        node.wait_for_finding("amd.ras_ue")
        fake_amdsmi.clear("hang.amdsmi_get_gpu_memory_usage.11")
        status = node.wait_for(
            lambda status: uuid(3) in {entry["id"] for entry in status["devices"]}, 60.0, "the board is not read again"
        )
        assert ("amd.ras_ue", uuid(3)) in open_findings(status)
        assert {entry["id"]: entry["verdict"] for entry in status["devices"]}[uuid(3)] == "failed"
