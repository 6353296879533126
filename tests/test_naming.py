"""A device has the names that surfaces print, in every verb alike."""

from __future__ import annotations

import msgspec
import pytest
from fakes.views import GPU, SIBLING, gpu
from hypothesis import given
from hypothesis import strategies as st

from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import Device, DeviceKind, Instant
from nodevet.checks.engine.baseline import recognised, remember
from nodevet.checks.engine.naming import are_called, chosen
from nodevet.checks.engine.view import KnownDevices, Seen


def board(device_id: str, pci: str, minor: int | None, **changes: object) -> Device:
    """Return an accelerator."""
    return msgspec.structs.replace(gpu(device_id, pci), minor=minor, serial=f"S-{device_id}", **changes)


FIFTH = board(GPU, "0000:1b:00.0", 5)
SIXTH = board(SIBLING, "0000:2b:00.0", 6)
RENDER = board("amd-1", "0000:c1:00.0", 131, vendor="amd")
CPU = msgspec.structs.replace(FIFTH, id="cpu-5", kind=DeviceKind.CPU, pci=None, uuid=None, serial=None)
ALL = (FIFTH, SIXTH, RENDER, CPU)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *[(name, [FIFTH]) for name in ("GPU 5", "gpu5", "GPU-5", "5", " Gpu 5 ", "accelerator 5")],
        *[(name, [FIFTH]) for name in (GPU, GPU.upper(), f"s-{GPU}", f"GPU 5 ({GPU})", "GPU 5 (0000:1b:00.0)")],
        *[(name, [FIFTH]) for name in ("0000:1b:00.0", "0000:1B:00.0", "00000000:1B:00.0", "1b:00.0")],
        *[(name, [RENDER]) for name in ("renderD131", "GPU renderD131", "accelerator renderD131", "gpurenderd131")],
        ("cpu-5", [CPU]),
        *[(name, []) for name in ("131", "GPU 131", "renderD5", "GPU 7", "GPU 5 (0000:2b:00.0)", "0001:1b:00.0")],
        *[(name, []) for name in ("node", "CPU 5", "GPU 5 GPU 6", "1b:00", "GPU -5", "GPU \uff15", "*", "()", "")],
    ],
)  # fmt: skip
def test_a_device_is_found_by_what_surfaces_print(text: str, found: list[Device]) -> None:
    """By any of its names, in any case; a number is that of an accelerator's device node."""
    assert list(are_called(ALL, text)) == found


def test_what_identifies_a_device_comes_before_a_number() -> None:
    """A serial number that is written as a digit stays the name of its own board."""
    digit = msgspec.structs.replace(SIXTH, serial="5")
    assert are_called((FIFTH, digit), "5") == (digit,)


def test_a_board_comes_before_its_partitions() -> None:
    """They share its device node; partitions with a node of their own are found by it."""
    part = board("part", "0000:1b:00.0", 5, parent=GPU)
    own = board("own", "0000:1b:00.0", 132, parent=GPU)
    assert are_called((FIFTH, part, own), "GPU 5") == (FIFTH,)
    assert are_called((FIFTH, part, own), "renderD132") == (own,)


def test_a_name_of_two_boards_is_refused_where_it_would_load_both() -> None:
    """Two vendors number their device nodes from 0."""
    other = board("other", "0000:3b:00.0", 5, vendor="habana")
    assert chosen((FIFTH, SIXTH), ("gpu6", "5", GPU), "lease") == (FIFTH, SIXTH)
    with pytest.raises(UsageError, match="stands for several devices: choose by address among 0000:1b"):
        chosen((FIFTH, other), ("5",), "lease")
    with pytest.raises(UsageError, match="burn-in: unknown device: gpu7; a load can use: 0000:1b"):
        chosen((FIFTH,), ("gpu5", "gpu7"), "burn-in")


@given(text=st.text("gpuGPU renderD0156-:.()xé\n", max_size=24))
def test_any_text_names_one_board_or_none(text: str) -> None:
    """Nothing is found by half of a name, and nothing raises."""
    assert len(are_called(ALL, text)) <= 1


