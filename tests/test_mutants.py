"""Lines on which health depends, each broken on purpose: the named test must fail.

A mutant is a copy of the package with one line changed. That the unchanged copy passes the same tests shows that it
is the change which kills. The mutants are listed by topic in tests/mutants/*.toml.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

import nodevet.agent
import nodevet.checks
import nodevet.exporters

PACKAGES = (nodevet.agent, nodevet.checks, nodevet.exporters)
TABLES = Path(__file__).parent / "mutants"
TIMEOUT_SECONDS = 120


class Mutant(NamedTuple):
    """One line changed, and the test that must notice."""

    name: str
    file: str
    old: str
    new: str
    killer: str


def _mutants() -> tuple[Mutant, ...]:
    """Every entry of tests/mutants/*.toml."""
    tables = (tomllib.loads(path.read_text()) for path in sorted(TABLES.glob("*.toml")))
    return tuple(Mutant(**entry) for table in tables for entry in table["mutant"])


MUTANTS = _mutants()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package outside of the tree."""
    home = tmp_path_factory.mktemp("pristine")
    for package in PACKAGES:
        source = Path(next(iter(package.__path__)))
        shutil.copytree(source, home / "nodevet" / package.__name__.rsplit(".", 1)[-1])
    return home


def run(home: Path, repository: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run *tests* of *repository* against the package below *home*."""
    # Half of the time would go into the import of a plugin that reports what hypothesis found.
    plugins = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", *plugins, f"--basetemp={home / 'tmp'}"]
    return subprocess.run(
        [*command, *(f"tests/{test}" for test in tests)],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_every_mutant_has_a_name_of_its_own() -> None:
    """Two tables that use one name would hide one mutant from a report."""
    names = [mutant.name for mutant in MUTANTS]
    assert sorted(set(names)) == sorted(names)


def test_unchanged_copy_passes(pristine: Path, repository: Path) -> None:
    """And it is the copy that is tested, not the tree."""
    where = subprocess.run(
        [sys.executable, "-c", "import nodevet.checks.view, nodevet.agent; print(nodevet.checks.view.__file__)"],
        env={**os.environ, "PYTHONPATH": str(pristine)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(pristine)
    done = run(pristine, repository, *(mutant.killer for mutant in MUTANTS))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant, pristine: Path, repository: Path, tmp_path: Path) -> None:
    """The named test fails, and fails because of an assertion or error in a test, not for want of one."""
    shutil.copytree(pristine / "nodevet", tmp_path / "nodevet")
    victim = tmp_path / "nodevet" / mutant.file
    text = victim.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.file} holds {mutant.old!r} {text.count(mutant.old)} times"
    victim.write_text(text.replace(mutant.old, mutant.new))
    done = run(tmp_path, repository, mutant.killer)
    assert done.returncode == 1, f"{mutant.killer} did not notice\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert " failed" in done.stdout
