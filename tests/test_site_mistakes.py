"""Settings and clusters that nobody would write on purpose: each is refused, or closes no more than the limits."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nodevet.agent.config.load import load_configuration
from nodevet.checks.core.errors import NodevetError
from nodevet.checks.engine.registry import installed
from nodevet.exporters.slurm.permit import Limits, permits, rooms
from nodevet.exporters.slurm.rules import NodeState, obstacle

REFUSED = [
    *(
        f"[checks.inventory]\nexpected_accelerators = {value}"
        for value in ("-1", '"8"', "8.0", "nan", "9" * 20, "true")
    ),
    *(f"[slurm]\nmaximum_drained_ratio = {value}" for value in ("nan", "inf", "-0.1", "1.5", '"0.1"')),
    *(f"[slurm]\nmaximum_new_ratio = {value}" for value in ("nan", "inf", "-0.1", "1.5")),
    *(f"[slurm]\nminimum_new = {value}" for value in ("0", "-1", "1.5", "999999999", "true")),
    *(f"[slurm]\nnode_name = {value}" for value in ('"n[1-3]"', '"n1,n2"', '"-h"', '"n 1"', '"n1 State=DOWN"')),
    *(f"[slurm]\nreason_prefix = {value}" for value in ('""', '"a b"', '"a:b"', '"nodevet\\n"')),
    '[slurm]\npermit = "local "',
    '[slurm]\nwriter = "DRAIN"',
    '[gate]\nmode = "Gate"',
    '\ufeff[gate]\nmode = "gate"',
]

IDLE = NodeState("n0", frozenset({"IDLE"}))
CLOSED = NodeState("n1", frozenset({"IDLE", "DRAIN"}), "nodevet: hw x: y [reboot]", "root", 0.0)


@pytest.mark.parametrize("text", REFUSED)
def test_a_setting_that_means_nothing_is_refused(tmp_path: Path, text: str) -> None:
    """At the start and at a reload alike, where the old configuration stays."""
    file = tmp_path / "nodevet.toml"
    file.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(NodevetError):
        load_configuration(file, installed(), overrides={})


@pytest.mark.parametrize("partitions", [(), ("a",), ("a", "b")])
@pytest.mark.parametrize("ratio", [0.0, -0.0, 0.1, 1.0])
def test_limits_at_both_ends_hold_in_every_partition(ratio: float, partitions: tuple[str, ...]) -> None:
    """One may always be closed; with all of them allowed by share, still no more than there are nodes."""
    limits = Limits(ratio, 1.0, 1)
    nodes = [msgspec.structs.replace(IDLE, name=f"n{place}", partitions=partitions) for place in range(10)]
    for closed in range(1, 10):
        assert permits(rooms(nodes, "n0", limits, wall_seconds=0.0, user="root")) is (closed - 1 < max(1, 10 * ratio))
        nodes[closed] = msgspec.structs.replace(CLOSED, name=f"n{closed}", partitions=partitions)


@pytest.mark.parametrize(
    "state", ["DOWN", "DOWN+CLOUD", "IDLE+POWERED_DOWN+CLOUD", "IDLE+MAINTENANCE", "FUTURE", "ALIEN"]
)
def test_a_node_that_serves_nobody_is_not_written_to(state: str) -> None:
    """Nor is one in a state that a newer SLURM has."""
    assert obstacle(frozenset(state.split("+"))) is not None


@pytest.mark.parametrize("state", ["IDLE+PLANNED", "RESERVED", "MIXED+CLOUD", "IDLE+DYNAMIC_NORM"])
def test_a_node_that_serves_is_like_any_other(state: str) -> None:
    """Planned, reserved, of a cloud, or joined by itself."""
    assert obstacle(frozenset(state.split("+"))) is None
