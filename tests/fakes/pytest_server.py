"""Runs pytest many times without starting Python each time: a process that has everything imported but our own code.

Each request is a line of JSON on standard input, each answer a line on standard output. The process forks per request;
what is imported beforehand is what every test file imports and what no mutant changes.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

TIMEOUT_SECONDS = 120
"""For one test, and for each ten more: a run of hundreds takes its time where other tests keep the processors busy."""

OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist")

ALREADY_IMPORTED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
"""Plugins that were imported before pytest began keep their plain assertions, which concerns nobody here."""


class Done(NamedTuple):
    """How one run of pytest ended: its exit code, negative for a signal, and what it printed."""

    returncode: int
    output: str


class PytestServer:
    """The process, seen from a test. Use it in a with statement."""

    def __init__(self, repository: Path) -> None:
        """Start it in *repository*."""
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            cwd=repository,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        """Return the server."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(TIMEOUT_SECONDS)
        self._process.stdout.close()

    def run(self, home: Path, tests: Sequence[str]) -> Done:
        """Run *tests*, such as ``test_x.py::test_y``, against the package below *home*."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryFile() as output:
            request = {
                "home": str(home),
                "tests": [test if test.startswith(("/", "-")) else f"tests/{test}" for test in tests],
                "pid": os.getpid(),
                "timeout_seconds": TIMEOUT_SECONDS * (1 + len(tests) // 10),
            }
            request["output"] = output.fileno()
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            code = json.loads(self._process.stdout.readline())
            output.seek(0)
            return Done(code, output.read().decode("utf-8", "replace"))


def _serve() -> None:
    import hypothesis
    import hypothesis.stateful  # noqa: F401
    import jsonschema  # noqa: F401
    import msgspec  # noqa: F401
    import prometheus_client.openmetrics.parser  # noqa: F401
    import psutil  # noqa: F401
    import pytest
    import structlog  # noqa: F401
    import yaml  # noqa: F401

    gc.freeze()  # no collection of a fork looks at, and so copies, what is here
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            os._exit(_test(request, pytest.main))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _test(request: dict[str, Any], main: Callable[[list[str]], int]) -> int:
    signal.alarm(int(request["timeout_seconds"]))
    home = str(request["home"])
    output = os.open(f"/proc/{request['pid']}/fd/{request['output']}", os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ["PYTHONPATH"] = home
    sys.path.insert(0, home)
    # Short: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as scratch:
        code = int(main([*OPTIONS, *ALREADY_IMPORTED, f"--basetemp={scratch}/t", *request["tests"]]))
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # its neighbours are fakes of libraries with names like theirs
    _serve()
