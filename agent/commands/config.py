"""Validate a configuration file, or show the active configuration with every default."""

from __future__ import annotations

import argparse

from nodevet.agent.config.load import digest
from nodevet.agent.config.text import render
from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import say
from nodevet.checks.engine.registry import installed

from . import _options as options

SUMMARY = "validate or show the configuration"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet config``."""
    parser.add_argument(
        "verb",
        metavar="{check,show}",
        choices=("check", "show"),
        help="check: validate the file; show: print the active configuration",
    )
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit 0 if the configuration is valid; each error names the key path and the accepted values."""
    settings = options.configuration(arguments)
    if arguments.verb == "show":
        say(render(settings, installed()))
    else:
        say(f"{settings.file or 'no file, defaults'}: accepted, digest {digest(settings)}")
    return exits.OK
