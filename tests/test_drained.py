"""A board that ``nvidia-smi drain`` keeps new processes from: its driver does not list it, and it is not lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.gpu_node import GpuNode
from fakes.host_tree import pci_device, virtual_machine, write_tree
from fakes.nvml.scenario import FakeNvml, NvmlReturn, pci
from fakes.reader import ReaderProcess
from fakes.views import at, fault, gpu, judge, of
from test_split_boards import Driver, backend_of
from test_withheld import BOARDS, in_a_job, tree

from nodevet.checks.backends.nvidia import nvml
from nodevet.checks.core.model import NODE, Device, DeviceKind, Outcome, State
from nodevet.checks.engine.verdicts import verdicts_of

NODE_ALONE = Device(id=NODE, kind=DeviceKind.NODE, vendor="v", model="m", backend="host")
QUERY = "nvmlDeviceQueryDrainState"


def drain(machine: FakeNvml, *slots: int) -> None:
    """Take the boards in *slots* out of the count, as ``nvidia-smi drain -m 1`` does for processes that start later."""
    for slot in slots:
        machine.set(f"drained.{slot}", 1).vanish(slot)


def listed(machine: FakeNvml, root: Path, *skipped: int) -> dict[str | None, Device]:
    """Return what the NVIDIA reader lists, by address, where it leaves the boards in the slots *skipped* alone."""
    with ReaderProcess(machine.environment, root=str(root), skip=tuple(map(pci, skipped))) as reader:
        return {device.pci: device for device in reader.ready().devices}


@pytest.fixture
def machine(fake_nvml: FakeNvml, tmp_path: Path) -> FakeNvml:
    """A machine of four boards, each with its page."""
    tree(tmp_path, 0, 1, 2, 3)
    return fake_nvml.set("count", BOARDS)


@pytest.mark.parametrize("slots", [(2,), (1, 3), (0, 1, 2, 3)], ids=["one", "two", "all"])
def test_the_reader_lists_drained_boards_as_such(machine: FakeNvml, tmp_path: Path, slots: tuple[int, ...]) -> None:
    """The pages of the kernel driver name them; also where NVML counts no board at all."""
    drain(machine, *slots)
    found = listed(machine, tmp_path)
    assert found.keys() == {pci(slot) for slot in range(BOARDS)}
    assert {place for place, device in found.items() if device.drained} == {pci(slot) for slot in slots}


def test_a_board_beside_a_drained_one_that_fell_off_the_bus_is_not_drained(machine: FakeNvml, tmp_path: Path) -> None:
    """Only the board that the driver calls drained is."""
    drain(machine, 2)
    machine.vanish(0)
    found = listed(machine, tmp_path)
    assert found.keys() == {pci(1), pci(2), pci(3)}
    assert [place for place, device in found.items() if device.drained] == [pci(2)]


@pytest.mark.parametrize("code", [NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND, NvmlReturn.UNKNOWN])
def test_a_driver_that_refuses_the_question_drains_nothing(machine: FakeNvml, tmp_path: Path, code: NvmlReturn) -> None:
    """Then an unlisted board is what it was before: not listed."""
    drain(machine, 2)
    machine.fail(QUERY, code=code)
    assert listed(machine, tmp_path).keys() == {pci(0), pci(1), pci(3)}


@pytest.mark.parametrize(
    ("count", "says", "expected"),
    [
        (3, {2: 1}, {2}),
        (2, {2: 1}, {2}),
        (3, {}, set()),
        (3, None, set()),
        (0, dict.fromkeys(range(4), 1), {0, 1, 2, 3}),
    ],
    ids=["one", "one_beside_a_loss", "a_loss", "refused", "all"],
)
def test_the_driver_alone_says_which_boards_are_drained(
    tmp_path: Path, count: int, says: dict[int, int] | None, expected: set[int]
) -> None:
    """Of every address that the kernel driver has, where it counts fewer boards."""

    class Draining(Driver):
        def nvmlDeviceQueryDrainState(self, place: Any) -> int:  # noqa: N802 (NVML's name)
            slot = next(slot for slot in range(BOARDS) if pci(slot) == f"{place.domain:04x}:{place.bus:02x}:00.0")
            if says is None:
                self._refuse(nvml.NOT_SUPPORTED)
            return (says or {}).get(slot, 0)

    tree(tmp_path, 0, 1, 2, 3)
    driver = Draining()
    driver.answers["nvmlDeviceGetCount"] = count
    found = backend_of(driver, tmp_path).devices()
    assert {board.pci for board in found if board.drained} == {pci(slot) for slot in expected}


def test_a_board_that_is_left_alone_is_not_asked_about_either(machine: FakeNvml, tmp_path: Path) -> None:
    """Any call about it may hang."""
    drain(machine, 2, 3)
    machine.vanish(1)
    found = listed(machine, tmp_path, 1, 3)
    assert {place for place, device in found.items() if device.drained} == {pci(2)}


def test_a_drained_board_is_told_and_is_neither_missing_nor_counted_short() -> None:
    """It is a warning, which closes no gate; one beside it is missing as before."""
    before, other = gpu("GPU-before", "0000:3b:00.0"), gpu("GPU-other", "0000:4b:00.0")
    view = msgspec.structs.replace(in_a_job(remembered=(before, other)), drained=(before,))
    found = judge("inventory", view, expected_accelerators=3)
    assert of(found, "device.missing", before.id).outcome is Outcome.SKIPPED
    assert of(found, "device.missing", other.id).outcome is Outcome.FAIL
    drained = of(found, "inventory.drained", NODE)
    assert drained.outcome is Outcome.WARN
    assert "0000:3b:00.0" in drained.message
    assert of(found, "inventory.count", NODE).outcome is Outcome.PASS
    in_use = judge("inventory", msgspec.structs.replace(view, drained=()), expected_accelerators=3)
    assert of(in_use, "inventory.drained", NODE).outcome is Outcome.PASS
    assert of(in_use, "inventory.count", NODE).outcome is Outcome.FAIL


@pytest.mark.parametrize("way", ["drained", "excluded"])
def test_a_board_out_of_service_makes_no_node_unknown(way: str) -> None:
    """Nothing can be measured of it: the warning says so, and once a person acknowledged that the node is ok."""
    before = gpu("GPU-before", "0000:3b:00.0")
    view = in_a_job(remembered=(before,))
    if way == "drained":
        view = msgspec.structs.replace(view, drained=(before,))
    else:
        node = msgspec.structs.replace(view.devices[-1], excluded=("0000:3b:00.0",))
        view = msgspec.structs.replace(view, devices=(*view.devices[:-1], node))
    known = {entry.id: entry for entry in (before, NODE_ALONE)}
    on_node = fault("test.node", Outcome.PASS, device=NODE, evidence_time=at())
    found = (*(entry for entry in judge("inventory", view) if entry.device == before.id), on_node)
    verdicts, of_node = verdicts_of(view, known, (), found, partial=False)
    assert of_node.state is State.OK
    assert verdicts[before.id].state is State.UNKNOWN
    assert "not listed, because" in verdicts[before.id].reason
    in_use = in_a_job(remembered=(before,))
    assert verdicts_of(in_use, known, (), found, partial=False)[1].state is State.UNKNOWN


def test_an_agent_tells_a_drained_board_and_reads_it_again_afterwards(tmp_path: Path, fake_nvml_library: Path) -> None:
    """A start of the agent between: only processes that start later are kept from the board."""
    files = virtual_machine()
    for slot in range(8):
        files |= pci_device(pci(slot), "0x10de", "0x2330", "0x030200", driver="nvidia")
        files[f"proc/driver/nvidia/gpus/{pci(slot)}/information"] = (
            f"Model: \t NVIDIA H100 80GB HBM3\nGPU UUID: \t {FakeNvml.uuid(slot)}\nDevice Minor: \t {slot}\n"
        )
    node = GpuNode(tmp_path, fake_nvml_library, root=str(write_tree(tmp_path / "root", files)))
    with node:
        node.wait_for_verdict("ok", 20.0)
        node.stop()
        drain(node.machine, 3)
        node.start()
        status = node.wait_for_verdict("degraded", 20.0)
        found = [entry for entry in status["findings"] if entry["code"] == "inventory.drained"]
        assert [entry["outcome"] for entry in found] == ["warn"]
        assert f"nvidia-smi drain -p {pci(3)} -m 0" in found[0]["message"]
        assert not [entry for entry in status["findings"] if entry["outcome"] == "fail"]
        drained = next(device for device in status["devices"] if device["id"] == FakeNvml.uuid(3))
        assert drained["reason"] == "not listed, because nvidia-smi drain took it out of service"
        assert not node.state_file().hard
        node.machine.set("drained.3", 0).set("present.3", 1)
        status = node.wait_for_verdict("ok", 30.0)
        assert node.verdicts(status) == dict.fromkeys(range(8), "ok")
