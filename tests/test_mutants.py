"""Lines on which health depends, each broken on purpose: the named test must fail.

A mutant is a copy of the package with one line changed. That the unchanged copy passes the same tests shows that it
is the change which kills. The mutants are listed by topic in tests/mutants/*.toml; those that the test of a check
kills may stand in that test. They are a campaign: the tests run a tenth of them, `make soak` runs all.
"""

from __future__ import annotations

import compileall
import importlib
import os
import shutil
import tomllib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from fakes.pytest_server import PytestServer

import nodevet.agent
import nodevet.checks
import nodevet.exporters

PACKAGES = (nodevet.agent, nodevet.checks, nodevet.exporters)
TABLES = Path(__file__).parent / "mutants"


class Mutant(NamedTuple):
    """One line changed, and the test that must notice."""

    name: str
    file: str
    old: str
    new: str
    killer: str


def _mutants() -> tuple[Mutant, ...]:
    """Every entry of tests/mutants/*.toml, and of ``MUTANTS`` in the test of a check."""
    tables = (tomllib.loads(path.read_text()) for path in sorted(TABLES.glob("*.toml")))
    return tuple(Mutant(**entry) for table in tables for entry in table["mutant"]) + tuple(_of_checks())


def _of_checks() -> Iterator[Mutant]:
    for path in sorted(TABLES.parent.glob("test_health_*.py")):
        check = f"checks/health/{path.stem.removeprefix('test_health_')}.py"
        for name, (old, new, test) in getattr(importlib.import_module(path.stem), "MUTANTS", {}).items():
            yield Mutant(name, check, old, new, f"{path.name}::{test}")


MUTANTS = _mutants()
KILLERS = sorted({mutant.killer for mutant in MUTANTS})
ROOMS = {package.__name__.rsplit(".", 1)[-1]: Path(next(iter(package.__path__))) for package in PACKAGES}


def _drawn() -> list[Mutant]:
    """About a tenth. The text of the changed file draws it, so that each change of a file tries others of its lines."""

    def draw(mutant: Mutant) -> int:
        room, _, rest = mutant.file.partition("/")
        return zlib.crc32((ROOMS[room] / rest).read_bytes() + mutant.name.encode()) % 10

    return [mutant for mutant in MUTANTS if draw(mutant) == 0]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All of them under --soak."""
    if "mutant" in metafunc.fixturenames:
        mutants = MUTANTS if metafunc.config.getoption("--soak") else _drawn()
        metafunc.parametrize("mutant", mutants, ids=lambda mutant: mutant.name)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package outside of the tree."""
    home = tmp_path_factory.mktemp("pristine")
    for room, source in ROOMS.items():
        shutil.copytree(source, home / "nodevet" / room)
    compileall.compile_dir(home, quiet=1)  # once, not once for each copy
    return home


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[PytestServer]:
    """A process that runs pytest against any copy."""
    with PytestServer(repository) as started:
        yield started


def test_every_mutant_has_a_name_of_its_own() -> None:
    """Two tables that use one name would hide one mutant from a report."""
    names = [mutant.name for mutant in MUTANTS]
    assert sorted(set(names)) == sorted(names)


def test_every_mutant_changes_one_line(repository: Path) -> None:
    """A line that moved takes its mutants along, or this says at once which."""
    texts = {mutant.file: (repository / mutant.file).read_text() for mutant in MUTANTS}
    assert [mutant.name for mutant in MUTANTS if texts[mutant.file].count(mutant.old) != 1] == []


def test_every_killer_exists(pristine: Path, server: PytestServer) -> None:
    """A test or a case of one that was renamed takes its mutants along, or this says at once which."""
    done = server.run(pristine, ["--collect-only", *KILLERS])
    assert done.returncode == 0, done.output[-4000:]


def test_a_tenth_is_drawn() -> None:
    """Neither none nor nearly all: a draw that is always the same number would be one of both."""
    assert len(MUTANTS) / 20 < len(_drawn()) < len(MUTANTS) / 5


def test_unchanged_copy_passes(
    pristine: Path, server: PytestServer, tmp_path: Path, campaign: Callable[[int], int]
) -> None:
    """And it is the copy that is tested, not the tree. Every tenth killer, under --soak all."""
    probe = tmp_path / "test_probe.py"
    probe.write_text("from nodevet.checks.engine import view\n\ndef test_it() -> None:\n    assert 0, view.__file__\n")
    found = server.run(pristine, [str(probe)])
    assert f"AssertionError: {pristine}" in found.output
    done = server.run(pristine, KILLERS[:: 10 // campaign(10)])
    assert done.returncode == 0, done.output[-4000:]


@pytest.mark.soak
def test_mutant_is_killed(mutant: Mutant, pristine: Path, server: PytestServer, tmp_path: Path) -> None:
    """The named test fails, and fails because of an assertion or error in a test, not for want of one."""
    shutil.copytree(pristine / "nodevet", tmp_path / "nodevet", copy_function=os.link)
    victim = tmp_path / "nodevet" / mutant.file
    text = victim.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.file} holds {mutant.old!r} {text.count(mutant.old)} times"
    victim.unlink()  # it is one file with that of the other copies
    victim.write_text(text.replace(mutant.old, mutant.new))
    done = server.run(tmp_path, [mutant.killer])
    assert done.returncode == 1, f"{mutant.killer} did not notice\n{done.output[-4000:]}"
    assert " failed" in done.output
