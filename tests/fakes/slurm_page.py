"""The cluster on which commands of a page about SLURM run: its node n1 has an agent and the scripts of deploy/slurm."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from fakes.gpu_node import GpuNode
from fakes.slurm_cluster import SlurmCluster, SlurmOptions
from fakes.slurm_gate import GATE_FILES

__all__ = ["NODE", "PageCluster"]

NODE = "n1"
RESTART = "systemctl restart nodevet"

ON_NODE = """#!/bin/sh
[ "$SLURMD_NODENAME" != {node} ] || exec {folder}/{script}
"""
"""Nodes of the cluster share a machine; only one of them has the scripts."""


class PageCluster:
    """A real SLURM; a page's standard places are those of its node n1. ``with`` starts it."""

    def __init__(self, repository: Path, directory: Path, library: Path) -> None:
        """Lay out scripts and settings in *directory* as they are shipped; the agent's driver is *library*."""
        directory.mkdir()
        (directory / "agent").mkdir()
        self.agent = GpuNode(directory / "agent", library)
        settings = self.agent.configuration_file
        # The page says itself who gives the permit.
        own = settings.read_text().replace('"node-1"', f'"{NODE}"').replace('[slurm]\npermit = "local"\n', "")
        settings.write_text(own)
        self._scripts = directory / "nodevet"
        self._scripts.mkdir()
        for name in GATE_FILES:
            shutil.copy(repository / "deploy/slurm" / name, self._scripts)
        shipped = (repository / "deploy/slurm/gate.conf").read_text()
        (self._scripts / "gate.conf").write_text(shipped.replace("/run/nodevet", str(self.agent.runtime_dir), 1))
        hooks = {script: directory / script for script in ("prolog.sh", "epilog.sh")}
        for script, hook in hooks.items():
            hook.write_text(ON_NODE.format(node=NODE, folder=self._scripts, script=script))
            hook.chmod(0o755)
        options = SlurmOptions(
            prolog=hooks["prolog.sh"], epilog=hooks["epilog.sh"], scheduler=("nohold_on_prolog_fail",)
        )
        self.slurm = SlurmCluster(directory / "cluster", options)

    def __enter__(self) -> Self:
        """Start the cluster and the agent."""
        self.slurm.start()
        self.agent.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop both."""
        self.agent.stop()
        self.slurm.stop()

    @property
    def environment(self) -> Mapping[str, str]:
        """Return what commands of the page need to reach the agent and the cluster."""
        return {
            "SLURM_CONF": str(self.slurm.configuration),
            "STATE_DIRECTORY": str(self.agent.state_dir),
            "RUNTIME_DIRECTORY": str(self.agent.runtime_dir),
            "CONFIGURATION_DIRECTORY": str(self.agent.directory),
        }

    @property
    def replace(self) -> Mapping[str, str]:
        """Return where the places of an installed node are here; the writer asks sooner and finds this cluster."""
        return {
            "/etc/slurm/nodevet": str(self._scripts),
            "/etc/nodevet": str(self.agent.directory),
            "/run/nodevet": str(self.agent.runtime_dir),
            'writer = "observe"': f'writer = "observe"\npoll_seconds = 1\nconf = "{self.slurm.configuration}"',
            RESTART: "true",
        }

    def lose(self, gpu: int) -> None:
        """Let the kernel say that *gpu* is lost."""
        self.agent.log_kernel(f"NVRM: Xid (PCI:0000:{gpu + 1}0:00): 79, GPU has fallen off the bus.")

    def after(self, script: str) -> None:
        """Do what a command of *script* stands for that the service manager would do."""
        if RESTART in script:
            self.agent.stop()
            self.agent.start()

    def wait(self, state: str) -> None:
        """Wait until the node's verdict, or its state in SLURM, is *state*; ``closed``: until its gate may close."""
        if state == "closed":
            self.slurm.wait(lambda: self.agent.state_file().hard, "the gate may close")
        elif state in ("idle", "drained"):
            self.slurm.wait(lambda: self.slurm.node_state(NODE) == state, f"{NODE} is {state}")
            # A person takes longer for the next step than the agent to see it.
            drained = state == "drained"
            self.agent.wait_for(lambda status: ("DRAIN" in status["slurm"]["states"]) is drained, what="is not seen")
        else:
            self.agent.wait_for_verdict(state)
        if state == "failed":
            self.agent.wait_for(
                lambda status: status["slurm"]["doing"].startswith("would drain"), what="no drain is due"
            )
