"""Whom the agent blames wrongly in situations that clusters see: real agents. Each test fails until it is mended."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi
from fakes.gpu_node import FakeNode
from fakes.host_tree import pci_device, virtual_machine, write_tree
from fakes.machine import FakeMachine
from fakes.nvml.scenario import FakeNvml, NvmlReturn
from fakes.running_agent import RunningAgent
from fakes.site_tool import SettableTool, device, temperature
from test_agent_command import COMMAND, agent, table

SLOTS = range(8)
FRAME_SECONDS = 20.0
OTHER_BOOT = "22222222-2222-3333-4444-555555555555\n"


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

    Seen: board 6 is taken for board 5: device.missing of board 6, hard until a re-test after a reboot, and the
    acknowledgement of board 5 ended.
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


def test_a_machine_that_was_started_on_other_hardware_misses_no_board(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    """A virtual machine was stopped and started elsewhere: eight other boards, at other addresses, in another boot.

    At the same addresses it is ``ok`` (docs/explanation/security-readings.md), and so it is with a new tray. Seen: each
    of the eight boards of before is device.missing, hard; the gate is closed until a person acknowledges eight times.
    """
    for slot in SLOTS:
        fake_nvml.set(f"serial.{slot}", f"16509220000{slot:02d}")
    node, root = node_of(tmp_path, fake_nvml)
    with node:
        node.wait_for_verdict("ok")
        node.stop()
        write_tree(root, {"proc/sys/kernel/random/boot_id": OTHER_BOOT})
        shutil.rmtree(root / "sys/bus/pci/devices")
        shutil.rmtree(root / "proc/driver/nvidia/gpus")
        for slot in SLOTS:
            bus = 0x11 * (slot + 1) + 3
            address = f"0000:{bus:02x}:00.0"
            fake_nvml.set(f"serial.{slot}", f"16549230000{slot:02d}").set(f"pci_bus.{slot}", bus)
            fake_nvml.set(f"uuid.{slot}", f"GPU-beef{slot:04x}-c0de-4abc-8def-{0x200 + slot:012x}")
            write_tree(root, pci_device(address, "0x10de", "0x2330", "0x030200", driver="nvidia") | page(address, slot))
        node.start()
        status = rounds(node)
        assert (opened(status), node.state_file().hard) == ({}, False)


def ended(node: RunningAgent, device_id: str) -> bool:
    """Return whether the node is ``ok``, or a person can end what stands of *device_id*."""
    words = ("ack", "device.missing", "--device", device_id, "--note", "it has another name now")
    verdict: str = node.status()["verdict"]
    return verdict == "ok" or node.command(*words).returncode == 0


def test_a_command_that_is_called_otherwise_leaves_no_board_unknown_for_ever(tmp_path: Path) -> None:
    """A person gives the command another name; the same script tells the same serials.

    Seen: ``unknown``, "not enumerated, command.acme collector is not running", without a next step, "pending, not
    confirmed yet" for ever, and `nodevet ack` says that there is no such finding.
    """
    tool = SettableTool(tmp_path)
    tool.print(device("a", serial="S1"), device("b", serial="S2"))
    with agent(tmp_path, table(tool.program, "acme")) as node:
        node.wait_for_verdict("ok")
        node.stop()
        text = node.configuration_file.read_text()
        node.configuration_file.write_text(text.replace('name = "acme"', 'name = "gaudi"'))
        node.start()
        node.wait_for(lambda status: status["agent"]["ready"] and status["generation"] > 3, FRAME_SECONDS)
        assert ended(node, "acme:a")


def test_boards_of_a_script_that_a_backend_reads_now_are_not_unknown_for_ever(
    tmp_path: Path, fake_amdsmi: FakeAmdSmi
) -> None:
    """A site that read its MI300X by a script, with their serials, enables the backend and takes the script away.

    Seen: eight times the same as above, although all eight boards with these serials are read and ``ok``.
    """
    tool = SettableTool(tmp_path)
    boards = (
        device(f"gpu{slot}", temperature(45), vendor="amd", model="AMD Instinct MI300X", serial=f"SER{slot}")
        for slot in SLOTS
    )
    tool.print(*boards)
    for slot in SLOTS:
        fake_amdsmi.set(f"serial.{slot}", f"SER{slot}")
    command = COMMAND.format(name="site", program=tool.program, more="")
    backends = '\n[agent.backends]\nenabled = ["host"]\n'
    node, _ = node_of(tmp_path, fake_amdsmi, more=backends + command)
    with node:
        rounds(node, 2)
        node.stop()
        text = node.configuration_file.read_text()
        node.configuration_file.write_text(text.replace(command, "").replace('"host"', '"host", "amd"'))
        node.start()
        rounds(node)
        assert ended(node, "site:gpu0")
