"""What nodevet writes into SLURM, and when: pure rules over what was read.

A person outranks the machine. A reason that is not ours, and an empty one, are never touched; what could not be read is
never written; and a node that a person resumed is not drained again for what was known at that moment. nodevet never
resumes a node: that is a person's decision, and the acknowledgement of what was wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache

import msgspec

from nodevet.checks.errors import NodevetError
from nodevet.checks.model import Action, Episode, FaultClass, Instant, Key
from nodevet.checks.reference.tables import load_table

__all__ = [
    "Decision",
    "Guard",
    "Known",
    "Memory",
    "NodeState",
    "OutputError",
    "Step",
    "Why",
    "decide",
    "guard",
    "has_turn",
    "is_ours",
    "parse_node",
    "parse_nodes",
    "reason_text",
    "seconds_to_turn",
]

LONGEST_REASON = 200
"""Characters: sinfo and dashboards cut longer ones, and the action stands at the end."""

TURN_SECONDS = 2.0
"""How long one node has for reading, writing and reading again, clocks of the cluster being a little apart."""

MOST_TURNS = 60
"""Of larger clusters several nodes share a turn, so that none waits longer than two minutes."""

_CLASS_WORD = {
    FaultClass.HARDWARE: "hw",
    FaultClass.NODE: "node",
    FaultClass.CONFIGURATION: "config",
    FaultClass.APPLICATION: "user",
    FaultClass.UNKNOWN: "unknown",
}

_MARKS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""The letters that releases before 22.05 put behind a state, as sinfo still does."""

_STATE = re.compile(r"^\s+State=(\S+)", re.MULTILINE)
_REASON = re.compile(r"^\s+Reason=(.*)$", re.MULTILINE)
_SIGNED = re.compile(r"(?P<reason>.*)\s\[(?P<user>[^\[\]]+)@[^\[\]@\s]+\]")


class OutputError(NodevetError):
    """What scontrol printed is not what was asked for: says what was missing in it."""


class Why(StrEnum):
    """Why a drain that is due was not written."""

    READ_FAILED = "read_failed"
    READ_TIMEOUT = "read_timeout"
    READ_EMPTY = "read_empty"
    READ_UNPARSABLE = "read_unparsable"
    WRITE_FAILED = "write_failed"
    WRITE_TIMEOUT = "write_timeout"
    NO_COMMAND = "no_command"
    DENIED = "denied"
    STUCK = "stuck"
    FOREIGN_REASON = "foreign_reason"
    EMPTY_REASON = "empty_reason"
    MAINTENANCE = "maintenance"
    POWER = "power"
    REBOOT = "reboot"
    DOWN = "down"
    UNKNOWN_STATE = "unknown_state"
    CHANGED = "changed"
    LIMIT = "limit"
    UNVERIFIED = "unverified"


class Step(StrEnum):
    """What to do next."""

    NOTHING = "nothing"
    DRAIN = "drain"
    UPDATE = "update"
    ACKNOWLEDGE = "acknowledge"


class StateWord(msgspec.Struct, frozen=True):
    """A word of a node's state and what it means for a writer: serves, drained, maintenance, power, reboot, down."""

    word: str
    meaning: str
    source: str


class NodeState(msgspec.Struct, frozen=True):
    """A node as SLURM shows it: the words of its state, and its reason with who gave it."""

    name: str
    states: frozenset[str]
    reason: str = ""
    reason_user: str | None = None

    @property
    def drained(self) -> bool:
        """Return whether no new job starts on it."""
        return "DRAIN" in self.states


class Known(msgspec.Struct, frozen=True):
    """A fault as far as it was known: its episode, and how often it had occurred."""

    key: Key
    opened: Instant
    count: int

    def covers(self, episode: Episode) -> bool:
        """Return whether *episode* is that fault and did not occur anew since."""
        return (episode.key, episode.opened) == (self.key, self.opened) and episode.count <= self.count


