"""What the machine lacks for the moment, told with what to do about it."""

from __future__ import annotations

import errno
import os
import resource
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from fakes.clocks import SteppedClock
from fakes.snapshots import gpu_node

from nodevet.agent.cli import commands
from nodevet.agent.commands import topo
from nodevet.agent.config.reader_plan import ReaderPlan
from nodevet.agent.once.run import STARTS, is_given_up
from nodevet.agent.readers.supervisor import Supervisor
from nodevet.agent.terminal.text import unread_lines
from nodevet.checks.backends.nvidia.nvml import why_not_loaded
from nodevet.checks.core.errors import BusyError
from nodevet.checks.core.model import ReaderState, ReaderStatus
from nodevet.checks.engine.view import Cadence
from nodevet.checks.system.exhaustion import EXHAUSTED, next_step
from nodevet.exporters.documents.schema import status_document


@contextmanager
def no_descriptor_free() -> Iterator[None]:
    """Let this process open nothing more; what it has open it keeps."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("number", [*EXHAUSTED, errno.ENOENT, errno.EIO])
def test_what_is_there_is_not_to_be_installed_for_want_of_room(number: int) -> None:
    """The error of an import and the text of the loader alike."""
    texts = (str(OSError(number, os.strerror(number), "x.py")), f"libx.so: cannot open: {os.strerror(number)}")
    for text in texts:
        assert (next_step(text, "install it") == "install it") is (number not in EXHAUSTED)


def test_a_library_for_which_no_descriptor_is_free_is_not_to_be_installed(tmp_path: Path) -> None:
    """As the loader itself tells it."""
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text("")
    with no_descriptor_free():
        words = why_not_loaded(str(library))
    assert words.endswith("raise LimitNOFILE of the agent's unit, or ulimit -n of the shell")


ASKED = {
    "ack": ("gpu5", "--note", "x"),
    "explain": ("xid", "79"),
    "readings": ("check", "none.json"),
    "report": ("render", "none.json"),
    "slurm": ("check",),
    "config": ("check",),
}
LOOKING = {"agent", "check", "devices", "burn-in"}
"""These start readers, which is tried three times: other tests have them."""


@pytest.mark.parametrize("descriptors", [6, 8, 12])
@pytest.mark.parametrize("command", sorted(set(commands()) - LOOKING))
def test_no_command_ends_with_a_traceback_for_want_of_descriptors(
    tmp_path: Path, command: str, descriptors: int
) -> None:
    """It says what lacks; before, `nodevet topo` called it a bug of ours (`ulimit -n 8`)."""
    places = ("--state-dir", str(tmp_path), "--runtime-dir", str(tmp_path)) if command in ("topo", "status") else ()
    words = (sys.executable, "-m", "nodevet.agent.cli", command, *ASKED.get(command, ()), *places)
    shell = ("sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *words)
    done = subprocess.run(shell, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode not in (1, 70)


def test_the_links_of_a_node_cannot_be_read_without_a_descriptor() -> None:
    """That is told with what to raise."""
    with no_descriptor_free(), pytest.raises(BusyError, match="ulimit -n"):
        topo._read("amd", "/")


def test_a_reader_that_cannot_be_started_is_waited_for_no_longer() -> None:
    """`nodevet devices` said nothing for a minute, and then printed an empty table."""
    clock = SteppedClock()
    plan = ReaderPlan(backend="host", cadences={"fast": Cadence(10, 5)}, argv=("/none",))
    with selectors.DefaultSelector() as selector:
        readers = Supervisor([plan], clock, selector, lambda _told: None)
        seconds = 0
        while not all(map(is_given_up, readers.unsettled)):
            clock.advance(1.0)
            readers.tick()
            seconds += 1
    assert STARTS <= seconds <= 2 * STARTS


@pytest.mark.parametrize("living", [{"pid": 7}, {"hangs": 1}, {"crashes": 1}, {"starts": STARTS - 1}])
def test_a_reader_that_came_up_is_waited_for(living: dict[str, int]) -> None:
    """However often it fell: the next may answer."""
    status = {"backend": "host", "state": ReaderState.CRASHED, "starts": STARTS} | living
    assert not is_given_up(ReaderStatus(**status))  # type: ignore[arg-type]


def test_an_inventory_says_which_reader_is_missing_in_it() -> None:
    """And why."""
    why = "the nvidia collector cannot be started"
    down = ReaderStatus(backend="nvidia", state=ReaderState.CRASHED, detail=why)
    up = ReaderStatus(backend="host", state=ReaderState.RUNNING, detail="")
    document = status_document(msgspec.structs.replace(gpu_node(), readers=(down, up)))
    assert list(unread_lines(document)) == [f"nvidia collector crashed: {why}"]
