"""Boards that look alike: none of them that answers is lost, and none costs the others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi
from fakes.amdsmi.scenario import pci as amd_pci
from fakes.gpu_node import FakeNode
from fakes.host_tree import virtual_machine, write_tree
from fakes.machine import FakeMachine
from fakes.nvml.scenario import NvmlReturn
from test_split_boards import PROGRESS, Driver, backend_of

from nodevet.checks.backends.amd import amdsmi
from nodevet.checks.backends.amd.backend import AmdBackend
from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.model import FailureKind

BOARDS = 8
NO_NUMBER = "00ff74a1-0000-1000-8000-000000000000"
"""The UUID that AMD SMI makes for a chip without a number."""


def failures(status: Mapping[str, Any]) -> list[str]:
    """Return what is told as failed."""
    return [f"{entry['code']} {entry['message']}" for entry in status["findings"] if entry["outcome"] == "fail"]


def read(status: Mapping[str, Any]) -> int:
    """Return how many accelerators are judged ok."""
    return sum((entry["kind"], entry["verdict"]) == ("accelerator", "ok") for entry in status["devices"])


def tree(directory: Path, machine: FakeMachine) -> str:
    """Return a root whose PCI bus shows the boards of *machine*."""
    return str(write_tree(directory / "root", virtual_machine() | machine.host_files()))


class RefusedError(Exception):
    """The error of AMD SMI with its code."""

    def get_error_code(self) -> int:
        """Return the code."""
        return int(self.args[0])


class AmdDriver:
    """Boards that tell only their address and their UUID, which are in ``boards``."""

    def __init__(self, *boards: tuple[str, str]) -> None:
        """Begin with *boards*."""
        self.boards = list(boards)
        self.refused: dict[int, int] = {}
        self.AmdSmiLibraryException = RefusedError

    def amdsmi_get_processor_handles(self) -> list[int]:
        """Return a handle for each board."""
        return list(range(len(self.boards)))

    def amdsmi_get_gpu_device_bdf(self, handle: int) -> str:
        """Return the address of a board. Raises what a handle without a board does."""
        if handle in self.refused:
            raise RefusedError(self.refused[handle])
        return self.boards[handle][0]

    def amdsmi_get_gpu_device_uuid(self, handle: int) -> str:
        """Return the UUID of a board."""
        return self.boards[handle][1]


def amd_backend(driver: AmdDriver, root: Path) -> AmdBackend:
    """Return the backend of *driver*, in a tree that shows nothing."""
    context: Any = SimpleNamespace(root=str(root), options={}, progress=PROGRESS, note=lambda *_a, **_f: None)
    return AmdBackend(context, Tree(str(root), PROGRESS), amdsmi.Library(driver, PROGRESS), None)


@pytest.mark.parametrize("alike", [{"uuid.3": FakeAmdSmi.uuid(2)}, {"uuid": NO_NUMBER}], ids=["two", "all"])
def test_amd_boards_of_one_uuid_are_all_read(
    tmp_path: Path, fake_amdsmi_library: Path, alike: dict[str, float | str]
) -> None:
    """AMD SMI makes the UUID of the number of the chip: if that is 0, all boards of one kind have the same UUID."""
    machine = FakeAmdSmi(tmp_path / "amdsmi.scenario", fake_amdsmi_library)
    machine.update(alike)
    with FakeNode(tmp_path, machine, root=tree(tmp_path, machine)) as node:
        status = node.wait_for_verdict("ok", 20.0)
        assert (failures(status), node.state_file().hard, read(status)) == ([], False, BOARDS)


def test_amd_boards_of_one_uuid_keep_their_ids_in_each_round(tmp_path: Path) -> None:
    """The first board has the UUID as its id, the others their addresses."""
    backend = amd_backend(AmdDriver((amd_pci(0), "U"), (amd_pci(1), "U"), (amd_pci(2), "U")), tmp_path)
    for _ in range(2):
        devices = backend.devices()
        assert [device.id for device in devices] == ["U", amd_pci(1), amd_pci(2)]
        assert [device.pci for device in devices] == [amd_pci(slot) for slot in range(3)]


def test_amd_boards_of_one_uuid_say_so_until_they_have_their_own(tmp_path: Path) -> None:
    """No load can choose either of them by the UUID that both have."""
    driver = AmdDriver(*((amd_pci(slot), f"U{slot}") for slot in range(3)))
    backend = amd_backend(driver, tmp_path)
    assert not any(device.shares_uuid for device in backend.devices())
    driver.boards[1] = (amd_pci(1), "U0")
    for _ in range(2):
        assert [device.shares_uuid for device in backend.devices()] == [True, True, False]
    driver.boards[1] = (amd_pci(1), "U1")
    devices = backend.devices()
    assert [device.id for device in devices] == ["U0", "U1", "U2"]
    assert not any(device.shares_uuid for device in devices)


def test_boards_are_asked_for_their_links_again_when_others_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board has links to those that are listed: what was read while others were missing is not whole."""
    driver = AmdDriver(*((amd_pci(slot), f"U{slot}") for slot in range(3)))
    backend, asked = amd_backend(driver, tmp_path), list[int]()
    identified = backend._identified

    def note(index: int, *rest: Any) -> Any:
        asked.append(index)
        return identified(index, *rest)

    monkeypatch.setattr(backend, "_identified", note)
    for count, expected in ((3, [0, 1, 2]), (3, []), (5, [0, 1, 2, 3, 4]), (5, [])):
        driver.boards = [(amd_pci(slot), f"U{slot}") for slot in range(count)]
        asked.clear()
        assert len(backend.devices()) == count
        assert asked == expected


