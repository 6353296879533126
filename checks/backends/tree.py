"""Reads /proc and /sys under a configurable root, and maps file errors to statuses of readings.

A missing file means that the kernel or the hardware lacks the feature: unsupported. Hardware behind a file may be busy
or suspended (EAGAIN, ENODATA, EBUSY): unavailable. Any other failure is an error.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nodevet.checks.core.model import WHOLE, Part, Reading, ReadingStatus
from nodevet.checks.core.quantities import ONES, measured
from nodevet.checks.core.wire import Progress

_BUSY = frozenset({errno.EAGAIN, errno.ENODATA, errno.EBUSY, errno.ETIMEDOUT})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EOPNOTSUPP})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_BLOCK_BYTES = 1 << 16
_DIGITS = re.compile(r"(\d+)")


class Tree:
    """Files under *root*. Each file is noted in *progress* before it is opened: a read of sysfs may never return.

    If the files belong to a *driver*, such as amdgpu, reading one counts as a call into the driver.
    """

    def __init__(self, root: str, progress: Progress, *, driver: bool = False) -> None:
        """Read below *root*, ``/`` on a real machine."""
        self.root = root
        self._begin = progress.call if driver else progress.write
        self._end = progress.returned

    def path(self, relative: str) -> str:
        """Return the full path of *relative*, which begins without a slash."""
        return os.path.join(self.root, relative)  # noqa: PTH118 - thousands of reads a minute

    def text(self, relative: str) -> str:
        """Return the file without surrounding white space and NUL bytes. Raises OSError, or ValueError for non-text."""
        path = self.path(relative)
        self._begin(f"read /{relative}")
        try:
            blocks = _blocks(path)
        finally:
            self._end()
        return b"".join(blocks).decode("utf-8").strip("\0 \t\r\n")

    def integer(self, relative: str) -> int:
        """Return the file as a number, decimal or 0x hexadecimal. Raises OSError or ValueError."""
        text = self.text(relative)
        try:
            return int(text, 16) if text.startswith("0x") else int(text)
        except ValueError as error:
            raise ValueError(f"/{relative} holds {text[:40]!r}, which is no number") from error

    def text_or_none(self, relative: str) -> str | None:
        """Return the file, or None if it is unreadable or empty: for identity, which is never judged."""
        try:
            return self.text(relative) or None
        except (OSError, ValueError):
            return None

    def integer_or_none(self, relative: str) -> int | None:
        """Return the file as a number, or None if that fails: for identity, which is never judged."""
        try:
            return self.integer(relative)
        except (OSError, ValueError):
            return None

    def link_name(self, relative: str) -> str | None:
        """Return the last component of the symbolic link's target, or None if there is no link."""
        try:
            return os.path.basename(os.readlink(self.path(relative)))  # noqa: PTH115, PTH119
        except OSError:
            return None

    def names(self, relative: str, pattern: str = ".*") -> list[str]:
        """Return the entries of a directory that match *pattern* in full, in numeric order; empty if it is absent."""
        self._begin(f"list /{relative}")
        try:
            entries = os.listdir(self.path(relative))  # noqa: PTH208
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise
        finally:
            self._end()
        return sorted((entry for entry in entries if re.fullmatch(pattern, entry)), key=_natural)

    @contextmanager
    def noted(self, what: str) -> Iterator[None]:
        """Note *what* in the progress while another library reads it below the root."""
        self._begin(what)
        try:
            yield
        finally:
            self._end()

    def exists(self, relative: str) -> bool:
        """Return whether there is such a file or directory."""
        return os.path.lexists(self.path(relative))


def _blocks(path: str) -> list[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        blocks = []
        while block := os.read(descriptor, _BLOCK_BYTES):
            blocks.append(block)
    finally:
        os.close(descriptor)
    return blocks


def status_of(error: OSError | ValueError) -> ReadingStatus:
    """Return the status of a reading whose file failed with *error*."""
    number = error.errno if isinstance(error, OSError) else None
    if number in _ABSENT:
        return ReadingStatus.UNSUPPORTED
    if number in _DENIED:
        return ReadingStatus.DENIED
    return ReadingStatus.UNAVAILABLE if number in _BUSY else ReadingStatus.ERROR


def number_reading(
    tree: Tree, quantity: str, relative: str, *, part: Part = WHOLE, scale: float | None = None
) -> Reading:
    """Return the number in a file as a reading, divided by *scale* if given (1000 for millidegrees)."""
    return sum_reading(tree, quantity, (relative,), part=part, scale=scale)


def sum_reading(
    tree: Tree, quantity: str, files: Sequence[str], *, part: Part = WHOLE, scale: float | None = None
) -> Reading:
    """Return the sum of the numbers in *files*; an unreadable or invalid one makes the sum unknown."""
    total = 0
    for relative in files:
        try:
            number = _patient_integer(tree, relative)
        except (OSError, ValueError) as error:
            status = status_of(error)
            if status is ReadingStatus.UNSUPPORTED and relative != files[0]:
                status = ReadingStatus.UNAVAILABLE  # the others exist, so this one has disappeared meanwhile
            return Reading(quantity, None, part, status, explain(error, relative))
        odd = measured(Reading(quantity, number, part)) if number in ONES else None
        if odd is not None and odd.value is None:
            return odd
        total += number
    return Reading(quantity, total if scale is None else total / scale, part)


def _patient_integer(tree: Tree, relative: str) -> int:
    """Return the number in a file; retry once if the sensor reports that it is being sampled."""
    try:
        return tree.integer(relative)
    except BlockingIOError:
        return tree.integer(relative)


def explain(error: OSError | ValueError, relative: str) -> str:
    """Return the reason why the file *relative* failed, for a reading's detail."""
    return f"/{relative}: {error.strerror}" if isinstance(error, OSError) else str(error)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders cpu2 before cpu10."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in _DIGITS.split(name)]
