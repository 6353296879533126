"""The nodes that a list of SLURM's such as ``n[01-04,7],m1`` names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, product

__all__ = ["names_in"]

_TERM = re.compile(r"(?:\[[^\]]*\]|[^,\[])+")
"""What stands between two commas, but for those in brackets."""

_BRACKETS = re.compile(r"\[([^\]]*)\]")

_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")

LONGEST_RANGE = 1 << 16
"""SLURM knows no longer one (MAX_RANGE in hostlist.c)."""


def names_in(text: str) -> Iterator[str]:
    """Yield the names in the list *text*, as far as somebody asks for them; what is not understood is one name."""
    for term in _TERM.findall(text):
        # Every second part stood in brackets; a name may have several.
        parts = enumerate(_BRACKETS.split(term))
        choices = (_choices(part) if place % 2 else (part,) for place, part in parts)
        yield from map("".join, product(*choices))


def _choices(ranges: str) -> tuple[str, ...]:
    return tuple(chain.from_iterable(map(_numbers, ranges.split(","))))


def _numbers(numbers: str) -> Iterator[str]:
    found = _RANGE.fullmatch(numbers)
    if found is None:
        yield numbers
        return
    first, last = int(found[1]), int(found[2])
    width = len(found[1])
    yield from (f"{number:0{width}d}" for number in range(first, min(last, first + LONGEST_RANGE) + 1))
