"""How checks are declared and found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from nodevet.checks.core.errors import RegistryError
from nodevet.checks.core.model import Finding
from nodevet.checks.engine.registry import check, discover, installed, load
from nodevet.checks.engine.view import View


class Policy(msgspec.Struct, frozen=True):
    """Nothing to set."""


def module(name: str, *checks: str) -> ModuleType:
    """Return a module that declares *checks*."""
    made = ModuleType(name)
    for number, check_name in enumerate(checks):

        def judge(_view: View, _policy: Policy) -> Iterator[Finding]:
            """Find nothing."""
            yield from ()

        judge.__module__ = name
        setattr(made, f"judge_{number}", check(check_name, policy=Policy)(judge))
    return made


def test_each_file_of_health_declares_one_check(repository: Path) -> None:
    """A check is one file: none is forgotten, none declares two."""
    files = {path.stem for path in (repository / "checks" / "health").glob("*.py")} - {"__init__"}
    modules = [declared.module.rsplit(".", 1)[-1] for declared in discover()]
    assert sorted(modules) == sorted(files)
    assert {declared.name.replace("-", "_") for declared in discover()} == files


def test_checks_are_found_by_name_in_order() -> None:
    """The same order everywhere, so that outputs can be compared."""
    names = [declared.name for declared in load([module("b", "zeta", "alpha"), module("a", "mid")])]
    assert names == ["alpha", "mid", "zeta"]


def test_two_checks_of_one_name_are_refused() -> None:
    """Both places are named."""
    with pytest.raises(RegistryError, match=r"same is declared in one and two"):
        load([module("one", "same"), module("two", "same")])


def test_check_that_was_only_imported_is_not_declared_twice() -> None:
    """A module that imports another's check does not declare it."""
    first = module("first", "only")
    second = ModuleType("second")
    second.judge_0 = first.judge_0  # type: ignore[attr-defined]
    assert [declared.module for declared in load([first, second])] == ["first"]


def test_unknown_input_is_refused_at_the_declaration() -> None:
    """A misspelt quantity would never be read and never be missed."""
    with pytest.raises(RegistryError, match="temperature_fahrenheit"):
        check("x", policy=Policy, inputs=("temperature_fahrenheit",))(lambda _view, _policy: ())


def test_check_without_docstring_is_refused() -> None:
    """Its first line is what people read."""
    with pytest.raises(RegistryError, match="docstring"):
        check("x", policy=Policy)(lambda _view, _policy: ())


def test_summary_is_the_first_line_of_the_docstring() -> None:
    """Of every check there is."""
    for declared in discover():
        assert declared.summary.endswith("."), declared.name
        assert declared.judge.__doc__ is not None
        assert declared.judge.__doc__.startswith(declared.summary)


def test_installed_checks_hold_our_own() -> None:
    """Other distributions add to them and take none away."""
    assert {declared.name for declared in discover()} <= {declared.name for declared in installed()}
