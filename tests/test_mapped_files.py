"""The files that a process has mapped, from the kernel's list of them."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from nodevet.agent.readers.mapped_files import mapped_files
from nodevet.checks.core.wire import Progress


def line(path: str, permissions: str = "rw-s") -> str:
    """Return a mapping as /proc/PID/maps shows it."""
    return f"7f0000000000-7f0000001000 {permissions} 00000000 00:01 77                         {path}\n"


@pytest.mark.parametrize(
    ("name", "is_shared"),
    [
        ("/memfd:ring (deleted)", True),
        ("/memfd:nodevet-progress (deleted)", False),
        ("/SYSV0000002a (deleted)", True),
        ("/dev/zero (deleted)", False),
        ("", False),
    ],
)
def test_memory_that_another_program_handed_over_is_shared(name: str, is_shared: bool) -> None:
    """All but that of the agent: a program may write into it, or wait for it."""
    assert mapped_files(line(name)).shared == ((name,) if is_shared else ())
    assert mapped_files(line(name, "rw-p")).shared == ()
    assert mapped_files(line(name, "r--s")).shared == ()


def test_the_progress_line_of_a_reader_is_its_own() -> None:
    """By the kernel's own list of a process that has it."""
    progress, descriptor = Progress.create()
    ring = os.memfd_create("ring")
    os.truncate(ring, 4096)
    with mmap.mmap(ring, 4096):
        shared = mapped_files(Path("/proc/self/maps").read_text()).shared
    os.close(ring)
    os.close(descriptor)
    assert progress.read() == ""
    assert "/memfd:ring (deleted)" in shared
    assert not [name for name in shared if "progress" in name]
