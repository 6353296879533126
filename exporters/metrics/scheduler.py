"""The writer to SLURM on the metrics page; where it is off there is nothing but that."""

from __future__ import annotations

from collections.abc import Iterator

from nodevet.checks.core.model import Snapshot

from .family import Family, counter, gauge


def scheduler_metrics(snapshot: Snapshot) -> Iterator[Family]:
    """Yield how the writer is doing: what it wrote, what it did not and why, and what it would."""
    slurm = snapshot.agent.slurm
    yield gauge(
        "slurm_writer_info",
        "What the writer to SLURM may do, and what SLURM calls this node.",
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
        "Passes in which a drain was due and was not written, by why; reasons that never came are left out.",
        ("reason",),
        {(why,): count for why, count in slurm.skipped.items() if count},
    )
    yield counter(
        "slurm_resumes",
        "Times that somebody resumed this node in SLURM and so acknowledged.",
        (),
        {(): slurm.acknowledged},
    )
    yield gauge("slurm_would_drain", "Whether a drain is due that is not written.", (), {(): bool(slurm.wanted)})
    yield gauge(
        "slurm_drained_by_nodevet",
        "Whether SLURM shows that nodevet closed this node: our reason, or our mark where only the gate is closed.",
        (),
        {(): slurm.closed},
    )
    yield gauge(
        "slurm_partition_info",
        "The partitions of this node, as SLURM showed them last: nodevet closes nodes under a limit in each.",
        ("partition",),
        {(name,): 1 for name in slurm.partitions},
    )
    yield gauge(
        "slurm_drain_limit_reached",
        "Whether this node stays in service because nodevet has closed as many as it may: look for a common cause.",
        (),
        {(): slurm.limit_reached},
    )
    yield gauge("slurm_permit_held", "Whether this node may be closed to jobs.", (), {(): slurm.permit.held})
    yield gauge(
        "slurm_permit_unanswered",
        "Whether this node stays in service because SLURM did not answer when it was asked for a permit.",
        (),
        {(): slurm.unanswered},
    )
    yield gauge(
        "slurm_last_read_timestamp_seconds",
        "When SLURM answered last what state this node is in; it is asked when a fault or a drain gives cause.",
        (),
        {(): slurm.last_read_seconds},
    )
