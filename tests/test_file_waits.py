"""A driver's library that writes a file on a disk that stands still: the disk is the cause, and no driver is blamed.

The fake driver writes the log of its calls, as ROCm's amdsmi does below /var/log. Real file systems, real agents.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from fakes.gpu_node import GpuNode
from fakes.kernel import NO_MOUNTS
from fakes.privileges import needs_root

UNIT = ("setpriv", "--bounding-set=-all,+syslog", "--inh-caps=-all")
"""The rights of the shipped unit (CapabilityBoundingSet=CAP_SYSLOG): no kernel stack, only its innermost function."""

Disk = Callable[[Path], AbstractContextManager[Path]]


def sh(*words: str | Path) -> None:
    """Run a command."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


@contextmanager
def mounted(image: Path, megabytes: int, place: Path) -> Iterator[Path]:
    """Make a file system in the file *image* and mount it at *place*."""
    place.mkdir()
    sh("truncate", "-s", f"{megabytes}M", image)
    sh("mkfs.ext4", "-q", image)
    try:
        sh("mount", "-o", "loop", image, place)
    except subprocess.CalledProcessError:
        pytest.skip(NO_MOUNTS)
    try:
        yield place
    finally:
        for _ in range(20):
            if subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.5)


@contextmanager
def frozen(place: Path) -> Iterator[None]:
    """Freeze the file system at *place*, as a snapshot or the backup of a virtual machine does."""
    sh("fsfreeze", "-f", place)
    try:
        yield
    finally:
        sh("fsfreeze", "-u", place)


def logging_node(directory: Path, library: Path, within: tuple[str, ...]) -> tuple[GpuNode, Path]:
    """Return a node whose driver logs below a link, and that link."""
    (directory / "well").mkdir()
    link = directory / "logs"
    link.symlink_to(directory / "well")
    environment = {"NODEVET_FAKE_NVML_LOG": str(link / "calls")}
    return GpuNode(directory, library, deadline_seconds=1.0, within=within, environment=environment), link


def turn(link: Path, folder: Path) -> None:
    """Let *link* lead to *folder*, at once."""
    new = link.with_name("new")
    new.symlink_to(folder)
    new.replace(link)


def nobody_is_blamed(node: GpuNode) -> None:
    """Wait until the call is told as one that cannot be ended; the disk is named, and nothing fails."""
    node.wait_for(lambda now: any(entry["outcome"] != "pass" for entry in now["findings"]), 15.0)
    time.sleep(4.0)  # it was hard after two
    status = node.status()
    assert not [entry["message"] for entry in status["findings"] if entry["outcome"] == "fail"]
    assert status["verdict"] == "unknown"
    assert not node.state_file().hard
    assert any("disk" in entry["message"] for entry in status["findings"])


@contextmanager
def frozen_disk(directory: Path) -> Iterator[Path]:
    """Give a frozen file system: percpu_rwsem_wait under mnt_want_write or vfs_write."""
    with mounted(directory / "image", 32, directory / "disk") as disk, frozen(disk):
        yield disk


@contextmanager
def silent_disk(directory: Path) -> Iterator[Path]:
    """Give a folder on a file system whose disk takes no more writes; its journal waits for the disk."""
    with ExitStack() as cleanup:
        outer = cleanup.enter_context(mounted(directory / "image", 96, directory / "outer"))
        inner = cleanup.enter_context(mounted(outer / "image", 40, directory / "inner"))
        folder = inner / "log"
        folder.mkdir()
        for number in range(4):
            (folder / f"kept{number}").write_text("x")
        sh("sync", "-f", inner)
        for number in range(4):
            (folder / f"dirty{number}").write_text("x")
        others: list[subprocess.Popen[bytes]] = []
        cleanup.callback(lambda: [other.wait() for other in others])
        cleanup.enter_context(frozen(outer))
        others.append(subprocess.Popen(["sync", "-f", str(inner)]))
        time.sleep(1.0)
        yield folder


@contextmanager
def shared_folder(directory: Path) -> Iterator[Path]:
    """Give such a folder in which another program creates a file: path_openat waits for that program."""
    with ExitStack() as cleanup:
        others: list[subprocess.Popen[bytes]] = []
        cleanup.callback(lambda: [other.wait() for other in others])
        folder = cleanup.enter_context(silent_disk(directory))
        others.append(subprocess.Popen(["sh", "-c", f"echo x > {folder}/other"]))
        time.sleep(0.5)
        yield folder


CASES: tuple[tuple[Disk, tuple[str, ...]], ...] = tuple(
    (disk, within) for disk in (shared_folder, silent_disk, frozen_disk) for within in (UNIT, ())
)


@needs_root
def test_a_disk_that_stands_still_is_no_hang_of_the_driver(
    tmp_path: Path, fake_nvml_library: Path, campaign: Callable[[int], int]
) -> None:
    """Whatever its file system waits for, and with the rights of the unit too. Before, it was hard at once."""
    for number, (disk, within) in enumerate(CASES[: campaign(len(CASES))]):
        directory = tmp_path / str(number)
        directory.mkdir()
        node, link = logging_node(directory, fake_nvml_library, within)
        with node:
            node.wait_for_verdict("ok", 30.0)
            with disk(directory) as folder:
                turn(link, folder)
                nobody_is_blamed(node)
            node.wait_for_verdict("ok", 30.0)
