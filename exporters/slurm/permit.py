"""Limits on the number of nodes that nodevet may close: marks that request a permit, and the nodes that count. Pure.

SLURM has no command "drain this node unless N nodes are drained". Each node therefore writes a mark first and reads all
nodes second: of all nodes with a permit, the last reader has seen the marks of the others. The limits hold for any
clocks, delays and order of nodes, as long as slurmctld shows the writes that it has accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from nodevet.checks.core.counts import count_of

from .reasons import is_slurms, replaces_reasons
from .rules import (
    LONGEST_REASON,
    PREFIX,
    NodeState,
    ScontrolOutputError,
    Why,
    is_nodevets,
    is_ours,
    obstacle,
    seconds_of,
)

HOUR_SECONDS = 3600.0

CLOCK_SECONDS = 600.0
"""Maximum difference of two clocks of a cluster (s): munge refuses a credential that is older than five minutes."""

LATE_SECONDS = 300.0
"""A write without an answer takes effect within this time (s) or never."""

ASKS_SECONDS = 2 * HOUR_SECONDS
"""A mark that requests a permit counts for this time (s); an older one is from an agent that died before the drain."""

_MARK = re.compile(PREFIX + r": (asks for a permit|gate closed|drained), (\d{1,12}) ([0-9a-f]{1,16})")
"""The prefix is not compared: agents of one cluster with different prefixes share its limits."""

_CLOSED = re.compile(r" \(closed (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\) \[[a-z_]+\]$")
"""The end of a reason that replaced another one, with the time of the drain: SLURM dates each new reason anew."""


class Limits(msgspec.Struct, frozen=True):
    """The two limits, each for the cluster and for every partition of a node."""

    standing_ratio: float
    new_ratio: float
    new_least: int


class Mark(msgspec.Struct, frozen=True):
    """A mark of nodevet in the Comment or Extra field of a node: its time (Unix s), and whether it requests or holds.

    A ``drained`` mark does neither: it proves that the drain is nodevet's after SLURM replaced the reason by its own.
    """

    holds: bool
    seconds: float
    field: str
    drained: bool = False

    @property
    def closes(self) -> bool:
        """Return whether the mark shows a closed node, and not only a request."""
        return self.holds or self.drained

    def stands(self, wall_seconds: float) -> bool:
        """Return whether other nodes count the mark; a request is renewed long before others ignore it as too old."""
        return self.holds or (not self.drained and abs(wall_seconds - self.seconds) < HOUR_SECONDS)


class Room(msgspec.Struct, frozen=True):
    """The closed nodes besides this node, in the cluster (``partition`` is empty) or in one of its partitions."""

    partition: str
    nodes: int
    standing: int
    new: int
    allowed_standing: int
    allowed_new: int

    @property
    def permits(self) -> bool:
        """Return whether one more node may be closed."""
        return self.standing < self.allowed_standing and self.new < self.allowed_new

    @property
    def words(self) -> str:
        """Return the limit that is reached, with its figures, for people."""
        where = f"partition {self.partition}" if self.partition else "the cluster"
        if self.standing >= self.allowed_standing:
            return (
                f"nodevet has closed {self.standing} of {count_of(self.nodes, 'node')} of {where}, limit"
                f" {self.allowed_standing} (slurm.maximum_drained_ratio)"
            )
        return (
            f"nodevet closed {count_of(self.new, 'node')} of {where} within an hour, limit {self.allowed_new}"
            " (slurm.maximum_new_ratio, slurm.minimum_new)"
        )


def asking_text(prefix: str, wall_seconds: float, nonce: int) -> str:
    """Return the mark that requests a permit."""
    return f"{prefix}: asks for a permit, {wall_seconds:.0f} {nonce:x}"


def closing_text(prefix: str, wall_seconds: float, nonce: int) -> str:
    """Return the mark of a node with a closed gate and without a drain, because its mode is ``gate``."""
    return f"{prefix}: gate closed, {wall_seconds:.0f} {nonce:x}"


def drained_text(prefix: str, wall_seconds: float, nonce: int) -> str:
    """Return the mark of a drained node: SLURM replaces reasons, also those of nodevet, but leaves marks."""
    return f"{prefix}: drained, {wall_seconds:.0f} {nonce:x}"


def dated(reason: str, node: NodeState) -> str:
    """Return *reason*, which replaces another reason of nodevet at the drained *node*, with the UTC time of the drain.

    Without that time, SLURM's date of the new reason would count the node as closed within the last hour.
    """
    seconds = _drained_since(node)
    if seconds is None:
        return reason
    detail, _, action = reason.rpartition(" [")
    tail = f" (closed {datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}) [{action}"
    return detail[: LONGEST_REASON - len(tail)].rstrip() + tail


def _drained_since(node: NodeState) -> float | None:
    """Return the time (Unix s) since which nodevet has drained *node*, or None if it is unknown."""
    found = _CLOSED.search(node.reason)
    told = seconds_of(found[1]) if found else None
    return node.reason_seconds if told is None or node.reason_seconds is None else min(told, node.reason_seconds)


def mark_of(node: NodeState) -> Mark | None:
    """Return the mark of nodevet at *node*, or None. The mark of a closed gate may be in both fields."""
    marks = {field: found for field, text in _fields(node) if (found := _MARK.fullmatch(text))}
    if not marks:
        return None
    word, seconds, _ = next(iter(marks.values())).groups()
    return Mark(word == "gate closed", float(seconds), " ".join(marks), word == "drained")


def _fields(node: NodeState) -> tuple[tuple[str, str], ...]:
    return ("Comment", node.comment), ("Extra", node.extra)


def free_field(node: NodeState) -> str | None:
    """Return a field without text of a person for a mark; None where both fields are in use."""
    return next((field for field, text in _fields(node) if not text), None)


def forgotten_words(node: NodeState) -> str:
    """Return the command that removes a leftover mark of a closed node from *node* in service; empty if there is none.

    An agent without the right to write leaves such a mark. Other nodes count it as long as it exists; a ``drained``
    mark counts once SLURM itself drains the node.
    """
    mark = mark_of(node)
    if mark is None or not mark.closes or node.drained:
        return ""
    says = f"the gate of {node.name} is closed" if mark.holds else f"nodevet drained {node.name}"
    empty = " ".join(f"{field.lower()}=" for field in mark.field.split())
    since = "" if mark.holds else " as soon as SLURM itself drains the node"
    return (
        f"a mark in SLURM says that {says}; it counts towards the limits of the cluster{since}, and nodevet may not"
        f" remove it: if the gate is open, type: scontrol update nodename={node.name} {empty}"
    )


def shows_permit(node: NodeState, prefix: str) -> bool:
    """Return whether SLURM shows that nodevet closed *node* and that no person has taken it over since."""
    mark = mark_of(node)
    return (node.drained and is_ours(node.reason, prefix)) or (mark is not None and mark.closes and _keeps(node, mark))


def _keeps(node: NodeState, mark: Mark) -> bool:
    """Return whether *node* is still closed by its *mark*: no person resumed it or gave it another reason."""
    if node.drained:
        # SLURM does not replace a drain when a prolog fails: a reason that was replaced so belonged to an ended drain.
        return is_slurms(node.reason) if mark.holds else replaces_reasons(node.reason)
    # A person set a state that nodevet does not know, such as FAIL.
    is_out = obstacle(node.states) in (Why.DOWN, Why.UNKNOWN_STATE)
    return mark.holds and not (is_out and node.reason and not is_slurms(node.reason) and not is_nodevets(node.reason))


def lacks_mark(node: NodeState, prefix: str, user: str | None, *, permitted: bool) -> bool:
    """Return whether nodevet, as *user*, drained *node*, and its mark is missing.

    Agents before the marks wrote none, and a person may overwrite a mark with a note, which takes nothing over. Where
    the last reading showed a permit (*permitted*), a reason of SLURM itself still belongs to nodevet's drain.
    """
    if not node.drained or mark_of(node) is not None:
        return False
    ours = is_ours(node.reason, prefix) and _is_signed(node, user)
    return ours or (permitted and is_slurms(node.reason))


def _is_signed(node: NodeState, user: str | None) -> bool:
    """Return whether an agent may have written the reason of *node*; all agents run as *user*."""
    return user is None or node.reason_user in (None, user)


def as_signed(node: NodeState, user: str | None) -> NodeState:
    """Return *node*; a reason in nodevet's form that is not signed by *user* gets its signer appended."""
    if not node.drained or _is_signed(node, user) or not is_nodevets(node.reason):
        return node
    return msgspec.structs.replace(node, reason=f"{node.reason} ({node.reason_user})")


