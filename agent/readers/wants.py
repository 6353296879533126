"""Resources that the machine may have refused to a library: present shortages, and refusals since the last round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodevet.checks.backends.device_nodes import SAID_WITHOUT_ASKING
from nodevet.checks.core.model import FailureKind
from nodevet.checks.ipc.child_process import Child
from nodevet.checks.reference.limits import from_table
from nodevet.checks.system.procfs import FILE_SIZE

from .witness import Surroundings

SCARCE_BYTES = from_table("reader.want.scarce").value
"""With no more free memory than this, in bytes, the kernel may refuse it to a library that does not report it."""


class Wants:
    """Checks in *surroundings* whether a library got the resources that it requested: many libraries do not check."""

    def __init__(self, surroundings: Surroundings) -> None:
        """Start without any known refusal."""
        self._around = surroundings.shortages
        self._counted: Mapping[str, int] = {}

    def look(self) -> None:
        """Record the refusals so far: they are not a cause of later failures."""
        self._counted = self._around.refusals()

    def seen(self, child: Child, *, said: bool = False, files: Iterable[str] = ()) -> str:
        """Return which resource was refused to *child*, as far as the machine shows, with the remedy; empty if none.

        If the library *said* so, a machine with little left is enough. *files* were mapped and written by it.
        """
        if child.tight_limit:
            return f"it ran with the limit {child.tight_limit}"
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
        """Return which shortage may have made the library of *child* report a failure of *kind*; empty if none.

        A lost board or a version mismatch is reported by the driver, which needs memory and files but neither disk
        space nor threads: any user can use up all of those.
        """
        if kind in SAID_WITHOUT_ASKING:
            return self.seen(child, said=True, files=files)
        if child.tight_limit and not child.tight_limit.startswith(FILE_SIZE):
            return f"it ran with the limit {child.tight_limit}"
        around = self._around
        looks = (around.commit_shortage, around.descriptor_shortage, around.memory_shortage, self._refused)
        return next(filter(None, (look() for look in looks)), "")

    def _refused(self) -> str:
        """Return the refusals in the agent's cgroups since the last check."""
        now = self._around.refusals()
        grown = ((words, now[words] - count) for words, count in self._counted.items() if words in now)
        return next((words.replace("{}", str(grew)) for words, grew in grown if grew > 0), "")