@pytest.mark.parametrize(("serial", "known"), [(None, True), ("0000", True), ("N/A", True), ("S-other9", False)])
def test_serial_that_is_none_makes_no_stranger_of_a_board_that_is_remembered(serial: str | None, known: bool) -> None:
    """After a reboot a board answers by its PCI page, where a serial may be filled with zeros."""
    before = board("GPU-a", "0000:0c:00.0", 0)
    before = msgspec.structs.replace(before, uuid="GPU-a", serial="S-1")
    page = msgspec.structs.replace(before, id="0000:0c:00.0", uuid=None, serial=serial)
    seen = Instant(wall_seconds=1.0, boottime_ns=1, boot_id="b")
    memory = KnownDevices({before.id: Seen(before, seen, seen)})
    assert ([found.id for found in recognised(memory, [page])] == [before.id]) is known


PAGE = {"serial": None, "pci_device_id": None, "memory_bytes": None, "firmware": (), "links": ()}


@pytest.mark.parametrize("pci", ["0000:1b:00.0", "0000:99:00.0"], ids=["its slot", "moved"])
def test_board_that_tells_its_name_alone_keeps_its_serial(pci: str) -> None:
    """Fallen off the bus and read anew: the driver's page has its name, and memory what it is sent back by."""
    before = msgspec.structs.replace(gpu(), serial="S-1", pci_device_id="10de:2330", memory_bytes=80 << 30)
    now = Instant(wall_seconds=1.0, boottime_ns=1, boot_id="b")
    memory = remember(KnownDevices(), [before], {}, now)
    page = msgspec.structs.replace(before, pci=pci, **PAGE)
    for _ in range(2):
        (found,) = recognised(memory, [page])
        assert (found.serial, found.pci, found.pci_device_id, found.memory_bytes) == ("S-1", pci, "10de:2330", 80 << 30)
        memory = remember(memory, [found], {}, now)
    nameless = msgspec.structs.replace(page, model="unknown")
    assert recognised(memory, [nameless])[0].model == before.model
    other = msgspec.structs.replace(page, pci_device_id="10de:20b2")
    assert recognised(memory, [other])[0].serial is None
    part = msgspec.structs.replace(page, parent=SIBLING)
    assert recognised(memory, [part]) == (part,)


def test_number_of_a_chip_replaces_no_serial() -> None:
    """A look without the serial of an AMD board tells its chip's number: what it is sent back by is kept."""
    now = Instant(wall_seconds=1.0, boottime_ns=1, boot_id="b")
    before = msgspec.structs.replace(gpu(), serial="692400000103", uuid="GPU-000000005eed0103")
    memory = remember(KnownDevices(), [before], {}, now)
    told = msgspec.structs.replace(before, serial="0x000000005EED0103")
    assert recognised(memory, [told])[0].serial == "692400000103"
    chip_alone = remember(KnownDevices(), [told], {}, now)
    assert recognised(chip_alone, [before])[0].serial == "692400000103"


def test_two_boards_without_a_serial_are_not_one() -> None:
    """Zeros are no serial: the successor in a slot is not the board of before under another name."""
    now = Instant(wall_seconds=1.0, boottime_ns=1, boot_id="b")
    before, after = (msgspec.structs.replace(board, pci="0000:1b:00.0", serial="0") for board in (gpu(), SIXTH))
    after = msgspec.structs.replace(after, id="GPU-cccc", uuid="GPU-cccc")
    assert set(remember(remember(KnownDevices(), [before], {}, now), [after], {}, now).seen) == {before.id, after.id}


def test_board_without_a_name_in_another_slot_is_not_guessed() -> None:
    """Two boards were exchanged, and one is silent where the other sat: it may be any board."""
    now = Instant(wall_seconds=1.0, boottime_ns=1, boot_id="b")
    memory = remember(KnownDevices(), [FIFTH, SIXTH], {}, now)
    moved = msgspec.structs.replace(FIFTH, pci=SIXTH.pci)
    silent = msgspec.structs.replace(SIXTH, id="0000:1b:00.0", pci="0000:1b:00.0", uuid=None, serial=None)
    assert recognised(memory, [moved, silent]) == (moved, silent)
