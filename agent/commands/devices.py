"""List every device of this node with its identity and verdict."""

from __future__ import annotations

import argparse

import msgspec

from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import emit, say
from nodevet.agent.terminal.text import devices_table, unread_lines
from nodevet.exporters.documents.schema import encode, status_document

from . import _options as options

SUMMARY = "list the devices of this node"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet devices``."""
    options.add_json(parser)
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the inventory; the exit code is that of the verdict."""
    settings = options.configuration(arguments)
    document = options.status_of_agent(settings)
    if document is None:
        from nodevet.agent.once.run import look

        document = status_document(look(settings, purpose="nodevet devices"))
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
