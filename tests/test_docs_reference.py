"""Reference pages say what the code and its tables say."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.reference_pages import PAGES

from nodevet.agent.cli import COMMANDS
from nodevet.checks.registry import discover


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(repository: Path, request: pytest.FixtureRequest, name: str) -> None:
    """A page that follows from the code is what the code gives now; --update-golden writes it anew."""
    path = repository / "docs" / "reference" / name
    page = PAGES[name](repository)
    if request.config.getoption("--update-golden"):
        path.write_text(page)
    assert path.read_text() == page, f"{path.name} is out of date: pytest tests/test_docs_reference.py --update-golden"


def test_every_check_and_every_command_has_its_section(repository: Path) -> None:
    """Nothing that is registered is missing from its page."""
    checks = PAGES["checks.md"](repository).splitlines()
    commands = PAGES["command-line.md"](repository).splitlines()
    assert {f"## {declared.name}" for declared in discover()} <= set(checks)
    assert {f"## nodevet {name}" for name in COMMANDS} <= set(commands)
