"""What a pattern is made of: how many bytes of it no user can choose, and texts that fit it."""

from __future__ import annotations

import importlib
from random import Random
from typing import Any

__all__ = ["fixed_prefix", "free_parts", "sample"]

_PARSER: Any = importlib.import_module("re._parser")

COUNTED = frozenset("0123456789abcdefABCDEF")
"""Digits and hexadecimal digits: a field that has only these is closed, its bytes count."""

WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-|?'/")
"""A word of the driver, such as a function: neither counts nor ends the prefix. It holds no blank and no bracket."""

_CATEGORIES = {
    "CATEGORY_DIGIT": frozenset("0123456789"),
    "CATEGORY_WORD": frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"),
    "CATEGORY_SPACE": frozenset(" "),
}


def fixed_prefix(pattern: str) -> int:
    """Return how many bytes at least stand before the first that may be anything."""
    return _sequence(_PARSER.parse(pattern))[0]


def free_parts(pattern: str) -> bool:
    """Return whether anything in *pattern* may be anything."""
    return not _sequence(_PARSER.parse(pattern))[1]


def _sequence(items: Any) -> tuple[int, bool]:
    """Return the least number of fixed bytes, and whether the whole sequence is closed."""
    total = 0
    for name, value in items:
        count, is_closed = _one(str(name), value)
        total += count
        if not is_closed:
            return total, False
    return total, True


def _one(name: str, value: Any) -> tuple[int, bool]:
    match name:
        case "LITERAL":
            return 1, True
        case "IN":
            characters = _characters(value)
            if characters is None or not characters <= COUNTED | WORD | {" ", ","}:
                return 0, False
            if characters <= COUNTED or characters <= {" "} or len(characters) <= 2:
                return 1, True
            return 0, characters <= WORD
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, _most, inner = value
            count, is_closed = _sequence(inner)
            return count * least, is_closed
        case "SUBPATTERN":
            return _sequence(value[-1])
        case "BRANCH":
            results = [_sequence(branch) for branch in value[1]]
            return min(count for count, _ in results), all(is_closed for _, is_closed in results)
        case "AT" | "ASSERT" | "ASSERT_NOT":
            return 0, True
    return 0, False


def _characters(items: Any) -> frozenset[str] | None:
    """Return what a class may be, or None where that has no end."""
    found: set[str] = set()
    for name, value in items:
        match str(name):
            case "LITERAL":
                found.add(chr(value))
            case "RANGE":
                found.update(map(chr, range(value[0], value[1] + 1)))
            case "CATEGORY" if str(value) in _CATEGORIES:
                found |= _CATEGORIES[str(value)]
            case _:
                return None
    return frozenset(found)


def sample(pattern: str, random: Random) -> str:
    """Return a text that *pattern* may fit: literals as they are, of every choice one, of every repetition a few."""
    return "".join(_sample(str(name), value, random) for name, value in _PARSER.parse(pattern))


def _sample(name: str, value: Any, random: Random) -> str:
    match name:
        case "LITERAL":
            return chr(value)
        case "IN":
            return random.choice(sorted(_characters(value) or "x"))
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, inner = value
            count = random.randint(least, min(int(most), least + 3))
            return "".join(_sample(str(one), part, random) for _ in range(count) for one, part in inner)
        case "SUBPATTERN":
            return "".join(_sample(str(one), part, random) for one, part in value[-1])
        case "BRANCH":
            return "".join(_sample(str(one), part, random) for one, part in random.choice(value[1]))
        case "ANY" | "NOT_LITERAL":
            return "x"
    return ""
