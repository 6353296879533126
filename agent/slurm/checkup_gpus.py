"""Judges whether SLURM and the agent refer to the same GPUs. Pure functions of Facts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodevet.checks.core.counts import count_of
from nodevet.exporters.statefile.reader import Absent

from .facts import Facts, Item, cannot_tell, ok, warning, wrong

RESTARTS = "restart every slurmd, and after it slurmctld: in the reverse order SLURM drains each node"
"""For GPUs that are new to SLURM: slurmctld drains a node whose slurmd does not report the expected ones."""


def mapping(facts: Facts) -> Item:
    """Judge whether each GPU in SLURM maps to one accelerator of the agent."""
    if isinstance(facts.state, Absent):
        return cannot_tell("gres mapping", "no state file to compare", "start the agent")
    found = [device for device in facts.state.devices if device.kind == "accelerator"]
    if not found:
        return ok("gres mapping", "the node has no accelerators")
    if isinstance(facts.gres, str):
        return cannot_tell("gres mapping", facts.gres)
    if isinstance(facts.gate, Mapping) and facts.gate.get("gpus") == "all":
        return ok("gres mapping", "every GPU counts for every job: gpus=all in gate.conf")
    if not all(numbers.isdecimal() for _, numbers in facts.gres):
        says = f"{facts.gres_path} does not say which GPUs a job has: every GPU counts for every job"
        step = "set the mapping with gpus= in gate.conf, or gpus=all if this is intended (docs/reference/slurm-gate.md)"
        return warning("gres mapping", says, step)
    order = facts.gres[0][0]
    if order == "pci":  # SLURM does not find a board without an address, such as one lent to a guest
        found = [device for device in found if device.pci is not None]
    numbers = [int(numbers) for _, numbers in facts.gres][: len(found) if order == "pci" else None]
    known = [place if order == "pci" else device.minor for place, device in enumerate(found)]
    read = sorted(number for number in known if number is not None)
    unlisted = sorted(set(read) - set(numbers))
    if set(numbers) - set(read) or len(set(numbers)) < len(numbers) or len(read) < len(known):
        return wrong(
            "gres mapping",
            f"the GPUs in SLURM map to the device numbers {_listed(numbers)}, but nodevet reads {_listed(read)}",
            f"correct File= in {facts.gres_path}, or set gpus= in gate.conf",
        )
    if unlisted:
        return warning(
            "gres mapping",
            f"not in {facts.gres_path}: the devices {_listed(unlisted)}",
            "add them; SLURM gives unlisted devices to no job",
        )
    how = "by PCI address" if order == "pci" else "by device number"
    return ok("gres mapping", f"{count_of(len(numbers), 'GPU')} {how}: {_listed(numbers)}{_by(facts)}")


def _by(facts: Facts) -> str:
    """Return the gres.conf of the mapping, in words; empty if gate.conf sets the mapping."""
    is_asked = isinstance(facts.gate, Mapping) and facts.gate.get("gpus", "auto") == "auto"
    return f", by {facts.gres_path}" if is_asked else ""


def _listed(numbers: list[int]) -> str:
    return " ".join(map(str, numbers)) or "none"


def gres_types(facts: Facts, config: Mapping[str, str]) -> Item:
    """Judge whether SLURM has loaded the GPUs of this node, as many as the agent reads."""
    loaded = "gpu" in config.get("GresTypes", "").split(",")
    counts = re.findall(r"gpu(?::[^:,()]+)?:(\d+)", facts.gres_of_node or "")
    gpus = sum(map(int, counts))
    boards = () if isinstance(facts.state, Absent) else [d for d in facts.state.devices if d.kind == "accelerator"]
    has, placed = len(boards), sum(board.pci is not None for board in boards)
    if not has and not gpus and not isinstance(facts.state, Absent):
        return ok("GresTypes=", "no accelerators on this node")
    if not loaded and "gpu" in facts.written.get("grestypes", "").split(","):
        return wrong(
            "GresTypes=",
            "slurm.conf has gpu, but slurmctld has not loaded it",
            f"{RESTARTS}; scontrol reconfigure does not load a new GresTypes",
        )
    if isinstance(facts.state, Absent):
        return cannot_tell("GresTypes=", "no state file to compare", "start the agent")
    if not loaded or facts.gres_of_node is None:
        return warning(
            "GresTypes=",
            "SLURM has no GPUs for this node: every GPU of the node counts for every job",
            f"set GresTypes=gpu, Gres= of the node, and gres.conf on each node; then {RESTARTS}",
        )
    if gpus not in (has, placed):
        return warning(
            "GresTypes=",
            f"SLURM has {count_of(gpus, 'GPU')} for {facts.node}, but nodevet reads {count_of(has, 'accelerator')}",
            "compare Gres= of the node with nodevet devices",
        )
    return ok("GresTypes=", f"gpu is loaded, {count_of(gpus, 'GPU')} on {facts.node}")
