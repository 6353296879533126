"""Asking SLURM about a node, and telling it: scontrol as a child process that may hang, fail or never end.

Every call has a deadline, a process group of its own and bounded output. A child that ignores SIGTERM is killed, and
one that cannot even be killed is left alone and remembered: until it is gone no other is started.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from threading import Event

from nodevet.checks.core.errors import NodevetError

from .rules import NodeState, OutputError, Why, parse_node, parse_nodes, parse_size, parse_started

__all__ = ["SEARCHED", "Scontrol", "SlurmError"]

SEARCHED = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/opt/slurm/bin:/usr/local/slurm/bin"
"""Where programs are looked for, and the only PATH that scontrol gets."""

MAXIMUM_BYTES = 16 << 20
"""A node is about 1 KiB; more than this is no answer."""

TICK_SECONDS = 0.1
"""How soon a call sees that it was given up."""

GRACE_SECONDS = 0.3
"""Between SIGTERM and SIGKILL, and after it."""

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
        self._stuck: subprocess.Popen[bytes] | None = None

    def read(self, name: str) -> NodeState:
        """Return node *name*. Raises SlurmError."""
        text = self._ask("show", "node", name)
        try:
            return parse_node(text, name)
        except OutputError as error:
            raise SlurmError(Why.READ_UNPARSABLE, f"scontrol show node {name}: not understood: {error}") from error

    def read_all(self) -> tuple[NodeState, ...]:
        """Return every node of the cluster. Raises SlurmError."""
        text = self._ask("show", "nodes")
        try:
            return parse_nodes(text)
        except OutputError as error:
            raise SlurmError(Why.READ_UNPARSABLE, f"scontrol show nodes: not understood: {error}") from error

    def show(self, *words: str) -> str:
        """Return what ``scontrol show`` prints of *words*, such as ``config``. Raises SlurmError."""
        return self._ask("show", *words)

    def size(self) -> int:
        """Return about how many nodes there are, at a fraction of the cost of reading them. Raises SlurmError."""
        text = self._ask("show", "partitions")
        try:
            return parse_size(text)
        except OutputError as error:
            raise SlurmError(Why.READ_UNPARSABLE, f"scontrol show partitions: not understood: {error}") from error

    def started(self) -> str:
        """Return when slurmctld was started, in its own words. Raises SlurmError."""
        text = self._ask("show", "config")
        try:
            return parse_started(text)
        except OutputError as error:
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
        process = self._start(words, named)
        streams = _Streams(process)
        try:
            deadline = time.monotonic() + self._timeout_seconds
            while not streams.finished:
                if self._given_up.is_set():
                    raise SlurmError(late, f"{named}: given up, the agent stops")
                if time.monotonic() >= deadline:
                    raise SlurmError(
                        late,
                        f"{named}: no answer within {self._timeout_seconds:g} s: is slurmctld reachable,"
                        " and the disk of scontrol?",
                    )
                streams.read(min(TICK_SECONDS, max(deadline - time.monotonic(), 0.0)))
                if streams.size > MAXIMUM_BYTES:
                    raise SlurmError(failed, f"{named}: printed more than {MAXIMUM_BYTES >> 20} MiB")
        finally:
            streams.close()
            self._end(process)
        if process.returncode in NOT_STARTED and _NOT_STARTED.match(streams.said.removeprefix(f"{self._program}: ")):
            raise _not_started(self._program, process.returncode)
        if process.returncode != 0:
            raise _refused(named, process.returncode, streams.said, failed)
        return streams.output

    def _start(self, words: tuple[str, ...], named: str) -> subprocess.Popen[bytes]:
        if self._given_up.is_set():
            raise SlurmError(Why.STUCK, f"{named}: not started, the agent stops")
        if self._stuck is not None and self._stuck.poll() is None:
            raise SlurmError(
                Why.STUCK, f"{named}: not started: scontrol of before (pid {self._stuck.pid}) cannot be killed"
            )
        self._stuck = None
        try:
            return subprocess.Popen(
                [*STARTED_BY, self._program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            raise SlurmError(Why.NO_COMMAND, f"{STARTED_BY[0]}: cannot be started: {error.strerror}") from error

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Leave nothing of *process* and its group behind, but do not wait for what cannot be killed."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS if number is not None else 0)
                break
        else:
            self._stuck = process


def _set(field: str, text: str) -> list[str]:
    """Return what scontrol is told to write *text* into *field*, which names none, one, or both with a blank."""
    return [f"{name}={text}" for name in field.split()]


class _Streams:
    """What a child prints, read without waiting for one that goes on or left its pipes to another."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._parts: dict[int, list[bytes]] = {}
        self._open = selectors.DefaultSelector()
        self.size = 0
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            self._parts[stream.fileno()] = []
            self._open.register(stream.fileno(), selectors.EVENT_READ)

    @property
    def finished(self) -> bool:
        """Return whether both pipes ended and the child is gone."""
        return not self._open.get_map() and self._process.poll() is not None

    @property
    def output(self) -> str:
        """Return what came on standard output."""
        return self._text(0)

    @property
    def said(self) -> str:
        """Return standard error, or what a program that fails wrote elsewhere."""
        return self._text(1).strip() or self._text(0).strip()

    def read(self, seconds: float) -> None:
        """Take what comes within *seconds*."""
        if not self._open.get_map():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            return
        for key, _ in self._open.select(seconds):
            part = os.read(key.fd, 1 << 16)
            if part:
                self._parts[key.fd].append(part)
                self.size += len(part)
            else:
                self._open.unregister(key.fd)

    def close(self) -> None:
        """Let go of the pipes, whoever still writes into them."""
        self._open.close()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _text(self, position: int) -> str:
        return b"".join(tuple(self._parts.values())[position]).decode("utf-8", "replace")


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
