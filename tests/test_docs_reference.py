"""Reference pages say what the code and its tables say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.reference_pages import PAGES

from nodevet.agent.cli import commands
from nodevet.checks.burnin.families import data_types
from nodevet.checks.engine.registry import discover


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(repository: Path, golden: Callable[[Path, str], None], name: str) -> None:
    """A page that follows from the code is what the code gives now."""
    golden(repository / "docs" / "reference" / name, PAGES[name](repository))


def test_every_check_and_every_command_has_its_section(repository: Path) -> None:
    """Nothing that is registered is missing from its page."""
    checks = PAGES["checks.md"](repository).splitlines()
    headings = PAGES["command-line.md"](repository).splitlines()
    assert {f"## {declared.name}" for declared in discover()} <= set(checks)
    assert {f"## nodevet {name}" for name in commands()} <= set(headings)


@pytest.mark.parametrize("name", data_types())
def test_ranges_of_formats_are_the_ones_that_are_explained(repository: Path, name: str) -> None:
    """The page on verified load tells of each format the ranges, the accumulator and the largest K of the code."""
    page = (repository / "docs" / "explanation" / "verified-load.md").read_text()
    row = next(line for line in page.splitlines() if re.match(rf"\| [^|]*\b{name.removesuffix('_e4m3')}\b", line))
    entry = data_types()[name]
    first = str(entry.families[0]).replace(str(1 << 20), "2^20").replace("1..1", "1")
    assert [part for part in (first, f"2^{entry.accumulator_bits}", str(entry.maximum_k)) if part not in row] == []
