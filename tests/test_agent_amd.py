"""The real daemon on the fake AMD driver, alone, beside NVIDIA's, and where library, driver or boards do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.amdsmi.build import build_fake_amdsmi
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi, pci, uuid
from fakes.gpu_node import FakeNode
from fakes.host_tree import Files, virtual_machine, write_tree
from fakes.machine import FakeMachine
from fakes.nvml.scenario import FakeNvml

SLOTS = range(8)


def node_of(directory: Path, *machines: FakeMachine, without: str = "") -> FakeNode:
    """Return a node of *machines* whose kernel shows their boards, but no file whose path begins with *without*."""
    files: Files = virtual_machine()
    for machine in machines:
        files |= machine.host_files()
    kept = {name: text for name, text in files.items() if not (without and name.startswith(without))}
    return FakeNode(directory, *machines, root=str(write_tree(directory / "root", kept)))


@pytest.fixture
def node(tmp_path: Path, fake_amdsmi: FakeAmdSmi) -> Iterator[FakeNode]:
    """A running agent on eight healthy MI300X."""
    with node_of(tmp_path, fake_amdsmi) as running:
        yield running


def finding(status: dict[str, Any], code: str, device: str) -> dict[str, Any] | None:
    """Return the open finding *code* of *device*, or None."""
    entries = ((entry["code"], entry["device"], entry["state"]) for entry in status["findings"])
    found = dict(zip(entries, status["findings"], strict=True))
    return found.get((code, device, "open"))


def told(node: FakeNode, code: str, device: str) -> dict[str, Any]:
    """Wait until *code* stands open on *device*, and return the finding."""
    status = node.wait_for(lambda status: finding(status, code, device) is not None, 20.0, f"{code} did not come")
    found = finding(status, code, device)
    assert found is not None
    return found


def reader(status: dict[str, Any], backend: str) -> dict[str, Any]:
    """Return what the status tells of the reader of *backend*."""
    return next(entry for entry in status["readers"] if entry["backend"] == backend)


def test_eight_healthy_boards_are_ok_on_every_surface(node: FakeNode) -> None:
    """Verdict ok without a finding, in the API, the metrics and the state file."""
    status = node.wait_for_verdict("ok")

    assert node.verdicts(status) == dict.fromkeys(SLOTS, "ok")
    assert status["findings"] == []
    assert reader(status, "amd")["state"] == "running"
    assert node.metric("nodevet_node_state", state="ok") == 1
    assert node.metric("nodevet_temperature_celsius", device=uuid(3)) == 40
    assert node.state_file().state == "ok"
    assert node.command("status").stdout.startswith("node-1: ok")


def test_faults_are_told_with_their_device_and_healing_clears_conditions(
    node: FakeNode, fake_amdsmi: FakeAmdSmi
) -> None:
    """A lost board, one that vanished, and one that is hot, each for itself; only the heat goes by itself."""
    node.wait_for_verdict("ok")
    fake_amdsmi.fail_device(5).vanish(6).set("temperature.1", 101)

    assert told(node, "device.lost", uuid(5))["action"] == "reboot"
    assert told(node, "device.missing", uuid(6))["action"] == "reboot"
    hot = told(node, "temperature.slowdown", uuid(1))
    assert hot["part"] == "sensor hotspot"
    assert hot["message"].startswith(f"GPU renderD129 ({pci(1)})"), hot["message"]
    fake_amdsmi.clear()
    status = node.wait_for(lambda status: finding(status, "temperature.slowdown", uuid(1)) is None, 20.0, "still hot")

    assert finding(status, "device.lost", uuid(5)) is not None
    assert finding(status, "device.missing", uuid(6)) is not None
    assert {slot: state for slot, state in node.verdicts(status).items() if state != "ok"} == {5: "failed", 6: "failed"}


def test_line_of_the_kernel_log_fails_the_board_that_it_names(node: FakeNode) -> None:
    """The driver's report of uncorrectable errors reaches the verdict of the device at that address."""
    node.wait_for_verdict("ok")
    node.log_kernel(f"amdgpu {pci(2)}: amdgpu: 3 uncorrectable hardware errors detected in umc block")

    assert told(node, "amd.ras_ue", uuid(2))["action"] == "drain_reset"
    assert node.verdicts(node.status()) == dict.fromkeys(SLOTS, "ok") | {2: "failed"}


def test_hang_is_told_with_its_call_and_the_siblings_are_measured(node: FakeNode, fake_amdsmi: FakeAmdSmi) -> None:
    """Two hangs fail the board; the other seven are read on, and every surface answers meanwhile."""
    node.wait_for_verdict("ok")
    fake_amdsmi.hang("amdsmi_get_temp_metric", gpu=3)

    assert "amdsmi_get_temp_metric" in told(node, "reader.hung", uuid(3))["message"]
    assert node.get("/-/healthy")
    status = node.wait_for(
        lambda status: node.verdicts(status) == dict.fromkeys(SLOTS, "ok") | {3: "failed"},
        30.0,
        "the siblings are not read again",
    )
    assert (status["verdict"], status["action"]) == ("failed", "reboot")


def test_crash_of_the_library_is_told_and_the_reader_comes_back(node: FakeNode, fake_amdsmi: FakeAmdSmi) -> None:
    """An abort inside the vendor's library ends its reader only."""
    node.wait_for_verdict("ok")
    fake_amdsmi.crash("amdsmi_get_power_info", gpu=0)

    assert "was killed by SIGABRT in: amdsmi_get_power_info" in told(node, "reader.crashed", uuid(0))["message"]
    fake_amdsmi.clear()
    node.wait_for(lambda status: reader(status, "amd")["state"] == "running", 20.0, "the reader stays away")


