"""A command's document with unusable values: each costs only its own reading, and the rest is judged.

A tool prints "N/A", NaN or a number of a hundred digits for one broken sensor, and JSON itself has neither NaN nor a
limit of digits. C prints nan, a shell prints nothing for an empty variable and 45,3 with a decimal comma, and for a
dead GPU a script prints a tool's message, with colons and quotes. The words of a detail are put on one line and cut:
they are for people, and a loss is a loss whatever a tool says of it. mending.py does the same for events and optional
fields of a device. Any other mistake in a document is a bug of its program and refuses the whole document.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from nodevet.checks.core.model import ReadingStatus
from nodevet.checks.core.quantities import NO_VALUE, QUANTITIES
from nodevet.checks.core.readings import (
    DETAIL_CHARACTERS,
    TEXT_CHARACTERS,
    Document,
    Mistake,
    ReadingEntry,
    parse,
    repeated_keys,
    value_mistakes,
)

from .mending import (
    SHOWN_CHARACTERS,
    each_once,
    fitted,
    mended_events,
    shown,
    without_shared_identities,
    without_unusable_fields,
    without_unusable_versions,
)

INTEGER_CHARACTERS = 20
"""No number of 64 bits has more characters, including its sign."""


_LITERAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_END = r'(?=[ \t\n\r]*(?:\}|,[ \t\n\r]*"[^"\\]*"[ \t\n\r]*:))'
"""The end of the value of a reading: the end of the reading, or its next key."""

_VALUE = (
    r'"value"[ \t\n\r]*:[ \t\n\r]*+(?:'
    rf'(?:{_LITERAL.pattern}|(?P<text>"(?:[^"\\]|\\.)*+")){_END}'
    rf'|(?P<words>(?![\[{{])(?:[^{{}}"]|"[^"{{}}]*"(?![ \t\n\r]*:)){{0,1000}}?){_END})'
)
"""The value of a reading: valid JSON, else any text up to its end, with commas, colons and quotes."""

_PIECE = re.compile(rf'{_VALUE}|(?P<other>"(?:[^"\\]|\\.)*+"?)|(?P<bare>[^\s",:{{}}\[\]][^",:{{}}\[\]\n]*)', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")


NO_WORDS = "no reason is given"
"""Stands for the detail of a failure that has no words."""


class Mended(msgspec.Struct, frozen=True):
    """A document that is taken, and whether more than unusable values was changed in it: its author is told."""

    document: Document
    is_changed: bool = False
    unusable: dict[str, dict[str, str]] = {}
    """The optional fields that were removed, as printed, by device."""


class _Odd:
    """A value that JSON or 64 bits cannot hold, as printed; it is valid only in a reading."""

    def __init__(self, printed: str) -> None:
        self.printed = printed


def usable(data: bytes) -> tuple[Mended | None, tuple[Mistake, ...]]:
    """Return the document in *data* as the agent takes it, None where it is refused, and the mistakes in it."""
    document, mistakes = parse(data)
    return (Mended(document) if document is not None else mended(data)), mistakes


def mended(data: bytes) -> Mended | None:
    """Return the document in *data* with each unusable value as an ``error``; None where it has other mistakes.

    *data* is a document that ``parse`` refused.
    """
    try:
        text, odd = _without_bare_words(data.decode("utf-8"))
        raw = json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=lambda _: _Odd(odd.popleft()))
        if next(repeated_keys(text), None) is not None:
            return None
        is_changed = _fit_words(raw)
        _mark(raw)
        events, are_changed = mended_events(_list(raw, "events"))
        if _list(raw, "events"):
            raw["events"] = []
        if len(once := each_once(_devices(raw))) < len(_devices(raw)):
            raw["devices"], is_changed = once, True
        fields = [(device["id"], without_unusable_fields(device)) for device in _devices(raw) if "id" in device]
        fields += without_shared_identities(_devices(raw)).items()
        is_changed |= any(lost for _, lost in fields) | _drop_versions(raw)
        document, _ = parse(json.dumps(raw).encode())
    except (TypeError, ValueError, RecursionError):  # an odd value is elsewhere than in a reading
        return None
    if document is None:
        return None
    ids = {None, *(device.id for device in document.devices)}
    are_listed = all(event.device in ids for event in events)
    is_changed = is_changed or are_changed or not are_listed
    unusable: dict[str, dict[str, str]] = {}
    for name, lost in fields:
        if lost:
            unusable.setdefault(name, {}).update(lost)
    return Mended(msgspec.structs.replace(document, events=events), is_changed, unusable)


def _without_bare_words(text: str) -> tuple[str, deque[str]]:
    """Return *text* with NaN in place of each missing value and each bare text that is no JSON, and those texts.

    Python parses NaN as a number that is none. Control characters in a string are escaped as JSON requires.
    """
    odd = deque[str]()

    def put(piece: re.Match[str]) -> str:
        bare_text = piece["words"]
        if bare_text is not None and not bare_text.rstrip().endswith(","):  # after a comma a key is missing
            odd.append(bare_text.strip())
            return f"{piece[0].removesuffix(bare_text)}NaN"
        bare = (piece["bare"] or "").rstrip()
        if piece["bare"] is None or _LITERAL.fullmatch(bare):
            quoted = piece["text"] or piece["other"] or ""
            return piece[0].removesuffix(quoted) + _CONTROL.sub(_escaped, quoted)
        odd.append(bare)
        return "NaN"

    return _PIECE.sub(put, text), odd


def _escaped(control: re.Match[str]) -> str:
    return f"\\u{ord(control[0]):04x}"


def _mark(raw: object) -> None:
    """Replace each unusable value in *raw* by an ``error``."""
    for entry in _readings(raw):
        reason = _unread(entry)
        if reason:
            entry.pop("value", None)
            entry.update(status=ReadingStatus.ERROR.value, detail=reason)


def _fit_words(raw: object) -> bool:
    """Make each detail in *raw* one line of at most its length; return whether more than line breaks was changed."""
    is_changed = False
    for entry in _readings(raw):
        detail = entry.get("detail")
        if isinstance(detail, str):
            entry["detail"] = fitted(detail, DETAIL_CHARACTERS)
            is_changed |= len(detail) > DETAIL_CHARACTERS
    for device in _devices(raw):
        failure = device.get("failure")
        if isinstance(failure, dict):
            detail = failure.get("detail")
            failure["detail"] = (fitted(detail, TEXT_CHARACTERS) if isinstance(detail, str) else "") or NO_WORDS
            is_changed |= failure["detail"] != detail
    return is_changed


def _drop_versions(raw: object) -> bool:
    versions = raw.get("versions") if isinstance(raw, dict) else None
    return isinstance(versions, dict) and without_unusable_versions(versions)


def _devices(raw: object) -> list[dict[str, Any]]:
    return [device for device in _list(raw, "devices") if isinstance(device, dict)]


def _readings(raw: object) -> Iterator[dict[str, Any]]:
    for device in _devices(raw):
        yield from (entry for entry in _list(device, "readings") if isinstance(entry, dict))


def _list(raw: object, name: str) -> list[object]:
    found = raw.get(name) if isinstance(raw, dict) else None
    return found if isinstance(found, list) else []


def _unread(entry: dict[str, Any]) -> str:
    """Return why the value of *entry* is unusable; empty where it is usable, or where more than the value is wrong."""
    name, value = entry.get("quantity"), entry.get("value")
    quantity = QUANTITIES.get(name) if isinstance(name, str) else None
    if quantity is None or entry.get("status", ReadingStatus.OK.value) != ReadingStatus.OK.value:
        return ""
    if value is None:
        return f"{NO_VALUE}{quantity.key} has neither a value nor a status"
    if isinstance(value, _Odd):
        return f"{NO_VALUE}{quantity.key} must be a number, found {shown(value.printed) or 'nothing'}"
    if isinstance(value, (list, dict)):
        return (
            f"{NO_VALUE}{quantity.key} must be one value, found {'a list' if isinstance(value, list) else 'an object'}"
        )
    if isinstance(value, str) and not value.isprintable():
        return f"{NO_VALUE}{quantity.key} contains characters that cannot be printed, found {shown(value)}"
    mistake = next(value_mistakes(ReadingEntry(quantity=quantity.key, value=value), quantity), "")
    if mistake and isinstance(value, str) and len(value) > SHOWN_CHARACTERS:
        mistake = f"{quantity.key} cannot be {shown(value)}"
    return f"{NO_VALUE}{mistake}" if mistake else ""


def _integer(digits: str) -> int | _Odd:
    # Python refuses to convert more than 4300 digits, and takes seconds for fewer.
    return int(digits) if len(digits) <= INTEGER_CHARACTERS else _Odd(digits)


def _number(digits: str) -> float | _Odd:
    found = float(digits)
    return found if math.isfinite(found) else _Odd(digits)
