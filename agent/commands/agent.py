"""Run the agent: read, judge and publish until told to stop. SIGHUP reads the configuration again."""

from __future__ import annotations

import argparse
import gc

from nodevet.agent.commands import options
from nodevet.agent.terminal import say

SUMMARY = "read, judge and publish: the daemon"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet agent``."""
    parser.add_argument("--listen", metavar="HOST:PORT", help="metrics and status page (default: 127.0.0.1:10917)")
    parser.add_argument("--interval", metavar="SECONDS", type=float, help="between readings (default: 10)")
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; exit 0 after a clean stop."""
    from nodevet.agent.clock import SystemClock
    from nodevet.agent.daemon import Daemon
    from nodevet.agent.settings import Configuration

    def load() -> Configuration:
        return options.configuration(
            arguments, agent__listen=arguments.listen, agent__interval_seconds=arguments.interval
        )

    settings = load()
    gc.freeze()  # what was imported stays until the end: no collection need look at it again
    return Daemon(settings, SystemClock(settings.agent.root), reload=load, say=say).run()