def mark_again(node: NodeState, prefix: str, wall_seconds: float, nonce: int) -> str:
    """Return the mark for *node*, which nodevet closed: of its drain, or of its gate if SLURM drained it later."""
    since = _drained_since(node)
    text = drained_text if is_ours(node.reason, prefix) or replaces_reasons(node.reason) else closing_text
    return text(prefix, wall_seconds if since is None else since, nonce)


def rooms(
    nodes: Iterable[NodeState],
    name: str,
    limits: Limits,
    *,
    wall_seconds: float,
    user: str | None,
    before: tuple[float, str] | None = None,
) -> tuple[Room, ...]:
    """Return the closed nodes besides node *name* in the cluster and in each of its partitions.

    The limits are shares of the nodes that are neither down nor without power. *user* signs the reasons of nodevet; if
    it is None, reasons of every user count. Of nodes that only request, those with a rank below *before* count, or all
    if it is None.

    Raises ScontrolOutputError if *name* is not among *nodes*.
    """
    everything = tuple(nodes)
    own = next((node for node in everything if node.name == name), None)
    if own is None:
        raise ScontrolOutputError(f"node {name} is not among the {len(everything)} that are listed")
    written = (node for node in everything if (node.reason or node.comment or node.extra) and node is not own)
    closed = tuple(
        (node, since) for node in written if (since := _closed_since(node, wall_seconds, user, before)) is not None
    )
    up = tuple(node for node in everything if obstacle(node.states) not in (Why.DOWN, Why.POWER))
    sizes = {"": len(up)} | {
        partition: sum(partition in node.partitions for node in up) for partition in own.partitions
    }
    return tuple(_room(partition, size, closed, limits, wall_seconds) for partition, size in sizes.items())


