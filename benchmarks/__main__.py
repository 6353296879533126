"""Measures nodevet against its budgets: ``python benchmarks [NAME...] [--quick] [--json PATH]``.

Every benchmark runs in a process of its own, so that none warms up or fattens another.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from harness import Report, say

FOLDER = Path(__file__).resolve().parent
NAMES = (
    "statefile",
    "slurm_gate",
    "scrape",
    "latency",
    "store",
    "agent_cost",
    "gemm_checking_cost",
    "gemm_against_torch",
)


def main() -> int:
    """Run what the command line names, all by default; return 1 where one could not be run."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="only show that they run; the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}: there are {', '.join(NAMES)}")
    reports, failed = [], []
    for name in arguments.names or NAMES:
        say(f"\n{name}")
        report = _run(name, quick=arguments.quick)
        if report is None:
            failed.append(name)
        else:
            reports.append(report)
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(reports)) + b"\n")
    if failed:
        say(f"\ncould not be run: {', '.join(failed)}")
    return 1 if failed else 0


def _run(name: str, *, quick: bool) -> Report | None:
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "report.json"
        command = [sys.executable, str(FOLDER / f"{name}.py"), "--json", str(found)]
        status = subprocess.run([*command, "--quick"] if quick else command, check=False).returncode
        return msgspec.json.decode(found.read_bytes(), type=Report) if status == 0 else None


if __name__ == "__main__":
    sys.exit(main())
