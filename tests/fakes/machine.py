"""A machine that a fake driver library plays: what is written into its scenario, and the faults of its calls.

A scenario is a text file with a key and a value per line. A key stands for all devices (``temperature``), for one
slot (``temperature.3``), or for a link or peer of a slot (``link_state.3.5``); the narrower key wins. The library
reads the file again when it was replaced, so a test changes the machine while a program watches it. A key means the
same for every vendor, so one file can describe the machine to several libraries.

Faults take a function, a slot, both (``NAME.SLOT``) or ``all``: see ``fail``, ``hang``, ``crash`` and ``delay``.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

__all__ = ["FakeMachine"]


class FakeMachine:
    """A machine on a fake library. Every method takes effect at the next call into the library."""

    variable: ClassVar[str]
    """The environment variable that names the scenario; with ``_LOG`` behind it, the one that names the log."""

    backend: ClassVar[str]
    """The backend that reads such a machine."""

    lost: ClassVar[int]
    """The code that every call on a lost device returns."""

    def __init__(self, path: Path, library: Path) -> None:
        """Begin with a healthy machine, described in the file *path* for the library at *library*."""
        self.path = path
        self.library = library
        self.log = path.with_suffix(".calls")
        self._clock: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._events: list[str] = []
        self._write()

    @staticmethod
    def uuid(slot: int) -> str:
        """Return the UUID that a healthy machine gives to the device in *slot*."""
        raise NotImplementedError

    @staticmethod
    def pci(slot: int) -> str:
        """Return the address that a healthy machine gives to the device in *slot*."""
        raise NotImplementedError

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a child needs from its start on: the dynamic linker reads them only then."""
        raise NotImplementedError

    def host_files(self) -> dict[str, str]:
        """Return what the kernel shows of the machine below ``/``: its boards on the PCI bus, bound to their driver."""
        raise NotImplementedError

    @property
    def logged_environment(self) -> dict[str, str]:
        """The same, with every call into the library written to ``log``."""
        return {**self.environment, f"{self.variable}_LOG": str(self.log)}

    def calls(self) -> list[str]:
        """Return the calls of children that ran in ``logged_environment``: function and slot, -1 for the library."""
        return self.log.read_text(encoding="ascii").splitlines() if self.log.exists() else []

    def set(self, key: str, value: float | str) -> Self:
        """Set one key and return self."""
        return self.update({key: value})

    def update(self, values: dict[str, float | str]) -> Self:
        """Set several keys at once and return self."""
        self._values |= {key: str(value) for key, value in values.items()}
        self._write()
        return self

    def clear(self, *keys: str) -> Self:
        """Forget *keys*, or everything but time and the events that happened, and return self."""
        for key in keys or tuple(self._values):
            self._values.pop(key, None)
        self._write()
        return self

    def event(self, gpu: int, kind: int, data: int) -> Self:
        """Report an event of any type with its data."""
        self._events.append(f"event.{len(self._events) + 1} {gpu} {kind} {data}")
        self._write()
        return self

    def advance(self, seconds: float) -> Self:
        """Let *seconds* pass for what the device counts by its own clock."""
        return self

    def fail(self, what: str, code: int, gpu: int | None = None) -> Self:
        """Let the function *what* return *code*, on all devices or on *gpu*."""
        return self._fault("error", what, gpu, int(code))

    def fail_device(self, gpu: int, code: int | None = None) -> Self:
        """Let every call on the device in slot *gpu* return *code*, or what a lost device says."""
        return self._fault("error", "", gpu, int(self.lost if code is None else code))

    def vanish(self, gpu: int) -> Self:
        """Take the device in slot *gpu* out of the count."""
        return self.set(f"present.{gpu}", 0)

    def hang(self, what: str = "all", gpu: int | None = None) -> Self:
        """Let the function *what* never return; an empty name with *gpu* means every call on that device."""
        return self._fault("hang", what, gpu, 1)

    def crash(self, what: str = "all", gpu: int | None = None) -> Self:
        """Let the function *what* abort the process."""
        return self._fault("abort", what, gpu, 1)

    def delay(self, what: str, milliseconds: int, gpu: int | None = None) -> Self:
        """Let the function *what* take *milliseconds* longer."""
        return self._fault("delay_milliseconds", what, gpu, milliseconds)

    def _fault(self, kind: str, what: str, gpu: int | None, value: int) -> Self:
        words = [kind, what, "" if gpu is None else str(gpu)]
        return self.set(".".join(word for word in words if word), value)

    def _write(self) -> None:
        lines = [f"{key} {value}" for key, value in (self._clock | self._values).items()] + self._events
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n", encoding="ascii")
        new.replace(self.path)
