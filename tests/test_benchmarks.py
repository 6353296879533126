"""Every benchmark runs and says what it measured; how fast anything is, no test asserts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = (
    "statefile",
    "slurm_gate",
    "scrape",
    "latency",
    "store",
    "agent_cost",
    "gemm_checking_cost",
    "gemm_against_torch",
)
CONDITIONS = {"date", "processor", "processors", "kernel", "python", "load_average", "nodevet"}


def _run(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "benchmarks"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_runs_and_writes_its_figures(repository: Path, tmp_path: Path, name: str) -> None:
    """In its quick mode each prints a table and writes the same figures as JSON, with the conditions."""
    found = tmp_path / "figures.json"
    done = _run(repository, name, "--quick", "--json", str(found))
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(found.read_text())
    assert (report["benchmark"], report["quick"]) == (name, True)
    assert set(report["conditions"]) >= CONDITIONS
    assert report["figures"] or report["rows"]
    assert all(figure["what"] in done.stdout for figure in report["figures"])
    assert all(row["dtype"] in done.stdout for row in report["rows"])


def test_every_benchmark_is_known_to_the_command(repository: Path) -> None:
    """A benchmark that exists is run by `python benchmarks`, and is tested here."""
    scripts = {
        path.stem
        for path in (repository / "benchmarks").glob("*.py")
        if 'if __name__ == "__main__"' in path.read_text()
    }
    assert scripts - {"__main__"} == set(BENCHMARKS)
    assert f"of {', '.join(BENCHMARKS)}" in " ".join(_run(repository, "--help").stdout.split())


def test_unknown_benchmark_is_refused(repository: Path) -> None:
    """A name that does not exist is answered with those that do."""
    done = _run(repository, "scrapes")
    assert done.returncode == 2
    assert "no benchmark is called 'scrapes'" in done.stderr
