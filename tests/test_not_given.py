"""In a container that was given some boards: the others are on the PCI bus, and nobody measures them. No loss is shown.

What could be hidden so on a bare host is not: there /dev is the kernel's own.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fakes.gpu_node import GpuNode
from fakes.host_tree import PCI, virtual_machine, write_tree
from fakes.kernel import NO_MOUNTS
from fakes.nvml.scenario import FakeNvml, pci
from fakes.views import (
    BOOT,
    at,
    bare_board,
    event,
    failed,
    gpu,
    judge,
    of,
    reader,
    with_samples,
)
from test_split_boards import Driver
from test_withheld import BOARDS, PROGRESS, amd_tree, excluding, in_a_job, nodes, renders, tree

from nodevet.checks.backends.amd import backend as amd
from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.host import withheld
from nodevet.checks.backends.host.backend import HostBackend
from nodevet.checks.backends.nvidia import nvml
from nodevet.checks.backends.nvidia.backend import NvidiaBackend
from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.model import NODE, Action, Device, FailureKind, Finding, Outcome, ReaderState
from nodevet.checks.engine.view import KnownDevices, Seen, View

HOST = "24 27 0:6 / /dev rw,relatime - devtmpfs udev rw,mode=755\n"
CONTAINER = (
    "512 498 0:61 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755\n513 512 0:62 / /dev/pts rw - devpts d rw\n"
)
PLACE = "proc/self/mountinfo"

HIDDEN = "0000:3b:00.0"


def mounted(machine: Tree, mounts: str | None = CONTAINER) -> Tree:
    """Return *machine* as a process sees it that has these *mounts*; without any, they cannot be read."""
    if mounts is not None:
        place = Path(machine.path(PLACE))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(mounts)
    return machine


def node_of(machine: Tree, there: Iterable[str]) -> Device:
    """Return what the host's reader tells of the node, in whose /dev are those *there*."""
    listed = {
        device.id: device for device in HostBackend(machine, nodes().__contains__, {*there}.__contains__).devices()
    }
    bare = {f"pci-{pci(slot)}" for slot in range(BOARDS)}
    assert bare <= listed.keys(), "a board that is not given stays listed, for the kernel log tells of it"
    return listed[NODE]


def unpaged(machine: Tree, *slots: int) -> Tree:
    """Return *machine* without the pages of the boards in *slots*."""
    for slot in slots:
        shutil.rmtree(machine.path(f"proc/driver/nvidia/gpus/{pci(slot)}"))
    return machine


def test_boards_whose_pages_were_not_mounted_are_not_given(tmp_path: Path) -> None:
    """NVIDIA's toolkit mounts the pages of those that it gives."""
    machine = mounted(unpaged(tree(tmp_path, 0, 1, 2, 3), 1, 2))
    assert node_of(machine, nodes(0, 3)).not_given == (pci(1), pci(2))


def test_boards_whose_nodes_were_not_made_are_not_given(tmp_path: Path) -> None:
    """All pages are there, as where the container has the kernel's own /proc/driver."""
    assert node_of(mounted(tree(tmp_path, 0, 1, 2, 3)), nodes(0, 3)).not_given == (pci(1), pci(2))


def test_amd_boards_whose_render_nodes_were_not_made_are_not_given(tmp_path: Path) -> None:
    """The bus tells which render node each has."""
    assert node_of(mounted(amd_tree(tmp_path)), renders(128, 131)).not_given == (pci(1), pci(2))


@pytest.mark.parametrize(
    "mounts",
    [HOST, CONTAINER + HOST, None, "", "nonsense\n", "1 2 3 4 /dev\n"],
    ids=["kernels_own", "mounted_over", "unreadable", "empty", "nonsense", "cut_short"],
)
def test_on_a_bare_host_no_board_is_called_not_given(tmp_path: Path, mounts: str | None) -> None:
    """A board whose probe hangs is bound and has no page; a node may be removed by hand. Neither excuses a loss."""
    paged = mounted(unpaged(tree(tmp_path / "nvidia", 0, 1, 2, 3), 1), mounts)
    assert node_of(paged, nodes(0, 3)).not_given == ()
    assert node_of(mounted(amd_tree(tmp_path / "amd"), mounts), renders(128)).not_given == ()


