"""One pass of the SLURM writer: read the node, decide by the rules, request a permit, write, and read again.

The writer holds the memory that must outlive the agent, and counts its writes. A pass is a generator of calls to SLURM,
so that the model of a large cluster runs the same code as the agent. Clocks are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import msgspec

from nodevet.agent.config.settings import SlurmSettings
from nodevet.checks.core.model import Episode, Instant, Mode, Modes, Snapshot
from nodevet.checks.core.scheduler import Permit, WriterStatus
from nodevet.checks.engine.modes import draining, gating, named
from nodevet.exporters.slurm.known import not_resumed
from nodevet.exporters.slurm.permit import (
    CLOCK_SECONDS,
    LATE_SECONDS,
    Limits,
    Mark,
    Room,
    as_signed,
    asking_text,
    closing_text,
    dated,
    drained_text,
    forgotten_words,
    free_field,
    lacks_mark,
    mark_again,
    mark_of,
    permits,
    rooms,
    shows_permit,
)
from nodevet.exporters.slurm.rules import (
    PROLOG_ERROR,
    Decision,
    NodeState,
    ScontrolOutputError,
    Sight,
    Step,
    Why,
    WriterMemory,
    answered,
    decide,
    is_machine,
    is_ours,
    machine_of,
    obstacle,
    seconds_of,
)
from nodevet.exporters.slurm.scontrol import SlurmError

from .acknowledged import RESUMER, Acknowledged, told
from .calls import Call, Slurm, Work
from .first import LOCAL, first_status
from .memory import clears_until
from .turn import WORTH_WAITING_SECONDS, Turn, first_looks_seconds
from .words import WORDS, returned_words

SOON_SECONDS = 1.0
"""Time (s) until the next reading of a node that changed just before its drain."""

HOLD_SECONDS = 2.0
"""Mean interval (s) between readings of all nodes while other nodes request a permit too."""

MOST_HOLDS = 10
"""Maximum number of these readings before the node removes its mark."""

BY_SOMEBODY = f"resumed by {RESUMER}"


class Pass(msgspec.Struct, frozen=True):
    """The result of a pass: status and memory of the writer, acknowledgements, and the time until the next pass (s)."""

    status: WriterStatus
    memory: WriterMemory
    acknowledged: tuple[Acknowledged, ...]
    again_seconds: float


class Writer:
    """Drains one node for hard faults, by the rules. Used by one thread."""

    def __init__(
        self,
        slurm: Slurm,
        settings: SlurmSettings,
        node: str,
        *,
        wall_seconds: Callable[[], float],
        monotonic: Callable[[], float],
        random: Callable[[], float],
        boot_id: str,
        memory: WriterMemory,
        user: str | None = None,
        host: str = "",
    ) -> None:
        """Write for *node*, named as in SLURM, and continue with *memory*.

        *random* returns 0 to 1; SLURM signs our reasons with *user*, which may be set later; *host* is the host name.
        """
        self._slurm = slurm
        self._settings = settings
        self._limits = Limits(settings.maximum_drained_ratio, settings.maximum_new_ratio, settings.minimum_new)
        self._wall_seconds = wall_seconds
        self._monotonic = monotonic
        self._random = random
        self._boot_id = boot_id
        self._memory = memory
        self._given = memory.resumed
        self.user = user
        self._host = host
        self._machine: str | None = None
        self._note = BY_SOMEBODY
        self._said: tuple[Episode, ...] = ()
        self._turn = Turn(random=random, monotonic=monotonic, poll_seconds=settings.poll_seconds)
        self._clear_settles_at = clears_until(self._memory, self._boot_id)
        self._drain_settles_at = self._mark_settles_at = 0.0
        self._holds, self._slurmctld, self._slurmctld_seen_at, self._took_over = 0, "", 0.0, False
        self._asks = self._unseen = self._marked_again = self._stands = self._keeps_marks = False
        self.status = first_status(settings, node, memory, boot_id)

    def due(self, snapshot: Snapshot) -> tuple[Episode, ...]:
        """Return the faults of *snapshot* that close the gate; none before the first round is complete."""
        return gating(snapshot) if snapshot.agent.ready and not snapshot.agent.stopping else ()

    def step(self, snapshot: Snapshot, *, hurries: bool = False) -> Pass:
        """Run one pass for *snapshot*; see ``steps``."""
        work = self.steps(snapshot, hurries=hurries)
        try:
            call = next(work)
            while True:
                try:
                    answer = getattr(self._slurm, call.name)(*call.words)
                except SlurmError as error:
                    call = work.throw(error)
                else:
                    call = work.send(answer)
        except StopIteration as done:
            made: Pass = done.value
            return made

    def steps(self, snapshot: Snapshot, *, hurries: bool = False) -> Generator[Call, Any, Pass]:
        """Run one pass for *snapshot*: yield each call to SLURM, and receive its answer or a thrown SlurmError.

        With *hurries*, a job has just found the gate closed or has come to a node that was last seen drained. The node
        is then read at once: a job at a drained node means that somebody resumed it. Nothing else hurries, so that
        neither requeued jobs nor a wrong rule make all nodes of a large cluster query SLURM together.
        """
        present = {device.id for device in snapshot.devices}
        names = {old: new for old, new in snapshot.names.items() if old not in present}
        self._memory = self._memory.renamed(names) if names else self._memory
        faults = self.due(snapshot)
        self._said = answered(snapshot.episodes)
        closed = self.status.drained or self.status.closed
        wait = self._turn.wait(frozenset(named(faults)), self._memory.nodes, closed=closed)
        if wait > 0 and not hurries:
            asking = bool(faults) and not closed and wait <= WORTH_WAITING_SECONDS
            self.status = msgspec.structs.replace(self.status, asking=asking, considered=named(faults))
            return self._done(faults, wait)
        before = self.status
        self.status = msgspec.structs.replace(
            before, wanted="", doing="", trouble="", limit_reached=False, asking=False, unanswered=False,
            considered=named(faults),
        )  # fmt: skip
        again = self._settings.poll_seconds
        self._asks = False
        is_over = any(word.expired for word in self._said)  # somebody may drain the node to examine the fault
        if faults or is_over or not self._memory.rests or before.drained or before.last_read_seconds is None:
            try:
                again = yield from self._look(snapshot, faults)
            except SlurmError as error:
                again = self._unanswered(error, faults)
            else:
                if self._asks:
                    self._turn.keep()
        self._turn.looks_in(again)
        return self._done(faults, again)

    def _done(self, faults: tuple[Episode, ...], again_seconds: float) -> Pass:
        if self._acts:
            return Pass(self.status, self._memory, self._acknowledged(faults), again_seconds)
        # This writer drained nothing, so no resume answers it: a later writer that acts must not count one.
        given = tuple(known for known in self._memory.resumed if known in self._given)
        return Pass(self.status, msgspec.structs.replace(self._memory, resumed=given), (), again_seconds)

    @property
    def _acts(self) -> bool:
        """Return whether the decisions reach jobs, so that a resume is a person's answer to them."""
        return self._settings.writer == "drain" or self._settings.permit == "local"

    def _unanswered(self, error: SlurmError, faults: tuple[Episode, ...]) -> float:
        """Record that SLURM gave no answer; an existing permit stays. Return the time until the next attempt (s)."""
        self._say(f"no answer from SLURM: {error}", trouble=str(error))
        if not faults:
            return self._settings.poll_seconds
        self._skip(error.why)
        if not self.status.permit.held:
            permit = Permit(why=f"SLURM did not answer: {error}")
            self._say(self.status.doing, permit=permit, unanswered=True)
            return self._again()
        # Nodes that request a permit after a cold start rely on this interval of closed nodes, which are few.
        return self._settings.poll_seconds  # for those that ask

    def behind_gate(self) -> float:
        """Return the delay (s) of a reading after a job found the gate closed; nodes with a permit are few."""
        return self._turn.behind_gate(self._memory.nodes) if self._settings.permit == "local" else 0.0

    def _again(self) -> float:
        """Return the time until the next request (s): short while a mark of this node takes others' room, or may."""
        most, least = self._mark_settles_at - self._monotonic(), self._settings.poll_seconds
        return least if self._stands else self._turn.again(self._memory.nodes, least, most=most)

    # Reading and decision.

    def _look(self, snapshot: Snapshot, faults: tuple[Episode, ...]) -> Work:
        """Read the node and act on the decision; return the time until the next reading (s)."""
        name = self.status.node
        if not self._memory.nodes:
            self._remember(nodes=(yield Call("size")))
            wait = self._turn.sized(self._memory.nodes)
            if wait is not None:
                return wait
        begun = (yield Call("started")) if self._awaits_drain(snapshot, faults) else None
        node = as_signed((yield Call("read", (name,))), self.user)
        concerns = faults or self._said or not self._memory.rests or mark_of(node) is not None
        if (concerns or is_ours(node.reason, self._settings.reason_prefix)) and (yield from self._is_elsewhere(node)):
            return self._settings.poll_seconds
        before = self._memory
        sight = Sight(self._boot_id, None, None)
        if before.drained is not None or (node.drained and (faults or answered(snapshot.episodes))):
            started = begun or (yield Call("started"))
            if begun is None and (before.sight is None or before.sight.slurmctld != started):
                # The answer may be from a slurmctld that was shutting down: only the state in the new one counts.
                node = as_signed((yield Call("read", (name,))), self.user)
            sight = Sight(self._boot_id, node.slurmd_started, started).after(before.sight)
            if before.sight is not None and before.sight.waits(node) and not before.sight.changed(sight):
                raise SlurmError(Why.READ_EMPTY, f"{name}: slurmctld does not know yet when its slurmd was started")
        # Only after the last answer: a half-finished reading that shows the node in service would close its gate.
        self._saw(node)
        prefix = self._settings.reason_prefix
        now = Instant(self._boot_id, round(self._monotonic() * 1e9), self._wall_seconds())
        decision = decide(
            faults,
            node,
            before,
            prefix,
            sight=sight,
            now=now,
            drains=bool(draining(snapshot)),
            episodes=snapshot.episodes,
        )
        self._memory = decision.memory
        shown = (yield from self._mark_again(node)) if self._lacks_mark(node, before) else node
        self._judge_permit(faults, shown)
        match decision.step:
            case Step.ACKNOWLEDGE:
                return self._acknowledge(before.drained or "")
            case Step.NOTHING if not self._due(faults):
                return (yield from self._withdraw(node))
            case Step.NOTHING if decision.why is not None:
                self._skip(decision.why)
                if node.reason == PROLOG_ERROR:
                    self._say("does not drain: SLURM drained the node after a failed prolog; see gate.log")
                mark = mark_of(node)
                if mark is not None and not (mark.holds and shows_permit(node, prefix)):
                    # The request is in vain, or a person took over the node: after their resume no permit may be left.
                    yield from self._withdraw(node)
            case Step.CLOSE if self.status.permit.held:
                self._say("the gate is closed; no fault of this node may drain it")
                yield from self._copy_mark(node)
            case Step.DRAIN | Step.CLOSE | Step.UPDATE if self._settings.writer == "drain":
                return (yield from self._write(node, decision, snapshot.modes))
            case Step.DRAIN | Step.CLOSE | Step.UPDATE:
                self._say(f"would {decision.step.value} with the reason: {decision.reason}", wanted=decision.reason)
        return self._settings.poll_seconds

    def _awaits_drain(self, snapshot: Snapshot, faults: tuple[Episode, ...]) -> bool:
        """Return whether the node may appear drained with faults for the first time: this reading judges no resume."""
        drains = (self._unseen and bool(draining(snapshot))) or (self.status.drained and bool(faults))
        return drains and self._memory.drained is None

    def _is_elsewhere(self, node: NodeState) -> Generator[Call, Any, bool]:
        """Return whether *node* is another machine, as when one file with a node_name was copied to every node.

        All of them would hold the permit that SLURM shows at that node, beyond every limit.
        """
        if is_machine(node, self._host):
            return False
        if self._machine is None:
            self._machine = machine_of((yield Call("read_all")), self._host)
        if not self._machine:
            return False  # a node name in SLURM may differ from the host name
        self._skip(Why.OTHER_NODE)
        words = f"in SLURM, node {node.name} is the host {node.host}, and this machine is node {self._machine}"
        self._remember(permit="")
        local = self._settings.permit == "local"
        permit = self.status.permit if local else Permit(why=f"{words}: correct slurm.node_name")
        self._say(f"does not write: {words}: correct slurm.node_name", permit=permit)
        return True

    def _due(self, faults: tuple[Episode, ...]) -> tuple[Episode, ...]:
        """Return those of *faults* that no resume covers."""
        return not_resumed(faults, self._memory.resumed)

    def _judge_permit(self, faults: tuple[Episode, ...], node: NodeState) -> None:
        """Hold the permit while SLURM shows it at *node* and there is a fault that no resume covers."""
        due = self._due(faults)
        if self._settings.permit == "local":
            permit = Permit(bool(due) or not faults, LOCAL)
        elif self._settings.writer == "drain":
            held = bool(due) and shows_permit(node, self._settings.reason_prefix)
            self._remember(permit=self._boot_id if held else "")
            permit = Permit(True, "SLURM shows that nodevet closed this node", node.name) if held else Permit()
        else:
            permit = self.status.permit
        self.status = msgspec.structs.replace(self.status, permit=permit, returned=self._returned(due))

    def _returned(self, due: tuple[Episode, ...]) -> str:
        """Return the message for a node back in service without a known resume by a person; empty if that is not so."""
        return returned_words(self.status.node, self._memory.returned, due) if self._memory.returned and due else ""

    def _acknowledge(self, reason: str) -> float:
        ours = is_ours(reason, self._settings.reason_prefix)
        self._note = f"{BY_SOMEBODY}, drained before with: {reason}" if ours else BY_SOMEBODY
        follows = "are" if self._acts else "would be"
        self._say(
            f"somebody resumed the node in SLURM: the faults known at that moment {follows} acknowledged",
            acknowledged=self.status.acknowledged + 1,
        )
        return 0.0

    # Writing.

    def _write(self, node: NodeState, decision: Decision, modes: Modes) -> Work:
        """Write *decision* if it is permitted; return the time until the next reading (s)."""
        name, reason = self.status.node, decision.reason
        self._say(f"about to {decision.step.value} with the reason: {reason}", wanted=reason)
        if self._unseen:
            # SLURM accepted a drain and has never shown it.
            self._unseen = False
            self._remember(returned="a drain that SLURM accepted and never showed")
            self._skip(Why.UNVERIFIED)
            return self._again()
        if decision.step is Step.UPDATE:
            again = as_signed((yield Call("read", (name,))), self.user)
            if (again.drained, again.reason) != (node.drained, node.reason):
                self._skip(Why.CHANGED)
                return SOON_SECONDS
            yield Call("update", (name, dated(reason, again)))
            self._wrote(decision.step, reason)
            return SOON_SECONDS
        if self._settings.permit == "local":
            if decision.step is Step.DRAIN:
                yield Call("drain", (name, reason))
                self._wrote(decision.step, reason)
                self._unseen = True
            return 0.0 if self._unseen else self._settings.poll_seconds
        self._keeps_marks = Mode.GATE in (modes.site, *modes.checks.values())
        settles_in = yield from self._controller_settles_in()
        if settles_in > 0:
            return self._wait_for_controller(settles_in)
        return (yield from self._ask(node, decision))

    def _wait_for_controller(self, seconds: float) -> float:
        self._skip(Why.UNSETTLED)
        self._say("does not request a permit yet: slurmctld was restarted and may have lost the marks of closed gates")
        return min(seconds, self._settings.poll_seconds)

    def _controller_settles_in(self) -> Work:
        """Return the time (s) for which a restarted slurmctld may not know the closed gates yet.

        A cold start loses the marks of gates that are closed without a drain; an older saved state loses the later
        ones. The agents of these nodes notice at their next reading, give up the permit and request it again; until
        then, their gates stay closed.
        """
        if not self._keeps_marks:
            return 0.0  # a node whose drain is lost asks its agent before it closes
        started = yield Call("started")
        now = self._monotonic()
        if started != self._slurmctld:
            self._took_over = bool(self._slurmctld)  # a backup controller that takes over was started long ago
            self._slurmctld, self._slurmctld_seen_at = started, now
        first_looks = first_looks_seconds(self._memory.nodes)
        needs = 2 * self._settings.poll_seconds + self._settings.timeout_seconds + first_looks
        seconds = seconds_of(started)
        is_young = seconds is None or abs(self._wall_seconds() - seconds) <= needs + CLOCK_SECONDS
        if not (is_young or self._took_over):
            return 0.0
        return max(self._slurmctld_seen_at + needs - now, 0.0)

    def _ask(self, node: NodeState, decision: Decision) -> Work:
        """Mark the node, read all nodes, and close the node if there is room; return when to read again (s)."""
        settles_in = self._clear_settles_at - self._monotonic()
        if settles_in > 0:
            self._skip(Why.UNSETTLED)
            return settles_in
        if self._mark(node) is None:
            old = mark_of(node)
            field = free_field(node) if old is None else old.field
            if field is None:
                self._skip(Why.FOREIGN_COMMENT)
                return self._again()
            wait = self._turn.left
            if wait > 0:
                self._say(self.status.doing, asking=wait <= WORTH_WAITING_SECONDS)
                return wait
            found = self._rooms((yield Call("read_all")))
            if not permits(found):
                self._refuse(found)
                yield from self._withdraw(node)
                return self._again()
            self._remember(marked=True)
            self._mark_settles_at = self._monotonic() + LATE_SECONDS
            yield Call("mark", (node.name, field, asking_text(*self._signature())))
            self._holds, self._stands, self._mark_settles_at = 0, True, 0.0
        nodes: tuple[NodeState, ...] = yield Call("read_all")
        found = self._rooms(nodes)
        own = next(entry for entry in nodes if entry.name == node.name)
        mark = self._mark(own)
        self._asks = self._stands = mark is not None
        if mark is None or own.drained or own.reason != node.reason or obstacle(own.states) is not None:
            self._skip(Why.UNVERIFIED if mark is None else Why.CHANGED)
            return SOON_SECONDS if mark else self._again()
        if mark.holds or permits(found):
            settles_in = yield from self._controller_settles_in()
            if settles_in > 0:
                return self._wait_for_controller(settles_in)
            return (yield from self._close(mark, decision))
        ahead = self._rooms(nodes, before=(mark.seconds, node.name))
        return (yield from self._give_way(own, found, waits=permits(ahead)))

    def _mark(self, node: NodeState) -> Mark | None:
        """Return our mark at *node*; None if it is so old that other nodes may not count it."""
        mark = mark_of(node)
        return mark if mark is not None and mark.stands(self._wall_seconds()) else None

    def _signature(self) -> tuple[str, float, int]:
        return self._settings.reason_prefix, self._wall_seconds(), int(self._random() * 0xFFFFFFFF)

    def _close(self, mark: Mark, decision: Decision) -> Work:
        """Drain the node, or close its gate, with the permit that it now has."""
        name = self.status.node
        try:
            if decision.step is Step.DRAIN:
                yield Call("drain", (name, decision.reason, mark.field, drained_text(*self._signature())))
            else:
                yield Call("mark", (name, mark.field, closing_text(*self._signature())))
        except SlurmError:
            self._drain_settles_at = self._monotonic() + LATE_SECONDS
            raise
        self._wrote(decision.step, decision.reason)
        self._unseen = True
        self._say(self.status.doing, asking=True)
        return 0.0

    def _give_way(self, node: NodeState, found: tuple[Room, ...], *, waits: bool) -> Work:
        """Wait with the mark while other nodes request too, or remove it if those that come first leave no room."""
        self._holds += 1
        if waits and self._holds <= MOST_HOLDS:
            self._skip(Why.CONTENDED)
            self._say(self.status.doing, asking=True)
            return HOLD_SECONDS * (0.5 + self._random())
        self._refuse(found)
        yield from self._withdraw(node)
        return self._again()

    def _lacks_mark(self, node: NodeState, before: WriterMemory) -> bool:
        """Return whether the mark of our drain is to be written at *node*: once for each drain that this agent sees."""
        settings = self._settings
        if self._marked_again or settings.writer != "drain" or settings.permit == "local" or free_field(node) is None:
            return False
        return lacks_mark(node, settings.reason_prefix, self.user, permitted=before.permit == self._boot_id)

    def _mark_again(self, node: NodeState) -> Generator[Call, Any, NodeState]:
        """Write the mark of our drain at *node*; return the node as SLURM shows it then."""
        self._marked_again = True
        yield Call("mark", (node.name, free_field(node) or "", mark_again(node, *self._signature())))
        shown: NodeState = yield Call("read", (node.name,))
        return shown

    def _copy_mark(self, node: NodeState) -> Generator[Call, Any, None]:
        """Copy the mark of a closed gate into the other field, once: a site may put its own notes into either."""
        field = free_field(node)
        if field is None or self._marked_again or self._settings.permit == "local":
            return
        self._marked_again = True
        try:
            yield Call("mark", (node.name, field, node.comment or node.extra))
        except SlurmError:  # releases before 22.05 have one field; from others the write may still come
            self._drain_settles_at = self._monotonic() + LATE_SECONDS

    def _withdraw(self, node: NodeState) -> Work:
        """Remove our mark once no drain of ours can still take effect; return the time until the next reading (s)."""
        mark = mark_of(node)
        if mark is None or self._settings.writer != "drain":
            # Read until somebody removes the mark, or until no late mark of ours can appear.
            comes = self._settings.writer == "drain" and self._drain_settles_at > self._monotonic()
            self._remember(marked=mark is not None or comes)
            if clears_until(self._memory, self._boot_id) <= self._monotonic():
                self._remember(clears=None)
            return self._settings.poll_seconds
        self._remember(marked=True)
        if mark.closes and node.drained and shows_permit(node, self._settings.reason_prefix):
            return self._settings.poll_seconds  # closed by nodevet, also after the fault has ended, and so it counts
        settles_in = self._drain_settles_at - self._monotonic()
        if settles_in > 0:
            return min(settles_in, self._settings.poll_seconds)  # a person's changes are seen meanwhile
        settles_at = self._monotonic() + LATE_SECONDS
        # Remembered in case this agent is killed: the late write would empty the mark of the next agent.
        clears = Instant(self._boot_id, round(settles_at * 1e9), self._wall_seconds())
        if mark.drained and clears_until(self._memory, self._boot_id) <= self._monotonic():
            # The next agent waits for late writes at any other mark; this one may stand for days, hence the memory.
            self._remember(clears=clears)
            return 0.0
        try:
            yield Call("mark", (node.name, mark.field, ""))
        except SlurmError:
            self._clear_settles_at = settles_at
            self._remember(clears=clears)
            raise
        self._stands = False
        if mark.drained and self._clear_settles_at <= self._monotonic():
            self._remember(clears=None)
        return self._settings.poll_seconds

    # Counting and status.

    def _rooms(self, nodes: tuple[NodeState, ...], *, before: tuple[float, str] | None = None) -> tuple[Room, ...]:
        """Return the closed nodes besides this one among *nodes*. Raises SlurmError if this one is not among them."""
        name = self.status.node
        try:
            found = rooms(nodes, name, self._limits, wall_seconds=self._wall_seconds(), user=self.user, before=before)
        except ScontrolOutputError as error:
            raise SlurmError(Why.READ_UNPARSABLE, f"scontrol show nodes: {error}") from error
        self._remember(nodes=len(nodes))
        return found

    def _refuse(self, found: tuple[Room, ...]) -> float:
        """Record that the limit of closed nodes is reached; return the time until the next request (s)."""
        words = next(room.words for room in found if not room.permits)
        self._asks = False
        self._skip(Why.LIMIT)
        self._say(
            f"does not close the node: {words}: look for a common cause before raising a limit",
            limit_reached=True,
            permit=Permit(why=words),
        )
        return self._again()

    def _saw(self, node: NodeState) -> None:
        """Update the status, which every surface shows, from the node as SLURM shows it."""
        ours = is_ours(node.reason, self._settings.reason_prefix)
        first = self.status.last_read_seconds is None
        self.status = msgspec.structs.replace(
            self.status,
            trouble="" if self._settings.writer == "drain" else forgotten_words(node),
            states=tuple(sorted(node.states)),
            partitions=node.partitions,
            drained_by=("nodevet" if ours else "other") if node.drained else "",
            closed=shows_permit(node, self._settings.reason_prefix),
            last_read_seconds=self._wall_seconds(),
        )
        mark = mark_of(node)
        self._stands = mark is not None
        is_closed = node.drained or (mark is not None and mark.holds)
        self._marked_again = self._marked_again and is_closed
        if is_closed:
            self._unseen = False
        if first and mark is not None and not mark.drained:
            # A mark of an earlier agent, whose last write may still take effect.
            self._drain_settles_at = self._clear_settles_at = self._monotonic() + LATE_SECONDS
            self._remember(marked=True)

    # Results.

    def _acknowledged(self, faults: tuple[Episode, ...]) -> tuple[Acknowledged, ...]:
        """Return the resumed faults that still count; each pass reports them again until they do not."""
        now = Instant(self._boot_id, round(self._monotonic() * 1e9), self._wall_seconds())
        return tuple(told(self._memory.resumed, faults, self._said, self._note, now))

    def _remember(self, **changes: object) -> None:
        self._memory = msgspec.structs.replace(self._memory, **changes)

    def _wrote(self, step: Step, reason: str) -> None:
        writes = {**self.status.writes, step.value: self.status.writes[step.value] + 1}
        self._say(f"wrote: {reason}", writes=writes, wanted="")

    def _skip(self, why: Why) -> None:
        skipped = {**self.status.skipped, why.value: self.status.skipped[why.value] + 1}
        self._say(WORDS.get(why, self.status.doing), skipped=skipped)

    def _say(self, words: str, **changes: object) -> None:
        self.status = msgspec.structs.replace(self.status, doing=words, **changes)
