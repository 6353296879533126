"""Facts as data: CSV files, one frozen struct per row.

The header of a file names the fields of its row type, in any order, plus nothing else. An empty cell is None
where the field allows None, an empty tuple where it is a tuple, and otherwise the empty string. The parts of
a tuple are separated by ``;``. Facts carry a ``source`` column: where a person can look them up.
"""

from __future__ import annotations

import csv
import functools
import io
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .errors import ModelError, ReferenceDataError

Row = TypeVar("Row", bound=msgspec.Struct)


@functools.lru_cache(maxsize=64)
def read_table(path: Path, row_type: type[Row]) -> tuple[Row, ...]:
    """Return the rows of the data file at *path* as *row_type*, in file order.

    Raises ReferenceDataError naming file, line and column where the file is absent or malformed.
    """
    return parse_table(table_text(path), path.name, row_type)


def table_text(path: Path) -> str:
    """Return what the data file at *path* holds, or held when it was kept. Raises ReferenceDataError."""
    kept = _kept_texts().get(path)
    if kept is None:
        return _read(path)
    import zlib

    return zlib.decompress(kept).decode()


def keep_text(path: Path) -> None:
    """Keep what the data file at *path* holds, compressed: most files are read once more. Raises ReferenceDataError."""
    import zlib  # a collector keeps nothing, and holds one library less

    _kept_texts()[path] = zlib.compress(_read(path).encode())


@functools.cache
def _kept_texts() -> dict[Path, bytes]:
    """Return the texts that are kept, by their files."""
    return {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise ReferenceDataError(f"{path.name}: cannot be read: {error}; reinstall nodevet") from error
    except OSError as error:
        raise ReferenceDataError(f"{path.name}: cannot be read: {error.strerror}") from error


def parse_table(text: str, name: str, row_type: type[Row]) -> tuple[Row, ...]:
    """Return the rows of the CSV *text*; *name* stands for it in messages. Raises ReferenceDataError."""
    fields = typing.get_type_hints(row_type)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[Row] = []
    header: list[str] | None = None
    try:
        for cells in reader:
            if not cells:
                continue
            if header is None:
                header = _header(cells, fields, row_type, name)
            else:
                rows.append(_row(cells, header, fields, row_type, f"{name}, line {reader.line_num}"))
    except csv.Error as error:
        raise ReferenceDataError(f"{name}, line {reader.line_num}: {error}") from error
    if header is None:
        raise ReferenceDataError(f"{name}, line 1: the file is empty, a header is required")
    return tuple(rows)


def _header(cells: list[str], fields: dict[str, Any], row_type: type[msgspec.Struct], name: str) -> list[str]:
    required = {field.name for field in msgspec.structs.fields(row_type) if field.required}
    unknown = [cell for cell in cells if cell not in fields]
    if unknown:
        raise ReferenceDataError(f"{name}, line 1, column {unknown[0]!r}: unknown; columns are {', '.join(fields)}")
    twice = [cell for position, cell in enumerate(cells) if cell in cells[:position]]
    if twice:
        raise ReferenceDataError(f"{name}, line 1, column {twice[0]!r}: named twice")
    missing = sorted(required - set(cells))
    if missing:
        raise ReferenceDataError(f"{name}, line 1, column {missing[0]!r}: missing")
    return cells


def _row(cells: list[str], header: list[str], fields: dict[str, Any], row_type: type[Row], where: str) -> Row:
    if len(cells) != len(header):
        column = header[min(len(cells), len(header) - 1)]
        raise ReferenceDataError(f"{where}, column {column!r}: {len(cells)} cells where the header has {len(header)}")
    values = {
        column: _value(cell, fields[column], f"{where}, column {column!r}")
        for column, cell in zip(header, cells, strict=True)
    }
    try:
        return row_type(**values)
    except (ModelError, ValueError) as error:
        raise ReferenceDataError(f"{where}, column {header[0]!r}: {error}") from error


def _value(cell: str, kind: Any, where: str) -> Any:
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else ()
    if not cell and type(None) in options:
        return None
    raw: Any = cell
    if typing.get_origin(kind) is tuple:
        raw = [part.strip() for part in cell.split(";")] if cell else []
    try:
        return msgspec.convert(raw, kind, strict=False)
    except (msgspec.ValidationError, ModelError) as error:
        raise ReferenceDataError(f"{where}: {cell!r}: {error}") from error
