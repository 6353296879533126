"""A board of which the PCI address cannot be read, or is wrong for once: it is read, and no board is lost over that."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.amdsmi.scenario import FakeAmdSmi
from fakes.gpu_node import FakeNode, GpuNode
from fakes.host_tree import virtual_machine, write_tree
from fakes.nvml.scenario import FakeNvml, NvmlReturn, pci
from fakes.views import at, bare_board, gpu, healthy, judge, of
from test_split_boards import Driver, backend_of
from test_withheld import BOARDS, tree

from nodevet.checks.core.model import Outcome
from nodevet.checks.engine.view import KnownDevices, Seen

SYMBOL = "nvmlDeviceGetPciInfo_v3"


@pytest.mark.parametrize("code", [NvmlReturn.UNKNOWN, NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND])
@pytest.mark.parametrize("slots", [(3,), tuple(range(8))], ids=["one", "all"])
def test_an_address_that_nvml_does_not_tell_makes_no_board_lost(
    tmp_path: Path, fake_nvml_library: Path, code: NvmlReturn, slots: tuple[int, ...]
) -> None:
    """All eight boards are read each round. Without pages none is opened by its address: then the node is unknown."""
    files = virtual_machine() | FakeNvml(tmp_path / "unused", fake_nvml_library).host_files()
    node = GpuNode(tmp_path, fake_nvml_library, root=str(write_tree(tmp_path / "root", files)))
    for slot in slots:
        node.machine.fail(SYMBOL, code, slot)
    with node:
        status = node.wait_for_verdict("unknown", 20.0)
        assert not [entry for entry in status["findings"] if entry["outcome"] == "fail"]
        assert not node.state_file().hard
        node.machine.clear()
        node.wait_for_verdict("ok", 30.0)


def test_the_address_under_which_a_board_was_opened_is_its_address(tmp_path: Path) -> None:
    """NVML found the board there, whatever it tells of the address afterwards."""
    tree(tmp_path, 0, 1, 2, 3)
    driver = Driver()
    driver.answers |= {"nvmlDeviceGetCount": BOARDS, "nvmlDeviceGetHandleByPciBusId": 1}
    boards = backend_of(driver, tmp_path).devices()
    assert {board.pci for board in boards} <= {pci(slot) for slot in range(BOARDS)}


PAGE = "0000:40:00.0"
OTHER = "0000:50:00.0"
THIRD = "0000:60:00.0"
OFF_BUS = "0001:40:00.0"


@pytest.mark.parametrize(
    ("place", "former", "outcome"),
    [
        (None, (), Outcome.UNMEASURED),
        (None, (PAGE,), Outcome.UNMEASURED),
        (None, (OTHER,), Outcome.FAIL),
        (OFF_BUS, (PAGE, OFF_BUS), Outcome.UNMEASURED),
        (OFF_BUS, (OTHER, OFF_BUS), Outcome.FAIL),
        (OFF_BUS, (OFF_BUS,), Outcome.FAIL),  # such as a card of a class that is no accelerator
        (OTHER, (OTHER,), Outcome.FAIL),
        (OTHER, (PAGE, OTHER), Outcome.FAIL),  # it has moved, and the page is another board's
    ],
)
def test_a_page_is_lost_unless_a_listed_board_may_be_its_own(
    place: str | None, former: tuple[str, ...], outcome: Outcome
) -> None:
    """A board whose address is not known now stands for the page where it was, or for any if it never had one."""
    page, board = bare_board(PAGE, "nvidia"), msgspec.structs.replace(gpu("GPU-listed"), pci=place)
    view = msgspec.structs.replace(
        healthy(),
        devices=(board, page),
        on_bus=(page, bare_board(OTHER, "nvidia")),
        memory=KnownDevices({board.id: Seen(board, at(-60), at(), slots=former)}),
    )
    found = of(judge("inventory", view), "device.lost", page.id)
    assert found.outcome is outcome
    assert found.gates is (outcome is Outcome.FAIL)
    assert found.required is (outcome is Outcome.UNMEASURED)


def judged(first: tuple[str, ...], second: tuple[str, ...], **changes: Any) -> Outcome:
    """Return what is said of the page if two boards are listed at one address; each had some addresses before."""
    page, boards = bare_board(PAGE, "nvidia"), (gpu("GPU-1", OTHER), gpu("GPU-2", OTHER, **changes))
    seen = {board.id: Seen(board, at(-60), at(), slots=had) for board, had in zip(boards, (first, second), strict=True)}
    bus = (page, bare_board(OTHER, "nvidia"), bare_board(THIRD, "nvidia"))
    view = msgspec.structs.replace(healthy(), devices=(*boards, page), on_bus=bus, memory=KnownDevices(seen))
    return of(judge("inventory", view), "device.lost", page.id).outcome


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        ((OTHER,), (PAGE, OTHER), Outcome.UNMEASURED),
        ((PAGE, OTHER), (OTHER,), Outcome.UNMEASURED),
        ((OTHER,), (OTHER,), Outcome.UNMEASURED),  # both were never seen elsewhere, and one of them must be
        ((OTHER,), (THIRD, OTHER), Outcome.FAIL),
    ],
    ids=["known", "known, listed first", "new", "of another page"],
)
def test_of_two_boards_at_one_address_one_may_be_that_of_a_page(
    first: tuple[str, ...], second: tuple[str, ...], outcome: Outcome
) -> None:
    """As many boards answer as the bus shows: the address of one is wrong."""
    assert judged(first, second) is outcome


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        ((OTHER,), (PAGE, OTHER), Outcome.UNMEASURED),
        ((OTHER,), (OTHER,), Outcome.FAIL),
        ((PAGE, OTHER), (PAGE, OTHER), Outcome.FAIL),
    ],
    ids=["known", "a part", "moved"],
)
def test_a_board_that_seems_a_part_may_be_that_of_a_page(
    first: tuple[str, ...], second: tuple[str, ...], outcome: Outcome
) -> None:
    """AMD SMI lists the parts of a board at its address, so a board with a wrong address looks like one of them."""
    assert judged(first, second, parent="GPU-1") is outcome


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_two_boards_that_report_one_address_lose_none(
    tmp_path: Path, fake_nvml_library: Path, fake_amdsmi_library: Path, vendor: str
) -> None:
    """Nobody shows the pages of the driver. All boards answer under their UUIDs."""
    machine: FakeNvml | FakeAmdSmi = FakeNvml(tmp_path / "nvml.scenario", fake_nvml_library)
    if vendor == "amd":
        machine = FakeAmdSmi(tmp_path / "amdsmi.scenario", fake_amdsmi_library)
    files = virtual_machine() | machine.host_files()
    with FakeNode(tmp_path, machine, root=str(write_tree(tmp_path / "root", files))) as node:
        node.wait_for_verdict("ok", 20.0)
        machine.set("pci_bus.3", int(machine.pci(2).split(":")[1], 16))
        status = node.wait_for(lambda told: said(told, "possibly the same board"), 20.0, "the page was not told")
        assert not [entry for entry in status["findings"] if entry["outcome"] == "fail"]
        assert not node.state_file().hard
        machine.clear()
        node.wait_for_verdict("ok", 30.0)


def test_an_amd_board_that_tells_another_address_for_once_is_not_lost(tmp_path: Path, fake_amdsmi: FakeAmdSmi) -> None:
    """It answers all the time under its UUID, and the page where it was is its own."""
    files = virtual_machine() | fake_amdsmi.host_files()
    node = FakeNode(tmp_path, fake_amdsmi, root=str(write_tree(tmp_path / "root", files)))
    with node:
        node.wait_for_verdict("ok", 20.0)
        fake_amdsmi.set("pci_bus.3", 0xF0)
        for pid in node.readers():
            os.kill(pid, signal.SIGKILL)
        status = node.wait_for(lambda told: said(told, "possibly the same board"), 20.0, "the page was not told")
        assert not [entry for entry in status["findings"] if entry["outcome"] == "fail"]
        assert not node.state_file().hard
        fake_amdsmi.clear()
        node.wait_for_verdict("ok", 30.0)


def said(status: Mapping[str, Any], words: str) -> bool:
    """Return whether a finding of *status* has these *words*."""
    return any(words in entry["message"] for entry in status["findings"])
