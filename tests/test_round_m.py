"""What proves a loss or a crash, and what does not: cards that a command leaves out, code of a Python (real agents)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from fakes.gpu_node import GpuNode, pci
from fakes.host_tree import node_files, pci_device, processor_files, write_tree
from fakes.running_agent import RunningAgent
from fakes.site_tool import SettableTool, device, reading, temperature
from test_agent_command import agent, table

NAMES = "abcd"
BOARDS = ("0000:4d:00.0", "0000:4e:00.0")
RENUMBERED = ("0000:6d:00.0", "0000:6e:00.0")


def link(port: int, is_up: bool) -> dict[str, Any]:
    """Return whether a port is up."""
    return reading("link_active", is_up, part={"kind": "link", "index": port})


def mesh(dead: Collection[int] = (), *, count: int = 4, told: bool = False, outside: bool | None = None) -> list[Any]:
    """Return cards with a link between each two of them; those to a *dead* one are down and it is not printed.

    *told*: each link names its peer by the id of the document. *outside*: whether one more port each is up.
    """
    cards = []
    for number in range(count):
        peers = [other for other in range(count) if other != number]
        links = [link(port, peer not in dead) for port, peer in enumerate(peers)]
        links += [link(len(peers), outside)] if outside is not None else []
        ends = [{"port": port, "peer": NAMES[peer]} for port, peer in enumerate(peers)]
        more: dict[str, Any] = {"links": ends} if told else {}
        cards.append(device(NAMES[number], temperature(45), *links, serial=f"S{number}", **more))
    return [card for number, card in enumerate(cards) if number not in dead]


def missing(running: RunningAgent, name: str, seconds: float = 10.0) -> dict[str, Any]:
    """Wait until *name* is told as missing, and return that finding."""

    def of(status: dict[str, Any]) -> list[dict[str, Any]]:
        found = [entry for entry in status["findings"] if (entry["code"], entry["device"]) == ("device.missing", name)]
        return [entry for entry in found if entry["state"] == "open"]

    return of(running.wait_for(of, seconds, f"{name} is not told as missing"))[0]


def on_bus(directory: Path, *addresses: str) -> Path:
    """Return the root of a node whose PCI bus shows Gaudi boards at *addresses*."""
    files = node_files() | processor_files(1, 2, 1, vendor="GenuineIntel", model="Intel(R) Xeon(R) Platinum 8380")
    for address in addresses:
        files |= pci_device(address, "0x1da3", "0x1020", "0x120000", driver="habanalabs")
    return write_tree(directory / "root", files)


def gaudi(*addresses: str) -> list[dict[str, Any]]:
    """Return boards at *addresses* as a command prints them, each with its serial."""
    return [
        device(f"g{slot}", pci=address, vendor="habana", model="HL-225", serial=f"S{slot}")
        for slot, address in enumerate(addresses)
    ]


def node_with(directory: Path, root: Path, tool: SettableTool) -> RunningAgent:
    """Return an agent with the command *tool* that sees the kernel's files below *root*."""
    running = agent(directory, table(tool.program, "gaudi"))
    text = running.configuration_file.read_text()
    running.configuration_file.write_text(text.replace("[agent]\n", f'[agent]\nroot = "{root}"\n', 1))
    return running


@pytest.mark.xfail(strict=True, reason="links that were lost with another board count as links to each board")
def test_a_card_that_is_left_out_beside_one_that_was_removed_is_not_lost(tmp_path: Path) -> None:
    """Card d was removed for good and acknowledged; weeks later the tool of b is killed once. The links to b are up."""
    tool = SettableTool(tmp_path)
    tool.print(*mesh())
    with agent(tmp_path, table(tool.program)) as running:
        running.wait_for_verdict("ok")
        tool.print(*mesh([3]))
        missing(running, "acme:d")
        running.command("ack", "device.missing", "--device", "acme:d", "--note", "sent back")
        running.wait_for_verdict("ok")
        left = mesh([3])
        tool.print(left[0], left[2])
        assert missing(running, "acme:b")["outcome"] == "unmeasured"
        tool.print(*left)
        running.wait_for_verdict("ok")


@pytest.mark.xfail(strict=True, reason="a port of one sibling that leads outside proves the loss of the other card")
def test_a_card_that_is_left_out_while_a_switch_restarts_is_not_lost(tmp_path: Path) -> None:
    """Two cards with a port each to a switch outside, which restarts. The link between them is up throughout."""
    tool = SettableTool(tmp_path)
    tool.print(*mesh(count=2, outside=True))
    with agent(tmp_path, table(tool.program)) as running:
        running.wait_for_verdict("ok")
        dark = mesh(count=2, outside=False)
        tool.print(*dark)
        running.wait_for_finding("link.down")
        tool.print(dark[0])
        assert missing(running, "acme:b")["outcome"] == "unmeasured"
        tool.print(*mesh(count=2, outside=True))
        running.wait_for_verdict("ok")


