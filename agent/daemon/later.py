"""Libraries that another library imports for functions that the agent hardly calls: they are loaded when used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module until the first of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system's own questions
            raise AttributeError(name)
        _forget(self)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def loaded_later(*names: str) -> Iterator[None]:
    """Let what is imported within see stand-ins for the modules *names*; whoever imports one afterwards gets itself."""
    stand_ins = [_Later(name) for name in names if name not in sys.modules]
    sys.modules.update((each.__name__, each) for each in stand_ins)
    try:
        yield
    finally:
        for each in stand_ins:
            _forget(each)


def _forget(stand_in: ModuleType) -> None:
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]
