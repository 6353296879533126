"""A file system of a few blocks, which a test can fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

__all__ = ["NO_SMALL_DISK", "fill", "small_disk"]

NO_SMALL_DISK = "no file system may be mounted here"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB; mounting one takes root."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip(NO_SMALL_DISK)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Callable[[], None]:
    """Fill the file system to its last byte; the function that is returned empties it again."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return ballast.unlink
