"""The node names in a SLURM hostlist such as ``n[01-04,7],m1``. Pure functions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, islice, product

_TERM = re.compile(r"(?:\[[^\]]*\]|[^,\[])+")
"""One term of a hostlist: text between commas, where commas inside brackets do not count."""

_BRACKETS = re.compile(r"\[([^\]]*)\]")

_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")

LONGEST_RANGE = 1 << 16
"""Maximum size of a range in SLURM (MAX_RANGE in hostlist.c)."""

MOST_WRITTEN_OUT = 1 << 16
"""Maximum number of names that are expanded, for terms whose range is not the last number of the name."""

_NUMBERED = re.compile(r"((?:.*\D)?)(\d{1,9})(\D*)", re.DOTALL)
"""A name, split at its last number."""


def names_in(text: str) -> Iterator[str]:
    """Yield the names in the hostlist *text* lazily; a term that cannot be parsed is one name."""
    for term in _TERM.findall(text):
        # Every second part stood in brackets; a name may have several brackets.
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
    """Return the approximate number of nodes in *lists* of (hostlist, SLURM's node count); a repeated node counts once.

    The cost depends on the length of the texts, because only the ends of a range are evaluated.
    """
    union, nameless, seen = _Union(), 0, set[str]()
    for text, total in lists:
        if text not in seen:
            nameless += total - union.add(text, total)
            seen |= {text} - {""}
    return union.size + nameless


class _Union:
    """A set of names, kept as ranges of the last number, separate for each surrounding text and padded width."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
        self._others: set[str] = set()
        self._left = MOST_WRITTEN_OUT

    @property
    def size(self) -> int:
        """Return the number of names."""
        return len(self._others) + sum(map(_length, self._ranges.values()))

    def add(self, text: str, most: int) -> int:
        """Add the first *most* names of the hostlist *text*, and return the number of names taken."""
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
    """Return the count of numbers in *ranges*."""
    length, behind = 0, -1
    for first, last in sorted(ranges):
        length += max(last - max(first, behind + 1) + 1, 0)
        behind = max(behind, last)
    return length
