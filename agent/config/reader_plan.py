"""How a backend is to be read: the plan of one reader."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from nodevet.checks.engine.view import Cadence
from nodevet.checks.system.process import python_module

READER_MODULE = "nodevet.checks.backends.reader_main"
PRELOADS = frozenset({"LD_PRELOAD", "LD_AUDIT"})
"""Variables by which the linker puts other libraries into a process (ld.so(8)): their crash would be the driver's."""


class ReaderPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a backend is to be read: the cadence of each group, and what the child is started with.

    ``holds_devices`` is False where reading keeps no handle of a device open, so that a release may leave it running.
    ``required`` says that the node must have devices of this backend. ``stand_in`` names the backend that is loaded in
    its place, on a node that is simulated.
    """

    backend: str
    cadences: Mapping[str, Cadence]
    root: str = "/"
    options: Mapping[str, object] = {}
    argv: tuple[str, ...] = python_module(READER_MODULE)
    environment: Mapping[str, str] | None = None
    start_deadline_seconds: float = 60.0
    holds_devices: bool = True
    required: bool = False
    stand_in: str | None = None

    @property
    def own_environment(self) -> dict[str, str]:
        """Return the variables of its process, without those that put other libraries into it."""
        given = os.environ if self.environment is None else self.environment
        return {name: value for name, value in given.items() if name not in PRELOADS}
