"""Facts as data: what the loader accepts, and how it refuses a malformed file."""

from __future__ import annotations

import msgspec
import pytest

from nodevet.checks.core.errors import ReferenceDataError
from nodevet.checks.core.model import Action
from nodevet.checks.core.tables import parse_table
from nodevet.checks.reference.tables import load_table


class Row(msgspec.Struct, frozen=True):
    """A row with one field of each kind that tables use."""

    code: int
    action: Action
    hard: bool
    limit: float | None = None
    gates: tuple[str, ...] = ()
    source: str = ""


GOOD = 'code,action,hard,limit,gates,source\n79,reboot,true,,a;b,"one, two"\n13,none,false,2.5,,\n'


def test_rows_carry_typed_values() -> None:
    """Numbers, enums, flags, missing values, lists and quoted commas arrive as their types."""
    assert parse_table(GOOD, "x.csv", Row) == (
        Row(79, Action.REBOOT, True, None, ("a", "b"), "one, two"),
        Row(13, Action.NONE, False, 2.5, (), ""),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("line 1", "empty")),
        ("code,action\n1,none\n", ("line 1", "'hard'", "missing")),
        ("code,action,hard,colour\n", ("line 1", "'colour'", "unknown")),
        ("code,action,hard,hard\n", ("line 1", "'hard'", "twice")),
        ("code,action,hard\n1,none,true\nx,none,true\n", ("line 3", "'code'", "'x'")),
        ("code,action,hard\n1,explode,true\n", ("line 2", "'action'", "explode")),
        ("code,action,hard\n1,none,maybe\n", ("line 2", "'hard'", "maybe")),
        ("code,action,hard,limit\n1,none,true,\n1,none,true,hot\n", ("line 3", "'limit'", "hot")),
        ("code,action,hard\n1,none\n", ("line 2", "'hard'", "2 cells")),
        ('code,action,hard\n1,"none,true\n', ("line",)),
    ],
)
def test_malformed_text_is_refused_with_its_place(text: str, words: tuple[str, ...]) -> None:
    """The message names file, line, column and the offending value."""
    with pytest.raises(ReferenceDataError) as caught:
        parse_table(text, "x.csv", Row)
    assert all(word in str(caught.value) for word in ("x.csv", *words)), str(caught.value)


def test_absent_file_is_refused_by_name() -> None:
    """A data file that was not installed is named, with what to do."""
    with pytest.raises(ReferenceDataError, match=r"absent\.csv.*reinstall"):
        load_table("absent.csv", Row)
