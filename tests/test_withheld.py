"""In a job: the boards of others are denied by its cgroup, which NVML shows as it shows a loss. They are not judged."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fakes.host_tree import PCI, node_files, pci_device, processor_files, write_tree
from fakes.nvml.scenario import FakeNvml, pci
from fakes.reader import ReaderProcess
from fakes.views import GPU, SIBLING, at, bare_board, gpu, healthy, judge, of, reader
from test_split_boards import Driver

from nodevet.checks.backends.host.backend import HostBackend
from nodevet.checks.backends.host.withheld import is_denied, read_pages, withheld
from nodevet.checks.backends.nvidia import nvml
from nodevet.checks.backends.nvidia.backend import NvidiaBackend
from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.model import NODE, Device, DeviceKind, Outcome
from nodevet.checks.engine.view import KnownDevices, Seen, View

PROGRESS: Any = SimpleNamespace(call=lambda _text: None, write=lambda _text: None, returned=lambda: None)
BOARDS = 4


def tree(root: Path, *numbered: int) -> Tree:
    """Return a machine of four boards; those *numbered* have a page that names their device node."""
    files = node_files() | processor_files(1, 2, 1, vendor="AuthenticAMD", model="EPYC Test")
    for slot in range(BOARDS):
        files |= pci_device(pci(slot), "0x10de", "0x2330", "0x030200", driver="nvidia")
        minor = f"Device Minor: \t {slot}\n" if slot in numbered else ""
        files[f"proc/driver/nvidia/gpus/{pci(slot)}/information"] = f"Model: \t NVIDIA H100\n{minor}"
    return Tree(str(write_tree(root, files)), PROGRESS)


def nodes(*minors: int) -> Collection[str]:
    """Return the device nodes of those numbers."""
    return {f"/dev/nvidia{minor}" for minor in minors}


def test_boards_of_other_jobs_are_not_listed(tmp_path: Path) -> None:
    """The node says which they are; what a driver's page does not number is not known to be denied."""
    backend = HostBackend(tree(tmp_path, 0, 1, 2), nodes(1, 2, 3).__contains__)
    listed = {device.id: device for device in backend.devices()}
    assert listed[NODE].withheld == (pci(1), pci(2))
    assert {f"pci-{pci(slot)}" for slot in range(BOARDS)} & listed.keys() == {f"pci-{pci(0)}", f"pci-{pci(3)}"}


def test_who_is_denied_every_board_is_in_no_job_with_some(tmp_path: Path) -> None:
    """A service that is denied the driver must not be well without accelerators."""
    machine = tree(tmp_path, 0, 1, 2, 3)
    assert withheld(machine, (), read_pages(machine), nodes(0, 1, 2, 3).__contains__) == ()
    assert withheld(machine, (), read_pages(machine), nodes().__contains__) == ()


def amd_tree(root: Path) -> Tree:
    """Return a machine of four AMD boards with a render node each, and graphics of the processor with one."""
    files = node_files() | processor_files(1, 2, 1, vendor="AuthenticAMD", model="EPYC Test")
    for slot in range(BOARDS):
        files |= pci_device(pci(slot), "0x1002", "0x74a1", "0x120000", driver="amdgpu")
        files[f"{PCI}/{pci(slot)}/drm/renderD{128 + slot}/dev"] = f"226:{128 + slot}\n"
    files |= pci_device("0000:e1:00.0", "0x1002", "0x164e", "0x030000", driver="amdgpu")
    files[f"{PCI}/0000:e1:00.0/drm/renderD140/dev"] = "226:140\n"
    return Tree(str(write_tree(root, files)), PROGRESS)


def renders(*minors: int) -> Collection[str]:
    """Return the render nodes of those numbers."""
    return {f"/dev/dri/renderD{minor}" for minor in minors}


def test_amd_boards_of_other_jobs_are_not_listed(tmp_path: Path) -> None:
    """AMD SMI leaves them out, for amdkfd hides what the cgroup denies; each was lost, and the node failed."""
    backend = HostBackend(amd_tree(tmp_path), renders(129, 130, 140).__contains__)
    listed = {device.id: device for device in backend.devices()}
    assert listed[NODE].withheld == (pci(1), pci(2))
    assert {f"pci-{pci(slot)}" for slot in range(BOARDS)} & listed.keys() == {f"pci-{pci(0)}", f"pci-{pci(3)}"}
    everything = HostBackend(amd_tree(tmp_path), renders(128, 129, 130, 131, 140).__contains__)
    assert {device.id: device for device in everything.devices()}[NODE].withheld == ()


