"""Rules for writes into SLURM: pure functions over the state that was read.

A person outranks the machine. A reason that is not ours, and an empty one, are never touched; what could not be read is
never written; and a node that a person resumed is not drained again for what was known at that moment. nodevet never
resumes a node: that is a person's decision, and the acknowledgement of what was wrong with it. A restart is no person.
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
"""Characters: sinfo and dashboards cut longer ones, and the action stands at the end."""

PREFIX = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
"""What a site may write in front of its reasons and marks, as a pattern."""

PROLOG_ERROR = "Prolog error"
"""SLURM's own reason for a node on which a prolog failed."""

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

# The further lines of a reason are ten spaces in: no field of SLURM's is.
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
    """What to do next."""

    NOTHING = "nothing"
    DRAIN = "drain"
    CLOSE = "close"
    UPDATE = "update"
    ACKNOWLEDGE = "acknowledge"


class StateWord(msgspec.Struct, frozen=True):
    """A word of a node's state and what it means for a writer: serves, drained, maintenance, power, reboot, down."""

    word: str
    meaning: str
    source: str


class NodeState(msgspec.Struct, frozen=True):
    """A node as SLURM shows it: the words of its state, and its reason with who gave it and when (Unix seconds).

    ``slurmd_started`` is SLURM's own text for when its slurmd was started, None where SLURM does not know; ``resumes``
    its text for when it will resume the node by itself, None where nobody set a time. ``host`` is the host name of its
    machine as SLURM knows it.
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
        """Return whether no new job starts on it."""
        return "DRAIN" in self.states


class Sight(msgspec.Struct, frozen=True):
    """Under which boot, slurmd and slurmctld a node was seen; the latter two as SLURM writes their start.

    ``ends`` is what makes SLURM itself end the drain that was seen, in words; empty where only a person does.
    """

    boot_id: str
    slurmd: str | None
    slurmctld: str | None
    ends: str = ""

    def changed(self, now: Sight) -> str:
        """Return what besides a person may have ended a drain between the two, in words; empty where nothing did."""
        if self.ends:
            return self.ends
        if self.boot_id != now.boot_id:
            return "a reboot"
        if self.slurmctld is None or self.slurmctld != now.slurmctld:
            return "a restart of slurmctld"
        return "a restart of slurmd" if self.slurmd is None or self.slurmd != now.slurmd else ""

    def after(self, before: Sight | None) -> Sight:
        """Return this sight with the start of slurmd from that *before*, where slurmctld does not know it yet.

        A slurmctld that was started anew asks each slurmd at a later ping: one that then says the same start has run
        all the while.
        """
        if self.slurmd is not None or before is None or before.boot_id != self.boot_id:
            return self
        return msgspec.structs.replace(self, slurmd=before.slurmd)

    def waits(self, node: NodeState) -> bool:
        """Return whether it is not known yet if slurmd was started anew since: nothing else was, and *node* serves."""
        serves = not node.drained and obstacle(node.states) in (None, Why.MAINTENANCE)
        return serves and node.slurmd_started is None and self.slurmd is not None and not self.ends


class WriterMemory(msgspec.Struct, frozen=True):
    """What must outlive the agent.

    ``drained`` is the reason of the node when it was last seen drained, by anybody, ``sight`` when that was, and
    ``known`` the faults of that moment; ``resumed`` are those that a person has resumed the node with. ``returned``
    says after what the node was back in service without a person's word. ``permit`` is the boot in which SLURM was
    last seen to show our permit, ``marked`` whether a mark of ours may stand there, ``nodes`` how many nodes there are.
    Until ``clears`` a write that takes a mark back, and got no answer, may still take effect.
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
        """Return this memory with the faults of devices that have another id now under that; *names* are by the old."""
        known, resumed = (tuple(_renamed(entry, names) for entry in group) for group in (self.known, self.resumed))
        return msgspec.structs.replace(self, known=known, resumed=resumed)

    @property
    def rests(self) -> bool:
        """Return whether nothing is to be followed up."""
        return self == WriterMemory(nodes=self.nodes, clears=self.clears)


class Decision(msgspec.Struct, frozen=True):
    """The next step, the reason to write, why a drain that is due is not written, and what to remember."""

    step: Step
    memory: WriterMemory
    reason: str = ""
    why: Why | None = None


