"""Which boards a driver does not list, and why that proves no loss: a cgroup denies them to this process, as in a job,
an option of the driver keeps them out of use, or the container of this process was given others alone."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping

from nodevet.checks.backends.tree import Tree
from nodevet.checks.core.model import Device

PAGES = "proc/driver/nvidia/gpus"
MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)
EXCLUDED = re.compile(r"^GPU Excluded:\s*Yes\s*$", re.MULTILINE)
DEVICES = "sys/bus/pci/devices"
MOUNTS = "proc/self/mountinfo"
KERNELS_OWN = "devtmpfs"
READ_AND_WRITE = stat.S_IROTH | stat.S_IWOTH
READ_AND_WRITE_OF_GROUP = stat.S_IRGRP | stat.S_IWGRP


def read_pages(tree: Tree) -> dict[str, str | None]:
    """Return the NVIDIA driver's page about each of its boards, by address; None where it could not be read.

    A page is there from the end of the probe of its board to its removal (nv_procfs_add_gpu in nv-pci.c), and the
    driver waits for the board to write it: each is read once.
    """
    return {address.lower(): tree.text_or_none(f"{PAGES}/{address}/information") for address in tree.names(PAGES)}


def withheld(
    tree: Tree, boards: Iterable[Device], pages: Mapping[str, str | None], is_denied: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the addresses of the boards, among them *boards* of the PCI bus, whose nodes this process is denied.

    NVML leaves such a board out of its list as it does one that is lost. So does AMD SMI, which lists what amdkfd lets
    it read: that asks the cgroup for the render node (kfd_devcgroup_check_permission; rocm_smi_main.cc).
    """
    nodes = {address: _node(page) for address, page in pages.items()}
    return (*_some(nodes, is_denied), *_some(_render_nodes(tree, boards), is_denied))


def excluded(pages: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the addresses of the boards that an option of their driver keeps out of use (NVreg_ExcludedGpus).

    Such a board stays bound to the driver, which lists it no more (nvmlGetExcludedDeviceCount) and says so on its page.
    """
    return tuple(address for address, page in pages.items() if _is_excluded(page or ""))


def not_given(
    tree: Tree, boards: Iterable[Device], pages: Mapping[str, str | None], is_there: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the addresses of those of *boards* that the container of this process was not given, as it gave others.

    Its driver holds each, the PCI bus shows them all, and the page or the node of some is not in this process's view:
    NVIDIA's toolkit mounts the pages of the boards that it gives alone (nvc_mount.c, mount_procfs_gpu), others show
    all pages and make the nodes of some. What that could hide on a bare host, it does not:

    - /dev is there the kernel's own (devtmpfs), and nothing is said. So it is in a container that has the host's /dev,
      and in a job without a container. Where the mounts cannot be read, nothing is said either.
    - A board whose probe hangs is bound before (really_probe in dd.c) and has no page: /dev tells the host from a
      container.
    - One whose probe failed is bound to no driver, and one that left the bus is not on it.
    - One that does not start (RmInitAdapter) has page and node, for both come with the probe.

    What remains is a container that asks for every board and gets those that NVML lists when it starts. One that was
    lost before is not proven to be: it is not measured, which is never well.
    """
    known = tuple(boards)
    if not _is_made_for_some(tree):
        return ()
    nodes = {board.pci: _node(pages.get(board.pci)) for board in known if board.pci and board.driver == "nvidia"}
    lacking = [address for address, node in nodes.items() if address not in pages or (node and not is_there(node))]
    given = [node for node in nodes.values() if node and is_there(node)]
    renders = _render_nodes(tree, known)
    unseen = [address for address, node in renders.items() if node and not is_there(node)]
    seen = [node for node in renders.values() if node and is_there(node)]
    return (*(lacking if given else ()), *(unseen if seen else ()))


def kept_away(tree: Tree, boards: Iterable[Device], pages: Mapping[str, str | None]) -> frozenset[str]:
    """Return the addresses of the boards that the library of their driver does not list for any reason told here.

    None of them is opened by its address, and none is taken for one that is counted and silent.
    """
    known = tuple(boards)
    denied = withheld(tree, known, pages, is_denied)
    return frozenset((*denied, *excluded(pages), *not_given(tree, known, pages, is_there)))


def _is_excluded(page: str) -> bool:
    """Return whether the driver's *page* about a board says that it is excluded (nv-procfs.c)."""
    return EXCLUDED.search(page) is not None


def _some(nodes: Mapping[str, str | None], is_denied: Callable[[str], bool]) -> tuple[str, ...]:
    """Return which boards of one driver are denied, by address.

    A node that is not there is not denied: see not_given. Nor do all say anything: a service may be denied the driver.
    """
    denied = tuple(address.lower() for address, node in nodes.items() if node and is_denied(node))
    return denied if len(denied) < len(nodes) else ()


def is_there(path: str) -> bool:
    """Return whether this process has a device node at *path*."""
    return os.path.lexists(path)


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


def _is_made_for_some(tree: Tree) -> bool:
    """Return whether somebody filled the /dev of this process, as for a container: the kernel's own has every node."""
    kind = None
    for line in (tree.text_or_none(MOUNTS) or "").splitlines():
        mount, _, told = line.partition(" - ")  # proc(5): any number of fields stand before the dash
        if mount.split()[4:5] == ["/dev"] and told:
            kind = told.split()[0]  # what was mounted there last
    return kind is not None and kind != KERNELS_OWN


def _node(page: str | None) -> str | None:
    """Return the device node of the board that *page* is about, as its driver numbers it: that of this process."""
    minor = MINOR.search(page or "")
    return f"/dev/nvidia{minor[1]}" if minor else None


def _render_nodes(tree: Tree, boards: Iterable[Device]) -> dict[str, str | None]:
    """Return the render node of each of *boards* that amdgpu holds, by address."""
    return {board.pci: _render_node(tree, board.pci) for board in boards if board.pci and board.driver == "amdgpu"}


def _render_node(tree: Tree, address: str) -> str | None:
    """Return the render node of the board at *address*; of a split one, the first part's."""
    nodes = tree.names(f"{DEVICES}/{address}/drm", r"renderD\d+")
    return f"/dev/dri/{nodes[0]}" if nodes else None
