"""Nodes of a real SLURM with the real writer, state file and prolog, whose faults a test makes; no reader, no engine.

A thread per node does what the agent's loop does: it submits the snapshot, takes what somebody acknowledged, and writes
the state file after each change.
"""

from __future__ import annotations

import selectors
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from fakes.slurm_cluster import SlurmCluster
from fakes.slurm_gate import Gate
from fakes.snapshots import at, failed_node, gpu_node

from nodevet.agent.config.settings import SlurmSettings
from nodevet.agent.slurm.reactor import Reactor
from nodevet.checks.core.model import Action, Episode, EpisodeState, Key, Mode, Modes, Snapshot
from nodevet.checks.core.scheduler import WriterStatus
from nodevet.exporters.metrics.prometheus import MetricsPage
from nodevet.exporters.statefile.reader import boot_id, uptime_seconds
from nodevet.exporters.statefile.writer import write_state

__all__ = ["BY_NODE", "ReactorNode"]

BY_NODE = """#!/bin/sh
exec {folder}/$SLURMD_NODENAME/slurm/{script}
"""
"""Nodes that share a machine share the path of their prolog; each has scripts and a runtime directory of its own."""

TICK_SECONDS = 0.05
HEALTHY, FAILED = gpu_node(), failed_node()


class ReactorNode:
    """The agent's half at node *name* of *slurm*, over the runtime directory of *gate*."""

    def __init__(self, gate: Gate, slurm: SlurmCluster, name: str, settings: SlurmSettings) -> None:
        """Begin healthy."""
        self.name = name
        self.gate = gate
        self.mode = Mode.DRAIN
        self._slurm = slurm
        self._settings = msgspec.structs.replace(settings, conf=str(slurm.configuration), node_name=name)
        self._episodes: tuple[Episode, ...] = ()
        self._lock = threading.Lock()
        self.start()

    def start(self) -> None:
        """Start the agent's half anew, with what the runtime directory remembers."""
        self._selector = selectors.DefaultSelector()
        self._reactor = Reactor(
            self._settings,
            self.name,
            self._selector,
            runtime=self.gate.runtime,
            memory=None,
            boot_id=boot_id(),
            told=self._take,
        )
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; the state file stays."""
        self._ended = True
        self._thread.join(5.0)
        assert self._reactor.close(5.0)
        self._selector.close()

    def fail(self, code: str, *, action: Action = Action.REBOOT, count: int = 1) -> None:
        """Let the node have the hard fault *code* besides those that it has, or let it have occurred so often."""
        with self._lock:
            same = next((entry for entry in self._episodes if entry.key.code == code), None)
            (model,) = FAILED.episodes
            finding = msgspec.structs.replace(model.finding, code=code, action=action)
            opened = msgspec.structs.replace(at(), boottime_ns=time.monotonic_ns())
            new = same or msgspec.structs.replace(model, key=Key(code, model.key.device, model.key.part), opened=opened)
            new = msgspec.structs.replace(new, finding=finding, count=count)
            self._episodes = (*(entry for entry in self._episodes if entry is not same), new)

    def reopen(self) -> None:
        """Let every fault be open again, as a fold would make it that forgot the acknowledgement."""
        with self._lock:
            self._episodes = tuple(msgspec.structs.replace(entry, state=EpisodeState.OPEN) for entry in self._episodes)

    def heal(self) -> None:
        """Let the node have no fault."""
        with self._lock:
            self._episodes = ()

    @property
    def status(self) -> WriterStatus:
        """Return how its writer is doing."""
        return self._reactor.status

    @property
    def acknowledged(self) -> list[str]:
        """Return the codes that somebody's resume has acknowledged."""
        return [entry.key.code for entry in self._episodes if entry.state is EpisodeState.ACKNOWLEDGED]

    def decisions(self) -> list[str]:
        """Return what its prologs decided, in order."""
        return [line.split(" ")[0] for line in self.gate.lines()]

    def page(self) -> str:
        """Return its page of metrics, as it is scraped now."""
        return MetricsPage().render(self._snapshot()).decode()

    def _snapshot(self) -> Snapshot:
        with self._lock:
            episodes = self._episodes
        due = tuple(entry.key for entry in episodes if entry.state is EpisodeState.OPEN)
        base = FAILED if due else HEALTHY
        status = self._reactor.status
        now = msgspec.structs.replace(at(), boot_id=boot_id(), boottime_ns=int(uptime_seconds() * 1e9))
        verdict = msgspec.structs.replace(base.verdict, episodes=due)
        return msgspec.structs.replace(
            base,
            time=now,
            node=self.name,
            verdict=verdict,
            device_verdicts=dict.fromkeys(base.device_verdicts, verdict) if due else base.device_verdicts,
            episodes=episodes,
            modes=Modes(self.mode),
            agent=msgspec.structs.replace(base.agent, slurm=status, permit=status.permit),
        )

    def _run(self) -> None:
        last: tuple[Any, ...] = ()
        written = 0.0
        while not self._ended:
            for key, mask in self._selector.select(TICK_SECONDS):
                key.data(mask)
            snapshot = self._snapshot()
            self._reactor.judged(snapshot)
            facts = (snapshot.episodes, snapshot.agent)
            if facts != last or time.monotonic() > written + 5.0:
                write_state(Path(self.gate.state), snapshot, ttl_seconds=60)
                last, written = facts, time.monotonic()

    def _take(self) -> None:
        told = self._reactor.take()
        with self._lock:
            self._episodes = tuple(
                msgspec.structs.replace(entry, state=EpisodeState.ACKNOWLEDGED)
                if any(one.known.covers(entry) for one in told)
                else entry
                for entry in self._episodes
            )
