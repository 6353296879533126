"""The data files beside this module; checks.core.tables says how they are written."""

from __future__ import annotations

from pathlib import Path

from nodevet.checks.core.tables import Row, keep_text, read_table

_FOLDER = Path(__file__).parent


def load_table(name: str, row_type: type[Row]) -> tuple[Row, ...]:
    """Return the rows of the data file *name* (such as ``nvidia_xid.csv``) as *row_type*, in file order.

    Raises ReferenceDataError naming file, line and column where the file is absent or malformed.
    """
    return read_table(_FOLDER / name, row_type)


def keep_tables() -> None:
    """Read every data file now, so that a process that runs for months needs no installed file again.

    A table that is first used late would otherwise fail when descriptors have run out or the package is being replaced.
    """
    for path in sorted(_FOLDER.glob("*.csv")):
        keep_text(path)
