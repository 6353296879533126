"""The count of what prologs decided: every line once, over restarts and rotations, whatever stands in the log."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodevet.agent.slurm.gate_log import ASIDE_BYTES, DECISIONS, GATE_LOG_NAME, Closings, GateLog


def append(folder: Path, *lines: str) -> None:
    """Append *lines* as prologs do."""
    with (folder / GATE_LOG_NAME).open("a") as log:
        log.writelines(f"{line}\n" for line in lines)


def counted(log: GateLog) -> dict[str, int]:
    """Return what was counted, without the zeros."""
    log.before_judging()
    return {name: count for name, count in log.counts.items() if count}


def test_every_decision_has_a_count_from_the_start(tmp_path: Path) -> None:
    """So that a rate is there before the first decision."""
    log = GateLog(tmp_path)
    log.before_judging()
    assert set(DECISIONS) < set(log.counts)
    assert set(log.counts.values()) == {0}


def test_every_decision_of_the_prolog_is_known(repository: Path) -> None:
    """What the shell may write is what is counted."""
    prolog = (repository / "deploy" / "slurm" / "prolog.sh").read_text()
    undecided = set(re.findall(r"undecided ([a-z_]+)", prolog))
    named = {f"{name}_{way}" for name in undecided for way in ("open", "closed")}
    decided = set(re.findall(r"(?:decide|close_unless_resumed) ([a-z_]+)", prolog))
    assert named | decided | {"observed"} == set(DECISIONS)


def test_a_line_ends_at_its_end_and_nowhere_else(tmp_path: Path) -> None:
    """What other programs take for the end of a line makes no second one."""
    log = GateLog(tmp_path)
    append(tmp_path, "open 1.00 7 a\rclosed 1.00 8 b\x0bclosed 1.00 9 c\x85")
    assert counted(log) == {"open": 1}


def test_lines_are_counted_once(tmp_path: Path) -> None:
    """Also by the next process, which goes on from the memory."""
    log = GateLog(tmp_path)
    append(tmp_path, "open 12.30 7 generation 3", "no_verdict_open 12.40 8 expired")
    assert counted(log) == {"open": 1, "no_verdict_open": 1}
    append(tmp_path, "closed 13.00 9 XID 79")
    heir = GateLog(tmp_path, memory=log.memory)
    assert counted(heir) == {"open": 1, "no_verdict_open": 1, "closed": 1}
    assert counted(heir) == {"open": 1, "no_verdict_open": 1, "closed": 1}


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    """Half a line is not counted, and the whole one is counted once."""
    log = GateLog(tmp_path)
    (tmp_path / GATE_LOG_NAME).write_text("open 1.00 7 x\nclo")
    assert counted(log) == {"open": 1}
    with (tmp_path / GATE_LOG_NAME).open("a") as file:
        file.write("sed 2.00 8 y\n")
    assert counted(log) == {"open": 1, "closed": 1}


def test_a_long_log_is_moved_aside_and_nothing_is_lost(tmp_path: Path) -> None:
    """A prolog that had the old file open writes its line there, and it counts."""
    log = GateLog(tmp_path)
    line = "open 1.00 7 " + "x" * 100
    many = ASIDE_BYTES // len(line) + 1
    append(tmp_path, *[line] * many)
    with (tmp_path / GATE_LOG_NAME).open("a") as held:
        assert counted(log) == {"open": many}
        assert not (tmp_path / GATE_LOG_NAME).exists()
        held.write("closed 2.00 8 late\n")
    append(tmp_path, "observed 3.00 9 y")
    heir = GateLog(tmp_path, memory=log.memory)
    assert counted(heir) == {"open": many, "closed": 1, "observed": 1}
    assert counted(heir) == {"open": many, "closed": 1, "observed": 1}


def test_a_log_that_did_not_change_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent looks at it each second while a fault stands, for days."""
    opened: list[str] = []
    plain = os.open

    def counting(path: str, *rest: int) -> int:
        opened.append(Path(path).name)
        return plain(path, *rest)

    closings, log = Closings(tmp_path), GateLog(tmp_path)
    append(tmp_path, *["open 1.00 7 x"] * 9)
    assert (closings.take(), counted(log)) == (False, {"open": 9})
    monkeypatch.setattr(os, "open", counting)
    for _ in range(50):
        assert (closings.take(), counted(log)) == (False, {"open": 9})
    assert opened == []
    append(tmp_path, "closed 2.00 8 y")
    assert (closings.take(), counted(log)) == (True, {"open": 9, "closed": 1})
    assert (closings.take(), opened.count(GATE_LOG_NAME)) == (False, 2)
    other = tmp_path / "other"
    other.mkdir()
    append(other, *["open 1.00 7 x"] * 9, "closed 3.00 9 z")
    (other / GATE_LOG_NAME).rename(tmp_path / GATE_LOG_NAME)
    assert (closings.take(), counted(log)) == (True, {"open": 18, "closed": 2}), "another file of the same size"


def test_a_log_that_cannot_be_opened_once_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not change since, and its lines were not counted yet."""

    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    log = GateLog(tmp_path)
    append(tmp_path, "closed 1.00 7 x")
    with monkeypatch.context() as few:
        few.setattr(os, "open", refused)
        assert counted(log) == {}
    assert counted(log) == {"closed": 1}


def test_an_emptied_log_begins_anew(tmp_path: Path) -> None:
    """Somebody who truncates the file loses no count and adds none."""
    log = GateLog(tmp_path)
    append(tmp_path, "open 1.00 7 x", "open 1.00 8 x")
    assert counted(log) == {"open": 2}
    (tmp_path / GATE_LOG_NAME).write_text("closed 2.00 9 y\n")
    assert counted(log) == {"open": 2, "closed": 1}


@pytest.mark.parametrize("memory", [b"", b"\xc1", b"\x93\x01\x02\x03"])
def test_a_memory_of_another_version_begins_anew(tmp_path: Path, memory: bytes) -> None:
    """Counters may restart; the agent does not fall over them."""
    append(tmp_path, "open 1.00 7 x")
    assert counted(GateLog(tmp_path, memory=memory)) == {"open": 1}


def test_a_log_that_is_no_file_is_left_alone(tmp_path: Path) -> None:
    """Neither a link nor a folder is read."""
    (tmp_path / "other").write_text("open 1.00 7 x\n")
    (tmp_path / GATE_LOG_NAME).symlink_to(tmp_path / "other")
    assert counted(GateLog(tmp_path)) == {}
    (tmp_path / GATE_LOG_NAME).unlink()
    (tmp_path / GATE_LOG_NAME).mkdir()
    assert counted(GateLog(tmp_path)) == {}


def test_what_did_not_just_open_is_logged(tmp_path: Path) -> None:
    """The agent's own log has the job and the reason of each refusal."""
    told: list[str] = []
    append(tmp_path, "open 1.00 7 x", "closed 2.00 8 XID 79", "nonsense")
    GateLog(tmp_path, log=told.append).before_judging()
    assert told == ["a prolog decided: closed 2.00 8 XID 79", "a prolog decided: nonsense"]


@given(noise=st.binary(max_size=400))
def test_noise_is_counted_as_unreadable_and_does_no_harm(
    noise: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever stands in the log, what follows it is counted."""
    folder = tmp_path_factory.mktemp("log")
    (folder / GATE_LOG_NAME).write_bytes(noise + b"\n")
    log = GateLog(folder)
    log.before_judging()
    before = log.counts["closed"]
    append(folder, "closed 2.00 9 y")
    log.before_judging()
    assert log.counts["closed"] == before + 1
