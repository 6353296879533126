"""What a reader says before it ends, and what it tells of the cause."""

from __future__ import annotations

import re

__all__ = ["INTERPRETER", "NOT_INSTALLED", "WANTS"]

NO_MEMORY = re.compile(
    r"bad_alloc|out of memory|cannot allocate memory|failed to allocate|memory allocation|MemoryError|ENOMEM",
    re.IGNORECASE,
)
NO_TASKS = re.compile(
    r"resource temporarily unavailable|EAGAIN|can't start new thread|pthread_create|failed to create thread",
    re.IGNORECASE,
)
INTERPRETER = re.compile(r"^Fatal Python error", re.MULTILINE)
NO_DESCRIPTORS = re.compile(r"too many open files|EMFILE|ENFILE", re.IGNORECASE)
NOT_INSTALLED = re.compile(
    r"ModuleNotFoundError|ImportError|error while loading shared libraries|version `[^']+' not found|by ld\.so:"
)
WANTS = (
    (NO_MEMORY, "memory", "see free -m and journalctl -k"),
    (NO_DESCRIPTORS, "descriptors", "raise LimitNOFILE of the agent"),
    (NO_TASKS, "threads", "see pids.max, pid_max and ulimit -u"),
)
"""What a library may say that it was refused, and where to look."""
