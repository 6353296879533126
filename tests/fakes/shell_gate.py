"""The shell programs of the state file's reference page, and how a prolog would run them."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import msgspec

from nodevet.checks.core.model import Instant, Snapshot
from nodevet.exporters.statefile.reader import boot_id

__all__ = ["gate", "on_this_boot", "shell_examples"]


def shell_examples(repository: Path) -> list[str]:
    """Return the shell programs of the reference page."""
    page = (repository / "docs" / "reference" / "state-file.md").read_text()
    return re.findall(r"```sh\n(.*?)```", page, re.DOTALL)


def gate(shell: str, program: str, path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a shell *program* of the reference page on the state file *path*, with *more* in its environment."""
    environment = {"NODEVET_STATE_FILE": str(path), "PATH": os.environ["PATH"], **more}
    return subprocess.run([shell, "-c", program], env=environment, capture_output=True, text=True, check=False)


def on_this_boot(snapshot: Snapshot) -> Snapshot:
    """Return *snapshot* as if it were judged here and now, for readers that look at the real clock."""
    present = Instant(boot_id(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time())
    return msgspec.structs.replace(snapshot, time=present)
