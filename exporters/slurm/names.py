"""The nodes that a list of SLURM's such as ``n[01-04,7],m1`` names. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, islice, product

_TERM = re.compile(r"(?:\[[^\]]*\]|[^,\[])+")
"""What stands between two commas, but for those in brackets."""

_BRACKETS = re.compile(r"\[([^\]]*)\]")

_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")

LONGEST_RANGE = 1 << 16
"""SLURM knows no longer one (MAX_RANGE in hostlist.c)."""

MOST_WRITTEN_OUT = 1 << 16
"""So many names are written out at most: those whose ranges stand elsewhere than behind all other numbers."""

_NUMBERED = re.compile(r"((?:.*\D)?)(\d{1,9})(\D*)", re.DOTALL)
"""A name with the last number in it."""


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


def how_many(lists: Iterable[tuple[str, int]]) -> int:
    """Return about how many nodes are in *lists*, each with how many SLURM says there are; one in several counts once.

    The work goes by the length of the texts: of a range only its ends are looked at.
    """
    union, nameless, seen = _Union(), 0, set[str]()
    for text, total in lists:
        if text not in seen:
            nameless += total - union.add(text, total)
            seen |= {text} - {""}
    return union.size + nameless


class _Union:
    """Names, as ranges of the last number in each, apart for each text around it and each width of padded ones."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
        self._others: set[str] = set()
        self._left = MOST_WRITTEN_OUT

    @property
    def size(self) -> int:
        """Return how many names there are."""
        return len(self._others) + sum(map(_length, self._ranges.values()))

    def add(self, text: str, most: int) -> int:
        """Take in the first names of the list *text*, at most so many, and return how many these are."""
        added = 0
        for term in _TERM.findall(text):
            added += self._add_term(term, most - added)
        return added

    def _add_term(self, term: str, most: int) -> int:
        head, *rest = _BRACKETS.split(term)
        if len(rest) == 2 and not head[-1:].isdecimal() and not re.search(r"\d", rest[1]):
            return self._add_ranges(head, rest[0], rest[1], most)
        names = set(islice(names_in(term), min(most, self._left)))
        self._left -= len(names)
        for name in names:
            self._add_name(name)
        return len(names)

    def _add_ranges(self, head: str, ranges: str, tail: str, most: int) -> int:
        added = 0
        for text in ranges.split(","):
            found = _RANGE.fullmatch(text)
            if found is None:
                added += self._add_name(f"{head}{text}{tail}") if added < most else 0
                continue
            first = int(found[1])
            last = min(int(found[2]), first + min(LONGEST_RANGE, most - added - 1))
            self._add(head, tail, len(found[1]), first, last)
            added += max(last - first + 1, 0)
        return added

    def _add_name(self, name: str) -> int:
        found = _NUMBERED.fullmatch(name)
        if found is None:
            self._others.add(name)
        else:
            self._add(found[1], found[3], len(found[2]), int(found[2]), int(found[2]))
        return 1

    def _add(self, head: str, tail: str, width: int, first: int, last: int) -> None:
        # n[08-10] and n[8-10] share n10.
        padded = 10 ** (width - 1)
        for width_of, low, high in ((width, first, min(last, padded - 1)), (0, max(first, padded), last)):
            if low <= high:
                self._ranges[head, tail, width_of].append((low, high))


def _length(ranges: list[tuple[int, int]]) -> int:
    """Return how many numbers are in *ranges*."""
    length, behind = 0, -1
    for first, last in sorted(ranges):
        length += max(last - max(first, behind + 1) + 1, 0)
        behind = max(behind, last)
    return length
