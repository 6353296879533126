"""What a reader of ours was refused where its work raises for want of it: no bug, and no fault of a driver."""

from __future__ import annotations

import re

__all__ = ["for_want"]

_WANTS = (
    (
        re.compile(r"too many open files in system", re.IGNORECASE),
        "descriptors: raise fs.file-max",
    ),
    (re.compile(r"too many open files", re.IGNORECASE), "descriptors: raise LimitNOFILE of the agent's unit"),
    (re.compile(r"MemoryError|cannot allocate memory", re.IGNORECASE), "memory: see free -m and journalctl -k"),
    (re.compile(r"can't start new thread", re.IGNORECASE), "threads: raise TasksMax of the agent's unit"),
)
"""The words of errno(3) and of Python for a want, and what to do about it."""


def for_want(text: str) -> str:
    """Return what the error *text* tells a want of, and what to do; empty where it tells of none."""
    return next((f"for want of {step}" for pattern, step in _WANTS if pattern.search(text)), "")
