"""Single courses of boards over boots and sources, on the model of test_boards_machine.py."""

from __future__ import annotations

import pytest
from test_boards_machine import LATE_SECONDS, Board, Node, hard

from nodevet.checks.core.model import DeviceKind, EpisodeState, Outcome, Snapshot, State


def begun(kind: str, count: int = 2) -> Node:
    """Return a healthy node of *kind* after some rounds."""
    node = Node(kind, count)
    for _ in range(3):
        assert node.round().verdict.state is State.OK
    return node


def other_hardware(node: Node) -> None:
    """Boot *node* with as many other boards at other addresses."""
    node.boards = [Board(next(node.numbers), board.slot + 7) for board in node.boards]
    node.restart(boots=True)


def names(snapshot: Snapshot) -> set[str]:
    """Return the whole boards on the page of *snapshot*."""
    return {device.id for device in snapshot.devices if device.kind is DeviceKind.ACCELERATOR and not device.parent}


def quiet(snapshot: Snapshot) -> bool:
    """Return whether nothing has failed in *snapshot*."""
    return not any(entry.outcome is Outcome.FAIL for entry in snapshot.episodes)


def unknown(snapshot: Snapshot) -> set[str]:
    """Return the devices that are missing without proof."""
    missing = (entry for entry in snapshot.episodes if entry.key.code == "device.missing")
    return {entry.key.device for entry in missing if entry.outcome is Outcome.UNMEASURED}


@pytest.mark.parametrize("kind", ["nvidia", "nvidia split", "amd split"])
@pytest.mark.parametrize("bus_later", [True, False])
def test_former_boards_and_their_parts_leave_the_page_with_their_hardware(kind: str, bus_later: bool) -> None:
    """The node is ``ok`` at once, and no device of the former hardware is left."""
    node = begun(kind)
    other_hardware(node)
    assert not bus_later or quiet(node.round(bus=False))
    snapshot = [node.round() for _ in range(2)][-1]
    assert (names(snapshot), snapshot.verdict.state) == ({"GPU-2", "GPU-3"}, State.OK)
    assert snapshot.episodes == ()
    assert {device.parent for device in snapshot.devices} <= {None, "GPU-2", "GPU-3"}


@pytest.mark.parametrize("bus", [True, False])
def test_boards_that_their_driver_takes_one_by_one_at_other_addresses_are_awaited(bus: bool) -> None:
    """The first list has one of two, whether the bus was read before it or not."""
    node = begun("amd")
    other_hardware(node)
    node.seconds = 30.0
    assert quiet(node.round(first=1, bus=bus))
    assert quiet(node.round(first=1))
    assert node.round().episodes == ()


def test_a_board_that_is_replaced_in_its_place_takes_no_second_place() -> None:
    """One of two was lost before the boot, and the other one has another serial after it: the first stays lost."""
    node = begun("nvidia")
    node.boards[1].lists = node.boards[1].on_bus = False
    assert hard([node.round() for _ in range(2)][-1]) == {"GPU-1"}
    node.boards[0] = Board(next(node.numbers), node.boards[0].slot)
    node.restart(boots=True)
    snapshot = [node.round() for _ in range(3)][-1]
    assert (names(snapshot), hard(snapshot)) == ({"GPU-2", "GPU-1"}, {"GPU-1"})


def test_boards_that_are_known_by_an_address_alone_may_be_the_same() -> None:
    """The buses may have been numbered anew: it is unknown, and a person ends it."""
    node = begun("addresses")
    former = names(node.round())
    other_hardware(node)
    snapshot = [node.round() for _ in range(2)][-1]
    open_now = {entry.key.device: entry.outcome for entry in snapshot.episodes if entry.state is EpisodeState.OPEN}
    assert open_now == dict.fromkeys(former, Outcome.UNMEASURED)
    node.acknowledge(snapshot)
    assert node.round().verdict.state is State.OK


