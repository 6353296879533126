"""A command that leaves the address or UUID of a device out for one run: its name says which board it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.gpu_node import FakeNode
from fakes.host_tree import virtual_machine, write_tree
from fakes.nvml.scenario import FakeNvml
from fakes.site_tool import SettableTool, device
from test_listed_twice import SLOT, Desk, of_tool
from test_renamed_devices import Site

from nodevet.checks.core.model import Outcome, Snapshot

IDENTIFIERS: dict[str, Callable[[int], str]] = {
    "pci": lambda number: f"0000:9{number}:00.0",
    "uuid": lambda number: f"ACME-7f3a-000{number}",
}
COMMAND = """
[[agent.backends.commands]]
name = "acme"
argv = ["{program}"]
"""


def missing_of(snapshot: Snapshot) -> list[str]:
    """Return what fails, and each device that is missing, proven or not."""
    bad = (Outcome.FAIL, Outcome.UNMEASURED)
    return [
        found.message
        for found in snapshot.findings
        if found.outcome is Outcome.FAIL or (found.code == "device.missing" and found.outcome in bad)
    ]


def boards(key: str, silent: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Return three boards that tell their identifier *key*, but for those that are *silent*."""
    return [device(f"a{n}", **({} if n in silent else {key: IDENTIFIERS[key](n)})) for n in range(3)]


@pytest.mark.parametrize("silent", [(0,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("key", IDENTIFIERS)
def test_an_identifier_that_is_not_told_for_once_makes_no_board_missing(
    tmp_path: Path, key: str, silent: tuple[int, ...]
) -> None:
    """As a serial that is not told for once: one value that a tool could not read costs itself."""
    site = Site(tmp_path)
    for told in (boards(key), boards(key, silent), boards(key)):
        for _ in range(3):
            snapshot = site.round(*told)
            assert not missing_of(snapshot), missing_of(snapshot)


def test_an_address_that_is_told_from_now_on_makes_no_board_missing(tmp_path: Path) -> None:
    """The documentation asks for it: the first board whose address is found goes on under the name of before."""
    site = Site(tmp_path)
    for told in (boards("pci", (0, 1, 2)), boards("pci", (1, 2))):
        for _ in range(3):
            snapshot = site.round(*told)
            assert not missing_of(snapshot), missing_of(snapshot)


def test_a_node_closes_no_gate_for_an_address_that_a_command_left_out_once(
    tmp_path: Path, fake_nvml_library: Path
) -> None:
    """The real agent beside a healthy driver: no fault before, meanwhile or afterwards."""
    machine, tool = FakeNvml(tmp_path / "nvml.scenario", fake_nvml_library), SettableTool(tmp_path)
    tool.print(*boards("pci"))
    root = write_tree(tmp_path / "root", virtual_machine() | machine.host_files())
    with FakeNode(tmp_path, machine, root=str(root), more=COMMAND.format(program=tool.program)) as node:
        node.wait_for_verdict("ok")
        tool.print(*boards("pci", (0,)))
        with pytest.raises(AssertionError):
            node.wait_for_finding("device.missing", 6.0)
        tool.print(*boards("pci"))
        node.wait_for_verdict("ok")


def test_a_command_that_begins_to_tell_an_address_that_another_reader_lists_makes_none_missing() -> None:
    """Its board goes on under its name, and is told as listed twice."""
    before, after = of_tool("acme:a"), of_tool("acme:a", pci=SLOT)
    desk = Desk()
    for _ in range(3):
        desk.present(before)
        desk.read(before)
        assert not desk.round().snapshot.episodes
    rounds = []
    for _ in range(3):
        desk.present(after)
        rounds.append(desk.round())
    done = rounds[-1]
    assert not missing_of(done.snapshot), missing_of(done.snapshot)


def test_another_card_under_the_same_name_has_an_id_of_its_own(tmp_path: Path) -> None:
    """A card that was replaced tells another UUID: it is not the one of before."""
    site = Site(tmp_path)
    site.round(device("a0", uuid="ACME-7f3a-0001"))
    site.round(device("a0", uuid="ACME-7f3a-0002"))
    snapshot = site.round(device("a0", uuid="ACME-7f3a-0002"))
    assert "ACME-7f3a-0002" in {board.id for board in snapshot.devices}