@pytest.mark.xfail(strict=True, reason="the id of a card that is not in the document is not translated as a peer")
def test_a_dead_card_is_told_where_its_siblings_name_it_as_their_peer(tmp_path: Path) -> None:
    """Each sibling prints the id of the dead card as the peer of the link that it lost: d is lost, a to c are not."""
    tool = SettableTool(tmp_path)
    tool.print(*mesh(told=True))
    with agent(tmp_path, table(tool.program)) as running:
        running.wait_for_verdict("ok")
        tool.print(*mesh([3], told=True))
        assert missing(running, "acme:d")["outcome"] == "fail"
        status = running.wait_for_verdict("failed")
        assert [entry for entry in status["findings"] if entry["code"] == "link.down"] == []


@pytest.mark.xfail(strict=True, reason="only accelerators are looked for on the bus, and every address is compared")
@pytest.mark.parametrize(
    "other",
    [
        {"kind": "nic", "vendor": "nvidia", "model": "CX7"},
        {"kind": "accelerator", "vendor": "habana", "model": "HL-225-VF"},
    ],
    ids=["nic", "virtual function"],
)
def test_a_device_that_the_bus_is_not_asked_about_has_not_left_it(tmp_path: Path, other: dict[str, str]) -> None:
    """The bus that nodevet reads shows no adapters and no virtual functions: its silence about them says nothing."""
    tool = SettableTool(tmp_path)
    more = [{**device(f"n{slot}", pci=f"0000:4d:00.{slot + 1}"), **other} for slot in range(2)]
    tool.print(*gaudi(*BOARDS), *more)
    with node_with(tmp_path, on_bus(tmp_path, *BOARDS), tool) as running:
        running.wait_for_verdict("ok")
        tool.print(*gaudi(*BOARDS), more[0])
        assert missing(running, "0000:4d:00.2")["outcome"] == "unmeasured"
        tool.print(*gaudi(*BOARDS), *more)
        running.wait_for_verdict("ok")


@pytest.mark.xfail(strict=True, reason="the former address is looked for, and the page that nobody reads is not seen")
def test_a_board_whose_bus_has_another_number_has_not_left_it(tmp_path: Path) -> None:
    """The bus shows as many boards as before. The tool of one was killed: the page that is left over is its page."""
    tool = SettableTool(tmp_path)
    tool.print(*gaudi(*BOARDS))
    root = on_bus(tmp_path, *BOARDS)
    with node_with(tmp_path, root, tool) as running:
        running.wait_for_verdict("ok")
        running.kill()
        on_bus(tmp_path, *RENUMBERED)
        for address in BOARDS:
            shutil.rmtree(root / "sys/bus/pci/devices" / address)
        tool.print(gaudi(*RENUMBERED)[0])
        running.start()
        assert missing(running, BOARDS[1], 15.0)["outcome"] == "unmeasured"
        tool.print(*gaudi(*RENUMBERED))
        running.wait_for_verdict("ok")


def ring(dead: Collection[int] = (), *, weak: bool = False) -> list[Any]:
    """Return four cards in a ring that name their peers by address.

    *weak*: a mesh in which a has one link to d, b and c have two.
    """
    cards = []
    for number in range(4):
        peers = [(number + 1) % 4, (number - 1) % 4] if not weak else [peer for peer in range(4) if peer != number]
        links = [link(port, peer not in dead) for port, peer in enumerate(peers)]
        ends = [{"port": port, "peer": f"0000:0{peer}:00.0"} for port, peer in enumerate(peers)]
        if weak and number in (1, 2):  # b and c have two links to d, a has one that works
            links.append(link(len(peers), 3 not in dead))
            ends.append({"port": len(peers), "peer": "0000:03:00.0"})
        facts: dict[str, Any] = {"serial": f"S{number}", "pci": f"0000:0{number}:00.0", "links": ends}
        cards.append(device(NAMES[number], temperature(45), *links, **facts))
    return [card for number, card in enumerate(cards) if number not in dead]


