"""The log: its form for the journal and for people, and how loud it is."""

from __future__ import annotations

import io
import json
import os
import pty
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import pytest
import structlog

from nodevet.agent.daemon.log import configure, make_logger, speaks_to_journal
from nodevet.checks.core.model import Key

TEXT = "lost\nat \x1b[31mnight"


def journal(stream: TextIO) -> dict[str, str]:
    """Return the environment in which *stream* is the journal's."""
    status = os.fstat(stream.fileno())
    return {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}


def logged(path: Path, environment: Mapping[str, str] | None = None, level: str = "info") -> list[str]:
    """Log one line per level into *path* and return what it holds; without *environment* as to the journal."""
    with path.open("w") as stream:
        logger = make_logger(level, stream, journal(stream) if environment is None else environment)
        for name in ("debug", "info", "warning", "error", "critical"):
            getattr(logger, name)("check_failed", check="thermal", text=TEXT, key=Key("a.b", "GPU-0"), odd=Path("/x"))
    return path.read_text().splitlines()


def test_journal_gets_json_with_its_priority(tmp_path: Path) -> None:
    """One line per event, whatever it holds, with the level in front and every field inside."""
    lines = logged(tmp_path / "log", level="debug")

    assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<3>", "<2>"]
    fields = json.loads(lines[2][3:])
    assert {name: fields[name] for name in ("event", "level", "check", "text", "odd")} == {
        "event": "check_failed",
        "level": "warning",
        "check": "thermal",
        "text": TEXT,
        "odd": "/x",
    }
    assert fields["key"]["code"] == "a.b"
    assert fields["timestamp"].endswith("Z")


@pytest.mark.parametrize(("level", "count"), [("debug", 5), ("info", 4), ("warning", 3), ("error", 2)])
def test_level_decides_what_is_written(tmp_path: Path, level: str, count: int) -> None:
    """Below the level nothing is written."""
    assert len(logged(tmp_path / "log", level=level)) == count


def test_people_get_plain_lines(tmp_path: Path) -> None:
    """A file or pipe gets no colours and no priority, and one line per event."""
    lines = logged(tmp_path / "log", environment={})

    assert len(lines) == 4
    assert "check_failed" in lines[0]
    assert "check=thermal" in lines[0]
    assert not any(line.startswith("<") or "\x1b" in line for line in lines)


@pytest.mark.parametrize(("environment", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)])
def test_colours_on_a_terminal_only(environment: dict[str, str], colored: bool) -> None:
    """A terminal gets colours, unless NO_COLOR is set and not empty (https://no-color.org)."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        make_logger("info", terminal, environment).warning("check_failed")
        terminal.flush()
        output = os.read(master, 4096)
    os.close(master)

    assert (b"\x1b[" in output) is colored


def test_redirected_stream_is_not_the_journal(tmp_path: Path) -> None:
    """JOURNAL_STREAM is inherited by what a service redirects elsewhere."""
    with (tmp_path / "a").open("w") as first, (tmp_path / "b").open("w") as second:
        assert speaks_to_journal(first, journal(first))
        assert not speaks_to_journal(second, journal(first))
    assert not speaks_to_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})


def test_exception_is_told_in_one_journal_line(tmp_path: Path) -> None:
    """The traceback is a field."""
    with (tmp_path / "log").open("w") as stream:
        logger = make_logger("info", stream, journal(stream))
        try:
            raise OSError("wedged")
        except OSError:
            logger.exception("reader_failed")
    (line,) = (tmp_path / "log").read_text().splitlines()

    assert "OSError: wedged" in json.loads(line[3:])["exception"]


def test_every_logger_of_the_process_can_be_set_up(tmp_path: Path) -> None:
    """`structlog.get_logger()` writes like the agent's own."""
    with (tmp_path / "log").open("w") as stream:
        configure("warning", stream, journal(stream))
        structlog.get_logger().info("quiet")
        structlog.get_logger().bind(gpu=3).warning("loud")
        structlog.reset_defaults()
    (line,) = (tmp_path / "log").read_text().splitlines()

    assert json.loads(line[3:])["gpu"] == 3
