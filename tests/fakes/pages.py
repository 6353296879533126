"""Documentation that runs: the command blocks of a page, the shell they run in, and what counts as the same output.

A block that is fenced as ``sh`` or ``console`` is preceded by ``<!-- on: PLACE -->``, which a reader does not see and
which says where the test runs it. In a ``console`` block a line after ``$`` is a command (``>`` continues it), all
other lines are its output, and ``...`` stands for lines that are left out.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = [
    "SLEEPING_LOAD", "Block", "Command", "blocks", "runs", "same", "shape", "shell_environment", "stray_commands",
]  # fmt: skip

FENCE = re.compile(r"(?:<!-- on: (?P<place>[^>]+?) -->\n+)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
RUNNABLE = frozenset({"sh", "console"})
STRAY = re.compile(r"^(?: {4}|\t)(?:nodevet|make|curl|sh|python3?|pip|systemctl|\.venv/|/opt/|git|cp) .*$", re.M)
RECORD = "\x1e"
HOST = "node1"
"""What pages call the machine that they were captured on."""

ROW = re.compile(r"^(node|memory|cpu|accelerator [#-]?|accelerator)\s.*?\s(ok|degraded|failed|unknown|not judged)$")
NUMBER = re.compile(r"\d+(?:[.:]\d+)*(?:[eE][+-]?\d+)?")


class Command(msgspec.Struct, frozen=True):
    """One command of a block and the output that the page shows for it."""

    line: str
    output: tuple[str, ...] = ()


class Block(msgspec.Struct, frozen=True):
    """A fenced block: where it runs, its commands, and its text as it stands in the page."""

    place: str
    kind: str
    commands: tuple[Command, ...]
    text: str


def blocks(page: str) -> tuple[Block, ...]:
    """Return the blocks of *page* that hold commands; one without a place has the place ``""``."""
    return tuple(
        Block(found["place"] or "", found["kind"], tuple(_commands(found["kind"], found["text"])), found["text"])
        for found in FENCE.finditer(page)
        if found["kind"] in RUNNABLE
    )


def stray_commands(page: str) -> list[str]:
    """Return command lines of *page* that stand in an indented block, where no test would see them."""
    return STRAY.findall(FENCE.sub("", page))


INSTALLED = ("-m", "nodevet.agent.cli")
SLEEPING_LOAD = (str(Path(__file__).with_name("sleeping_load.py")),)
"""What Python runs as ``nodevet``: sleeping_load.py says in what it differs."""


def shell_environment(
    directory: Path, extra: Mapping[str, str] = {}, program: tuple[str, ...] = INSTALLED
) -> dict[str, str]:
    """Return an environment in which ``nodevet`` is the *program* under test and keeps its files in *directory*."""
    programs = directory / "bin"
    programs.mkdir(exist_ok=True)
    script = programs / "nodevet"
    script.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-I", *program])} "$@"\n')
    script.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(directory),
        "STATE_DIRECTORY": str(directory / "state"),
        "RUNTIME_DIRECTORY": str(directory / "run"),
        "CONFIGURATION_DIRECTORY": str(directory),
        **extra,
    }


def runs(
    block: Block, directory: Path, environment: Mapping[str, str], replace: Mapping[str, str] = {}
) -> list[Command]:
    """Run the commands of *block* in one shell in *directory*, and return each with what it printed.

    *replace* changes texts of the commands, such as the agent's address. A command that fails must be followed by
    ``echo $?``, so that a reader sees the status; else AssertionError.
    """
    script = "".join(f"{{ {command.line}\n}} 2>&1\n_mark $?\n" for command in block.commands)
    for old, new in replace.items():
        script = script.replace(old, new)
    mark = f'_mark() {{ printf "{RECORD}%s{RECORD}" "$1"; return "$1"; }}\n'
    done = subprocess.run(
        ["sh", "-c", mark + script],
        capture_output=True,
        text=True,
        cwd=directory,
        env=dict(environment),
        timeout=120,
        check=False,
    )
    parts = done.stdout.split(RECORD)
    outputs, states = parts[0::2], parts[1::2]
    assert len(states) == len(block.commands), f"the shell stopped early: {done.stdout[-2000:]}{done.stderr}"
    for command, state, output, after in zip(
        block.commands, states, outputs, [*block.commands[1:], Command("")], strict=False
    ):
        shown = state == "0" or after.line == "echo $?"
        assert shown, f"{command.line!r} exits {state}, which the page does not show: {output}"
    return [
        Command(command.line, tuple(_told(output, {**_standard_places(directory), **replace}).splitlines()))
        for command, output in zip(block.commands, outputs, strict=False)
    ]


def same(shown: tuple[str, ...], seen: tuple[str, ...]) -> bool:
    """Return whether the page shows what was *seen*, but for numbers, and for lines left out by ``...``."""
    pattern = "\n".join("(?s:.*)" if line.strip() == "..." else re.escape(line) for line in map(shape, shown))
    return re.fullmatch(pattern, "\n".join(map(shape, seen))) is not None


def shape(line: str) -> str:
    """Return *line* without what differs between runs and machines: numbers, widths, models and serials."""
    text = NUMBER.sub("#", line.rstrip())
    row = ROW.match(text)
    return f"{row[1]} {row[2]}" if row else re.sub(r"\s+", " ", text)


def _standard_places(directory: Path) -> dict[str, str]:
    """Return where an installed agent has the files that this one keeps below *directory*."""
    return {"/run/nodevet": str(directory / "run"), "/var/lib/nodevet": str(directory / "state")}


def _told(output: str, replace: Mapping[str, str]) -> str:
    for old, new in replace.items():
        output = output.replace(new, old)
    return output.replace(socket.gethostname().split(".")[0] + ":", f"{HOST}:")


def _commands(kind: str, text: str) -> list[Command]:
    if kind == "sh":
        return [Command(text.rstrip("\n"))]
    found: list[tuple[list[str], list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif line.startswith("> ") and not found[-1][1]:
            found[-1][0].append(line[2:])
        else:
            found[-1][1].append(line)
    return [Command("\n".join(lines), tuple(output)) for lines, output in found]
