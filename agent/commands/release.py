"""Close every device handle for a limited time, to reset or repartition devices or to replace the driver."""

from __future__ import annotations

import argparse
import re

from nodevet.agent.control.server import LONGEST_RELEASE_SECONDS
from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import say
from nodevet.checks.core.errors import UsageError

from . import _options as options

SUMMARY = "close every device handle for a limited time"

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet release``."""
    parser.add_argument(
        "--for", dest="duration", default="10m", metavar="TIME", help="duration, such as 90s, 10m or 2h (default: 10m)"
    )
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Send the request to the agent; exit 0 if the agent accepted it."""
    say(options.ask_agent(arguments, "release", seconds=seconds_of(arguments.duration))["message"])
    return exits.OK


def seconds_of(text: str) -> float:
    """Return the seconds that *text* such as ``90s`` or ``10m`` stands for. Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= LONGEST_RELEASE_SECONDS:
        raise UsageError(f"release: --for {text}: write a duration up to 24h, such as 90s, 10m or 2h")
    return seconds
