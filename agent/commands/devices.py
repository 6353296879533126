"""List every device of this node with its identity and verdict.

--peaks lists the theoretical peak rates of the accelerators instead; --mfu compares a step of a job with them.
"""

from __future__ import annotations

import argparse

import msgspec

from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import emit, say
from nodevet.agent.terminal.text import devices_table, unread_lines
from nodevet.checks.core.errors import UsageError
from nodevet.exporters.documents.schema import encode, status_document
from nodevet.exporters.documents.types import StatusDocument

from . import _options as options
from . import _peaks as peaks

SUMMARY = "list the devices of this node"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet devices``."""
    parser.add_argument("--peaks", action="store_true", help="list peak rates by number format, with their sources")
    parser.add_argument(
        "--mfu",
        type=peaks.parse_step,
        metavar="FLOPS,SECONDS",
        help="with --peaks: the share of each peak that a step reached; FLOPS are the operations of one device",
    )
    options.add_json(parser)
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the inventory; the exit code is that of the verdict, and 3 if --peaks finds none on an ``ok`` node."""
    if arguments.mfu is not None and not arguments.peaks:
        raise UsageError("devices: --mfu compares a step with peaks: give --peaks, too")
    settings = options.configuration(arguments)
    document = options.status_of_agent(settings)
    if document is None:
        from nodevet.agent.once.run import look

        document = status_document(look(settings, purpose="nodevet devices"))
    if arguments.peaks:
        return show_peaks(document, arguments)
    if arguments.json:
        inventory = {
            "schema": "nodevet.devices/1",
            "node": document.node,
            "simulated": document.simulated,
            "devices": document.devices,
        }
        emit(encode(msgspec.to_builtins(inventory)))
    else:
        if document.simulated:
            say(f"{document.node} is simulated: none of these devices exists")
        say(devices_table(document))
        for line in unread_lines(document):
            say(line)
    return exits.of_state(document.verdict)


def show_peaks(document: StatusDocument, arguments: argparse.Namespace) -> int:
    """Print the peaks; the exit code is that of the verdict, or 3 where an ``ok`` node has no known peak."""
    found = peaks.node_peaks(document, arguments.mfu)
    if arguments.json:
        told = {
            "schema": peaks.PEAKS_SCHEMA,
            "node": document.node,
            "simulated": document.simulated,
            "devices": msgspec.to_builtins(found),
        }
        emit(encode(told))
    else:
        if document.simulated:
            say(f"{document.node} is simulated: none of these devices exists")
        for line in peaks.peaks_text(found, arguments.mfu):
            say(line)
        if not found:
            say(f"{document.node} has no accelerator, and no peak is known for processors")
        for line in unread_lines(document):
            say(line)
    known = any(device.peaks for device in found)
    return exits.of_state(document.verdict) or (exits.OK if known else exits.UNKNOWN)
