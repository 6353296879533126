"""Rules for writes to SLURM: pure functions of the node state that was read.

A person outranks the machine. nodevet never changes a foreign or empty reason, never writes to a node that it could not
read, and does not drain a node again for faults that were known when a person resumed it. nodevet never resumes a node:
a resume is a person's decision and acknowledges the faults of the node. A restart is no resume by a person.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache

import msgspec

from nodevet.checks.core.errors import NodevetError
from nodevet.checks.core.model import Action, Episode, EpisodeState, FaultClass, Instant, Outcome
from nodevet.checks.engine.damping import later
from nodevet.checks.reference.tables import load_table

from .known import HELD_SECONDS, KnownFault, as_known, not_resumed
from .names import how_many
from .reasons import without_additions

LONGEST_REASON = 200
"""Maximum length in characters: sinfo and dashboards cut longer reasons, and the action is at the end."""

PREFIX = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
"""Pattern of the prefix of a site's reasons and marks."""

PROLOG_ERROR = "Prolog error"
"""SLURM's own reason for a node with a failed prolog."""

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
"""Flag characters after a state in releases before 22.05, and still in sinfo."""

# Continuation lines of a reason are indented by ten spaces; fields of SLURM are not.
_STATE = re.compile(r"^[ \t]{1,8}State=(\S+)", re.MULTILINE)
_REASON = re.compile(r"^[ \t]{1,8}Reason=(.*)$", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]{1,8}Comment=(.*)$", re.MULTILINE)
_EXTRA = re.compile(r"^[ \t]{1,8}Extra=(.*)$", re.MULTILINE)
_PARTITIONS = re.compile(r"^\s+Partitions=(\S+)", re.MULTILINE)
_HOST = re.compile(r"^[ \t]{1,8}NodeAddr=\S+ NodeHostName=(\S+)", re.MULTILINE)
_SLURMD = re.compile(r"^\s+BootTime=\S+ SlurmdStartTime=(\S+)", re.MULTILINE)
_RESUMES = re.compile(r"^\s+LastBusyTime=\S+ ResumeAfterTime=(\S+)", re.MULTILINE)
_SIZE = re.compile(r"\bTotalNodes=(\d+)")
_NODES = re.compile(r"^[ \t]+Nodes=(\S+)$", re.MULTILINE)
_STARTED = re.compile(r"^BOOT_TIME\s*=\s*(\S+)$", re.MULTILINE)
_PRIMARY_IS_DOWN = re.compile(r"^Slurmctld\(primary\) at .* is DOWN$", re.MULTILINE)
_PREFIX = re.compile(PREFIX)
_SIGNED = re.compile(r"(?:(?P<reason>.*)\s)?\[(?P<user>[^\[\]]+)@(?P<when>[^\[\]@\s]+)\]")


class ScontrolOutputError(NodevetError):
    """The output of scontrol does not match the request; the message names the missing part."""


class Why(StrEnum):
    """Why a due drain was not written."""

    READ_FAILED = "read_failed"
    READ_TIMEOUT = "read_timeout"
    READ_EMPTY = "read_empty"
    READ_UNPARSABLE = "read_unparsable"
    WRITE_FAILED = "write_failed"
    WRITE_TIMEOUT = "write_timeout"
    NO_COMMAND = "no_command"
    DENIED = "denied"
    STUCK = "stuck"
    FOREIGN_COMMENT = "foreign_comment"
    FOREIGN_REASON = "foreign_reason"
    EMPTY_REASON = "empty_reason"
    MAINTENANCE = "maintenance"
    POWER = "power"
    REBOOT = "reboot"
    DOWN = "down"
    UNKNOWN_STATE = "unknown_state"
    CHANGED = "changed"
    OTHER_NODE = "other_node"
    LIMIT = "limit"
    CONTENDED = "contended"
    UNSETTLED = "unsettled"
    UNVERIFIED = "unverified"


class Step(StrEnum):
    """The next step."""

    NOTHING = "nothing"
    DRAIN = "drain"
    CLOSE = "close"
    UPDATE = "update"
    ACKNOWLEDGE = "acknowledge"


class StateWord(msgspec.Struct, frozen=True):
    """A state flag of SLURM and its meaning for a writer: serves, drained, maintenance, power, reboot, down."""

    word: str
    meaning: str
    source: str


