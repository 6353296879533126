"""What every benchmark shares: figures with their budgets, the conditions they were measured under, table and JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

__all__ = [
    "DISK",
    "ROOT",
    "Figure",
    "Options",
    "Report",
    "conditions",
    "main",
    "say",
    "timed",
    "timed_in_turn",
    "timing",
    "write_report",
]

ROOT = Path(__file__).resolve().parent.parent

DISK = "/var/tmp"  # noqa: S108 - a file system on a disk, and never the checkout, which others may be copying
sys.path.insert(0, str(ROOT / "tests"))  # the fake driver and the hand-made snapshots live there

PACKAGES = (
    "nodevet",
    "msgspec",
    "prometheus-client",
    "psutil",
    "structlog",
    "nvidia-ml-py",
    "torch",
    "nvitop-exporter",
)
WARM_UP = 5


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured value. ``high`` is the 95th percentile of what ``value`` is the median of, where there is one.

    ``budget`` is the most that it may be, None where it only stands beside another.
    """

    what: str
    value: float
    unit: str
    high: float | None = None
    budget: float | None = None
    note: str = ""


class Options(msgspec.Struct, frozen=True):
    """How a benchmark is run. ``quick`` only shows that it runs: its figures mean nothing.

    ``python`` is the interpreter whose nodevet the agent's processes run, such as that of an installed wheel.
    """

    quick: bool = False
    python: str = sys.executable

    def rounds(self, thorough: int) -> int:
        """Return how often to repeat what is repeated *thorough* times in earnest."""
        return 3 if self.quick else thorough


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark found. ``rows`` are figures with a shape of their own, such as those of matrix products."""

    benchmark: str
    quick: bool
    conditions: dict[str, str]
    figures: tuple[Figure, ...] = ()
    rows: tuple[dict[str, object], ...] = ()


def main(name: str, measure: Callable[[Options], Sequence[Figure]]) -> None:
    """Run the benchmark *name* by the command line: print its table, and write JSON where ``--json PATH`` says."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__, prog=f"benchmarks/{name}.py")
    parser.add_argument("--quick", action="store_true", help="only show that it runs; the figures mean nothing")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="agent_cost: run the agent with this")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    arguments = parser.parse_args()
    before = conditions()
    figures = tuple(measure(Options(arguments.quick, arguments.python)))
    for line in table(figures):
        say(line)
    if arguments.json:
        write_report(arguments.json, Report(benchmark=name, quick=arguments.quick, conditions=before, figures=figures))


def write_report(path: Path, report: Report) -> None:
    """Write *report* to *path* as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def conditions() -> dict[str, str]:
    """Return what the figures depend on, as it is now."""
    found = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": _processor(),
        "processors": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": f"{os.getloadavg()[0]:.2f}",
    }
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def timed(act: Callable[[], object], rounds: int) -> list[float]:
    """Return the seconds that *act* took in each of *rounds* rounds, after warming up."""
    for _ in range(min(WARM_UP, rounds)):
        act()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    return seconds


def timed_in_turn(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[list[float], ...]:
    """Return the seconds of both, taken in turn, so that what else the machine does meets both alike."""
    pairs = [(timed(first, 1)[0], timed(second, 1)[0]) for _ in range(rounds)]
    return tuple(list(seconds) for seconds in zip(*pairs, strict=True))


def timing(what: str, seconds: Sequence[float], budget_ms: float | None = None, note: str = "") -> Figure:
    """Return median and 95th percentile of *seconds* as a figure in milliseconds."""
    ordered = sorted(seconds)
    high = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    return Figure(
        what=what,
        value=statistics.median(ordered) * 1e3,
        unit="ms",
        high=high * 1e3,
        budget=budget_ms,
        note=note,
    )


def table(figures: Sequence[Figure]) -> list[str]:
    """Return the lines of a table of *figures*."""
    width = max((len(figure.what) for figure in figures), default=0)
    lines = [f"{'':{width}}  {'value':>9}  {'95th':>9}  {'budget':>8}"]
    for figure in figures:
        high = "" if figure.high is None else f"{figure.high:.3f}"
        budget = "" if figure.budget is None else f"{figure.budget:g}"
        over = "  over budget" if figure.budget is not None and figure.value > figure.budget else ""
        note = f"  ({figure.note})" if figure.note else ""
        row = f"{figure.what:{width}}  {figure.value:>9.3f}  {high:>9}  {budget:>8}  {figure.unit}{over}{note}"
        lines.append(row)
    return lines


def say(line: str) -> None:
    """Print *line* at once: a benchmark may take minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
