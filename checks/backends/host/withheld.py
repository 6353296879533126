"""GPUs that a driver does not list without being lost: a cgroup denies them to this process, as in a job, a driver
option excludes them, or the container of this process was given others alone."""

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
    """Return the NVIDIA driver's page about each of its GPUs, by PCI address; None where it could not be read.

    A page exists from the end of the probe of its GPU to its removal (nv_procfs_add_gpu in nv-pci.c), and the
    driver waits for the GPU to write it: each is read once.
    """
    return {address.lower(): tree.text_or_none(f"{PAGES}/{address}/information") for address in tree.names(PAGES)}


def withheld(
    tree: Tree, boards: Iterable[Device], pages: Mapping[str, str | None], is_denied: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the addresses of the GPUs, including *boards* of the PCI bus, whose device nodes this process is denied.

    NVML omits such a GPU from its list, as it does a lost one. So does AMD SMI, which lists the GPUs that amdkfd lets
    it read: amdkfd checks the cgroup for the render node (kfd_devcgroup_check_permission; rocm_smi_main.cc).
    """
    nodes = {address: _node(page) for address, page in pages.items()}
    return (*_some(nodes, is_denied), *_some(_render_nodes(tree, boards), is_denied))


def excluded(pages: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the addresses of the GPUs that a driver option excludes from use (NVreg_ExcludedGpus).

    Such a GPU stays bound to the driver, which no longer lists it (nvmlGetExcludedDeviceCount) and reports it on its
    page.
    """
    return tuple(address for address, page in pages.items() if EXCLUDED.search(page or ""))


def not_given(
    tree: Tree, boards: Iterable[Device], pages: Mapping[str, str | None], is_there: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the addresses of those *boards* that the container of this process was not given, while it got others.

    Their driver is bound to each, the PCI bus shows them all, and the page or the node of some is not visible to this
    process: NVIDIA's toolkit mounts only the pages of the given GPUs (nvc_mount.c, mount_procfs_gpu), others show
    all pages and create the nodes of some. Faults that would look the same on a bare host are distinguished:

    - There /dev is the kernel's own (devtmpfs), and nothing is returned. The same holds in a container with the host's
      /dev, and in a job without a container. Where the mounts cannot be read, nothing is returned either.
    - A GPU whose probe hangs is bound before (really_probe in dd.c) and has no page: /dev distinguishes the host from a
      container.
    - A GPU whose probe failed is bound to no driver, and one that left the bus is not on it.
    - A GPU that does not start (RmInitAdapter) has page and node, because both are created by the probe.

    The remaining case is a container that requests every GPU and gets those that NVML lists when it starts. A GPU that
    was lost before is not proved lost: it is unmeasured, which is never healthy.
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
    """Return the addresses of the GPUs that their driver's library does not list for a reason of this module.

    None of them is opened by its address, and none is mistaken for a GPU that is counted and silent.
    """
    known = tuple(boards)
    denied = withheld(tree, known, pages, is_denied)
    return frozenset((*denied, *excluded(pages), *not_given(tree, known, pages, is_there)))


def _some(nodes: Mapping[str, str | None], is_denied: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the denied GPUs of one driver, by address.

    A missing node is not denied: see not_given. If all are denied, the result is empty: a service may be denied the
    driver.
    """
    denied = tuple(address.lower() for address, node in nodes.items() if node and is_denied(node))
    return denied if len(denied) < len(nodes) else ()


def is_there(path: str) -> bool:
    """Return whether this process has a device node at *path*."""
    return os.path.lexists(path)


def is_denied(path: str) -> bool:
    """Return whether the cgroup denies the device *path* to this process, whose file permissions would suffice.

    The kernel checks the cgroup in access(2) too (fs/namei.c, inode_permission), which does not open the device.
    """
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    mode = status.st_mode
    is_of_group = status.st_gid in (os.getegid(), *os.getgroups())  # Ubuntu gives render nodes to their group
    by_group = is_of_group and mode & READ_AND_WRITE_OF_GROUP == READ_AND_WRITE_OF_GROUP
    has_rights = os.geteuid() == 0 or mode & READ_AND_WRITE == READ_AND_WRITE or by_group
    return stat.S_ISCHR(mode) and has_rights and not os.access(path, os.R_OK | os.W_OK, effective_ids=True)


def _is_made_for_some(tree: Tree) -> bool:
    """Return whether the /dev of this process was filled for a container: the kernel's own has every node."""
    kind = None
    for line in (tree.text_or_none(MOUNTS) or "").splitlines():
        mount, _, rest = line.partition(" - ")  # proc(5): any number of fields precede the dash
        if mount.split()[4:5] == ["/dev"] and rest:
            kind = rest.split()[0]  # the last mount there counts
    return kind is not None and kind != KERNELS_OWN


def _node(page: str | None) -> str | None:
    """Return this process's device node of the GPU that *page* is about, by the driver's minor number."""
    minor = MINOR.search(page or "")
    return f"/dev/nvidia{minor[1]}" if minor else None


def _render_nodes(tree: Tree, boards: Iterable[Device]) -> dict[str, str | None]:
    """Return the render node of each of *boards* that is bound to amdgpu, by address."""
    return {board.pci: _render_node(tree, board.pci) for board in boards if board.pci and board.driver == "amdgpu"}


def _render_node(tree: Tree, address: str) -> str | None:
    """Return the render node of the GPU at *address*; of a partitioned one, the first partition's."""
    nodes = tree.names(f"{DEVICES}/{address}/drm", r"renderD\d+")
    return f"/dev/dri/{nodes[0]}" if nodes else None