def parse_nodes(text: str) -> tuple[NodeState, ...]:
    """Return the nodes that ``scontrol show node`` printed, one paragraph each. Raises ScontrolOutputError.

    The text form is the one that every release has: JSON is missing in 22.05 and changed its shape twice since.
    """
    blocks = re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE)
    if blocks[0].strip():
        raise ScontrolOutputError(f"expected NodeName= at its beginning, found {blocks[0].strip()[:60]!r}")
    if len(blocks) == 1:
        raise ScontrolOutputError("no node is in it")
    return tuple(_parsed(block) for block in _joined(blocks[1:]))


def parse_node(text: str, name: str) -> NodeState:
    """Return the one node *name* that ``scontrol show node NAME`` printed. Raises ScontrolOutputError."""
    found = parse_nodes(text)
    if [node.name for node in found] != [name]:
        raise ScontrolOutputError(f"expected node {name} alone, found {', '.join(node.name for node in found)[:60]}")
    return found[0]


def parse_size(text: str) -> int:
    """Return about how many nodes a cluster has, from the output of ``scontrol show partitions``.

    Raises ScontrolOutputError.

    A node in several partitions counts once, as far as they name theirs: on a sum of many partitions that share their
    nodes an agent would wait for hours.
    """
    if _SIZE.search(text) is None:
        raise ScontrolOutputError("no partition says TotalNodes=")
    blocks = re.split(r"^(?=PartitionName=)", text, flags=re.MULTILINE)
    found = ((_NODES.search(block), _SIZE.search(block)) for block in blocks)
    return how_many((nodes[1] if nodes else "", int(size[1]) if size else 0) for nodes, size in found)


def parse_started(text: str) -> str:
    """Return when slurmctld was started, in its own words, from ``scontrol show config``. Raises ScontrolOutputError.

    A backup that answers is told apart, and its time is none: it may have stood by for days and taken over just now.
    """
    found = _STARTED.search(text)
    if found is None:
        raise ScontrolOutputError("no BOOT_TIME is in it")
    return f"{found[1]} (a backup)" if _PRIMARY_IS_DOWN.search(text) else found[1]


def seconds_of(text: str) -> float | None:
    """Return the Unix seconds of a time that scontrol printed under TZ=UTC0, or None where it is no time."""
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
    """Return what to do about *node*, as it was just read, for *faults*, which are hard and close the gate.

    *memory* is what the last decision left; reasons of ours begin with *prefix*; *sight* is under which boot and which
    daemons of SLURM it was read, *now* when; *drains* says whether one of the faults may drain. Of *episodes*, all that
    are not cleared, those that a person has resumed the node with are remembered, and for a while those that are gone.
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
        # Nothing of ours resumes a node: it was a person, unless something was started anew.
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
    # Behind a semicolon stands what to do, in brackets what the kernel wrote: both are for other surfaces.
    detail = _plain(re.split(r";| \[", worst.finding.message)[0]) or worst.key.code
    return head + detail[: LONGEST_REASON - len(head) - len(tail)].rstrip() + tail


def is_machine(node: NodeState, host: str) -> bool:
    """Return whether *node* may be the machine that calls itself *host*: SLURM has no other host name for it."""
    return not node.host or not host or _label(node.host) == _label(host)


def machine_of(nodes: Iterable[NodeState], host: str) -> str:
    """Return which of *nodes* has the host name *host*; empty where none has it, as with ``slurmd -N``."""
    return next((node.name for node in nodes if host and _label(node.host) == _label(host)), "")


def _label(host: str) -> str:
    return host.split(".", 1)[0].lower()


def is_ours(reason: str, prefix: str) -> bool:
    """Return whether *reason* is one that ``reason_text`` could have written; what a person added makes it theirs."""
    return _meaning(reason, prefix) is not None


def is_nodevets(reason: str) -> bool:
    """Return whether an agent of any prefix could have written *reason*: the limits are those of a whole cluster."""
    prefix, _, _ = reason.partition(":")
    return _PREFIX.fullmatch(prefix) is not None and is_ours(reason, prefix)


@lru_cache(maxsize=1)
def _words() -> dict[str, str]:
    return {row.word: row.meaning for row in load_table("slurm_states.csv", StateWord)}


def _joined(blocks: list[str]) -> list[str]:
    """Return *blocks*, each of a node: a line of a person's comment may begin like a node, and costs that node alone.

    An answer ends with an empty line. One that does not is cut off, and its end is a node that nobody may leave out.
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
    # A reason of several lines is signed on its first.
    line = _line(_REASON, block)
    signed = _SIGNED.fullmatch(line)
    if signed is None:
        return msgspec.structs.replace(bare, reason=line)
    reason, seconds = (signed["reason"] or "").strip(), seconds_of(signed["when"])
    # Of SLURM itself, and signed by SlurmUser: the drain stays the one that it was until somebody resumes the node.
    plain = without_additions(reason)
    if plain != reason:
        return msgspec.structs.replace(bare, reason=plain, reason_seconds=seconds)
    return msgspec.structs.replace(bare, reason=reason, reason_user=signed["user"], reason_seconds=seconds)


