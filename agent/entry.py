"""Entry point of the installed command. It ignores the PYTHON variables that a site sets for its users' programs.

A site's environment modules set PYTHONPATH for the programs of its users. What lies there would be imported before our
own libraries, and an end by an exception of it has the exit code 1, which reads as ``degraded``. So the command begins
anew without these variables. Nothing of ours but this may be imported before.
"""

from __future__ import annotations

import os
import sys

FOREIGN = ("PYTHONPATH", "PYTHONINSPECT", "PYTHONWARNINGS")
"""What changes which code runs, whether the command ends, and which warnings are exceptions."""


def main() -> None:
    """Run the command line of this process and end with its exit code."""
    if not sys.flags.ignore_environment and any(map(os.environ.get, FOREIGN)) and not _is_found_by_path():
        # Not -I: it would hide what a user has installed for himself.
        os.execv(sys.executable, [sys.executable, "-E", "-P", "-m", "nodevet.agent.cli", *sys.argv[1:]])  # noqa: S606
    from .cli import main as run  # the first: it loads libraries without what nodevet does not use

    # isort: split

    from nodevet.agent.terminal.exits import end_process

    end_process(run())


def _is_found_by_path() -> bool:
    """Return whether PYTHONPATH is where this package itself was found: a site may install it so."""
    here = os.path.realpath(__file__)
    places = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return any(here.startswith(os.path.join(os.path.realpath(place), "")) for place in places)  # noqa: PTH118
