"""A document of a command with values that nobody can take: each costs its own reading, and the rest is judged.

A tool prints "N/A", NaN or a number of a hundred digits for one broken sensor, and JSON itself knows neither NaN nor an
end of digits. C prints nan, a shell whose variable is empty nothing at all, one with a decimal comma 45,3, and for a
dead board what a tool said of it, with colons and quotes. Whatever else is wrong in a document is a mistake of its
program and refuses the whole.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

from nodevet.checks.core.guard import one_line, printable
from nodevet.checks.core.model import ReadingStatus
from nodevet.checks.core.quantities import NO_VALUE, QUANTITIES
from nodevet.checks.core.readings import Document, ReadingEntry, parse, repeated_keys, value_mistakes

SHOWN_CHARACTERS = 40
INTEGER_CHARACTERS = 20
"""No number of 64 bits has more, its sign included."""


_LITERAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_END = r'(?=[ \t\n\r]*(?:\}|,[ \t\n\r]*"[^"\\]*"[ \t\n\r]*:))'
"""Where the value of a reading ends: at the end of the reading, or before its next key."""

_VALUE = (
    r'"value"[ \t\n\r]*:[ \t\n\r]*+(?:'
    rf'(?:{_LITERAL.pattern}|(?P<text>"(?:[^"\\]|\\.)*+")){_END}'
    rf'|(?P<words>(?![\[{{])(?:[^{{}}"]|"[^"{{}}]*"(?![ \t\n\r]*:)){{0,1000}}?){_END})'
)
"""The value of a reading: what JSON knows, else any words up to where it ends, with commas, colons and quotes."""

_PIECE = re.compile(
    rf'{_VALUE}|(?P<other>"(?:[^"\\]|\\.)*+"?)|(?P<bare>[^\s",:{{}}\[\]][^",:{{}}\[\]\n]*)',
    re.DOTALL,
)
_CONTROL = re.compile(r"[\x00-\x1f]")


class _Odd:
    """A value that JSON or 64 bits cannot hold, as it was printed; it stays nowhere but in a reading."""

    def __init__(self, printed: str) -> None:
        self.printed = printed


def without_unread(data: bytes) -> Document | None:
    """Return the document in *data* with each value that cannot be taken as an ``error``; None where that is not all.

    *data* is one that was refused as it stands.
    """
    try:
        text, odd = _without_bare_words(data.decode("utf-8"))
        raw = json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=lambda _: _Odd(odd.popleft()))
        if next(repeated_keys(text), None) is not None or not _mark(raw):
            return None
        return parse(json.dumps(raw).encode())[0]
    except (TypeError, ValueError, RecursionError):  # one of those that are odd stands elsewhere than in a reading
        return None


def _without_bare_words(text: str) -> tuple[str, deque[str]]:
    """Return *text* with NaN in the place of each value and word that is no JSON, and of none at all; and these.

    NaN is what Python takes for a number without being one. Control characters in a text are written as JSON wants it.
    """
    odd = deque[str]()

    def put(piece: re.Match[str]) -> str:
        words = piece["words"]
        if words is not None and not words.rstrip().endswith(","):  # behind that one a key is missing
            odd.append(words.strip())
            return f"{piece[0].removesuffix(words)}NaN"
        bare = (piece["bare"] or "").rstrip()
        if piece["bare"] is None or _LITERAL.fullmatch(bare):
            quoted = piece["text"] or piece["other"] or ""
            return piece[0].removesuffix(quoted) + _CONTROL.sub(_escaped, quoted)
        odd.append(bare)
        return "NaN"

    return _PIECE.sub(put, text), odd


def _escaped(control: re.Match[str]) -> str:
    return f"\\u{ord(control[0]):04x}"


def _mark(raw: object) -> int:
    """Put an ``error`` in the place of each value in *raw* that cannot be taken; return how many there are.

    Words about a reading that are no single line are made one, which counts too.
    """
    marked = 0
    for entry in _readings(raw):
        detail = entry.get("detail")
        if isinstance(detail, str) and _CONTROL.search(detail):
            entry["detail"] = one_line(detail)
            marked += 1
        words = _unread(entry)
        if words:
            entry.pop("value", None)
            entry.update(status=ReadingStatus.ERROR.value, detail=words)
            marked += 1
    return marked


def _readings(raw: object) -> Iterator[dict[str, Any]]:
    for device in _list(raw, "devices"):
        yield from (entry for entry in _list(device, "readings") if isinstance(entry, dict))


def _list(raw: object, name: str) -> list[object]:
    found = raw.get(name) if isinstance(raw, dict) else None
    return found if isinstance(found, list) else []


def _unread(entry: dict[str, Any]) -> str:
    """Return why the value of *entry* cannot be taken; empty where it can, or where more than the value is wrong."""
    name, value = entry.get("quantity"), entry.get("value")
    quantity = QUANTITIES.get(name) if isinstance(name, str) else None
    if quantity is None or entry.get("status", ReadingStatus.OK.value) != ReadingStatus.OK.value:
        return ""
    if value is None:
        return f"{NO_VALUE}{quantity.key} has neither a value nor a status"
    if isinstance(value, _Odd):
        return f"{NO_VALUE}{quantity.key} is no number that a device has, found {_shown(value.printed) or 'nothing'}"
    if isinstance(value, (list, dict)):
        return f"{NO_VALUE}{quantity.key} is one value, found {'a list' if isinstance(value, list) else 'an object'}"
    if isinstance(value, str) and not value.isprintable():
        return f"{NO_VALUE}{quantity.key} holds what cannot be printed, found {_shown(value)}"
    mistake = next(value_mistakes(ReadingEntry(quantity=quantity.key, value=value), quantity), "")
    if mistake and isinstance(value, str) and len(value) > SHOWN_CHARACTERS:
        mistake = f"{quantity.key} cannot be {_shown(value)}"
    return f"{NO_VALUE}{mistake}" if mistake else ""


def _shown(value: str) -> str:
    """Return *value* for a message: cut, and without what cannot be printed."""
    cut = value[:SHOWN_CHARACTERS] + ("..." if len(value) > SHOWN_CHARACTERS else "")
    return printable(cut)


def _integer(digits: str) -> int | _Odd:
    # Python refuses to convert more than 4300 digits, and takes seconds for fewer.
    return int(digits) if len(digits) <= INTEGER_CHARACTERS else _Odd(digits)


def _number(digits: str) -> float | _Odd:
    found = float(digits)
    return found if math.isfinite(found) else _Odd(digits)