def test_devices_that_changed_are_listed_anew_without_a_restart_of_the_agent(
    tmp_path: Path, fake_amdsmi: FakeAmdSmi
) -> None:
    """The kernel's list of devices grew: the collector restarts, and the node is ok with what it finds then."""
    with node_of(tmp_path, fake_amdsmi) as node:
        starts = reader(node.wait_for_verdict("ok"), "amd")["starts"]
        generation = tmp_path / "root/sys/class/kfd/kfd/topology/generation_id"
        generation.parent.mkdir(parents=True)
        generation.write_text("3\n")
        node.wait_for(lambda status: reader(status, "amd")["starts"] > starts, 20.0, "the reader goes on")
        node.wait_for_verdict("ok")


def test_boards_of_both_vendors_are_read_side_by_side(
    tmp_path: Path, fake_amdsmi: FakeAmdSmi, fake_nvml: FakeNvml
) -> None:
    """One agent, a reader for each vendor; a fault of one vendor's board leaves the other's boards ok."""
    with node_of(tmp_path, fake_amdsmi, fake_nvml) as node:
        status = node.wait_for_verdict("ok")
        accelerators = [device for device in status["devices"] if device["kind"] == "accelerator"]
        assert sorted(device["vendor"] for device in accelerators) == ["amd"] * 8 + ["nvidia"] * 8

        fake_amdsmi.set("ecc_uncorrected_volatile_dram.4", 1)
        told(node, "memory.uncorrected", uuid(4))
        broken = [device["id"] for device in node.status()["devices"] if device["verdict"] == "failed"]
        assert broken == [uuid(4)]


def test_node_without_amd_boards_has_no_amd_reader_to_speak_of(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    """On a node of another vendor the reader is absent with its reason, and the node is ok."""
    with node_of(tmp_path, fake_nvml) as node:
        status = node.wait_for_verdict("ok")

        absent = reader(status, "amd")
        assert (absent["state"], status["findings"]) == ("absent", [])
        assert "no AMD accelerator" in absent["detail"]


def test_library_of_another_release_is_told_with_the_symbol_that_it_lacks(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    """Wrapper and library of different releases: the boards cannot be used, and those beside them are read."""
    library = build_fake_amdsmi(tmp_path / "rocm", missing=("amdsmi_get_gpu_enumeration_info",))
    with node_of(tmp_path, FakeAmdSmi(tmp_path / "amdsmi.scenario", library), fake_nvml) as node:
        found = told(node, "driver.version_mismatch", "node")

        assert "amdsmi_get_gpu_enumeration_info" in found["message"]
        assert found["fault_class"] == "configuration"
        status = node.status()
        assert status["verdict"] == "failed"
        # Jobs need no wrapper of the agent's: as where the library is missing, this closes no gate.
        assert {line.reach for line in node.state_file().devices} == {"soft"}
        assert [device["verdict"] for device in status["devices"] if device["vendor"] == "nvidia"] == ["ok"] * 8


def test_boards_without_the_library_are_told_with_what_to_install(tmp_path: Path) -> None:
    """The kernel lists AMD boards and nothing can read them: that is never ok."""
    empty = tmp_path / "rocm" / "lib"
    empty.mkdir(parents=True)
    with node_of(tmp_path, FakeAmdSmi(tmp_path / "amdsmi.scenario", empty / "libamd_smi.so")) as node:
        found = told(node, "driver.missing", "node")

        assert "install ROCm's amd-smi-lib" in found["message"]
        assert f"{pci(0)} (bound to amdgpu)" in found["message"]
        assert node.status()["verdict"] == "failed"


def test_boards_without_their_driver_are_told(tmp_path: Path, fake_amdsmi: FakeAmdSmi) -> None:
    """The library says that no driver is loaded, the kernel lists the boards: the node is not ok."""
    fake_amdsmi.fail("amdsmi_init", AmdSmiStatus.DRIVER_NOT_LOADED)
    with node_of(tmp_path, fake_amdsmi, without="sys/module") as node:
        found = told(node, "driver.missing", "node")

        assert "modprobe amdgpu" in found["message"]
        assert node.status()["verdict"] == "failed"


def test_a_driver_that_is_at_work_and_that_its_library_does_not_find_is_none_to_install(
    tmp_path: Path, fake_amdsmi: FakeAmdSmi
) -> None:
    """As where it is built into the kernel: nobody asked it, and it was a fault that closed the gate at once."""
    fake_amdsmi.fail("amdsmi_init", AmdSmiStatus.DRIVER_NOT_LOADED)
    with node_of(tmp_path, fake_amdsmi) as node:
        found = told(node, "reader.failed", "node")

        assert "the AMD kernel driver is not loaded" in found["message"]
        assert "ask" in found["message"]  # its library did not, or may not open its devices here
        assert node.status()["verdict"] == "unknown"
        assert node.state_file().hard is False


def test_driver_that_lists_no_board_is_told(tmp_path: Path, fake_amdsmi: FakeAmdSmi) -> None:
    """A loaded driver with an empty list, as after boards that failed to start, is a fault of the node."""
    with node_of(tmp_path, fake_amdsmi.set("count", 0)) as node:
        found = told(node, "driver.no_devices", "node")

        assert (found["action"], node.status()["verdict"]) == ("reboot", "failed")
