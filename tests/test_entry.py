"""The installed command, started from a shell that says something to other Pythons."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nodevet.agent
from nodevet.agent import __version__, entry

SCRIPT = "import sys; from nodevet.agent.entry import main; sys.exit(main())"
"""As pip writes it into the command."""


class BegunAnewError(Exception):
    """Stands for the process that execv(2) makes of this one."""


class EndedError(Exception):
    """Stands for the end of this process."""


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise where the command begins anew, and print the version where it goes on."""

    def begin(_program: str, words: list[str]) -> None:
        raise BegunAnewError(" ".join(words[1:]))

    def end(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(os, "execv", begin)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(sys, "argv", ["nodevet", "--version"])
    for name in entry.FOREIGN:
        monkeypatch.delenv(name, raising=False)


def test_what_lies_in_pythonpath_is_not_imported(tmp_path: Path) -> None:
    """Environment modules of a site put other versions of our libraries there; before, they ended each command."""
    for name in ("msgspec", "json", "argparse", "structlog"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(1)\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "error", "PYTHONINSPECT": "1"},
        cwd=tmp_path.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"nodevet {__version__}\n", "")


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("name", entry.FOREIGN)
def test_the_command_begins_anew_without_what_is_meant_for_others(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With the words that were typed."""
    monkeypatch.setenv(name, "/somewhere")
    with pytest.raises(BegunAnewError, match=r"^-E -P -m nodevet\.agent\.cli --version$"):
        entry.main()


@pytest.mark.usefixtures("anew")
def test_where_nothing_is_said_the_command_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """A second start of Python costs milliseconds."""
    with pytest.raises(EndedError, match=r"^0$"):
        entry.main()
    assert capsys.readouterr().out == f"nodevet {__version__}\n"


@pytest.mark.usefixtures("anew")
def test_a_package_that_is_installed_by_pythonpath_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a site does that builds its software with modules: without the path there would be no command."""
    assert nodevet.agent.__file__ is not None
    monkeypatch.setenv("PYTHONPATH", f"/somewhere:{Path(nodevet.agent.__file__).parent.parent}")
    with pytest.raises(EndedError, match=r"^0$"):
        entry.main()
