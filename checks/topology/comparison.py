"""The differences of a node's connections from the expected ones, and of one direction from the other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from .matrix import SELF, Cells, Topology

_CLOSENESS = ("SYS", "SOC", "NODE", "PHB", "PXB", "PSB", "PIX")
"""From far to near, by the legend of nvidia-smi; SOC is the former name of SYS. Any NVLink is nearer."""

_XGMI = re.compile(r"XGMI(\d*)")
"""A link of AMD devices, with the number of hops where it is not direct."""
_MOST_LINKS = 99


class Difference(msgspec.Struct, frozen=True):
    """One difference from the expected topology. ``worse`` is None where two values have no order.

    ``kind`` is ``gpu``, ``link``, ``nic``, ``nic_link``, ``cpu_affinity`` or ``numa_affinity``; ``second`` is empty
    where only one device is affected. ``actual`` is None for an absent or unreadable value.
    """

    kind: str
    first: str
    second: str
    actual: str | None
    expected: str | None
    worse: bool | None = None

    @property
    def message(self) -> str:
        """Return the difference as text."""
        where = f"{self.first} to {self.second}" if self.second else self.first
        return f"{where}: {self.kind.replace('_', ' ')} is {_said(self.actual)}, expected {_said(self.expected)}"


def asymmetries(topology: Topology) -> tuple[Difference, ...]:
    """Return the pairs of GPUs with different connections in the two directions."""
    return tuple(
        Difference("link", topology.gpus[j], topology.gpus[i], back, there, _worse(back, there))
        for i, j in _pairs(len(topology.gpus))
        if (there := topology.matrix[i][j]) != (back := topology.matrix[j][i])
        and there is not None
        and back is not None
    )


def compare(actual: Topology, expected: Topology) -> tuple[Difference, ...]:
    """Return the differences of *actual* from *expected*, worst kind first: GPUs, links, adapters, affinity.

    An unreadable cell in *actual* is a difference; an unknown one in *expected* is not compared.
    """
    return (
        *_gpu_differences(actual, expected),
        *_link_differences(actual, expected),
        *_nic_differences(actual, expected),
        *_affinity_differences(actual, expected, "cpu_affinity"),
        *_affinity_differences(actual, expected, "numa_affinity"),
    )


def _gpu_differences(actual: Topology, expected: Topology) -> Iterator[Difference]:
    for gpu in expected.gpus:
        if gpu not in actual.gpus:
            yield Difference("gpu", gpu, "", None, "present", True)
    for gpu in actual.gpus:
        if gpu not in expected.gpus:
            yield Difference("gpu", gpu, "", "present", None, None)


def _link_differences(actual: Topology, expected: Topology) -> Iterator[Difference]:
    """Yield one difference per pair where both directions agree, and one per direction where they do not."""
    both = [gpu for gpu in expected.gpus if gpu in actual.gpus]
    for i, j in _pairs(len(both)):
        there, back = (both[i], both[j]), (both[j], both[i])
        differences = [_link_difference(actual, expected, *pair) for pair in (there, back)]
        found = [difference for difference in differences if difference is not None]
        if len(found) == 2 and (found[0].actual, found[0].expected) == (found[1].actual, found[1].expected):
            found = found[:1]
        yield from found


def _link_difference(actual: Topology, expected: Topology, first: str, second: str) -> Difference | None:
    is_now = actual.matrix[actual.gpus.index(first)][actual.gpus.index(second)]
    should = expected.matrix[expected.gpus.index(first)][expected.gpus.index(second)]
    if should is None or is_now == should:
        return None
    return Difference("link", first, second, is_now, should, _worse(is_now, should))


def _nic_differences(actual: Topology, expected: Topology) -> Iterator[Difference]:
    names = {actual.nic_legend.get(nic, nic): index for index, nic in enumerate(actual.nics)}
    for index, nic in enumerate(expected.nics):
        name = expected.nic_legend.get(nic, nic)
        if name not in names:
            yield Difference("nic", name, "", None, "present", True)
        elif expected.nic_to_gpu is not None:
            yield from _nic_link_differences(actual, expected, name, names[name], index)


def _nic_link_differences(
    actual: Topology, expected: Topology, name: str, actual_index: int, expected_index: int
) -> Iterator[Difference]:
    for position, gpu in enumerate(expected.gpus):
        should = (expected.nic_to_gpu or ())[expected_index][position]
        if gpu not in actual.gpus or should is None:
            continue
        is_now = None if actual.nic_to_gpu is None else actual.nic_to_gpu[actual_index][actual.gpus.index(gpu)]
        if is_now != should:
            yield Difference("nic_link", name, gpu, is_now, should, _worse(is_now, should))


def _affinity_differences(actual: Topology, expected: Topology, name: str) -> Iterator[Difference]:
    should: Cells | None = getattr(expected, name)
    is_now: Cells | None = getattr(actual, name)
    if should is None:
        return
    for gpu, cell in zip(expected.gpus, should, strict=True):
        if gpu not in actual.gpus or cell is None:
            continue
        now = None if is_now is None else is_now[actual.gpus.index(gpu)]
        if now != cell:
            yield Difference(name, gpu, "", now, cell)


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(count) for j in range(i + 1, count))


def _worse(actual: str | None, expected: str | None) -> bool | None:
    """Return whether *actual* is a farther connection than *expected*; an unreadable cell counts as worse."""
    if actual is None:
        return True
    ours, theirs = _closeness(actual), _closeness(expected)
    return None if ours is None or theirs is None or ours == theirs else ours < theirs


def _closeness(cell: str | None) -> int | None:
    """Return a rank that increases with closeness: more NVLinks or fewer xGMI hops are closer, PCIe is farther."""
    if cell is None or cell == SELF:
        return None
    if (link := _XGMI.fullmatch(cell)) is not None:
        return len(_CLOSENESS) + _MOST_LINKS - int(link.group(1) or 1)
    if cell.startswith("NV"):
        return len(_CLOSENESS) + int(cell[2:])
    return _CLOSENESS.index(cell) if cell in _CLOSENESS else None


def _said(value: str | None) -> str:
    return "unknown or absent" if value is None else value or "empty"
