"""Decoders of JSON and TOML from outside, which raise one kind of error for a malformed document; a copier of fields.

The library decoders raise Python's own errors for invalid UTF-8 and for unlimited nesting. Uncaught, a single flipped
bit in a file would end the agent at each start.
"""

from __future__ import annotations

import tomllib
from typing import Any, TypeVar

import msgspec

DEEPEST_TABLES = 32
"""No settings file nests deeper. The TOML reader accepts dotted names of any depth; the copying of tables does not."""

Document = TypeVar("Document")
Copy = TypeVar("Copy", bound=msgspec.Struct)


def decoded(content: bytes, kind: type[Document]) -> Document:
    """Return the JSON in *content* as a *kind*. Raises msgspec.DecodeError for a malformed document."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def copied(kind: type[Copy], source: object, /, **others: Any) -> Copy:
    """Return a *kind* with the *others*, and whatever else *source* has under the same name."""
    same = {name: getattr(source, name) for name in kind.__struct_fields__ if hasattr(source, name)}
    return kind(**{**same, **others})


def decoded_toml(text: str) -> dict[str, Any]:
    """Return the TOML in *text*. Raises ValueError where it is malformed or nests deeper than DEEPEST_TABLES."""
    try:
        found = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    level: list[Any] = [found]
    for _ in range(DEEPEST_TABLES):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    if level:
        raise ValueError(f"tables or lists within each other, more than {DEEPEST_TABLES} deep")
    return found
