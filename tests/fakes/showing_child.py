"""Shows rounds and ends by SIGKILL at the showing of one: ``python -m fakes.showing_child DIR KILLS``.

Each kill is a forked child with the agent's own journal in ``DIR/KILL``. Its rounds open a finding, acknowledge it,
take a result of a load, and release the devices, in turn. What was shown lies in ``DIR/KILL/shown``: the number of the
round, and what was wrong with the store, if anything.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from pathlib import Path

import msgspec
from fakes.episodes import episode, moment
from fakes.snapshots import gpu_node

from nodevet.agent.config.load import load_configuration
from nodevet.agent.config.settings import Configuration
from nodevet.agent.daemon.showing import Showing
from nodevet.agent.store.journal import Journal
from nodevet.checks.core.clock import SystemClock
from nodevet.checks.core.model import Episode, EpisodeState, Metric, Result, ResultState, Snapshot
from nodevet.checks.engine.registry import installed

KINDS = ("opening", "acknowledgement", "result", "release")
ROUNDS = 6


def configuration(folder: Path) -> Configuration:
    """Return the configuration of an agent that keeps everything in *folder*, on a machine without a number."""
    settings = load_configuration(None, installed(), environment={})
    places = {"state_dir": str(folder / "state"), "runtime_dir": str(folder / "run"), "root": str(folder)}
    return msgspec.structs.replace(settings, agent=msgspec.structs.replace(settings.agent, **places))


def kind_of(number: int) -> str:
    """Return what the round *number* does."""
    return KINDS[number % len(KINDS)]


def changes(number: int) -> tuple[Episode, ...]:
    """Return the finding that the round *number* opens or acknowledges."""
    if kind_of(number) == "opening":
        return (episode(device=f"GPU-{number}", seen=number),)
    if kind_of(number) == "acknowledgement":
        return (episode(device="GPU-0", state=EpisodeState.ACKNOWLEDGED, note=str(number), seen=number),)
    return ()


def result(number: int) -> Result:
    """Return the result of a load that ended in the round *number*."""
    figures = (Metric("mismatches", float(number), "1"),)
    return Result(
        workload="gemm",
        devices=("GPU-0",),
        state=ResultState.FINISHED,
        started=moment(number),
        ended=moment(number),
        metrics=figures,
    )


class Shower:
    """Keeps rounds, shows them, and dies at the showing of one."""

    def __init__(self, folder: Path, last: int) -> None:
        """Die at the showing of round *last*."""
        self._last = last
        self._shown = 0
        self._told = os.open(folder / "shown", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._selector = selectors.DefaultSelector()
        self._journal = Journal(configuration(folder), SystemClock())

    def run(self) -> None:
        """Run all rounds."""
        journal = self._journal.__enter__()
        self._selector.register(journal.bell, selectors.EVENT_READ)
        showing = Showing(
            SystemClock(),
            self._show,
            keeping=journal.keeping,
            trouble=lambda: "; ".join(journal.troubles),
            mirrored=lambda _snapshot: True,
        )
        memory: dict[str, bytes] = {}
        for number in range(1, ROUNDS + 1):
            memory |= {"ledger": str(number).encode()}
            if kind_of(number) == "result":
                journal.keep_result(result(number))
            elif kind_of(number) == "release":
                memory["release"] = str(number).encode()
            ticket = journal.keep_round(changes(number), memory)
            showing.offer(msgspec.structs.replace(gpu_node(), generation=number), changes(number), ticket)
            while self._shown < number:
                self._selector.select(0.05)
                journal.answer()
                showing.tick()

    def _show(self, snapshot: Snapshot, _changes: tuple[Episode, ...]) -> None:
        self._shown = snapshot.generation
        os.write(self._told, f"{snapshot.generation} {snapshot.agent.store}\n".encode())
        if self._shown >= self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Kill as often as the command line says."""
    folder = Path(sys.argv[1])
    for number in range(int(sys.argv[2])):
        place = folder / str(number)
        place.mkdir()
        child = os.fork()
        if child == 0:
            try:
                Shower(place, 1 + number % ROUNDS).run()
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if status != signal.SIGKILL:
            raise SystemExit(f"child {number} was not killed: {status}")


if __name__ == "__main__":
    main()
