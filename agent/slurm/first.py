"""The status of the SLURM writer before its first query."""

from __future__ import annotations

from nodevet.agent.config.settings import SlurmSettings
from nodevet.checks.core.scheduler import Permit, WriterStatus
from nodevet.exporters.slurm.rules import Step, Why, WriterMemory

LOCAL = 'slurm.permit is "local"'


def first_status(settings: SlurmSettings, node: str, memory: WriterMemory, boot_id: str) -> WriterStatus:
    """Return the status of the writer for *node* before its first query: as last seen in this boot."""
    # A job that comes to a drained node then causes a reading.
    seen_drained = memory.drained is not None and memory.sight is not None and memory.sight.boot_id == boot_id
    return WriterStatus(
        writer=settings.writer,
        node=node,
        states=("DRAIN",) if seen_drained else (),
        writes={step.value: 0 for step in (Step.DRAIN, Step.CLOSE, Step.UPDATE)},
        skipped={why.value: 0 for why in Why},
        permit=_first_permit(settings, node, memory, boot_id),
    )


def _first_permit(settings: SlurmSettings, node: str, memory: WriterMemory, boot_id: str) -> Permit:
    """Return the permit before the first query: a permit outlives restarts of the agent."""
    if settings.permit == "local":
        return Permit(True, LOCAL)
    if settings.writer != "drain":
        return Permit(why=f'slurm.writer is "{settings.writer}", and the agent requests a permit only with "drain"')
    if not boot_id or memory.permit != boot_id:
        return Permit()
    return Permit(True, "SLURM showed before the agent's start that nodevet closed this node", node)
