"""Asks the agent over its Unix socket. Imports nothing but the standard library, because commands must be quick."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Self

from nodevet.checks.core.errors import NodevetError, UsageError


class AgentAbsent(NodevetError):  # noqa: N818 (a state of the node that callers handle, not a failure)
    """No agent runs here."""


class AgentSilent(NodevetError):  # noqa: N818
    """The agent took longer than its caller could wait, or hung up in the middle of its answer."""


class AgentRefused(NodevetError):  # noqa: N818
    """The agent answered with an error; ``kind`` is bad_request, unknown_verb, denied, refused or busy."""

    def __init__(self, text: str, kind: str) -> None:
        """Keep the agent's *text* and *kind*."""
        super().__init__(text)
        self.kind = kind


class Session:
    """A connection that stays open: for several questions, for a stream, or for a lease that ends with it."""

    def __init__(self, path: str | os.PathLike[str], *, timeout_seconds: float = 5.0) -> None:
        """Connect to the agent at *path*. Raises AgentAbsent, AgentSilent or AgentRefused (no permission)."""
        self._path = os.fspath(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_seconds)
        self._received = bytearray()
        try:
            self._socket.connect(self._path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            self._socket.close()
            raise AgentAbsent(f"{self._path}: no agent listens: start `nodevet agent`") from error
        except PermissionError as error:
            self._socket.close()
            raise AgentRefused(
                f"{self._path}: no permission to connect: ask as root or as a member of the socket's group", "denied"
            ) from error
        except OSError as error:
            self._socket.close()
            raise AgentSilent(f"{self._path}: cannot connect: {error}") from error

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer to *verb*. Raises AgentRefused with the agent's own words, or AgentSilent."""
        self.send(verb, **arguments)
        return self.receive()

    def send(self, verb: str, **arguments: Any) -> None:
        """Send a request without waiting for its answer. Raises UsageError where a word of it is no text."""
        for name, value in arguments.items():
            if isinstance(value, str) and not _is_text(value):
                raise UsageError(f"{verb}: the {name} is not UTF-8 text: type it again, or set a UTF-8 locale")
        try:
            self._socket.sendall(json.dumps({**arguments, "verb": verb}).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            # The agent dismissed us before we were done; why lies ready to be received.
            return
        except OSError as error:
            raise AgentSilent(f"{self._path}: the agent does not listen: {error}") from error

    def receive(self) -> dict[str, Any]:
        """Wait for one answer and return it. Raises AgentRefused or AgentSilent."""
        while b"\n" not in self._received:
            try:
                data = self._socket.recv(1 << 16)
            except OSError as error:
                raise AgentSilent(f"{self._path}: the agent does not answer: {error}") from error
            if not data:
                raise AgentSilent(f"{self._path}: the agent closed the connection: see its log")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise AgentSilent(f"{self._path}: the answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise AgentSilent(f"{self._path}: the answer is not a JSON object")
        if "error" in answer:
            raise AgentRefused(str(answer["error"]), str(answer.get("kind", "refused")))
        return answer

    def wait_at_most(self, seconds: float) -> None:
        """Let each step of what follows wait so long; what was received of an answer until then is kept."""
        self._socket.settimeout(seconds)

    def fileno(self) -> int:
        """Return the descriptor, for a selector; it becomes readable when the agent answers or goes."""
        return self._socket.fileno()

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(self, *_raised: object) -> None:
        """Disconnect."""
        self.close()


def ask(path: str | os.PathLike[str], verb: str, *, timeout_seconds: float = 5.0, **arguments: Any) -> dict[str, Any]:
    """Connect to the agent at *path*, ask one question and return the answer.

    Raises AgentAbsent when no agent runs, AgentSilent when none answers within *timeout_seconds* of silence, and
    AgentRefused with the agent's own words.
    """
    with Session(path, timeout_seconds=timeout_seconds) as session:
        return session.ask(verb, **arguments)


def _is_text(words: str) -> bool:
    """Return whether *words* came from bytes that are text: others stand in it as halves of letters."""
    try:
        words.encode()
    except UnicodeEncodeError:
        return False
    return True
