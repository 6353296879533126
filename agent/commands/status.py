"""Show the verdict, devices and findings of the running agent."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from nodevet.agent.config.load import SIMULATED_FOLDER
from nodevet.agent.control.server import SOCKET_NAME
from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import emit, say
from nodevet.agent.terminal.text import status_text
from nodevet.exporters.documents.schema import encode
from nodevet.exporters.documents.types import StatusDocument

from . import _options as options

SUMMARY = "show the verdict of the running agent"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet status``."""
    parser.add_argument("--watch", action="store_true", help="print again on every change")
    parser.add_argument(
        "--every", type=float, default=2.0, metavar="SECONDS", help="interval of --watch in seconds (default: 2)"
    )
    options.add_json(parser)
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the status; the exit code is that of the verdict, or 3 if no agent runs."""
    settings = options.configuration(arguments)
    seen: tuple[object, ...] | None = None
    while True:
        document = options.status_of_agent(settings)
        if document is None:
            say(f"nodevet: {_absent(Path(settings.agent.runtime_dir))}", sys.stderr)
            return exits.UNKNOWN
        facts = (document.verdict, document.reason, document.findings, document.acknowledged, document.agent.load)
        if facts != seen:
            _show(document, as_json=arguments.json)
        seen = facts
        if not arguments.watch:
            return exits.of_state(document.verdict)
        time.sleep(max(arguments.every, 0.2))


def _absent(directory: Path) -> str:
    """Say that no agent runs, and which simulated nodes do: they keep their files below *directory*."""
    said = f"no agent runs here (looked in {directory}): start one with nodevet agent"
    simulated = sorted(path.parent for path in (directory / SIMULATED_FOLDER).glob(f"*/{SOCKET_NAME}"))
    return "; or ask a simulated node: ".join([said, *(f"nodevet status --runtime-dir {path}" for path in simulated)])


def _show(document: StatusDocument, *, as_json: bool) -> None:
    if as_json:
        emit(encode(document))
    else:
        say(status_text(document))
