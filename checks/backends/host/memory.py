"""The main memory, as psutil reads it from /proc/meminfo below the root of a reader.

psutil reads /proc below one module variable, which applies to the whole process: a reader sets it once, and no other
code may.
"""

from __future__ import annotations

import os
import re
import warnings

from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.later import loaded_later

with loaded_later("base64", "glob", "locale", "subprocess"):  # for sockets, sensors and psutil.Popen
    import psutil

MEMINFO = "proc/meminfo"
_AVAILABLE = re.compile(r"^MemAvailable:", re.MULTILINE)


def look_below(root: str) -> None:
    """Let psutil read /proc below *root* from now on, in this whole process: a reader, which reads one root only."""
    psutil.PROCFS_PATH = os.path.join(root, "proc")  # noqa: PTH118


def total_bytes(tree: Tree) -> int:
    """Return the memory of the machine. Raises OSError, or ValueError where /proc/meminfo lacks it."""
    return _virtual_memory(tree)[0]


def available_bytes(tree: Tree) -> int:
    """Return the bytes available to new processes. Raises OSError, or ValueError where /proc/meminfo lacks them.

    Where the kernel reports none, as before Linux 3.14, psutil returns an estimate, which is no measurement: it is
    refused.
    """
    if _AVAILABLE.search(tree.text(MEMINFO)) is None:
        raise ValueError("it has no MemAvailable")
    _, available, doubts = _virtual_memory(tree)
    if "available" in doubts:
        raise ValueError("its MemAvailable is below zero")
    return available


def _virtual_memory(tree: Tree) -> tuple[int, int, str]:
    """Return psutil's total and available bytes below the root of *tree*, and its warnings of fields set to zero."""
    path = tree.path("proc")
    if path != psutil.PROCFS_PATH:
        raise ValueError(f"psutil reads {psutil.PROCFS_PATH} in this process, not {path}")
    try:
        # psutil warns on standard error of fields that it sets to zero; most are not used here.
        with tree.noted(f"read /{MEMINFO}"), warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            found = psutil.virtual_memory()
    except KeyError as error:
        raise ValueError(f"it has no {os.fsdecode(error.args[0]).rstrip(':')}") from error
    except (ArithmeticError, IndexError) as error:
        raise ValueError(f"psutil does not understand it ({error})") from error
    return found.total, found.available, " ".join(str(doubt.message) for doubt in doubts)
