"""The file of a scenario: what is no such file is refused at once, and a running node goes on as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.clocks import SteppedClock

from nodevet.agent.simulated.node import SCENARIO_BYTES, SimulatedNode, read_scenario
from nodevet.checks.core.errors import ConfigurationError

PROFILE = "cpu-node"
GOOD = 'title = "before"\n'

Spoil = Callable[[Path], object]

SPOILT: dict[str, tuple[Spoil, str]] = {
    "binary": (lambda path: path.write_bytes(b"\x7fELF\x02\x01\xff\x00"), "byte 6 is not UTF-8"),
    "zeros": (lambda path: path.write_bytes(bytes(100)), "not valid TOML"),
    "directory": (Path.mkdir, "is not a regular file"),
    "pipe without a writer": (os.mkfifo, "is not a regular file"),
    "device without an end": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "loop of links": (lambda path: path.symlink_to(path), "cannot be read"),
    "link to nothing": (lambda path: path.symlink_to("nothing"), "No such file"),
    "ten megabytes": (lambda path: path.write_bytes(b"#" * 10_000_000), f"is larger than {SCENARIO_BYTES >> 10} KiB"),
    "deleted": (lambda _path: None, "No such file"),
    "a number of 9000 digits": (lambda path: path.write_text(f"seed = {'9' * 9000}"), "not valid TOML"),
    "not a number": (lambda path: path.write_text("level = nan"), "expected a number"),
}
"""What stands where the scenario was, and why it is refused."""


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_no_scenario_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """With the file's name, and without waiting for what never comes."""
    spoil, words = SPOILT[name]
    path = tmp_path / "scenario.toml"
    spoil(path)
    with pytest.raises(ConfigurationError) as caught:
        read_scenario(path, PROFILE)
    assert words in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("name", SPOILT)
def test_a_running_node_goes_on_when_its_scenario_is_spoilt(tmp_path: Path, name: str) -> None:
    """The file that the readers follow stays, the trouble is told, and the next good scenario is taken up."""
    path, clock, told = tmp_path / "scenario.toml", SteppedClock(), list[str]()
    path.write_text(GOOD)
    node = SimulatedNode(PROFILE, "bench", tmp_path, clock, scenario=path, log=told.append)
    node.start()
    before = node.file.read_bytes()
    path.unlink()
    spoil, words = SPOILT[name]
    spoil(path)
    clock.advance(2.0)
    node.tick()
    assert words in node.trouble and told[-1] == node.trouble
    assert (node.title, node.file.read_bytes()) == ("before", before)
    (tmp_path / "good.toml").write_text('title = "after"\n')
    if path.is_dir():
        path.rmdir()
    (tmp_path / "good.toml").replace(path)
    clock.advance(2.0)
    node.tick()
    assert (node.trouble, node.title) == ("", "after")