class Memory(msgspec.Struct, frozen=True):
    """What must outlive the agent.

    ``drained`` is the reason of the node when it was last seen drained, by anybody, and ``known`` the faults of that
    moment; ``resumed`` are those that a person has resumed the node with.
    """

    drained: str | None = None
    known: tuple[Known, ...] = ()
    resumed: tuple[Known, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """The next step, the reason to write, why a drain that is due is not written, and what to remember."""

    step: Step
    memory: Memory
    reason: str = ""
    why: Why | None = None


class Guard(msgspec.Struct, frozen=True):
    """How many nodes there are, how many of them we have drained besides this one, and how many we may."""

    nodes: int
    drained: int
    allowed: int
    place: int

    @property
    def permits(self) -> bool:
        """Return whether one more may be drained."""
        return self.drained < self.allowed

    @property
    def permits_all(self) -> bool:
        """Return whether every node could drain itself now without passing the limit."""
        return self.nodes <= self.allowed


def parse_nodes(text: str) -> tuple[NodeState, ...]:
    """Return the nodes that ``scontrol show node`` printed, one paragraph each. Raises OutputError.

    The text form is the one that every release has: JSON is missing in 22.05 and changed its shape twice since.
    """
    blocks = re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE)
    if blocks[0].strip():
        raise OutputError(f"expected NodeName= at its beginning, found {blocks[0].strip()[:60]!r}")
    if len(blocks) == 1:
        raise OutputError("no node is in it")
    return tuple(_parsed(block) for block in blocks[1:])


def parse_node(text: str, name: str) -> NodeState:
    """Return the one node *name* that ``scontrol show node NAME`` printed. Raises OutputError."""
    found = parse_nodes(text)
    if [node.name for node in found] != [name]:
        raise OutputError(f"expected node {name} alone, found {', '.join(node.name for node in found)[:60]}")
    return found[0]


def decide(faults: Iterable[Episode], node: NodeState, memory: Memory, prefix: str) -> Decision:
    """Return what to do about *node*, as it was just read, for *faults*, which are hard and may drain.

    *memory* is what the last decision left; reasons of ours begin with *prefix*. Once the reason of the decision was
    written, it is the ``drained`` of the memory.
    """
    present = tuple(faults)
    resumed = tuple(known for known in memory.resumed if any(map(known.covers, present)))
    due = tuple(episode for episode in present if not any(known.covers(episode) for known in resumed))
    obstacle = _obstacle(node.states)
    if node.drained:
        return _on_drained(due, node, Memory(node.reason, _known(due), resumed), prefix, obstacle)
    if memory.drained is None:
        kept = Memory(resumed=resumed)
    elif obstacle in (None, Why.MAINTENANCE):
        # Only a person resumes a node; nothing of ours does.
        told = tuple(known for known in memory.known if any(map(known.covers, due)))
        kept = Memory(resumed=(*resumed, *told))
        if told:
            return Decision(Step.ACKNOWLEDGE, kept)
    else:
        kept = Memory(memory.drained, memory.known, resumed)
    if not due:
        return Decision(Step.NOTHING, kept)
    if obstacle is not None:
        return Decision(Step.NOTHING, kept, why=obstacle)
    return Decision(Step.DRAIN, Memory(kept.drained, _known(due), resumed), reason_text(due, prefix))


def reason_text(faults: Iterable[Episode], prefix: str) -> str:
    """Return the reason for draining: ``<prefix>: <class> <check>: <detail> [<action>]`` of the gravest fault."""
    entries = tuple(faults)
    worst = max(entries, key=lambda episode: (episode.finding.action.rank, -episode.opened.wall_seconds))
    head = f"{prefix}: {_CLASS_WORD[worst.finding.fault_class]} {worst.check}: "
    more = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
    tail = f"{more} [{worst.finding.action.value}]"
    # Behind a semicolon stands what to do, in brackets what the kernel wrote: both are for other surfaces.
    detail = _plain(re.split(r";| \[", worst.finding.message)[0]) or worst.key.code
    return head + detail[: LONGEST_REASON - len(head) - len(tail)].rstrip() + tail


def is_ours(reason: str, prefix: str) -> bool:
    """Return whether *reason* is one that ``reason_text`` could have written; what a person added makes it theirs."""
    return _meaning(reason, prefix) is not None


def guard(nodes: Iterable[NodeState], name: str, prefix: str, ratio: float) -> Guard:
    """Return whether *name*, one of all *nodes*, may be drained besides those that we have drained already.

    Never more than *ratio* of the nodes, and always one. Raises OutputError where *name* is not among *nodes*.
    """
    everything = {node.name: node for node in nodes}
    if name not in everything:
        raise OutputError(f"node {name} is not among the {len(everything)} that are listed")
    others = sum(node.drained and is_ours(node.reason, prefix) for node in everything.values() if node.name != name)
    allowed = max(1, int(ratio * len(everything)))
    return Guard(len(everything), others, allowed, sorted(everything).index(name))


