"""Report pages in a directory that a site chose."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import msgspec
import pytest
from fakes.silent_file import silent
from fakes.snapshots import cpu_node

from nodevet.agent.config.load import load_configuration
from nodevet.agent.daemon import reports as module
from nodevet.agent.daemon.reports import END_SECONDS, Reports
from nodevet.checks.core.errors import BusyError
from nodevet.checks.engine.registry import installed
from nodevet.checks.system import background
from nodevet.exporters.documents.schema import burn_in_document

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
    kept = reports(tmp_path, told)
    kept.tick()
    assert kept.latest() is None
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


def test_a_disk_that_stands_still_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot of the disk is taken, or its server is gone, when a load ends: before, the agent judged no more.

    Neither did it hear SIGTERM. What it was given is written when the disk goes on, also where the agent ends.
    """
    goes_on = threading.Event()

    def slow(path: Path, data: bytes) -> None:
        assert goes_on.wait(PATIENCE_SECONDS)
        path.write_bytes(data)

    told: list[str] = []
    kept = reports(tmp_path, told)
    monkeypatch.setattr(module, "replace", slow)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.0)
    began = time.monotonic()
    document = burn_in_document(cpu_node(), plan="probe", results=(), series=())
    threading.Timer(1.5, goes_on.set).start()
    kept.render(document)
    kept.tick()
    kept.tick()
    assert (time.monotonic() - began < 1.0, kept.has_any(), kept.latest()) == (True, False, None)
    assert told == [f"report: {tmp_path} does not answer: check its disk, or set report.directory"]
    kept.close()
    assert time.monotonic() - began < END_SECONDS + 1.0
    goes_on.set()
    kept.close()
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"], "no page is begun when the agent ends"


def test_a_report_that_waits_when_the_agent_ends_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document of a load is there, and no page of it is begun: that takes longer than the agent has."""
    goes_on, first = threading.Event(), []

    def slow(path: Path, data: bytes) -> None:
        first.append(path)
        assert len(first) > 1 or goes_on.wait(3.0)
        path.write_bytes(data)

    kept = reports(tmp_path, [])
    monkeypatch.setattr(module, "replace", slow)
    document = burn_in_document(cpu_node(), plan="probe", results=(), series=())
    for number in (1, 2):
        kept.render(msgspec.structs.replace(document, time=f"2026-01-01T00:00:00.{number}Z"))
        while not first:
            time.sleep(0.01)
    threading.Timer(0.05, goes_on.set).start()
    kept.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"20260101T000000-{number}Z.json" for number in (1, 2)]


def test_of_those_who_ask_for_a_page_one_waits_for_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any local user may ask; before, each took a thread and two descriptors for as long as the disk stood still."""
    page = tmp_path / "20200101T000000Z.html"
    page.write_text("page")
    monkeypatch.setattr(module, "READ_SECONDS", 0.05)
    kept = reports(tmp_path, [])
    found: list[bytes | None] = []
    with silent(page):
        first = threading.Thread(target=lambda: found.append(kept.latest()), daemon=True)
        first.start()
        outcome: list[str] = []

        def ask() -> None:
            with pytest.raises(BusyError) as caught:
                kept.latest()
            outcome.append(str(caught.value))

        second = threading.Thread(target=ask, daemon=True)
        time.sleep(0.1)
        second.start()
        second.join(1.0)
        assert "check its disk" in outcome[0]
    first.join(PATIENCE_SECONDS)
    assert (found, kept.latest(), kept.has_any()) == ([b"page"], b"page", True)


def test_a_thread_that_cannot_be_had_costs_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and the next load has its own."""
    told: list[str] = []
    kept = reports(tmp_path, told)

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(background, "start_new_thread", refuse)
        rendered(kept)
    assert told == ["report: no thread can be started: can't start new thread"]
    rendered(kept)
    assert kept.has_any()
