"""A file system of a few blocks, which a test can fill."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

__all__ = ["NO_SMALL_DISK", "fill", "printing_nowhere", "small_disk"]

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


@contextmanager
def printing_nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All that is printed and told goes to a full disk, as under `>log 2>&1`."""
    full = Path("/dev/full")
    output, errors = full.open("w"), full.open("w", buffering=1)  # to close them raises
    try:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", output)
            patch.setattr(sys, "stderr", errors)
            yield
    finally:
        for stream in (output, errors):
            with suppress(OSError):  # what it still holds
                stream.close()
