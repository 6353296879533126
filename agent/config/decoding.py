"""Strict decoding of a parsed TOML table into frozen structs, with every mistake told at once.

msgspec alone stops at the first mistake; a person who edits a file wants all of them, each with its key path, what was
found, and what is allowed or which key was probably meant.
"""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Problem(msgspec.Struct, frozen=True):
    """One mistake: the key path, and what is wrong there."""

    path: str
    text: str


def decode(raw: object, struct: type[_Struct], path: str, problems: list[Problem]) -> _Struct | None:
    """Return *raw*, found at the key *path*, as *struct*; or None after adding to *problems*."""
    if not isinstance(raw, Mapping):
        problems.append(Problem(path, f"found {_found(raw)}, expected a table"))
        return None
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    hints = field_types(struct)
    before = len(problems)
    problems.extend(
        Problem(_join(path, key), f"unknown key, {suggestion(key, fields)}") for key in raw if key not in fields
    )
    values = {}
    for name, field in fields.items():
        if name in raw:
            values[name] = _decode_field(raw[name], hints[name], _join(path, name), problems)
        elif field.required:
            kind = inspect.type_info(hints[name])
            problems.append(Problem(_join(path, name), f"missing, expected {expected(kind)}"))
    if len(problems) > before:
        return None
    try:
        return struct(**values)
    except ValueError as error:
        problems.append(Problem(path, str(error)))
        return None


def field_types(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the annotation of each field. A range on a value that may be missing is meant for the value."""
    return {name: _normal(hint) for name, hint in typing.get_type_hints(struct, include_extras=True).items()}


def _normal(annotation: Any) -> Any:
    # msgspec has no range on ``float | None``, only a range on float, or None.
    if typing.get_origin(annotation) is not typing.Annotated:
        return annotation
    bare, *metas = typing.get_args(annotation)
    options = typing.get_args(bare)
    if typing.get_origin(bare) not in (typing.Union, types.UnionType) or type(None) not in options:
        return annotation
    (value,) = (option for option in options if option is not type(None))
    return typing.Optional[typing.Annotated[value, *metas]]  # noqa: UP045 (a value, not an annotation)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean X?`` for the nearest of *known*, or the list of what is allowed."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {near[0]}?" if near else f"allowed: {', '.join(names) or 'none'}"


def description(kind: inspect.Type) -> str:
    """Return what the declaration of a field says about it, or an empty string."""
    if isinstance(kind, inspect.UnionType):
        return next(filter(None, map(description, kind.types)), "")
    extra = kind.extra_json_schema if isinstance(kind, inspect.Metadata) else None
    return str((extra or {}).get("description", ""))


def expected(kind: inspect.Type) -> str:
    """Return in words what a field of type *kind* accepts, such as ``a number from 1 to 3600``."""
    if choices := _choices(kind):
        return f"one of {', '.join(choices)}"
    match _plain(kind):
        case inspect.IntType() as number:
            return f"a whole number{_range(number)}"
        case inspect.FloatType() as number:
            return f"a number{_range(number)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType() as text:
            return "text" if not text.min_length else "text that is not empty"
        case inspect.VarTupleType(item_type=item) as many:
            entries = f"at least {many.min_length} entry" if many.min_length else "any number of entries"
            return f"a list with {entries}, each {expected(item)}"
        case inspect.UnionType(types=types):
            return " or ".join(expected(one) for one in types if not isinstance(one, inspect.NoneType))
    return "a table"


def _decode_field(raw: object, annotation: Any, path: str, problems: list[Problem]) -> Any:
    kind = inspect.type_info(annotation)
    match _plain(kind):
        case inspect.StructType(cls=cls):
            return decode(raw, cls, path, problems)
        case inspect.VarTupleType() if isinstance(raw, list):
            return _decode_list(raw, annotation, path, problems)
    if isinstance(raw, float) and not math.isfinite(raw):
        # TOML can write nan and inf; nan would slip through every range.
        problems.append(Problem(path, f"found {raw}, expected {expected(kind)}"))
        return None
    choices = _choices(kind)
    with suppress(msgspec.ValidationError):
        value = msgspec.convert(raw, annotation)
        if not choices or raw in choices:
            return value
    near = difflib.get_close_matches(raw, choices, 1) if isinstance(raw, str) else []
    hint = f", did you mean {near[0]}?" if near else ""
    problems.append(Problem(path, f"found {_found(raw)}, expected {expected(kind)}{hint}"))
    return None


def _decode_list(raw: list[object], annotation: Any, path: str, problems: list[Problem]) -> tuple[Any, ...]:
    kind = inspect.type_info(annotation)
    plain = _plain(kind)
    if isinstance(plain, inspect.VarTupleType) and len(raw) < (plain.min_length or 0):
        problems.append(Problem(path, f"found {_found(raw)}, expected {expected(kind)}"))
    bare = typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation
    item = typing.get_args(bare)[0]
    return tuple(_decode_field(entry, item, f"{path}[{index}]", problems) for index, entry in enumerate(raw))


def _plain(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _choices(kind: inspect.Type) -> list[str]:
    """Return what a field of type *kind* may say, where that is a list: of its type, or of a function beside it."""
    if isinstance(kind, inspect.Metadata) and kind.extra is not None and "choices" in kind.extra:
        return sorted(kind.extra["choices"]())
    match _plain(kind):
        case inspect.EnumType(cls=cls):
            return [str(member.value) for member in cls]
        case inspect.LiteralType(values=values):
            return [str(value) for value in values]
    return []


def _range(number: inspect.IntType | inspect.FloatType) -> str:
    low, high = number.ge, number.le
    if low is not None and high is not None:
        return f" from {low} to {high}"
    bounds = ((low, "of at least"), (number.gt, "above"), (high, "of at most"), (number.lt, "below"))
    words = [f"{word} {bound}" for bound, word in bounds if bound is not None]
    return f" {' and '.join(words)}" if words else ""


def _found(raw: object) -> str:
    match raw:
        case bool():
            return str(raw).lower()
        case str():
            return f'"{raw}"'
        case int() if raw.bit_length() > 64:
            return f"a number of {raw.bit_length()} bits"
        case int() | float():
            return str(raw)
        case list():
            return "a list" if raw else "an empty list"
        case Mapping():
            return "a table"
    return f"a {type(raw).__name__}"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
