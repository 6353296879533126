"""Keeps simulated and real nodes apart: no directory ever serves both.

A simulated node marks its directories with a file that names it. A real agent refuses a marked directory; a simulated
one refuses a directory that holds anything of another node, real or simulated.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nodevet.agent.config.settings import AgentSettings
from nodevet.checks.core.errors import StoreError
from nodevet.checks.system.files import replace_file

if TYPE_CHECKING:
    from .node import SimulatedNode

MARKER_NAME = "simulated-node"
"""No name of a folder that lies in those directories: simulated nodes have theirs in `simulated` by default."""

NAMELESS = "(its mark is empty)"
"""Stands for the name in a mark that says none: a crash of the machine, or of an earlier version, cut it."""

FAILING = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EUCLEAN, errno.EBADMSG, errno.EREMOTEIO}
    | {errno.EHOSTDOWN, errno.ESHUTDOWN}
)
"""What is read of a broken disk, a damaged file system, or a server that is gone."""

LEFT_BEHIND = ("nodevet.db", "state", "episodes.json", "node.lock", "control.socket", "claims", "gate.log")
"""What a real agent, or a prolog that ran before the first, leaves in its directories."""


class FailingDiskError(StoreError):
    """The disk or server of a directory gives no answer: whose it is cannot be told, nor can anything be kept there."""


def refuse_simulated(*directories: Path) -> None:
    """Raise StoreError where one of *directories* belongs to a simulated node.

    A disk that fails is no reason to leave a node unwatched: its store is told and tried again like any other.
    """
    for directory in directories:
        try:
            owner = simulated_owner(directory)
        except FailingDiskError:
            continue
        if owner is not None:
            raise StoreError(
                f"{directory}: belongs to the simulated node {owner}: name another directory for the real node, "
                f"or remove this one"
            )


def keep_apart(agent: AgentSettings, simulated: SimulatedNode | None) -> None:
    """Refuse directories of the other sort, and mark those of a *simulated* node. Raises StoreError."""
    directories = (Path(agent.state_dir), Path(agent.runtime_dir))
    if simulated is None:
        refuse_simulated(*directories)
    else:
        claim(directories, simulated.identity)


def claim(directories: Iterable[Path], identity: str) -> None:
    """Mark *directories* as those of the simulated node *identity*, and make them where they are missing.

    Raises StoreError where one holds something of a real node or of another simulated one, or cannot be written.
    """
    everything = tuple(directories)
    for directory in everything:
        owner = simulated_owner(directory)
        if owner not in (None, NAMELESS, identity):
            raise StoreError(
                f"{directory}: belongs to the simulated node {owner}, this is {identity}: "
                f"name another with --state-dir and --runtime-dir, or remove it"
            )
        left = next((name for name in LEFT_BEHIND if (directory / name).exists()), None)
        if owner is None and left is not None:
            raise StoreError(
                f"{directory}: holds {left} of a real node, which a simulated one must not touch: "
                f"name another with --state-dir and --runtime-dir"
            )
    for directory in everything:
        try:
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{directory}: cannot be written by uid {os.geteuid()} ({error.strerror}): name another directory"
            ) from error
        if simulated_owner(directory) != identity:
            replace_file(directory / MARKER_NAME, f"{identity}\n".encode())


def simulated_owner(directory: Path) -> str | None:
    """Return which simulated node *directory* belongs to, or None. Raises StoreError where its mark is unreadable.

    A mark without a name is still one: what lies there is of no real node, and any simulated one may go on with it.
    """
    try:
        return (directory / MARKER_NAME).read_text(encoding="utf-8", errors="replace").strip("\0 \n") or NAMELESS
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        kind = FailingDiskError if error.errno in FAILING else StoreError
        raise kind(f"{directory / MARKER_NAME}: cannot be read ({error.strerror}): look whose it is") from error
