"""What status says of a drain that is due and not written."""

from __future__ import annotations

from nodevet.exporters.slurm_rules import Why

__all__ = ["WORDS"]

WORDS = {
    Why.FOREIGN_REASON: "does not drain: the node is drained with a reason of somebody else",
    Why.EMPTY_REASON: "does not drain: the node is drained without a reason",
    Why.FOREIGN_COMMENT: "does not ask for a permit: comment and extra text of the node are taken; empty one of them",
    Why.MAINTENANCE: "does not drain: the node is in maintenance",
    Why.POWER: "does not drain: the node changes its power state",
    Why.REBOOT: "does not drain: the node is about to reboot",
    Why.DOWN: "does not drain: the node is down",
    Why.UNKNOWN_STATE: "does not drain: the node is in a state that nodevet does not know",
    Why.CHANGED: "does not drain yet: the node changed at this moment",
    Why.CONTENDED: "does not drain yet: other nodes ask at the same moment",
    Why.UNSETTLED: "does not ask yet: an earlier write to SLURM got no answer, and may still take effect",
    Why.UNVERIFIED: "wrote, and SLURM does not show it",
}
"""For people; the other reasons come with a message of their own."""