def _line(form: re.Pattern[str], block: str) -> str:
    found = form.search(block)
    return found[1].strip() if found else ""


def _time(form: re.Pattern[str], block: str) -> str | None:
    """Return the time that *form* finds, in the words of SLURM, or None where it knows none."""
    found = form.search(block)
    return found[1] if found and found[1] not in ("None", "Unknown") else None


def _state_words(text: str) -> frozenset[str]:
    words = set()
    for part in text.upper().split("+"):
        plain = part.rstrip("".join(_MARKS))
        words |= {plain, *(_MARKS[mark] for mark in part[len(plain) :])}
    return frozenset(words - {""})


def _meanings(states: frozenset[str]) -> frozenset[str]:
    """Return what *states* mean to a writer; a word that nobody knows is ``unknown``, and so is none."""
    return frozenset(_words().get(word, "unknown") for word in states) or frozenset({"unknown"})


def obstacle(states: frozenset[str]) -> Why | None:
    """Return why a node in *states* is left alone, the gravest first; a word that nobody knows is one."""
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
    "reboot": "a reboot that was asked for",
    "power": "a change of its power",
    "unknown": "a state that nodevet does not know",
}


def _ends_itself(node: NodeState) -> str:
    """Return what may make SLURM end the drain of *node* without a person's resume; empty where nothing does.

    ``scontrol reboot ASAP`` drains a node until it is booted or the reboot is cancelled; a power down does alike.
    """
    if node.resumes is not None:
        return "the time that was set for its return (ResumeAfter)"
    meanings = _meanings(node.states)
    return next((words for meaning, words in _ENDS.items() if meaning in meanings), "")


def answered(episodes: Iterable[Episode]) -> tuple[Episode, ...]:
    """Return the hard faults of *episodes* that a person acknowledged, and that who resumes the node knows.

    A term says by itself how long they are known, until it is over.
    """
    return tuple(
        entry
        for entry in episodes
        if (entry.state, entry.outcome) == (EpisodeState.ACKNOWLEDGED, Outcome.FAIL)
        and (entry.until is None or entry.expired is not None)
        and entry.finding.hard
    )


def _held(told: tuple[KnownFault, ...], before: tuple[KnownFault, ...], until: Instant) -> tuple[KnownFault, ...]:
    """Return *before* with those *told*, whose returns are the same fault *until* then; what was known stays so."""
    news = {(known.key, known.serial, known.measured): known.action.rank for known in told}
    return (
        *(old for old in before if old.action.rank > news.get((old.key, old.serial, old.measured), -1)),
        *(msgspec.structs.replace(known, until=until) for known in told),
    )


def _known_then(
    known: tuple[KnownFault, ...], present: tuple[Episode, ...], alive: tuple[Episode, ...]
) -> tuple[KnownFault, ...]:
    """Return what who resumed a node knew of what was *known* when it was seen drained last, and is *present* yet.

    What is not *alive* any more was there then: its end while the node was drained would have had that seen once more.
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
    """Return class, check and action of a *reason* of ours, or None."""
    classes = "|".join(_CLASS_WORD.values())
    actions = "|".join(action.value for action in Action)
    found = re.fullmatch(rf"{re.escape(prefix)}: ({classes}) ([^\s:]+): .+ \[({actions})\]", reason)
    return None if found is None else (found[1], found[2], found[3])


def _plain(text: str) -> str:
    """Return *text* in printable ASCII on one line, without what scontrol, a shell or a form could take for its own."""
    kept = "".join(letter if letter.isascii() and letter.isprintable() else " " for letter in text)
    return " ".join(re.sub(r"[\"'`;\\\[\]@|=]", " ", kept).split())