@pytest.mark.parametrize(
    ("path", "mode", "group", "access", "expected"),
    [
        ("/dev/null", 0o20666, -1, False, True),
        ("/dev/null", None, -1, True, False),
        ("/dev/nothing-of-that-name", None, -1, False, False),  # such as in a container
        (__file__, None, -1, False, False),
        ("/dev/null", 0o20660, -1, False, False),  # rights of a user that this one lacks are no cgroup
        ("/dev/null", 0o20660, 44, False, True),
        ("/dev/null", 0o20640, 44, False, False),
    ],
)
def test_only_a_cgroup_withholds_a_board(
    monkeypatch: pytest.MonkeyPatch, path: str, mode: int | None, group: int, access: bool, expected: bool
) -> None:
    """It is denied a node that is there, and that this process has the rights to use."""
    monkeypatch.setattr(os, "access", lambda *_a, **_k: access)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getgroups", lambda: [44])
    stat = os.stat
    told = SimpleNamespace(st_mode=mode, st_gid=group)
    monkeypatch.setattr(os, "stat", lambda at, **how: told if mode is not None and at == path else stat(at, **how))
    is_so = is_denied(path)
    monkeypatch.undo()
    assert is_so is expected


def excluding(root: Path, *slots: int) -> Tree:
    """Return a machine of four boards, of which an option of the driver keeps those in *slots* out of use."""
    machine = tree(root, 0, 1, 2, 3)
    for slot in range(BOARDS):
        page = root / f"proc/driver/nvidia/gpus/{pci(slot)}/information"
        page.write_text(f"{page.read_text()}GPU Excluded:\t {'Yes' if slot in slots else 'No'}\n")
    return machine


def test_boards_that_their_driver_excludes_are_not_listed(tmp_path: Path) -> None:
    """They stay bound to it, and each was lost: hard, on the word of nobody."""
    listed = {device.id: device for device in HostBackend(excluding(tmp_path, 1, 3), nodes().__contains__).devices()}
    assert listed[NODE].excluded == (pci(1), pci(3))
    assert {f"pci-{pci(slot)}" for slot in range(BOARDS)} & listed.keys() == {f"pci-{pci(0)}", f"pci-{pci(2)}"}


def test_a_board_that_its_driver_excludes_is_told_and_is_neither_missing_nor_lost() -> None:
    """It is a warning, which closes no gate, and ends with the option; one beside it is missing as before."""
    before, other = gpu("GPU-before", "0000:3b:00.0"), gpu("GPU-other", "0000:4b:00.0")
    view = in_a_job(remembered=(before, other))
    node = msgspec.structs.replace(view.devices[-1], excluded=("0000:3b:00.0",))
    findings = judge("inventory", msgspec.structs.replace(view, devices=(*view.devices[:-1], node)))
    assert of(findings, "device.missing", before.id).outcome is Outcome.SKIPPED
    assert of(findings, "device.missing", other.id).outcome is Outcome.FAIL
    told = of(findings, "inventory.excluded", NODE)
    assert told.outcome is Outcome.WARN
    assert "0000:3b:00.0: excluded by a driver option" in told.message
    assert of(judge("inventory", view), "inventory.excluded", NODE).outcome is Outcome.PASS


@pytest.mark.parametrize("skip", [(), (pci(1),)], ids=["all", "one_left_alone"])
def test_the_reader_opens_no_board_that_its_driver_excludes(
    fake_nvml: FakeNvml, tmp_path: Path, skip: tuple[str, ...]
) -> None:
    """NVML does not count it. Where another board is left alone, it was opened by its address, and lost."""
    excluding(tmp_path, 3)
    fake_nvml.set("count", BOARDS).vanish(3)
    with ReaderProcess(fake_nvml.environment, root=str(tmp_path), skip=skip) as reader:
        listed = {device.pci for device in reader.ready().devices}
    assert listed == {pci(0), pci(1), pci(2)} - set(skip)


