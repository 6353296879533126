"""A permit that was given ends with the agent that takes none: nobody sees any more when a person ends it."""

from __future__ import annotations

import selectors
from contextlib import ExitStack
from pathlib import Path

import pytest
from fakes.slurm_in_memory import MemorySlurm
from fakes.snapshots import failed_node

from nodevet.agent.config.load import load_configuration
from nodevet.agent.config.settings import Configuration, SlurmSettings
from nodevet.agent.daemon.services import slurm
from nodevet.agent.slurm.first import first_status
from nodevet.agent.slurm.memory import MEMORY_NAME, Kept, load_memory, pack, save_memory
from nodevet.agent.slurm.writer import Writer
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.engine.registry import installed
from nodevet.exporters.slurm.rules import WriterMemory
from nodevet.exporters.statefile.reader import boot_id

TAKES = ("drain", "cluster")


@pytest.mark.parametrize(
    ("between", "held"),
    [
        (TAKES, True),
        (("observe", "cluster"), False),
        (("off", "cluster"), False),
        (("observe", "local"), False),
        (("drain", "local"), False),
    ],
)
@pytest.mark.parametrize("kept_in", ["file", "store"])
def test_a_permit_outlives_no_agent_that_takes_none(
    tmp_path: Path, between: tuple[str, str], held: bool, kept_in: str
) -> None:
    """A way back, in which the node is resumed with its fault, and on again: no gate closes before SLURM was asked."""
    file = tmp_path / "nodevet.toml"

    def settings(writer: str, permit: str) -> Configuration:
        text = f'[agent]\nnode_name = "n1"\nruntime_dir = "{tmp_path}"\n'
        file.write_text(f'{text}[slurm]\nscontrol = "/bin/false"\nwriter = "{writer}"\npermit = "{permit}"\n')
        return load_configuration(file, installed(), overrides={})

    boot, given = boot_id(), Kept(boot_id(), WriterMemory(nodes=3, permit=boot_id()))
    stored = pack(given) if kept_in == "store" else None
    if stored is None:
        save_memory(tmp_path / MEMORY_NAME, given)
    with selectors.DefaultSelector() as selector, ExitStack() as cleanup:
        slurm(settings(*between), SystemClock(), selector, cleanup, memory=stored, told=lambda _acknowledged: None)
    memory = load_memory(tmp_path / MEMORY_NAME, stored, boot).memory
    assert (first_status(settings(*TAKES).slurm, "n1", memory, boot).permit.held, memory.nodes) == (held, 3)


def test_a_permit_that_slurm_still_shows_is_held_again_with_the_first_look() -> None:
    """Whoever goes back and on again beside a node that nodevet drained loses nothing."""
    slurm = MemorySlurm()
    slurm.set("n1", "IDLE", "DRAIN", reason="nodevet: hw kernel-log: lost [power_cycle]")
    passes = Writer(
        slurm, SlurmSettings(writer="drain"), "n1", wall_seconds=lambda: 0.0, monotonic=lambda: 0.0, random=lambda: 0.0,
        boot_id="boot-1", memory=WriterMemory(nodes=3),
    )  # fmt: skip
    assert not passes.status.permit.held
    assert passes.step(failed_node()).status.permit.held
