"""What the machine may have refused to a library: what it lacks now, and what was refused since the last round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodevet.checks.backends.device_nodes import SAID_WITHOUT_ASKING
from nodevet.checks.core.model import FailureKind
from nodevet.checks.ipc.child_process import Child
from nodevet.checks.reference.limits import from_table
from nodevet.checks.system.procfs import FILE_SIZE

from .witness import Surroundings

SCARCE_BYTES = from_table("reader.want.scarce").value
"""Where no more memory than that may be had, the kernel refuses it to a library that says nothing of it."""


class Wants:
    """Looks through *surroundings* for what many a library does not look for: whether it was given what it wanted."""

    def __init__(self, surroundings: Surroundings) -> None:
        """Know of nothing that was refused before."""
        self._around = surroundings
        self._counted: Mapping[str, int] = {}

    def look(self) -> None:
        """Note what was refused so far: that is no cause of what follows."""
        self._counted = self._around.refusals()

    def seen(self, child: Child, *, said: bool = False, files: Iterable[str] = ()) -> str:
        """Return what was refused to *child*, as far as it shows, and what to do; empty where nothing does.

        Where it *said* so, a machine that has little left is enough. *files* are what it had mapped and wrote to.
        """
        if child.tight_limit:
            return f"it ran under an {child.tight_limit}"
        around = self._around
        return (
            around.commit_shortage()
            or around.task_shortage()
            or around.descriptor_shortage()
            or (around.memory_shortage() if said else around.memory_shortage(SCARCE_BYTES))
            or self._refused()
            or around.space_shortage(files)
        )

    def behind(self, child: Child, kind: FailureKind, files: Iterable[str] = ()) -> str:
        """Return what may have made the library of *child* tell a failure of *kind*; empty where nothing did.

        That a board is lost, or the driver of another release, it has from the driver, which wants memory and files and
        neither room on a disk nor threads: any user may take all of those.
        """
        if kind in SAID_WITHOUT_ASKING:
            return self.seen(child, said=True, files=files)
        if child.tight_limit and not child.tight_limit.startswith(FILE_SIZE):
            return f"it ran under an {child.tight_limit}"
        around = self._around
        looks = (around.commit_shortage, around.descriptor_shortage, around.memory_shortage, self._refused)
        return next(filter(None, (look() for look in looks)), "")

    def _refused(self) -> str:
        """Return what the groups of the agent refused since the last look."""
        now = self._around.refusals()
        grown = ((words, now[words] - count) for words, count in self._counted.items() if words in now)
        return next((words.replace("{}", str(grew)) for words, grew in grown if grew > 0), "")
