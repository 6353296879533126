"""Boards that their driver lists a moment after the kernel bound them, or after a release: none of them is lost."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.gpu_node import GpuNode
from fakes.host_tree import PCI, pci_device, virtual_machine, write_tree
from fakes.nvml.scenario import FakeNvml, NvmlReturn, pci
from fakes.views import at, bare_board, gpu, healthy, judge, of

from nodevet.checks.core.model import Device, Outcome, ReaderState, ReaderStatus
from nodevet.checks.engine.arrivals import Arrivals, KeptArrivals
from nodevet.checks.engine.view import Arrived, KnownDevices, Seen, View

PAGE, OTHER, THIRD = "0000:40:00.0", "0000:50:00.0", "0000:60:00.0"
TAKING_SECONDS = 120


def running(backend: str, state: ReaderState = ReaderState.RUNNING) -> ReaderStatus:
    """Return the status of a reader."""
    return ReaderStatus(backend=backend, state=state, last_round=at())


def pages(*drivers: str | None) -> tuple[Device, ...]:
    """Return the boards as the bus shows them, each with its driver."""
    return tuple(bare_board(slot, driver) for slot, driver in zip((PAGE, OTHER, THIRD), drivers, strict=False))


LISTED = ("nvidia", (gpu("GPU-1", PAGE),))
BINDINGS: dict[str, tuple[list[tuple[str, tuple[Device, ...]]], set[str]]] = {
    "there before the agent": ([("host", pages("nvidia"))], set()),
    "given back by a guest": ([("host", pages("vfio-pci")), ("host", pages("nvidia"))], {PAGE}),
    "plugged in": ([("host", pages("nvidia")), ("host", pages("nvidia", "nvidia"))], {OTHER}),
    "without a driver": ([("host", pages("nvidia")), ("host", pages("nvidia", None))], set()),
    "bound again and again": ([("host", ()), *[("host", pages("nvidia")), ("host", pages(None))] * 3], {PAGE}),
    "listed since": ([("host", ()), ("host", pages("nvidia")), LISTED], set()),
    "listed before the bus was read": ([("host", ()), LISTED, ("host", pages("nvidia"))], set()),
    "as before": ([("host", ()), ("host", pages("nvidia")), ("host", pages("nvidia"))], {PAGE}),
}


@pytest.mark.parametrize("case", BINDINGS)
def test_a_board_arrives_when_the_kernel_binds_it_and_until_it_is_listed(case: str) -> None:
    """A board that was bound before the agent looked did not arrive: its driver had all the time that it needed."""
    lists, bound = BINDINGS[case]
    arrivals = Arrivals()
    for number, (backend, devices) in enumerate(lists):
        arrivals.take_list(backend, devices, at(number))
    assert arrivals.told().bound.keys() == bound
    assert all(since == at(1) for since in arrivals.told().bound.values())


@pytest.mark.parametrize("later", [(), pages(None)], ids=["off the bus", "without its driver"])
def test_a_board_that_went_again_long_ago_did_not_arrive(later: tuple[Device, ...]) -> None:
    """It may be given to another guest, and come back: the two minutes begin then."""
    arrivals = Arrivals()
    for number, devices in enumerate([(), pages("nvidia"), later]):
        arrivals.take_list("host", devices, at(number))
    arrivals.take_list("host", later, at(2 * TAKING_SECONDS))
    assert not arrivals.told().bound
    arrivals.take_list("host", pages("nvidia"), at(1000))
    assert arrivals.told().bound == {PAGE: at(1000)}


def released(arrivals: Arrivals, seconds: float) -> None:
    """Let a release of the reader end at *seconds*."""
    arrivals.take_readers([running("nvidia", ReaderState.RELEASED)], at(seconds - 1))
    arrivals.take_readers([running("nvidia", ReaderState.STARTING)], at(seconds))


BOARDS = (gpu("GPU-1", PAGE), gpu("GPU-2", OTHER))


def test_a_release_has_its_driver_list_everything_anew() -> None:
    """What it has listed since the end of the release counts; a later release begins again."""
    arrivals = Arrivals()
    arrivals.take_list("nvidia", BOARDS, at())
    arrivals.take_readers([running("nvidia")], at(1))
    assert not arrivals.told().resumed
    for ended in (2, 2 + 2 * TAKING_SECONDS):
        released(arrivals, ended)
        assert arrivals.told().resumed == {"nvidia": (at(ended), frozenset())}
        arrivals.take_list("nvidia", BOARDS[:1], at(ended + 1))
        arrivals.take_readers([running("nvidia")], at(ended + 2))
        assert arrivals.told().resumed == {"nvidia": (at(ended), frozenset({"GPU-1"}))}


@pytest.mark.parametrize("state", [state for state in ReaderState if state is not ReaderState.RUNNING])
def test_the_list_of_a_reader_that_ended_counts_no_more(state: ReaderState) -> None:
    """The driver was loaded anew meanwhile: what the kernel binds now is not in the list of the new one."""
    arrivals = Arrivals()
    arrivals.take_list("host", pages("nvidia", "nvidia"), at())
    arrivals.take_list("nvidia", BOARDS, at())
    arrivals.take_readers([running("nvidia")], at(1))
    arrivals.take_readers([running("nvidia", state)], at(2))
    arrivals.take_list("host", pages(None, None), at(3))
    arrivals.take_list("host", pages("nvidia", "nvidia"), at(4))
    arrivals.take_readers([running("nvidia")], at(5))
    arrivals.take_list("nvidia", BOARDS[:1], at(5))
    assert arrivals.told().bound == {OTHER: at(4)}


def test_a_board_that_the_present_reader_listed_does_not_arrive_when_it_is_bound_again() -> None:
    """It is lost at once if it goes."""
    arrivals = Arrivals()
    arrivals.take_list("host", pages("nvidia", "nvidia"), at())
    arrivals.take_list("nvidia", BOARDS, at())
    arrivals.take_readers([running("nvidia")], at(1))
    arrivals.take_list("host", pages("nvidia", None), at(2))
    arrivals.take_list("host", pages("nvidia", "nvidia"), at(3))
    assert not arrivals.told().bound


@pytest.mark.parametrize("holds_one", [False, True])
def test_a_driver_that_was_unloaded_may_list_boards_before_the_bus_is_read_again(holds_one: bool) -> None:
    """The pages are those of before the driver was loaded. If it held a board all the time, it was not unloaded."""
    arrivals = Arrivals()
    arrivals.take_list("host", pages("nvidia", "nvidia"), at())
    arrivals.take_list("nvidia", BOARDS, at())
    arrivals.take_readers([running("nvidia", ReaderState.CRASHED)], at(1))
    arrivals.take_list("host", pages("nvidia" if holds_one else None, None), at(2))
    arrivals.take_list("nvidia", BOARDS[:1], at(3))
    expected = {} if holds_one else {OTHER: at(3)}
    assert arrivals.told().bound == expected
    arrivals.take_list("nvidia", BOARDS[:1], at(4))
    assert arrivals.told().bound == expected
    arrivals.take_list("host", pages("nvidia", None), at(4 + TAKING_SECONDS))
    assert not arrivals.told().bound


TURNS: dict[str, tuple[str, list[tuple[str | None, ...]], set[str]]] = {
    "loaded": ("amd", [(None, None), ("amdgpu", None)], {PAGE, OTHER}),
    "loaded anew": ("amd", [("amdgpu", "amdgpu"), (None, None), ("amdgpu", None)], {PAGE, OTHER}),
    "one is bound": ("amd", [("amdgpu", None), ("amdgpu", "amdgpu")], {OTHER}),
    "one more is bound": ("amd", [("amdgpu", None, None), ("amdgpu", "amdgpu", None)], {OTHER}),
    "one is unbound": ("amd", [("amdgpu", "amdgpu"), ("amdgpu", None)], set()),
    "lent to a guest": ("amd", [(None, None), ("vfio-pci", None)], {PAGE}),
    "another is lent": ("amd", [(None, None), ("amdgpu", "vfio-pci")], {PAGE, OTHER}),
    "all at once": ("nvidia", [(None, None), ("nvidia", None)], {PAGE}),
}


@pytest.mark.parametrize("case", TURNS)
def test_a_driver_that_binds_boards_in_turn_is_awaited_for_all_of_them(case: str) -> None:
    """It was loaded just now, because it held no board before: those that it has yet to bind arrive with the first."""
    vendor, looks, bound = TURNS[case]
    arrivals = Arrivals()
    for number, drivers in enumerate(looks):
        shown = tuple(msgspec.structs.replace(page, vendor=vendor) for page in pages(*drivers))
        arrivals.take_list("host", shown, at(number))
    assert arrivals.told().bound == dict.fromkeys(bound, at(len(looks) - 1))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("seconds", "closes"), [(2, False), (TAKING_SECONDS, True)])
def test_a_board_that_its_driver_has_yet_to_bind_is_missing_after_two_minutes(
    seconds: int, closes: bool, known: bool
) -> None:
    """The boot is long over, and amdgpu was loaded by hand: until then neither finding closes a gate."""
    page, board, late = (
        msgspec.structs.replace(device, vendor="amd")
        for device in (bare_board(PAGE), gpu("other", OTHER, backend="amd"), gpu("late", PAGE, backend="amd"))
    )
    view = msgspec.structs.replace(
        unlisted(Arrived(bound={PAGE: at(-seconds)}), known=False),
        devices=(board, page),
        on_bus=(page,),
        memory=KnownDevices({device.id: Seen(device, at(-60), at(-5)) for device in (board, *[late] * known)}),
        readers=(running("amd"), running("host")),
    )
    findings = judge("inventory", view)
    assert any(found.gates and found.outcome is Outcome.FAIL for found in findings) is closes
    code = "device.missing" if known else "driver.missing"
    assert closes is False or code in {found.code for found in findings if found.outcome is Outcome.FAIL}


def test_releases_that_follow_closely_await_a_board_from_the_first_on() -> None:
    """A site that releases for each short job would never be told of a board that is lost in one of them."""
    arrivals = Arrivals()
    for ended in (2, 60, 100):
        released(arrivals, ended)
        arrivals.take_list("nvidia", BOARDS[:1], at(ended + 1))
    assert arrivals.told().resumed == {"nvidia": (at(2), frozenset({"GPU-1"}))}


def test_the_next_agent_of_the_boot_awaits_the_same_boards() -> None:
    """An upgrade within the two minutes loses none; after a reboot the driver has the time after a boot."""
    arrivals = Arrivals()
    arrivals.take_list("host", pages("vfio-pci"), at())
    arrivals.take_list("host", pages("nvidia"), at(1))
    released(arrivals, 2)
    arrivals.take_readers([running("nvidia", ReaderState.RELEASED)], at(3))
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(arrivals.kept(at(3))), type=KeptArrivals)
    again, rebooted = Arrivals(), Arrivals()
    again.restore(kept, at(4))
    assert again.told() == arrivals.told()
    again.take_readers([running("nvidia", ReaderState.STARTING)], at(2 + 2 * TAKING_SECONDS))
    assert again.told().resumed == {"nvidia": (at(2 + 2 * TAKING_SECONDS), frozenset())}
    again.take_list("host", pages("nvidia", "nvidia"), at(5))
    assert again.told().bound == {PAGE: at(1), OTHER: at(5)}
    rebooted.restore(kept, at(4, boot="another"))
    assert rebooted.told() == Arrived()


def test_a_command_that_lists_a_board_says_nothing_of_its_driver() -> None:
    """It prints what it prints; the driver is awaited all the same."""
    arrivals = Arrivals()
    for backend, devices in [
        ("command:site", (gpu("hl0", PAGE, backend="command:site"),)),
        ("host", ()),
        ("host", pages("nvidia")),
        ("command:site", (gpu("hl0", PAGE, backend="command:site"),)),
    ]:
        arrivals.take_list(backend, devices, at(1))
    assert arrivals.told().bound == {PAGE: at(1)}


def unlisted(arrived: Arrived, *, known: bool) -> View:
    """Return a view of a node whose driver lists one board, and not the other, which the bus shows as bound to it."""
    board, page, late = gpu("GPU-other", OTHER), bare_board(PAGE, "nvidia"), gpu("GPU-late", PAGE)
    seen = {board.id: Seen(board, at(-60), at())} | ({late.id: Seen(late, at(-60), at(-5))} if known else {})
    return msgspec.structs.replace(
        healthy(),
        devices=(board, page),
        on_bus=(page, bare_board(OTHER, "nvidia")),
        arrived=arrived,
        memory=KnownDevices(seen),
        readers=(running("nvidia"), running("host")),
    )


@pytest.mark.parametrize(
    ("arrived", "outcome"),
    [
        (Arrived(), Outcome.FAIL),
        (Arrived(bound={PAGE: at(-2)}), Outcome.UNMEASURED),
        (Arrived(bound={PAGE: at(10 - TAKING_SECONDS)}), Outcome.UNMEASURED),
        (Arrived(bound={PAGE: at(-TAKING_SECONDS)}), Outcome.FAIL),
        (Arrived(bound={OTHER: at(-2)}), Outcome.FAIL),
        (Arrived(resumed={"nvidia": (at(-2), frozenset())}), Outcome.UNMEASURED),
        (Arrived(resumed={"nvidia": (at(-TAKING_SECONDS), frozenset())}), Outcome.FAIL),
        (Arrived(resumed={"amd": (at(-2), frozenset())}), Outcome.FAIL),
    ],
)
@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
def test_a_board_that_arrived_is_lost_after_two_minutes_alone(arrived: Arrived, outcome: Outcome, known: bool) -> None:
    """Until then it is unknown, by its page or by its name, and closes no gate."""
    view = unlisted(arrived, known=known)
    code, device = ("device.missing", "GPU-late") if known else ("device.lost", f"pci-{PAGE}")
    found = of(judge("inventory", view), code, device)
    assert found.outcome is outcome
    assert found.required is (outcome is Outcome.UNMEASURED)
    assert ("wait: " in found.message) is (outcome is Outcome.UNMEASURED)


def test_a_board_that_was_listed_after_a_release_and_is_gone_again_is_missing() -> None:
    """It is no late one: its driver had it."""
    view = unlisted(Arrived(resumed={"nvidia": (at(-2), frozenset({"GPU-late"}))}), known=True)
    assert of(judge("inventory", view), "device.missing", "GPU-late").outcome is Outcome.FAIL


def node_with_pages(tmp_path: Path, library: Path) -> tuple[GpuNode, Path]:
    """Return a node whose driver has its folder in /proc, not started, and the root of its files."""
    files: dict[str, Any] = dict(virtual_machine() | FakeNvml(tmp_path / "unused", library).host_files())
    for slot in range(8):
        facts = f"Model: \t NVIDIA H100 80GB HBM3\nDevice Minor: \t {slot}\n"
        files[f"proc/driver/nvidia/gpus/{pci(slot)}/information"] = facts
    root = write_tree(tmp_path / "root", files)
    return GpuNode(tmp_path, library, root=str(root)), root


def said(status: Mapping[str, Any], words: str) -> bool:
    """Return whether a finding of *status* has these *words*."""
    return any(words in entry["message"] for entry in status["findings"])


def test_a_board_that_a_guest_gives_back_is_never_lost(tmp_path: Path, fake_nvml_library: Path) -> None:
    """The bus shows it bound, and its driver lists it a moment later."""
    node, root = node_with_pages(tmp_path, fake_nvml_library)
    bus, page = root / f"sys/bus/pci/devices/{pci(7)}", root / f"proc/driver/nvidia/gpus/{pci(7)}"
    aside = tmp_path / "aside"
    aside.mkdir()
    shutil.move(bus, aside / "bound")
    shutil.move(page, aside / "page")
    write_tree(root, pci_device(pci(7), "0x10de", "0x2330", "0x030200", driver="vfio-pci", node=1))
    node.machine.set("count", 7)
    with node:
        node.wait_for(lambda status: status["agent"]["ready"] and status["generation"] > 2, 20.0, "not ready")
        bus.rename(aside / "lent")
        (aside / "bound").rename(bus)
        node.wait_for(lambda status: said(status, "has not listed this board yet"), 20.0, "the board was not awaited")
        assert not node.state_file().hard
        (aside / "page").rename(page)
        node.machine.set("count", 8)
        status = node.wait_for_verdict("ok", 30.0)
        assert not [entry for entry in status["findings"] if entry["outcome"] == "fail"]


def test_boards_that_come_one_by_one_after_a_release_are_not_missing(tmp_path: Path, fake_nvml_library: Path) -> None:
    """A person reloads the driver in that time, which lists three boards first, and then all of them."""
    node, _ = node_with_pages(tmp_path, fake_nvml_library)
    with node:
        node.wait_for_verdict("ok", 20.0)
        assert node.command("release", "--for", "3s").returncode == 0
        node.machine.update({f"present.{slot}": 0 for slot in range(3, 8)})
        node.wait_for(lambda status: said(status, "since the devices were released"), 20.0, "no board was awaited")
        assert not node.state_file().hard
        node.machine.clear()
        node.wait_for_verdict("ok", 30.0)
        assert not node.state_file().hard


def host_round(status: Mapping[str, Any]) -> Any:
    """Return when the host was read last."""
    return next(reader["last_round"] for reader in status["readers"] if reader["backend"] == "host")


def wait_for_round(node: GpuNode) -> None:
    """Wait until the host was read once more."""
    before = host_round(node.status())
    node.wait_for(lambda status: host_round(status) != before, 20.0, "the host was not read")


def test_a_driver_that_is_loaded_anew_by_hand_loses_no_board(tmp_path: Path, fake_nvml_library: Path) -> None:
    """The person ends all processes on its nodes, also the collector; the driver lists three boards first, then all."""
    files = virtual_machine() | FakeNvml(tmp_path / "unused", fake_nvml_library).host_files()
    root = str(write_tree(tmp_path / "root", files))
    links = {link: link.readlink() for link in (Path(root, PCI, pci(slot), "driver") for slot in range(8))}
    with GpuNode(tmp_path, fake_nvml_library, root=root) as node:
        node.wait_for_verdict("ok", 20.0)
        for symbol in ("nvmlInit_v2", "nvmlInitWithFlags"):
            node.machine.fail(symbol, NvmlReturn.DRIVER_NOT_LOADED)
        for pid in node.readers():
            os.kill(pid, signal.SIGKILL)
        for link in links:
            link.unlink()
        node.wait_for_finding("reader.failed", 20.0)
        for _ in range(3):  # one of two rounds lists the pages
            wait_for_round(node)
        node.machine.clear()
        node.machine.update({f"present.{slot}": 0 for slot in range(3, 8)})
        for link, target in links.items():
            link.symlink_to(target)
        node.wait_for(lambda status: said(status, "since its driver was bound"), 20.0, "no board was awaited")
        assert not node.state_file().hard
        node.machine.clear()
        node.wait_for_verdict("ok", 30.0)
        assert not node.state_file().hard
