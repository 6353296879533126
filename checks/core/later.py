"""Libraries that another library imports for functions that nodevet hardly calls: they are loaded when used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

SELDOM = (
    *("asyncio", "bz2", "calendar", "difflib", "hashlib", "html", "inspect", "locale"),
    *("logging", "lzma", "mimetypes", "ssl", "statistics", "structlog.stdlib", "zipfile"),
)
"""Imported by structlog, http.server, importlib.metadata and others for functions that the agent calls seldom or never.

They take 9 MiB; ssl and hashlib load OpenSSL's library.
"""


class _Later(ModuleType):
    """Stands for a module until the first of its names is asked for."""

    def __init__(self, name: str, known: Mapping[tuple[str, str], object]) -> None:
        super().__init__(name)
        self.__known = known

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system's own questions
            raise AttributeError(name)
        asked = sys._getframe(1).f_globals.get("__name__", ""), f"{self.__name__}.{name}"
        if asked in self.__known:
            return self.__known[asked]
        _forget(self)
        return getattr(importlib.import_module(self.__name__), name)


def called_later(module: str, name: str) -> Callable[..., Any]:
    """Return what stands for the function *name* of *module*, which is loaded when it is called."""

    def call(*given: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*given, **named)

    return call


@contextmanager
def loaded_later(*names: str, known: Mapping[tuple[str, str], object] | None = None) -> Iterator[None]:
    """Let what is imported within see stand-ins for the modules *names*; whoever imports one afterwards gets itself.

    *known* has what a module, its first key, is given for a name, its second, without a load: all that it asks for
    while it is imported.
    """
    stand_ins = [_Later(name, known or {}) for name in names if name not in sys.modules]
    sys.modules.update((each.__name__, each) for each in stand_ins)
    try:
        yield
    finally:
        for each in stand_ins:
            _forget(each)


def _forget(stand_in: ModuleType) -> None:
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]
