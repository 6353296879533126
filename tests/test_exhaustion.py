"""What the machine lacks for the moment, told with what to do about it."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from nodevet.checks.backends.nvml import why_not_loaded
from nodevet.checks.exhaustion import EXHAUSTED, next_step


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
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        words = why_not_loaded(str(library))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert words.endswith("raise fs.file-max or LimitNOFILE of the unit")
