"""The SLURM writer on the metrics page; if it is off, the page shows only that."""

from __future__ import annotations

from collections.abc import Iterator

from nodevet.checks.core.model import Snapshot

from .family import Family, family


def scheduler_metrics(snapshot: Snapshot) -> Iterator[Family]:
    """Yield the state of the writer: writes, withheld drains with their reasons, and the pending drain."""
    slurm = snapshot.agent.slurm
    yield family("slurm_writer_info", {("off", "") if slurm is None else (slurm.writer, slurm.node): 1})
    if slurm is None:
        return
    yield family("slurm_writes", {(kind,): count for kind, count in slurm.writes.items()})
    yield family("slurm_write_skipped", {(why,): count for why, count in slurm.skipped.items() if count})
    yield family("slurm_resumes", {(): slurm.acknowledged})
    yield family("slurm_would_drain", {(): bool(slurm.wanted)})
    yield family("slurm_drained_by_nodevet", {(): slurm.closed})
    yield family("slurm_partition_info", {(name,): 1 for name in slurm.partitions})
    yield family("slurm_drain_limit_reached", {(): slurm.limit_reached})
    yield family("slurm_permit_held", {(): slurm.permit.held})
    yield family("slurm_permit_unanswered", {(): slurm.unanswered})
    yield family("slurm_last_read_timestamp_seconds", {(): slurm.last_read_seconds})
