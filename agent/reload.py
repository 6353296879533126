"""What of a configuration that was read again takes effect at once, and what waits for the next restart."""

from __future__ import annotations

import msgspec

from nodevet.agent.settings import Configuration

__all__ = ["taken_up"]

FIXED = ("agent", "kernel_log", "report", "slurm", "store")
"""Tables whose settings are doors, directories and processes that were opened at the start."""


def taken_up(present: Configuration, fresh: Configuration) -> tuple[Configuration, str]:
    """Return what is in force when *fresh* follows *present*, and a line on the tables that wait for a restart."""
    later = [name for name in FIXED if getattr(fresh, name) != getattr(present, name)]
    message = f"[{'], ['.join(later)}] change with the next restart" if later else ""
    return msgspec.structs.replace(fresh, **{name: getattr(present, name) for name in FIXED}), message
