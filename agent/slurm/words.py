"""Status messages for a drain that is due and not written."""

from __future__ import annotations

from itertools import islice

from nodevet.checks.core.model import Episode
from nodevet.checks.engine.acknowledgement import command_words
from nodevet.exporters.slurm.rules import Why

MOST_COMMANDS = 4
"""Maximum number of commands that are printed."""

WORDS = {
    Why.FOREIGN_REASON: "does not drain: the node is drained with a reason that nodevet did not write",
    Why.EMPTY_REASON: "does not drain: the node is drained without a reason",
    Why.FOREIGN_COMMENT: "does not request a permit: comment and extra of the node are both in use; clear one of them",
    Why.MAINTENANCE: "does not drain: the node is in maintenance",
    Why.POWER: "does not drain: the node changes its power state",
    Why.REBOOT: "does not drain: the node is about to reboot",
    Why.DOWN: "does not drain: the node is down",
    Why.UNKNOWN_STATE: "does not drain: the node is in a state that nodevet does not know",
    Why.CHANGED: "does not drain yet: the node changed during the query",
    Why.CONTENDED: "does not drain yet: other nodes request a permit at the same time",
    Why.UNSETTLED: "does not request a permit yet: an earlier write to SLURM got no answer and may still take effect",
    Why.UNVERIFIED: "wrote the drain, but SLURM does not show it",
}
"""For people; the other causes have messages of their own."""


def returned_words(node: str, after: str, due: tuple[Episode, ...]) -> str:
    """Return the message, with commands, for *node* in service *after* a cause that is no person, with faults *due*."""
    typed = (f"nodevet ack {command_words(fault.key)} --note 'who checked the fault, what was done'" for fault in due)
    commands = "; ".join(islice(typed, MOST_COMMANDS))
    if len(due) > MOST_COMMANDS:
        commands += f"; likewise for {len(due) - MOST_COMMANDS} more, see nodevet status"
    return (
        f"SLURM returned {node} to service after {after}, which acknowledges nothing;"
        f" if a person resumed the node, type: {commands}"
    )
