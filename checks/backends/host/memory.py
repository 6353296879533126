"""The main memory, as psutil reads it from /proc/meminfo below the root of a reader.

psutil takes the place of /proc from one variable of its module, for all of a process: a reader sets it, once, and
nobody else may.
"""

from __future__ import annotations

import os
import re
import warnings

import psutil

from nodevet.checks.backends.tree import Tree

MEMINFO = "proc/meminfo"
_AVAILABLE = re.compile(r"^MemAvailable:", re.MULTILINE)


def look_below(root: str) -> None:
    """Have psutil read /proc below *root* from now on, in all of this process: a reader, which reads one root only."""
    psutil.PROCFS_PATH = os.path.join(root, "proc")  # noqa: PTH118


def total_bytes(tree: Tree) -> int:
    """Return the memory of the machine. Raises OSError, or ValueError where /proc/meminfo does not tell it."""
    return _told(tree)[0]


def available_bytes(tree: Tree) -> int:
    """Return what new processes may have. Raises OSError, or ValueError where /proc/meminfo does not tell it.

    Where the kernel tells none, as before Linux 3.14, psutil gives an estimate, which is not measured: none is taken.
    """
    if _AVAILABLE.search(tree.text(MEMINFO)) is None:
        raise ValueError("it has no MemAvailable")
    _, available, doubts = _told(tree)
    if "available" in doubts:
        raise ValueError("its MemAvailable is below zero")
    return available


def _told(tree: Tree) -> tuple[int, int, str]:
    """Return what psutil reads below the root of *tree*, total and available, and what it set to zero instead."""
    path = tree.path("proc")
    if path != psutil.PROCFS_PATH:
        raise ValueError(f"psutil reads {psutil.PROCFS_PATH} in this process, not {path}")
    try:
        # psutil warns of fields that it sets to zero, on the standard error of the reader; most are none of ours.
        with tree.noted(f"read /{MEMINFO}"), warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            found = psutil.virtual_memory()
    except KeyError as error:
        raise ValueError(f"it has no {os.fsdecode(error.args[0]).rstrip(':')}") from error
    except (ArithmeticError, IndexError) as error:
        raise ValueError(f"psutil does not understand it ({error})") from error
    return found.total, found.available, " ".join(str(doubt.message) for doubt in doubts)
