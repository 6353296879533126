"""Check whether prolog, epilog and health check are safe to install in SLURM, and work as installed. Changes nothing.

`nodevet slurm check` checks the scripts, their owner and settings, the state file, the mapping of GPUs, and the
configuration that SLURM has loaded. With --node it does not query SLURM: run it before slurm.conf names the scripts.
Exit 0: all ok, 1: warnings, 2: at least one item is wrong, 3: at least one item could not be checked.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import msgspec

from nodevet.agent.config.settings import Configuration
from nodevet.agent.control.client import AgentRefused, AgentSilent
from nodevet.agent.slurm.checkup import items, modes, worst
from nodevet.agent.slurm.facts import Item, Status
from nodevet.agent.slurm.loaded import Running, running_of
from nodevet.agent.slurm.survey import survey
from nodevet.agent.terminal import exits
from nodevet.agent.terminal.output import say, table

from . import _options as options

SUMMARY = "check the prolog, epilog and health check for SLURM"
FOLDER = "/etc/slurm/nodevet"

EXITS = {
    Status.OK: exits.OK,
    Status.WARNING: exits.DEGRADED,
    Status.WRONG: exits.FAILED,
    Status.CANNOT_TELL: exits.UNKNOWN,
}

ELSEWHERE = (
    "this command checked one node, and SLURM runs Prolog= on every node: run `nodevet slurm check --node` on each, by"
    " pdsh, ssh or srun"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nodevet slurm``."""
    parser.add_argument("verb", metavar="check", choices=("check",), help="check: run all checks, change nothing")
    parser.add_argument("--scripts", metavar="DIR", default=FOLDER, help=f"folder of the scripts (default: {FOLDER})")
    parser.add_argument("--node", action="store_true", help="only check this node; SLURM is not queried")
    options.add_json(parser)
    options.add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the items and the modes; the exit code is that of the worst item."""
    settings = options.configuration(arguments)
    folder, running = Path(arguments.scripts), _running(settings)
    facts = survey(settings, folder, os.environ, only_node=arguments.node, running=running)
    found = items(facts, only_node=arguments.node)
    verdict = worst(found)
    if arguments.json:
        document = {
            "schema": "nodevet.slurm-check/1",
            "node": facts.node,
            "verdict": verdict.value,
            "items": msgspec.to_builtins(found),
            "modes": dict(modes(facts)),
            "elsewhere": ELSEWHERE,
        }
        say(msgspec.json.encode(document).decode())
        return EXITS[verdict]
    say(table([_row(item) for item in found], ("ITEM", "STATUS", "RESULT")))
    for item in found:
        if item.next_step and item.status is not Status.OK:
            say(f"{item.name}: {item.next_step}")
    say()
    say(table(modes(facts), ("MODE", "VALUE")))
    say()
    say(f"{facts.node}: {verdict.value}; {ELSEWHERE}")
    return EXITS[verdict]


def _running(settings: Configuration) -> Running | str | None:
    """Return what the agent has loaded, why it does not tell, or None where none runs, which the state file tells."""
    try:
        document = options.status_of_agent(settings)
    except (AgentRefused, AgentSilent) as error:
        return str(error)
    return running_of(document) if document else None


def _row(item: Item) -> tuple[str, str, str]:
    return item.name, item.status.value, item.says
