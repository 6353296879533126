"""Where a threshold comes from."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from nodevet.agent.readers import witness
from nodevet.checks.core.model import Limit
from nodevet.checks.engine import check_run
from nodevet.checks.reference.limits import TableLimit, choose, from_table
from nodevet.checks.reference.tables import load_table

ROWS = load_table("limits.csv", TableLimit)
KEY = "temperature.high"
BY_PRECEDENCE = {"configuration": 1.0, "baseline": 2.0, "profile": 3.0, "reported": 4.0}


@pytest.mark.parametrize("first", range(len(BY_PRECEDENCE) + 1))
def test_first_of_the_precedence_wins(first: int) -> None:
    """Configuration, baseline, profile, the device's own report, the table: whatever comes first is in force."""
    given = dict(list(BY_PRECEDENCE.items())[first:])
    limit = choose(KEY, **given)
    expected = list(BY_PRECEDENCE.values())[first:] or [from_table(KEY).value]
    assert limit.value == expected[0]
    names = ["configuration", "baseline", "profile", "reported by the device", f"table limits.csv {KEY}"]
    assert limit.source == names[first]
    assert (limit.op, limit.unit) == (from_table(KEY).op, "celsius")


def test_zero_is_a_value_and_not_absence() -> None:
    """A site may set a limit of zero."""
    assert choose("throttle.ratio", configuration=0.0).value == 0.0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_row_is_complete(row: TableLimit) -> None:
    """A known operator, a unit, and a source that a person can look up."""
    Limit(row.op, row.value, row.unit, row.source).holds(0.0)
    assert row.unit
    assert len(row.source) > 20


def test_keys_are_unique() -> None:
    """The last of two would win in silence."""
    keys = [row.key for row in ROWS]
    assert len(keys) == len(set(keys))


def test_every_row_is_used_and_every_use_has_its_row(repository: Path) -> None:
    """No threshold in the table that no check reads, and none read that is not there."""
    source = "".join(path.read_text() for path in (repository / "checks" / "health").glob("*.py"))
    used = set(re.findall(r'"([a-z]+\.[a-z_.]+)"', source))
    rooms = (repository / "checks" / room for room in ("engine", "backends", "burnin"))
    for path in (*(repository / "agent").rglob("*.py"), *(path for room in rooms for path in room.glob("*.py"))):
        used |= set(re.findall(r'(?:from_table|choose)\("([a-z_.]+)"\)', path.read_text()))
    prefixes = tuple(re.findall(r'f"([a-z_.]+)\{', source))
    unused = [row.key for row in ROWS if row.key not in used and not (prefixes and row.key.startswith(prefixes))]
    assert unused == []


@pytest.mark.parametrize(
    ("op", "holds"),
    [(">=", "=+"), (">", "+"), ("<=", "-="), ("<", "-"), ("==", "="), ("!=", "-+")],
)
def test_operator_means_what_it_says(op: str, holds: str) -> None:
    """Below (-), at (=) and above (+) the limit."""
    limit = Limit(op, 10, "celsius", "a test")
    assert {sign for sign, value in (("-", 9), ("=", 10), ("+", 11)) if limit.holds(value)} == set(holds)


@pytest.mark.parametrize("module", [witness, check_run], ids=["witness", "check_run"])
def test_a_limit_of_the_agent_stands_in_the_table_with_its_reason(module: ModuleType) -> None:
    """No number is a fact of the code alone; bounds of what is kept in memory are no limits of what is judged."""
    numbers = [
        ast.unparse(node)
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, int | float) and not ast.unparse(node).startswith("MAXIMUM_")
    ]
    assert numbers == []


def test_own_rules_give_their_reason() -> None:
    """A rule of ours has nothing else to stand on."""
    own = [row for row in ROWS if row.source.startswith("own rule")]
    assert {row.key for row in own} >= {"reader.proof", "reader.excused", "reader.unscheduled", "site_checks.together"}
    assert all(row.source.startswith("own rule: ") and len(row.source) > 40 for row in own)