class NodeState(msgspec.Struct, frozen=True):
    """A node as SLURM shows it: its state flags, and its reason with user and time (Unix s).

    ``slurmd_started`` is the start time of slurmd as printed by SLURM, None if unknown; ``resumes`` is its ResumeAfter
    time as printed, None if unset. ``host`` is SLURM's host name of the machine.
    """

    name: str
    states: frozenset[str]
    reason: str = ""
    reason_user: str | None = None
    reason_seconds: float | None = None
    comment: str = ""
    extra: str = ""
    partitions: tuple[str, ...] = ()
    slurmd_started: str | None = None
    resumes: str | None = None
    host: str = ""

    @property
    def drained(self) -> bool:
        """Return whether no new job starts on the node."""
        return "DRAIN" in self.states


class Sight(msgspec.Struct, frozen=True):
    """The boot, slurmd and slurmctld under which a node was read; start times as printed by SLURM.

    ``ends`` names the cause by which SLURM itself ends the drain; empty where only a person ends it.
    """

    boot_id: str
    slurmd: str | None
    slurmctld: str | None
    ends: str = ""

    def changed(self, now: Sight) -> str:
        """Return the cause other than a person that may have ended a drain between the two readings; empty if none."""
        if self.ends:
            return self.ends
        if self.boot_id != now.boot_id:
            return "a reboot"
        if self.slurmctld is None or self.slurmctld != now.slurmctld:
            return "a restart of slurmctld"
        return "a restart of slurmd" if self.slurmd is None or self.slurmd != now.slurmd else ""

    def after(self, before: Sight | None) -> Sight:
        """Return this sight with slurmd's start time from *before* while slurmctld does not know it yet.

        A restarted slurmctld pings each slurmd later; if the start time is then the same, slurmd was not restarted.
        """
        if self.slurmd is not None or before is None or before.boot_id != self.boot_id:
            return self
        return msgspec.structs.replace(self, slurmd=before.slurmd)

    def waits(self, node: NodeState) -> bool:
        """Return whether a restart of slurmd is still open: nothing else was restarted, and *node* serves."""
        serves = not node.drained and obstacle(node.states) in (None, Why.MAINTENANCE)
        return serves and node.slurmd_started is None and self.slurmd is not None and not self.ends


class WriterMemory(msgspec.Struct, frozen=True):
    """The state that must outlive the agent.

    ``drained`` is the reason of the node when it was last seen drained, by anybody, ``sight`` the processes then, and
    ``known`` the faults then; ``resumed`` are the faults with which a person resumed the node. ``returned`` is the
    cause other than a person that put the node back into service. ``permit`` is the boot in which SLURM last showed the
    permit, ``marked`` whether a mark of nodevet may exist, ``nodes`` the number of nodes. Until ``clears``, an
    unanswered write that removes a mark may still take effect.
    """

    drained: str | None = None
    known: tuple[KnownFault, ...] = ()
    resumed: tuple[KnownFault, ...] = ()
    sight: Sight | None = None
    returned: str = ""
    permit: str = ""
    marked: bool = False
    nodes: int = 0
    clears: Instant | None = None

    def renamed(self, names: Mapping[str, str]) -> WriterMemory:
        """Return this memory with new device ids; *names* maps old ids to new ones."""
        known, resumed = (tuple(_renamed(entry, names) for entry in group) for group in (self.known, self.resumed))
        return msgspec.structs.replace(self, known=known, resumed=resumed)

    @property
    def rests(self) -> bool:
        """Return whether nothing is left to follow up."""
        return self == WriterMemory(nodes=self.nodes, clears=self.clears)


class Decision(msgspec.Struct, frozen=True):
    """The next step, the reason to write, why a due drain is not written, and the new memory."""

    step: Step
    memory: WriterMemory
    reason: str = ""
    why: Why | None = None


def parse_nodes(text: str) -> tuple[NodeState, ...]:
    """Return the nodes in the output of ``scontrol show node``, one per paragraph. Raises ScontrolOutputError.

    Every release has the text form; JSON is missing in 22.05, and its structure has changed twice since.
    """
    blocks = re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE)
    if blocks[0].strip():
        raise ScontrolOutputError(f"expected NodeName= at its beginning, found {blocks[0].strip()[:60]!r}")
    if len(blocks) == 1:
        raise ScontrolOutputError("no node is in it")
    return tuple(_parsed(block) for block in _joined(blocks[1:]))


