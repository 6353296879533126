"""Saves rounds into a store until it is killed: ``python -m fakes.store_child [MODE] PATH ROUNDS [LIMIT_BYTES ...]``.

With ``--prune`` each round is a count and an acknowledgement, and old counts are dropped. With ``--tend`` the database
at PATH is copied, opened, looked through and pruned, once.

Each round writes its number into an episode and into the memory, then prints it. With LIMIT_BYTES the rounds run once
per limit, each in a forked child and on ``PATH.LIMIT``: the kernel kills the child at its first write beyond that
offset of any file, which is a death in the middle of a chosen write.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from fakes.episodes import episode, moment

from nodevet.agent.store.opening import open_store
from nodevet.agent.store.tending import Tender
from nodevet.checks.core.model import EpisodeState


def save(path: Path, rounds: int, output: int) -> None:
    """Save *rounds* rounds into *path*, telling each number to the descriptor *output* once it is saved."""
    store = open_store(path).store
    os.write(output, b"0\n")
    for number in range(1, rounds + 1):
        episodes = [episode(device=f"GPU-{index}", count=number) for index in range(3)]
        store.save_round(episodes, {"round": str(number).encode(), "other": b"x" * 900}, time=moment(number))
        os.write(output, f"{number}\n".encode())


def save_and_prune(path: Path, rounds: int, output: int) -> None:
    """Save *rounds* rounds of a count and a change, and drop old counts beside them."""
    store = open_store(path).store
    os.write(output, b"0\n")
    for number in range(1, rounds + 1):
        noted = episode(device="GPU-9", state=EpisodeState.ACKNOWLEDGED, note=str(number), count=number)
        now = moment(number * 4000.0)
        store.save_round([episode(count=number), noted], {"round": str(number).encode()}, time=now)
        if number % 5 == 0:
            store.prune(now.wall_seconds, rollup_days=1, count_days=0.1, size_limit_bytes=1 << 30)
        os.write(output, f"{number}\n".encode())


def tend(path: Path, _rounds: int, output: int) -> None:
    """Take over the database at *path*, look through it and prune it."""
    store = open_store(path).store
    tender = Tender(store)
    while not tender.done:
        tender.step()
    store.prune(moment(0).wall_seconds + 1e9, rollup_days=1, count_days=1, size_limit_bytes=1 << 30)
    store.close()
    os.write(output, b"1\n")


MODES = {"--prune": save_and_prune, "--tend": tend}


def save_until_killed(path: Path, rounds: int, limit_bytes: int, work: Callable[[Path, int, int], None]) -> None:
    """Fork a child that saves until a write passes *limit_bytes*; its output lies in ``PATH.LIMIT.told``."""
    place = path.with_name(f"{path.name}.{limit_bytes}")
    child = os.fork()
    if child == 0:
        try:
            output = os.open(f"{place}.told", os.O_WRONLY | os.O_CREAT, 0o600)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
            work(place, rounds, output)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if status not in (0, signal.SIGXFSZ):
        raise SystemExit(f"the child of limit {limit_bytes} neither finished nor died at its limit: {status}")


def main() -> None:
    """Run what the command line says."""
    words = sys.argv[1:]
    work = MODES[words.pop(0)] if words[0] in MODES else save
    path, rounds, limits = Path(words[0]), int(words[1]), [int(text) for text in words[2:]]
    if not limits:
        work(path, rounds, sys.stdout.fileno())
    for limit_bytes in limits:
        if work is tend:
            shutil.copy(path, path.with_name(f"{path.name}.{limit_bytes}"))
        save_until_killed(path, rounds, limit_bytes, work)


if __name__ == "__main__":
    main()
