"""A command of a site leaves out a card: what proves its loss, and what does not (real agents)."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
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
