"""Cost of the state file: writing it, and a shell's verdict from it beside an empty shell.

Prints medians and 95th percentiles in milliseconds. Run: python benchmarks/statefile.py
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import msgspec
from fakes.snapshots import gpu_node

from nodevet.checks.model import Instant
from nodevet.exporters.state_reader import boot_id, read_state, uptime_seconds
from nodevet.exporters.statefile import write_state

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 200


def main() -> None:
    """Measure and print."""
    present = Instant(boot_id(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time())
    snapshot = msgspec.structs.replace(gpu_node(), time=present)
    gate = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/reference/state-file.md").read_text(), re.DOTALL)[0]
    for where in ("/dev/shm", str(ROOT)):  # noqa: S108 - a memory file system, as /run is
        with tempfile.TemporaryDirectory(dir=where) as folder:
            path = Path(folder) / "state"
            report(f"write, durable, under {where}", timed(partial(write_state, path, snapshot, ttl_seconds=600)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        write_state(path, snapshot, ttl_seconds=600)
        script = Path(folder) / "gate.sh"
        script.write_text(gate)
        environment = {"NODEVET_STATE_FILE": str(path), "PATH": os.environ["PATH"]}
        empty = timed(lambda: _run(["sh", "-c", ":"], environment))
        verdict = timed(lambda: _run(["sh", str(script)], environment))
        report("empty `sh -c :`", empty)
        report("verdict by `sh`, the program of the reference page", verdict)
        difference = statistics.median(verdict) - statistics.median(empty)
        sys.stdout.write(
            f"{'reading and deciding, without the start of a shell':<56} median {difference * 1e3:6.2f} ms\n"
        )
        report("verdict in Python, interpreter running", timed(lambda: _read(path)))
        python = "from nodevet.exporters.state_reader import *; import os; import sys; boot_id(); uptime_seconds()"
        report(
            "Python started for it, `python -I`",
            timed(lambda: _run([sys.executable, "-I", "-c", python], environment), 30),
        )


def _read(path: Path) -> None:
    found = read_state(str(path), boot_id=boot_id(), uptime_seconds=uptime_seconds(), owner_uid=os.getuid())
    assert hasattr(found, "devices"), found


def _run(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(command, env=environment, check=True)


def timed(act: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Return the seconds that *act* took in each of *rounds* rounds, after warming up."""
    for _ in range(5):
        act()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return seconds


def report(what: str, seconds: list[float]) -> None:
    """Print median and 95th percentile of *seconds*."""
    median, high = statistics.median(seconds) * 1e3, statistics.quantiles(seconds, n=20)[-1] * 1e3
    sys.stdout.write(f"{what:<56} median {median:6.2f} ms, p95 {high:6.2f} ms\n")


if __name__ == "__main__":
    main()
