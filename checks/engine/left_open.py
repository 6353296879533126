"""Descriptors that a check of a site opens and never closes: the agent would run out of them, and write no state file.

Other threads of the agent open descriptors too, such as connections to its server. So one is attributed to a check if
it appeared while the check ran, and is still open, as the same file, in later rounds; those of several rounds must be.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress

import msgspec

from nodevet.checks.reference.limits import from_table

FOLDER = "/proc/self/fd"

ROUNDS = int(from_table("site_checks.left_open").value)
"""Number of rounds of a check from which descriptors are still open: fewer may be a connection that it keeps."""

MOST_RATIO = from_table("site_checks.open_ratio").value
"""Share of the allowed descriptors that one check may hold, in however few rounds."""

KEPT = 8
"""Limit of descriptors per round that are looked at again."""


class _Left(msgspec.Struct, frozen=True):
    """Descriptors that appeared in one run of a check: how many, and some of them with their files."""

    count: int
    files: Mapping[int, str]


class LeftOpen:
    """The descriptors that checks left open, by check."""

    def __init__(self) -> None:
        """Start without any."""
        self._asked: set[str] = set()
        self._left: dict[str, tuple[_Left, ...]] = {}
        self._told: dict[str, str] = {}

    def why(self, check: str) -> str:
        """Return why *check* must not run: what it left is still open; empty if it may."""
        if check not in self._left:
            return ""
        left = self._still(check)
        if not _is_too_much(left):
            self._told.pop(check, None)
        elif check not in self._told:
            gc.collect()  # it closes files that only a cycle of objects holds
            accepted = _accepted(number for entry in self._still(check) for number in entry.files)
            left = self._still(check, accepted)
            if _is_too_much(left):
                self._told[check] = _words(left)
        return self._told.get(check, "")

    def before(self, check: str) -> frozenset[int] | int | None:
        """Return what is open before *check* runs, for ``after``: all, or the lowest free number if it left nothing.

        A list of all takes thirty times as long.
        """
        is_known = check in self._asked and check not in self._left
        self._asked.add(check)
        return _lowest() if is_known else _listed()

    def after(self, check: str, before: frozenset[int] | int | None) -> None:
        """Note which descriptors *check* left, compared with *before*."""
        now = _lowest() if isinstance(before, int) else _listed()
        if isinstance(before, frozenset) and isinstance(now, frozenset):
            new = now - before
        else:
            new = frozenset({before}) if isinstance(before, int) and before != now else frozenset()
        files = {number: file for number in sorted(new)[:KEPT] if (file := _file(number))}
        if files:
            self._left[check] = (*self._left.get(check, ()), _Left(len(new), files))
        elif check in self._left:
            self._still(check)

    def _still(self, check: str, without: frozenset[int] = frozenset()) -> tuple[_Left, ...]:
        """Return the runs of *check* of which descriptors are still open, those *without* aside; forget the others."""
        left = tuple(
            entry
            for entry in (_without(entry, without) for entry in self._left.get(check, ()))
            if any(_file(number) == file for number, file in entry.files.items())
        )
        if left:
            self._left[check] = left
        else:
            self._left.pop(check, None)
        return left


def _without(entry: _Left, numbers: frozenset[int]) -> _Left:
    if not numbers & entry.files.keys():
        return entry
    files = {number: file for number, file in entry.files.items() if number not in numbers}
    return _Left(entry.count - len(entry.files) + len(files), files)


def _is_too_much(left: tuple[_Left, ...]) -> bool:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return len(left) >= ROUNDS or sum(entry.count for entry in left) > MOST_RATIO * most > 0


def _words(left: tuple[_Left, ...]) -> str:
    count, rounds = sum(entry.count for entry in left), len(left)
    of_rounds = f"of {rounds} rounds" if rounds > 1 else "of one round"
    file = next(iter(left[-1].files.values()))
    return (
        f"it leaves files open: at least {count} descriptors {of_rounds}, such as {file}; "
        "it is not asked again while they are open, because the agent would run out of descriptors; only a restart of "
        "the agent closes them"
    )


def _lowest() -> int | None:
    """Return the lowest free descriptor; None where none is free or standard error is closed."""
    try:
        number = os.dup(2)
    except OSError:
        return None
    os.close(number)
    return number


def _listed() -> frozenset[int] | None:
    """Return the numbers of all open descriptors; None where none is free for that."""
    try:
        found = frozenset(map(int, os.listdir(FOLDER)))  # noqa: PTH208 (no Path of each of hundreds)
    except OSError:
        return None
    return found - {_lowest()}  # that of the list itself, which is closed now


def _file(number: int) -> str:
    """Return the file of a descriptor; empty if it is not open."""
    try:
        return os.readlink(f"{FOLDER}/{number}")  # noqa: PTH115 (no file of a path)
    except OSError:
        return ""


def _accepted(numbers: Iterable[int]) -> frozenset[int]:
    """Return those of *numbers* that are connections to a server in this process: other threads accept them."""
    ours = {name for number in _listed() or () if (name := _name(number, of_server=True)) is not None}
    return frozenset(number for number in numbers if _name(number, of_server=False) in ours)


def _name(number: int, *, of_server: bool) -> tuple[int, object] | None:
    """Return the family and address (of TCP, the port) of a socket that listens, or of one that does not."""
    if not _file(number).startswith("socket:"):
        return None
    with suppress(OSError, ValueError), closing(socket.socket(fileno=os.dup(number))) as found:
        if bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) is not of_server:
            return None
        name = found.getsockname()
        return (0, name[1]) if found.family in (socket.AF_INET, socket.AF_INET6) else (found.family, name)
    return None
