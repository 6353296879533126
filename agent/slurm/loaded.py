"""The modes that the agent has loaded: nodevet.toml may have changed since, and a reload does not apply all of it."""

from __future__ import annotations

import msgspec

from nodevet.agent.config.settings import Configuration
from nodevet.exporters.documents.types import StatusDocument

from .first import LOCAL

TROUBLE = "slurm: "
"""Prefix of the agent's notice about a problem with SLURM."""


class Running(msgspec.Struct, frozen=True):
    """The modes of the running agent, and its messages about its configuration and about SLURM."""

    mode: str
    writer: str
    permit: str
    message: str = ""
    trouble: str = ""

    def others(self, settings: Configuration) -> str:
        """Return the differences to the file's *settings*, and the configuration message; empty if there are none."""
        slurm = settings.slurm
        pairs = (
            ("[gate] mode", self.mode, settings.gate.mode.value),
            ("[slurm] writer", self.writer, slurm.writer),
            ("[slurm] permit", self.permit, slurm.permit),
        )
        told = [f'{name} = "{loaded}" and not "{said}"' for name, loaded, said in pairs if loaded != said]
        return "; ".join(
            [*([f"the agent that runs has {', '.join(told)}"] if told else []), *filter(None, [self.message])]
        )


def running_of(document: StatusDocument) -> Running:
    """Return the modes that the agent reports in *document*."""
    agent, gate = document.agent, document.gate
    is_due = not agent.configuration_accepted or "[slurm]" in agent.configuration_message
    return Running(
        mode=gate.mode,
        writer="off" if document.slurm is None else document.slurm.writer,
        permit="local" if gate.permit_reason == LOCAL else "cluster",
        message=agent.configuration_message if is_due else "",
        trouble=next((notice for notice in agent.notices if notice.startswith(TROUBLE)), "").removeprefix(TROUBLE),
    )
