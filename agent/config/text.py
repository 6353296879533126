"""The configuration in force as TOML text, with every default and range beside it: ``nodevet config show``."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import inspect

from nodevet.checks.core.model import Mode
from nodevet.checks.engine.registry import Check

from .decoding import description, expected, field_types
from .load import SECTIONS
from .settings import CheckSettings, Configuration

COMMENT_COLUMN = 44


def render(configuration: Configuration, checks: Sequence[Check] = ()) -> str:
    """Return *configuration* as TOML that reads back as itself; *checks* add their summaries where they have one."""
    lines = [f"# nodevet configuration, from {configuration.file or 'defaults: no file was found'}"]
    for name in SECTIONS:
        section = getattr(configuration, name)
        lines += ["", *_described(type(section)), *_table(name, section)]
    for name, settings in configuration.checks.items():
        summary = next((getattr(check, "summary", "") for check in checks if check.name == name), "")
        lines += ["", *([f"# {summary}"] if summary else [])]
        lines += [f"[checks.{_key(name)}]", *_switches(settings), *_values(settings.policy)]
    return "\n".join(lines) + "\n"


def _described(struct: type[msgspec.Struct]) -> list[str]:
    return [f"# {(struct.__doc__ or '').strip().splitlines()[0]}"] if struct.__doc__ else []


def _table(path: str, value: msgspec.Struct) -> Iterator[str]:
    yield f"[{path}]"
    yield from _values(value)
    for field in msgspec.structs.fields(type(value)):
        inner = getattr(value, field.name)
        if isinstance(inner, msgspec.Struct):
            yield ""
            yield from _described(type(inner))
            yield from _table(f"{path}.{_key(field.name)}", inner)
        for entry in _tables(inner):
            yield ""
            yield from _described(type(entry))
            yield f"[[{path}.{_key(field.name)}]]"
            yield from _values(entry)


def _tables(held: object) -> tuple[msgspec.Struct, ...]:
    """Return what of *held* is written as an array of tables."""
    return held if isinstance(held, tuple) and bool(held) and isinstance(held[0], msgspec.Struct) else ()


def _switches(settings: CheckSettings) -> Iterator[str]:
    yield _entry("enabled", settings.enabled, True, "true or false")
    limited = f"one of {', '.join(Mode)}; the lower of this mode and [gate] mode applies"
    yield _entry("mode", settings.mode, Mode.DRAIN, limited)


def _values(value: msgspec.Struct) -> Iterator[str]:
    hints = field_types(type(value))
    for field in msgspec.structs.fields(type(value)):
        held = getattr(value, field.name)
        if isinstance(held, msgspec.Struct) or _tables(held):
            continue
        kind = inspect.type_info(hints[field.name])
        about, accepted = description(kind).removesuffix("."), expected(kind)
        words = [word for word in (about, "" if about and accepted == "text" else accepted) if word]
        yield _entry(field.name, held, _default(field), "; ".join(words))


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _entry(name: str, value: object, default: object, comment: str) -> str:
    line = f"# {_key(name)} =" if value is None else f"{_key(name)} = {_toml(value)}"
    changed = default is not msgspec.NODEFAULT and value != default and default != ""
    tail = f"; default {'not set' if default is None else _toml(default)}" if changed else ""
    return f"{line:<{COMMENT_COLUMN}} # {comment}{tail}"


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case enum.Enum():
            return _toml(value.value)
        case str():
            # A TOML basic string escapes as JSON does, apart from DEL and characters beyond the first plane.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int() | float():
            return repr(value)
        case tuple() | list() | frozenset():
            return f"[{', '.join(_toml(item) for item in value)}]"
        case dict():
            return f"{{{', '.join(f'{_key(str(key))} = {_toml(item)}' for key, item in value.items())}}}"
    raise TypeError(f"no TOML for {type(value).__name__}")


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else json.dumps(name)
