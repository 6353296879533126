"""Reads and writes nodes of SLURM with scontrol, a child process that may hang, fail or never end.

Every call has a deadline, its own process group and bounded output. A child that ignores SIGTERM is killed. If it
cannot be killed, it is remembered, and no other is started until it has ended.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from nodevet.checks.core.errors import NodevetError
from nodevet.checks.system.process import RunError, RunFailure, Runner

from .rules import NodeState, ScontrolOutputError, Why, parse_node, parse_nodes, parse_size, parse_started

SEARCHED = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/opt/slurm/bin:/usr/local/slurm/bin"
"""Search path for programs, and the only PATH of scontrol."""

MAXIMUM_BYTES = 16 << 20
"""A node is about 1 KiB; larger output is an error."""

GRACE_SECONDS = 0.3
"""Time from SIGTERM to SIGKILL, and after SIGKILL (s); longer than elsewhere, as SLURM's file system may be slow."""

STARTED_BY = ("/bin/sh", "-c", 'exec "$0" "$@"')
"""The shell that starts scontrol: SLURM often is on a file server, and starting a program from there blocks the
parent for hours if the server does not answer. A local shell starts at once and can be killed at the deadline.
"""

NOT_STARTED = (126, 127)
"""Exit codes of a shell that could not start a program (126) or did not find it (127)."""

_NOT_STARTED = re.compile(r"(exec: )?(line )?[01]: ")
"""Prefix of the shell's own error message; the line number is that of ``exec``, not of a script of the site."""

Parsed = TypeVar("Parsed")

_DENIALS = ("invalid user id", "permission denied", "access denied")


class SlurmError(NodevetError):
    """SLURM could not be read or written: ``why`` as a code, and the message for people."""

    def __init__(self, why: Why, message: str) -> None:
        """Store *why* and the message with cause and next step."""
        super().__init__(message)
        self.why = why


