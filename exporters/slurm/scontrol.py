"""Asking SLURM about a node, and telling it: scontrol as a child process that may hang, fail or never end.

Every call has a deadline, a process group of its own and bounded output. A child that ignores SIGTERM is killed, and
one that cannot even be killed is left alone and remembered: until it is gone no other is started.
"""

from __future__ import annotations

import math
import os
import re
from threading import Event

from nodevet.checks.core.errors import NodevetError
from nodevet.checks.system.process import RunError, RunFailure, Runner

from .rules import NodeState, ScontrolOutputError, Why, parse_node, parse_nodes, parse_size, parse_started

SEARCHED = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/opt/slurm/bin:/usr/local/slurm/bin"
"""Where programs are looked for, and the only PATH that scontrol gets."""

MAXIMUM_BYTES = 16 << 20
"""A node is about 1 KiB; more than this is no answer."""

GRACE_SECONDS = 0.3
"""Between SIGTERM and SIGKILL, and after it: longer than elsewhere, as what SLURM lies on may be slow."""

STARTED_BY = ("/bin/sh", "-c", 'exec "$0" "$@"')
"""How scontrol is started: SLURM often lies on a server, and whoever starts a program waits until it has begun, for
hours where that server does not answer. A shell begins at once, and its time can be bounded."""

NOT_STARTED = (126, 127)
"""With these a shell ends that could not start a program, or did not find it."""

_NOT_STARTED = re.compile(r"(exec: )?(line )?[01]: ")
"""What a shell says before it names the trouble: the line is that of ``exec``, not one of a script of the site."""

_DENIALS = ("invalid user id", "permission denied", "access denied")


class SlurmError(NodevetError):
    """SLURM was not asked or told what it should have been: ``why`` in one word, and the message for people."""

    def __init__(self, why: Why, message: str) -> None:
        """Say *why* and, for people, what happened and what to do."""
        super().__init__(message)
        self.why = why


class Scontrol:
    """scontrol of one cluster. Used by one thread; ``give_up`` may come from another."""

    def __init__(self, program: str = "scontrol", *, configuration: str = "", timeout_seconds: float = 5.0) -> None:
        """Use *program* (a path, or a name that is looked for), the slurm.conf *configuration*, and a deadline."""
        self._program = program
        self._timeout_seconds = timeout_seconds
        # Times are read as what they are, whatever the zone of this machine.
        # Nodes of hidden partitions are shown to others than root only with --all, and they count like any.
        # A site's FederationParameters=fed_display would list every cluster of a federation, and a share of that many.
        self._environment = {
            "PATH": SEARCHED,
            "LC_ALL": "C",
            "TZ": "UTC0",
            "SCONTROL_ALL": "1",
            "SCONTROL_LOCAL": "1",
        }
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
        text = self._ask("show", "node", name)
        try:
            return parse_node(text, name)
        except ScontrolOutputError as error:
            raise SlurmError(Why.READ_UNPARSABLE, f"scontrol show node {name}: not understood: {error}") from error

    def read_all(self) -> tuple[NodeState, ...]:
        """Return every node of the cluster. Raises SlurmError."""
        text = self._ask("show", "nodes")
        try:
            return parse_nodes(text)
        except ScontrolOutputError as error:
            raise SlurmError(Why.READ_UNPARSABLE, f"scontrol show nodes: not understood: {error}") from error

    def show(self, *words: str) -> str:
        """Return what ``scontrol show`` prints of *words*, such as ``config``. Raises SlurmError."""
        return self._ask("show", *words)

    def size(self) -> int:
        """Return about how many nodes there are, at a fraction of the cost of reading them. Raises SlurmError."""
        text = self._ask("show", "partitions")
        try:
            return parse_size(text)
        except ScontrolOutputError as error:
            raise SlurmError(Why.READ_UNPARSABLE, f"scontrol show partitions: not understood: {error}") from error

    def started(self) -> str:
        """Return when slurmctld was started, in its own words. Raises SlurmError."""
        text = self._ask("show", "config")
        try:
            return parse_started(text)
        except ScontrolOutputError as error:
            raise SlurmError(Why.READ_UNPARSABLE, f"scontrol show config: not understood: {error}") from error

    def drain(self, name: str, reason: str, field: str = "", text: str = "") -> None:
        """Drain node *name* with *reason*, and write *text* into its *field* in the same step. Raises SlurmError."""
        self._tell(name, "State=DRAIN", f"Reason={reason}", *_set(field, text))

    def mark(self, name: str, field: str, text: str) -> None:
        """Write *text* into *field* of node *name*: ``Comment``, ``Extra``, or both. Raises SlurmError."""
        self._tell(name, *_set(field, text))

    def update(self, name: str, reason: str) -> None:
        """Give a drained node *name* another *reason*; one that was resumed meanwhile stays so. Raises SlurmError."""
        self._tell(name, f"Reason={reason}")

    def give_up(self) -> None:
        """End the call that runs and refuse all others."""
        self._given_up.set()

    def _ask(self, *words: str) -> str:
        text = self._run(words, Why.READ_FAILED, Why.READ_TIMEOUT)
        if not text.strip():
            raise SlurmError(Why.READ_EMPTY, f"scontrol {' '.join(words)}: printed nothing")
        if not text.endswith("\n"):
            # What is missing behind it may be nodes that are closed.
            raise SlurmError(Why.READ_UNPARSABLE, f"scontrol {' '.join(words)}: its last line is cut off")
        return text

    def _tell(self, name: str, *words: str) -> None:
        self._run(("update", f"NodeName={name}", *words), Why.WRITE_FAILED, Why.WRITE_TIMEOUT)

    def _run(self, words: tuple[str, ...], failed: Why, late: Why) -> str:
        """Run scontrol with *words* and return its output; *failed* and *late* are what its errors are called."""
        named = f"scontrol {' '.join(words[:3])}"
        if self._given_up.is_set():
            raise SlurmError(Why.STUCK, f"{named}: not started, the agent stops")
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
        """Return what became of a call that gave no answer."""
        match error.failure:
            case RunFailure.STUCK:
                return SlurmError(
                    Why.STUCK, f"{named}: not started: scontrol of before (pid {error.pid}) cannot be killed"
                )
            case RunFailure.UNWANTED:
                return SlurmError(late, f"{named}: given up, the agent stops")
            case RunFailure.LATE:
                seconds = f"{self._timeout_seconds:g} s"
                asks = "is slurmctld reachable, and the disk of scontrol?"
                return SlurmError(late, f"{named}: no answer within {seconds}: {asks}")
            case _:
                return SlurmError(failed, f"{named}: {error}")


def _set(field: str, text: str) -> list[str]:
    """Return what scontrol is told to write *text* into *field*, which names none, one, or both with a blank."""
    return [f"{name}={text}" for name in field.split()]


def _not_started(program: str, status: int) -> SlurmError:
    if status == NOT_STARTED[-1]:
        return SlurmError(Why.NO_COMMAND, f"{program}: no such program: set slurm.scontrol to its path")
    return SlurmError(Why.NO_COMMAND, f"{program}: cannot be started: look at its rights and its first line")


def _refused(named: str, status: int, said: str, failed: Why) -> SlurmError:
    text = " ".join(said.split())[:200] or f"status {status}"
    if any(denial in text.lower() for denial in _DENIALS):
        return SlurmError(
            Why.DENIED,
            f"{named}: {text}: uid {os.geteuid()} needs the rights of an operator: run the agent as root or SlurmUser,"
            " or give its user AdminLevel=Operator with sacctmgr",
        )
    return SlurmError(failed, f"{named}: {text}")
