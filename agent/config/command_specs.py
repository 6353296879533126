"""The commands of the site that print readings: what is wrong with their settings, and how each is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from nodevet.checks.backends.command.spec import END_SECONDS, CommandSpec
from nodevet.checks.engine.view import Cadence

from .decoding import Problem
from .reader_plan import ReaderPlan
from .settings import AgentSettings, CommandSettings

NAME = re.compile("[a-z][a-z0-9_-]{0,31}")
VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
OURS = "NODEVET_"


def command_spec(command: CommandSettings, deadline_seconds: float) -> CommandSpec:
    """Return what the reader needs to run *command* where a reading may take *deadline_seconds*."""
    return CommandSpec(
        name=command.name,
        argv=command.argv,
        timeout_seconds=command.run_seconds(deadline_seconds),
        groups=tuple(sorted(command.groups)),  # fast before slow
        environment=command.environment,
    )


def command_plan(command: CommandSettings, agent: AgentSettings, rates: Mapping[str, Cadence]) -> ReaderPlan:
    """Return how *command* is read: by a child of its own, in its own groups alone."""
    return ReaderPlan(
        backend=command.backend,
        cadences={group: rates[group] for group in command.groups},
        root=agent.root,
        options=msgspec.structs.asdict(command_spec(command, agent.deadline_seconds)),
        required=command.required,
    )


def command_problems(agent: AgentSettings) -> list[Problem]:
    """Return what is wrong with the commands that *agent* names."""
    problems = []
    names: set[str] = set()
    for index, command in enumerate(agent.backends.commands):
        path = f"agent.backends.commands[{index}]"
        if not NAME.fullmatch(command.name):
            problems.append(
                Problem(f"{path}.name", f"found {command.name!r}, expected a lower-case word such as gaudi")
            )
        if command.name in names:
            problems.append(Problem(f"{path}.name", f"another command is called {command.name!r} already"))
        names.add(command.name)
        problems.extend(Problem(f"{path}.{field}", text) for field, text in _mistakes(command, agent.deadline_seconds))
    return problems


def _mistakes(command: CommandSettings, deadline_seconds: float) -> list[tuple[str, str]]:
    """Return what is wrong with one command, by the field."""
    mistakes = []
    if not Path(command.argv[0]).is_absolute():
        mistakes.append(("argv[0]", f'found "{command.argv[0]}", expected an absolute path'))
    if any("\0" in word for word in command.argv):
        mistakes.append(("argv", "holds a NUL byte, which no program can be given"))
    if len(set(command.groups)) < len(command.groups):
        mistakes.append(("groups", "names a group twice"))
    for name, value in command.environment.items():
        if not VARIABLE.fullmatch(name) or name.startswith(OURS) or "\0" in value:
            found = f"found {name!r}, expected the name of a variable that does not begin with {OURS}"
            mistakes.append(("environment", found))
    seconds, longest = command.run_seconds(deadline_seconds), deadline_seconds - END_SECONDS
    if seconds > longest:
        why = f"ending one that hangs takes {END_SECONDS:g} s of agent.deadline_seconds = {deadline_seconds:g}"
        mistakes.append(("timeout_seconds", f"found {seconds:g}, expected at most {max(longest, 0):g}: {why}"))
    return mistakes
