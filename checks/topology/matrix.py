"""The connections between the GPUs and network adapters of a node, as a document and as a table."""

from __future__ import annotations

from typing import Any

import msgspec

SCHEMA = "nodevet.topo/1"
SELF = "X"

Cells = tuple[str | None, ...]


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The connections of a node.

    ``matrix[i][j]`` is the connection of GPU i to GPU j as printed, ``X`` for itself. ``nic_to_gpu[n][i]`` is that of
    adapter n to GPU i; None as a whole where the columns are ambiguous. The affinities are by GPU, ``""`` where the
    cell is empty; None as a whole where there is no such column or no row of it can be read. ``problems`` describes
    what could not be read.
    """

    gpus: tuple[str, ...]
    matrix: tuple[Cells, ...]
    nics: tuple[str, ...] = ()
    nic_to_gpu: tuple[Cells, ...] | None = ()
    nic_legend: dict[str, str] = {}
    cpu_affinity: Cells | None = None
    numa_affinity: Cells | None = None
    gpu_numa_id: Cells | None = None
    problems: tuple[str, ...] = ()


def to_json(topology: Topology) -> dict[str, Any]:
    """Return *topology* as the document of schema ``nodevet.topo/1``."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(topology))
    return {"schema": SCHEMA, **document}


def render_table(topology: Topology) -> str:
    """Return *topology* as an aligned plain text table, with adapters by their names in the legend."""
    names = [topology.nic_legend.get(nic, nic) for nic in topology.nics]
    columns = [("CPU affinity", topology.cpu_affinity), ("NUMA affinity", topology.numa_affinity)]
    shown = [(title, cells) for title, cells in columns if cells is not None]
    rows = [["", *topology.gpus, *names, *(title for title, _ in shown)]]
    for index, gpu in enumerate(topology.gpus):
        nic_cells = [None if topology.nic_to_gpu is None else row[index] for row in topology.nic_to_gpu or names]
        cells = [*topology.matrix[index], *nic_cells, *(values[index] for _, values in shown)]
        rows.append([gpu, *("?" if cell is None else cell for cell in cells)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *topology.problems]) + "\n"