class Scontrol:
    """scontrol of one cluster. Used by one thread; another thread may call ``give_up``."""

    def __init__(self, program: str = "scontrol", *, configuration: str = "", timeout_seconds: float = 5.0) -> None:
        """Use *program* (a path, or a name to search for), the slurm.conf *configuration*, and a deadline per call."""
        self._program = program
        self._timeout_seconds = timeout_seconds
        # TZ=UTC0: printed times do not depend on the time zone of this machine.
        # Only root sees nodes of hidden partitions without --all, and these nodes count too.
        # FederationParameters=fed_display would list all clusters of a federation and distort the shares.
        self._environment = {"PATH": SEARCHED, "LC_ALL": "C", "TZ": "UTC0", "SCONTROL_ALL": "1", "SCONTROL_LOCAL": "1"}
        if configuration:
            self._environment["SLURM_CONF"] = configuration
        self._given_up = Event()
        self._runner = Runner(
            grace_seconds=GRACE_SECONDS,
            left_behind_seconds=math.inf,
            maximum_bytes=MAXIMUM_BYTES,
            is_wanted=lambda: not self._given_up.is_set(),
        )

    def read(self, name: str) -> NodeState:
        """Return node *name*. Raises SlurmError."""
        return self._shown(lambda text: parse_node(text, name), "node", name)

    def read_all(self) -> tuple[NodeState, ...]:
        """Return every node of the cluster. Raises SlurmError."""
        return self._shown(parse_nodes, "nodes")

    def show(self, *words: str) -> str:
        """Return the output of ``scontrol show`` with *words*, such as ``config``. Raises SlurmError."""
        words = ("show", *words)
        text = self._run(words, Why.READ_FAILED, Why.READ_TIMEOUT)
        if not text.strip():
            raise SlurmError(Why.READ_EMPTY, f"scontrol {' '.join(words)}: printed nothing")
        if not text.endswith("\n"):
            # The missing rest may contain closed nodes.
            raise SlurmError(Why.READ_UNPARSABLE, f"scontrol {' '.join(words)}: its last line is cut off")
        return text

    def size(self) -> int:
        """Return the approximate number of nodes, at a fraction of the cost of reading them. Raises SlurmError."""
        return self._shown(parse_size, "partitions")

    def started(self) -> str:
        """Return the start time of slurmctld, as printed by SLURM. Raises SlurmError."""
        return self._shown(parse_started, "config")

    def drain(self, name: str, reason: str, field: str = "", text: str = "") -> None:
        """Drain node *name* with *reason*, and write *text* into its *field* in the same step. Raises SlurmError."""
        self._tell(name, "State=DRAIN", f"Reason={reason}", *_set(field, text))

    def mark(self, name: str, field: str, text: str) -> None:
        """Write *text* into *field* of node *name*: ``Comment``, ``Extra``, or both. Raises SlurmError."""
        self._tell(name, *_set(field, text))

    def update(self, name: str, reason: str) -> None:
        """Give a drained node *name* another *reason*; a node resumed meanwhile stays so. Raises SlurmError."""
        self._tell(name, f"Reason={reason}")

    def give_up(self) -> None:
        """Stop the running call and refuse all others."""
        self._given_up.set()

    def _shown(self, parse: Callable[[str], Parsed], *words: str) -> Parsed:
        text = self.show(*words)
        try:
            return parse(text)
        except ScontrolOutputError as error:
            raise SlurmError(
                Why.READ_UNPARSABLE, f"scontrol show {' '.join(words)}: not understood: {error}"
            ) from error

    def _tell(self, name: str, *words: str) -> None:
        self._run(("update", f"NodeName={name}", *words), Why.WRITE_FAILED, Why.WRITE_TIMEOUT)

    def _run(self, words: tuple[str, ...], failed: Why, late: Why) -> str:
        """Run scontrol with *words* and return its output; errors carry *failed*, or *late* after the deadline."""
        named = f"scontrol {' '.join(words[:3])}"
        if self._given_up.is_set():
            raise SlurmError(Why.STUCK, f"{named}: not started, because the agent stops")
        try:
            done = self._runner.run([*STARTED_BY, self._program, *words], self._timeout_seconds, self._environment)
        except RunError as error:
            raise self._unfinished(named, error, failed, late) from error
        except OSError as error:
            raise SlurmError(Why.NO_COMMAND, f"{STARTED_BY[0]}: cannot be started: {error.strerror}") from error
        status, output = done.exit.status, done.output.decode("utf-8", "replace")
        said = done.errors.decode("utf-8", "replace").strip() or output.strip()
        if status in NOT_STARTED and _NOT_STARTED.match(said.removeprefix(f"{self._program}: ")):
            raise _not_started(self._program, status)
        if status != 0:
            raise _refused(named, status, said, failed)
        return output

    def _unfinished(self, named: str, error: RunError, failed: Why, late: Why) -> SlurmError:
        """Return the error for a call without an answer."""
        match error.failure:
            case RunFailure.STUCK:
                return SlurmError(
                    Why.STUCK, f"{named}: not started: the previous scontrol (pid {error.pid}) cannot be killed"
                )
            case RunFailure.UNWANTED:
                return SlurmError(late, f"{named}: aborted, because the agent stops")
            case RunFailure.LATE:
                seconds = f"{self._timeout_seconds:g} s"
                asks = "check slurmctld, the network and the disk of scontrol"
                return SlurmError(late, f"{named}: no answer within {seconds}: {asks}")
            case _:
                return SlurmError(failed, f"{named}: {error}")


def _set(field: str, text: str) -> list[str]:
    """Return the arguments of scontrol that write *text* into *field*: no name, one, or two separated by a blank."""
    return [f"{name}={text}" for name in field.split()]


def _not_started(program: str, status: int) -> SlurmError:
    if status == NOT_STARTED[-1]:
        return SlurmError(Why.NO_COMMAND, f"{program}: no such program: set slurm.scontrol to its path")
    return SlurmError(Why.NO_COMMAND, f"{program}: cannot be started: check its permissions and its first line")


def _refused(named: str, status: int, said: str, failed: Why) -> SlurmError:
    text = " ".join(said.split())[:200] or f"status {status}"
    if any(denial in text.lower() for denial in _DENIALS):
        return SlurmError(
            Why.DENIED,
            f"{named}: {text}: uid {os.geteuid()} needs the rights of an operator: run the agent as root or SlurmUser,"
            " or give its user AdminLevel=Operator with sacctmgr",
        )
    return SlurmError(failed, f"{named}: {text}")
