"""Waits of a library in a call, on real agents: what its own threads and helpers wait for is what it waits for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes.gpu_node import FakeNode
from fakes.privileges import needs_root
from fakes.waiting_library import library, waiting_node
from test_file_waits import frozen, mounted


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build the fake library that waits."""
    with library(tmp_path_factory.mktemp("waiting")) as built:
        yield built


def failures(status: dict[str, Any]) -> list[str]:
    """Return what a status calls a failure."""
    return [entry["message"] for entry in status["findings"] if entry["outcome"] == "fail"]


def is_hard(node: FakeNode, _status: object) -> bool:
    """Return whether the state file says that the node is hard failed."""
    return node.state_file().hard


def never_fails(node: FakeNode, seconds: float, *, is_ok: bool = False) -> None:
    """Watch *node* for some seconds: it is unknown at one time, or may stay *is_ok*, and nothing ever failed."""
    until = time.monotonic() + seconds
    seen = False
    while time.monotonic() < until:
        status = node.status()
        assert failures(status) == []
        seen = seen or status["verdict"] == "unknown"
        time.sleep(0.4)
    assert seen or is_ok


DRIVERS = ("pair", "driver-poll", "worker", "popen", "system", "driver", "deadlock", "join", "poll-both")


def test_a_driver_that_hangs_below_a_thread_or_helper_is_blamed(
    tmp_path: Path, waiting: Path, campaign: Callable[[int], int]
) -> None:
    """A pipe between the parts of a library leads to no other program: its own part waits for the device node."""
    for how in DRIVERS[: 1 + campaign(len(DRIVERS) - 1)]:
        (tmp_path / how).mkdir()
        node, trigger = waiting_node(tmp_path / how, waiting, how, "")
        with node:
            node.wait_for_verdict("ok", 30.0)
            trigger.write_text("")
            node.wait_for(failures, 15.0, f"no hang was told: {how}")
            node.wait_for(partial(is_hard, node), 5.0, f"no hard state file: {how}")


@needs_root
def test_the_next_agent_starts_no_reader_beside_one_whose_thread_cannot_end(
    tmp_path: Path, waiting: Path, campaign: Callable[[int], int]
) -> None:
    """Its first thread is a zombie, another one is in state D: the process lives. Before, the node was ok at once.

    The disk is the cause, also after ten deadlines (in full): before, the driver was blamed then.
    """
    with mounted(tmp_path / "image", 32, tmp_path / "disk") as disk:
        node, trigger = waiting_node(tmp_path, waiting, "thread-on-disk", str(disk / "log"))
        with node:
            node.wait_for_verdict("ok", 30.0)
            (first,) = node.readers()
            with frozen(disk):
                trigger.write_text("")
                never_fails(node, 7.2 * campaign(10))
                cannot: Callable[[dict[str, Any]], object] = lambda status: any(  # noqa: E731
                    "cannot be terminated" in entry["message"] for entry in status["findings"]
                )
                node.wait_for(cannot, 25.0)
                trigger.unlink()
                node.kill()
                node.start()
                time.sleep(9.0)
                assert Path(f"/proc/{first}").exists()
                assert [reader for reader in node.readers() if reader != first] == []
                assert node.status()["verdict"] == "unknown"


def test_a_file_whose_name_is_not_utf8_costs_no_page_and_no_record(tmp_path: Path, waiting: Path) -> None:
    """The name of the file that a reader waits for comes from the kernel as bytes."""
    other = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    os.mkfifo(other)
    node, trigger = waiting_node(tmp_path, waiting, "open", str(other))
    with node:
        node.wait_for_verdict("ok", 30.0)
        trigger.write_text("")
        until = time.monotonic() + 8.0
        while time.monotonic() < until:
            assert node.get("/api/v1/status").startswith("{")
            assert "a bug in nodevet" not in node.state_line()
            time.sleep(0.4)
        assert "reader.down" in node.command("history").stdout
