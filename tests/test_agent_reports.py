"""Report pages in a directory that a site chose."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from fakes.snapshots import cpu_node

from nodevet.agent.config import load_configuration
from nodevet.agent.reports import Reports
from nodevet.checks.registry import installed
from nodevet.exporters.schema import burn_in_document

PATIENCE_SECONDS = 30.0


@pytest.fixture
def told() -> list[str]:
    """Return what was logged."""
    return []


def reports(directory: Path, told: list[str]) -> Reports:
    """Return reports in *directory*, of which one is kept."""
    overrides = {"report.directory": str(directory), "report.keep": 1, "agent.state_dir": str(directory / "state")}
    configuration = load_configuration(None, installed(), overrides=overrides, environment={})
    return Reports(configuration, log=told.append, rendered=lambda page: told.append(str(page)))


def test_a_directory_that_gives_no_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is gone: before, the agent did not start, with a traceback."""

    def stale(path: Path, _pattern: str) -> list[Path]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "glob", stale)
    told: list[str] = []
    assert reports(tmp_path, told).latest() is None
    assert told == [f"report: {tmp_path} cannot be read: Stale file handle: set report.directory"]


def rendered(kept: Reports) -> None:
    """Render one report to its end."""
    kept.render(burn_in_document(cpu_node(), plan="probe", results=(), series=()))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while kept.next_deadline is not None and time.monotonic() < deadline:
        kept.tick()
        time.sleep(0.02)


def test_files_of_others_are_neither_removed_nor_shown(tmp_path: Path, told: list[str]) -> None:
    """A site may name a directory that holds more than our reports."""
    for name in ("fleet.json", "a.json", "zebra.html"):
        (tmp_path / name).write_text("theirs")
    kept = reports(tmp_path, told)
    assert kept.latest() is None
    rendered(kept)
    assert {"fleet.json", "a.json", "zebra.html"} <= {path.name for path in tmp_path.iterdir()}
    assert b"<html" in (kept.latest() or b"").lower(), told


def test_an_old_report_that_cannot_be_removed_is_told(tmp_path: Path, told: list[str]) -> None:
    """It is no reason to end the agent."""
    (tmp_path / "20200101T000000Z.json").mkdir()
    rendered(reports(tmp_path, told))
    assert [line for line in told if "cannot be removed" in line]