def parse_node(text: str, name: str) -> NodeState:
    """Return node *name* from the output of ``scontrol show node NAME``. Raises ScontrolOutputError."""
    found = parse_nodes(text)
    if [node.name for node in found] != [name]:
        raise ScontrolOutputError(f"expected node {name} alone, found {', '.join(node.name for node in found)[:60]}")
    return found[0]


def parse_size(text: str) -> int:
    """Return the approximate number of nodes of a cluster from the output of ``scontrol show partitions``.

    Raises ScontrolOutputError.

    A node in several partitions counts once where they list their nodes: with a plain sum over many overlapping
    partitions an agent would wait for hours.
    """
    if _SIZE.search(text) is None:
        raise ScontrolOutputError("no partition says TotalNodes=")
    blocks = re.split(r"^(?=PartitionName=)", text, flags=re.MULTILINE)
    found = ((_NODES.search(block), _SIZE.search(block)) for block in blocks)
    return how_many((nodes[1] if nodes else "", int(size[1]) if size else 0) for nodes, size in found)


def parse_started(text: str) -> str:
    """Return the start time of slurmctld, as printed by ``scontrol show config``. Raises ScontrolOutputError.

    A backup controller is marked in the result: its start time says nothing, as it may have taken over just now.
    """
    found = _STARTED.search(text)
    if found is None:
        raise ScontrolOutputError("no BOOT_TIME is in it")
    return f"{found[1]} (a backup)" if _PRIMARY_IS_DOWN.search(text) else found[1]


