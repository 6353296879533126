"""Boards that are split into instances or put together again while they are read: nothing that is well looks lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from fakes.amdsmi.scenario import AmdSmiStatus, FakeAmdSmi
from fakes.host_tree import write_tree
from fakes.nvml.scenario import FakeNvml, NvmlReturn
from fakes.reader import ReaderProcess
from fakes.views import at, gpu
from test_boards import Node, amd_reader, said

from nodevet.checks.backends.amd import amdsmi
from nodevet.checks.backends.amd.identity import identify
from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.nvidia import nvml
from nodevet.checks.backends.nvidia.backend import NvidiaBackend
from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.model import Action, Device, FailureKind, Finding, Key, Outcome, ReadingStatus, Snapshot, State
from nodevet.checks.engine.baseline import UNNAMED, named, recognised, remember
from nodevet.checks.engine.consequences import joined
from nodevet.checks.engine.modes import reach
from nodevet.checks.engine.view import KnownDevices
from nodevet.exporters.statefile.writer import write_state

PROGRESS: Any = SimpleNamespace(call=lambda _text: None, write=lambda _text: None, returned=lambda: None)
LINKS = 18
OK = ReadingStatus.OK
GENERATION = "sys/class/kfd/kfd/topology/generation_id"
HIDDEN = ("field.91", "field.165", "nvmlDeviceGetNvLinkState", "field.144", "field.145", "nvmlDeviceGetRemappedRows")
"""What NVML does not tell of a split board."""


class Driver:
    """One board, of which all but its name, its split and its links is not supported."""

    def __init__(self) -> None:
        """Begin with a board that is whole and whose links are up."""
        self.is_split = False
        self.refusal = 0
        self.nameless = 0
        version = "590.48.01"
        self.answers: dict[str, Any] = {
            "nvmlSystemGetDriverVersion": version,
            "nvmlSystemGetNVMLVersion": version,
            "nvmlSystemGetCudaDriverVersion": 13010,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": 1,
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        }

    def __getattr__(self, name: str) -> Any:
        """Return a function, or what it needs of the wrapper."""
        if not name.startswith(("nvmlDevice", "nvmlSystem", "nvmlEvent")):
            return SimpleNamespace() if name == "nvmlLib" else getattr(pynvml, name)
        return lambda *arguments: self._answer(name, arguments[1:])

    def _answer(self, symbol: str, arguments: tuple[Any, ...]) -> Any:
        if symbol == "nvmlDeviceGetMigMode":
            return [int(self.is_split), 0]
        if symbol == "nvmlDeviceGetNvLinkState" and not self.is_split and arguments[0] < LINKS:
            return 1 if not self.refusal else self._refuse(self.refusal)
        if self.nameless and symbol in ("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3"):
            self._refuse(self.nameless)
        return self.answers[symbol] if symbol in self.answers else self._refuse(nvml.NOT_SUPPORTED)

    def _refuse(self, code: int) -> None:
        raise pynvml.NVMLError(code)


def backend_of(driver: Driver, root: Path) -> NvidiaBackend:
    """Return the reader of *driver*, in a tree that shows nothing."""
    context: Any = SimpleNamespace(root=str(root), options={}, progress=PROGRESS, note=lambda *_a, **_f: None)
    return NvidiaBackend(context, nvml.Library(driver, PROGRESS))


def links(backend: NvidiaBackend, board: Device) -> list[ReadingStatus]:
    """Return how a fast round reads each link."""
    return [reading.status for reading in backend.read("fast", board) if reading.quantity == "link_active"]


def test_board_that_is_put_together_between_two_slow_rounds_tells_its_links(tmp_path: Path) -> None:
    """What it did not support while it was split it supports at once, also right after it was listed split."""
    driver = Driver()
    driver.is_split = True
    backend = backend_of(driver, tmp_path)
    (board,) = backend.devices()
    assert links(backend, board) == [ReadingStatus.UNSUPPORTED]
    backend.devices()
    driver.is_split = False
    assert links(backend, board) == [OK] * LINKS
    driver.is_split = True
    assert set(links(backend, board)) == {ReadingStatus.UNSUPPORTED}


@pytest.mark.parametrize("code", [AmdSmiStatus.BUSY, AmdSmiStatus.RETRY, AmdSmiStatus.API_FAILED, AmdSmiStatus.NO_PERM])
def test_amd_links_that_do_not_answer_while_a_board_is_listed_are_not_none(tmp_path: Path, code: int) -> None:
    """There may be as many as can be; a board without links says so."""

    class RefusedError(Exception):
        def get_error_code(self) -> int:
            return int(code)

    def refuse(_handle: object) -> None:
        raise RefusedError

    module = SimpleNamespace(AmdSmiLibraryException=RefusedError)
    library, target = amdsmi.Library(module, PROGRESS), amdsmi.Target(None, "a board")
    place = (library, Tree(str(tmp_path), PROGRESS), target, "0000:0c:00.0", "name", None)
    assert identify(*place).links == ()
    module.amdsmi_get_gpu_xgmi_link_status = refuse
    assert len(identify(*place).links) == 8


def test_split_board_that_is_put_together_before_the_next_slow_round_is_ok(fake_nvml: FakeNvml) -> None:
    """Its links were told by nothing, and a board that tells of none beside others that do is dark."""
    hidden = [f"{name}.3" for name in HIDDEN]
    fake_nvml.set("mig_mode.3", 1)
    for name in hidden:
        fake_nvml.fail(name, NvmlReturn.NOT_SUPPORTED)
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        node = Node(fake_nvml, reader)
        assert node.settled() == (State.OK, set())
        fake_nvml.clear("mig_mode.3", *(f"error.{name}" for name in hidden))
        node.clock.advance(1.0)
        assert said(node.look("fast")) == (State.OK, set())


@pytest.mark.parametrize("refused", [False, True])
def test_parts_of_a_board_that_is_put_together_leave_nothing_behind(fake_amdsmi: FakeAmdSmi, refused: bool) -> None:
    """They were remembered and never judged again, which left the node unknown for ever; so was what was open."""
    name = fake_amdsmi.uuid(3)
    split: dict[str, float | str] = {"count": 10}
    for slot in (8, 9):
        split |= {f"pci_bus.{slot}": 0x3C, f"uuid.{slot}": name, f"partition_id.{slot}": slot - 7}
    fake_amdsmi.update(split)
    with amd_reader(fake_amdsmi) as reader:
        node = Node(fake_amdsmi, reader)
        assert node.settled() == (State.OK, set())
        if refused:
            fake_amdsmi.fail_device(9, AmdSmiStatus.BUSY)
            node.clock.advance(10)
            assert said(node.look())[0] is State.UNKNOWN
    fake_amdsmi.clear(*split, "error.9")
    with amd_reader(fake_amdsmi) as reader:
        node.reader = reader
        node.clock.advance(10)
        node.look()
        node.clock.advance(10)
        snapshot = node.look()
    assert said(snapshot) == (State.OK, set())
    assert len(snapshot.devices) == 8


def split_in_eight(machine: FakeAmdSmi) -> tuple[int, ...]:
    """Split the board in slot 3 of *machine* as in CPX; return the slots of its eight handles."""
    machine.set("count", 15)
    for slot in range(8, 15):
        machine.update({f"pci_bus.{slot}": 0x3C, f"uuid.{slot}": machine.uuid(3), f"partition_id.{slot}": slot - 7})
    return (3, *range(8, 15))


def later(node: Node) -> Snapshot:
    """Return what the next look says."""
    node.clock.advance(10)
    return node.look()


def test_board_in_parts_that_falls_off_the_bus_is_one_finding(fake_amdsmi: FakeAmdSmi, tmp_path: Path) -> None:
    """It names the parts; a part that was told first follows, each is as bad as the board, and one word is enough."""
    board, slots = fake_amdsmi.uuid(3), split_in_eight(fake_amdsmi)
    with amd_reader(fake_amdsmi) as reader:
        node = Node(fake_amdsmi, reader)
        assert node.settled() == (State.OK, set())
        fake_amdsmi.fail_device(slots[5])
        (alone,) = later(node).episodes
        assert alone.key.device.startswith(f"{board}/")  # a part by itself is none of its board
        for slot in slots:
            fake_amdsmi.fail_device(slot)
        snapshot = later(node)
        (lost,) = snapshot.episodes
        assert lost.key == Key("device.lost", board)
        assert "its parts are lost with it: GPU renderD136 (0000:3c:00.0), " in lost.finding.message
        assert [f"renderD{number}" in lost.finding.message for number in range(136, 143)] == [True] * 7
        assert not any("and 7 more" in reason for reason in (snapshot.verdict.reason, lost.finding.message))
        assert [key for key in snapshot.verdict.episodes if key.device != board] == []
        parts = [device.id for device in snapshot.devices if device.parent == board]
        assert len(parts) == 7
        assert {snapshot.device_verdicts[part].state for part in parts} == {State.FAILED}
        bad = [f for f in snapshot.findings if f.device in parts and (f.required or f.outcome is Outcome.UNMEASURED)]
        assert bad == []
        node.engine.acknowledge(lost.key, note="known", actor="me")
        snapshot = later(node)
        assert (snapshot.verdict.state, {snapshot.device_verdicts[part].state for part in parts}) == (
            State.OK, {State.UNKNOWN},
        )  # fmt: skip
        assert {reach(snapshot, snapshot.device_verdicts[part], part) for part in parts} == {"observed"}
        write_state(tmp_path / "state", snapshot, ttl_seconds=60)
        lines = (tmp_path / "state").read_text().splitlines()
        assert [line.split()[3:5] for line in lines if f" {board}" in line] == [["unknown", "observed"]] * 8
        fake_amdsmi.clear(*(f"error.{slot}" for slot in slots))
        assert [entry.key for entry in later(node).episodes] == [lost.key]


@pytest.mark.parametrize("boot", [False, True])
def test_parts_of_a_lost_board_that_tells_its_address_alone_are_its_own(fake_amdsmi: FakeAmdSmi, boot: bool) -> None:
    """A reader that starts beside it learns addresses and no names: board and parts are those that are remembered."""
    board, slots = fake_amdsmi.uuid(3), split_in_eight(fake_amdsmi)
    with amd_reader(fake_amdsmi) as reader:
        before = Node(fake_amdsmi, reader)
        assert before.settled() == (State.OK, set())
        known = {device.id for device in before.look().devices}
    for slot in slots:
        fake_amdsmi.fail_device(slot)
        fake_amdsmi.set(f"error.amdsmi_get_gpu_device_bdf.{slot}", 0)
    with amd_reader(fake_amdsmi) as reader:
        after = Node(fake_amdsmi, reader)
        if boot:
            after.clock.reboot("boot-2", 60)
        after.clock.advance(60)
        after.engine.restore(before.engine.memory())
        snapshot = later(after)
    assert [episode.key for episode in snapshot.episodes] == [Key("device.lost", board)]
    assert {device.id for device in snapshot.devices} == known


def test_board_in_parts_that_is_not_listed_after_a_boot_is_one_finding() -> None:
    """Its parts are missing with it, and a word that it was taken out is about them too."""
    board, part = gpu(), gpu("part-1", parent=gpu().id, minor=136)
    told = [
        Finding(check="inventory", code=code, outcome=Outcome.FAIL, message=f"GPU {name}: gone", device=name)
        for name, code in ((part.id, "device.missing"), (board.id, "device.missing"), ("x", "device.missing"))
    ]
    memory = remember(KnownDevices(), (board, part), {}, at())
    follows, whole, other = joined(told, (), memory)
    assert (follows.outcome, follows.follows, follows.action) == (Outcome.SKIPPED, board.id, Action.NONE)
    assert (whole.outcome, whole.message) == (
        Outcome.FAIL, f"GPU {board.id}: gone; its parts are lost with it: GPU part-1"
    )  # fmt: skip
    assert other == told[2]
    assert joined(told[:1], (), memory) == (told[0],)


def test_part_goes_on_as_its_board_only_where_the_board_is_there() -> None:
    """Without its board it is gone with it."""
    board, part = gpu(), gpu("part-1", parent=gpu().id)
    memory = remember(KnownDevices(), (board, part), {}, at())
    assert named(memory, (board,)) == {"part-1": board.id}
    assert named(memory, (board, part)) == named(memory, ()) == {}
    assert set(remember(memory, (board,), {}, at(10)).seen) == {board.id}


def test_parts_that_are_gone_while_they_are_read_are_not_lost(fake_amdsmi: FakeAmdSmi) -> None:
    """The kernel says that its devices are others now; the library still lists those of its start."""
    root = write_tree(fake_amdsmi.path.parent / "root", {**fake_amdsmi.host_files(), GENERATION: "2\n"})
    with ReaderProcess(fake_amdsmi.environment, "amd", root=str(root)) as reader:
        reader.ready()
        fake_amdsmi.fail_device(3, AmdSmiStatus.IO)
        write_tree(root, {GENERATION: "5\n"})
        failure = reader.sample(3, "fast").failure
    assert failure is not None
    assert failure.kind is FailureKind.ERROR


def number(index: int) -> Device:
    """Return a board of which nothing but its number is known."""
    return gpu(f"nvidia-{index}", uuid=None, pci=None, serial=None, model=UNNAMED)


def test_board_known_by_its_number_alone_goes_on_under_its_name() -> None:
    """Its loss is the loss of the board that answers at last, not a second one beside it."""
    memory = remember(KnownDevices(), (gpu(), number(3)), {}, at())
    assert named(memory, (gpu(), number(3))) == {}
    assert named(memory, (gpu(), gpu("GPU-new", "0000:3b:00.0"))) == {"nvidia-3": "GPU-new"}
    assert named(memory, (gpu(),)) == {}
    both = (gpu(), gpu("GPU-new", "0000:3b:00.0"), gpu("GPU-other", "0000:4b:00.0"))
    assert named(memory, both) == {}  # nobody says which
    back = remember(memory, both[:2], {}, at(10))
    assert set(back.seen) == {gpu().id, "GPU-new"}


def test_board_known_by_its_number_alone_is_the_only_one_that_is_not_listed() -> None:
    """What the others are it is not; of two that are gone nobody says which it is."""
    boards = (gpu(), gpu("GPU-b", "0000:2b:00.0"), gpu("GPU-c", "0000:3b:00.0"))
    memory = remember(KnownDevices(), boards, {}, at())
    assert recognised(memory, (*boards[:2], number(2))) == boards
    assert recognised(memory, (boards[0], number(2))) == (boards[0], number(2))
    assert recognised(memory, (boards[0], number(1), number(2))) == (boards[0], number(1), number(2))
    elsewhere = gpu("0000:9b:00.0", "0000:9b:00.0", uuid=None, serial=None, model=UNNAMED)
    assert recognised(memory, (*boards[:2], elsewhere)) == (*boards[:2], elsewhere)


@pytest.mark.parametrize("is_known", [False, True])
def test_loss_of_a_board_known_by_its_number_alone_is_one(fake_nvml: FakeNvml, is_known: bool) -> None:
    """Where neither the driver's pages nor the bus can be seen, as in a container; then it answers by its name."""
    call = "nvmlDeviceGetHandleByIndex_v2"
    memory: dict[str, bytes] = {}
    if is_known:
        with ReaderProcess(fake_nvml.environment) as reader:
            reader.ready()
            before = Node(fake_nvml, reader)
            before.look()
            memory = before.engine.memory()
    fake_nvml.fail(call, NvmlReturn.GPU_IS_LOST, 3)
    with ReaderProcess(fake_nvml.environment) as reader:
        reader.ready()
        node = Node(fake_nvml, reader)
        node.engine.restore(memory)
        assert [episode.key.code for episode in node.look().episodes] == ["device.lost"]
        fake_nvml.clear(f"error.{call}.3")
        reader.enumerate_again()
        node.clock.advance(10)
        snapshot = node.look()
    assert [episode.key for episode in snapshot.episodes] == [Key("device.lost", fake_nvml.uuid(3))]
    assert {device.id for device in snapshot.devices} == {fake_nvml.uuid(slot) for slot in range(8)}


def test_a_board_that_fails_to_tell_its_name_is_not_lost(tmp_path: Path) -> None:
    """Both calls that tell who it is end with an unknown error, which says less than an error in every call."""

    driver = Driver()
    driver.nameless = 999
    backend = backend_of(driver, tmp_path)
    (board,) = backend.devices()
    with pytest.raises(BackendError) as refused:
        backend.read("fast", board)
    assert (refused.value.failure.kind, refused.value.failure.of_driver) == (FailureKind.ERROR, True)
