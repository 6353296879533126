"""Validate the output of a command backend, or print the JSON Schema of readings.

`nodevet readings check FILE` reads saved output (- for standard input). `nodevet readings check --command NAME`
runs a configured command once per group as the agent would.
"""

from __future__ import annotations

import argparse
import json

from nodevet.agent.config.command_specs import command_spec
from nodevet.agent.config.settings import Configuration
from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import say, table
from nodevet.checks.backends.base import BackendError
from nodevet.checks.backends.command.backend import identity, runner, taken
from nodevet.checks.backends.command.schema import readings_schema
from nodevet.checks.backends.command.spec import CommandSpec
from nodevet.checks.backends.command.unread_values import Mended, usable
from nodevet.checks.core.counts import count_of
from nodevet.checks.core.errors import UsageError
from nodevet.checks.core.model import ReadingStatus
from nodevet.checks.core.readings import Mistake, doubts, reading_of
from nodevet.checks.system.process import MAXIMUM_BYTES

from . import _options as options

SUMMARY = "validate the readings that a command of the site prints"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet readings``."""
    parser.add_argument(
        "verb",
        metavar="{check,schema}",
        choices=("check", "schema"),
        help="check: validate the output; schema: print the JSON Schema",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="check only: saved output; - for standard input")
    parser.add_argument("--command", metavar="NAME", help="check only: run this configured command instead")
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit 0 if everything is accepted, 1 if a value or device is doubtful, 2 if the output has another mistake."""
    if arguments.verb == "schema":
        if arguments.file or arguments.command:
            raise UsageError("readings: schema takes no file and no command")
        say(json.dumps(readings_schema(), indent=2))
        return exits.OK
    if (arguments.file is None) is (arguments.command is None):
        raise UsageError("readings: check takes either a FILE (- for standard input) or --command NAME")
    if arguments.file is not None:
        return _check_file(arguments.file)
    settings = options.configuration(arguments)
    spec = _spec(settings, arguments.command)
    return max(_check_group(spec, settings.agent.root, group) for group in spec.groups)


def _check_file(name: str) -> int:
    shown = "standard input" if name == "-" else name
    data = options.content(name, "readings")
    if len(data) > MAXIMUM_BYTES:
        say(f"{shown}: has {len(data)} bytes; the agent accepts at most {MAXIMUM_BYTES}")
        return exits.FAILED
    found, mistakes = usable(data)
    if found is None:
        _tell(shown, mistakes)
        return exits.FAILED
    return _accepted(shown, found, mistakes, None)


def _spec(settings: Configuration, name: str) -> CommandSpec:
    commands = {command.name: command for command in settings.agent.backends.commands}
    if name not in commands:
        known = ", ".join(commands) or "none"
        raise UsageError(f"readings: no command is called {name!r}; [[agent.backends.commands]] has {known}")
    return command_spec(commands[name], settings.agent.deadline_seconds)


def _check_group(spec: CommandSpec, root: str, group: str) -> int:
    shown = f"{spec.backend}, group {group}"
    try:
        found, mistakes, said = taken(spec, runner(spec, root), group)
    except BackendError as error:
        for line in error.failure.detail.split("; "):
            say(f"{shown}: {line}")
        return exits.FAILED
    if said:
        say(f"{shown}: last line on standard error: {said}")
    return _accepted(shown, found, mistakes, spec)


def _tell(shown: str, mistakes: tuple[Mistake, ...]) -> None:
    for mistake in mistakes:
        say(f"{shown}: {mistake}")


def _accepted(shown: str, found: Mended, mistakes: tuple[Mistake, ...], spec: CommandSpec | None) -> int:
    """Show what was understood, so that the author sees it with the eyes of the agent.

    The author is told of *mistakes* that the agent mends.
    """
    document = found.document
    if found.is_changed:
        _tell(shown, mistakes)
    doubtful = doubts(document)
    for doubt in doubtful:
        say(f"{shown}: {doubt}")
    say(f"{shown}: accepted, {count_of(len(document.devices), 'device')}, {count_of(len(document.events), 'event')}")
    rows = []
    for device in document.devices:
        measured = sum(reading_of(entry).status is ReadingStatus.OK for entry in device.readings)
        state = device.failure.kind if device.failure else f"{measured} of {len(device.readings)}"
        rows.append((identity(spec, device) if spec else device.id, device.vendor, device.model, state))
    if rows:
        say(table(rows, ("DEVICE", "VENDOR", "MODEL", "MEASURED")))
    if found.is_changed:
        return exits.FAILED
    return exits.DEGRADED if doubtful else exits.OK
