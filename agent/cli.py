"""The command line: finds the subcommand, loads only its module, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn

from nodevet.agent.control.client import AgentRefused
from nodevet.agent.daemon.init import under_init
from nodevet.agent.terminal.output import complete_streams, say, tell
from nodevet.checks.core.errors import ConfigurationError, NodevetError, UnreadableConfigurationError, UsageError
from nodevet.checks.system.signals import begin_undisposed

from . import __version__
from .terminal import exits

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "agent": "read, judge and publish: the daemon",
    "check": "every check now, or the named ones",
    "devices": "what is in this node",
    "topo": "link matrix of the accelerators",
    "status": "ask the agent",
    "history": "what happened to this node and its devices",
    "ack": "acknowledge a finding, with a note",
    "release": "let go of every device for a while",
    "explain": "what a code, a check or a quantity means",
    "burn-in": "prove the hardware under load",
    "report": "render a report",
    "config": "check or show the configuration",
    "slurm": "is it safe to install the hooks of SLURM",
    "readings": "check what a command of the site prints",
}
"""Every subcommand with its summary; the module is ``commands/<name with _ for ->.py``."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of exiting, so that wrong usage has one exit code.

    A shortened option is refused: it would mean something else once another option begins alike.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take what argparse takes."""
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line *argv* (default: the process's) and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        sys.excepthook = _bug
        begin_undisposed()
        if (code := under_init()) is not None:
            return code
        complete_streams()
    try:
        return _run(words)
    except ConfigurationError as error:
        # A service manager never starts again what ended with the code of a wrong configuration.
        is_passing = isinstance(error, UnreadableConfigurationError)
        return _complain(error, exits.UNKNOWN if is_passing else exits.CONFIGURATION)
    except UsageError as error:
        return _complain(error, exits.USAGE)
    except AgentRefused as error:
        return _complain(error, exits.USAGE if error.kind == "bad_request" else exits.UNKNOWN)
    except NodevetError as error:
        return _complain(error, exits.UNKNOWN)
    except BrokenPipeError:
        # The reader of a pipe went away (`nodevet check | head -1`): there is no one to hear more, and a verdict that
        # was not heard to its end is not `ok`.
        return exits.UNKNOWN
    except KeyboardInterrupt:
        return 130


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        say(_overview())
        return exits.OK if words else exits.USAGE
    if words[0] == "--version":
        say(f"nodevet {__version__}")
        return exits.OK
    name = words[0]
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f", did you mean {near[0]}?" if near else "; see nodevet --help"
        raise UsageError(f"nodevet: no command {name!r}{hint}")
    module = importlib.import_module(f"nodevet.agent.commands.{name.replace('-', '_')}")
    parser = _Parser(prog=f"nodevet {name}", description=module.__doc__)
    module.configure(parser)
    result: int = module.run(parser.parse_args(words[1:]))
    return result


def _overview() -> str:
    lines = [
        "usage: nodevet COMMAND [--help] ...",
        "",
        "Is this node fit to run an expensive job, and if not, why?",
        "",
    ]
    width = max(map(len, COMMANDS))
    lines += [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    lines += ["", "exit codes: 0 ok, 1 degraded, 2 failed, 3 unknown or could not measure,"]
    lines += ["            64 wrong usage, 78 wrong configuration, 70 a bug of nodevet"]
    return "\n".join(lines)


def _bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what went wrong and end with the code of our own bugs: Python's own, 1, would read as ``degraded``."""
    tell("".join(traceback.format_exception(kind, error, trace)).rstrip())
    _complain(NodevetError(f"this is a bug of nodevet {__version__}: please report the lines above"), exits.SOFTWARE)
    os._exit(exits.SOFTWARE)


def _complain(error: NodevetError, code: int) -> int:
    """Tell of *error* where that is possible, and return *code*: without a reader it is all that a script learns."""
    text = str(error)
    tell(text if text.startswith("nodevet") else f"nodevet: {text}")
    return code


if __name__ == "__main__":
    exits.end_process(main())
