"""A test that fails ends what it started: one that waits for it would hold up all that come after it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from fakes.ended import ended


def test_what_a_test_started_ends_where_the_test_fails() -> None:
    """At once, and the test fails by its own error."""
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), ended(subprocess.Popen(["sleep", "600"])) as process:
        raise ZeroDivisionError
    assert process.returncode == -9
    assert time.monotonic() - began < 60.0


def test_what_ends_by_itself_is_waited_for() -> None:
    """As Popen does it."""
    with ended(subprocess.Popen(["sh", "-c", "exit 3"])) as process:
        pass
    assert process.returncode == 3


def test_no_test_waits_for_a_program_without_end() -> None:
    """Popen as a context waits for its program, whatever the test came to."""
    tests = Path(__file__).parent
    waiting = [path.name for path in tests.rglob("*.py") if f"with {'subprocess'}.Popen(" in path.read_text()]
    assert waiting == []