def seconds_to_turn(wall_seconds: float, found: Guard) -> float:
    """Return how long to wait before writing: 0 now, so that nodes that fail together drain one after the other.

    SLURM has no way to say "drain unless so many are": each node writes in a turn of its own, which follows from
    its place in the sorted list and the wall clock, and sees then what those before it did.
    """
    late = _seconds_into_turn(wall_seconds, found)
    if found.permits_all or late < TURN_SECONDS / 2:
        return 0.0
    return min(found.nodes, MOST_TURNS) * TURN_SECONDS - late


def has_turn(wall_seconds: float, found: Guard) -> bool:
    """Return whether there is still time to write before the next node looks."""
    return found.permits_all or _seconds_into_turn(wall_seconds, found) < TURN_SECONDS * 3 / 4


def _seconds_into_turn(wall_seconds: float, found: Guard) -> float:
    """Return how long ago the turn of this node began last."""
    turns = min(found.nodes, MOST_TURNS)
    return (wall_seconds - found.place % turns * TURN_SECONDS) % (turns * TURN_SECONDS)


@lru_cache(maxsize=1)
def _words() -> dict[str, str]:
    return {row.word: row.meaning for row in load_table("slurm_states.csv", StateWord)}


def _parsed(block: str) -> NodeState:
    name = block[len("NodeName=") :].split(None, 1)[0]
    state = _STATE.search(block)
    if state is None:
        raise OutputError(f"node {name} has no State=")
    found = _REASON.search(block)
    if found is None:
        return NodeState(name, _state_words(state[1]))
    # A reason of several lines is signed on its first.
    line = found[1].rstrip()
    signed = _SIGNED.fullmatch(line)
    if signed is None:
        return NodeState(name, _state_words(state[1]), line.strip())
    return NodeState(name, _state_words(state[1]), signed["reason"].strip(), signed["user"])


def _state_words(text: str) -> frozenset[str]:
    words = set()
    for part in text.upper().split("+"):
        plain = part.rstrip("".join(_MARKS))
        words |= {plain, *(_MARKS[mark] for mark in part[len(plain) :])}
    return frozenset(words - {""})


def _obstacle(states: frozenset[str]) -> Why | None:
    """Return why a node in *states* is left alone, the gravest first; a word that nobody knows is one."""
    meanings = {_words().get(word, "unknown") for word in states} or {"unknown"}
    for meaning, why in (
        ("unknown", Why.UNKNOWN_STATE),
        ("down", Why.DOWN),
        ("reboot", Why.REBOOT),
        ("power", Why.POWER),
        ("maintenance", Why.MAINTENANCE),
    ):
        if meaning in meanings:
            return why
    return None


def _known(faults: Iterable[Episode]) -> tuple[Known, ...]:
    return tuple(Known(episode.key, episode.opened, episode.count) for episode in faults)


def _on_drained(
    due: tuple[Episode, ...], node: NodeState, memory: Memory, prefix: str, obstacle: Why | None
) -> Decision:
    if not due:
        return Decision(Step.NOTHING, memory)
    before = _meaning(node.reason, prefix)
    if before is None:
        return Decision(Step.NOTHING, memory, why=Why.FOREIGN_REASON if node.reason else Why.EMPTY_REASON)
    reason = reason_text(due, prefix)
    if _meaning(reason, prefix) == before:
        return Decision(Step.NOTHING, memory)
    if obstacle is not None:
        return Decision(Step.NOTHING, memory, why=obstacle)
    return Decision(Step.UPDATE, memory, reason)


def _meaning(reason: str, prefix: str) -> tuple[str, str, str] | None:
    """Return class, check and action of a *reason* of ours, or None."""
    classes = "|".join(_CLASS_WORD.values())
    actions = "|".join(action.value for action in Action)
    found = re.fullmatch(rf"{re.escape(prefix)}: ({classes}) ([^\s:]+): .+ \[({actions})\]", reason)
    return None if found is None else (found[1], found[2], found[3])


def _plain(text: str) -> str:
    """Return *text* in printable ASCII on one line, without what scontrol, a shell or a form could take for its own."""
    kept = "".join(letter if letter.isascii() and letter.isprintable() else " " for letter in text)
    return " ".join(re.sub(r"[\"'`;\\\[\]@|=]", " ", kept).split())
