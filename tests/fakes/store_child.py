"""Saves rounds into a store until it is killed: ``python -m fakes.store_child PATH ROUNDS [LIMIT_BYTES ...]``.

Each round writes its number into an episode and into the memory, then prints it. With LIMIT_BYTES the rounds run once
per limit, each in a forked child and on ``PATH.LIMIT``: the kernel kills the child at its first write beyond that
offset of any file, which is a death in the middle of a chosen write.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

from fakes.episodes import episode, moment

from nodevet.agent.storage.store import open_store


def save(path: Path, rounds: int, output: int) -> None:
    """Save *rounds* rounds into *path*, telling each number to the descriptor *output* once it is saved."""
    store = open_store(path).store
    os.write(output, b"0\n")
    for number in range(1, rounds + 1):
        episodes = [episode(device=f"GPU-{index}", count=number) for index in range(3)]
        store.save_round(episodes, {"round": str(number).encode(), "other": b"x" * 900}, time=moment(number))
        os.write(output, f"{number}\n".encode())


def save_until_killed(path: Path, rounds: int, limit_bytes: int) -> None:
    """Fork a child that saves until a write passes *limit_bytes*; its output lies in ``PATH.LIMIT.told``."""
    place = path.with_name(f"{path.name}.{limit_bytes}")
    child = os.fork()
    if child == 0:
        try:
            output = os.open(f"{place}.told", os.O_WRONLY | os.O_CREAT, 0o600)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
            save(place, rounds, output)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if status not in (0, signal.SIGXFSZ):
        raise SystemExit(f"the child of limit {limit_bytes} neither finished nor died at its limit: {status}")


def main() -> None:
    """Run what the command line says."""
    path, rounds, limits = Path(sys.argv[1]), int(sys.argv[2]), [int(text) for text in sys.argv[3:]]
    if not limits:
        save(path, rounds, sys.stdout.fileno())
    for limit_bytes in limits:
        save_until_killed(path, rounds, limit_bytes)


if __name__ == "__main__":
    main()
