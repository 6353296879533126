"""A node with everything that a real one has, judged by the real engine: what a page costs is measured on it."""

from __future__ import annotations

import msgspec
from fakes.drill import Drill

from nodevet.agent.slurm.gate_log import DECISIONS
from nodevet.checks.core.model import Snapshot
from nodevet.checks.core.scheduler import WriterStatus
from nodevet.exporters.slurm.rules import Why

__all__ = ["whole_node"]


def whole_node(profile: str) -> Snapshot:
    """Return a healthy simulated node, judged by the engine, its load proven, in a cluster whose SLURM it may drain."""
    drill = Drill(profile)
    drill.run(130.0)
    drill.probe()
    snapshot = drill.round()
    agent = msgspec.structs.replace(
        snapshot.agent,
        gate_decisions=dict.fromkeys(DECISIONS, 0),
        slurm=WriterStatus(
            writer="drain",
            node="n1",
            partitions=("main",),
            last_read_seconds=snapshot.time.wall_seconds,
            writes={"drain": 0, "update": 0},
            skipped=dict.fromkeys(Why, 0),
        ),
    )
    return msgspec.structs.replace(snapshot, agent=agent)