def seconds_of(text: str) -> float | None:
    """Return the Unix seconds of a time that scontrol printed under TZ=UTC0, or None if it is no time."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def decide(
    faults: Iterable[Episode],
    node: NodeState,
    memory: WriterMemory,
    prefix: str,
    *,
    sight: Sight,
    now: Instant,
    drains: bool = True,
    episodes: Iterable[Episode] = (),
) -> Decision:
    """Return the next step for *node*, as just read, and *faults*, which are hard and close the gate.

    *memory* is from the last decision; reasons of nodevet begin with *prefix*; *sight* is the boot, slurmd and
    slurmctld of the reading at *now*; *drains* is whether one of the faults may drain. *episodes* are all that are not
    cleared; resumed faults stay in memory while they last, and for HELD_SECONDS after the resume.
    """
    present = tuple(faults)
    alive = (*present, *episodes)
    lasting = (known for known in memory.resumed if any(map(known.is_same, alive)) or known.holds(now))
    resumed = tuple(known for known in lasting if not any(map(known.gives_way, alive)))
    due = not_resumed(present, resumed)
    kept = msgspec.structs.replace(memory, drained=None, known=(), sight=None, resumed=resumed)
    kept = kept if due else msgspec.structs.replace(kept, returned="")
    said = answered(episodes)
    hindered = obstacle(node.states)
    if node.drained and (due or said):
        own = msgspec.structs.replace(sight, ends=_ends_itself(node))
        seen = msgspec.structs.replace(kept, drained=node.reason, known=as_known((*due, *said)), sight=own)
        return _on_drained(due, node, seen, prefix, hindered) if due else Decision(Step.NOTHING, seen)
    if memory.drained is not None and not node.drained and (due or said or memory.known):
        if hindered not in (None, Why.MAINTENANCE):
            still = msgspec.structs.replace(memory, resumed=resumed)
            return Decision(Step.NOTHING, still, why=hindered)
        # nodevet never resumes a node: a person did, unless a daemon or the node was restarted.
        after = "something unknown" if memory.sight is None else memory.sight.changed(sight)
        told = _known_then(memory.known, (*due, *said), alive)
        if told and not after:
            held = _held(told, resumed, later(now, HELD_SECONDS))
            known_due = any(known.covers(episode) for known in held for episode in due)
            kept = msgspec.structs.replace(kept, resumed=held, returned="")
            if known_due or not due:
                return Decision(Step.ACKNOWLEDGE if known_due else Step.NOTHING, kept)
        elif due:
            kept = msgspec.structs.replace(kept, returned=after or kept.returned)
    if not due:
        return Decision(Step.NOTHING, kept)
    if hindered is not None:
        return Decision(Step.NOTHING, kept, why=hindered)
    return Decision(Step.DRAIN if drains else Step.CLOSE, kept, reason_text(due, prefix))


def reason_text(faults: Iterable[Episode], prefix: str) -> str:
    """Return the reason for draining: ``<prefix>: <class> <check>: <detail> [<action>]`` of the gravest fault."""
    entries = tuple(faults)
    worst = max(entries, key=lambda episode: (episode.finding.action.rank, -episode.opened.wall_seconds))
    head = f"{prefix}: {_CLASS_WORD[worst.finding.fault_class]} {worst.check}: "
    more = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
    tail = f"{more} [{worst.finding.action.value}]"
    # The text after a semicolon is advice, and the text in brackets is from the kernel: both are for other surfaces.
    detail = _plain(re.split(r";| \[", worst.finding.message)[0]) or worst.key.code
    return head + detail[: LONGEST_REASON - len(head) - len(tail)].rstrip() + tail


def is_machine(node: NodeState, host: str) -> bool:
    """Return whether *node* may be the machine with the host name *host*: SLURM has no other host name for it."""
    return not node.host or not host or _label(node.host) == _label(host)


def machine_of(nodes: Iterable[NodeState], host: str) -> str:
    """Return the name of the node with the host name *host*; empty if there is none, as with ``slurmd -N``."""
    return next((node.name for node in nodes if host and _label(node.host) == _label(host)), "")


def _label(host: str) -> str:
    return host.split(".", 1)[0].lower()


def is_ours(reason: str, prefix: str) -> bool:
    """Return whether ``reason_text`` could have written *reason*; an addition of a person makes it theirs."""
    return _meaning(reason, prefix) is not None


def is_nodevets(reason: str) -> bool:
    """Return whether an agent with any prefix could have written *reason*: the limits apply to the whole cluster."""
    prefix, _, _ = reason.partition(":")
    return _PREFIX.fullmatch(prefix) is not None and is_ours(reason, prefix)


@lru_cache(maxsize=1)
def _words() -> dict[str, str]:
    return {row.word: row.meaning for row in load_table("slurm_states.csv", StateWord)}


def _joined(blocks: list[str]) -> list[str]:
    """Return *blocks*, one per node; a line of a comment that looks like a new node is joined to its own node.

    Complete output ends with an empty line. If it is cut off, its last block counts as a node that must not be ignored.
    """
    nodes = blocks[:1]
    for place, block in enumerate(blocks[1:], 2):
        if _STATE.search(block) or (place == len(blocks) and not block.endswith("\n\n")):
            nodes.append(block)
        else:
            nodes[-1] += block
    return nodes


def _parsed(block: str) -> NodeState:
    name = "".join(block[len("NodeName=") :].split(None, 1)[:1])
    if not name:
        raise ScontrolOutputError("a node has no name")
    state = _STATE.search(block)
    if state is None:
        raise ScontrolOutputError(f"node {name} has no State=")
    partitions = _PARTITIONS.search(block)
    bare = NodeState(
        name,
        _state_words(state[1]),
        comment=_line(_COMMENT, block),
        extra=_line(_EXTRA, block),
        partitions=tuple(partitions[1].split(",")) if partitions else (),
        slurmd_started=_time(_SLURMD, block),
        resumes=_time(_RESUMES, block),
        host=_line(_HOST, block),
    )
    # In a reason of several lines, user and time are on the first.
    line = _line(_REASON, block)
    signed = _SIGNED.fullmatch(line)
    if signed is None:
        return msgspec.structs.replace(bare, reason=line)
    reason, seconds = (signed["reason"] or "").strip(), seconds_of(signed["when"])
    # SLURM added text and signed it as SlurmUser: the drain stays the original one until a person resumes the node.
    plain = without_additions(reason)
    if plain != reason:
        return msgspec.structs.replace(bare, reason=plain, reason_seconds=seconds)
    return msgspec.structs.replace(bare, reason=reason, reason_user=signed["user"], reason_seconds=seconds)


def _line(form: re.Pattern[str], block: str) -> str:
    found = form.search(block)
    return found[1].strip() if found else ""


def _time(form: re.Pattern[str], block: str) -> str | None:
    """Return the time that *form* matches, as printed by SLURM, or None if SLURM knows none."""
    found = form.search(block)
    return found[1] if found and found[1] not in ("None", "Unknown") else None


def _state_words(text: str) -> frozenset[str]:
    words = set()
    for part in text.upper().split("+"):
        plain = part.rstrip("".join(_MARKS))
        words |= {plain, *(_MARKS[mark] for mark in part[len(plain) :])}
    return frozenset(words - {""})


def _meanings(states: frozenset[str]) -> frozenset[str]:
    """Return the meanings of *states* for a writer; an unknown state flag, or no flag at all, is ``unknown``."""
    return frozenset(_words().get(word, "unknown") for word in states) or frozenset({"unknown"})


@lru_cache(maxsize=1024)  # of thousands of nodes, nearly all are in a few states
def obstacle(states: frozenset[str]) -> Why | None:
    """Return why a node in *states* must not be touched, gravest first; an unknown state flag is one reason."""
    meanings = _meanings(states)
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


_ENDS = {
    "reboot": "a requested reboot",
    "power": "a change of its power",
    "unknown": "a state that nodevet does not know",
}


def _ends_itself(node: NodeState) -> str:
    """Return the cause by which SLURM may end the drain of *node* without a resume by a person; empty if none.

    ``scontrol reboot ASAP`` drains a node until it is booted or the reboot is cancelled; so does a power down.
    """
    if node.resumes is not None:
        return "the scheduled resume (ResumeAfter)"
    meanings = _meanings(node.states)
    return next((words for meaning, words in _ENDS.items() if meaning in meanings), "")


def answered(episodes: Iterable[Episode]) -> tuple[Episode, ...]:
    """Return the acknowledged hard faults of *episodes* that are known to a person who resumes the node.

    An acknowledgement with a term is left out until the term is over: the term itself limits the knowledge.
    """
    return tuple(
        entry
        for entry in episodes
        if (entry.state, entry.outcome) == (EpisodeState.ACKNOWLEDGED, Outcome.FAIL)
        and (entry.until is None or entry.expired is not None)
        and entry.finding.hard
    )


def _held(told: tuple[KnownFault, ...], before: tuple[KnownFault, ...], until: Instant) -> tuple[KnownFault, ...]:
    """Return *before* with *told*, whose returns are covered *until* then; a harder known action is kept."""
    news = {(known.key, known.serial, known.measured): known.action.rank for known in told}
    return (
        *(old for old in before if old.action.rank > news.get((old.key, old.serial, old.measured), -1)),
        *(msgspec.structs.replace(known, until=until) for known in told),
    )


def _known_then(
    known: tuple[KnownFault, ...], present: tuple[Episode, ...], alive: tuple[Episode, ...]
) -> tuple[KnownFault, ...]:
    """Return the faults of *known*, from the last drained reading, that a person knew at the resume and are *present*.

    A fault that is no longer *alive* counts too: had it ended during the drain, the node would have been read once
    more.
    """
    return tuple(entry for entry in known if any(map(entry.covers, present)) or not any(map(entry.is_same, alive)))


def _renamed(known: KnownFault, names: Mapping[str, str]) -> KnownFault:
    device = names.get(known.key.device)
    if device is None:
        return known
    return msgspec.structs.replace(known, key=msgspec.structs.replace(known.key, device=device))


def _on_drained(
    due: tuple[Episode, ...], node: NodeState, memory: WriterMemory, prefix: str, hindered: Why | None
) -> Decision:
    before = _meaning(node.reason, prefix)
    if before is None:
        return Decision(Step.NOTHING, memory, why=Why.FOREIGN_REASON if node.reason else Why.EMPTY_REASON)
    reason = reason_text(due, prefix)
    if _meaning(reason, prefix) == before:
        return Decision(Step.NOTHING, memory)
    if hindered is not None:
        return Decision(Step.NOTHING, memory, why=hindered)
    return Decision(Step.UPDATE, memory, reason)


def _meaning(reason: str, prefix: str) -> tuple[str, str, str] | None:
    """Return class, check and action of a *reason* of nodevet, or None."""
    classes = "|".join(_CLASS_WORD.values())
    actions = "|".join(action.value for action in Action)
    found = re.fullmatch(rf"{re.escape(prefix)}: ({classes}) ([^\s:]+): .+ \[({actions})\]", reason)
    return None if found is None else (found[1], found[2], found[3])


def _plain(text: str) -> str:
    """Return *text* in printable ASCII on one line, without special characters of scontrol, a shell or the reason."""
    kept = "".join(letter if letter.isascii() and letter.isprintable() else " " for letter in text)
    return " ".join(re.sub(r"[\"'`;\\\[\]@|=]", " ", kept).split())