@pytest.mark.xfail(strict=True, reason="each sibling must have lost equally many links, although they name their peers")
@pytest.mark.parametrize("weak", [False, True], ids=["ring", "one link fewer"])
def test_a_dead_card_is_told_where_its_siblings_have_other_numbers_of_links_to_it(tmp_path: Path, weak: bool) -> None:
    """Every link to d is down, and those who had one say so: d is lost, and its neighbours have no fault."""
    tool = SettableTool(tmp_path)
    tool.print(*ring(weak=weak))
    with agent(tmp_path, table(tool.program)) as running:
        running.wait_for_verdict("ok")
        tool.print(*ring([3], weak=weak))
        assert missing(running, "0000:03:00.0")["outcome"] == "fail"
        status = running.wait_for_verdict("failed")
        assert [entry for entry in status["findings"] if entry["code"] == "link.down"] == []


HOOKS = {
    "abrt3.pth": "import abrt_exception_handler3\n",
    "systemd_coredump.pth": "import systemd_coredump_exception_handler\n",
    "__editable__.other.pth": "",
}
"""Files of Fedora and RHEL (python3-abrt-addon, python3-systemd-coredump) that set sys.excepthook, in Python alone."""


def hooked(place: Path, name: str) -> str:
    """Return a Python of which the site-packages have the file *name* of a distribution, with its module."""
    packages = place / "venv" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (place / "venv" / "bin").mkdir()
    python = place / "venv" / "bin" / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    (place / "venv" / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\ninclude-system-site-packages = false\n")
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "__editable__.ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    (packages / name).write_text(HOOKS[name])
    module = HOOKS[name].removeprefix("import ").strip() or "unused"
    (packages / f"{module}.py").write_text("import sys\n\nsys.excepthook = lambda *told: sys.__excepthook__(*told)\n")
    return str(python)


UNKNOWN_HOOK = pytest.mark.xfail(strict=True, reason="each .pth file that no table knows excuses each crash, for ever")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("abrt3.pth", marks=UNKNOWN_HOOK),
        pytest.param("systemd_coredump.pth", marks=UNKNOWN_HOOK),
        "__editable__.other.pth",
    ],
)
def test_a_driver_that_crashes_is_told_beside_a_hook_of_the_distribution(
    tmp_path: Path, fake_nvml_library: Path, name: str
) -> None:
    """The hook is Python alone: the library that aborts in each call at board 3 is hard the second time."""
    node = GpuNode(tmp_path, fake_nvml_library)
    node.python = hooked(tmp_path, name)
    with node:
        node.wait_for_verdict("ok", 30.0)
        node.machine.crash("nvmlDeviceGetTemperature", gpu=3).crash("nvmlDeviceGetTemperatureV", gpu=3)
        assert node.wait_for_verdict("failed", 25.0)["hard"]


def test_a_call_that_crashes_at_another_board_each_time_is_the_drivers(tmp_path: Path, fake_nvml_library: Path) -> None:
    """No board meets it twice: the driver does."""
    with GpuNode(tmp_path, fake_nvml_library) as node:
        node.wait_for_verdict("ok", 30.0)
        for slot in (0, 1):
            node.machine.crash("nvmlDeviceGetTemperature", gpu=slot).crash("nvmlDeviceGetTemperatureV", gpu=slot)
            status = node.wait_for(lambda status: "SIGABRT" in str(status["findings"]), 15.0)
            assert slot or not status["hard"]
            node.machine.clear()
            if not slot:
                node.wait_for_verdict("ok", 30.0)
        assert node.wait_for_verdict("failed")["hard"]


def test_a_kernel_log_file_that_is_written_anew_repeats_no_event(tmp_path: Path, fake_nvml_library: Path) -> None:
    """A tool of the site replaces the file, or truncates and refills it: the acknowledgement holds."""
    with GpuNode(tmp_path, fake_nvml_library) as node:
        node.wait_for_verdict("ok", 30.0)
        node.log_kernel(
            f"NVRM: Xid (PCI:{pci(3)[:-2]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        )
        node.wait_for_finding("nvidia.xid.79")
        node.command("ack", "nvidia.xid.79", "--device", pci(3), "--note", "known")
        node.wait_for_verdict("ok")
        text = node.kernel_log.read_text()
        fresh = node.kernel_log.with_suffix(".new")
        fresh.write_text(text)
        for is_new_file in (True, False):
            if is_new_file:
                fresh.replace(node.kernel_log)
            else:
                node.kernel_log.write_text(text)
            end = node.status()["generation"] + 3
            node.seconds_until(lambda end=end: node.status()["generation"] >= end, 15.0)  # type: ignore[misc]
            status = node.status()
            assert (status["verdict"], status["hard"]) == ("ok", False)
