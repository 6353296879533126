"""A scontrol that a test can break: it stands before the real one, notes what was asked, and does as it is switched."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["BREAKAGES", "SwitchedScontrol"]

PROGRAM = """\
#!/bin/sh
printf '%s\\n' "$*" >>'{calls}'
case $(cat '{switch}') in
fails) echo 'slurm_load_node error: Unable to contact slurm controller (connect failure)' >&2; exit 1 ;;
hangs) exec sleep 60 ;;
ignores) trap '' TERM; while :; do sleep 0.2; done ;;
nothing) exit 0 ;;
blank) echo; exit 0 ;;
garbage) echo 'NodeName=n1 Arch=x86_64'; exit 0 ;;
another) '{real}' "$@" | sed 's/NodeName=[^ ]*/NodeName=elsewhere/'; exit 0 ;;
denied) case $1 in update) echo 'slurm_update error: Invalid user id' >&2; exit 1 ;; esac ;;
*) ;;
esac
exec '{real}' "$@"
"""

BREAKAGES = {
    "fails": "read_failed",
    "hangs": "read_timeout",
    "ignores": "read_timeout",
    "nothing": "read_empty",
    "blank": "read_empty",
    "garbage": "read_unparsable",
    "another": "read_unparsable",
}
"""Every way in which a read can fail, and what it is counted as."""


class SwitchedScontrol:
    """The program in *directory*; ``works`` until ``switch`` is told otherwise."""

    def __init__(self, directory: Path) -> None:
        """Write the program."""
        directory.mkdir(exist_ok=True)
        self.program = directory / "scontrol"
        self._switch = directory / "switch"
        self._calls = directory / "calls"
        self._calls.touch()
        real = shutil.which("scontrol") or "scontrol"
        self.program.write_text(PROGRAM.format(calls=self._calls, switch=self._switch, real=real))
        self.program.chmod(0o755)
        self.switch("works")

    def switch(self, how: str) -> None:
        """Break it: ``fails``, ``hangs``, ``ignores`` (SIGTERM), ``nothing``, ``garbage`` ...; or ``works``."""
        fresh = self._switch.with_suffix(".new")
        fresh.write_text(how)
        fresh.replace(self._switch)

    @property
    def calls(self) -> list[str]:
        """Return the arguments of every call so far."""
        return self._calls.read_text().splitlines()

    @property
    def writes(self) -> list[str]:
        """Return those calls that would have changed something."""
        return [call for call in self.calls if not call.startswith("show ")]
