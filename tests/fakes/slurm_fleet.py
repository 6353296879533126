"""A model of a cluster: thousands of real writers on one simulated controller, in simulated time.

Calls take time in both directions, answers get lost, writes take effect long after the caller gave up, clocks are
skewed and agents are killed between two calls. Every drain that takes effect is held against both limits.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate, isgenerator
from random import Random
from typing import Any, cast

import msgspec
from fakes.snapshots import failed_node, gpu_node

from nodevet.agent.config.settings import SlurmSettings
from nodevet.agent.slurm.calls import Call, Slurm
from nodevet.agent.slurm.writer import Pass, Writer
from nodevet.checks.core.model import Mode, Modes, Snapshot
from nodevet.exporters.slurm.rules import NodeState, Why, WriterMemory
from nodevet.exporters.slurm.scontrol import SlurmError

__all__ = ["Fleet", "Trouble"]

TIMEOUT_SECONDS = 5.0
RESTART_SECONDS = 15.0
EPOCH = 1_800_000_000.0
SETTINGS = SlurmSettings(writer="drain")
FAILED = failed_node()
IDLE, DRAINED = frozenset({"IDLE"}), frozenset({"IDLE", "DRAIN"})


class Trouble(msgspec.Struct, frozen=True):
    """How bad the way to the controller is.

    A call takes up to ``delay_seconds``; of ``lost_ratio`` of them the answer never comes, and half of those writes
    take effect within ``late_seconds``, the other half never. Clocks are up to ``skew_seconds`` off on either side.
    Between ``away_from`` and ``away_until`` the controller does not run.
    """

    delay_seconds: float = 0.1
    skew_seconds: float = 0.0
    lost_ratio: float = 0.0
    late_seconds: float = 0.0
    away_from: float = 0.0
    away_until: float = 0.0


class Fleet:
    """*size* nodes that all fail within *over_seconds*; ``run`` it and look at what it counted."""

    def __init__(
        self,
        size: int,
        trouble: Trouble,
        *,
        seed: int,
        partitions: int = 1,
        over_seconds: float = 0.0,
        restarts: float = 0.0,
        stale_seconds: float = 0.0,
        mode: Mode = Mode.DRAIN,
        fresh: bool = False,
        replaced_within_seconds: float = 0.0,
        drained_until: float | None = None,
    ) -> None:
        """Share the nodes among *partitions*; agents are killed in *restarts* of their passes; faults reach to *mode*.

        With *stale_seconds* the controller shows other nodes as they were so long ago, which no real one does. Agents
        that are *fresh* know nothing of the cluster. Where *replaced_within_seconds* is given, SLURM puts a reason of
        its own in the place of each of ours within so long. With *drained_until* persons have drained all nodes, which
        are healthy until then, and fail at that moment.
        """
        self.now = 0.0
        self.passed: list[str] = []
        self.closed: dict[str, float] = {}
        self.calls: Counter[int] = Counter()
        self.sizes: Counter[int] = Counter()
        self._trouble = trouble
        self._restarts = restarts
        self._stale_seconds = stale_seconds
        self._replaced_within_seconds = replaced_within_seconds
        self._failed = msgspec.structs.replace(FAILED, modes=Modes(mode))
        self._snapshot = self._failed if drained_until is None else gpu_node()
        self._planned: dict[str, float] = {}
        self._seen: dict[str, Snapshot] = {}
        self._random = Random(seed)  # noqa: S311 (a model that can be repeated)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._nodes = {
            f"n{place}": NodeState(f"n{place}", IDLE, partitions=(f"p{place % partitions}",), slurmd_started="s")
            for place in range(size)
        }
        if drained_until is not None:
            foreign = {"states": DRAINED, "reason": "ops: maintenance", "reason_user": "alice", "reason_seconds": EPOCH}
            self._nodes = {name: msgspec.structs.replace(node, **foreign) for name, node in self._nodes.items()}
            self._at(drained_until, self._fail)
        self._views = [(0.0, tuple(self._nodes.values()))]
        self._scopes = {"": size} | Counter(node.partitions[0] for node in self._nodes.values())
        self._memory = dict.fromkeys(self._nodes, WriterMemory(nodes=0 if fresh else size))
        self._writers: dict[str, Writer] = {}
        for name in self._nodes:
            self._start(name)
            self._plan(name, self._random.uniform(0.0, over_seconds))

    @property
    def most_calls_per_second(self) -> int:
        """Return the most calls that reached the controller within one second, but for those that ask its size."""
        return max(self.calls.values(), default=0)

    @property
    def seen_drained_with_a_fault(self) -> int:
        """Return how many agents saw their node drained while it had a fault: a resume is a person's word there."""
        return sum(bool(memory.known) for memory in self._memory.values())

    def run(self, *, seconds: float) -> None:
        """Let so much time go by."""
        while self._events and self._events[0][0] <= seconds:
            self.now, _, happens = heapq.heappop(self._events)
            happens()

    # Agents.

    def _start(self, name: str) -> None:
        skew = self._random.uniform(-self._trouble.skew_seconds, self._trouble.skew_seconds)
        self._writers[name] = Writer(
            cast(Slurm, _Nothing()),
            SETTINGS,
            name,
            wall_seconds=lambda: EPOCH + self.now + skew,
            monotonic=lambda: self.now,
            random=self._random.random,
            boot_id="boot-1",
            memory=self._memory[name],
            user="root",
        )

    def _fail(self) -> None:
        """Let all agents see the fault now: who is not amid a pass begins one, as with every change."""
        self._snapshot = self._failed
        for name in self._planned:
            self._plan(name, self.now)

    def _plan(self, name: str, when: float) -> None:
        self._planned[name] = when
        self._at(when, lambda: self._begin(name) if self._planned.get(name) == when else None)

    def _begin(self, name: str) -> None:
        del self._planned[name]
        self._seen[name] = self._snapshot
        work = self._writers[name].steps(self._snapshot)
        self._go_on(name, work, lambda: next(work))

    def _go_on(self, name: str, work: Generator[Call, Any, Pass], resume: Callable[[], Call]) -> None:
        try:
            call = resume()
        except StopIteration as done:
            made: Pass = done.value
            self._memory[name] = made.memory
            again = made.again_seconds if self._seen[name] is self._snapshot else 0.0
            self._plan(name, self.now + max(again, 0.01))
            return
        self._send(name, work, call)
        if self._random.random() < self._restarts / 5:
            work.close()
            self._start(name)
            self._plan(name, self.now + RESTART_SECONDS)

    def _send(self, name: str, work: Generator[Call, Any, Pass], call: Call) -> None:
        """Let *call* reach the controller, and its answer or a time-out the agent."""
        (self.sizes if call.name == "size" else self.calls)[int(self.now)] += 1
        trouble, chance = self._trouble, self._random
        there = chance.uniform(0.005, max(trouble.delay_seconds, 0.01))
        back = chance.uniform(0.005, max(trouble.delay_seconds / 4, 0.01))
        is_lost = chance.random() < trouble.lost_ratio
        if is_lost:
            there = chance.uniform(0.0, trouble.late_seconds) if chance.random() < 0.5 else float("inf")
        if trouble.away_from <= self.now + min(there, TIMEOUT_SECONDS) < trouble.away_until:
            is_lost, there = True, float("inf")
        answered = not is_lost and there + back < TIMEOUT_SECONDS

        def arrives() -> None:
            answer = self._apply(call)
            if answered:
                self._at(self.now + back, lambda: self._resume(name, work, answer))

        if there < float("inf"):
            self._at(self.now + there, arrives)
        if not answered:
            why = Why.READ_TIMEOUT if call.name.startswith(("read", "size", "started")) else Why.WRITE_TIMEOUT
            late = SlurmError(why, f"scontrol {call.name}: no answer within 5 s")
            self._at(self.now + TIMEOUT_SECONDS, lambda: self._resume(name, work, late))

    def _resume(self, name: str, work: Generator[Call, Any, Pass], answer: object) -> None:
        if isgenerator(work) and getgeneratorstate(work) == GEN_CLOSED:
            return  # its agent was killed
        self._go_on(name, work, lambda: work.throw(answer) if isinstance(answer, SlurmError) else work.send(answer))

    # The controller.

    def _apply(self, call: Call) -> object:
        match call:
            case Call("read", (name,)):
                return self._nodes[name]
            case Call("read_all", ()):
                return self._view()
            case Call("size", ()):
                return len(self._nodes)
            case Call("started", ()):
                return "2026-11-20T07:00:00"
            case Call("drain", (name, reason, field, text)):
                self._change(name, states=DRAINED, reason=reason, reason_user="root", reason_seconds=EPOCH + self.now)
                self._change(name, **dict.fromkeys(field.lower().split(), text))
                if self._replaced_within_seconds:
                    after = self.now + self._random.uniform(0.0, self._replaced_within_seconds)
                    self._at(after, partial(self._change, name, reason="Kill task failed"))
                self.closed.setdefault(name, self.now)
                self._hold_against_limits(name)
            case Call("mark", (name, field, text)):
                self._change(name, **dict.fromkeys(field.lower().split(), text))
                if _is_closed(self._nodes[name]):
                    self.closed.setdefault(name, self.now)
                    self._hold_against_limits(name)
            case _:
                raise AssertionError(call)
        return None

    def _change(self, name: str, **changes: object) -> None:
        self._nodes[name] = msgspec.structs.replace(self._nodes[name], **changes)
        self._views.append((self.now, ()))

    def _view(self) -> tuple[NodeState, ...]:
        if not self._views[-1][1]:
            self._views[-1] = (self.now, tuple(self._nodes.values()))
        if not self._stale_seconds:
            del self._views[:-1]
            return self._views[-1][1]
        old = next((view for when, view in self._views if view and when >= self.now - self._stale_seconds), ())
        seen = {node.name: node for node in old or self._views[-1][1]}
        return tuple(node if node.comment and not node.drained else seen[node.name] for node in self._own(seen))

    def _own(self, seen: dict[str, NodeState]) -> list[NodeState]:
        return [self._nodes[name] for name in seen]

    def _hold_against_limits(self, name: str) -> None:
        for partition, size in self._scopes.items():
            members = [node for node in self._nodes.values() if partition in ("", *node.partitions)]
            standing = [node.name for node in members if _is_closed(node)]
            new = [entry for entry in standing if self.closed[entry] > self.now - 3600.0]
            if len(standing) > max(1, int(0.10 * size)) or len(new) > max(2, int(0.01 * size)):
                self.passed.append(
                    f"{self.now:.1f} s: {name} in {partition or 'cluster'}: {len(standing)} standing, {len(new)} new"
                )

    def _at(self, when: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), happens))


def _is_closed(node: NodeState) -> bool:
    """Return whether jobs are kept off *node* by nodevet: drained, or with a gate that may close."""
    return node.drained or "gate closed" in node.comment


class _Nothing:
    """The model answers each call itself."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)
