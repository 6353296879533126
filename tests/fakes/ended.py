"""A program that a test starts, and that ends with the test however that goes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import AnyStr

__all__ = ["ended"]


@contextmanager
def ended(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Kill *process* where the test is over before it is: Popen as a context waits for it, without end.

    A test that fails in the middle would hold up all that come after it.
    """
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
