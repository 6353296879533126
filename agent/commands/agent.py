"""Run the agent: read, judge and publish until told to stop. SIGHUP reads the configuration again."""

from __future__ import annotations

import argparse
import gc
from contextlib import suppress

from nodevet.agent.commands import options
from nodevet.agent.terminal import OutputError, let_go_of_output, say

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

    def tell(line: str) -> None:
        # Whoever started the agent may have gone, or the disk of its output be full: it goes on.
        with suppress(OutputError, BrokenPipeError):
            say(line)

    settings = load()
    gc.freeze()  # what was imported stays until the end: no collection need look at it again
    code = Daemon(settings, SystemClock(settings.agent.root), reload=load, say=tell).run()
    let_go_of_output()
    return code