@pytest.mark.parametrize("there", [(), (0, 1, 2, 3)], ids=["none", "all"])
def test_where_no_board_or_every_one_was_given_none_is_called_not_given(tmp_path: Path, there: tuple[int, ...]) -> None:
    """A container without any is not well without accelerators; one with all lost the board that its driver lacks."""
    assert node_of(mounted(tree(tmp_path / "nvidia", 0, 1, 2, 3)), nodes(*there)).not_given == ()
    of_amd = mounted(amd_tree(tmp_path / "amd"))
    assert node_of(of_amd, renders(*(128 + slot for slot in there))).not_given == ()


def test_a_board_of_which_the_page_tells_no_number_is_not_called_not_given(tmp_path: Path) -> None:
    """Nobody knows which node would be its own; nor is one that no driver holds anybody's to give."""
    machine = mounted(tree(tmp_path, 0, 1, 3))
    Path(machine.path(f"{PCI}/{pci(1)}/driver")).unlink()
    assert node_of(machine, nodes(0)).not_given == (pci(3),)


@pytest.mark.parametrize("way", ["not_given", "denied"])
def test_a_board_that_is_not_to_be_had_has_no_place_in_the_list_of_those_to_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """While another board is left alone each is opened by its address, of which NVML finds none there."""
    machine = mounted(tree(tmp_path, 0, 1, 2, 3), CONTAINER if way == "not_given" else HOST)
    opened: list[str] = []

    class Opening(Driver):
        def nvmlDeviceGetHandleByPciBusId(self, address: str) -> int:  # noqa: N802 (NVML's name)
            opened.append(address)
            return 1

    there = nodes(0) if way == "not_given" else nodes(0, 1, 2, 3)
    monkeypatch.setattr(withheld, "is_there", there.__contains__)
    denied = nodes(1, 2, 3) if way == "denied" else nodes()
    monkeypatch.setattr(withheld, "is_denied", denied.__contains__)
    options = {"skip": ("0000:99:00.0",)}
    context: Any = SimpleNamespace(root=machine.root, options=options, progress=PROGRESS, note=lambda *_a, **_f: None)
    NvidiaBackend(context, nvml.Library(Opening(), PROGRESS)).devices()
    assert opened == [pci(0)]


def test_a_silent_amd_board_takes_no_name_of_one_that_was_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never told who it is, and another board of the bus would be replaced for it."""
    there = renders(129, 130)
    machine = mounted(amd_tree(tmp_path))
    monkeypatch.setattr(withheld, "is_there", there.__contains__)
    context: Any = SimpleNamespace(root=machine.root, options={}, progress=PROGRESS, note=lambda *_a, **_f: None)

    class Silent(amd.AmdBackend):
        def _read_versions(self) -> dict[str, str]:
            return {}

        def _refuse_old_list(self) -> None:
            pass

        def _handles(self) -> list[int]:
            return [0]

        def _open(self, index: int, handle: object, found: object) -> Any:
            raise BackendError(FailureKind.LOST, f"index {index} is silent")

    library: Any = None
    assert [device.pci for device in Silent(context, machine, library, None).devices()] == [pci(1)]


def not_given(*addresses: str, remembered: tuple[Device, ...] = (), boot: str = BOOT) -> View:
    """Return a node of two boards that were given to its container, where those at *addresses* were not.

    Those *remembered* were read last in *boot*.
    """
    view = in_a_job()
    node = msgspec.structs.replace(view.devices[-1], not_given=addresses)
    pages = [bare_board(address, "nvidia") for address in addresses]
    seen = {entry.id: Seen(entry, at(-60, boot), at(-30, boot)) for entry in remembered}
    devices = (*view.devices[:-1], *pages, node)
    return msgspec.structs.replace(view, devices=devices, memory=KnownDevices({**view.memory.seen, **seen}))


def is_soft(finding: Finding) -> bool:
    """Return whether *finding* makes the node unknown and closes no gate."""
    return (finding.outcome, finding.required, finding.gates) == (Outcome.UNMEASURED, True, False)


def test_a_board_that_was_not_given_is_not_measured_and_not_lost() -> None:
    """It was hard, and its node was drained: nobody asked its driver."""
    lost = of(judge("inventory", not_given(HIDDEN)), "device.lost", f"pci-{HIDDEN}")
    assert is_soft(lost)
    assert lost.action is Action.INSPECT
    assert "the agent's container has other boards" in lost.message
    assert "reboot" not in lost.message


def test_another_board_beside_it_is_lost_as_before() -> None:
    """Page and node of that are there, and its driver does not list it."""
    silent = bare_board("0000:4b:00.0", "nvidia")
    view = not_given(HIDDEN)
    found = judge("inventory", msgspec.structs.replace(view, devices=(*view.devices, silent)))
    assert of(found, "device.lost", silent.id).outcome is Outcome.FAIL


def test_a_board_that_its_driver_calls_lost_is_lost_also_where_it_was_not_given() -> None:
    """The driver was asked, and said so (NVML 15)."""
    dead = gpu("GPU-dead", HIDDEN)
    view = not_given(HIDDEN)
    view = msgspec.structs.replace(view, devices=(*view.devices, dead))
    found = judge("inventory", with_samples(view, failed(FailureKind.LOST, dead)))
    assert of(found, "device.lost", dead.id).outcome is Outcome.FAIL


def test_what_the_kernel_tells_of_a_board_that_was_not_given_counts() -> None:
    """XID 79 is of that board, and closes the gate as anywhere."""
    told = event("nvidia.xid.79", pci=HIDDEN.rpartition(".")[0])
    found = judge("kernel-log", msgspec.structs.replace(not_given(HIDDEN), events=(told,)))
    lost = of(found, "nvidia.xid.79", f"pci-{HIDDEN}")
    assert lost.outcome is Outcome.FAIL
    assert lost.gates


def test_a_board_over_which_its_driver_hung_twice_is_lost_also_where_it_was_not_given() -> None:
    """A witness saw the driver at fault."""
    view = not_given(HIDDEN)
    held = reader("nvidia", quarantined=(HIDDEN,), blamed={HIDDEN: 2})
    found = judge("inventory", msgspec.structs.replace(view, readers=(reader("host"), held)))
    assert of(found, "device.lost", f"pci-{HIDDEN}").outcome is Outcome.FAIL


def test_a_board_that_was_read_in_this_boot_is_missing_although_its_page_or_node_is_gone() -> None:
    """The container had it. One of an earlier boot may have been another container's, which is not known."""
    before = gpu("GPU-before", HIDDEN)
    gone = of(judge("inventory", not_given(HIDDEN, remembered=(before,))), "device.missing", before.id)
    assert gone.outcome is Outcome.FAIL
    assert gone.gates
    earlier = not_given(HIDDEN, remembered=(before,), boot="another-boot")
    assert is_soft(of(judge("inventory", earlier), "device.missing", before.id))
    elsewhere = not_given("0000:4b:00.0", remembered=(before,), boot="another-boot")
    assert of(judge("inventory", elsewhere), "device.missing", before.id).outcome is Outcome.FAIL