def permits(found: Iterable[Room]) -> bool:
    """Return whether every room in *found* permits one more node."""
    return all(room.permits for room in found)


def _room(
    partition: str, size: int, closed: tuple[tuple[NodeState, float], ...], limits: Limits, wall_seconds: float
) -> Room:
    counted = [since for node, since in closed if not partition or partition in node.partitions]
    return Room(
        partition=partition,
        nodes=size,
        standing=len(counted),
        new=sum(since > wall_seconds - HOUR_SECONDS - CLOCK_SECONDS for since in counted),
        allowed_standing=max(1, int(limits.standing_ratio * size)),
        allowed_new=max(limits.new_least, int(limits.new_ratio * size)),
    )


def _closed_since(
    node: NodeState, wall_seconds: float, user: str | None, before: tuple[float, str] | None
) -> float | None:
    """Return the time (Unix s) since which *node* counts as closed by nodevet, or None; infinite if it is unknown."""
    if node.drained and is_nodevets(node.reason) and _is_signed(node, user):
        since = _drained_since(node)
        return float("inf") if since is None else since
    mark = mark_of(node)
    if mark is None:
        return None
    if mark.closes:
        return mark.seconds if _keeps(node, mark) else None
    if mark.seconds < wall_seconds - ASKS_SECONDS:
        return None
    return mark.seconds if before is None or (mark.seconds, node.name) < before else None
