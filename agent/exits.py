"""Exit codes of the command line. Only prolog, epilog and healthcheck map them to what SLURM wants."""

from __future__ import annotations

from nodevet.checks.model import State

__all__ = ["CONFIGURATION", "DEGRADED", "FAILED", "OK", "SOFTWARE", "UNKNOWN", "USAGE", "of_state"]

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
