"""A file that is replaced in one step and is on the disk when that returns."""

from __future__ import annotations

import os
from pathlib import Path

from nodevet.checks.errors import StoreError

__all__ = ["replace_file"]


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file at *path* by *content*, atomically and durably.

    Raises StoreError where it cannot be written; what was there before is then untouched.
    """
    fresh = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}): check {path.parent}") from error
