"""Facts as data: what the loader accepts, and how it refuses a malformed file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nodevet.checks.core.errors import ReferenceDataError
from nodevet.checks.core.model import Action
from nodevet.checks.core.tables import keep_text, parse_table, read_table, table_text
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


def test_a_kept_text_outlives_its_file(tmp_path: Path) -> None:
    """A table that is first used after its package was removed has its rows all the same; another file has none."""
    kept, other = tmp_path / "kept.csv", tmp_path / "other.csv"
    for path in (kept, other):
        path.write_text(GOOD + "7,none,false,,,Größe\n", encoding="utf-8")
    keep_text(kept)
    kept.unlink()
    other.unlink()
    assert table_text(kept).endswith("Größe\n")
    assert [row.code for row in read_table(kept, Row)] == [79, 13, 7]
    with pytest.raises(ReferenceDataError, match=r"other\.csv.*reinstall"):
        read_table(other, Row)


def test_absent_file_is_refused_by_name() -> None:
    """A data file that was not installed is named, with what to do."""
    with pytest.raises(ReferenceDataError, match=r"absent\.csv.*reinstall"):
        load_table("absent.csv", Row)
