"""Notes which of our files have one temperature in hand. Run as a program, it is a reader that notes it of itself.

A function has it in hand where one of its variables, or what it returns, is the number itself, its Reading, the Sample
or the message that it is in, or bytes of that; or a row or table of such. What holds all that is known, such as a
Snapshot or a metric with all of its series, does not count: who passes that on handles no temperature.

``python -I walk.py FILE --descriptor N --progress M``: the files are written to FILE, a line each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from nodevet.checks.backends import reader_main
from nodevet.checks.core.model import Reading, Sample
from nodevet.checks.core.wire import Sampled

__all__ = ["HEAT", "Walk"]

QUANTITY = "temperature_celsius"
HEAT = 83
"""The temperature of one board alone, and of nothing else there."""

MESSAGE_BYTES = 4096
"""What is longer is no message of one board, but a page."""

NUMBERS = ("checks/backends/", "exporters/")
"""Where it is a mere number: before it is a Reading, and behind it."""


class Walk:
    """A function for ``sys.settrace``; ``files`` are those that had it in hand, by their names in the repository."""

    def __init__(self, told: Path | None = None) -> None:
        """Append each file to *told*, too."""
        self.files: set[str] = set()
        self._told = told
        self._names: dict[str, str] = {}

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Any:
        """Look into a function of ours when it returns."""
        if not self._name(frame):
            return None
        frame.f_trace_lines = False
        return self._look

    def _look(self, frame: FrameType, event: str, argument: object) -> Any:
        name = self._name(frame)
        if event == "return" and name not in self.files:
            number = name.startswith(NUMBERS)
            if has(argument, number) or any(has(value, number) for value in frame.f_locals.values()):
                self.files.add(name)
                if self._told is not None:
                    with self._told.open("a") as file:
                        file.write(f"{name}\n")
        return self._look

    def _name(self, frame: FrameType) -> str:
        """Return the file of *frame* from its folder on; empty where it is not ours."""
        path = frame.f_code.co_filename
        if path not in self._names:
            module = str(frame.f_globals.get("__name__", ""))
            parts = Path(path).parts
            ours = module.startswith("nodevet.") and path.endswith(".py")
            depth = module.count(".") + (Path(path).stem == "__init__")
            self._names[path] = "/".join(parts[-depth:]) if ours else ""
        return self._names[path]


def has(value: object, number: bool, depth: int = 2) -> bool:
    """Return whether *value* is the temperature, or what carries it; a mere *number* only where it may be one."""
    match value:
        case Reading():
            return value.quantity == QUANTITY and value.value == HEAT
        case Sample():
            return has(value.readings, number)
        case Sampled():
            return has(value.sample, number)
        case bytes() | bytearray():
            return QUANTITY.encode() in value and len(value) <= MESSAGE_BYTES
        case tuple() | list() if depth:
            return any(has(entry, number, depth - 1) for entry in value)
        case dict() if depth:
            return any(has(entry, number, depth - 1) for entry in value.values())
        case int() | float():
            return number and type(value) is not bool and value == HEAT
    return False


if __name__ == "__main__":
    sys.settrace(Walk(Path(sys.argv[1])))
    sys.exit(reader_main.main(sys.argv[2:]))
