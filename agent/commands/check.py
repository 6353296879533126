"""Run every check once, or the named ones, and print the findings. Asks the agent if one runs, else reads the devices.

With --from, `nodevet check kernel-log` reads a saved kernel log instead of this node's.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from nodevet.agent.config.load import usual_runtime_directory
from nodevet.agent.store.site_marks import known_marks
from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import emit, say, table
from nodevet.agent.terminal.text import status_text
from nodevet.checks.core.errors import UsageError
from nodevet.checks.engine.registry import Check, installed
from nodevet.exporters.documents.schema import encode, status_document

from . import _options as options

SUMMARY = "run every check once, or the named ones"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet check``."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="checks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="list every check with its condition")
    parser.add_argument(
        "--from", dest="source", metavar="FILE", help="kernel-log only: saved log file; - for standard input"
    )
    options.add_json(parser)
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the verdict; exit 0 ok, 1 degraded, 2 failed, 3 unknown."""
    if arguments.list:
        say(table([(check.name, check.summary) for check in _listed(arguments)], ("CHECK", "CONDITION")))
        return exits.OK
    if arguments.source is not None:
        return _saved_log(arguments)
    settings = options.configuration(arguments)
    document = options.status_of_agent(settings, arguments.names)
    if document is None:
        from nodevet.agent.once.run import look

        document = status_document(look(settings, names=arguments.names))
    if arguments.json:
        emit(encode(document))
    else:
        say(status_text(document))
    return exits.of_state(document.verdict)


def _listed(arguments: argparse.Namespace) -> tuple[Check, ...]:
    """Return every check; the list needs no valid configuration, so only --runtime-dir names another agent's."""
    runtime = arguments.runtime_dir or usual_runtime_directory(os.environ, os.geteuid())
    return installed(known_marks(Path(runtime)))


def _saved_log(arguments: argparse.Namespace) -> int:
    if arguments.names != ["kernel-log"]:
        raise UsageError("check: --from requires the check kernel-log: nodevet check kernel-log --from FILE")
    from nodevet.agent.once.log_file import kernel_log_report

    report = kernel_log_report(arguments.source)
    if arguments.json:
        emit(report.json)
    else:
        say(report.text)
    return report.exit_code
