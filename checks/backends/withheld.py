"""Which boards a driver does not list, and why that is no loss: a cgroup denies them to this process, as in a job, or
an option of the driver keeps them out of use."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping

from nodevet.checks.backends.tree import Tree
from nodevet.checks.model import Device

__all__ = ["excluded", "is_denied", "is_excluded", "withheld"]

PAGES = "proc/driver/nvidia/gpus"
MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)
EXCLUDED = re.compile(r"^GPU Excluded:\s*Yes\s*$", re.MULTILINE)
DEVICES = "sys/bus/pci/devices"
READ_AND_WRITE = stat.S_IROTH | stat.S_IWOTH
READ_AND_WRITE_OF_GROUP = stat.S_IRGRP | stat.S_IWGRP


def withheld(tree: Tree, boards: Iterable[Device], is_denied: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the addresses of the boards, among them *boards* of the PCI bus, whose nodes this process is denied.

    NVML leaves such a board out of its list as it does one that is lost. So does AMD SMI, which lists what amdkfd lets
    it read: that asks the cgroup for the render node (kfd_devcgroup_check_permission; rocm_smi_main.cc).
    """
    pages = {address: _node(tree, address) for address in tree.names(PAGES)}
    renders = {board.pci: _render_node(tree, board.pci) for board in boards if board.pci and board.driver == "amdgpu"}
    return (*_some(pages, is_denied), *_some(renders, is_denied))


def excluded(tree: Tree) -> tuple[str, ...]:
    """Return the addresses of the boards that an option of their driver keeps out of use (NVreg_ExcludedGpus).

    Such a board stays bound to the driver, which lists it no more (nvmlGetExcludedDeviceCount) and says so on its page.
    """
    pages = {address: tree.text_or_none(f"{PAGES}/{address}/information") or "" for address in tree.names(PAGES)}
    return tuple(address.lower() for address, page in pages.items() if is_excluded(page))


def is_excluded(page: str) -> bool:
    """Return whether the driver's *page* about a board says that it is excluded (nv-procfs.c)."""
    return EXCLUDED.search(page) is not None


def _some(nodes: Mapping[str, str | None], is_denied: Callable[[str], bool]) -> tuple[str, ...]:
    """Return which boards of one driver are denied, by address.

    A node that is not there says nothing: a container gets none of a board that was lost before it began. Nor do all:
    a service may be denied the driver.
    """
    denied = tuple(address.lower() for address, node in nodes.items() if node and is_denied(node))
    return denied if len(denied) < len(nodes) else ()


def is_denied(path: str) -> bool:
    """Return whether the cgroup denies the device *path* to this process, whose rights as a user would do.

    The kernel asks the cgroup in access(2) too (fs/namei.c, inode_permission), which does not open the device.
    """
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    mode = status.st_mode
    is_of_group = status.st_gid in (os.getegid(), *os.getgroups())  # render nodes are their group's on Ubuntu
    by_group = is_of_group and mode & READ_AND_WRITE_OF_GROUP == READ_AND_WRITE_OF_GROUP
    has_rights = os.geteuid() == 0 or mode & READ_AND_WRITE == READ_AND_WRITE or by_group
    return stat.S_ISCHR(mode) and has_rights and not os.access(path, os.R_OK | os.W_OK, effective_ids=True)


def _node(tree: Tree, address: str) -> str | None:
    """Return the device node of the board at *address*, as its driver's page numbers it: that of this process."""
    minor = MINOR.search(tree.text_or_none(f"{PAGES}/{address}/information") or "")
    return f"/dev/nvidia{minor[1]}" if minor else None


def _render_node(tree: Tree, address: str) -> str | None:
    """Return the render node of the board at *address*; of a split one, the first part's."""
    nodes = tree.names(f"{DEVICES}/{address}/drm", r"renderD\d+")
    return f"/dev/dri/{nodes[0]}" if nodes else None
