"""Restart memory read entry by entry: an unreadable entry is dropped, the others are kept.

Such an entry is from another version of nodevet, or from a bug of this one. Bytes damaged on disk do not reach this
module: the store drops their whole value, because a checksum does not locate the damage.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from .guard import Bug, attempt

Kind = TypeVar("Kind")

_NOTHING = object()
"""Marks an unreadable entry."""


class Recall:
    """Reads the values of a memory by name. ``lost`` describes the unreadable entries of each name."""

    def __init__(self, memory: Mapping[str, bytes]) -> None:
        """Read from *memory*: MessagePack by name."""
        self._memory = memory
        self.lost: list[str] = []

    def take(self, name: str, kind: type[Kind], otherwise: Kind) -> Kind:
        """Return the readable entries of *name* as *kind*; *otherwise* where it is absent or unreadable as a whole."""
        if name not in self._memory:
            return otherwise
        try:
            found, lost = recalled(self._memory[name], kind)
        except msgspec.MsgspecError as error:
            found, lost = otherwise, str(error)
        self.lost += [f"{name}: {lost}"] if lost else []
        return found


def recalled(packed: bytes, kind: type[Kind]) -> tuple[Kind, str]:
    """Return the *packed* MessagePack as *kind* without its unreadable entries, and a text that counts them.

    Raises msgspec.DecodeError where nothing is readable.
    """
    whole = attempt(lambda: msgspec.msgpack.decode(packed, type=kind))
    if not isinstance(whole, Bug):
        return whole, ""
    raw = attempt(lambda: msgspec.msgpack.decode(packed))
    lost: list[str] = []
    rest = _NOTHING if isinstance(raw, Bug) else _rest(raw, kind, lost)
    if rest is _NOTHING:
        raise msgspec.DecodeError(whole.error)
    return msgspec.convert(rest, kind), f"{len(lost)} of its entries cannot be read and are left out ({lost[0]})"


def _rest(raw: Any, kind: Any, lost: list[str], *, is_entry: bool = False) -> Any:
    """Return *raw* without entries that are no *kind*, and add the reasons to *lost*; _NOTHING where none is left.

    An entry is kept or dropped whole, because half of it may mean the opposite; a list or mapping has its own entries.
    """
    problem = _problem(raw, kind)
    if not problem:
        return raw
    if get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(each for each in get_args(kind) if each is not type(None))
    of = get_args(kind)
    if isinstance(raw, list) and (get_origin(kind) is frozenset or (get_origin(kind) is tuple and of[-1] is Ellipsis)):
        entries = [_rest(entry, of[0], lost, is_entry=True) for entry in raw]
        return [entry for entry in entries if entry is not _NOTHING]
    if isinstance(raw, dict) and get_origin(kind) is dict:
        pairs = {name: _rest(entry, of[1], lost, is_entry=True) for name, entry in raw.items()}
        return {name: entry for name, entry in pairs.items() if entry is not _NOTHING and not _problem(name, of[0])}
    if isinstance(raw, dict) and not is_entry and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        kinds = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        fields = {name: _rest(value, kinds.get(name, Any), lost) for name, value in raw.items()}
        if not any(value is _NOTHING for value in fields.values()) and not _problem(fields, kind):
            return fields
    lost.append(problem)
    return _NOTHING


def _problem(raw: Any, kind: Any) -> str:
    """Return why *raw* is no *kind*, or an empty string."""
    done = attempt(lambda: msgspec.convert(raw, kind))
    return done.error if isinstance(done, Bug) else ""