@pytest.mark.parametrize("field", ["withheld", "excluded", "not_given"])
def test_a_part_of_a_board_that_is_not_to_be_had_is_not_missing_either(field: str) -> None:
    """Parts are told by another function of the same board."""
    part = gpu("GPU-part", "0000:3b:00.1", parent="GPU-whole")
    view = not_given(remembered=(part,), boot="another-boot")
    node = msgspec.structs.replace(view.devices[-1], **{field: (HIDDEN,)})
    found = judge("inventory", msgspec.structs.replace(view, devices=(*view.devices[:-1], node)))
    assert of(found, "device.missing", part.id).outcome is not Outcome.FAIL


@pytest.mark.parametrize(
    ("expected", "outcome"), [(2, Outcome.PASS), (3, Outcome.UNMEASURED), (4, Outcome.UNMEASURED), (5, Outcome.FAIL)]
)
def test_boards_that_were_not_given_make_no_number_wrong(expected: int, outcome: Outcome) -> None:
    """They may be there; what is expected beyond them is not."""
    found = judge("inventory", not_given(HIDDEN, "0000:4b:00.0"), expected_accelerators=expected)
    counted = of(found, "inventory.count", NODE)
    assert counted.outcome is outcome
    assert counted.required is (outcome is Outcome.UNMEASURED)


def test_a_reader_that_fails_in_a_container_tells_of_the_boards_that_it_was_given() -> None:
    """The others count as boards without a working driver no more."""
    view = not_given(HIDDEN)
    given = bare_board("0000:4b:00.0", "nvidia")
    node, page = view.devices[-1], view.devices[-2]
    refused = failed(FailureKind.NO_DRIVER, given).failure
    broken = reader("nvidia", ReaderState.FAILED, failure=refused)
    view = msgspec.structs.replace(view, devices=(given, page, node), readers=(reader("host"), broken))
    missing = of(judge("inventory", view), "driver.missing", NODE)
    assert missing.outcome is Outcome.FAIL
    assert given.pci is not None
    assert given.pci in missing.message
    assert HIDDEN not in missing.message


