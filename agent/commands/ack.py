"""Acknowledge a finding: it stays visible with your note and no longer affects the verdict.

It counts again if it needs a more severe action, or if it clears and occurs again. --until sets another end.
"""

from __future__ import annotations

import argparse
import os

from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import say

from . import _options as options

SUMMARY = "acknowledge a finding, with a note"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet ack``."""
    parser.add_argument("code", help="the finding's code, such as nvidia.xid.79")
    parser.add_argument("--device", default="node", help=f"the device, by {options.NAMES} (default: the node itself)")
    parser.add_argument("--part", default=None, help="the part, such as 'link 17'")
    parser.add_argument(
        "--note",
        required=True,
        help="text such as 'INC-1234, board ordered'; shown with the finding in status, page, report and metrics",
    )
    parser.add_argument(
        "--until",
        metavar="WHEN",
        help="end of the acknowledgement: a duration such as 12h, 7d or 2w, or a date such as 2026-12-01 in UTC, at"
        " most a year; a fault that returns before this time does not count, and the first bad sample after it counts"
        " (default: as long as the finding lasts)",
    )
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Send the acknowledgement to the agent; exit 0 if the agent accepted it."""
    answer = options.ask_agent(
        arguments,
        "ack",
        code=arguments.code,
        device=arguments.device,
        part=arguments.part,
        note=arguments.note,
        until=arguments.until,
        sudo_uid=_sudo_uid(os.environ.get("SUDO_UID", "")),
    )
    say(answer["message"])
    return exits.OK if answer["acknowledged"] else exits.UNKNOWN


def _sudo_uid(text: str) -> int | None:
    """Return who became root by sudo, or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None
