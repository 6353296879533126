"""A small file of the agent's own, replaced in one step and on the disk when that returns."""

from __future__ import annotations

from pathlib import Path

from nodevet.checks.errors import StoreError
from nodevet.checks.files import replace

__all__ = ["replace_file"]


def replace_file(path: Path, content: bytes, *, mode: int = 0o640) -> None:
    """Replace the file at *path* by *content*, atomically and durably.

    Raises StoreError where it cannot be written; what was there before is then untouched.
    """
    try:
        replace(path, content, mode=mode)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}): check {path.parent}") from error