class Noted(Tree):
    """A machine that notes which files are read, and of which none is had while they are in ``closed``."""

    def __init__(self, root: str) -> None:
        """Read below *root*."""
        super().__init__(root, PROGRESS)
        self.read: list[str] = []
        self.closed: set[str] = set()

    def text(self, relative: str) -> str:
        """Return the file, unless it is closed."""
        self.read.append(relative)
        if relative in self.closed:
            raise OSError(5, "Input/output error")
        return super().text(relative)


def page_of_board(slot: int) -> str:
    """Return the path of the driver's page about the board in *slot*."""
    return f"proc/driver/nvidia/gpus/{pci(slot)}/information"


def test_each_page_of_a_board_is_read_once_for_a_list(tmp_path: Path) -> None:
    """The driver waits for the board to write it."""
    machine = Noted(mounted(excluding(tmp_path, 3)).root)
    HostBackend(machine, nodes().__contains__, nodes(0).__contains__).devices()
    assert [machine.read.count(page_of_board(slot)) for slot in range(BOARDS)] == [1] * BOARDS


def test_a_page_that_cannot_be_read_once_says_what_it_said(tmp_path: Path) -> None:
    """A board is excluded as long as its driver is loaded: else it was lost, hard, for one bad look."""
    machine = Noted(excluding(tmp_path, 3).root)
    backend = HostBackend(machine, nodes().__contains__)
    backend.devices()
    machine.closed.add(page_of_board(3))
    node = {device.id: device for device in backend.devices()}[NODE]
    assert (node.excluded, node.unread_pages) == ((pci(3),), ())
    shutil.rmtree(Path(machine.path(page_of_board(3))).parent)
    assert {device.id: device for device in backend.devices()}[NODE].excluded == ()


def test_a_page_that_was_never_read_proves_no_board_to_be_in_use(tmp_path: Path) -> None:
    """The warning that one is excluded stands until the page says that it is not."""
    machine = Noted(excluding(tmp_path, 3).root)
    machine.closed.add(page_of_board(3))
    node = {device.id: device for device in HostBackend(machine, nodes().__contains__).devices()}[NODE]
    assert (node.excluded, node.unread_pages) == ((), (pci(3),))
    view = in_a_job()
    found = judge("inventory", msgspec.structs.replace(view, devices=(*view.devices[:-1], node)))
    told = of(found, "inventory.excluded", NODE)
    assert told.outcome is Outcome.UNMEASURED
    assert pci(3) in told.message


FILLED = """
set -e
mount -t tmpfs tmpfs /mnt
for node in null zero full random urandom; do touch /mnt/$node; mount --bind /dev/$node /mnt/$node; done
mkdir /mnt/shm /mnt/pts; ln -s /proc/self/fd /mnt/fd
touch /mnt/nvidiactl /mnt/nvidia0 /mnt/nvidia1
mount --rbind /mnt /dev
exec "$@"
"""
WITHIN = ("unshare", "--mount", "sh", "-c", FILLED, "agent")
"""Runs a command that has a /dev of its own, with the nodes of two boards."""


@pytest.mark.parametrize(
    ("mounts", "verdict", "reach"),
    [(CONTAINER, "unknown", "soft"), (HOST, "failed", "hard")],
    ids=["container", "host"],
)
def test_an_agent_that_was_given_two_of_eight_boards_closes_no_gate(
    tmp_path: Path, fake_nvml_library: Path, mounts: str, verdict: str, reach: str
) -> None:
    """The real agent: NVML lists two, the bus shows eight. On a bare host the six are lost."""
    if subprocess.run([*WITHIN, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip(NO_MOUNTS)
    root = tmp_path / "host"
    files = virtual_machine() | FakeNvml(tmp_path / "unused", fake_nvml_library).host_files() | {PLACE: mounts}
    for slot in range(8):
        files[page_of_board(slot)] = f"Model: \t NVIDIA H100\nDevice Minor: \t {slot}\n"
    write_tree(root, files)
    node = GpuNode(tmp_path, fake_nvml_library, root=str(root), within=WITHIN)
    node.machine.set("count", 2)
    with node:
        status = node.wait_for_verdict(verdict)
        told = [entry for entry in status["findings"] if entry["code"] == "device.lost"]
        assert len(told) == 6
        assert {entry["outcome"] for entry in told} == {"unmeasured" if verdict == "unknown" else "fail"}
        node.seconds_until(lambda: (node.state_file().state, node.state_file().reach) == (verdict, reach), 5.0)