def test_fewer_boards_than_before_are_a_loss() -> None:
    """Which of them is lost cannot be known."""
    node = begun("nvidia", 3)
    node.boards = [Board(next(node.numbers), board.slot + 7) for board in node.boards[:2]]
    node.restart(boots=True)
    assert hard([node.round() for _ in range(3)][-1]) == {"GPU-0", "GPU-1", "GPU-2"}


def test_a_board_that_was_lost_before_a_boot_takes_no_address_from_the_others() -> None:
    """One of two was lost; the other one has another address now, and is not listed yet."""
    node = begun("amd")
    node.boards[1].lists = node.boards[1].on_bus = False
    node.seconds += LATE_SECONDS
    assert hard([node.round() for _ in range(2)][-1]) == {"GPU-1"}
    node.boards[0].slot += 3
    node.restart(boots=True)
    node.seconds = 30.0
    assert hard(node.round(first=0)) == {"GPU-1"}


def test_entries_of_the_bus_that_a_boot_numbers_anew_are_not_lost() -> None:
    """No backend of the vendor is configured: only the bus lists the boards."""
    node = Node("nvidia", 2)
    node.removed = True
    for _ in range(3):
        node.round()
    other_hardware(node)
    snapshot = [node.round() for _ in range(3)][-1]
    assert hard(snapshot) == set()
    assert names(snapshot) == {f"pci-{board.pci}" for board in node.boards}


def test_the_devices_of_a_removed_source_are_one_warning_that_a_person_ends() -> None:
    """Nothing reads them, and a person changed the configuration; put back, they are read as before."""
    node = begun("serials")
    node.removed = True
    node.restart()
    snapshot = [node.round() for _ in range(2)][-1]
    found = {(entry.key.code, entry.outcome) for entry in snapshot.episodes if entry.state is EpisodeState.OPEN}
    assert found == {("inventory.unconfigured", Outcome.WARN)}
    assert (snapshot.verdict.state, snapshot.verdict.hard) == (State.DEGRADED, False)
    node.acknowledge(snapshot)
    assert node.round().verdict.state is State.OK
    node.removed = False
    node.restart()
    assert names([node.round() for _ in range(2)][-1]) == {"acme:0", "acme:1"}


def test_a_board_that_another_source_lists_is_known_by_its_serial() -> None:
    """The other command prints other ids."""
    node = begun("serials")
    node.source = "command.next"
    node.boards[0].slot = 0xF0  # the ids are numbers in the order of addresses
    node.restart()
    snapshot = [node.round() for _ in range(2)][-1]
    assert (names(snapshot), snapshot.verdict.state) == ({"next:0", "next:1"}, State.OK)
    assert {snapshot.names[f"acme:{number}"] for number in range(2)} == {"next:0", "next:1"}
    assert snapshot.names["acme:0"] == "next:1"


def test_a_lost_board_keeps_no_sibling_under_the_former_name_of_its_command() -> None:
    """The siblings go on under the new name; the loss stays unknown."""
    node = begun("names", 3)
    node.boards[2].lists = False
    assert unknown([node.round() for _ in range(2)][-1]) == {"acme:2"}
    node.source = "command.next"
    node.restart()
    snapshot = [node.round() for _ in range(2)][-1]
    assert (names(snapshot), unknown(snapshot)) == ({"next:0", "next:1", "acme:2"}, {"acme:2"})


@pytest.mark.parametrize(("kind", "is_proven"), [("addresses", True), ("serials", False), ("names", False)])
def test_only_the_bus_proves_the_loss_of_a_board_that_a_command_leaves_out(kind: str, is_proven: bool) -> None:
    """The script leaves out a board whose tool was killed; once the bus shows it no longer, it is lost."""
    node = begun(kind, 3)
    node.boards[2].lists = False
    snapshot = [node.round() for _ in range(20)][-1]
    assert (hard(snapshot), len(unknown(snapshot))) == (set(), 1)
    node.boards[2].lists = True
    assert [node.round() for _ in range(2)][-1].verdict.state is State.OK
    node.boards[2].lists = node.boards[2].on_bus = False
    snapshot = [node.round() for _ in range(3)][-1]
    assert (len(hard(snapshot)), len(unknown(snapshot))) == ((1, 0) if is_proven else (0, 1))
