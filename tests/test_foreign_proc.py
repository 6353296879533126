"""Where /proc is of another PID namespace, each look at a child would be a look at an unrelated process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.privileges import needs_root

from nodevet.checks.core.errors import ConfigurationError
from nodevet.checks.system.procfs import refuse_foreign_proc

FOREIGN = ("unshare", "--pid", "--fork", "--kill-child")
"""A PID namespace of its own below the /proc of the one above it, as of a container without --pid=host."""


def proc(folder: Path, shown: str | None, *, mounted: bool = True) -> Path:
    """Return the link ``self`` of a /proc in *folder*, which names the process *shown*."""
    if mounted:
        (folder / "stat").write_text("cpu 0\n")
    if shown is not None:
        (folder / "self").symlink_to(shown)
    return folder / "self"


@pytest.mark.parametrize("shown", ["1", None], ids=["another", "none"])
def test_a_proc_of_other_processes_is_refused(tmp_path: Path, shown: str | None) -> None:
    """Its link to the process that reads it names another one, or none."""
    with pytest.raises(ConfigurationError, match="is of another PID namespace"):
        refuse_foreign_proc(proc(tmp_path, shown))


def test_its_own_proc_and_none_at_all_are_taken(tmp_path: Path) -> None:
    """Without /proc nothing is known of processes, and nothing wrong."""
    refuse_foreign_proc(proc(tmp_path, None, mounted=False))
    refuse_foreign_proc(proc(tmp_path, str(os.getpid())))
    refuse_foreign_proc()


@needs_root
@pytest.mark.parametrize("verb", ["agent", "check", "burn-in"])
def test_each_command_that_reads_devices_refuses_to_start(tmp_path: Path, verb: str) -> None:
    """It says what to change; before, a thread of the kernel was a collector that cannot be killed, hard."""
    places = ("--state-dir", str(tmp_path / "state"), "--runtime-dir", str(tmp_path / "run"))
    command = [*FOREIGN, sys.executable, "-I", "-m", "nodevet.agent.cli", verb, *places]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 78, done.stderr
    assert "start the container with --pid=host" in done.stderr
    assert not (tmp_path / "state").exists()
