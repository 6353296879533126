"""How many nodes nodevet may close: marks that ask for a permit, and what counts in its two limits. Pure.

SLURM cannot be told "drain this node unless so many are". Each node therefore writes a mark first and reads all nodes
then: of any nodes that hold a permit, the one that read last has seen the marks of all the others. So the limits hold
whatever clocks, delays and the order of nodes are, as long as the controller shows what it has accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

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
"""How far two clocks of a cluster may be apart: munge refuses a credential that is older than five minutes."""

LATE_SECONDS = 300.0
"""Until then a write whose answer did not come has taken effect, or never will."""

ASKS_SECONDS = 2 * HOUR_SECONDS
"""A mark that asks counts so long; it is older where its agent died between asking and draining."""

_MARK = re.compile(PREFIX + r": (asks for a permit|gate closed|drained), (\d{1,12}) ([0-9a-f]{1,16})")
"""With any prefix: agents of one cluster whose prefixes differ share its limits."""

_CLOSED = re.compile(r" \(closed (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\) \[[a-z_]+\]$")
"""In a reason that replaced another one: SLURM dates each reason anew."""


class Limits(msgspec.Struct, frozen=True):
    """The two limits, each for the cluster and for every partition of a node."""

    standing_ratio: float
    new_ratio: float
    new_least: int


class Mark(msgspec.Struct, frozen=True):
    """A mark of ours in the comment or the extra text of a node: since when, and whether it asks or holds.

    One that is ``drained`` does neither: it says whose drain it was where SLURM puts a reason of its own at the node.
    """

    holds: bool
    seconds: float
    field: str
    drained: bool = False

    @property
    def closes(self) -> bool:
        """Return whether it says that nodevet closed the node, and not only that it asks."""
        return self.holds or self.drained

    def stands(self, wall_seconds: float) -> bool:
        """Return whether others count it: one that asks is written anew long before they pass it over as too old."""
        return self.holds or (not self.drained and abs(wall_seconds - self.seconds) < HOUR_SECONDS)


class Room(msgspec.Struct, frozen=True):
    """What is closed besides one node, in the cluster (``partition`` is empty) or in one of its partitions."""

    partition: str
    nodes: int
    standing: int
    new: int
    allowed_standing: int
    allowed_new: int

    @property
    def permits(self) -> bool:
        """Return whether one more may be closed."""
        return self.standing < self.allowed_standing and self.new < self.allowed_new

    @property
    def words(self) -> str:
        """Return for people which limit is reached, with its figures."""
        where = f"partition {self.partition}" if self.partition else "the cluster"
        if self.standing >= self.allowed_standing:
            return (
                f"{self.standing} of {self.nodes} nodes of {where} are closed by nodevet, and the limit is"
                f" {self.allowed_standing} (slurm.maximum_drained_ratio)"
            )
        return (
            f"{self.new} nodes of {where} were closed by nodevet within an hour, limit {self.allowed_new}"
            " (slurm.maximum_new_ratio, slurm.minimum_new)"
        )


def asking_text(prefix: str, wall_seconds: float, nonce: int) -> str:
    """Return the mark that asks for a permit."""
    return f"{prefix}: asks for a permit, {wall_seconds:.0f} {nonce:x}"


def closing_text(prefix: str, wall_seconds: float, nonce: int) -> str:
    """Return the mark of a node whose gate is closed and which is not drained, because its mode is ``gate``."""
    return f"{prefix}: gate closed, {wall_seconds:.0f} {nonce:x}"


def drained_text(prefix: str, wall_seconds: float, nonce: int) -> str:
    """Return the mark of a node that is drained: SLURM replaces reasons, also ours, and leaves marks alone."""
    return f"{prefix}: drained, {wall_seconds:.0f} {nonce:x}"


def dated(reason: str, node: NodeState) -> str:
    """Return *reason* for *node*, which is drained with another one of ours, with the time (UTC) of its drain.

    By the time that SLURM puts at the new one it would count as closed within the hour.
    """
    seconds = _drained_since(node)
    if seconds is None:
        return reason
    detail, _, action = reason.rpartition(" [")
    tail = f" (closed {datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}) [{action}"
    return detail[: LONGEST_REASON - len(tail)].rstrip() + tail


def _drained_since(node: NodeState) -> float | None:
    """Return since when *node* is drained for us, or None where that cannot be told."""
    found = _CLOSED.search(node.reason)
    told = seconds_of(found[1]) if found else None
    return node.reason_seconds if told is None or node.reason_seconds is None else min(told, node.reason_seconds)


def mark_of(node: NodeState) -> Mark | None:
    """Return the mark of nodevet at *node*, or None. That of a closed gate may stand in both fields."""
    marks = {field: found for field, text in _fields(node) if (found := _MARK.fullmatch(text))}
    if not marks:
        return None
    word, seconds, _ = next(iter(marks.values())).groups()
    return Mark(word == "gate closed", float(seconds), " ".join(marks), word == "drained")


def _fields(node: NodeState) -> tuple[tuple[str, str], ...]:
    return ("Comment", node.comment), ("Extra", node.extra)


def free_field(node: NodeState) -> str | None:
    """Return where a mark may be written without touching what a person wrote; None where both are taken."""
    return next((field for field, text in _fields(node) if not text), None)


def forgotten_words(node: NodeState) -> str:
    """Return what to type where *node* is in service and a mark still says that nodevet closed it; else nothing.

    An agent that may not write leaves it there, and the others count it for as long as it stands, that of a drain with
    the next drain by SLURM itself.
    """
    mark = mark_of(node)
    if mark is None or not mark.closes or node.drained:
        return ""
    says = f"the gate of {node.name} is closed" if mark.holds else f"nodevet drained {node.name}"
    empty = " ".join(f"{field.lower()}=" for field in mark.field.split())
    fills = "fills" if mark.holds else "fills, as soon as SLURM itself drains the node,"
    return (
        f"a mark says that {says}, nodevet may not take it back, and it {fills} a place in the limits of the cluster:"
        f" where the gate is open, type: scontrol update nodename={node.name} {empty}"
    )


def shows_permit(node: NodeState, prefix: str) -> bool:
    """Return whether SLURM shows that *node* was closed by nodevet, and nobody took it over since."""
    mark = mark_of(node)
    return (node.drained and is_ours(node.reason, prefix)) or (mark is not None and mark.closes and _keeps(node, mark))


def _keeps(node: NodeState, mark: Mark) -> bool:
    """Return whether *node* is still closed as its *mark* says: nobody resumed it, or gave it a reason of their own."""
    if node.drained:
        # SLURM leaves a drain as it is where a prolog fails: what such a reason replaced, somebody had resumed before.
        return is_slurms(node.reason) if mark.holds else replaces_reasons(node.reason)
    # A state that nodevet does not know, such as FAIL, a person gave it.
    is_out = obstacle(node.states) in (Why.DOWN, Why.UNKNOWN_STATE)
    return mark.holds and not (is_out and node.reason and not is_slurms(node.reason) and not is_nodevets(node.reason))


def lacks_mark(node: NodeState, prefix: str, user: str | None, *, permitted: bool) -> bool:
    """Return whether *node* is drained for us, by *user*, without the mark that says so.

    An agent of before the marks wrote none, and a person may have written a note over it, which takes nothing over.
    Where the last look showed a permit (*permitted*), a reason of SLURM's own is still at our drain.
    """
    if not node.drained or mark_of(node) is not None:
        return False
    ours = is_ours(node.reason, prefix) and _is_signed(node, user)
    return ours or (permitted and is_slurms(node.reason))


def _is_signed(node: NodeState, user: str | None) -> bool:
    """Return whether the reason of *node* may be that of an agent, all of which run as *user*."""
    return user is None or node.reason_user in (None, user)


def as_signed(node: NodeState, user: str | None) -> NodeState:
    """Return *node* with a reason in the form of ours that somebody else than *user* gave it told as theirs."""
    if not node.drained or _is_signed(node, user) or not is_nodevets(node.reason):
        return node
    return msgspec.structs.replace(node, reason=f"{node.reason} ({node.reason_user})")


def mark_again(node: NodeState, prefix: str, wall_seconds: float, nonce: int) -> str:
    """Return the mark of the drain of *node*, or of its gate behind which SLURM drained it, since SLURM shows that."""
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
    """Return what is closed besides node *name* in the cluster and in each of its partitions.

    A node that is down or without power is none of those that the limits are a share of: it serves nobody.
    *user* is whose reasons are ours; None where that is not known, and then everybody's count. Of nodes that only ask,
    those count that are ranked *before*, all where that is None.

    Raises ScontrolOutputError where *name* is not among *nodes*.
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
    """Return whether every one of the rooms that were *found* permits one more."""
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
    """Return since when *node* counts as closed by nodevet, or None; infinite where the time cannot be told."""
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
