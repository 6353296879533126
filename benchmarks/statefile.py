"""Cost of the state file: writing it, and a prolog's verdict from it by shell and by Python."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
from harness import DISK, ROOT, Figure, Options, main, timed, timed_in_turn, timing

from fakes.snapshots import gpu_node  # isort: skip - harness makes it importable
from nodevet.checks.core.model import Instant
from nodevet.exporters.statefile.reader import boot_id, read_state, uptime_seconds
from nodevet.exporters.statefile.writer import write_state

MEMORY_FILE_SYSTEM = "/dev/shm"  # noqa: S108 - like /run, where the state file lies
SHELL_BUDGET_MS = 2.0
PYTHON_BUDGET_MS = 25.0


def measure(options: Options) -> Iterator[Figure]:
    """Yield the figures."""
    present = Instant(boot_id(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time())
    snapshot = msgspec.structs.replace(gpu_node(), time=present)
    for name, where in (("memory", MEMORY_FILE_SYSTEM), ("disk", DISK)):
        with tempfile.TemporaryDirectory(dir=where) as folder:
            write = partial(write_state, Path(folder) / "state", snapshot, ttl_seconds=600)
            yield timing(f"write, durable, on {name}", timed(write, options.rounds(200)))
    with tempfile.TemporaryDirectory(dir=MEMORY_FILE_SYSTEM) as folder:
        path = Path(folder) / "state"
        write_state(path, snapshot, ttl_seconds=600)
        yield from _by_shell(path, options)
        yield from _by_python(path, options)


def _by_shell(path: Path, options: Options) -> Iterator[Figure]:
    """Yield the verdict by the program of the reference page, beside a shell that does nothing."""
    page = (ROOT / "docs/reference/state-file.md").read_text(encoding="utf-8")
    script = path.with_name("gate.sh")
    script.write_text(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[0], encoding="utf-8")
    environment = {"NODEVET_STATE_FILE": str(path), "PATH": os.environ["PATH"]}
    empty, verdict = timed_in_turn(
        lambda: _run(["sh", "-c", ":"], environment),
        lambda: _run(["sh", str(script)], environment),
        options.rounds(300),
    )
    yield timing("beside: an empty `sh -c :`", empty)
    yield timing("verdict by `sh`, started for it", verdict, SHELL_BUDGET_MS)
    reading = (statistics.median(verdict) - statistics.median(empty)) * 1e3
    yield Figure(what="of which reading and deciding", value=reading, unit="ms")


def _by_python(path: Path, options: Options) -> Iterator[Figure]:
    yield timing("verdict in Python that runs already", timed(lambda: _read(path), options.rounds(300)))
    with _importable(path.parent) as folder:
        program = (
            f"import sys; sys.path.insert(0, {str(folder)!r})\n"
            "from nodevet.exporters.statefile.reader import boot_id, read_state, uptime_seconds\n"
            f"found = read_state({str(path)!r}, boot_id=boot_id(), uptime_seconds=uptime_seconds(), "
            f"owner_uid={os.getuid()})\n"
            "assert found.devices\n"
        )
        python = [sys.executable, "-I", "-S", "-c"]
        empty, verdict = timed_in_turn(
            lambda: _run([*python, ""], {}), lambda: _run([*python, program], {}), options.rounds(50)
        )
        yield timing("beside: an empty `python -I -S`", empty)
        yield timing("verdict by `python -I -S`, started for it", verdict, PYTHON_BUDGET_MS)


@contextmanager
def _importable(where: Path) -> Iterator[Path]:
    """Lend a folder that the package can be imported from without what an editable installation adds to every start."""
    folder = where / "path"
    (folder / "nodevet").mkdir(parents=True)
    (folder / "nodevet" / "exporters").symlink_to(ROOT / "exporters")
    yield folder


def _read(path: Path) -> None:
    found = read_state(str(path), boot_id=boot_id(), uptime_seconds=uptime_seconds(), owner_uid=os.getuid())
    assert hasattr(found, "devices"), found


def _run(command: Sequence[str], environment: dict[str, str]) -> None:
    subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main("statefile", lambda options: list(measure(options)))
