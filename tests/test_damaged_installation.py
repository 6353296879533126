"""A file of nodevet or of a wrapper that is damaged or cannot be read: told as that, and no bug of anybody."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import reader
from fakes.nvml.scenario import FakeNvml
from fakes.reader import ReaderProcess

from nodevet.checks.backends.base import BackendError, imported
from nodevet.checks.core.model import FailureKind

CHILD = (
    "import sys; sys.path.insert(0, {folder!r}); from nodevet.checks.backends.reader_main import main; sys.exit(main())"
)


def zeros(path: Path) -> None:
    """As a machine that lost its power may leave a file."""
    path.write_bytes(bytes(4096))


def unreadable(path: Path) -> None:
    """Each read gives EIO, as one of a failing disk does."""
    path.symlink_to("/proc/self/mem")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "zeros": zeros,
    "unreadable": unreadable,
    "empty": Path.touch,
    "cut": lambda path: path.write_text("NVML_FI_MAX = NVML_FI_"),
    "another": lambda path: path.write_text("from string import no_such_name"),
}
"""What may become of a file of the wrapper."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_wrapper_is_to_be_installed_anew(
    tmp_path: Path, fake_nvml_library: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """It was nodevet's own error, to be reported; or the retired distribution of another name."""
    DAMAGES[damage](tmp_path / "pynvml.py")
    code = CHILD.format(folder=str(tmp_path))
    monkeypatch.setattr(reader, "CHILD", (sys.executable, "-I", "-c", code))
    machine = FakeNvml(tmp_path / "scenario", fake_nvml_library)
    with ReaderProcess(machine.environment) as process:
        failure = process.failed()
    assert (failure.kind, failure.of_driver) == (FailureKind.READER, False)
    assert "nvidia-ml-py" in failure.detail
    assert "install it anew" in failure.detail
    assert "report this" not in failure.detail


@pytest.mark.parametrize("error", [SyntaxError("null bytes"), OSError(5, "cannot read"), EOFError(), NameError()])
def test_what_an_import_raises_is_no_bug(error: Exception) -> None:
    """With its words and the next step; what the caller knows passes."""

    def load() -> None:
        raise error

    with pytest.raises(BackendError, match=type(error).__name__) as raised:
        imported("nodevet", load)
    assert "see journalctl -k" in raised.value.failure.detail
    with pytest.raises(type(error)):
        imported("nodevet", load, let=(type(error),))