def test_a_part_that_is_skipped_keeps_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board of four parts, of which the second one hung: it is not touched, and the others are not called by it."""
    backend = amd_backend(AmdDriver(*((amd_pci(0), "U") for _ in range(4))), tmp_path)
    every = ["U", "U/partition-1", "U/partition-2", "U/partition-3"]
    assert [device.id for device in backend.devices()] == every
    backend, asked = amd_backend(AmdDriver(*((amd_pci(0), "U") for _ in range(4))), tmp_path), list[int]()
    backend._skipped = frozenset({"U/partition-2"})
    identified = backend._identified

    def note(index: int, *rest: Any) -> Any:
        asked.append(index)
        return identified(index, *rest)

    monkeypatch.setattr(backend, "_identified", note)
    for _ in range(2):
        assert [device.id for device in backend.devices()] == [name for name in every if name != "U/partition-2"]
    assert 2 not in asked


class NvidiaDriver(Driver):
    """Boards that are counted, and of which some do not open."""

    def __init__(self, count: int, refused: dict[int, int]) -> None:
        """Begin with *count* boards and the codes of those that are *refused*."""
        super().__init__()
        self.answers["nvmlDeviceGetCount"] = count
        self.refused = refused

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - the name of NVML
        """Return the index as the handle."""
        if index in self.refused:
            raise pynvml.NVMLError(self.refused[index])
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        """Return a UUID for each board."""
        return f"GPU-{handle}"


@pytest.mark.parametrize("code", [NvmlReturn.DRIVER_NOT_LOADED, NvmlReturn.LIB_RM_VERSION_MISMATCH])
@pytest.mark.parametrize("board", [0, 2])
def test_one_board_that_denies_the_driver_costs_itself(tmp_path: Path, code: int, board: int) -> None:
    """NVML has started and counts three boards, of which two answer: the driver is there."""
    backend = backend_of(NvidiaDriver(3, {board: code}), tmp_path)
    devices = backend.devices()
    assert len(devices) == 3
    failed = [device for device in devices if not (device.uuid or "").startswith("GPU-")]
    assert len(failed) == 1
    with pytest.raises(BackendError) as raised:
        backend.read("fast", failed[0])
    assert raised.value.failure.kind is FailureKind.ERROR


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (NvmlReturn.DRIVER_NOT_LOADED, FailureKind.NO_DRIVER),
        (NvmlReturn.LIB_RM_VERSION_MISMATCH, FailureKind.VERSION_MISMATCH),
    ],
)
def test_all_boards_that_deny_the_driver_are_believed(tmp_path: Path, code: int, kind: FailureKind) -> None:
    """No board answers, and each gives the same reason."""
    with pytest.raises(BackendError) as raised:
        backend_of(NvidiaDriver(2, dict.fromkeys(range(2), code)), tmp_path).devices()
    assert raised.value.failure.kind is kind


def test_one_amd_board_that_denies_the_driver_costs_itself(tmp_path: Path) -> None:
    """AMD SMI lists two handles, of which one answers; if none does, the driver is not loaded."""
    driver = AmdDriver((amd_pci(0), "U0"), (amd_pci(1), "U1"))
    driver.refused = {0: AmdSmiStatus.DRIVER_NOT_LOADED}
    assert [device.id for device in amd_backend(driver, tmp_path).devices()] == ["amd-0", "U1"]
    driver.refused = dict.fromkeys(range(2), int(AmdSmiStatus.DRIVER_NOT_LOADED))
    with pytest.raises(BackendError) as raised:
        amd_backend(driver, tmp_path).devices()
    assert raised.value.failure.kind is FailureKind.NO_DRIVER


@pytest.mark.parametrize(("count", "is_read"), [(1024, True), (1025, False), (2**32 - 1, False), (-1, False)])
def test_a_count_that_no_machine_has_is_an_error(tmp_path: Path, count: int, is_read: bool) -> None:
    """NVML may count 4,294,967,295 boards: no list of that length is built."""
    backend = backend_of(NvidiaDriver(count, {}), tmp_path)
    if is_read:
        assert len(backend.devices()) == count
        return
    with pytest.raises(BackendError, match=f"{count} boards") as raised:
        backend.devices()
    assert (raised.value.failure.kind, raised.value.failure.of_driver) == (FailureKind.ERROR, False)


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_silent_board_is_none_that_is_gone(tmp_path: Path, vendor: str) -> None:
    """The board at index 1 went, the next one has its index now and does not answer for one list."""
    if vendor == "amd":
        amd = AmdDriver(*((amd_pci(slot), f"U{slot}") for slot in range(3)))
        backend: Any = amd_backend(amd, tmp_path)
        backend.devices()
        del amd.boards[1]
        backend.devices()
        amd.refused[1] = int(AmdSmiStatus.BUSY)
        assert [device.id for device in backend.devices()] == ["U0", "U2"]
        return
    nvidia = NvidiaDriver(3, {})
    names = {0: "GPU-0", 1: "GPU-1", 2: "GPU-2"}
    nvidia.nvmlDeviceGetUUID = lambda handle: names[handle]  # type: ignore[method-assign]
    backend = backend_of(nvidia, tmp_path)
    backend.devices()
    nvidia.answers["nvmlDeviceGetCount"], names[1] = 2, "GPU-2"
    backend.devices()
    nvidia.refused[1] = int(NvmlReturn.UNKNOWN)
    assert [device.id for device in backend.devices()] == ["GPU-0", "GPU-2"]
