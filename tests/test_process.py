"""One program in a session of its own: it ends in time, with all that it started, and it says how it ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from nodevet.checks.system.process import PIPE, Exit, Process, RunError, RunFailure, Runner

PRODUCT = Path(__file__).parent.parent
SHELL = ("/bin/sh", "-c")


def failure(script: str, seconds: float = 5.0, runner: Runner | None = None) -> RunError:
    """Return how a run of *script* failed."""
    with pytest.raises(RunError) as caught:
        (runner or Runner(grace_seconds=0.3)).run((*SHELL, script), seconds).checked()
    return caught.value


def test_programs_are_started_in_one_place() -> None:
    """Whoever starts one elsewhere has to think again of deadlines, groups, and of what cannot be killed."""
    modules = [path for folder in ("agent", "checks", "exporters") for path in (PRODUCT / folder).rglob("*.py")]
    starting = [path.name for path in modules if "import subprocess" in path.read_text()]
    assert starting == ["process.py"]


def test_what_a_program_printed_comes_back() -> None:
    """With its status and the last line of its standard error; its environment is what was given alone."""
    done = Runner().run((*SHELL, 'echo "$A$HOME"; echo one >&2; echo two >&2; exit 3'), 5.0, {"A": "a"})
    assert (done.exit, done.output, done.last_line) == (Exit(3), b"a\n", "two")
    with pytest.raises(RunError, match="ended with status 3; its last line on standard error: two") as caught:
        done.checked()
    assert caught.value.failure is RunFailure.FAILED


@pytest.mark.parametrize(
    ("script", "seconds", "kind", "says"),
    [
        ("kill -9 $$", 5.0, RunFailure.FAILED, "was killed by SIGKILL"),
        ("echo x; trap '' TERM; sleep 60", 0.2, RunFailure.LATE, "did not end within 0.2 s, it printed 2 bytes so far"),
        ("sleep 60 & exit 0", 5.0, RunFailure.LEFT_BEHIND, "left a process behind that holds its output open"),
        ("exec yes", 5.0, RunFailure.TOO_MUCH, "printed more than 4 MiB, beginning with 'y"),
    ],
)
def test_a_run_that_gives_nothing_says_why(script: str, seconds: float, kind: RunFailure, says: str) -> None:
    """And leaves nothing behind."""
    found = failure(script, seconds)
    assert (found.failure, says in str(found)) == (kind, True), str(found)
    assert not psutil.Process().children(recursive=True)


def test_what_a_program_left_behind_is_ended_with_it(tmp_path: Path) -> None:
    """It is in the group, and nobody else would ever end it."""
    failure(f"sleep 60 & echo $! >{tmp_path}/pid; exit 0")
    left = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5.0
    while psutil.pid_exists(left) and psutil.Process(left).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)


def test_a_run_that_nobody_wants_any_more_is_ended() -> None:
    """Soon, not at its deadline."""
    began = time.monotonic()
    found = failure("exec sleep 60", 30.0, Runner(is_wanted=lambda: time.monotonic() < began + 0.2))
    assert found.failure is RunFailure.UNWANTED
    assert time.monotonic() - began < 5.0


def test_an_end_can_be_looked_at_before_it_is_taken_note_of() -> None:
    """Until then the id belongs to nobody else, and what is left of the group can be killed."""
    process = Process((*SHELL, "sleep 60 & exec true"), stdout=PIPE)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.ended() == process.ended() == Exit(0)
    assert not process.is_reaped
    assert process.reap() == process.ended() == Exit(0)
    assert process.is_reaped


def test_a_process_whose_end_another_took_note_of_has_ended() -> None:
    """As a library may that waits for every child; how it ended is then lost."""
    process = Process((*SHELL, "exit 3"))
    os.waitpid(process.pid, 0)
    assert process.ended() == Exit(0)
    process.signal(signal.SIGKILL)
    assert process.end()
