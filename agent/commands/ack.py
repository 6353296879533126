"""Acknowledge a finding: it stays on record with your note, and stops counting until it occurs anew."""

from __future__ import annotations

import argparse

from nodevet.agent import exits
from nodevet.agent.commands import options
from nodevet.agent.terminal import say

SUMMARY = "acknowledge a finding, with a note"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet ack``."""
    parser.add_argument("code", help="the finding's code, such as nvidia.xid.79")
    parser.add_argument("--device", default="node", help="the device's id or PCI address (default: the node itself)")
    parser.add_argument("--part", default=None, help="the part, such as 'link 17'")
    parser.add_argument("--note", required=True, help="why this is in order: who looked, what was done")
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask the agent to acknowledge; exit 0 when it did."""
    answer = options.ask_agent(
        arguments, "ack", code=arguments.code, device=arguments.device, part=arguments.part, note=arguments.note
    )
    say(answer["message"])
    return exits.OK if answer["acknowledged"] else exits.UNKNOWN
