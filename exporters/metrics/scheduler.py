"""The writer to SLURM on the metrics page; where it is off there is nothing but that."""

from __future__ import annotations

from collections.abc import Iterator

from nodevet.checks.core.model import Snapshot

from .family import Family, counter, gauge


def scheduler_metrics(snapshot: Snapshot) -> Iterator[Family]:
    """Yield the state of the writer: writes, withheld drains with their reasons, and the pending drain."""
    slurm = snapshot.agent.slurm
    yield gauge(
        "slurm_writer_info",
        "Mode of the SLURM writer, and the name of this node in SLURM.",
        ("writer", "node"),
        {("off", "") if slurm is None else (slurm.writer, slurm.node): 1},
    )
    if slurm is None:
        return
    yield counter(
        "slurm_writes",
        "Writes that SLURM accepted, by kind.",
        ("kind",),
        {(kind,): count for kind, count in slurm.writes.items()},
    )
    yield counter(
        "slurm_write_skipped",
        "Passes with a pending drain that was not written, by reason; reasons that never occurred are left out.",
        ("reason",),
        {(why,): count for why, count in slurm.skipped.items() if count},
    )
    yield counter(
        "slurm_resumes",
        "Resumes of this node by a person in SLURM; each acknowledges the faults known at that time.",
        (),
        {(): slurm.acknowledged},
    )
    yield gauge("slurm_would_drain", "Whether a drain is pending and not written.", (), {(): bool(slurm.wanted)})
    yield gauge(
        "slurm_drained_by_nodevet",
        "Whether nodevet closed this node in SLURM: its drain reason, or its mark where only the gate is closed.",
        (),
        {(): slurm.closed},
    )
    yield gauge(
        "slurm_partition_info",
        "Partitions of this node in SLURM; nodevet closes nodes up to a limit in each.",
        ("partition",),
        {(name,): 1 for name in slurm.partitions},
    )
    yield gauge(
        "slurm_drain_limit_reached",
        "Whether this node stays in service because the limit of closed nodes is reached.",
        (),
        {(): slurm.limit_reached},
    )
    yield gauge("slurm_permit_held", "Whether this node has a permit to be closed.", (), {(): slurm.permit.held})
    yield gauge(
        "slurm_permit_unanswered",
        "Whether this node stays in service because SLURM did not answer the request for a permit.",
        (),
        {(): slurm.unanswered},
    )
    yield gauge(
        "slurm_last_read_timestamp_seconds",
        "Time of the last answer of SLURM about the state of this node; it is queried only for a fault or a drain.",
        (),
        {(): slurm.last_read_seconds},
    )