def test_an_excluded_board_has_no_place_in_the_list_of_those_to_open(tmp_path: Path) -> None:
    """NVML counts one board, and the pages of three others say that they are out."""
    excluding(tmp_path, 1, 2, 3)
    opened: list[str] = []

    class Opening(Driver):
        def nvmlDeviceGetHandleByPciBusId(self, address: str) -> int:  # noqa: N802 (NVML's name)
            opened.append(address)
            return 1

    options = {"skip": ("0000:99:00.0",)}
    context: Any = SimpleNamespace(root=str(tmp_path), options=options, progress=PROGRESS, note=lambda *_a, **_f: None)
    NvidiaBackend(context, nvml.Library(Opening(), PROGRESS)).devices()
    assert opened == [pci(0)]


@pytest.mark.parametrize(("skip", "read"), [((), (0, 1, 2, 3)), ((pci(1),), (0, 2, 3))], ids=["all", "one_left_alone"])
def test_a_page_of_a_board_is_read_inside_a_call_of_its_driver(
    tmp_path: Path, skip: tuple[str, ...], read: tuple[int, ...]
) -> None:
    """It waits for the board as any call does, and a board that is left alone is not waited for."""
    excluding(tmp_path, 3)
    under_way: list[str] = []
    seen: list[str] = []

    def returned() -> None:
        if under_way:  # the PCI bus is looked at in no call of a driver
            seen.append(under_way.pop())

    progress: Any = SimpleNamespace(call=under_way.append, write=lambda _text: under_way.clear(), returned=returned)

    options = {"skip": skip}
    context: Any = SimpleNamespace(root=str(tmp_path), options=options, progress=progress, note=lambda *_a, **_f: None)
    backend = NvidiaBackend(context, nvml.Library(Driver(), PROGRESS))
    backend.devices()
    assert set(seen) == {f"read {tmp_path}/proc/driver/nvidia/gpus/{pci(slot)}/information" for slot in read}
    assert not under_way


def in_a_job(*withheld: str, remembered: tuple[Device, ...] = ()) -> View:
    """Return a node of two boards that the reader lists, in a job that is denied those *withheld*."""
    view = healthy()
    node = Device(id=NODE, kind=DeviceKind.NODE, vendor="v", model="m", backend="host", withheld=withheld)
    known = (*view.devices, *remembered)
    return msgspec.structs.replace(
        view,
        devices=(*view.devices, node),
        memory=KnownDevices({entry.id: Seen(entry, at(-60), at()) for entry in known}),
        readers=(reader("host"), reader("nvidia")),
    )


def test_board_that_another_job_has_now_is_not_missing() -> None:
    """A user who had it in a job before sees it denied, and nothing is said of it."""
    before = gpu("GPU-before", "0000:3b:00.0")
    view = in_a_job("0000:3b:00.0", remembered=(before,))
    findings = judge("inventory", view)
    assert of(findings, "device.missing", before.id).outcome is Outcome.SKIPPED
    assert "0000:3b:00.0" in of(findings, "inventory.withheld", NODE).message
    elsewhere = judge("inventory", in_a_job("0000:4b:00.0", remembered=(before,)))
    assert of(elsewhere, "device.missing", before.id).outcome is Outcome.FAIL


def test_boards_of_other_jobs_count_as_there() -> None:
    """Else each look in a job calls the site's number wrong."""
    found = judge("inventory", in_a_job("0000:3b:00.0"), expected_accelerators=3)
    assert of(found, "inventory.count", NODE).outcome is Outcome.PASS


def test_board_that_is_not_denied_is_lost_as_before() -> None:
    """Bound to its driver, which answers for others: no cgroup explains that."""
    view = in_a_job("0000:3b:00.0")
    silent = bare_board("0000:4b:00.0", "nvidia")
    found = judge("inventory", msgspec.structs.replace(view, devices=(*view.devices, silent)))
    assert of(found, "device.lost", silent.id).outcome is Outcome.FAIL
    assert of(found, "device.lost", GPU).outcome is of(found, "device.lost", SIBLING).outcome is Outcome.PASS
