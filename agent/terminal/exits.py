"""Exit codes of the command line. Only prolog, epilog and healthcheck map them to what SLURM wants."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from nodevet.checks.core.model import State

from .output import let_go_of_output

OK = 0
DEGRADED = 1
FAILED = 2
UNKNOWN = 3
USAGE = 64  # EX_USAGE of sysexits.h
SOFTWARE = 70  # EX_SOFTWARE: our own bug
CONFIGURATION = 78  # EX_CONFIG


def of_state(state: str) -> int:
    """Return the exit code of the verdict *state*."""
    return {State.OK: OK, State.DEGRADED: DEGRADED, State.FAILED: FAILED, State.UNKNOWN: UNKNOWN}[State(state)]


def end_process(code: int) -> NoReturn:
    """End this process with *code*, whatever code of a site left running in it.

    Python would wait for each thread that is no daemon, for the workers of an executor and for each process of
    multiprocessing, and run what was registered with atexit: without end where one of them has none.
    """
    let_go_of_output()
    workers = sys.modules.get("multiprocessing.process")
    for worker in workers.active_children() if workers is not None else ():
        worker.kill()
    os._exit(code)
