"""Other hardware in another boot, and boards of a source under another name: real agents."""

from __future__ import annotations

import shutil
from pathlib import Path

from fakes.amdsmi.scenario import FakeAmdSmi
from fakes.host_tree import pci_device, write_tree
from fakes.node_with_bus import FRAME_SECONDS, SLOTS, node_of, opened, page, rounds
from fakes.nvml.scenario import FakeNvml
from fakes.running_agent import RunningAgent
from fakes.site_tool import SettableTool, device, temperature
from test_agent_command import COMMAND, agent, table

OTHER_BOOT = "22222222-2222-3333-4444-555555555555\n"


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
