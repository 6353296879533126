"""The command line: finds the subcommand, loads only its module, and turns errors into one line and an exit code."""

from __future__ import annotations

from nodevet.checks.core import lean  # noqa: F401 (before the libraries that it keeps small)

# isort: split

import argparse
import faulthandler
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from nodevet.agent.control.client import AgentRefused
from nodevet.agent.daemon.init import under_init
from nodevet.agent.terminal.output import complete_streams, say, tell
from nodevet.checks.core.errors import ConfigurationError, NodevetError, UnreadableConfigurationError, UsageError
from nodevet.checks.core.later import SELDOM, loaded_later
from nodevet.checks.core.modules import modules_in
from nodevet.checks.system.signals import begin_undisposed

from . import __version__
from .terminal import exits

STANDARD_ERROR = 2

COMMANDS = Path(__file__).with_name("commands")
"""One module for each subcommand, with ``_`` for ``-`` in its name; one that begins with ``_`` is none."""


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
        faulthandler.enable(STANDARD_ERROR)  # a library that code of a site calls may crash: this names the line
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
    known = commands()
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name, known, 1)
        hint = f", did you mean {near[0]}?" if near else "; see nodevet --help"
        raise UsageError(f"nodevet: no command {name!r}{hint}")
    module = _module(name)
    # argparse looks for translations of its texts, in a catalogue that nobody has.
    with loaded_later(*SELDOM, known={("gettext", "locale.normalize"): str}):
        parser = _Parser(prog=f"nodevet {name}", description=module.__doc__)
        module.configure(parser)
        arguments = parser.parse_args(words[1:])
    result: int = module.run(arguments)
    return result


def commands() -> tuple[str, ...]:
    """Return the names of all subcommands."""
    return tuple(name.replace("_", "-") for name in modules_in([str(COMMANDS)]) if not name.startswith("_"))


def _module(command: str) -> ModuleType:
    with loaded_later(*SELDOM):
        return importlib.import_module(f"nodevet.agent.commands.{command.replace('-', '_')}")


def _overview() -> str:
    lines = [
        "usage: nodevet COMMAND [--help] ...",
        "",
        "Vets this compute node: is it fit to run jobs, and if not, which part is at fault?",
        "",
    ]
    names = commands()
    width = max(map(len, names))
    lines += [f"  {name:<{width}}  {_module(name).SUMMARY}" for name in names]
    lines += ["", "exit codes: 0 ok, 1 degraded, 2 failed, 3 unknown or could not measure,"]
    lines += ["            64 wrong usage, 78 wrong configuration, 70 a bug in nodevet, 130 interrupted"]
    return "\n".join(lines)


def _bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what went wrong and end with the code of our own bugs: Python's own, 1, would read as ``degraded``."""
    tell("".join(traceback.format_exception(kind, error, trace)).rstrip())
    _complain(NodevetError(f"this is a bug in nodevet {__version__}: report the lines above"), exits.SOFTWARE)
    os._exit(exits.SOFTWARE)


def _complain(error: NodevetError, code: int) -> int:
    """Tell of *error* where that is possible, and return *code*: without a reader it is all that a script learns."""
    text = str(error)
    tell(text if text.startswith("nodevet") else f"nodevet: {text}")
    return code


if __name__ == "__main__":
    exits.end_process(main())
