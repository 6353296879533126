"""Arguments that several commands share, and how they ask the agent."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from nodevet.agent.config.load import load_configuration
from nodevet.agent.config.settings import Configuration
from nodevet.agent.control.client import AgentAbsent, AgentSilent, ask
from nodevet.agent.control.server import SOCKET_NAME
from nodevet.agent.store.site_marks import known_marks
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import State
from nodevet.checks.engine.registry import Check, installed
from nodevet.checks.engine.site_code import UNWATCHED, Watch
from nodevet.exporters.documents.types import StatusDocument

NAMES = "id, PCI address, UUID, serial number, or as status prints it: 'GPU 5', gpu5, 5"
"""How a device may be named, in every verb alike."""


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add where configuration, state and runtime files lie."""
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: /etc/nodevet/nodevet.toml)")
    parser.add_argument("--state-dir", metavar="DIR", help="directory of the database")
    parser.add_argument("--runtime-dir", metavar="DIR", help="directory of socket, lock and state file")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def content(name: str, command: str) -> bytes:
    """Return what the file *name* holds, or standard input for ``-``. Raises UsageError, of *command*."""
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        shown = "standard input" if name == "-" else name
        raise UsageError(
            f"{command}: {shown} cannot be read: {error.strerror}; give a readable file, or - for standard input"
        ) from error


def configuration(
    arguments: argparse.Namespace, *, watch: Callable[[Path], Watch] = known_marks, **overrides: object
) -> Configuration:
    """Return the configuration that *arguments* ask for; *overrides* by key path with ``__`` for the dot.

    *watch* returns the watch over code of the site, by the runtime directory.
    """
    given: dict[str, object] = {
        "agent.state_dir": arguments.state_dir,
        "agent.runtime_dir": arguments.runtime_dir,
        **{key.replace("__", "."): value for key, value in overrides.items()},
    }
    file = Path(arguments.config) if arguments.config else None

    def checks(runtime: Path | None) -> tuple[Check, ...]:
        return installed(watch(runtime) if runtime is not None else UNWATCHED)

    return load_configuration(file, checks, overrides=given)


def ask_agent(arguments: argparse.Namespace, verb: str, **fields: Any) -> dict[str, Any]:
    """Return the agent's answer. Raises AgentAbsent where none runs in the runtime directory."""
    settings = configuration(arguments)
    return ask(Path(settings.agent.runtime_dir) / SOCKET_NAME, verb, **fields)


def status_of_agent(settings: Configuration, checks: Sequence[str] = ()) -> StatusDocument | None:
    """Return what the running agent says, by the named *checks* alone where some are, or None where none runs.

    Raises AgentSilent where its answer is not understood.
    """
    try:
        answer = ask(Path(settings.agent.runtime_dir) / SOCKET_NAME, "status", checks=list(checks))
    except AgentAbsent:
        return None
    try:
        document = msgspec.convert(answer, StatusDocument)
        State(document.verdict)
    except (msgspec.ValidationError, ValueError) as error:
        raise AgentSilent(
            f"the agent is of another version, and its answer cannot be decoded ({error}): restart it"
        ) from error
    return document
