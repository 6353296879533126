"""Which boards the cgroup of this process denies it: in a job, those of others. They are not lost."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable

from nodevet.checks.backends.tree import Tree

__all__ = ["is_denied", "withheld"]

PAGES = "proc/driver/nvidia/gpus"
MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)
READ_AND_WRITE = stat.S_IROTH | stat.S_IWOTH


def withheld(tree: Tree, is_denied: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the addresses of the boards whose device nodes this process is denied.

    NVML leaves such a board out of its list as it does one that is lost. A node that is not there says nothing: a
    container gets none of a board that was lost before it began. Nor do all: a service may be denied the driver.
    """
    nodes = {address: _node(tree, address) for address in tree.names(PAGES)}
    denied = tuple(address.lower() for address, node in nodes.items() if node and is_denied(node))
    return denied if len(denied) < len(nodes) else ()


def is_denied(path: str) -> bool:
    """Return whether the cgroup denies the device *path* to this process, whose rights as a user would do.

    The kernel asks the cgroup in access(2) too (fs/namei.c, inode_permission), which does not open the device.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except OSError:
        return False
    has_rights = os.geteuid() == 0 or mode & READ_AND_WRITE == READ_AND_WRITE
    return stat.S_ISCHR(mode) and has_rights and not os.access(path, os.R_OK | os.W_OK, effective_ids=True)


def _node(tree: Tree, address: str) -> str | None:
    """Return the device node of the board at *address*, as its driver's page numbers it: that of this process."""
    minor = MINOR.search(tree.text_or_none(f"{PAGES}/{address}/information") or "")
    return f"/dev/nvidia{minor[1]}" if minor else None
