"""A board of which the PCI address cannot be read, or is wrong for once: it is read, and no board is lost over that."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from fakes.gpu_node import GpuNode
from fakes.host_tree import virtual_machine, write_tree
from fakes.nvml.scenario import FakeNvml, NvmlReturn, pci
from fakes.views import bare_board, gpu, healthy, judge, of, reader
from test_split_boards import Driver, backend_of
from test_withheld import BOARDS, tree

from nodevet.checks.core.model import Device, Outcome
from nodevet.checks.engine.view import View

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


def out_of_place(page: Device, board: Device, *on_bus: Device) -> View:
    """Return a node whose driver lists *board*, while the bus shows *page* too, and those *on_bus*."""
    return msgspec.structs.replace(
        healthy(), devices=(board, page), on_bus=(page, *on_bus), readers=(reader("host"), reader("nvidia"))
    )


@pytest.mark.parametrize(
    ("place", "is_on_bus", "outcome"),
    [
        (None, False, Outcome.UNMEASURED),
        ("0001:40:00.0", False, Outcome.UNMEASURED),
        ("0000:50:00.0", True, Outcome.FAIL),
    ],
    ids=["no_address", "another_address", "its_own_address"],
)
def test_a_page_is_lost_only_where_each_listed_board_has_its_own(
    place: str | None, is_on_bus: bool, outcome: Outcome
) -> None:
    """One that is listed without a page of its own may be the board of this page."""
    page = bare_board("0000:40:00.0", "nvidia")
    board = msgspec.structs.replace(gpu("GPU-listed"), pci=place)
    own = (bare_board(place, "nvidia"),) if place and is_on_bus else ()
    found = of(judge("inventory", out_of_place(page, board, *own)), "device.lost", page.id)
    assert found.outcome is outcome
    assert found.gates is (outcome is Outcome.FAIL)
